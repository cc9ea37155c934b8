//! What was learned of each server entry, from which `/mcp` answers before a server runs.
//!
//! Owns the cache that sessions read and the form of its records. Lost knowledge costs a client a
//! wait, never an answer, so a record that cannot be written or read is only counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use springline_proto::method::ListKind;
use springline_proto::session::{Known, Remembered};

use crate::memory::MemoryStore;
use crate::record::{Kind, Op, Store, StoreError};

/// The form of the values below; a record of another form is forgotten.
const FORM: u8 = 1;
/// Stands between the name of an entry, which cannot hold it, and what is known of it.
const SEPARATOR: u8 = 0;

/// What was learned of each server entry. Lost knowledge costs a client a wait, never an answer.
pub trait EntryMemory: Send + Sync + 'static {
    /// What is remembered of this entry.
    fn recall(&self, server: &str) -> Option<Arc<Remembered>>;

    /// Remembers what was learned; replaces what was known of the same kind.
    fn remember(&self, server: &str, what: Known);

    /// Forgets all of this entry.
    fn forget(&self, server: &str);
}

/// The memory of entries over any store: read from a cache, written through when something is new.
pub struct Entries {
    store: Arc<dyn Store>,
    /// Read by each new session; written when a server said something new.
    cache: RwLock<HashMap<Box<str>, Arc<Remembered>>>,
    /// Held over a change of the cache and its write, so that both happen in the same order. Readers
    /// do not wait for it.
    order: Mutex<()>,
    unkept: AtomicU64,
}

impl Entries {
    /// The memory that a store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let mut cache: HashMap<Box<str>, Arc<Remembered>> = HashMap::new();
        let loaded = store.load(Kind::Entry)?;
        let mut unkept = loaded.damaged as u64;
        for record in loaded.records {
            let Some((server, known)) = decode(&record.key, record.value) else {
                unkept += 1;
                continue;
            };
            place(Arc::make_mut(cache.entry(server).or_default()), known);
        }
        Ok(Self {
            store,
            cache: RwLock::new(cache),
            order: Mutex::new(()),
            unkept: AtomicU64::new(unkept),
        })
    }

    /// A memory that ends with the process.
    pub fn in_memory() -> Self {
        Self {
            store: Arc::new(MemoryStore::default()),
            cache: RwLock::default(),
            order: Mutex::new(()),
            unkept: AtomicU64::new(0),
        }
    }

    /// How many records could not be read or written since the start.
    pub fn unkept(&self) -> u64 {
        self.unkept.load(Ordering::Relaxed)
    }

    fn write(&self, batch: &[Op]) {
        if self.store.apply(batch).is_err() {
            self.unkept.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EntryMemory for Entries {
    fn recall(&self, server: &str) -> Option<Arc<Remembered>> {
        self.cache.read().get(server).cloned()
    }

    fn remember(&self, server: &str, what: Known) {
        let _order = self.order.lock();
        // Most lists that are read again are the ones that are known.
        if self.recall(server).is_some_and(|held| holds(&held, &what)) {
            return;
        }
        let op = Op::put(Kind::Entry, key(server, tag(&what)), encode(&what));
        let mut cache = self.cache.write();
        place(Arc::make_mut(cache.entry(server.into()).or_default()), what);
        drop(cache);
        self.write(&[op]);
    }

    fn forget(&self, server: &str) {
        let _order = self.order.lock();
        if self.cache.write().remove(server).is_none() {
            return;
        }
        let batch: Vec<Op> = TAGS
            .iter()
            .map(|tag| Op::remove(Kind::Entry, key(server, *tag)))
            .collect();
        self.write(&batch);
    }
}

const TAG_INITIALIZE: u8 = b'i';
const TAGS: [u8; 5] = [TAG_INITIALIZE, b't', b'p', b'r', b'm'];

fn tag(what: &Known) -> u8 {
    match what {
        Known::Initialize(_) => TAG_INITIALIZE,
        Known::List(ListKind::Tools, _) => b't',
        Known::List(ListKind::Prompts, _) => b'p',
        Known::List(ListKind::Resources, _) => b'r',
        Known::List(ListKind::Templates, _) => b'm',
    }
}

fn list_of(tag: u8) -> Option<ListKind> {
    match tag {
        b't' => Some(ListKind::Tools),
        b'p' => Some(ListKind::Prompts),
        b'r' => Some(ListKind::Resources),
        b'm' => Some(ListKind::Templates),
        _ => None,
    }
}

fn key(server: &str, tag: u8) -> Bytes {
    let mut key = BytesMut::from(server.as_bytes());
    key.put_slice(&[SEPARATOR, tag]);
    key.freeze()
}

fn holds(held: &Remembered, what: &Known) -> bool {
    match what {
        Known::Initialize(result) => held.initialize.as_ref() == Some(result),
        Known::List(kind, pages) => held.lists.get(kind) == Some(pages),
    }
}

fn place(entry: &mut Remembered, what: Known) {
    match what {
        Known::Initialize(result) => entry.initialize = Some(result),
        Known::List(kind, pages) => {
            entry.lists.insert(kind, pages);
        }
    }
}

/// The form, then each part with its length before it.
fn encode(what: &Known) -> Bytes {
    let parts = match what {
        Known::Initialize(result) => std::slice::from_ref(result),
        Known::List(_, pages) => pages,
    };
    let len = parts.iter().map(|part| part.len() + 4).sum::<usize>() + 1;
    let mut value = BytesMut::with_capacity(len);
    value.put_u8(FORM);
    for part in parts {
        // A part of 4 GiB is over the bound of any value, so its record is refused anyway.
        value.put_u32_le(u32::try_from(part.len()).unwrap_or(u32::MAX));
        value.put_slice(part);
    }
    value.freeze()
}

fn decode(key: &[u8], mut value: Bytes) -> Option<(Box<str>, Known)> {
    let [server @ .., SEPARATOR, tag] = key else {
        return None;
    };
    let server = std::str::from_utf8(server).ok()?;
    if value.try_get_u8().ok()? != FORM {
        return None;
    }
    let mut parts = Vec::new();
    while value.has_remaining() {
        let len = usize::try_from(value.try_get_u32_le().ok()?).ok()?;
        if len > value.remaining() {
            return None;
        }
        parts.push(value.split_to(len));
    }
    let known = match list_of(*tag) {
        Some(kind) => Known::List(kind, parts),
        None if *tag == TAG_INITIALIZE && parts.len() == 1 => Known::Initialize(parts.pop()?),
        None => return None,
    };
    Some((server.into(), known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::check_entry_memory;

    #[test]
    fn entries_in_memory_do_what_every_memory_must() {
        check_entry_memory(&Entries::in_memory());
    }

    #[test]
    fn what_was_learned_is_known_after_a_restart() {
        let store = Arc::new(MemoryStore::default());
        let before = Entries::load(store.clone()).unwrap();
        before.remember("a", Known::Initialize("{}".into()));
        let pages = vec![Bytes::from("{\"tools\":[]}"), Bytes::new()];
        before.remember("a", Known::List(ListKind::Tools, pages.clone()));
        before.remember("b", Known::List(ListKind::Templates, Vec::new()));
        before.remember("c", Known::Initialize("{}".into()));
        before.forget("c");

        let after = Entries::load(store).unwrap();
        assert_eq!(after.recall("a"), before.recall("a"));
        assert_eq!(after.recall("b"), before.recall("b"));
        assert_eq!(after.recall("a").unwrap().lists[&ListKind::Tools], pages);
        assert!(after.recall("c").is_none());
        assert_eq!(after.unkept(), 0);
    }

    #[test]
    fn what_is_known_already_is_not_written_again() {
        let store = MemoryStore::default();
        let entries = Entries::load(Arc::new(store.clone())).unwrap();
        entries.remember("a", Known::Initialize("{}".into()));
        let written = store.synced();
        entries.remember("a", Known::Initialize("{}".into()));
        assert_eq!(store.synced(), written);
    }

    #[test]
    fn a_record_of_another_form_is_forgotten_and_counted() {
        let store = MemoryStore::default();
        let bad = [
            (key("a", b'i'), Bytes::from_static(&[9, 0, 0, 0, 0])),
            (key("a", b't'), Bytes::from_static(&[FORM, 255, 0, 0, 0])),
            (key("a", b'?'), Bytes::from_static(&[FORM])),
            (Bytes::from_static(b"a"), Bytes::from_static(&[FORM])),
            (key("a", b'p'), Bytes::new()),
        ];
        for (key, value) in bad.clone() {
            store.apply(&[Op::put(Kind::Entry, key, value)]).unwrap();
        }
        let entries = Entries::load(Arc::new(store)).unwrap();
        assert!(entries.recall("a").is_none());
        assert_eq!(entries.unkept(), bad.len() as u64);
    }

    #[test]
    fn a_memory_that_cannot_be_written_still_answers() {
        let entries = Entries::in_memory();
        let huge = Bytes::from(vec![b' '; Kind::Entry.value_max() + 1]);
        entries.remember("a", Known::Initialize(huge.clone()));
        assert_eq!(entries.recall("a").unwrap().initialize, Some(huge));
        assert_eq!(entries.unkept(), 1);
    }
}
