//! Bodies of answers that their clients have not acknowledged.
//!
//! Owns the bounds: 1 MiB for one, 64 MiB for all, the oldest of which go first; and where each is
//! kept: a short one in the ring, until it is in the way of others, any other in the store. What is
//! gone ends as `RESULT_LOST`, outcome `executed`. Must not know what a body says.

mod ring;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use springline_proto::error::chain;

use self::ring::{Ring, Spot};
use crate::digest::SessionDigest;
use crate::folder::{Finding, StateFolder};
use crate::journal::CallId;
use crate::record::{Kind, Op, Seq, Store, StoreError};

/// The longest body that is kept, in bytes (DESIGN 3.4).
pub const RESULT_LEN_MAX: usize = 1 << 20;
/// The most that is kept of all, in bytes: what a machine can load at a start without a wait.
pub const RESULTS_LEN_MAX: usize = 64 << 20;

const KEY_LEN: usize = 24;
const TIME_LEN: usize = 8;

/// Keeps such bodies.
pub struct Results {
    store: Arc<dyn Store>,
    /// Held over a change and its write, so that both happen in the same order.
    held: Mutex<Held>,
    /// How many are kept: of the calls that end, few have a body here, and the others take no lock.
    kept: AtomicUsize,
}

struct Held {
    index: Index,
    ring: Place,
}

/// The ring, if there is one.
enum Place {
    /// Everything is in the store.
    None,
    /// It is made with the first body. What the one before held is in the store; once it is on the
    /// disk there, the file goes.
    Later {
        folder: StateFolder,
        moved: Option<Seq>,
    },
    /// It is in use.
    Open(Box<Ring>),
}

#[derive(Default)]
struct Index {
    held: HashMap<CallId, Kept>,
    /// By age; the second number tells those of one moment apart.
    by_age: BTreeMap<Age, CallId>,
    len: usize,
    count: u64,
}

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Age {
    kept_at: Duration,
    ordinal: u64,
}

#[derive(Clone, Copy)]
struct Kept {
    age: Age,
    len: usize,
    /// None: in the store.
    spot: Option<Spot>,
}

impl Results {
    /// The bodies that a store holds; new ones are kept there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let mut index = Index::default();
        for record in store.load(Kind::Result)?.records {
            if let (Some(call), Some((time, body))) = (call_of(&record.key), split(&record.value)) {
                index.insert(call, time, body.len(), None);
            }
        }
        let ring = Place::None;
        Ok(Self {
            store,
            kept: AtomicUsize::new(index.held.len()),
            held: Mutex::new(Held { index, ring }),
        })
    }

    /// The bodies that a state folder and its store hold. Short ones are kept in a file of the folder
    /// from now on. The caller holds the folder's lock.
    ///
    /// # Errors
    /// The store or the folder cannot be read.
    pub fn open(
        folder: &StateFolder,
        store: Arc<dyn Store>,
    ) -> Result<(Self, Vec<Finding>), StoreError> {
        let mut findings = Vec::new();
        let found = ring::read(folder, &mut findings).map_err(|error| StoreError::Failed {
            action: "open",
            cause: chain(&error).into(),
        })?;
        // What the last process left is moved: the ring begins empty.
        let batch: Vec<Op> = found
            .iter()
            .map(|found| put(found.call, found.kept_at, &found.body))
            .collect();
        let moved = match batch[..] {
            [] => Ok(None),
            _ => store.apply(&batch).map(Some),
        };
        let ring = match moved {
            Ok(moved) => Place::Later {
                folder: folder.clone(),
                moved,
            },
            // It stays where it is, and is read as what waits is.
            Err(StoreError::Pending { .. }) => Place::None,
            Err(error) => return Err(error),
        };
        let results = Self::load(store)?;
        results.held.lock().ring = ring;
        Ok((results, findings))
    }

    /// Keeps the body of a call's answer; `now` is the time since the Unix epoch. Crash-durable on
    /// return if the store is. `false` if it is longer than [`RESULT_LEN_MAX`] and so not kept.
    ///
    /// # Errors
    /// The store did not take it.
    pub fn keep(&self, call: CallId, body: &[u8], now: Duration) -> Result<bool, StoreError> {
        if body.len() > RESULT_LEN_MAX {
            return Ok(false);
        }
        let mut held = self.held.lock();
        let mut leaving = held.index.oldest_beyond(RESULTS_LEN_MAX - body.len(), call);
        let spot = if body.len() <= ring::BODY_MAX && self.make_room(&mut held, body.len())? {
            match &mut held.ring {
                Place::Open(ring) => Some(ring.put(call, now, body)),
                Place::None | Place::Later { .. } => None,
            }
        } else {
            None
        };
        if spot.is_some() {
            // The body that it had before, wherever that is.
            leaving.push(call);
            self.erase(&mut held, &leaving)?;
        } else {
            let mut batch = vec![put(call, now, body)];
            batch.extend(held.removals(&leaving));
            self.write(&batch)?;
            held.remove(&leaving);
            held.remove(&[call]);
        }
        held.index.insert(call, now, body.len(), spot);
        self.kept.store(held.index.held.len(), Ordering::Release);
        Ok(true)
    }

    /// Sees to it that a body of this length has room in the ring: the oldest ones that are in its
    /// way go to the store. `false` if there is no ring.
    fn make_room(&self, held: &mut Held, len: usize) -> Result<bool, StoreError> {
        self.leave_old(held);
        if let Place::Later { folder, moved } = &held.ring {
            if moved.is_some() {
                return Ok(false);
            }
            // Without one, all goes to the store, which tells what is wrong with the disk.
            let made = Ring::create(folder);
            held.ring = made.map_or(Place::None, |ring| Place::Open(Box::new(ring)));
        }
        let Place::Open(ring) = &mut held.ring else {
            return Ok(false);
        };
        if !ring.is_well() {
            return Ok(false);
        }
        if ring.has_room(len) {
            return Ok(true);
        }
        let oldest = ring.oldest(len);
        let mut moved = Vec::new();
        let mut batch = Vec::new();
        for (call, spot) in &oldest {
            if let Some(kept) = held.index.held.get(call)
                && kept.spot == Some(*spot)
            {
                batch.push(put(*call, kept.age.kept_at, &ring.body(*spot)));
                moved.push(*call);
            }
        }
        if !batch.is_empty() {
            self.write(&batch)?;
        }
        for call in moved {
            if let Some(kept) = held.index.held.get_mut(&call)
                && let Some(spot) = kept.spot.take()
            {
                ring.forget(spot);
            }
        }
        ring.release(oldest.len());
        Ok(true)
    }

    /// Removes the file of the process before, or what is forgotten would be found in it again.
    fn leave_old(&self, held: &mut Held) {
        if let Place::Later { folder, moved } = &mut held.ring
            && moved.is_some_and(|moved| moved <= self.store.synced())
            && ring::remove(folder).is_ok()
        {
            *moved = None;
        }
    }

    /// The body of a call's answer, if it is kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn body(&self, call: CallId) -> Result<Option<Bytes>, StoreError> {
        let held = self.held.lock();
        let spot = held.index.held.get(&call).and_then(|kept| kept.spot);
        if let (Some(spot), Place::Open(ring)) = (spot, &held.ring) {
            return Ok(Some(ring.body(spot)));
        }
        drop(held);
        let value = self.store.get(Kind::Result, &key(call))?;
        Ok(value.and_then(|value| split(&value).map(|(_, body)| value.slice_ref(body))))
    }

    /// Erases what was acknowledged.
    ///
    /// # Errors
    /// The store did not take the change; then all is still kept.
    pub fn forget(&self, calls: &[CallId]) -> Result<(), StoreError> {
        if calls.is_empty() || self.kept.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.erase(&mut self.held.lock(), calls)
    }

    /// Erases all that belongs to a session that ended.
    ///
    /// # Errors
    /// As for [`Results::forget`].
    pub fn forget_session(&self, session: SessionDigest) -> Result<(), StoreError> {
        let mut held = self.held.lock();
        let calls = held.index.held.keys();
        let leaving: Vec<CallId> = calls
            .filter(|call| call.session == session)
            .copied()
            .collect();
        self.erase(&mut held, &leaving)
    }

    /// Erases what was kept before a moment, and tells which calls lost their answer by it.
    ///
    /// # Errors
    /// As for [`Results::forget`].
    pub fn forget_before(&self, moment: Duration) -> Result<Vec<CallId>, StoreError> {
        let mut held = self.held.lock();
        let aged = held.index.by_age.iter();
        let aged = aged.take_while(|(age, _)| age.kept_at < moment);
        let leaving: Vec<CallId> = aged.map(|(_, call)| *call).collect();
        self.erase(&mut held, &leaving)?;
        Ok(leaving)
    }

    /// The length of all kept bodies, in bytes.
    pub fn len_total(&self) -> usize {
        self.held.lock().index.len
    }

    /// What waits to be written counts as written: it is read like it, and its store tells of the failure.
    fn write(&self, batch: &[Op]) -> Result<(), StoreError> {
        match self.store.apply(batch) {
            Ok(_) | Err(StoreError::Pending { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn erase(&self, held: &mut Held, leaving: &[CallId]) -> Result<(), StoreError> {
        self.leave_old(held);
        let batch = held.removals(leaving);
        if !batch.is_empty() {
            self.write(&batch)?;
        }
        held.remove(leaving);
        self.kept.store(held.index.held.len(), Ordering::Release);
        Ok(())
    }
}

impl Held {
    /// What the store must be told so that these are gone from it.
    fn removals(&self, calls: &[CallId]) -> Vec<Op> {
        let stored = calls.iter().filter(|call| {
            let kept = self.index.held.get(call);
            kept.is_some_and(|kept| kept.spot.is_none())
        });
        stored.map(|call| remove(*call)).collect()
    }

    /// Removes what is gone from the store, or is in the ring.
    fn remove(&mut self, calls: &[CallId]) {
        for call in calls {
            if let Some(Kept {
                spot: Some(spot), ..
            }) = self.index.remove(*call)
                && let Place::Open(ring) = &self.ring
            {
                ring.forget(spot);
            }
        }
    }
}

impl Index {
    fn insert(&mut self, call: CallId, kept_at: Duration, len: usize, spot: Option<Spot>) {
        self.remove(call);
        self.count += 1;
        let age = Age {
            kept_at,
            ordinal: self.count,
        };
        self.held.insert(call, Kept { age, len, spot });
        self.by_age.insert(age, call);
        self.len += len;
    }

    fn remove(&mut self, call: CallId) -> Option<Kept> {
        let kept = self.held.remove(&call)?;
        self.by_age.remove(&kept.age);
        self.len -= kept.len;
        Some(kept)
    }

    /// The oldest ones that must go until the rest is within a length; never the given one.
    fn oldest_beyond(&self, len_max: usize, but: CallId) -> Vec<CallId> {
        let mut len = self.len;
        let mut leaving = Vec::new();
        for call in self.by_age.values() {
            if len <= len_max {
                break;
            }
            if *call != but {
                leaving.push(*call);
                len -= self.held.get(call).map_or(0, |kept| kept.len);
            }
        }
        leaving
    }
}

fn put(call: CallId, kept_at: Duration, body: &[u8]) -> Op {
    let mut value = BytesMut::with_capacity(TIME_LEN + body.len());
    value.put_u64_le(u64::try_from(kept_at.as_millis()).unwrap_or(u64::MAX));
    value.put_slice(body);
    Op::put(Kind::Result, key(call), value)
}

fn remove(call: CallId) -> Op {
    Op::remove(Kind::Result, key(call))
}

fn key(call: CallId) -> Bytes {
    let mut key = BytesMut::with_capacity(KEY_LEN);
    key.put_slice(&call.session.0);
    key.put_u64(call.number);
    key.freeze()
}

fn call_of(key: &[u8]) -> Option<CallId> {
    let (session, number) = key.split_first_chunk::<16>()?;
    Some(CallId {
        session: SessionDigest(*session),
        number: u64::from_be_bytes(number.try_into().ok()?),
    })
}

fn split(value: &Bytes) -> Option<(Duration, &[u8])> {
    let (time, body) = value.split_first_chunk::<TIME_LEN>()?;
    Some((Duration::from_millis(u64::from_le_bytes(*time)), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::EmbeddedStore;
    use crate::memory::MemoryStore;

    const NOW: Duration = Duration::from_secs(1_790_000_000);

    fn call(session: u8, number: u64) -> CallId {
        CallId {
            session: SessionDigest([session; 16]),
            number,
        }
    }

    #[test]
    fn a_body_is_kept_until_it_is_acknowledged_also_across_a_restart() {
        let store = Arc::new(MemoryStore::default());
        let results = Results::load(store.clone()).unwrap();
        assert!(results.keep(call(1, 1), b"one", NOW).unwrap());
        assert!(results.keep(call(1, 1), b"newer", NOW).unwrap());
        assert!(results.keep(call(2, 1), b"", NOW).unwrap());
        let results = Results::load(store).unwrap();
        assert_eq!(results.len_total(), 5);
        assert_eq!(results.body(call(1, 1)).unwrap(), Some("newer".into()));
        assert_eq!(results.body(call(2, 1)).unwrap(), Some(Bytes::new()));
        results.forget(&[call(1, 1), call(9, 9)]).unwrap();
        assert_eq!(results.body(call(1, 1)).unwrap(), None);
        assert_eq!(results.len_total(), 0);
    }

    #[test]
    fn what_is_too_long_is_not_kept_and_the_oldest_make_room() {
        let store = Arc::new(MemoryStore::default());
        let results = Results::load(store.clone()).unwrap();
        let body = vec![b'x'; RESULT_LEN_MAX];
        let more = [&body[..], b"x"].concat();
        assert!(!results.keep(call(1, 0), &more, NOW).unwrap());
        for number in 0..70 {
            let now = NOW + Duration::from_secs(number);
            assert!(results.keep(call(1, number), &body, now).unwrap());
        }
        assert_eq!(results.len_total(), RESULTS_LEN_MAX);
        assert_eq!(results.body(call(1, 5)).unwrap(), None);
        assert!(results.body(call(1, 6)).unwrap().is_some());
        assert_eq!(store.load(Kind::Result).unwrap().records.len(), 64);
    }

    #[test]
    fn age_and_the_end_of_a_session_erase_bodies() {
        let results = Results::load(Arc::new(MemoryStore::default())).unwrap();
        results.keep(call(1, 1), b"old", NOW).unwrap();
        let later = NOW + Duration::from_mins(1);
        results.keep(call(1, 2), b"new", later).unwrap();
        results.keep(call(2, 1), b"new", later).unwrap();
        assert_eq!(results.forget_before(later).unwrap(), [call(1, 1)]);
        results.forget_session(SessionDigest([1; 16])).unwrap();
        assert_eq!(results.len_total(), 3);
        assert!(results.body(call(2, 1)).unwrap().is_some());
    }

    struct Home {
        _folder: tempfile::TempDir,
        folder: StateFolder,
    }

    impl Home {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let (folder, _) = StateFolder::open(&home.path().join("state")).unwrap();
            Self {
                _folder: home,
                folder,
            }
        }

        /// As the next start finds it; its store is synced.
        fn open(&self) -> (Results, Arc<EmbeddedStore>) {
            let (store, _) = EmbeddedStore::open(&self.folder).unwrap();
            let store = Arc::new(store);
            let (results, findings) = Results::open(&self.folder, store.clone()).unwrap();
            assert_eq!(findings, []);
            store.sync().unwrap();
            (results, store)
        }
    }

    fn stored(store: &EmbeddedStore) -> usize {
        store.load(Kind::Result).unwrap().records.len()
    }

    #[test]
    fn short_bodies_stay_out_of_the_store_and_are_found_by_the_next_start() {
        let place = Home::new();
        let (results, store) = place.open();
        let long = vec![b'x'; ring::BODY_MAX + 1];
        results.keep(call(1, 1), b"one", NOW).unwrap();
        results.keep(call(1, 2), b"two", NOW).unwrap();
        results.keep(call(1, 3), &long, NOW).unwrap();
        results.keep(call(1, 1), b"newer", NOW).unwrap();
        results.forget(&[call(1, 2)]).unwrap();
        assert_eq!(stored(&store), 1, "the long one");
        assert_eq!(results.body(call(1, 1)).unwrap(), Some("newer".into()));
        assert_eq!(results.body(call(1, 2)).unwrap(), None);
        // Nothing is closed in order: a kill would not either.
        for _ in 0..2 {
            let (results, store) = place.open();
            assert_eq!(stored(&store), 2);
            assert_eq!(results.body(call(1, 1)).unwrap(), Some("newer".into()));
            assert_eq!(results.body(call(1, 2)).unwrap(), None);
            assert_eq!(results.body(call(1, 3)).unwrap(), Some(long.clone().into()));
            assert_eq!(results.len_total(), 5 + long.len());
        }
        let (results, store) = place.open();
        results.forget(&[call(1, 1)]).unwrap();
        results.keep(call(1, 3), b"short now", NOW).unwrap();
        assert_eq!(stored(&store), 0);
        let (results, _) = place.open();
        assert_eq!(results.body(call(1, 1)).unwrap(), None);
        assert_eq!(results.body(call(1, 3)).unwrap(), Some("short now".into()));
    }

    #[test]
    fn a_body_that_grows_leaves_the_ring() {
        let place = Home::new();
        let (results, store) = place.open();
        let long = vec![b'x'; ring::BODY_MAX + 1];
        results.keep(call(1, 1), b"short", NOW).unwrap();
        results.keep(call(1, 1), &long, NOW).unwrap();
        assert_eq!((results.len_total(), stored(&store)), (long.len(), 1));
        let (results, _) = place.open();
        assert_eq!(results.body(call(1, 1)).unwrap(), Some(long.into()));
    }

    #[test]
    fn what_is_in_the_way_of_newer_bodies_goes_to_the_store() {
        let place = Home::new();
        let (results, store) = place.open();
        let body = |number: u64| vec![u8::try_from(number % 251).unwrap(); 3000];
        let last = 1000;
        for number in 0..=last {
            results.keep(call(1, number), &body(number), NOW).unwrap();
            if number % 10 > 0 {
                results.forget(&[call(1, number)]).unwrap();
            }
        }
        let count = stored(&store);
        assert!(count > 50 && count < 101, "{count}");
        let check = |results: &Results| {
            for number in 0..=last {
                let kept = (number % 10 == 0).then(|| body(number).into());
                assert!(results.body(call(1, number)).unwrap() == kept, "{number}");
            }
        };
        check(&results);
        let (results, store) = place.open();
        check(&results);
        results.forget_session(call(1, 0).session).unwrap();
        assert_eq!((results.len_total(), stored(&store)), (0, 0));
        let (results, store) = place.open();
        assert_eq!((results.len_total(), stored(&store)), (0, 0));
    }
}
