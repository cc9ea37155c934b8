//! What goes to rest: records and journal, and what is made from them again after a restart.
//!
//! Owns the ways to the store and to the journal, which hold no wire id: records are found by its keyed
//! digest. Must not know how a value is laid out, nor what a machine's record holds.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use parking_lot::Mutex;
use springline_proto::error::chain;
use springline_store::{
    CallEntry, DigestKey, Entries, EntryMemory, Finding, JournalError, Kind, MemoryJournal,
    MemoryStore, Noted, Op, Results, SessionDigest, StateFolder, SteadyJournal, SteadyStore, Store,
    StoreError,
};

use super::answered::AnsweredCalls;
use super::claim::report_removal;
use super::health::{Health, Unwritable};
use super::resting::Dormant;
use super::stored::{digest_of, kind_and_use, open_session};
use crate::clock;
use crate::config::{Definition, Identity};
use crate::event::Events;

/// The key of the counter of starts.
const STARTS: &[u8] = b"starts";

/// How long results and the fate of old calls are kept (DESIGN.md section 3.2, redelivery).
pub(crate) const AGE_MAX: Duration = Duration::from_hours(1);

/// Stands for the id of a pipe, which has none.
const PIPE: &str = "pipe";

/// What became of a turn's records and journal entries.
pub(super) struct Written {
    /// Whether the records are kept.
    pub(super) records: bool,
    /// Whether the entries are, or what may not happen because they are not.
    pub(super) journal: Result<Noted, JournalError>,
}

/// Why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the state folder {folder} cannot be used: {cause}")]
pub struct RestError {
    folder: String,
    cause: String,
}

/// What a gateway keeps beyond its process.
pub struct Rest {
    pub(super) store: Arc<dyn Store>,
    /// The store, where it can fail and come back.
    steady: Option<Arc<SteadyStore>>,
    pub(super) journal: SteadyJournal,
    pub(super) results: Results,
    health: Arc<Health>,
    digests: DigestKey,
    pub(crate) memory: Arc<dyn EntryMemory>,
    /// The ordinal of this start, from 1: numbers that must never come twice begin above it.
    pub(super) start: u64,
    /// Sessions that are stored and were not used since the start.
    pub(super) dormant: Mutex<HashMap<SessionDigest, Dormant>>,
    /// Held to write a record of an upstream, or to look at one and take its session out: each session
    /// is ended once, or left once, and none is at rest that is about to be ended.
    pub(super) claims: Mutex<()>,
    /// The calls of before the start that are not settled.
    pub(super) past: Mutex<HashMap<SessionDigest, Vec<CallEntry>>>,
    /// Calls that were answered since the start, until the journal need not know them any more.
    pub(super) answered: Mutex<AnsweredCalls>,
    /// Whether anything outlives the process.
    pub(crate) is_durable: bool,
    /// What stands for the one pipe of a bridge whose session upstream outlives the process.
    pub(crate) pipe: Option<SessionDigest>,
}

/// Tells definitions apart at rest, where no credential may stand.
#[derive(Clone)]
pub(crate) struct Identities(Arc<[u8; 32]>);

impl Identities {
    /// The keyed digest of a definition with its credentials.
    pub(crate) fn of(&self, definition: &Definition) -> [u8; 32] {
        *Identity::of_definition(definition, &*self.0).as_bytes()
    }
}

impl std::fmt::Debug for Identities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identities(…)")
    }
}

impl Rest {
    /// Opens what a state folder holds. What cannot be read is set aside and reported; the caller
    /// holds the folder's lock. Blocks on the disk.
    ///
    /// # Errors
    /// The folder itself cannot be used.
    pub fn open(folder: &Path) -> Result<(Self, Vec<Finding>), RestError> {
        let failed = |cause: &dyn std::error::Error| RestError {
            folder: folder.display().to_string(),
            cause: chain(cause),
        };
        let (state, mut findings) = StateFolder::open(folder).map_err(|error| failed(&error))?;
        let (digests, found) = DigestKey::open(&state).map_err(|error| failed(&error))?;
        findings.extend(found);
        let (steady, found) = SteadyStore::open(&state).map_err(|error| failed(&error))?;
        findings.extend(found);
        let steady = Arc::new(steady);
        let store: Arc<dyn Store> = steady.clone();
        let (journal, recovered, found) =
            SteadyJournal::open(&state).map_err(|error| failed(&error))?;
        findings.extend(found);
        let entries = Entries::load(Arc::clone(&store)).map_err(|error| failed(&error))?;
        let (results, found) =
            Results::open(&state, Arc::clone(&store)).map_err(|error| failed(&error))?;
        findings.extend(found);
        let mut rest = Self {
            results,
            steady: Some(steady),
            journal,
            health: Arc::default(),
            digests,
            memory: Arc::new(entries),
            start: next_start(&*store, &state).map_err(|error| failed(&*error))?,
            dormant: Mutex::default(),
            claims: Mutex::default(),
            past: Mutex::default(),
            answered: Mutex::default(),
            is_durable: true,
            pipe: None,
            store,
        };
        for record in rest
            .store
            .load(Kind::Session)
            .map_err(|error| failed(&error))?
            .records
        {
            if let (Some(digest), Some((kind, used))) =
                (digest_of(&record.key), kind_and_use(&record.value))
            {
                let endpoint = open_session(&record.value).and_then(|stored| stored.endpoint);
                let dormant = Dormant {
                    kind,
                    used,
                    endpoint: endpoint.map(String::into_boxed_str),
                };
                rest.dormant.get_mut().insert(digest, dormant);
            }
        }
        for entry in recovered.open {
            rest.past
                .get_mut()
                .entry(entry.call.session)
                .or_default()
                .push(entry);
        }
        Ok((rest, findings))
    }

    /// Keeps everything in memory: for `bridge`, and for tests.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn in_memory() -> Result<Self, RestError> {
        let failed = |cause: String| RestError {
            folder: "in memory".to_owned(),
            cause,
        };
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        Ok(Self {
            results: Results::load(Arc::clone(&store)).map_err(|error| failed(chain(&error)))?,
            store,
            steady: None,
            journal: SteadyJournal::once(Arc::new(MemoryJournal::default())),
            health: Arc::default(),
            digests: DigestKey::random().map_err(|error| failed(chain(&error)))?,
            memory: Arc::new(Entries::in_memory()),
            start: 1,
            dormant: Mutex::default(),
            claims: Mutex::default(),
            past: Mutex::default(),
            answered: Mutex::default(),
            is_durable: false,
            pipe: None,
        })
    }

    /// Opens a folder that belongs to one bridge, whose client is started anew now and then: what
    /// its session upstream is known by outlives the process, and nothing else. Blocks on the disk;
    /// the caller holds the folder's lock.
    ///
    /// # Errors
    /// As [`Rest::open`].
    pub fn open_for_pipe(folder: &Path) -> Result<(Self, Vec<Finding>), RestError> {
        let (mut rest, findings) = Self::open(folder)?;
        rest.pipe = Some(rest.digest(PIPE));
        // What it once answered does not answer for a server that cannot be reached now.
        rest.memory = Arc::new(Entries::in_memory());
        Ok((rest, findings))
    }

    /// Has the operator told when the state folder cannot be written, and when it can be again.
    pub(crate) fn listen(&self, events: &Arc<Events>) {
        let ear = |what| {
            let (health, events) = (Arc::clone(&self.health), Arc::clone(events));
            move |turn| health.turn(what, turn, &events)
        };
        if let Some(store) = &self.steady {
            store.listen(ear("records"));
        }
        self.journal.listen(ear("journal"));
    }

    /// What cannot be written to the state folder now.
    pub(crate) fn unwritable(&self) -> Vec<Unwritable> {
        self.health.now()
    }

    /// Numbers of this process begin above this.
    pub(crate) fn base(&self) -> u64 {
        // 2^21 starts fit below the 2^53 that every JSON reader keeps exactly.
        self.start << 32
    }

    pub(crate) fn digest(&self, id: &str) -> SessionDigest {
        self.digests.session(id)
    }

    /// What definitions, credentials included, are known by at rest.
    pub(crate) fn identities(&self) -> Identities {
        Identities(Arc::new(self.digests.digest(&[b"definition"]).0))
    }

    pub(super) fn write(&self, ops: &[Op], entries: &[CallEntry], events: &Events) -> Written {
        let mut written = Written {
            records: self.is_durable,
            journal: Ok(Noted::Kept),
        };
        if !self.is_durable {
            return written;
        }
        if !ops.is_empty()
            && let Err(error) = self.store.apply(ops)
        {
            written.records = false;
            // That nothing can be written was told when it began.
            if !matches!(error, StoreError::Pending { .. }) {
                report(events, "records", &error);
            }
            for op in ops {
                report_removal(events, op, &error);
            }
        }
        if !entries.is_empty() {
            written.journal = self.journal.note(entries);
        }
        if let Err(error) = &written.journal
            && !matches!(error, JournalError::Poisoned { .. })
        {
            report(events, "journal", error);
        }
        written
    }

    /// Waits until all is on the disk; for an orderly stop.
    pub(crate) fn sync(&self) {
        // Why was told when it began.
        if let Err(error) = self.store.sync() {
            let cause = chain(&error);
            tracing::error!(cause, "not all records outlive this stop");
        }
        if let Err(error) = self.journal.sync() {
            let cause = chain(&error);
            tracing::error!(cause, "not all that is known of calls outlives this stop");
        }
    }
}

/// Counts this start. Where the count cannot be written, its place is taken by a name in the folder: after
/// a kill the next start must have another ordinal all the same.
fn next_start(store: &dyn Store, folder: &StateFolder) -> Result<u64, Box<dyn std::error::Error>> {
    let held = store.get(Kind::Meta, STARTS)?;
    let last = held
        .and_then(|value| value.as_ref().try_into().ok())
        .map_or(0, u64::from_be_bytes);
    let start = last.max(folder.marked()?).saturating_add(1);
    match store.apply(&[Op::put(Kind::Meta, STARTS, start.to_be_bytes().to_vec())]) {
        Ok(_) => {}
        Err(StoreError::Pending { .. }) => folder.mark(start)?,
        Err(error) => return Err(error.into()),
    }
    Ok(start)
}

pub(super) fn since_epoch() -> Duration {
    clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Something could not be made durable. Calls go on, but for those that the journal holds as not sent: a
/// client is better served without the promise for the next crash than not at all, and the operator hears
/// of it.
pub(super) fn report(events: &Events, what: &'static str, error: &dyn std::error::Error) {
    let mut facts = serde_json::Map::new();
    facts.insert("what".to_owned(), what.into());
    let cause = chain(error);
    // Nothing outlives the process from now on: the operator must hear of it where logs are read.
    tracing::error!(
        what,
        cause,
        "what must outlive the gateway could not be written"
    );
    facts.insert("cause".to_owned(), cause.into());
    events.record("store.failed", facts);
}
