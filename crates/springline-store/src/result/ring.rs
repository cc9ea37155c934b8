//! Short bodies, most of which are acknowledged a moment later: in one file of fixed length that is
//! shared with the kernel, so that keeping one is a copy.
//!
//! Owns the file `results` of the state folder, and which place the next body takes. What stands there
//! still and is wanted must be kept elsewhere first: the ring names it. Must not know which that is.
//!
//! All numbers are little-endian. Header, 64 bytes: magic, format, length of the file, salt, zeros,
//! checksum. Body, in whole words: salt, session, number, time, ordinal, length, the bytes, zeros up
//! to a word, and a word of 1 and checksum over all that stands before it. That word is stored last,
//! and zero is stored in its place when the body is forgotten.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::beat::Beat;
use crate::digest::SessionDigest;
use crate::folder::{Finding, FolderError, Reason, StateFolder};
use crate::journal::CallId;
use crate::journal::tail::Tail;

pub(crate) const FILE: &str = "results";
/// What becomes of it when it is whole.
const NEW_FILE: &str = "results.new";
/// As much as a thousand calls of `connect` may leave behind at once, and no more of a gateway's
/// memory.
const FILE_LEN: u64 = 1 << 20;
/// The longest body that is kept here.
pub(super) const BODY_MAX: usize = 32 << 10;
/// So much room is made at once: what must go elsewhere goes together.
const ROOM_LEN: u64 = 64 << 10;
const MAGIC: [u8; 8] = *b"SPRLRSLT";
const FORMAT: u32 = 1;
const HEADER_LEN: usize = 64;
const WORD_LEN: usize = 8;
/// What stands before the bytes of a body.
const HEAD_LEN: usize = 56;
const KEPT: u32 = 1;

/// A body that is found at a start.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Found {
    pub(super) call: CallId,
    pub(super) kept_at: Duration,
    pub(super) body: Bytes,
}

/// Where a body stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Spot {
    at: u64,
    /// Of the body.
    len: usize,
}

/// The file, while it is written.
pub(super) struct Ring {
    tail: Tail,
    salt: u64,
    /// Where the next body begins, if there is room for it up to the end of the file.
    next: u64,
    /// The bodies that stand there, forgotten or not, oldest first.
    held: VecDeque<(CallId, Spot)>,
    ordinal: u64,
    /// Where a body is put together.
    scratch: Vec<u8>,
    written: Arc<AtomicU64>,
    beat: Beat,
}

impl Spot {
    fn end(self) -> u64 {
        self.at + record_len(self.len)
    }

    /// Where the word stands that is stored last.
    fn seal(self) -> u64 {
        self.end() - WORD_LEN as u64
    }
}

fn record_len(body: usize) -> u64 {
    (HEAD_LEN + body.next_multiple_of(WORD_LEN) + WORD_LEN) as u64
}

/// What the file holds that was not forgotten. A file that is not ours is set aside.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn read(
    folder: &StateFolder,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Found>, FolderError> {
    let Some(bytes) = folder.read(FILE, FILE_LEN, findings)? else {
        return Ok(Vec::new());
    };
    match take_apart(&bytes) {
        Ok(found) => Ok(found),
        Err(reason) => {
            findings.push(folder.set_aside(&[FILE], reason)?);
            Ok(Vec::new())
        }
    }
}

/// Removes the file, whose bodies are kept elsewhere.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn remove(folder: &StateFolder) -> io::Result<()> {
    match fs::remove_file(folder.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The bodies of a file, in the order in which they were kept; of a call the last one.
fn take_apart(bytes: &[u8]) -> Result<Vec<Found>, Reason> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Reason::Foreign);
    }
    let format = u32_at(bytes, 8).unwrap_or_default();
    if format != FORMAT {
        return Err(Reason::Version { found: format });
    }
    let sum = bytes.get(..HEADER_LEN - 4).map(crc32fast::hash);
    if sum.is_none() || sum != u32_at(bytes, HEADER_LEN - 4) {
        let detail = "its header".into();
        return Err(Reason::Damaged { detail });
    }
    let salt = u64_at(bytes, 16).unwrap_or_default();
    let mut last: HashMap<CallId, (u64, Found)> = HashMap::new();
    let mut at = HEADER_LEN;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some((ordinal, found, len)) = body_at(rest, salt) else {
            // A body begins with the salt, which no body holds but by chance: then its sum is wrong.
            at += WORD_LEN;
            continue;
        };
        at += len;
        let held = last.get(&found.call);
        if held.is_none_or(|(held, _)| *held < ordinal) {
            last.insert(found.call, (ordinal, found));
        }
    }
    let mut all: Vec<_> = last.into_values().collect();
    all.sort_unstable_by_key(|(ordinal, _)| *ordinal);
    Ok(all.into_iter().map(|(_, found)| found).collect())
}

/// The body that begins here, with its ordinal and all of its length, if one does.
fn body_at(bytes: &[u8], salt: u64) -> Option<(u64, Found, usize)> {
    if u64_at(bytes, 0)? != salt {
        return None;
    }
    let len = usize::try_from(u64_at(bytes, 48)?).ok()?;
    let len = Some(len).filter(|len| *len <= BODY_MAX)?;
    let whole = usize::try_from(record_len(len)).ok()?;
    let (text, seal) = bytes.get(..whole)?.split_last_chunk::<WORD_LEN>()?;
    let (sum, state) = (u32_at(seal, 0)?, u32_at(seal, 4)?);
    if state != KEPT || sum != crc32fast::hash(text) {
        return None;
    }
    let session = SessionDigest(text.get(8..24)?.try_into().ok()?);
    let number = u64_at(text, 24)?;
    let found = Found {
        call: CallId { session, number },
        kept_at: Duration::from_millis(u64_at(text, 32)?),
        body: Bytes::copy_from_slice(text.get(HEAD_LEN..HEAD_LEN + len)?),
    };
    Some((u64_at(text, 40)?, found, whole))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

impl Ring {
    /// An empty one, in place of the file that is there. Blocks while the system finds the space.
    ///
    /// # Errors
    /// The disk is full, or the system cannot map a file.
    pub(super) fn create(folder: &StateFolder) -> io::Result<Self> {
        match fs::remove_file(folder.join(NEW_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let salt = getrandom::u64().map_err(io::Error::other)?;
        let tail = Tail::new(folder.create(NEW_FILE)?, FILE_LEN)?;
        tail.store(0, &header(salt));
        fs::rename(folder.join(NEW_FILE), folder.join(FILE))?;
        let written = Arc::new(AtomicU64::new(0));
        let (file, seen) = (Arc::clone(tail.file()), Arc::clone(&written));
        let mut unsettled = Some(folder.clone());
        let beat = Beat::start("springline-results", move || {
            let ordinal = seen.load(Ordering::Acquire);
            let mut sync = || {
                file.sync_data()?;
                match unsettled.take() {
                    Some(folder) => folder.sync(),
                    None => Ok(()),
                }
            };
            let synced = sync();
            synced.map_err(|error: io::Error| Arc::from(error.to_string()))?;
            Ok(ordinal)
        })?;
        Ok(Self {
            tail,
            salt,
            next: HEADER_LEN as u64,
            held: VecDeque::new(),
            ordinal: 0,
            scratch: Vec::new(),
            written,
            beat,
        })
    }

    /// Whether what is kept here reaches the disk.
    pub(super) fn is_well(&self) -> bool {
        self.beat.failure().is_none()
    }

    /// Whether a body of this length has a place that is free.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let place = self.place(record_len(len));
        let oldest = self.held.front();
        !oldest.is_some_and(|(_, spot)| self.is_in_way(*spot, &place))
    }

    /// What must leave before a body of this length can be kept, and some more of the oldest.
    pub(super) fn oldest(&self, len: usize) -> Vec<(CallId, Spot)> {
        let place = self.place(record_len(len).max(ROOM_LEN));
        let in_way = self.held.iter();
        let in_way = in_way.take_while(|(_, spot)| self.is_in_way(*spot, &place));
        in_way.copied().collect()
    }

    /// Gives up the oldest places: nobody wants what stands there.
    pub(super) fn release(&mut self, count: usize) {
        self.held.drain(..count.min(self.held.len()));
    }

    /// Keeps a body where [`Ring::has_room`] says that there is room.
    pub(super) fn put(&mut self, call: CallId, kept_at: Duration, body: &[u8]) -> Spot {
        let spot = Spot {
            at: self.place(record_len(body.len())).start,
            len: body.len(),
        };
        self.ordinal += 1;
        let text = &mut self.scratch;
        text.clear();
        text.extend_from_slice(&self.salt.to_le_bytes());
        text.extend_from_slice(&call.session.0);
        text.extend_from_slice(&call.number.to_le_bytes());
        let millis = u64::try_from(kept_at.as_millis()).unwrap_or(u64::MAX);
        text.extend_from_slice(&millis.to_le_bytes());
        text.extend_from_slice(&self.ordinal.to_le_bytes());
        text.extend_from_slice(&(body.len() as u64).to_le_bytes());
        text.extend_from_slice(body);
        text.resize(text.len().next_multiple_of(WORD_LEN), 0);
        let sum = crc32fast::hash(text);
        text.extend_from_slice(&sum.to_le_bytes());
        text.extend_from_slice(&KEPT.to_le_bytes());
        self.tail.store(spot.at, text);
        self.next = spot.end();
        self.held.push_back((call, spot));
        self.mark();
        spot
    }

    /// Forgets a body. A crash before that is on the disk finds it again.
    pub(super) fn forget(&self, spot: Spot) {
        self.tail.store(spot.seal(), &[0; WORD_LEN]);
        self.mark();
    }

    /// A body that was not forgotten.
    pub(super) fn body(&self, spot: Spot) -> Bytes {
        let mut text = self.tail.load(spot.at, record_len(spot.len));
        text.truncate(HEAD_LEN + spot.len);
        Bytes::from(text).slice(HEAD_LEN..)
    }

    /// Where something of this length comes to stand.
    fn place(&self, len: u64) -> Range<u64> {
        let fits = self.next + len <= FILE_LEN;
        let start = if fits { self.next } else { HEADER_LEN as u64 };
        start..start + len
    }

    /// Whether what comes to stand there meets this one of the oldest. Of those before the end of the
    /// file, all that begin after `next` are older than those before it.
    fn is_in_way(&self, spot: Spot, place: &Range<u64>) -> bool {
        let is_older = spot.at >= self.next;
        if place.start == self.next {
            is_older && spot.at < place.end
        } else {
            is_older || spot.at < place.end
        }
    }

    fn mark(&self) {
        let ordinal = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        self.beat.mark(ordinal);
    }
}

fn header(salt: u64) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    out[16..24].copy_from_slice(&salt.to_le_bytes());
    out[24..32].copy_from_slice(&FILE_LEN.to_le_bytes());
    let sum = crc32fast::hash(&out[..HEADER_LEN - 4]);
    out[HEADER_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(1_790_000_000);

    fn folder() -> (tempfile::TempDir, StateFolder) {
        let home = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(&home.path().join("state")).unwrap();
        (home, folder)
    }

    fn call(number: u64) -> CallId {
        CallId {
            session: SessionDigest([7; 16]),
            number,
        }
    }

    fn found(folder: &StateFolder) -> Vec<(u64, Bytes)> {
        let mut findings = Vec::new();
        let found = read(folder, &mut findings).unwrap();
        assert_eq!(findings, []);
        found
            .into_iter()
            .map(|found| (found.call.number, found.body))
            .collect()
    }

    /// Keeps a body, whatever stands in the way. Returns how many did.
    fn keep(ring: &mut Ring, number: u64, body: &[u8]) -> usize {
        let count = if ring.has_room(body.len()) {
            0
        } else {
            ring.oldest(body.len()).len()
        };
        ring.release(count);
        assert!(ring.has_room(body.len()));
        ring.put(call(number), TIME, body);
        count
    }

    #[test]
    fn what_is_kept_is_in_the_file_at_once_and_what_is_forgotten_is_not() {
        let (_home, folder) = folder();
        assert_eq!(found(&folder), []);
        let mut ring = Ring::create(&folder).unwrap();
        let first = ring.put(call(1), TIME, b"one");
        let second = ring.put(call(2), TIME, b"");
        ring.put(call(3), TIME, &[9; 17]);
        ring.put(call(3), TIME, b"newer");
        assert_eq!(ring.body(first), "one");
        let all = [(1, "one".into()), (2, "".into()), (3, "newer".into())];
        assert_eq!(found(&folder), all);
        ring.forget(second);
        assert_eq!(found(&folder), [all[0].clone(), all[2].clone()]);
        drop(ring);
        assert_eq!(
            found(&folder).len(),
            2,
            "the end of the process takes nothing"
        );
        drop(Ring::create(&folder).unwrap());
        assert_eq!(found(&folder), []);
    }

    #[test]
    fn the_oldest_make_room_and_all_others_are_whole() {
        let (_home, folder) = folder();
        let mut ring = Ring::create(&folder).unwrap();
        let mut held = VecDeque::new();
        for number in 0..2000_u64 {
            let len = usize::try_from(number * 7919 % 9000).unwrap();
            let body = vec![u8::try_from(number % 251).unwrap(); len];
            for _ in 0..keep(&mut ring, number, &body) {
                held.pop_front();
            }
            held.push_back((number, Bytes::from(body)));
            if number % 97 == 0 {
                let found = found(&folder);
                // What has left is there until something else stands in its place.
                let newest = &found[found.len() - held.len()..];
                assert!(newest == held.make_contiguous(), "after {number}");
            }
        }
        assert!(held.len() > 100 && held.len() < 2000);
        let longest = vec![1; BODY_MAX];
        keep(&mut ring, 5000, &longest);
        assert_eq!(found(&folder).last().unwrap().1, longest);
    }

    #[test]
    fn half_a_body_is_none_and_those_around_it_are_whole() {
        let (_home, folder) = folder();
        let mut ring = Ring::create(&folder).unwrap();
        let spots = [1, 2, 3].map(|number| ring.put(call(number), TIME, &[5; 40]));
        let mut bytes = fs::read(folder.join(FILE)).unwrap();
        bytes[usize::try_from(spots[1].at).unwrap() + HEAD_LEN] ^= 1;
        let found = take_apart(&bytes).unwrap();
        let numbers: Vec<u64> = found.iter().map(|found| found.call.number).collect();
        assert_eq!(numbers, [1, 3]);
    }

    #[test]
    fn a_file_that_is_not_ours_is_set_aside() {
        let (_home, folder) = folder();
        drop(Ring::create(&folder).unwrap());
        let ours = fs::read(folder.join(FILE)).unwrap();
        let change = |at: usize| {
            let mut bytes = ours.clone();
            bytes[at] ^= 1;
            bytes
        };
        let cases = [change(0), change(8), change(17), b"SPRLRSLT".to_vec()];
        for (number, bytes) in cases.into_iter().enumerate() {
            fs::write(folder.join(FILE), bytes).unwrap();
            let mut findings = Vec::new();
            assert_eq!(read(&folder, &mut findings).unwrap(), []);
            // Its mode is another finding.
            let finding = findings.pop().unwrap();
            assert!(matches!(
                (number, &finding.reason),
                (0, Reason::Foreign)
                    | (1 | 3, Reason::Version { .. })
                    | (2, Reason::Damaged { .. })
            ));
            assert!(finding.kept.unwrap().exists());
            assert!(!folder.join(FILE).exists());
        }
    }
}
