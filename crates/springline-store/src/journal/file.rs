//! The journal on disk: segments that only grow.
//!
//! Owns the folder `journal` of the state folder. All entries of an `append` are stored to a mapping of
//! the newest segment, without a call of the system and beside other appends; a thread syncs what was
//! stored in groups, and removes segments that no open call needs any more. The length on disk is
//! bounded: calls that keep an old segment alive are carried over into a new one.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard, RwLock};
use springline_proto::call::Generation;

use super::form::{self, HEADER_LEN, Header, Line, RECORD_LEN};
use super::scan::{self, Scan, name};
use super::tail::Tail;
use super::{
    CallEntry, CallId, CallState, Journal, JournalError, OPEN_CALLS_MAX, Recovered, check_bounds,
};
use crate::beat::Beat;
use crate::digest::DigestHash;
use crate::folder::{Finding, FolderError, StateFolder, failure};
use crate::record::Seq;

/// A segment that has reached this length gets a successor: some 87,000 records.
pub(super) const SEGMENT_LEN: u64 = 4 << 20;
/// So many segments at most; then the open calls of the oldest are carried over.
pub(super) const SEGMENTS_MAX: usize = 8;
/// Open calls are kept in so many parts, by session: calls of different sessions rarely meet.
const SHARDS: usize = 16;
/// So many entries are stored beside those of other appends. A longer append is alone, so that a kill
/// leaves no gap of its length before whole records ([`form::GAP_MAX`]).
const BESIDE_MAX: usize = 16;
const FOLDER: &str = "journal";

/// Keeps the states of calls in the state folder.
#[derive(Debug)]
pub struct FileJournal {
    pub(super) shared: Arc<Shared>,
    beat: Beat,
}

#[derive(Debug)]
pub(super) struct Shared {
    folder: StateFolder,
    boot: [u8; 16],
    /// Shared by appends for the length of their stores; held alone to grow, once in some thousand
    /// records, and by the syncing thread for a few instructions.
    pub(super) ground: RwLock<Ground>,
    /// The calls that are not settled, by session. Held from the claim of a place in the file to
    /// the last store, so that the entries of a call stand in the order in which they are known
    /// here. Taken after `ground`, and in their own order.
    shards: [Mutex<Shard>; SHARDS],
    /// How many they are, with those that are about to be.
    open: AtomicUsize,
    /// The last append whose stores are done.
    seq: AtomicU64,
    poison: OnceLock<Arc<str>>,
}

/// What of the folder is in use.
#[derive(Debug)]
pub(super) struct Ground {
    /// Segments that are full, oldest first.
    pub(super) older: VecDeque<Arc<Segment>>,
    /// The one that grows.
    current: Arc<Segment>,
    pub(super) tail: Tail,
    /// Full segments that are not synced.
    sealed: Vec<Arc<File>>,
    /// Whether there are names in the folder that are not synced.
    named: bool,
}

/// One file. Each open call owns the segment of its last entry, beside the ground that lists it: so
/// the number of its owners tells whether it is needed.
#[derive(Debug)]
pub(super) struct Segment {
    ordinal: u64,
    salt: u64,
}

type Shard = HashMap<CallId, Held, DigestHash>;

/// The shards that an append holds.
enum Locked<'a> {
    /// All entries are of one, as those of one session are.
    One(usize, MutexGuard<'a, Shard>),
    Some(Box<[Option<MutexGuard<'a, Shard>>; SHARDS]>),
}

impl Locked<'_> {
    fn of(&mut self, call: CallId) -> Option<&mut Shard> {
        let wanted = shard_of(call);
        match self {
            Self::One(held, shard) => (*held == wanted).then_some(shard),
            Self::Some(shards) => shards[wanted].as_deref_mut(),
        }
    }
}

#[derive(Clone, Debug)]
struct Held {
    entry: CallEntry,
    /// Where it stands.
    segment: Arc<Segment>,
}

impl FileJournal {
    /// Opens the journal of a state folder and tells which calls are open. They are written to a new
    /// segment, so a torn one is never written to.
    ///
    /// # Errors
    /// The folder cannot be read or written. Content that is not ours is set aside instead.
    pub fn open(folder: &StateFolder) -> Result<(Self, Recovered, Vec<Finding>), JournalError> {
        Self::open_in_boot(folder, boot())
    }

    /// As [`FileJournal::open`], in the given boot of the machine.
    pub(super) fn open_in_boot(
        folder: &StateFolder,
        boot: [u8; 16],
    ) -> Result<(Self, Recovered, Vec<Finding>), JournalError> {
        let (journal, recovered, findings) = Self::open_or_read(folder, boot)?;
        Ok((journal?, recovered, findings))
    }

    /// As [`FileJournal::open`], but a disk without room for a new segment is told beside what the old ones
    /// hold, which stay as they are.
    #[expect(clippy::type_complexity, reason = "the parts of what is opened")]
    pub(crate) fn open_or_read(
        folder: &StateFolder,
        boot: [u8; 16],
    ) -> Result<(Result<Self, JournalError>, Recovered, Vec<Finding>), JournalError> {
        let opened = |error: FolderError| JournalError::Open(Arc::new(error));
        let mut findings = Vec::new();
        let folder = folder.inner(FOLDER, &mut findings).map_err(opened)?;
        let mut scan = scan::scan(&folder, boot).map_err(opened)?;
        findings.append(&mut scan.findings);
        let recovered = recover(&scan);
        let failed_to_write = failure("write", folder.path());
        let shared = match Shared::start(folder.clone(), &scan, &recovered, boot) {
            Ok(shared) => Arc::new(shared),
            Err(error) if is_full(&error) => {
                let error = opened(failed_to_write(error));
                return Ok((Err(error), recovered, findings));
            }
            Err(error) => return Err(opened(failed_to_write(error))),
        };
        for (name, reason) in scan.aside {
            findings.push(folder.set_aside(&[&name], reason).map_err(opened)?);
        }
        let own = Arc::clone(&shared);
        let beat = Beat::start("springline-journal", move || {
            own.sync().map_err(|error| error.to_string().into())
        })
        .map_err(|error| failed(&error))?;
        // What was read goes once the open calls are on the disk again; a start does not wait for it.
        beat.mark(shared.seq.load(Ordering::Acquire));
        Ok((Ok(Self { shared, beat }), recovered, findings))
    }
}

impl Journal for FileJournal {
    fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError> {
        let shared = &*self.shared;
        if let Some(cause) = shared.poison.get().cloned().or_else(|| self.beat.failure()) {
            return Err(JournalError::Poisoned { cause });
        }
        let reserved = shared.reserve(entries)?;
        let written = shared.write(entries);
        shared.open.fetch_sub(reserved, Ordering::Relaxed);
        if let Err(error) = written {
            // The first cause is the one that counts.
            shared.poison.get_or_init(|| error.to_string().into());
            return Err(failed(&error));
        }
        let seq = shared.seq.fetch_add(1, Ordering::AcqRel) + 1;
        self.beat.mark(seq);
        Ok(Seq(seq))
    }

    fn sync(&self) -> Result<Seq, JournalError> {
        match self.beat.sync() {
            Ok(seq) => Ok(Seq(seq)),
            Err(cause) => Err(JournalError::Poisoned { cause }),
        }
    }

    fn synced(&self) -> Seq {
        Seq(self.beat.synced())
    }

    fn last(&self, call: CallId) -> Option<CallEntry> {
        let shard = self.shared.shards[shard_of(call)].lock();
        shard.get(&call).map(|held| held.entry)
    }

    fn open_calls(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    fn entries(&self) -> Vec<CallEntry> {
        self.shared.held(|_| true)
    }
}

/// Marks the journal as closed in order, once all before the mark is on the disk.
impl Drop for FileJournal {
    fn drop(&mut self) {
        if self.beat.sync().is_err() || self.shared.poison.get().is_some() {
            return;
        }
        let mut ground = self.shared.ground.write();
        let len = RECORD_LEN as u64;
        // Without the mark the next start doubts what it may doubt.
        let claimed = ground.tail.claim(len).or_else(|| {
            ground.tail.grow(len).ok()?;
            ground.tail.claim(len)
        });
        if let Some(at) = claimed {
            let record = form::record(ground.current.salt, &Line::Closed);
            ground.tail.store(at, &record);
            let seq = self.shared.seq.fetch_add(1, Ordering::AcqRel) + 1;
            self.beat.mark(seq);
        }
    }
}

impl Shared {
    /// The first segment, with the open calls.
    fn start(
        folder: StateFolder,
        scan: &Scan,
        recovered: &Recovered,
        boot: [u8; 16],
    ) -> io::Result<Self> {
        let (current, tail) = birth(&folder, scan.next, boot, recovered.open.len())?;
        let read = scan.read.iter().map(|ordinal| {
            let (ordinal, salt) = (*ordinal, 0);
            Arc::new(Segment { ordinal, salt })
        });
        let older: VecDeque<_> = read.collect();
        let shared = Self {
            seq: AtomicU64::new(u64::from(!older.is_empty())),
            ground: RwLock::new(Ground {
                older,
                current,
                tail,
                sealed: Vec::new(),
                named: true,
            }),
            folder,
            boot,
            shards: Default::default(),
            open: AtomicUsize::new(0),
            poison: OnceLock::new(),
        };
        let ground = shared.ground.write();
        if !shared.put(&ground, &recovered.open) {
            return Err(no_room());
        }
        drop(ground);
        if recovered.incomplete {
            // What is doubtful is not read again, or its doubt would fall on the calls to come.
            shared.sync()?;
        }
        Ok(shared)
    }

    /// Holds places for calls that may be new, so that many appends at once keep to the bound.
    fn reserve(&self, entries: &[CallEntry]) -> Result<usize, JournalError> {
        let grows = check_bounds(entries)?;
        let count = if grows { entries.len() } else { 0 };
        let before = self.open.fetch_add(count, Ordering::Relaxed);
        if count > 0 && before + count > OPEN_CALLS_MAX {
            self.open.fetch_sub(count, Ordering::Relaxed);
            return Err(JournalError::Full);
        }
        Ok(count)
    }

    fn write(&self, entries: &[CallEntry]) -> io::Result<()> {
        if entries.len() <= BESIDE_MAX && self.put(&self.ground.read(), entries) {
            return Ok(());
        }
        let mut ground = self.ground.write();
        // It may have grown meanwhile.
        if self.put(&ground, entries) {
            return Ok(());
        }
        let len = (entries.len() * RECORD_LEN) as u64;
        if ground.tail.len() + len > SEGMENT_LEN {
            self.rotate(&mut ground, entries.len())?;
        } else {
            ground.tail.grow(len)?;
        }
        if self.put(&ground, entries) {
            Ok(())
        } else {
            Err(no_room())
        }
    }

    /// Stores entries all together; `false` if there is no room, and then nothing was done.
    fn put(&self, ground: &Ground, entries: &[CallEntry]) -> bool {
        let mut shards = self.lock(entries);
        let Some(mut at) = ground.tail.claim((entries.len() * RECORD_LEN) as u64) else {
            return false;
        };
        let segment = &ground.current;
        for entry in entries {
            let record = form::record(segment.salt, &Line::Entry(*entry));
            ground.tail.store(at, &record);
            at += RECORD_LEN as u64;
            if let Some(shard) = shards.of(entry.call) {
                self.note(shard, *entry, segment);
            }
        }
        true
    }

    /// The shards of some entries, in the order that all keep to.
    fn lock(&self, entries: &[CallEntry]) -> Locked<'_> {
        let first = entries.first().map_or(0, |entry| shard_of(entry.call));
        if entries.iter().all(|entry| shard_of(entry.call) == first) {
            return Locked::One(first, self.shards[first].lock());
        }
        let mut wanted = [false; SHARDS];
        for entry in entries {
            wanted[shard_of(entry.call)] = true;
        }
        let mut guards = Box::new([const { None }; SHARDS]);
        for ((guard, shard), wanted) in guards.iter_mut().zip(&self.shards).zip(wanted) {
            if wanted {
                *guard = Some(shard.lock());
            }
        }
        Locked::Some(guards)
    }

    fn note(&self, shard: &mut Shard, entry: CallEntry, segment: &Arc<Segment>) {
        if entry.state == CallState::Settled {
            if shard.remove(&entry.call).is_some() {
                self.open.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        let segment = Arc::clone(segment);
        if shard.insert(entry.call, Held { entry, segment }).is_none() {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goes on in a new segment with room for `count` entries. With as many segments as there may
    /// be, the open calls of the oldest are stored again, so that it can go.
    fn rotate(&self, ground: &mut Ground, count: usize) -> io::Result<()> {
        let carried = self.carried(ground);
        let ordinal = ground.current.ordinal + 1;
        let (next, tail) = birth(&self.folder, ordinal, self.boot, count + carried.len())?;
        let full = std::mem::replace(&mut ground.current, next);
        ground.older.push_back(full);
        let full = std::mem::replace(&mut ground.tail, tail);
        ground.sealed.push(Arc::clone(full.file()));
        ground.named = true;
        if self.put(ground, &carried) {
            Ok(())
        } else {
            Err(no_room())
        }
    }

    /// What must be stored again so that the oldest segment can go.
    fn carried(&self, ground: &Ground) -> Vec<CallEntry> {
        // The current one is about to be a full one, beside its successor.
        if ground.older.len() + 2 <= SEGMENTS_MAX {
            return Vec::new();
        }
        // With many segments still to be removed, the oldest one that is alive counts.
        let Some(oldest) = ground.older.iter().find(|held| is_needed(held)) else {
            return Vec::new();
        };
        self.held(|segment| Arc::ptr_eq(segment, oldest))
    }

    /// The last entries of open calls that stand in some segments.
    fn held(&self, is_wanted: impl Fn(&Arc<Segment>) -> bool) -> Vec<CallEntry> {
        let mut entries = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.values().filter(|held| is_wanted(&held.segment));
            entries.extend(held.map(|held| held.entry));
        }
        entries
    }

    fn sync(&self) -> io::Result<u64> {
        // Before the files are looked at: what they do not hold then is not claimed to be synced.
        let seq = self.seq.load(Ordering::Acquire);
        let mut ground = self.ground.write();
        let mut files = std::mem::take(&mut ground.sealed);
        let named = std::mem::take(&mut ground.named);
        files.push(Arc::clone(ground.tail.file()));
        // A younger one stays while an older one does, or the older one's calls would open again.
        let removable = ground.older.iter().take_while(|held| !is_needed(held));
        let removable: Vec<u64> = removable.map(|segment| segment.ordinal).collect();
        drop(ground);
        for file in files {
            // On Linux this writes what is dirty in mappings of the file too, as msync would: fsync(2)
            // speaks of all modified pages of the file, and a store makes its page one.
            file.sync_data()?;
        }
        if named {
            self.folder.sync()?;
        }
        // Only now: what was carried over is on the disk.
        for ordinal in removable {
            match fs::remove_file(self.folder.join(&name(ordinal))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            self.ground.write().older.pop_front();
        }
        Ok(seq)
    }
}

pub(super) fn recover(scan: &Scan) -> Recovered {
    let open = scan.open.values().copied().map(|mut entry| {
        if scan.incomplete && entry.state == CallState::Accepted {
            entry.state = CallState::Sent {
                generation: Generation(0),
            };
        }
        entry
    });
    Recovered {
        open: open.collect(),
        incomplete: scan.incomplete,
    }
}

/// A new segment with its header, and room for `count` records.
fn birth(
    folder: &StateFolder,
    ordinal: u64,
    boot: [u8; 16],
    count: usize,
) -> io::Result<(Arc<Segment>, Tail)> {
    let salt = getrandom::u64().map_err(io::Error::other)?;
    let header = form::header(&Header {
        ordinal,
        salt,
        boot,
    });
    let file = folder.create(&name(ordinal))?;
    let tail = Tail::new(file, (HEADER_LEN + count * RECORD_LEN) as u64).inspect_err(|_| {
        // It holds nothing. Should it stay it is read as empty, and removed later.
        fs::remove_file(folder.join(&name(ordinal))).unwrap_or_default();
    })?;
    let at = tail.claim(HEADER_LEN as u64).ok_or_else(no_room)?;
    tail.store(at, &header);
    Ok((Arc::new(Segment { ordinal, salt }), tail))
}

/// Whether a full segment holds the last entry of an open call.
fn is_needed(segment: &Arc<Segment>) -> bool {
    Arc::strong_count(segment) > 1
}

/// Sessions are keyed digests: any bits of them are spread evenly.
fn shard_of(call: CallId) -> usize {
    usize::from(call.session.0[0]) % SHARDS
}

/// Tells one boot of the machine from the next; zeros where the system does not say.
pub(crate) fn boot() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}

/// Whether files cannot grow now, which may pass.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Cannot be: room is made for as much as is stored.
fn no_room() -> io::Error {
    io::Error::other("the journal's segment has no room")
}

fn failed(error: &io::Error) -> JournalError {
    JournalError::Failed {
        cause: error.to_string().into(),
    }
}
