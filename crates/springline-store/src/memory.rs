//! A store in memory.
//!
//! Owns its records until the process ends: for tests, for `bridge`, and for a gateway without a
//! state folder.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::record::{Kind, Loaded, Op, Record, Seq, Store, StoreError};

/// Keeps records in memory; each write is as durable as it will ever be.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    /// Held for the length of one batch or read.
    held: Arc<RwLock<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    records: BTreeMap<(Kind, Bytes), Bytes>,
    seq: Seq,
}

impl Store for MemoryStore {
    fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError> {
        batch.iter().try_for_each(Op::check)?;
        let mut held = self.held.write();
        for op in batch {
            match op.clone() {
                Op::Put { kind, key, value } => {
                    held.records.insert((kind, key), value);
                }
                Op::Remove { kind, key } => {
                    held.records.remove(&(kind, key));
                }
            }
        }
        held.seq = Seq(held.seq.0 + 1);
        Ok(held.seq)
    }

    fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let key = (kind, Bytes::copy_from_slice(key));
        Ok(self.held.read().records.get(&key).cloned())
    }

    fn load(&self, kind: Kind) -> Result<Loaded, StoreError> {
        let held = self.held.read();
        let records = held
            .records
            .range((kind, Bytes::new())..)
            .take_while(|((of, _), _)| *of == kind)
            .map(|((_, key), value)| Record {
                key: key.clone(),
                value: value.clone(),
            })
            .collect();
        Ok(Loaded {
            records,
            damaged: 0,
        })
    }

    fn sync(&self) -> Result<Seq, StoreError> {
        Ok(self.synced())
    }

    fn synced(&self) -> Seq {
        self.held.read().seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_store_does_what_every_store_must() {
        crate::conformance::check_store(&MemoryStore::default());
    }
}
