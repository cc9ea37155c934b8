//! What Springline remembers.
//!
//! Owns the records of sessions and server entries ([`Store`]), the journal of calls ([`Journal`]),
//! kept result bodies ([`Results`]) and the folder in which they live ([`StateFolder`]). Each keeps
//! values for machines that know nothing of storage. Must not know what a record means, nor wait for
//! anything but the kernel: every write is crash-durable when it returns, and power-durable a moment
//! later, without anyone waiting (DESIGN 3.4).

mod beat;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(any(test, feature = "conformance"))]
mod crash;
mod digest;
mod embedded;
mod entry;
mod folder;
mod journal;
mod memory;
mod record;
mod result;
mod steady;

pub use self::digest::{Digest, DigestKey, SessionDigest};
pub use self::embedded::EmbeddedStore;
pub use self::entry::{Entries, EntryMemory};
pub use self::folder::{Finding, FolderError, Reason, StateFolder};
#[cfg(any(test, feature = "conformance"))]
pub use self::journal::fuzz_segment;
pub use self::journal::{
    APPEND_MAX, Answer, CallEntry, CallId, CallState, FileJournal, Journal, JournalError,
    MemoryJournal, OPEN_CALLS_MAX, Recovered,
};
pub use self::memory::MemoryStore;
pub use self::record::{KEY_MAX, Kind, Loaded, Op, Record, Seq, Store, StoreError};
pub use self::result::{RESULT_LEN_MAX, RESULTS_LEN_MAX, Results};
pub use self::steady::{Noted, SteadyJournal, SteadyStore, Turn};

#[cfg(any(test, feature = "conformance"))]
pub use self::conformance::check_entry_memory;
#[cfg(any(test, feature = "conformance"))]
pub use self::crash::{CrashJournal, CrashStore};
