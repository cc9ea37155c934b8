//! The journal on disk: segments that only grow.
//!
//! Owns the folder `journal` of the state folder. All entries of an `append` go to the kernel in one
//! write; a thread syncs them in groups, and removes segments that no open call needs any more. The
//! length on disk is bounded: calls that keep an old segment alive are carried over into a new one.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::Arc;

use parking_lot::Mutex;
use springline_proto::call::Generation;

use super::form::{self, HEADER_LEN, Header, Line, RECORD_LEN};
use super::scan::{self, Scan, name};
use super::{CallEntry, CallId, CallState, Journal, JournalError, Recovered, check_bounds};
use crate::beat::Beat;
use crate::folder::{Finding, FolderError, StateFolder, failure};
use crate::record::Seq;

/// A segment that has reached this length gets a successor: some 87,000 records.
pub(super) const SEGMENT_LEN: u64 = 4 << 20;
/// So many segments at most; then the open calls of the oldest are carried over.
pub(super) const SEGMENTS_MAX: usize = 8;
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
    /// Held for the length of one append, and by the syncing thread for a few instructions.
    pub(super) inner: Mutex<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    /// The calls that are not settled.
    open: HashMap<CallId, Held>,
    /// For each segment on disk the number of calls whose last entry it holds.
    pub(super) segments: BTreeMap<u64, usize>,
    pub(super) current: Current,
    /// Full segments that are not synced.
    sealed: Vec<Arc<File>>,
    /// Whether there are names in the folder that are not synced.
    named: bool,
    boot: [u8; 16],
    seq: u64,
    poison: Option<Arc<str>>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    entry: CallEntry,
    /// Where its last entry stands.
    segment: u64,
}

/// The segment that grows.
#[derive(Debug)]
pub(super) struct Current {
    ordinal: u64,
    salt: u64,
    pub(super) file: Arc<File>,
    pub(super) len: u64,
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
        let opened = |error: FolderError| JournalError::Open(Arc::new(error));
        let mut findings = Vec::new();
        let folder = folder.inner(FOLDER, &mut findings).map_err(opened)?;
        let mut scan = scan::scan(&folder, boot).map_err(opened)?;
        findings.append(&mut scan.findings);
        let recovered = recover(&scan);
        let inner = start(&folder, &scan, &recovered, boot).map_err(opened)?;
        let shared = Arc::new(Shared {
            folder,
            inner: Mutex::new(inner),
        });
        let own = Arc::clone(&shared);
        let beat = Beat::start("springline-journal", move || {
            own.sync().map_err(|error| error.to_string().into())
        })
        .map_err(|error| failed(&error))?;
        Ok((Self { shared, beat }, recovered, findings))
    }
}

impl Journal for FileJournal {
    fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError> {
        let mut inner = self.shared.inner.lock();
        if inner.poison.is_none() {
            inner.poison = self.beat.failure();
        }
        if let Some(cause) = &inner.poison {
            return Err(JournalError::Poisoned {
                cause: Arc::clone(cause),
            });
        }
        check_bounds(entries, inner.open.len())?;
        if let Err(error) = inner.write(&self.shared.folder, entries) {
            inner.poison = Some(error.to_string().into());
            return Err(failed(&error));
        }
        inner.seq += 1;
        let seq = inner.seq;
        drop(inner);
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

    fn open_calls(&self) -> usize {
        self.shared.inner.lock().open.len()
    }
}

/// Marks the journal as closed in order, once all before the mark is on the disk.
impl Drop for FileJournal {
    fn drop(&mut self) {
        if self.beat.sync().is_err() {
            return;
        }
        let mut inner = self.shared.inner.lock();
        if inner.poison.is_some() {
            return;
        }
        let mut mark = Vec::with_capacity(RECORD_LEN);
        form::write_line(inner.current.salt, &Line::Closed, &mut mark);
        if (&*inner.current.file).write_all(&mark).is_ok() {
            inner.seq += 1;
            self.beat.mark(inner.seq);
        }
    }
}

impl Inner {
    fn write(&mut self, folder: &StateFolder, entries: &[CallEntry]) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let mut carried = Vec::new();
        let grown = self.current.len + (entries.len() * RECORD_LEN) as u64;
        if grown > SEGMENT_LEN {
            self.rotate(folder, &mut buffer)?;
            carried = self.carry();
        }
        let salt = self.current.salt;
        for entry in carried.iter().chain(entries) {
            form::write_line(salt, &Line::Entry(*entry), &mut buffer);
        }
        (&*self.current.file).write_all(&buffer)?;
        self.current.len += buffer.len() as u64;
        buffer.truncate(RECORD_LEN * 64);
        buffer.shrink_to(RECORD_LEN * 64);
        self.buffer = buffer;
        for entry in carried.iter().chain(entries) {
            self.note(*entry);
        }
        Ok(())
    }

    fn rotate(&mut self, folder: &StateFolder, buffer: &mut Vec<u8>) -> io::Result<()> {
        let ordinal = self.current.ordinal + 1;
        let next = birth(folder, ordinal, self.boot, buffer)?;
        let old = std::mem::replace(&mut self.current, next);
        self.sealed.push(old.file);
        self.named = true;
        self.segments.insert(ordinal, 0);
        Ok(())
    }

    /// What must be written again so that the oldest segment can go.
    fn carry(&self) -> Vec<CallEntry> {
        if self.segments.len() <= SEGMENTS_MAX {
            return Vec::new();
        }
        // With many segments still to be removed, the oldest one that is alive counts.
        let oldest = self.segments.iter().find(|(_, live)| **live > 0);
        let oldest = oldest.map(|(ordinal, _)| *ordinal);
        let held = self.open.values();
        held.filter(|held| Some(held.segment) == oldest)
            .map(|held| held.entry)
            .collect()
    }

    fn note(&mut self, entry: CallEntry) {
        let segment = self.current.ordinal;
        let before = if entry.state == CallState::Settled {
            self.open.remove(&entry.call)
        } else {
            *self.segments.entry(segment).or_default() += 1;
            self.open.insert(entry.call, Held { entry, segment })
        };
        if let Some(live) = before.and_then(|held| self.segments.get_mut(&held.segment)) {
            *live -= 1;
        }
    }

    /// The oldest segments that no open call needs. A younger one stays while an older one does, or
    /// the older one's calls would open again.
    fn removable(&self) -> Vec<u64> {
        let ends =
            |(ordinal, live): &(&u64, &usize)| **live == 0 && **ordinal != self.current.ordinal;
        let removable = self.segments.iter().take_while(ends);
        removable.map(|(ordinal, _)| *ordinal).collect()
    }
}

impl Shared {
    fn sync(&self) -> io::Result<u64> {
        let mut inner = self.inner.lock();
        let mut files = std::mem::take(&mut inner.sealed);
        let named = std::mem::take(&mut inner.named);
        files.push(Arc::clone(&inner.current.file));
        let (seq, removable) = (inner.seq, inner.removable());
        drop(inner);
        for file in files {
            file.sync_data()?;
        }
        if named {
            self.folder.sync()?;
        }
        // Only now: what was carried over is on the disk.
        for ordinal in removable {
            fs::remove_file(self.folder.join(&name(ordinal)))?;
            self.inner.lock().segments.remove(&ordinal);
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

/// The first segment, with the open calls; the ones that were read go when it is on the disk.
fn start(
    folder: &StateFolder,
    scan: &Scan,
    recovered: &Recovered,
    boot: [u8; 16],
) -> Result<Inner, FolderError> {
    let failed = failure("write", folder.path());
    let mut buffer = Vec::with_capacity(HEADER_LEN + recovered.open.len() * RECORD_LEN);
    let current = birth(folder, scan.next, boot, &mut buffer).map_err(&failed)?;
    let mut inner = Inner {
        open: HashMap::new(),
        segments: BTreeMap::from([(scan.next, 0)]),
        current,
        sealed: Vec::new(),
        named: true,
        boot,
        seq: 0,
        poison: None,
        buffer: Vec::new(),
    };
    for entry in &recovered.open {
        form::write_line(inner.current.salt, &Line::Entry(*entry), &mut buffer);
        inner.note(*entry);
    }
    let finish = || {
        (&*inner.current.file).write_all(&buffer)?;
        if scan.read.is_empty() {
            // Nothing goes, so nothing must be on the disk first.
            return Ok(());
        }
        inner.current.file.sync_data()?;
        folder.sync()?;
        for ordinal in &scan.read {
            fs::remove_file(folder.join(&name(*ordinal)))?;
        }
        Ok(())
    };
    finish().map_err(&failed)?;
    inner.current.len = buffer.len() as u64;
    Ok(inner)
}

/// A new segment; its header goes into the buffer, to share the first write.
fn birth(
    folder: &StateFolder,
    ordinal: u64,
    boot: [u8; 16],
    buffer: &mut Vec<u8>,
) -> io::Result<Current> {
    let salt = getrandom::u64().map_err(io::Error::other)?;
    let file = Arc::new(folder.create(&name(ordinal))?);
    let header = Header {
        ordinal,
        salt,
        boot,
    };
    form::write_header(&header, buffer);
    Ok(Current {
        ordinal,
        salt,
        file,
        len: 0,
    })
}

/// Tells one boot of the machine from the next; zeros where the system does not say.
fn boot() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}

fn failed(error: &io::Error) -> JournalError {
    JournalError::Failed {
        cause: error.to_string().into(),
    }
}
