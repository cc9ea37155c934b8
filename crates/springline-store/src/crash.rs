//! A store that crashes on demand, for simulations and for the tests of whoever uses a store; and a journal
//! whose writes fail on demand.
//!
//! Owns what the kernel has and what the disk has, apart. A kill keeps all that was acknowledged, and
//! of a write that it interrupted all or nothing; a power cut keeps what was synced, and of the rest
//! a beginning, batch by batch.

use parking_lot::Mutex;

use crate::conformance::{Model, apply_to_model};
use crate::folder::StateFolder;
use crate::journal::{
    CallEntry, CallId, FileJournal, Journal, JournalError, MemoryJournal, Recovered,
};
use crate::record::{Kind, Loaded, Op, Record, Seq, Store, StoreError};

/// A store in memory whose crashes are chosen by the test.
#[derive(Debug, Default)]
pub struct CrashStore {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    synced: Model,
    /// Written and not synced, oldest first.
    unsynced: Vec<Vec<Op>>,
    written: Model,
    seq: u64,
    /// How many writes go well before one fails.
    writes_left: Option<u64>,
    /// The batch whose write failed: the kernel may have it.
    interrupted: Option<Vec<Op>>,
    poisoned: bool,
}

impl CrashStore {
    fn with(content: Model) -> Self {
        let held = Held {
            synced: content.clone(),
            written: content,
            ..Held::default()
        };
        Self {
            held: Mutex::new(held),
        }
    }

    /// Lets a write fail after some that go well; it poisons the store.
    pub fn fail_after(&self, writes: u64) {
        self.held.lock().writes_left = Some(writes);
    }

    /// The store as the next process finds it after kill -9; `interrupted` tells whether the write
    /// that failed, if one did, had reached the kernel.
    #[must_use]
    pub fn killed(&self, interrupted: bool) -> Self {
        let held = self.held.lock();
        let mut content = held.written.clone();
        if let Some(batch) = held.interrupted.as_ref().filter(|_| interrupted) {
            apply_to_model(&mut content, batch);
        }
        Self::with(content)
    }

    /// The store as the next boot finds it after a power cut that kept some of the batches that were
    /// not synced.
    #[must_use]
    pub fn power_cut(&self, kept: usize) -> Self {
        let held = self.held.lock();
        let mut content = held.synced.clone();
        for batch in held.unsynced.iter().take(kept) {
            apply_to_model(&mut content, batch);
        }
        Self::with(content)
    }

    /// How many batches a power cut could take now.
    pub fn unsynced(&self) -> usize {
        self.held.lock().unsynced.len()
    }
}

impl Store for CrashStore {
    fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError> {
        batch.iter().try_for_each(Op::check)?;
        let mut held = self.held.lock();
        if held.poisoned {
            let cause = "a write failed on purpose".into();
            return Err(StoreError::Poisoned { cause });
        }
        if held.writes_left == Some(0) {
            held.poisoned = true;
            held.interrupted = Some(batch.to_vec());
            return Err(StoreError::Failed {
                action: "write",
                cause: "on purpose".into(),
            });
        }
        held.writes_left = held.writes_left.map(|left| left - 1);
        apply_to_model(&mut held.written, batch);
        held.unsynced.push(batch.to_vec());
        held.seq += 1;
        Ok(Seq(held.seq))
    }

    fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<bytes::Bytes>, StoreError> {
        let key = (kind, bytes::Bytes::copy_from_slice(key));
        Ok(self.held.lock().written.get(&key).cloned())
    }

    fn load(&self, kind: Kind) -> Result<Loaded, StoreError> {
        let held = self.held.lock();
        let records = held.written.iter().filter(|((of, _), _)| *of == kind);
        let records = records.map(|((_, key), value)| Record {
            key: key.clone(),
            value: value.clone(),
        });
        Ok(Loaded {
            records: records.collect(),
            damaged: 0,
        })
    }

    fn sync(&self) -> Result<Seq, StoreError> {
        let mut held = self.held.lock();
        held.synced = held.written.clone();
        held.unsynced.clear();
        Ok(Seq(held.seq))
    }

    fn synced(&self) -> Seq {
        let held = self.held.lock();
        Seq(held.seq - held.unsynced.len() as u64)
    }
}

/// A journal on disk of which an append fails when the test wants it.
#[derive(Debug)]
pub struct CrashJournal {
    disk: FileJournal,
    /// What was acknowledged.
    told: MemoryJournal,
    fault: Mutex<JournalFault>,
}

#[derive(Debug, Default)]
struct JournalFault {
    /// How many appends go well before one fails.
    appends_left: Option<u64>,
    /// How many entries of that one are on the disk.
    kept: usize,
    is_poisoned: bool,
}

impl CrashJournal {
    /// The journal of a state folder.
    ///
    /// # Errors
    /// As [`FileJournal::open`].
    pub fn open(folder: &StateFolder) -> Result<(Self, Recovered), JournalError> {
        let (disk, recovered, _) = FileJournal::open(folder)?;
        let told = MemoryJournal::default();
        for some in recovered.open.chunks(crate::journal::APPEND_MAX) {
            told.append(some)?;
        }
        let fault = Mutex::default();
        Ok((Self { disk, told, fault }, recovered))
    }

    /// Lets an append fail after some that go well, of which the disk has the first few entries; it
    /// poisons the journal.
    pub fn fail_after(&self, appends: u64, kept: usize) {
        let mut fault = self.fault.lock();
        fault.appends_left = Some(appends);
        fault.kept = kept;
    }
}

impl Journal for CrashJournal {
    fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError> {
        let mut fault = self.fault.lock();
        let cause = || "a write failed on purpose".into();
        if fault.is_poisoned {
            return Err(JournalError::Poisoned { cause: cause() });
        }
        if fault.appends_left == Some(0) {
            fault.is_poisoned = true;
            self.disk
                .append(entries.get(..fault.kept).unwrap_or(entries))?;
            return Err(JournalError::Failed { cause: cause() });
        }
        fault.appends_left = fault.appends_left.map(|left| left - 1);
        self.disk.append(entries)?;
        self.told.append(entries)
    }

    fn sync(&self) -> Result<Seq, JournalError> {
        self.disk.sync()
    }

    fn synced(&self) -> Seq {
        self.disk.synced()
    }

    fn last(&self, call: CallId) -> Option<CallEntry> {
        self.told.last(call)
    }

    fn open_calls(&self) -> usize {
        self.told.open_calls()
    }

    fn entries(&self) -> Vec<CallEntry> {
        self.told.entries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{batch, check_store, content};

    #[test]
    fn the_crash_store_does_what_every_store_must_until_it_crashes() {
        check_store(&CrashStore::default());
    }

    #[test]
    fn a_kill_keeps_what_was_acknowledged_and_a_power_cut_what_was_synced() {
        let store = CrashStore::default();
        let mut models = vec![Model::new()];
        for seed in 0..20 {
            store.apply(&batch(seed)).unwrap();
            let mut model = models.last().unwrap().clone();
            apply_to_model(&mut model, &batch(seed));
            models.push(model);
            if seed == 9 {
                store.sync().unwrap();
            }
        }
        store.fail_after(0);
        assert!(store.apply(&batch(20)).is_err());
        let refused = store.apply(&batch(21));
        assert!(matches!(refused, Err(StoreError::Poisoned { .. })));
        assert_eq!(content(&store.killed(false)), models[20]);
        apply_to_model(models.last_mut().unwrap(), &batch(20));
        assert_eq!(content(&store.killed(true)), models[20]);
        assert_eq!(store.unsynced(), 10);
        for kept in 0..10 {
            assert_eq!(content(&store.power_cut(kept)), models[10 + kept]);
        }
    }
}
