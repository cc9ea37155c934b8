//! Connections that the client opens to listen: GET streams and the pipe.
//!
//! Owns how a client comes back to a stream (2025-11-25 basic/transports, Resumability and
//! Redelivery). Must not know what goes on a stream.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::port::{Downstream, Part, Past};
use super::stream::{Outlet, Reader};
use super::{Phase, Session};
use crate::call::{Connection, Moment};
use crate::error::{Fault, FaultKind, Outcome, error_response, plain_error};
use crate::redelivery::{Resume, StreamId};
use crate::seldom::Unset;
use crate::upstream;

/// Answers of ours that are remembered after their events are dropped; a few bytes each.
const FAULTS_MAX: usize = 1000;

/// What was answered on streams in the place of a server: a lost answer of that kind must not be
/// taken for a lost result, for its call may never have run.
#[derive(Default)]
pub(super) struct Faults {
    known: BTreeMap<u64, Known>,
    /// Of calls up to this number nothing is certain any more.
    doubt: u64,
    /// Calls up to this number are of before a restart.
    before: u64,
}

/// One of them.
struct Known {
    kind: FaultKind,
    outcome: Outcome,
    server: Option<Arc<str>>,
}

impl Unset for Faults {
    fn unset() -> &'static Self {
        static NONE: Faults = Faults {
            known: BTreeMap::new(),
            doubt: 0,
            before: 0,
        };
        &NONE
    }
}

impl Faults {
    pub(super) fn note(&mut self, number: u64, fault: &Fault) {
        let known = Known {
            kind: fault.kind,
            outcome: fault.outcome,
            server: fault.server.clone(),
        };
        self.known.insert(number, known);
        if self.known.len() > FAULTS_MAX
            && let Some((oldest, _)) = self.known.pop_first()
        {
            self.doubt = self.doubt.max(oldest);
        }
    }

    /// Calls up to this number are of before a restart: what the journal does not tell of them, nobody
    /// knows.
    pub(super) fn doubt_up_to(&mut self, number: u64) {
        self.before = self.before.max(number);
    }

    /// What a client hears of an answer that is held no longer; `is_known` if the journal tells that
    /// there was one.
    fn of(&self, number: u64, is_known: bool) -> Fault {
        match self.known.get(&number) {
            Some(known) => Fault::new(known.kind)
                .outcome(known.outcome)
                .at(known.server.as_ref()),
            None if number <= self.before && !is_known => {
                Fault::new(FaultKind::OutcomeUnknown).because(RESTARTED)
            }
            None if number <= self.doubt => Fault::new(FaultKind::OutcomeUnknown)
                .because("it is too long ago for the gateway to know how the call ended"),
            None => Fault::new(FaultKind::ResultLost),
        }
    }
}

/// Why the gateway does not know the outcome of a call that was under way when it ended.
const RESTARTED: &str = "the gateway was restarted while the call was under way";

/// The one answer to every cursor that is not of this session, so that nothing can be probed.
const UNKNOWN_CURSOR: &str = "Last-Event-ID names no event of this session";

impl Session {
    /// The client opened a GET stream, or attached its pipe.
    pub(super) fn on_stream_opened(
        &mut self,
        now: Moment,
        connection: Connection,
        cursor: Option<&str>,
    ) {
        if self.downstream == Downstream::Pipe {
            self.attach(connection);
            self.flush_held(now);
            return;
        }
        match cursor.map(|cursor| self.redelivery.resume(cursor)) {
            None => self.open_main(now, connection, None),
            Some(Resume::After(StreamId::GET, ordinal)) => {
                self.open_main(now, connection, Some(ordinal));
            }
            Some(Resume::After(stream, ordinal)) => self.resume(connection, stream, ordinal),
            Some(Resume::Complete) => {
                self.put_stream(connection, Part::Begin);
                self.put_stream(connection, Part::End);
            }
            Some(Resume::Lost { stream, id }) => self.say_lost(connection, stream, &id),
            Some(Resume::Unknown) => {
                let body = error_response(None, &plain_error(-32600, UNKNOWN_CURSOR));
                self.put_stream(connection, Part::Refuse { status: 400, body });
            }
        }
    }

    /// The client closed a GET stream, or its pipe or socket is gone.
    pub(super) fn on_stream_closed(&mut self, now: Moment, connection: Connection) {
        if self.main == Some(connection) {
            self.main = None;
            self.tell_attached(false);
            self.on_socket_cut(now);
        }
        if let Some(number) = self.resumed.remove(&connection)
            && let Some(pending) = self.pending.get_mut(&number)
            && let Outlet::Stream(_, reader) = &mut pending.outlet
            && *reader == Some(Reader::Get(connection))
        {
            *reader = None;
            pending.passing.leave(Reader::Get(connection));
        }
    }

    pub(super) fn attach(&mut self, connection: Connection) {
        let was_attached = self.main.replace(connection).is_some();
        if !was_attached {
            self.tell_attached(true);
        }
    }

    /// Opens the standalone GET stream; a newer one replaces the older.
    fn open_main(&mut self, now: Moment, connection: Connection, after: Option<u64>) {
        if let Some(older) = self.main {
            self.put_stream(older, Part::End);
        }
        self.attach(connection);
        self.put_stream(connection, Part::Begin);
        match after {
            None if self.has_priming_event() => {
                let part = self.priming_event(StreamId::GET);
                self.put_stream(connection, part);
            }
            None => {}
            Some(ordinal) => self.replay(connection, StreamId::GET, ordinal),
        }
        self.flush_held(now);
    }

    /// Goes on with the answer stream of a request on another connection; the one before it ends.
    fn resume(&mut self, connection: Connection, stream: StreamId, ordinal: u64) {
        self.put_stream(connection, Part::Begin);
        self.replay(connection, stream, ordinal);
        let number = self.pending.iter().find_map(|(number, pending)| {
            matches!(pending.outlet, Outlet::Stream(own, _) if own == stream).then_some(*number)
        });
        let Some(number) = number.filter(|_| !self.redelivery.is_complete(stream)) else {
            self.put_stream(connection, Part::End);
            return;
        };
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        let reader = Some(Reader::Get(connection));
        let before = std::mem::replace(&mut pending.outlet, Outlet::Stream(stream, reader));
        let mut passing = pending.passing;
        pending.passing.leave_all();
        self.resumed.insert(connection, number);
        if let Outlet::Stream(_, Some(older)) = before {
            if let Reader::Get(older) = older {
                self.resumed.remove(&older);
            }
            // In the midst of a large event its end would be no end.
            let ends = if passing.leave(older) {
                Part::Cut
            } else {
                Part::End
            };
            self.put_reader(older, ends);
        }
    }

    fn replay(&mut self, connection: Connection, stream: StreamId, ordinal: u64) {
        for (id, data) in self.redelivery.after(stream, ordinal) {
            self.put_stream(
                connection,
                Part::Event {
                    id: Some(id),
                    retry: None,
                    data,
                },
            );
        }
    }

    /// The answer that this stream carried is not held any more.
    fn say_lost(&mut self, connection: Connection, stream: StreamId, id: &[u8]) {
        self.put_stream(connection, Part::Begin);
        if !id.is_empty() {
            let number = stream.number();
            let fault = match self.before.calls.get(&number) {
                Some(Past::NotSent) => Fault::new(FaultKind::GatewayRestarted),
                Some(Past::Sent) => Fault::new(FaultKind::OutcomeUnknown).because(RESTARTED),
                Some(Past::Lost) => Fault::new(FaultKind::ResultLost),
                Some(Past::Answered(_)) => self.faults.of(number, true),
                None => self.faults.of(number, false),
            };
            let data = self.placed(fault).response(id).into();
            self.put_stream(
                connection,
                Part::Event {
                    id: None,
                    retry: None,
                    data,
                },
            );
        }
        self.put_stream(connection, Part::End);
    }

    fn tell_attached(&mut self, attached: bool) {
        if self.phase == Phase::Fresh {
            return;
        }
        for server in self.servers() {
            self.tell(server, upstream::Input::Attached(attached));
        }
    }
}
