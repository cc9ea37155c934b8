//! The journal that is opened again.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::RwLock;

use super::store::told;
use super::{Attempt, Ear, MEND_PAUSE, Turn, attempt_until_over};
use crate::folder::{Finding, StateFolder};
use crate::journal::{
    APPEND_MAX, CallEntry, CallId, CallState, FileJournal, Journal, JournalError, OPEN_CALLS_MAX,
    Recovered, boot, place,
};
use crate::record::Seq;

type Opened = Result<(Arc<dyn Journal>, Recovered, Vec<Finding>), Arc<str>>;
type Opener = Box<dyn Fn() -> Opened + Send + Sync>;

/// What became of entries.
#[derive(Clone, Debug)]
pub enum Noted {
    /// They are crash-durable.
    Kept,
    /// They are kept in memory, and written when that is possible again. After a crash before that nothing
    /// is known of a call that is new in them, and of an older one what was known before.
    Pending {
        /// Why they are not written.
        cause: Arc<str>,
    },
}

/// A journal over one that is opened again after a write failed.
pub struct SteadyJournal {
    shared: Arc<Shared>,
}

struct Shared {
    /// Held for reading while entries are written; written when the journal fails or is back.
    state: RwLock<State>,
    open: Opener,
    ear: Ear,
    pause: Duration,
}

pub(super) struct State {
    /// None while it is being opened again.
    inner: Option<Arc<dyn Journal>>,
    /// Which of the journals that were opened one after the other this is.
    epoch: u64,
    outage: Option<Outage>,
}

impl State {
    pub(super) fn of(inner: Arc<dyn Journal>) -> Self {
        Self {
            inner: Some(inner),
            epoch: 0,
            outage: None,
        }
    }

    /// Nothing can be written from the start; the disk holds these calls.
    pub(super) fn without(cause: Arc<str>, held: &Recovered) -> Self {
        let open = held.open.iter();
        let outage = Outage {
            cause,
            is_mending: true,
            unsent: open.clone().filter_map(unsent).collect(),
            wanted: open.map(|entry| (entry.call, *entry)).collect(),
        };
        Self {
            inner: None,
            epoch: 0,
            outage: Some(outage),
        }
    }
}

struct Outage {
    cause: Arc<str>,
    is_mending: bool,
    /// The open calls as the journal should hold them.
    wanted: BTreeMap<CallId, CallEntry>,
    /// Calls that the disk may hold as accepted, so that after a crash they count as never sent. None of
    /// them may leave (I4).
    unsent: HashSet<CallId>,
}

impl SteadyJournal {
    /// The journal of a state folder, and which calls are open. On a full disk it begins as one whose
    /// write failed: with what the old files hold, and opened again once there is room.
    ///
    /// # Errors
    /// As [`FileJournal::open`], but for a full disk.
    pub fn open(folder: &StateFolder) -> Result<(Self, Recovered, Vec<Finding>), JournalError> {
        Self::open_every(MEND_PAUSE, folder)
    }

    /// As [`SteadyJournal::open`], with a pause between two attempts.
    pub(super) fn open_every(
        pause: Duration,
        folder: &StateFolder,
    ) -> Result<(Self, Recovered, Vec<Finding>), JournalError> {
        let (journal, recovered, findings) = FileJournal::open_or_read(folder, boot())?;
        let folder = folder.clone();
        let open = move || -> Opened {
            // An attempt leaves a file behind when it fails half-way.
            folder.probe().map_err(|error| told(&error))?;
            let opened = FileJournal::open(&folder).map_err(|error| told(&error));
            opened.map(|(journal, recovered, findings)| {
                let journal: Arc<dyn Journal> = Arc::new(journal);
                (journal, recovered, findings)
            })
        };
        let state = match journal {
            Ok(journal) => State::of(Arc::new(journal)),
            Err(error) => State::without(told(&error), &recovered),
        };
        let is_out = state.outage.is_some();
        let journal = Self::in_state(state, Box::new(open), pause);
        if is_out {
            journal.shared.mend();
        }
        Ok((journal, recovered, findings))
    }

    /// Over one that is not opened again.
    pub fn once(inner: Arc<dyn Journal>) -> Self {
        let never = || Err("it is not opened again".into());
        Self::over(inner, Box::new(never), MEND_PAUSE)
    }

    pub(super) fn over(inner: Arc<dyn Journal>, open: Opener, pause: Duration) -> Self {
        Self::in_state(State::of(inner), open, pause)
    }

    pub(super) fn in_state(state: State, open: Opener, pause: Duration) -> Self {
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
    /// the journal.
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
        let outage = state.outage.as_ref();
        outage.map(|outage| Arc::clone(&outage.cause))
    }

    /// Adds entries, in their order. They are durable on return, or kept for later.
    ///
    /// # Errors
    /// Too many entries or open calls refuse the whole. [`JournalError::Poisoned`] says that nothing can be
    /// written, and that a call is to be noted as sent of which the disk may say that it was not: no call
    /// that these entries say was sent may leave. What else they say is kept for later.
    pub fn note(&self, entries: &[CallEntry]) -> Result<Noted, JournalError> {
        loop {
            let state = self.shared.state.read();
            if state.outage.is_some() {
                break;
            }
            let epoch = state.epoch;
            let Some(inner) = &state.inner else { break };
            let error = match inner.append(entries) {
                Ok(_) => return Ok(Noted::Kept),
                Err(error @ (JournalError::TooMany { .. } | JournalError::Full)) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            drop(state);
            if self.shared.fail(epoch, &error, entries) {
                break;
            }
        }
        self.shared.put_off(entries)
    }

    /// The last entry of a call that is not settled, kept or not.
    pub fn last(&self, call: CallId) -> Option<CallEntry> {
        let state = self.shared.state.read();
        match (&state.outage, &state.inner) {
            (Some(outage), _) => outage.wanted.get(&call).copied(),
            (None, inner) => inner.as_ref()?.last(call),
        }
    }

    /// Waits until everything is power-durable: for an orderly stop.
    ///
    /// # Errors
    /// Nothing can be written.
    pub fn sync(&self) -> Result<Seq, JournalError> {
        let state = self.shared.state.read();
        let epoch = state.epoch;
        let inner = match (&state.outage, &state.inner) {
            (None, Some(inner)) => Arc::clone(inner),
            (outage, _) => {
                let cause = outage.as_ref().map(|outage| Arc::clone(&outage.cause));
                let cause = cause.unwrap_or_default();
                return Err(JournalError::Poisoned { cause });
            }
        };
        // A sync takes its time: nobody waits for it here.
        drop(state);
        inner.sync().inspect_err(|error| {
            self.shared.fail(epoch, error, &[]);
        })
    }
}

#[cfg(test)]
impl SteadyJournal {
    /// Attempts to open it again now; says whether that is over.
    pub(super) fn reopen(&self) -> bool {
        self.shared.reopen() == Attempt::Over
    }
}

impl fmt::Debug for SteadyJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteadyJournal")
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The journal of this epoch did not take entries. False if another one is in its place already.
    fn fail(self: &Arc<Self>, epoch: u64, error: &JournalError, entries: &[CallEntry]) -> bool {
        let mut state = self.state.write();
        if state.epoch != epoch {
            return false;
        }
        let is_new = state.outage.is_none();
        let cause: Arc<str> = error.to_string().into();
        let State { inner, outage, .. } = &mut *state;
        let outage = outage.get_or_insert_with(|| {
            let open = inner.as_ref().map(|inner| inner.entries());
            let open = open.unwrap_or_default();
            Outage {
                cause: Arc::clone(&cause),
                is_mending: false,
                unsent: open.iter().filter_map(unsent).collect(),
                wanted: open.into_iter().map(|entry| (entry.call, entry)).collect(),
            }
        });
        // Some of them may be on the disk.
        outage.unsent.extend(entries.iter().filter_map(unsent));
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

    /// Keeps entries for later.
    fn put_off(self: &Arc<Self>, entries: &[CallEntry]) -> Result<Noted, JournalError> {
        let mut state = self.state.write();
        let State { inner, outage, .. } = &mut *state;
        let Some(outage) = outage else {
            // It is back since.
            let cause = || JournalError::Poisoned {
                cause: "it is being opened".into(),
            };
            let inner = inner.as_ref().ok_or_else(cause)?;
            return inner.append(entries).map(|_| Noted::Kept);
        };
        check(entries, outage.wanted.len())?;
        let leaves = |entry: &&CallEntry| matches!(entry.state, CallState::Sent { .. });
        let is_withheld = entries
            .iter()
            .filter(leaves)
            .any(|entry| outage.unsent.contains(&entry.call));
        for entry in entries {
            if !(is_withheld && leaves(&entry)) {
                place(&mut outage.wanted, *entry);
            }
        }
        let cause = Arc::clone(&outage.cause);
        let starts = !std::mem::replace(&mut outage.is_mending, true);
        drop(state);
        if starts {
            self.mend();
        }
        if is_withheld {
            return Err(JournalError::Poisoned { cause });
        }
        Ok(Noted::Pending { cause })
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
        // Before another one is opened in its place: it may remove files of its own.
        let old = {
            let mut state = self.state.write();
            if state.outage.is_none() {
                return Attempt::Over;
            }
            state.inner.take()
        };
        drop(old);
        let Ok((fresh, recovered, findings)) = (self.open)() else {
            return Attempt::Again;
        };
        let mut state = self.state.write();
        let Some(outage) = &mut state.outage else {
            return Attempt::Over;
        };
        for some in changes(&recovered, &outage.wanted).chunks(APPEND_MAX) {
            // Should it fail half-way, they may be on the disk.
            outage.unsent.extend(some.iter().filter_map(unsent));
            if write(&*fresh, some).is_err() {
                drop(state);
                return Attempt::Again;
            }
        }
        state.outage = None;
        state.inner = Some(fresh);
        state.epoch += 1;
        drop(state);
        self.ear.tell(Turn::Recovered { findings });
        Attempt::Over
    }
}

/// The bounds of a journal.
fn check(entries: &[CallEntry], open: usize) -> Result<(), JournalError> {
    let count = entries.len();
    if count > APPEND_MAX {
        return Err(JournalError::TooMany { count });
    }
    if open + count > OPEN_CALLS_MAX && entries.iter().any(|entry| unsent(entry).is_some()) {
        return Err(JournalError::Full);
    }
    Ok(())
}

/// The call, if the entry says that it was accepted and no more.
fn unsent(entry: &CallEntry) -> Option<CallId> {
    (entry.state == CallState::Accepted).then_some(entry.call)
}

/// What brings a journal up to date: the ends first, which make room.
fn changes(held: &Recovered, wanted: &BTreeMap<CallId, CallEntry>) -> Vec<CallEntry> {
    let held: BTreeMap<CallId, CallEntry> =
        held.open.iter().map(|entry| (entry.call, *entry)).collect();
    let over = held
        .values()
        .filter(|entry| !wanted.contains_key(&entry.call));
    let over = over.map(|entry| CallEntry {
        state: CallState::Settled,
        note: 0,
        ..*entry
    });
    let other = wanted
        .values()
        .filter(|entry| held.get(&entry.call) != Some(entry));
    over.chain(other.copied()).collect()
}

/// All of these, or one by one when the journal is nearly full: it counts each as a new call.
fn write(journal: &dyn Journal, entries: &[CallEntry]) -> Result<(), JournalError> {
    match journal.append(entries) {
        Err(JournalError::Full) => {}
        other => return other.map(drop),
    }
    for entry in entries {
        match journal.append(std::slice::from_ref(entry)) {
            // Its client learns less of it after a crash.
            Ok(_) | Err(JournalError::Full) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
