//! The journal of calls: what a restarted gateway must know of the calls that were in flight.
//!
//! Owns the states of a call, without any body (DESIGN 3.4), and the trait of what keeps them. An
//! entry is crash-durable when `append` returns, so `sent` is on its way to the disk before the first
//! byte of the request leaves (I4, I10). Must not know what a call does, nor decide what becomes of
//! one.

mod file;
mod form;
mod scan;
pub(crate) mod tail;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use springline_proto::call::Generation;

use crate::digest::SessionDigest;
use crate::folder::FolderError;
use crate::record::Seq;

pub use self::file::FileJournal;
pub(crate) use self::file::boot;
#[cfg(any(test, feature = "conformance"))]
pub use self::form::fuzz_segment;
#[cfg(test)]
pub(crate) use self::tail::on_full_disk;

/// How many calls may be open at once (I8): 10,000 sessions with a dozen calls each.
pub const OPEN_CALLS_MAX: usize = 128 << 10;
/// How many entries one `append` takes.
pub const APPEND_MAX: usize = 4096;

/// A call, as the journal names it: the same before and after a restart.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CallId {
    /// The session that accepted it.
    pub session: SessionDigest,
    /// Its number within the session; never used again.
    pub number: u64,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CallState {
    /// It was accepted; nothing of it left.
    Accepted,
    /// It may have left for this generation.
    Sent {
        /// The instance that it was sent to.
        generation: Generation,
    },
    /// Its answer is known, and its client has not acknowledged it.
    Answered {
        /// What the answer was.
        answer: Answer,
    },
    /// Nobody waits for it any more: acknowledged, cancelled or aged. The call is closed.
    Settled,
}

/// What the answer of a call was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// A result of the server, or its own error: the call ran.
    Server,
    /// An error of ours, outcome `not_executed`.
    NotExecuted,
    /// An error of ours, outcome `unknown`.
    Unknown,
    /// An error of ours, outcome `executed`.
    Executed,
}

/// One line of the journal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CallEntry {
    /// The call.
    pub call: CallId,
    /// How far it has come.
    pub state: CallState,
    /// The caller's own, such as the ordinal of a stream; comes back as it was last written.
    pub note: u64,
}

/// What the journal held when it was opened.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// The calls that are not settled, with their last state, in the order of their ids.
    pub open: Vec<CallEntry>,
    /// Whether acknowledged entries may be missing, as after a power cut; never so after a kill.
    /// Then a call that was last seen as accepted may have been sent, and stands here as sent to
    /// generation 0 (I4).
    pub incomplete: bool,
}

/// Keeps the states of calls. As for a store: a failed write poisons it until it is opened again.
pub trait Journal: Send + Sync + 'static {
    /// Adds entries, in their order, all together. Crash-durable on return; a crash within the call
    /// keeps the first few of them or none. Power-durable within 50 ms. Appends of different calls
    /// go on beside each other.
    ///
    /// # Errors
    /// Too many entries or open calls refuse the whole and change nothing; a failed write poisons
    /// the journal.
    fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError>;

    /// Waits until everything is power-durable: for an orderly stop.
    ///
    /// # Errors
    /// The journal is poisoned, or the sync failed and poisoned it.
    fn sync(&self) -> Result<Seq, JournalError>;

    /// The last `append` that is power-durable.
    fn synced(&self) -> Seq;

    /// The last entry of a call that is not settled.
    fn last(&self, call: CallId) -> Option<CallEntry>;

    /// How many calls are not settled.
    fn open_calls(&self) -> usize;

    /// The calls that are not settled, each as it was last written; also when the journal is poisoned.
    fn entries(&self) -> Vec<CallEntry>;
}

/// Why the journal did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// Nothing was written.
    #[error("{count} journal entries at once are more than {APPEND_MAX}")]
    TooMany {
        /// How many they were.
        count: usize,
    },
    /// Nothing was written; settle some.
    #[error("{OPEN_CALLS_MAX} calls are open, which is as many as the journal holds")]
    Full,
    /// An earlier write or sync failed; open the journal again.
    #[error("the journal takes no entries since a write failed ({cause})")]
    Poisoned {
        /// What failed then.
        cause: Arc<str>,
    },
    /// The write itself failed.
    #[error("cannot write the journal ({cause})")]
    Failed {
        /// What the system said.
        cause: Arc<str>,
    },
    /// The journal cannot be opened.
    #[error("cannot open the journal")]
    Open(#[source] Arc<FolderError>),
}

/// A journal that ends with the process.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    /// Held for the length of one append.
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    open: BTreeMap<CallId, CallEntry>,
    seq: Seq,
}

impl Journal for MemoryJournal {
    fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError> {
        let mut held = self.held.lock();
        if check_bounds(entries)? && held.open.len() + entries.len() > OPEN_CALLS_MAX {
            return Err(JournalError::Full);
        }
        for entry in entries {
            place(&mut held.open, *entry);
        }
        held.seq = Seq(held.seq.0 + 1);
        Ok(held.seq)
    }

    fn sync(&self) -> Result<Seq, JournalError> {
        Ok(self.synced())
    }

    fn synced(&self) -> Seq {
        self.held.lock().seq
    }

    fn last(&self, call: CallId) -> Option<CallEntry> {
        self.held.lock().open.get(&call).copied()
    }

    fn open_calls(&self) -> usize {
        self.held.lock().open.len()
    }

    fn entries(&self) -> Vec<CallEntry> {
        self.held.lock().open.values().copied().collect()
    }
}

/// Brings the open calls up to date with an entry.
pub(crate) fn place(open: &mut BTreeMap<CallId, CallEntry>, entry: CallEntry) {
    if entry.state == CallState::Settled {
        open.remove(&entry.call);
    } else {
        open.insert(entry.call, entry);
    }
}

/// Whether entries open calls. Only then can they be refused for the calls that are open: those must be
/// able to end.
fn check_bounds(entries: &[CallEntry]) -> Result<bool, JournalError> {
    if entries.len() > APPEND_MAX {
        return Err(JournalError::TooMany {
            count: entries.len(),
        });
    }
    let opens = |entry: &CallEntry| entry.state == CallState::Accepted;
    Ok(entries.iter().any(opens))
}
