//! The store that is opened again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;

use super::{Attempt, Ear, MEND_PAUSE, Turn, attempt_until_over};
use crate::embedded::EmbeddedStore;
use crate::folder::{Finding, StateFolder};
use crate::record::{Kind, Loaded, Op, Record, Seq, Store, StoreError};

/// The most that waits in memory, in bytes of keys and values (I8). Machines and results hold nearly all of
/// it in memory anyway.
const PENDING_LEN_MAX: usize = 256 << 20;
/// What is written at once when a store is opened again: a few milliseconds.
const CHUNK_OPS: usize = 256;
const CHUNK_LEN: usize = 1 << 20;

type Opened = Result<(Arc<dyn Store>, Vec<Finding>), Arc<str>>;
type Opener = Box<dyn Fn() -> Opened + Send + Sync>;
type Place = (Kind, Bytes);

/// A store over one that is opened again after a write failed. Until then a change is taken with
/// [`StoreError::Pending`]: every reader sees it, it is written when writing is possible again, and a crash
/// before that loses it.
pub struct SteadyStore {
    shared: Arc<Shared>,
}

struct Shared {
    /// Reads with it held for reading; written when the store fails or is back.
    state: RwLock<State>,
    open: Opener,
    ear: Ear,
    pause: Duration,
}

struct State {
    inner: Arc<dyn Store>,
    /// Which of the stores that were opened one after the other this is.
    epoch: u64,
    /// The last ordinal of those before.
    base: u64,
    outage: Option<Outage>,
}

struct Outage {
    cause: Arc<str>,
    is_mending: bool,
    pending: Pending,
}

/// What is to be written.
#[derive(Default)]
struct Pending {
    /// The value that a place should have; none if its record is to be removed.
    places: BTreeMap<Place, Option<Bytes>>,
    len: usize,
    /// Of these nobody knows what the store has: they were part of a write that failed.
    doubtful: BTreeSet<Place>,
}

impl SteadyStore {
    /// The database of a state folder.
    ///
    /// # Errors
    /// As [`EmbeddedStore::open`].
    pub fn open(folder: &StateFolder) -> Result<(Self, Vec<Finding>), StoreError> {
        let (store, findings) = EmbeddedStore::open(folder)?;
        let folder = folder.clone();
        let open = move || -> Opened {
            folder.probe().map_err(|error| told(&error))?;
            let (store, findings) = EmbeddedStore::open(&folder).map_err(|error| told(&error))?;
            Ok((Arc::new(store), findings))
        };
        Ok((
            Self::over(Arc::new(store), Box::new(open), MEND_PAUSE),
            findings,
        ))
    }

    pub(super) fn over(inner: Arc<dyn Store>, open: Opener, pause: Duration) -> Self {
        let state = State {
            inner,
            epoch: 0,
            base: 0,
            outage: None,
        };
        Self {
            shared: Arc::new(Shared {
                state: RwLock::new(state),
                open,
                ear: Ear::default(),
                pause,
            }),
        }
    }

    /// Has every turn told from now on, and the present one if it is bad. The listener must not write to
    /// the store.
    pub fn listen(&self, listener: impl Fn(Turn) + Send + Sync + 'static) {
        // Held meanwhile, so that its end is not told before it.
        let state = self.shared.state.read();
        self.shared.ear.set(Box::new(listener));
        if let Some(outage) = &state.outage {
            let cause = Arc::clone(&outage.cause);
            self.shared.ear.tell(Turn::Failed { cause });
        }
    }

    /// Why nothing can be written now, if so.
    pub fn failure(&self) -> Option<Arc<str>> {
        let state = self.shared.state.read();
        state
            .outage
            .as_ref()
            .map(|outage| Arc::clone(&outage.cause))
    }
}

#[cfg(test)]
impl SteadyStore {
    /// As if the next write had failed.
    pub(super) fn fail_now(&self) {
        let epoch = self.shared.state.read().epoch;
        let cause = "on purpose".into();
        self.shared
            .fail(epoch, &StoreError::Poisoned { cause }, &[]);
    }

    /// Attempts to open it again now; says whether that is over.
    pub(super) fn reopen(&self) -> bool {
        self.shared.reopen() == Attempt::Over
    }
}

impl fmt::Debug for SteadyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyStore")
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

impl Store for SteadyStore {
    fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError> {
        batch.iter().try_for_each(Op::check)?;
        loop {
            let state = self.shared.state.read();
            if state.outage.is_some() {
                break;
            }
            let (epoch, base) = (state.epoch, state.base);
            let error = match state.inner.apply(batch) {
                Ok(seq) => return Ok(Seq(base + seq.0)),
                Err(error) => error,
            };
            drop(state);
            if self.shared.fail(epoch, &error, batch) {
                break;
            }
        }
        self.shared.put_off(batch)
    }

    fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let state = self.shared.state.read();
        if let Some(outage) = &state.outage {
            let place = (kind, Bytes::copy_from_slice(key));
            if let Some(value) = outage.pending.places.get(&place) {
                return Ok(value.clone());
            }
        }
        state.inner.get(kind, key)
    }

    fn load(&self, kind: Kind) -> Result<Loaded, StoreError> {
        let state = self.shared.state.read();
        let mut loaded = state.inner.load(kind)?;
        if let Some(outage) = &state.outage {
            outage.pending.overlay(kind, &mut loaded.records);
        }
        Ok(loaded)
    }

    fn sync(&self) -> Result<Seq, StoreError> {
        let state = self.shared.state.read();
        if let Some(outage) = &state.outage {
            let cause = Arc::clone(&outage.cause);
            return Err(StoreError::Poisoned { cause });
        }
        let (inner, epoch, base) = (Arc::clone(&state.inner), state.epoch, state.base);
        // A sync takes its time: nobody waits for it here.
        drop(state);
        inner
            .sync()
            .map(|seq| Seq(base + seq.0))
            .inspect_err(|error| {
                self.shared.fail(epoch, error, &[]);
            })
    }

    fn synced(&self) -> Seq {
        let state = self.shared.state.read();
        Seq(state.base + state.inner.synced().0)
    }
}

impl Shared {
    /// The store of this epoch did not take a batch. False if another one is in its place already.
    fn fail(self: &Arc<Self>, epoch: u64, error: &StoreError, batch: &[Op]) -> bool {
        let mut state = self.state.write();
        if state.epoch != epoch {
            return false;
        }
        let cause: Arc<str> = error.to_string().into();
        let is_new = state.outage.is_none();
        let outage = state.outage.get_or_insert_with(|| Outage {
            cause: Arc::clone(&cause),
            is_mending: false,
            pending: Pending::default(),
        });
        outage.pending.doubt(batch);
        let starts = !std::mem::replace(&mut outage.is_mending, true);
        drop(state);
        if is_new {
            self.ear.tell(Turn::Failed { cause });
        }
        if starts {
            self.mend();
        }
        true
    }

    /// Keeps a batch for later.
    fn put_off(self: &Arc<Self>, batch: &[Op]) -> Result<Seq, StoreError> {
        let mut state = self.state.write();
        let State { inner, outage, .. } = &mut *state;
        let Some(outage) = outage else {
            // It is back since.
            let base = state.base;
            return state.inner.apply(batch).map(|seq| Seq(base + seq.0));
        };
        let is_full = outage.pending.put(batch, &**inner);
        let cause = Arc::clone(&outage.cause);
        let starts = !std::mem::replace(&mut outage.is_mending, true);
        drop(state);
        if starts {
            self.mend();
        }
        Err(if is_full {
            StoreError::Poisoned { cause }
        } else {
            StoreError::Pending { cause }
        })
    }

    fn mend(self: &Arc<Self>) {
        let this: Weak<Self> = Arc::downgrade(self);
        let attempt = move || this.upgrade().map_or(Attempt::Over, |this| this.reopen());
        if attempt_until_over("springline-mend", self.pause, attempt).is_err()
            && let Some(outage) = &mut self.state.write().outage
        {
            // The next write tries to start it.
            outage.is_mending = false;
        }
    }

    fn reopen(&self) -> Attempt {
        if self.state.read().outage.is_none() {
            return Attempt::Over;
        }
        let Ok((fresh, findings)) = (self.open)() else {
            return Attempt::Again;
        };
        let old = {
            let mut state = self.state.write();
            if !carries_on(&*state.inner, &*fresh) {
                // Another database is in the place of ours; what ours still tells is not lost.
                if copy(&*state.inner, &*fresh).is_err() {
                    return Attempt::Again;
                }
            }
            state.base += state.inner.synced().0;
            state.epoch += 1;
            std::mem::replace(&mut state.inner, Arc::clone(&fresh))
        };
        // Its thread may take a moment to end.
        drop(old);
        loop {
            let mut state = self.state.write();
            let Some(outage) = &mut state.outage else {
                return Attempt::Over;
            };
            let (batch, is_last) = outage.pending.chunk();
            if !is_last {
                drop(state);
            } else if fresh.apply(&batch).is_ok() {
                state.outage = None;
                drop(state);
                self.ear.tell(Turn::Recovered { findings });
                return Attempt::Over;
            } else {
                outage.pending.doubt(&batch);
                return Attempt::Again;
            }
            let is_written = fresh.apply(&batch).is_ok();
            if let Some(outage) = &mut self.state.write().outage {
                if !is_written {
                    outage.pending.doubt(&batch);
                    return Attempt::Again;
                }
                outage.pending.written(&batch);
            }
        }
    }
}

impl Pending {
    /// Nobody knows what the store has of these.
    fn doubt(&mut self, batch: &[Op]) {
        self.doubtful.extend(batch.iter().map(place_of));
    }

    /// Takes a batch in; true if not all of it had room.
    fn put(&mut self, batch: &[Op], inner: &dyn Store) -> bool {
        let mut is_full = false;
        for op in batch {
            let place = place_of(op);
            let value = match op {
                Op::Put { value, .. } => Some(value.clone()),
                Op::Remove { .. } => None,
            };
            let len = place.1.len() + value.as_ref().map_or(0, Bytes::len);
            if value.is_some() && self.len + len > PENDING_LEN_MAX {
                // What was there before holds.
                is_full = true;
                continue;
            }
            self.take(&place);
            // Sessions come and go: what the store never had need not be removed from it.
            let is_absent = value.is_none()
                && !self.doubtful.contains(&place)
                && matches!(inner.get(place.0, &place.1), Ok(None));
            if !is_absent {
                self.len += len;
                self.places.insert(place, value);
            }
        }
        is_full
    }

    fn take(&mut self, place: &Place) {
        if let Some(value) = self.places.remove(place) {
            let len = place.1.len() + value.as_ref().map_or(0, Bytes::len);
            self.len = self.len.saturating_sub(len);
        }
    }

    /// Some of what is to be written, and whether it is all.
    fn chunk(&self) -> (Vec<Op>, bool) {
        let mut batch = Vec::new();
        let mut len = 0;
        for ((kind, key), value) in &self.places {
            if batch.len() >= CHUNK_OPS || len >= CHUNK_LEN {
                return (batch, false);
            }
            len += value.as_ref().map_or(0, Bytes::len);
            batch.push(match value {
                Some(value) => Op::put(*kind, key.clone(), value.clone()),
                None => Op::remove(*kind, key.clone()),
            });
        }
        (batch, true)
    }

    /// These were written; what was changed meanwhile still waits.
    fn written(&mut self, batch: &[Op]) {
        for op in batch {
            let place = place_of(op);
            let value = match op {
                Op::Put { value, .. } => Some(value),
                Op::Remove { .. } => None,
            };
            if self
                .places
                .get(&place)
                .is_some_and(|held| held.as_ref() == value)
            {
                self.take(&place);
            }
        }
    }

    fn overlay(&self, kind: Kind, records: &mut Vec<Record>) {
        let own = self.places.range((kind, Bytes::new())..);
        let own = own.take_while(|((of, _), _)| *of == kind);
        for ((_, key), value) in own {
            let at = records.binary_search_by(|record| record.key.cmp(key));
            match (at, value) {
                (Ok(at), Some(value)) => {
                    if let Some(record) = records.get_mut(at) {
                        record.value = value.clone();
                    }
                }
                (Ok(at), None) => {
                    records.remove(at);
                }
                (Err(at), Some(value)) => {
                    let (key, value) = (key.clone(), value.clone());
                    records.insert(at, Record { key, value });
                }
                (Err(_), None) => {}
            }
        }
    }
}

fn place_of(op: &Op) -> Place {
    let (Op::Put { kind, key, .. } | Op::Remove { kind, key }) = op;
    (*kind, key.clone())
}

/// Whether a store that was opened again is the one of before: it holds the facts that ours does. One that
/// cannot be read any more has nothing to compare.
fn carries_on(old: &dyn Store, fresh: &dyn Store) -> bool {
    let Ok(facts) = old.load(Kind::Meta) else {
        return true;
    };
    let is_held = |record: &Record| matches!(fresh.get(Kind::Meta, &record.key), Ok(Some(_)));
    facts.records.iter().all(is_held)
}

fn copy(old: &dyn Store, fresh: &dyn Store) -> Result<(), StoreError> {
    for kind in Kind::ALL {
        // What cannot be read is lost already.
        let records = old
            .load(kind)
            .map(|loaded| loaded.records)
            .unwrap_or_default();
        for some in records.chunks(CHUNK_OPS) {
            let batch: Vec<Op> = some
                .iter()
                .map(|record| Op::put(kind, record.key.clone(), record.value.clone()))
                .collect();
            fresh.apply(&batch)?;
        }
    }
    Ok(())
}

/// The error with what it was caused by.
pub(super) fn told(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text.into()
}
