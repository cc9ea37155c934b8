//! Bodies of answers that their clients have not acknowledged.
//!
//! Owns the bounds: 1 MiB for one, 64 MiB for all, the oldest of which go first. What is gone ends as
//! `RESULT_LOST`, outcome `executed`. Must not know what a body says.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;

use crate::digest::SessionDigest;
use crate::journal::CallId;
use crate::record::{Kind, Op, Store, StoreError};

/// The longest body that is kept, in bytes (DESIGN 3.4).
pub const RESULT_LEN_MAX: usize = 1 << 20;
/// The most that is kept of all, in bytes: what a machine can load at a start without a wait.
pub const RESULTS_LEN_MAX: usize = 64 << 20;

const KEY_LEN: usize = 24;
const TIME_LEN: usize = 8;

/// Keeps such bodies in a store.
pub struct Results {
    store: Arc<dyn Store>,
    /// Held over a change and its write, so that both happen in the same order.
    index: Mutex<Index>,
    /// How many are kept: of the calls that end, few have a body here, and the others take no lock.
    kept: AtomicUsize,
}

#[derive(Default)]
struct Index {
    held: HashMap<CallId, Place>,
    /// By age; the second number tells those of one moment apart.
    by_age: BTreeMap<Place, CallId>,
    len: usize,
    count: u64,
}

#[derive(Clone, Copy, Eq, Ord, PartialEq, PartialOrd)]
struct Place {
    kept_at: Duration,
    ordinal: u64,
    len: usize,
}

impl Results {
    /// The bodies that a store holds.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(store: Arc<dyn Store>) -> Result<Self, StoreError> {
        let mut index = Index::default();
        for record in store.load(Kind::Result)?.records {
            if let (Some(call), Some((time, body))) = (call_of(&record.key), split(&record.value)) {
                index.insert(call, time, body.len());
            }
        }
        Ok(Self {
            store,
            kept: AtomicUsize::new(index.held.len()),
            index: Mutex::new(index),
        })
    }

    /// Keeps the body of a call's answer; `now` is the time since the Unix epoch. As durable on return as
    /// the store's writes are. `false` if it is longer than [`RESULT_LEN_MAX`] and so not kept.
    ///
    /// # Errors
    /// The store did not take it.
    pub fn keep(&self, call: CallId, body: &[u8], now: Duration) -> Result<bool, StoreError> {
        if body.len() > RESULT_LEN_MAX {
            return Ok(false);
        }
        let mut value = BytesMut::with_capacity(TIME_LEN + body.len());
        value.put_u64_le(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        value.put_slice(body);
        let mut index = self.index.lock();
        let mut batch = vec![Op::put(Kind::Result, key(call), value)];
        let leaving = index.oldest_beyond(RESULTS_LEN_MAX - body.len(), call);
        batch.extend(leaving.iter().map(|call| remove(*call)));
        self.write(&batch)?;
        for call in leaving {
            index.remove(call);
        }
        index.insert(call, now, body.len());
        self.kept.store(index.held.len(), Ordering::Release);
        Ok(true)
    }

    /// The body of a call's answer, if it is kept.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn body(&self, call: CallId) -> Result<Option<Bytes>, StoreError> {
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
        let mut index = self.index.lock();
        let held = |call: &&CallId| index.held.contains_key(*call);
        let leaving: Vec<CallId> = calls.iter().filter(held).copied().collect();
        self.erase(&mut index, &leaving)
    }

    /// Erases all that belongs to a session that ended.
    ///
    /// # Errors
    /// As for [`Results::forget`].
    pub fn forget_session(&self, session: SessionDigest) -> Result<(), StoreError> {
        let mut index = self.index.lock();
        let calls = index.held.keys();
        let leaving: Vec<CallId> = calls
            .filter(|call| call.session == session)
            .copied()
            .collect();
        self.erase(&mut index, &leaving)
    }

    /// Erases what was kept before a moment, and tells which calls lost their answer by it.
    ///
    /// # Errors
    /// As for [`Results::forget`].
    pub fn forget_before(&self, moment: Duration) -> Result<Vec<CallId>, StoreError> {
        let mut index = self.index.lock();
        let aged = index.by_age.iter();
        let aged = aged.take_while(|(place, _)| place.kept_at < moment);
        let leaving: Vec<CallId> = aged.map(|(_, call)| *call).collect();
        self.erase(&mut index, &leaving)?;
        Ok(leaving)
    }

    /// The length of all kept bodies, in bytes.
    pub fn len_total(&self) -> usize {
        self.index.lock().len
    }

    /// What waits to be written counts as written: it is read like it, and its store tells of the failure.
    fn write(&self, batch: &[Op]) -> Result<(), StoreError> {
        match self.store.apply(batch) {
            Ok(_) | Err(StoreError::Pending { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn erase(&self, index: &mut Index, leaving: &[CallId]) -> Result<(), StoreError> {
        if leaving.is_empty() {
            return Ok(());
        }
        let batch: Vec<Op> = leaving.iter().map(|call| remove(*call)).collect();
        self.write(&batch)?;
        for call in leaving {
            index.remove(*call);
        }
        self.kept.store(index.held.len(), Ordering::Release);
        Ok(())
    }
}

impl Index {
    fn insert(&mut self, call: CallId, kept_at: Duration, len: usize) {
        self.remove(call);
        self.count += 1;
        let place = Place {
            kept_at,
            ordinal: self.count,
            len,
        };
        self.held.insert(call, place);
        self.by_age.insert(place, call);
        self.len += len;
    }

    fn remove(&mut self, call: CallId) {
        if let Some(place) = self.held.remove(&call) {
            self.by_age.remove(&place);
            self.len -= place.len;
        }
    }

    /// The oldest ones that must go until the rest is within a length; never the given one.
    fn oldest_beyond(&self, len_max: usize, but: CallId) -> Vec<CallId> {
        let mut len = self.len;
        let mut leaving = Vec::new();
        for (place, call) in &self.by_age {
            if len <= len_max {
                break;
            }
            if *call != but {
                leaving.push(*call);
                len -= place.len;
            }
        }
        leaving
    }
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
}
