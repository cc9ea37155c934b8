//! What Springline remembers.
//!
//! A store keeps values for machines that know nothing of storage. Today that is the memory of each
//! server entry, from which `/mcp` answers `initialize` and lists before a server runs.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use springline_proto::session::{Known, Remembered};

/// What was learned of each server entry. Lost knowledge costs a client a wait, never an answer.
pub trait EntryMemory: Send + Sync + 'static {
    /// What is remembered of this entry.
    fn recall(&self, server: &str) -> Option<Arc<Remembered>>;

    /// Remembers what was learned; replaces what was known of the same kind.
    fn remember(&self, server: &str, what: Known);

    /// Forgets all of this entry.
    fn forget(&self, server: &str);
}

/// A store in memory: for tests, for `bridge`, and until the process ends.
#[derive(Debug, Default)]
pub struct MemoryStore {
    /// Read by each new session; written when a server said something new.
    entries: RwLock<HashMap<Box<str>, Arc<Remembered>>>,
}

impl EntryMemory for MemoryStore {
    fn recall(&self, server: &str) -> Option<Arc<Remembered>> {
        self.entries.read().get(server).cloned()
    }

    fn remember(&self, server: &str, what: Known) {
        let mut entries = self.entries.write();
        let entry = Arc::make_mut(entries.entry(server.into()).or_default());
        match what {
            Known::Initialize(result) => entry.initialize = Some(result),
            Known::List(kind, pages) => {
                entry.lists.insert(kind, pages);
            }
        }
    }

    fn forget(&self, server: &str) {
        self.entries.write().remove(server);
    }
}

/// What every [`EntryMemory`] must do; run by the tests of each.
///
/// # Panics
/// If the store does not.
#[cfg(any(test, feature = "conformance"))]
pub fn check_entry_memory(store: &dyn EntryMemory) {
    use springline_proto::method::ListKind;

    assert!(store.recall("a").is_none());
    store.remember("a", Known::Initialize("{}".into()));
    store.remember(
        "a",
        Known::List(ListKind::Tools, vec!["{\"tools\":[]}".into()]),
    );
    store.remember("b", Known::Initialize("{\"b\":1}".into()));
    let held = store.recall("a").expect("it was remembered");
    assert_eq!(held.initialize.as_deref(), Some(&b"{}"[..]));
    assert_eq!(held.lists.get(&ListKind::Tools).map(Vec::len), Some(1));
    store.remember("a", Known::List(ListKind::Tools, Vec::new()));
    assert_eq!(
        held.lists.get(&ListKind::Tools).map(Vec::len),
        Some(1),
        "a reader keeps its view"
    );
    store.forget("a");
    assert!(store.recall("a").is_none());
    assert!(store.recall("b").is_some());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_store_does_what_every_store_must() {
        check_entry_memory(&MemoryStore::default());
    }
}
