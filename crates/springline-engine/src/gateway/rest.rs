//! What goes to rest: records and journal, and what is made from them again after a restart.
//!
//! Owns the ways to the store and to the journal, which hold no wire id: records are found by its keyed
//! digest. Must not know how a value is laid out, nor what a machine's record holds.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use springline_proto::call::SessionKey;
use springline_proto::error::{Fault, Outcome};
use springline_proto::message::Message;
use springline_proto::session::{Mark, Output as SessionOutput, Past, PastCall};
use springline_proto::upstream::{Event as UpstreamEvent, Output as UpstreamOutput};
use springline_store::{
    Answer, CallEntry, CallId, CallState, DigestKey, EmbeddedStore, Entries, EntryMemory,
    FileJournal, Finding, Journal, JournalError, Kind, MemoryJournal, MemoryStore, Op, Results,
    SessionDigest, StateFolder, Store,
};

use super::answered::AnsweredCalls;
use super::claim::{report_removal, upstream_key, upstream_value};
use super::stored::{SessionKind, Stored, digest_of, key_of, kind_and_use, open_session};
use crate::clock;
use crate::config::{Definition, Identity};
use crate::event::Events;

/// The key of the counter of starts.
const STARTS: &[u8] = b"starts";

/// How long results and the fate of old calls are kept (DESIGN.md section 3.2, redelivery).
pub(crate) const AGE_MAX: Duration = Duration::from_hours(1);

/// Stands for the id of a pipe, which has none.
const PIPE: &str = "pipe";

/// A session at rest that was not used since the start.
struct Dormant {
    kind: SessionKind,
    used: Duration,
    /// The one server that it speaks to; none for all.
    endpoint: Option<Box<str>>,
}

/// Longer than any error response of ours to an ordinary id.
const FAULT_LEN_MAX: usize = 8 * 1024;

/// What became of a turn's records and journal entries.
pub(super) struct Written {
    /// Whether the records are kept.
    pub(super) records: bool,
    /// Whether the entries are.
    pub(super) journal: Result<(), JournalError>,
}

/// Where the record of an upstream stands, and what it is marked with.
pub(crate) struct RecordPlace<'a> {
    /// Whom the upstream belongs to.
    pub(crate) owner: SessionDigest,
    pub(crate) server: &'a str,
    /// The definition of its entry, credentials included.
    pub(crate) identity: &'a [u8; 32],
    /// Whether the record is another's by now.
    pub(crate) has_heir: &'a AtomicBool,
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
    journal: Arc<dyn Journal>,
    results: Results,
    digests: DigestKey,
    pub(crate) memory: Arc<dyn EntryMemory>,
    /// The ordinal of this start, from 1: numbers that must never come twice begin above it.
    pub(super) start: u64,
    /// Sessions that are stored and were not used since the start.
    dormant: Mutex<HashMap<SessionDigest, Dormant>>,
    /// Held to write a record of an upstream, or to look at one and take its session out: each session
    /// is ended once, or left once, and none is at rest that is about to be ended.
    pub(super) claims: Mutex<()>,
    /// The calls of before the start that are not settled.
    past: Mutex<HashMap<SessionDigest, Vec<CallEntry>>>,
    /// Calls that were answered since the start, until the journal need not know them any more.
    answered: Mutex<AnsweredCalls>,
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

/// What becomes of calls in one turn of a session.
#[derive(Default)]
struct Placed {
    /// New, with the frame of the client that brought each.
    accepted: Vec<(CallId, u64)>,
    settled: Vec<CallId>,
    /// Answered, and too old to be asked for.
    over: Vec<CallId>,
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
        let (store, found) = EmbeddedStore::open(&state).map_err(|error| failed(&error))?;
        findings.extend(found);
        let store: Arc<dyn Store> = Arc::new(store);
        let (journal, recovered, found) =
            FileJournal::open(&state).map_err(|error| failed(&error))?;
        findings.extend(found);
        let entries = Entries::load(Arc::clone(&store)).map_err(|error| failed(&error))?;
        let mut rest = Self {
            results: Results::load(Arc::clone(&store)).map_err(|error| failed(&error))?,
            journal: Arc::new(journal),
            digests,
            memory: Arc::new(entries),
            start: next_start(&*store).map_err(|error| failed(&error))?,
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
            journal: Arc::new(MemoryJournal::default()),
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

    /// Makes durable what a session's outputs ask for, in one write each for records and journal.
    /// `at_rest` makes the value that is stored from a record.
    pub(crate) fn keep_session(
        &self,
        session: SessionDigest,
        at_rest: impl Fn(&[u8]) -> Bytes,
        outputs: &[SessionOutput],
        events: &Events,
    ) {
        if !self.is_durable {
            return;
        }
        let mut ops = Vec::new();
        let mut entries = Vec::new();
        let mut turn = Placed::default();
        for output in outputs {
            match output {
                SessionOutput::Persist(record) => {
                    let value = at_rest(&record.encode());
                    ops.push(Op::put(Kind::Session, key_of(session), value));
                }
                SessionOutput::Mark { number, mark } => {
                    let call = CallId {
                        session,
                        number: *number,
                    };
                    let (state, note) = self.place(call, mark, &mut turn, events);
                    entries.push(CallEntry { call, state, note });
                }
                SessionOutput::Taken(frame) => entries.push(CallEntry {
                    call: taken_of(session),
                    state: CallState::Accepted,
                    note: *frame,
                }),
                SessionOutput::ToExchange { .. }
                | SessionOutput::ToStream { .. }
                | SessionOutput::ToUpstream { .. }
                | SessionOutput::Remember { .. }
                | SessionOutput::Emit(_)
                | SessionOutput::Closed => {}
            }
        }
        self.write(&ops, &entries, events);
        self.settle(&turn.over, events);
        if let Err(error) = self.results.forget(&turn.settled) {
            report(events, "results", &error);
        }
    }

    /// What the journal is told of a call, with the frame that brought it.
    fn place(
        &self,
        call: CallId,
        mark: &Mark,
        turn: &mut Placed,
        events: &Events,
    ) -> (CallState, u64) {
        match mark {
            Mark::Accepted { frame } => {
                turn.accepted.push((call, *frame));
                (CallState::Accepted, *frame)
            }
            Mark::Settled => {
                turn.settled.push(call);
                (CallState::Settled, 0)
            }
            Mark::Answered(body) => {
                let body = body.to_bytes();
                let new = turn.accepted.iter().find(|(held, _)| *held == call);
                let new = new.map(|(_, frame)| *frame);
                let frame = new.or_else(|| self.followed(call)).unwrap_or(0);
                self.keep_result(call, &body, events);
                let answer = answer_of(&body);
                // One of the socket is settled when its client has it.
                if frame == 0 {
                    let oldest = self.answered.lock().note(call, clock::moment().0);
                    turn.over.extend(oldest);
                }
                (CallState::Answered { answer }, frame)
            }
        }
    }

    /// The frame of the client that brought a call, if that is a call of a client which waits for its
    /// answer. Only what the journal holds as such is followed: a session's own requests, and what is
    /// sent after its call was cancelled, would stay open for ever; and of a call that it could not be
    /// told of, the outcome is unknown after a crash, whatever became of it.
    fn followed(&self, call: CallId) -> Option<u64> {
        let entry = self.is_durable.then(|| self.journal.last(call))??;
        match entry.state {
            CallState::Accepted | CallState::Sent { .. } => Some(entry.note),
            CallState::Answered { .. } | CallState::Settled => None,
        }
    }

    /// Makes durable what an upstream's outputs ask for. `session_of` knows what stands for the session
    /// of a call, if that outlives the process.
    ///
    /// # Errors
    /// The journal says of some calls that they were not sent, and could not be told that they are:
    /// none of the outputs' calls may leave (I4).
    pub(crate) fn keep_upstream(
        &self,
        place: &RecordPlace<'_>,
        session_of: impl Fn(SessionKey) -> Option<SessionDigest>,
        outputs: &[UpstreamOutput],
        events: &Events,
    ) -> Result<(), JournalError> {
        let RecordPlace { owner, server, .. } = *place;
        let is_record = |output: &UpstreamOutput| {
            matches!(output, UpstreamOutput::Persist(_) | UpstreamOutput::Forget)
        };
        // One step with the look at who the record belongs to; calls alone wait for nobody.
        let turn = outputs.iter().any(is_record).then(|| self.claims.lock());
        let is_anothers = turn.is_some() && place.has_heir.load(Ordering::Acquire);
        let mut ops = Vec::new();
        let mut entries = Vec::new();
        let mut kept = None;
        for output in outputs {
            match output {
                UpstreamOutput::Persist(_) | UpstreamOutput::Forget if is_anothers => {}
                UpstreamOutput::Persist(record) => {
                    let has_session = record.route.session_id.is_some();
                    kept = has_session.then_some(record.generation);
                    let value = upstream_value(place.identity, record);
                    ops.push(Op::put(Kind::Upstream, upstream_key(owner, server), value));
                }
                UpstreamOutput::Forget => {
                    ops.push(Op::remove(Kind::Upstream, upstream_key(owner, server)));
                }
                UpstreamOutput::Sent { key, generation } => {
                    let Some(session) = session_of(key.session) else {
                        continue;
                    };
                    let number = key.number;
                    let call = CallId { session, number };
                    let generation = *generation;
                    if let Some(note) = self.followed(call) {
                        let state = CallState::Sent { generation };
                        entries.push(CallEntry { call, state, note });
                    }
                }
                UpstreamOutput::Moved { .. }
                | UpstreamOutput::Reserve { .. }
                | UpstreamOutput::Open { .. }
                | UpstreamOutput::Send { .. }
                | UpstreamOutput::Resume { .. }
                | UpstreamOutput::Listen { .. }
                | UpstreamOutput::Abort { .. }
                | UpstreamOutput::RefreshCredentials
                | UpstreamOutput::End { .. }
                | UpstreamOutput::ToSession { .. }
                | UpstreamOutput::Emit(_) => {}
            }
        }
        let written = self.write(&ops, &entries, events);
        drop(turn);
        let is_new = |output: &UpstreamOutput| {
            matches!(output, UpstreamOutput::Emit(UpstreamEvent::Ready { .. }))
        };
        if let Some(generation) = kept.filter(|_| written.records && outputs.iter().any(is_new)) {
            let mut facts = serde_json::Map::new();
            facts.insert("server".to_owned(), server.into());
            facts.insert("generation".to_owned(), generation.0.into());
            events.record("session.persisted", facts);
        }
        written.journal
    }

    pub(super) fn write(&self, ops: &[Op], entries: &[CallEntry], events: &Events) -> Written {
        let mut written = Written {
            records: self.is_durable,
            journal: Ok(()),
        };
        if !self.is_durable {
            return written;
        }
        if !ops.is_empty()
            && let Err(error) = self.store.apply(ops)
        {
            written.records = false;
            report(events, "records", &error);
            for op in ops {
                report_removal(events, op, &error);
            }
        }
        if !entries.is_empty()
            && let Err(error) = self.journal.append(entries)
        {
            report(events, "journal", &error);
            written.journal = Err(error);
        }
        written
    }

    fn keep_result(&self, call: CallId, body: &[u8], events: &Events) {
        // One that passed is not there to be kept.
        if self.is_durable
            && !body.is_empty()
            && let Err(error) = self.results.keep(call, body, since_epoch())
        {
            report(events, "results", &error);
        }
    }

    /// The stored session of this wire id, if it was not used since the start. It is dormant no
    /// longer.
    pub(crate) fn wake(&self, id: &str) -> Option<Stored> {
        let digest = self.digest(id);
        self.dormant.lock().remove(&digest)?;
        let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
        open_session(&value)
    }

    /// What became of the session's calls of before the start, and the last frame of its client
    /// that was taken then. That note lives on with the session.
    pub(crate) fn past_calls(&self, session: SessionDigest) -> (Vec<PastCall>, u64) {
        let mut past = self.past.lock();
        let mut taken = 0;
        if let Some(entries) = past.get_mut(&session) {
            entries.retain(|entry| {
                let is_call = entry.call != taken_of(session);
                if !is_call {
                    taken = entry.note;
                }
                is_call
            });
        }
        let entries = past.get(&session).map(Vec::as_slice).unwrap_or_default();
        let fate = |entry: &CallEntry| match entry.state {
            CallState::Accepted => Some(Past::NotSent),
            CallState::Sent { .. } => Some(Past::Sent),
            CallState::Answered { answer } => {
                let body = self.results.body(entry.call).ok().flatten();
                Some(body.map_or_else(|| fate_of(answer), Past::Answered))
            }
            CallState::Settled => None,
        };
        let calls = entries
            .iter()
            .filter_map(|entry| {
                Some(PastCall {
                    number: entry.call.number,
                    frame: entry.note,
                    fate: fate(entry)?,
                })
            })
            .collect();
        (calls, taken)
    }

    /// Whether a session is at rest that speaks to an endpoint like this.
    pub(crate) fn is_any_dormant(&self, speaks_to: impl Fn(Option<&str>) -> bool) -> bool {
        let dormant = self.dormant.lock();
        dormant
            .values()
            .any(|held| speaks_to(held.endpoint.as_deref()))
    }

    /// The session is over: nothing of it comes back.
    pub(crate) fn forget(&self, session: SessionDigest, events: &Events) {
        if !self.is_durable {
            return;
        }
        self.write(&[Op::remove(Kind::Session, key_of(session))], &[], events);
        let past = self.past.lock().remove(&session).unwrap_or_default();
        let mut over: Vec<CallId> = past.iter().map(|entry| entry.call).collect();
        over.extend(self.answered.lock().take_session(session));
        over.push(taken_of(session));
        self.settle(&over, events);
        if let Err(error) = self.results.forget_session(session) {
            report(events, "results", &error);
        }
    }

    fn settle(&self, calls: &[CallId], events: &Events) {
        for some in calls.chunks(1024) {
            let settled: Vec<CallEntry> = some
                .iter()
                .map(|call| CallEntry {
                    call: *call,
                    state: CallState::Settled,
                    note: 0,
                })
                .collect();
            self.write(&[], &settled, events);
        }
    }

    /// Drops results and old calls that nobody may ask for any more. Called now and then.
    pub(crate) fn age(&self, up: Duration, events: &Events) {
        if !self.is_durable {
            return;
        }
        let gone = self
            .results
            .forget_before(since_epoch().saturating_sub(AGE_MAX));
        match gone {
            // Some are of before the start.
            Ok(calls) => self.settle(&calls, events),
            Err(error) => report(events, "results", &error),
        }
        let aged = self.answered.lock().take_before(up.saturating_sub(AGE_MAX));
        self.settle(&aged, events);
        if up > AGE_MAX {
            let past: Vec<CallId> = self
                .past
                .lock()
                .drain()
                .flat_map(|(_, held)| held)
                .map(|entry| entry.call)
                .collect();
            self.settle(&past, events);
        }
    }

    /// The stored sessions that were not used since the start.
    pub(crate) fn dormant(&self) -> HashSet<SessionDigest> {
        self.dormant.lock().keys().copied().collect()
    }

    /// How many stored sessions were not used since the start.
    pub(crate) fn dormant_len(&self) -> usize {
        self.dormant.lock().len()
    }

    /// Sessions that were not used for longer than `idle`: with the values from which to end them.
    pub(crate) fn expired(&self, idle: Duration) -> Vec<(SessionDigest, Stored)> {
        let before = since_epoch().saturating_sub(idle);
        self.take_dormant(|found| found.used < before)
    }

    /// Sessions of the socket whose clients did not come back since the start, in the same way.
    pub(crate) fn abandoned(&self) -> Vec<(SessionDigest, Stored)> {
        self.take_dormant(|found| found.kind == SessionKind::Socket)
    }

    fn take_dormant(&self, is_due: impl Fn(&Dormant) -> bool) -> Vec<(SessionDigest, Stored)> {
        let mut dormant = self.dormant.lock();
        let old: Vec<SessionDigest> = dormant
            .iter()
            .filter(|(_, found)| is_due(found))
            .map(|(digest, _)| *digest)
            .collect();
        old.into_iter()
            .filter_map(|digest| {
                dormant.remove(&digest);
                let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
                Some((digest, open_session(&value)?))
            })
            .collect()
    }

    /// The dormant session that was not used for longest, taken out.
    pub(crate) fn oldest(&self) -> Option<(SessionDigest, Stored)> {
        let mut dormant = self.dormant.lock();
        let digest = dormant
            .iter()
            .min_by_key(|(_, found)| found.used)
            .map(|(digest, _)| *digest)?;
        dormant.remove(&digest);
        let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
        Some((digest, open_session(&value)?))
    }

    /// Waits until all is on the disk; for an orderly stop.
    pub(crate) fn sync(&self, events: &Events) {
        if let Err(error) = self.store.sync() {
            report(events, "records", &error);
        }
        if let Err(error) = self.journal.sync() {
            report(events, "journal", &error);
        }
    }
}

/// The journal's note of the last frame that was taken stands under this number, which no call has:
/// calls are numbered from the start's base.
fn taken_of(session: SessionDigest) -> CallId {
    CallId { session, number: 0 }
}

/// Counts this start.
fn next_start(store: &dyn Store) -> Result<u64, springline_store::StoreError> {
    let held = store.get(Kind::Meta, STARTS)?;
    let last = held
        .and_then(|value| value.as_ref().try_into().ok())
        .map_or(0, u64::from_be_bytes);
    let start = last.saturating_add(1);
    store.apply(&[Op::put(Kind::Meta, STARTS, start.to_be_bytes().to_vec())])?;
    Ok(start)
}

/// What an answer on a stream says of its call. Errors of ours are short, and only they can say that
/// it did not run.
fn answer_of(body: &Bytes) -> Answer {
    let is_short = body.len() <= FAULT_LEN_MAX;
    let message = is_short
        .then(|| Message::parse(body.clone()).ok())
        .flatten();
    let fault = message.as_ref().and_then(Fault::of_response);
    match fault.map(|fault| fault.outcome) {
        None => Answer::Server,
        Some(Outcome::NotExecuted) => Answer::NotExecuted,
        Some(Outcome::Unknown) => Answer::Unknown,
        Some(Outcome::Executed) => Answer::Executed,
    }
}

/// What a client hears of an answer that is not held any more.
fn fate_of(answer: Answer) -> Past {
    match answer {
        Answer::Server | Answer::Executed => Past::Lost,
        Answer::NotExecuted => Past::NotSent,
        Answer::Unknown => Past::Sent,
    }
}

pub(super) fn since_epoch() -> Duration {
    clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Something could not be made durable. Calls go on, but for those that the journal holds as not sent: a
/// client is better served without the promise for the next crash than not at all, and the operator hears
/// of it.
fn report(events: &Events, what: &'static str, error: &dyn std::error::Error) {
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

pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use springline_proto::call::{CallKey, Generation};
    use springline_proto::error::FaultKind;
    use springline_store::{MemoryJournal, Seq};

    use super::*;

    #[test]
    fn a_lost_answer_of_ours_is_not_told_as_a_lost_result() {
        let of = |kind| answer_of(&Fault::new(kind).response(b"1"));
        assert_eq!(of(FaultKind::ServerUnreachable), Answer::NotExecuted);
        assert_eq!(fate_of(of(FaultKind::ServerUnreachable)), Past::NotSent);
        assert_eq!(fate_of(of(FaultKind::OutcomeUnknown)), Past::Sent);
        assert_eq!(fate_of(of(FaultKind::ResultLost)), Past::Lost);
        let server = br#"{"jsonrpc":"2.0","id":1,"error":{"code":-31001,"message":"m"}}"#;
        assert_eq!(answer_of(&server[..].into()), Answer::Server);
    }

    const SESSION: SessionDigest = SessionDigest([7; 16]);

    /// A journal that takes no entry any more once it is full.
    #[derive(Default)]
    struct Filling(MemoryJournal, std::sync::atomic::AtomicBool);

    impl Journal for Filling {
        fn append(&self, entries: &[CallEntry]) -> Result<Seq, JournalError> {
            if self.1.load(std::sync::atomic::Ordering::SeqCst) {
                let cause = "no space".into();
                return Err(JournalError::Failed { cause });
            }
            self.0.append(entries)
        }

        fn sync(&self) -> Result<Seq, JournalError> {
            self.0.sync()
        }

        fn synced(&self) -> Seq {
            self.0.synced()
        }

        fn last(&self, call: CallId) -> Option<CallEntry> {
            self.0.last(call)
        }

        fn open_calls(&self) -> usize {
            self.0.open_calls()
        }

        fn entries(&self) -> Vec<CallEntry> {
            self.0.entries()
        }
    }

    /// A call is accepted and leaves; says whether it may.
    fn goes(rest: &Rest, number: u64, fill: impl FnOnce()) -> bool {
        let events = Events::new(100);
        let mark = Mark::Accepted { frame: 0 };
        let accepted = [SessionOutput::Mark { number, mark }];
        rest.keep_session(SESSION, |_| Bytes::new(), &accepted, &events);
        fill();
        let session = SessionKey(1);
        let sent = [UpstreamOutput::Sent {
            key: CallKey { session, number },
            generation: Generation(1),
        }];
        let place = RecordPlace {
            owner: SESSION,
            server: "s",
            identity: &[0; 32],
            has_heir: &AtomicBool::new(false),
        };
        rest.keep_upstream(&place, |_| Some(SESSION), &sent, &events)
            .is_ok()
    }

    #[test]
    fn a_call_that_the_journal_holds_as_not_sent_does_not_leave_when_it_cannot_be_told() {
        let journal = Arc::new(Filling::default());
        let mut rest = Rest::in_memory().unwrap();
        rest.journal = Arc::clone(&journal) as Arc<dyn Journal>;
        rest.is_durable = true;
        let fill = || journal.1.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(goes(&rest, 1, || {}));
        assert!(
            !goes(&rest, 2, fill),
            "after a crash it would count as not sent"
        );
        assert!(goes(&rest, 3, || {}), "nothing is known of it: unknown");
    }
}
