//! What a turn of a machine asks to be kept, and what is known of calls after a restart.
//!
//! Owns which call the journal is told of, and how far it has come; which body is kept for a client, and
//! for how long. Must not know how a value is laid out, nor whether it could be written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use springline_proto::call::SessionKey;
use springline_proto::error::{Fault, Outcome};
use springline_proto::message::Message;
use springline_proto::session::{Mark, Output as SessionOutput, Past, PastCall};
use springline_proto::upstream::{Event as UpstreamEvent, Output as UpstreamOutput};
use springline_store::{
    Answer, CallEntry, CallId, CallState, JournalError, Kind, Noted, Op, SessionDigest,
};

use super::claim::{upstream_key, upstream_value};
use super::rest::{AGE_MAX, Rest, report, since_epoch};
use super::stored::key_of;
use crate::clock;
use crate::event::Events;

/// Longer than any error response of ours to an ordinary id.
const FAULT_LEN_MAX: usize = 8 * 1024;

/// Where the record of an upstream stands, and what it is marked with.
pub(crate) struct RecordPlace<'a> {
    /// Whom the upstream belongs to.
    pub(crate) owner: SessionDigest,
    pub(crate) server: &'a str,
    /// Tells the definition of its entry, credentials included.
    pub(crate) identity: &'a dyn Fn() -> [u8; 32],
    /// Whether the record is another's by now.
    pub(crate) has_heir: &'a AtomicBool,
}

/// What becomes of calls in one turn of a session.
#[derive(Default)]
struct Placed {
    /// New, with the frame of the client that brought each.
    accepted: SmallVec<[(CallId, u64); 1]>,
    settled: SmallVec<[CallId; 1]>,
    /// Answered, and too old to be asked for.
    over: Vec<CallId>,
}

impl Rest {
    /// Makes durable what a session's outputs ask for, in one write each for records and journal.
    /// `at_rest` makes the value that is stored from a record.
    ///
    /// # Errors
    /// The journal does not have its entries, for this reason: they wait, or were refused.
    pub(crate) fn keep_session(
        &self,
        session: SessionDigest,
        at_rest: impl Fn(&[u8]) -> Bytes,
        outputs: &[SessionOutput],
        events: &Events,
    ) -> Result<(), Arc<str>> {
        if !self.is_durable {
            return Ok(());
        }
        let mut ops = Vec::new();
        let mut entries = SmallVec::<[CallEntry; 1]>::new();
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
                | SessionOutput::Held(_)
                | SessionOutput::Emit(_)
                | SessionOutput::Closed => {}
            }
        }
        let noted = self.write(&ops, &entries, events).journal;
        self.settle(&turn.over, events);
        if let Err(error) = self.results.forget(&turn.settled) {
            report(events, "results", &error);
        }
        match noted {
            Ok(Noted::Kept) => Ok(()),
            Ok(Noted::Pending { cause }) => Err(cause),
            Err(error) => Err(error.to_string().into()),
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
        let mut entries = SmallVec::<[CallEntry; 1]>::new();
        let mut kept = None;
        for output in outputs {
            match output {
                UpstreamOutput::Persist(_) | UpstreamOutput::Forget if is_anothers => {}
                UpstreamOutput::Persist(record) => {
                    let has_session = record.route.session_id.is_some();
                    kept = has_session.then_some(record.generation);
                    let value = upstream_value(&(place.identity)(), record);
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
        written.journal.map(drop)
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
}

/// The journal's note of the last frame that was taken stands under this number, which no call has:
/// calls are numbered from the start's base.
fn taken_of(session: SessionDigest) -> CallId {
    CallId { session, number: 0 }
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

#[cfg(test)]
mod tests {
    use springline_proto::call::{CallKey, Generation};
    use springline_proto::error::FaultKind;
    use springline_store::{Journal, MemoryJournal, Seq, SteadyJournal};

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
        let noted = rest.keep_session(SESSION, |_| Bytes::new(), &accepted, &events);
        assert_eq!(noted.is_ok(), rest.journal.failure().is_none());
        fill();
        let session = SessionKey(1);
        let sent = [UpstreamOutput::Sent {
            key: CallKey { session, number },
            generation: Generation(1),
        }];
        let place = RecordPlace {
            owner: SESSION,
            server: "s",
            identity: &|| [0; 32],
            has_heir: &AtomicBool::new(false),
        };
        rest.keep_upstream(&place, |_| Some(SESSION), &sent, &events)
            .is_ok()
    }

    #[test]
    fn a_call_that_the_journal_holds_as_not_sent_does_not_leave_when_it_cannot_be_told() {
        let journal = Arc::new(Filling::default());
        let mut rest = Rest::in_memory().unwrap();
        rest.journal = SteadyJournal::once(Arc::clone(&journal) as Arc<dyn Journal>);
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
