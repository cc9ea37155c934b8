//! Records: small opaque values by kind and key, and the trait of what keeps them.
//!
//! Owns the contract of a store and the bounds of a record. Must not know what a value means, nor
//! how it is kept.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// The longest key, in bytes.
pub const KEY_MAX: usize = 512;

/// What a record is about; keys are unique within their kind.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// Facts about the store's user, such as counters.
    Meta,
    /// A downstream session.
    Session,
    /// A session with an upstream server.
    Upstream,
    /// What was learned of a server entry; values may be large.
    Entry,
    /// The body of an answer that its client has not acknowledged.
    Result,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::Meta,
        Self::Session,
        Self::Upstream,
        Self::Entry,
        Self::Result,
    ];

    /// The longest value of this kind, in bytes (I8).
    pub const fn value_max(self) -> usize {
        match self {
            Self::Meta => 64 << 10,
            // Usually a few KiB. The rest is room for what peers may let grow: instructions, and up
            // to 512 KiB of subscriptions.
            Self::Session | Self::Upstream => 1 << 20,
            // DESIGN 3.4 keeps results up to 1 MiB; the rest is room for what goes before them.
            Self::Result => (1 << 20) + (4 << 10),
            Self::Entry => 16 << 20,
        }
    }

    /// The number that stands for this kind on disk; never used for another one.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Meta => 0,
            Self::Session => 1,
            Self::Upstream => 2,
            Self::Entry => 3,
            Self::Result => 4,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Session => "session",
            Self::Upstream => "upstream",
            Self::Entry => "entry",
            Self::Result => "result",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One change.
#[derive(Clone, Eq, PartialEq)]
pub enum Op {
    /// Writes a record, in place of the one that had its key.
    Put {
        /// Its kind.
        kind: Kind,
        /// Its key, at most [`KEY_MAX`] bytes.
        key: Bytes,
        /// Its value, at most [`Kind::value_max`] bytes.
        value: Bytes,
    },
    /// Removes a record, if it exists.
    Remove {
        /// Its kind.
        kind: Kind,
        /// Its key.
        key: Bytes,
    },
}

impl Op {
    /// Writes a record.
    pub fn put(kind: Kind, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self::Put {
            kind,
            key: key.into(),
            value: value.into(),
        }
    }

    /// Removes a record.
    pub fn remove(kind: Kind, key: impl Into<Bytes>) -> Self {
        Self::Remove {
            kind,
            key: key.into(),
        }
    }

    /// Whether the change keeps to the bounds.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let (Self::Put { key, .. } | Self::Remove { key, .. }) = self;
        if key.len() > KEY_MAX {
            return Err(StoreError::KeyTooLong { len: key.len() });
        }
        match self {
            Self::Put { kind, value, .. } if value.len() > kind.value_max() => {
                Err(StoreError::ValueTooLong {
                    kind: *kind,
                    len: value.len(),
                })
            }
            Self::Put { .. } | Self::Remove { .. } => Ok(()),
        }
    }
}

/// Keys and values hold session ids, so neither is shown.
impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { kind, value, .. } => write!(f, "Put({kind}, {} bytes)", value.len()),
            Self::Remove { kind, .. } => write!(f, "Remove({kind})"),
        }
    }
}

/// The ordinal of a write since the store was opened; only grows.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Seq(pub u64);

/// One stored record.
#[derive(Clone, Eq, PartialEq)]
pub struct Record {
    /// Its key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// As for [`Op`]: nothing of the content.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({} bytes)", self.value.len())
    }
}

/// All records of a kind.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// Those that are whole, in the order of their keys.
    pub records: Vec<Record>,
    /// How many were left out because their checksum did not match.
    pub damaged: usize,
}

/// Keeps records. Calls return within the time of a write to the kernel; none waits for a disk.
///
/// After a failed write a store is poisoned: it refuses every later write until it is opened again,
/// because nobody can know which part of the failed one was kept. Reads still answer.
pub trait Store: Send + Sync + 'static {
    /// Makes all changes of a batch or none, in their order. Crash-durable on return: a kill -9 of
    /// the process loses none of it (I10). Power-durable within 50 ms.
    ///
    /// # Errors
    /// A key or value over its bound refuses the batch and changes nothing else; a failed write
    /// poisons the store.
    fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError>;

    /// The value of a record; `None` also if it is damaged.
    ///
    /// # Errors
    /// The store cannot be read.
    fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// All records of a kind, for the start.
    ///
    /// # Errors
    /// The store cannot be read.
    fn load(&self, kind: Kind) -> Result<Loaded, StoreError>;

    /// Waits until everything written so far is power-durable: for an orderly stop.
    ///
    /// # Errors
    /// The store is poisoned, or the sync failed and poisoned it.
    fn sync(&self) -> Result<Seq, StoreError>;

    /// The last write that is power-durable.
    fn synced(&self) -> Seq;
}

/// Why a store did not do as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The caller's mistake; nothing was changed.
    #[error("a key of {len} bytes is longer than {KEY_MAX}")]
    KeyTooLong {
        /// Its length.
        len: usize,
    },
    /// The caller's mistake; nothing was changed.
    #[error("a {kind} record of {len} bytes is longer than {}", kind.value_max())]
    ValueTooLong {
        /// Its kind.
        kind: Kind,
        /// Its length.
        len: usize,
    },
    /// An earlier write or sync failed; open the store again.
    #[error("the store takes no writes since one failed ({cause})")]
    Poisoned {
        /// What failed then.
        cause: Arc<str>,
    },
    /// The same, and the change is kept in memory: readers see it, it is written when that is possible
    /// again, and a crash before that loses it.
    #[error("the store takes no writes since one failed ({cause}); the change waits in memory")]
    Pending {
        /// What failed then.
        cause: Arc<str>,
    },
    /// The operation itself failed.
    #[error("cannot {action} the store ({cause})")]
    Failed {
        /// What was tried.
        action: &'static str,
        /// What the engine or the system said.
        cause: Arc<str>,
    },
}
