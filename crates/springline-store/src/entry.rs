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
use crate::record::{Kind, Op, Record, Store, StoreError};

/// The form of the values below; a record of another form is forgotten.
const FORM: u8 = 1;
/// Stands between the name of an entry, which cannot hold it, and what is known of it.
const SEPARATOR: u8 = 0;
/// The form of a record that only tells of its parts: checksum and count.
const FORM_PARTED: u8 = 2;
/// Longer values are written in parts of this length, each a batch of its own: a session's record
/// that is written meanwhile waits for one of them, some 0.1 ms, and not for 16 MiB.
const PART_LEN: usize = 64 << 10;
/// Stands in the key of a part between that of its record and its index; no name holds it.
const PART_MARK: u8 = 0xFF;

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
    order: Mutex<Parts>,
    unkept: AtomicU64,
}

/// For each record that is stored in parts, by its key, how many there are.
type Parts = HashMap<Bytes, u32>;

impl Entries {
    /// The memory that a store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let mut cache: HashMap<Box<str>, Arc<Remembered>> = HashMap::new();
        let loaded = store.load(Kind::Entry)?;
        let mut unkept = loaded.damaged as u64;
        let mut joiner = Joiner::default();
        for record in loaded.records {
            match joiner.push(record) {
                Ok(Some((server, known))) => {
                    place(Arc::make_mut(cache.entry(server).or_default()), known);
                }
                Ok(None) => {}
                Err(Unreadable) => unkept += 1,
            }
        }
        joiner.finish();
        unkept += joiner.torn;
        // Parts that nothing names any more, after a crash between two of them.
        if !joiner.stray.is_empty() {
            match store.apply(&joiner.stray) {
                // On a full disk they go later.
                Ok(_) | Err(StoreError::Pending { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self {
            store,
            cache: RwLock::new(cache),
            order: Mutex::new(joiner.parts),
            unkept: AtomicU64::new(unkept),
        })
    }

    /// A memory that ends with the process.
    pub fn in_memory() -> Self {
        Self {
            store: Arc::new(MemoryStore::default()),
            cache: RwLock::default(),
            order: Mutex::default(),
            unkept: AtomicU64::new(0),
        }
    }

    /// How many records could not be read or written since the start.
    pub fn unkept(&self) -> u64 {
        self.unkept.load(Ordering::Relaxed)
    }

    fn keep(&self, parts: &mut Parts, key: &Bytes, value: &Bytes) {
        if value.len() > Kind::Entry.value_max() {
            self.unkept.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = parts.remove(key).unwrap_or(0);
        let mut count = 0;
        let mut batch = Vec::new();
        if value.len() <= PART_LEN {
            batch.push(Op::put(Kind::Entry, key.clone(), value.clone()));
        } else {
            for part in value.chunks(PART_LEN) {
                let key = part_key(key, count);
                self.write(&[Op::put(Kind::Entry, key, value.slice_ref(part))]);
                count += 1;
            }
            let mut head = BytesMut::new();
            head.put_u8(FORM_PARTED);
            head.put_u32_le(crc32fast::hash(value));
            head.put_u32_le(count);
            batch.push(Op::put(Kind::Entry, key.clone(), head));
            parts.insert(key.clone(), count);
        }
        batch.extend((count..before).map(|at| Op::remove(Kind::Entry, part_key(key, at))));
        self.write(&batch);
    }

    fn write(&self, batch: &[Op]) {
        match self.store.apply(batch) {
            Ok(_) | Err(StoreError::Pending { .. }) => {}
            Err(_) => {
                self.unkept.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl EntryMemory for Entries {
    fn recall(&self, server: &str) -> Option<Arc<Remembered>> {
        self.cache.read().get(server).cloned()
    }

    fn remember(&self, server: &str, what: Known) {
        let mut parts = self.order.lock();
        // Most lists that are read again are the ones that are known.
        if self.recall(server).is_some_and(|held| holds(&held, &what)) {
            return;
        }
        let (key, value) = (key(server, tag(&what)), encode(&what));
        let mut cache = self.cache.write();
        place(Arc::make_mut(cache.entry(server.into()).or_default()), what);
        drop(cache);
        self.keep(&mut parts, &key, &value);
    }

    fn forget(&self, server: &str) {
        let mut parts = self.order.lock();
        if self.cache.write().remove(server).is_none() {
            return;
        }
        let mut batch = Vec::new();
        for tag in TAGS {
            let key = key(server, tag);
            let count = parts.remove(&key).unwrap_or(0);
            batch.extend((0..count).map(|at| Op::remove(Kind::Entry, part_key(&key, at))));
            batch.push(Op::remove(Kind::Entry, key));
        }
        self.write(&batch);
    }
}

/// A record that says nothing we understand.
struct Unreadable;

/// Puts records together again; they come in the order of their keys, so parts follow their record.
#[derive(Default)]
struct Joiner {
    parts: Parts,
    stray: Vec<Op>,
    open: Option<Open>,
    /// How many records missed parts.
    torn: u64,
}

/// A record whose parts are being read.
struct Open {
    key: Bytes,
    checksum: u32,
    count: u32,
    next: u32,
    value: BytesMut,
}

impl Joiner {
    fn push(&mut self, record: Record) -> Result<Option<(Box<str>, Known)>, Unreadable> {
        if let [key @ .., PART_MARK, _, _, _, _] = &record.key[..] {
            let key = record.key.slice_ref(key);
            return self.push_part(&key, &record);
        }
        self.finish();
        let mut value = record.value;
        if value.first() == Some(&FORM_PARTED) {
            value.advance(1);
            let checksum = value.try_get_u32_le().map_err(|_| Unreadable)?;
            let count = value.try_get_u32_le().map_err(|_| Unreadable)?;
            self.open = Some(Open {
                key: record.key,
                checksum,
                count,
                next: 0,
                value: BytesMut::new(),
            });
            return Ok(None);
        }
        decode(&record.key, value).map(Some).ok_or(Unreadable)
    }

    fn push_part(
        &mut self,
        key: &Bytes,
        record: &Record,
    ) -> Result<Option<(Box<str>, Known)>, Unreadable> {
        let open = self
            .open
            .as_mut()
            .filter(|open| open.next < open.count && record.key == part_key(&open.key, open.next));
        let Some(open) = open else {
            self.stray.push(Op::remove(Kind::Entry, record.key.clone()));
            return Ok(None);
        };
        open.value.extend_from_slice(&record.value);
        open.next += 1;
        self.parts.insert(key.clone(), open.next);
        if open.next < open.count {
            return Ok(None);
        }
        let Some(open) = self.open.take() else {
            return Ok(None);
        };
        if crc32fast::hash(&open.value) != open.checksum {
            return Err(Unreadable);
        }
        let known = decode(&open.key, open.value.freeze());
        known.map(Some).ok_or(Unreadable)
    }

    /// Gives up on a record whose parts did not follow.
    fn finish(&mut self) {
        self.torn += u64::from(self.open.take().is_some());
    }
}

fn part_key(key: &[u8], index: u32) -> Bytes {
    let mut part = BytesMut::from(key);
    part.put_u8(PART_MARK);
    part.put_u32(index);
    part.freeze()
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

    #[test]
    fn a_long_list_is_kept_in_parts_and_leaves_none_behind() {
        let store = Arc::new(MemoryStore::default());
        let entries = Entries::load(store.clone()).unwrap();
        let records = || store.load(Kind::Entry).unwrap().records.len();
        let list = |fill, len| Known::List(ListKind::Tools, vec![vec![fill; len].into()]);
        let recall = || {
            let entries = Entries::load(store.clone()).unwrap();
            assert_eq!(entries.unkept(), 0);
            entries.recall("a").unwrap().lists[&ListKind::Tools][0].clone()
        };
        entries.remember("a", list(b'x', 10 * PART_LEN));
        entries.remember("b", Known::Initialize("{}".into()));
        assert_eq!(records(), 13);
        assert_eq!(recall(), vec![b'x'; 10 * PART_LEN]);
        entries.remember("a", list(b'y', 3 * PART_LEN));
        assert_eq!(records(), 6);
        assert_eq!(recall(), vec![b'y'; 3 * PART_LEN]);
        entries.remember("a", list(b'z', 100));
        assert_eq!(records(), 2);
        assert_eq!(recall(), vec![b'z'; 100]);
        entries.remember("a", list(b'x', 2 * PART_LEN));
        Entries::load(store.clone()).unwrap().forget("a");
        assert_eq!(records(), 1);
    }

    #[test]
    fn a_crash_between_two_parts_costs_that_list_alone() {
        let store = Arc::new(MemoryStore::default());
        let entries = Entries::load(store.clone()).unwrap();
        let list = |fill| Known::List(ListKind::Tools, vec![vec![fill; 3 * PART_LEN].into()]);
        entries.remember("a", list(b'x'));
        entries.remember("a", Known::Initialize("{}".into()));
        // The next list of the same length, of which only one part was written.
        let torn = part_key(&key("a", b't'), 1);
        let part = vec![b'y'; PART_LEN];
        store.apply(&[Op::put(Kind::Entry, torn, part)]).unwrap();
        let stray = part_key(&key("b", b't'), 0);
        store
            .apply(&[Op::put(Kind::Entry, stray.clone(), "x")])
            .unwrap();
        let entries = Entries::load(store.clone()).unwrap();
        assert_eq!(entries.unkept(), 1);
        let held = entries.recall("a").unwrap();
        assert!(held.initialize.is_some() && held.lists.is_empty());
        assert_eq!(store.get(Kind::Entry, &stray).unwrap(), None);
        entries.remember("a", list(b'z'));
        let entries = Entries::load(store.clone()).unwrap();
        assert_eq!(
            entries.recall("a").unwrap().lists[&ListKind::Tools][0][0],
            b'z'
        );
        let missing = part_key(&key("a", b't'), 3);
        store.apply(&[Op::remove(Kind::Entry, missing)]).unwrap();
        let entries = Entries::load(store).unwrap();
        assert_eq!(entries.unkept(), 1);
    }
}
