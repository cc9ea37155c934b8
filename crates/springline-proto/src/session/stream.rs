//! Where a message to the client goes: the answer to a POST, a GET stream or the pipe.
//!
//! Owns the streams of a session and what is held for a client without one. Must not know what a
//! message means. DESIGN.md, section 5, "HTTP answers", has the rules.

use std::collections::VecDeque;
use std::time::Duration;

use super::port::{Accept, Downstream, Event, Input, Mark, Output, Part};
use super::{Phase, Session};
use crate::call::{ClientExchange, Connection, Moment};
use crate::error::{Fault, FaultKind, error_response, plain_error};
use crate::json::Pieces;
use crate::method::Method;
use crate::redelivery::StreamId;
use crate::seldom::{Seldom, Unset};

/// After what time a client comes back to a stream that was cut.
const RETRY: Duration = Duration::from_secs(1);

/// Where the answer to a pending request goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outlet {
    /// To the pipe.
    Pipe,
    /// To the socket.
    Socket {
        /// The number of the call, if the journal follows it.
        call: Option<u64>,
        /// The client's frame that it answers.
        frame: u64,
    },
    /// To a POST that is not answered yet.
    Post(ClientExchange, Accept),
    /// To an event stream, which someone reads or may come back to.
    Stream(StreamId, Option<Reader>),
    /// Nowhere: the connection broke before an event id was sent, and that was the client's answer
    /// (I1).
    Gone,
}

/// Who reads the answer stream of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reader {
    /// The POST itself.
    Post(ClientExchange),
    /// A GET that resumed it.
    Get(Connection),
}

/// What waits for a stream.
#[derive(Default)]
pub(super) struct Holding {
    messages: VecDeque<Held>,
    bytes: usize,
}

impl Unset for Holding {
    fn unset() -> &'static Self {
        static NONE: Holding = Holding {
            messages: VecDeque::new(),
            bytes: 0,
        };
        &NONE
    }
}

/// A message that waits for a stream.
struct Held {
    /// An answer is never dropped.
    is_answer: bool,
    /// It belongs to no call: it waits for `notifications/initialized`.
    is_apart: bool,
    data: Pieces,
}

impl Session {
    /// The connection of a POST broke. The call goes on (2025-11-25 basic/transports: a disconnect
    /// is not a cancellation).
    pub(super) fn on_exchange_gone(&mut self, now: Moment, exchange: ClientExchange) {
        let number = self.pending.by_exchange(exchange);
        let Some(pending) = number.and_then(|number| self.pending.get_mut(&number)) else {
            return;
        };
        pending.decide_at = None;
        pending.passing.leave(Reader::Post(exchange));
        pending.outlet = match pending.outlet {
            Outlet::Stream(stream, _) if self.redelivery.has_cursor(stream) => {
                Outlet::Stream(stream, None)
            }
            Outlet::Stream(stream, _) => {
                self.redelivery.forget(stream);
                Outlet::Gone
            }
            Outlet::Pipe | Outlet::Socket { .. } | Outlet::Post(..) | Outlet::Gone => Outlet::Gone,
        };
        if self.phase == Phase::Opening && pending.method == Method::Initialize {
            // The session's id was in the answer that nobody heard.
            self.close(now, &Fault::new(FaultKind::SessionEnded));
        }
    }

    /// Something that came after the end of the session.
    pub(super) fn on_late(&mut self, input: &Input) {
        let refusal = || Part::Refuse {
            status: 404,
            body: error_response(None, &plain_error(-32001, "Session not found")),
        };
        if let Input::Message {
            exchange: Some(exchange),
            ..
        } = input
        {
            self.put_exchange(*exchange, refusal());
        } else if let Input::StreamOpened { connection, .. } = input
            && self.downstream == Downstream::Http
        {
            self.put_stream(*connection, refusal());
        } else if let Input::Attached { connection, .. } = input {
            self.put_stream(*connection, Part::End);
        }
    }

    /// Gives the answer to a request that is not pending any more.
    pub(super) fn give(&mut self, now: Moment, outlet: &Outlet, body: Pieces) {
        match *outlet {
            Outlet::Gone => {}
            Outlet::Pipe => self.put_pipe(body, true),
            Outlet::Socket { call, frame } => self.answer_frame(call, frame, body),
            Outlet::Post(exchange, _) => self.put_exchange(exchange, Part::Json(body)),
            Outlet::Stream(stream, reader) => {
                self.mark(stream.number(), Mark::Answered(body.clone()));
                let id = self
                    .redelivery
                    .push(now, &self.settings, stream, &body, true);
                if let Some(reader) = reader {
                    self.put_reader(
                        reader,
                        Part::Event {
                            id: Some(id),
                            retry: None,
                            data: body,
                        },
                    );
                    self.put_reader(reader, Part::End);
                }
            }
        }
    }

    /// Ends the place of a cancelled request without an answer. A stream without a cursor ends
    /// quietly in the official SDKs; a client that takes JSON alone gets 202, which they take as
    /// well.
    pub(super) fn end_quietly(&mut self, now: Moment, outlet: &Outlet) {
        match *outlet {
            Outlet::Gone | Outlet::Pipe => {}
            Outlet::Socket { call, .. } => self.settle_calls(call),
            Outlet::Post(exchange, Accept::Json) => self.put_exchange(exchange, Part::Accepted),
            Outlet::Post(exchange, Accept::Both) => {
                self.put_exchange(exchange, Part::Begin);
                self.put_exchange(exchange, Part::End);
            }
            Outlet::Stream(stream, reader) => {
                self.mark(stream.number(), Mark::Settled);
                self.redelivery.cancel(now, &self.settings, stream);
                if let Some(reader) = reader {
                    self.put_reader(reader, Part::End);
                }
            }
        }
    }

    /// Answers at once what never became pending.
    pub(super) fn say(&mut self, exchange: Option<ClientExchange>, body: impl Into<Pieces>) {
        match exchange {
            Some(exchange) => self.put_exchange(exchange, Part::Json(body.into())),
            None => self.put_pipe(body.into(), true),
        }
    }

    /// A notification or an answer of the client needs no more than this.
    pub(super) fn accept(&mut self, exchange: Option<ClientExchange>) {
        if let Some(exchange) = exchange {
            self.put_exchange(exchange, Part::Accepted);
        }
    }

    /// Turns the answer to a POST into a stream.
    pub(super) fn begin_stream(&mut self, number: u64) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        pending.decide_at = None;
        let Outlet::Post(exchange, Accept::Both) = pending.outlet else {
            return;
        };
        let stream = StreamId::of(number);
        self.redelivery.open(stream, pending.id.as_slice());
        pending.outlet = Outlet::Stream(stream, Some(Reader::Post(exchange)));
        self.put_exchange(exchange, Part::Begin);
        if self.has_priming_event() {
            let part = self.priming_event(stream);
            self.put_exchange(exchange, part);
        }
    }

    /// Whether a message for this request can reach the client on the request's own stream.
    pub(super) fn has_own_stream(&self, number: u64) -> bool {
        self.pending
            .get(&number)
            // Nothing comes between the stretches of an answer.
            .filter(|pending| !pending.passing.has_begun())
            .is_some_and(|pending| match pending.outlet {
                Outlet::Pipe | Outlet::Socket { .. } | Outlet::Stream(..) => true,
                Outlet::Post(_, accept) => {
                    accept == Accept::Both && pending.method != Method::Initialize
                }
                Outlet::Gone => false,
            })
    }

    /// Whether someone reads the request's own stream now, or would if it began.
    pub(super) fn is_read(&self, number: u64) -> bool {
        self.has_own_stream(number)
            && self
                .pending
                .get(&number)
                .is_some_and(|pending| !matches!(pending.outlet, Outlet::Stream(_, None)))
    }

    /// Sends a message on the stream of a pending request, which begins if need be. False if it has
    /// none.
    pub(super) fn send_on(&mut self, now: Moment, number: u64, data: &Pieces) -> bool {
        if !self.has_own_stream(number) {
            return false;
        }
        self.begin_stream(number);
        match self.pending.get(&number).map(|pending| &pending.outlet) {
            Some(Outlet::Pipe | Outlet::Socket { .. }) => self.put_pipe(data.clone(), false),
            Some(&Outlet::Stream(stream, reader)) => {
                let id = self
                    .redelivery
                    .push(now, &self.settings, stream, data, false);
                if let Some(reader) = reader {
                    let data = data.clone();
                    self.put_reader(
                        reader,
                        Part::Event {
                            id: Some(id),
                            retry: None,
                            data,
                        },
                    );
                }
            }
            Some(Outlet::Post(..) | Outlet::Gone) | None => return false,
        }
        true
    }

    /// Whether a message outside any call reaches the client now.
    pub(super) fn is_reachable(&self) -> bool {
        self.initialized && self.main.is_some()
    }

    /// Sends a message outside any call, or holds it until that is possible.
    pub(super) fn send_apart(&mut self, now: Moment, data: Pieces) {
        match self.main {
            Some(connection) if self.initialized => self.put_main(now, connection, data),
            _ => self.hold(Held {
                is_answer: false,
                is_apart: true,
                data,
            }),
        }
    }

    /// Sends what was held, if that is possible now.
    pub(super) fn flush_held(&mut self, now: Moment) {
        let Some(connection) = self.main else {
            return;
        };
        let Some(mut holding) = self.held.take() else {
            return;
        };
        let mut later = VecDeque::new();
        while let Some(held) = holding.messages.pop_front() {
            if !held.is_apart || self.initialized {
                self.put_main(now, connection, held.data);
            } else {
                later.push_back(held);
            }
        }
        if !later.is_empty() {
            self.held = Seldom::from(Holding {
                bytes: later.iter().map(|held: &Held| held.data.len()).sum(),
                messages: later,
            });
        }
    }

    pub(super) fn mark(&mut self, number: u64, mark: Mark) {
        self.out.push_back(Output::Mark { number, mark });
    }

    pub(super) fn put_exchange(&mut self, exchange: ClientExchange, part: Part) {
        self.out.push_back(Output::ToExchange { exchange, part });
    }

    pub(super) fn put_stream(&mut self, connection: Connection, part: Part) {
        self.out.push_back(Output::ToStream { connection, part });
    }

    pub(super) fn put_reader(&mut self, reader: Reader, part: Part) {
        match reader {
            Reader::Post(exchange) => self.put_exchange(exchange, part),
            Reader::Get(connection) => self.put_stream(connection, part),
        }
    }

    pub(super) fn put_main(&mut self, now: Moment, connection: Connection, data: Pieces) {
        if self.downstream == Downstream::Socket {
            self.put_pipe(data, false);
            return;
        }
        let id = (self.downstream == Downstream::Http).then(|| {
            self.redelivery
                .push(now, &self.settings, StreamId::GET, &data, false)
        });
        self.put_stream(
            connection,
            Part::Event {
                id,
                retry: None,
                data,
            },
        );
    }

    fn put_pipe(&mut self, data: Pieces, is_answer: bool) {
        if self.downstream == Downstream::Socket {
            self.put_frame(data, is_answer);
            return;
        }
        match self.main {
            Some(connection) => {
                self.put_stream(
                    connection,
                    Part::Event {
                        id: None,
                        retry: None,
                        data,
                    },
                );
            }
            None => self.hold(Held {
                is_answer,
                is_apart: false,
                data,
            }),
        }
    }

    /// Keeps a message for later. Beyond the bounds the oldest one that is no answer is dropped;
    /// answers are bounded by the requests that were pending.
    fn hold(&mut self, held: Held) {
        let holding = &mut *self.held;
        holding.bytes = holding.bytes.saturating_add(held.data.len());
        holding.messages.push_back(held);
        loop {
            let messages = holding.messages.iter().filter(|held| !held.is_answer);
            let fits = holding.bytes <= self.settings.redelivery_bytes_max;
            if messages.count() <= self.settings.held_max && fits {
                return;
            }
            let at = holding.messages.iter().position(|held| !held.is_answer);
            let Some(held) = at.and_then(|at| holding.messages.remove(at)) else {
                return;
            };
            holding.bytes = holding.bytes.saturating_sub(held.data.len());
            self.out.push_back(Output::Emit(Event::Dropped {
                reason: "no stream was open",
            }));
        }
    }

    pub(super) fn has_priming_event(&self) -> bool {
        self.version
            .is_some_and(crate::version::Version::has_priming_event)
    }

    pub(super) fn priming_event(&mut self, stream: StreamId) -> Part {
        let id = Some(self.redelivery.prime(stream));
        Part::Event {
            id,
            retry: Some(RETRY),
            data: Pieces::new(),
        }
    }
}
