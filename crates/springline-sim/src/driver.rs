//! The drivers of the upstream machines, as far as a machine can tell: what it wants is done,
//! lost, late or refused. Checks what leaves (I3, I6, I7, I14).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{ExchangeId, Generation, Moment, SessionKey};
use springline_proto::message::{Kind, Message};
use springline_proto::upstream::{
    End, Event as Told, Input, NO_HANDSHAKE, Output, Purpose, Route, SessionEvent,
};

use crate::book::Violation;
use crate::plan::Fault;
use crate::server::{Carry, Request};
use crate::world::{Event, Post, Running, World};

/// A child that waits for longer than this waits for room, too, and not for its turn alone.
const CROWDED_AFTER: Duration = Duration::from_millis(4_500);

impl World {
    pub(crate) fn take_output(&mut self, at: usize, output: Output) -> Result<(), Violation> {
        self.note_output(at, &output);
        if let Output::Send { exchange, .. } = &output
            && self.withholds(at, *exchange)
        {
            return Ok(());
        }
        self.do_output(at, output)
    }

    fn do_output(&mut self, at: usize, output: Output) -> Result<(), Violation> {
        match output {
            Output::Reserve { generation } => {
                self.reserve(at, generation);
                Ok(())
            }
            Output::Persist(record) => self.keep_upstream(at, Some(&record)),
            Output::Forget => self.keep_upstream(at, None),
            Output::Sent { key, generation } => self.keep_sent(at, key, generation),
            Output::Open { generation } => {
                self.check_licence(at)?;
                self.open(at, generation)
            }
            Output::Moved { key, server, moved } => {
                self.moved(at, key, &server, moved);
                Ok(())
            }
            Output::Send {
                generation,
                exchange,
                body,
                purpose,
                route,
                stretches,
                ..
            } => {
                let body = body.to_bytes();
                self.check_send(at, generation, purpose, &body, &route)?;
                let carry = Carry::Post(purpose, body, stretches);
                self.send(at, generation, exchange, route, carry);
                Ok(())
            }
            Output::Resume {
                generation,
                exchange,
                last_event_id,
                delay,
                route,
            } => {
                let carry = Carry::Resume(last_event_id);
                self.follow(at, generation, exchange, route, carry, delay)
            }
            Output::Listen {
                generation,
                exchange,
                delay,
                route,
                ..
            } => self.follow(at, generation, exchange, route, Carry::Listen, delay),
            Output::Abort { exchange, .. } => {
                self.seats[at].live.remove(&exchange);
                Ok(())
            }
            Output::RefreshCredentials => {
                self.read_again(at);
                Ok(())
            }
            Output::End {
                generation,
                delete,
                route,
            } => self.end(at, generation, delete, route),
            Output::ToSession {
                session,
                server,
                event,
            } => self.tell(at, session, server, event),
            Output::Emit(event) => self.judge_event(at, &event),
        }
    }

    fn tell(
        &mut self,
        at: usize,
        session: SessionKey,
        server: Arc<str>,
        event: SessionEvent,
    ) -> Result<(), Violation> {
        if self.stack.is_empty() {
            return self.hear(at, session, event);
        }
        // What its session once said reaches each upstream first, whichever it comes to.
        if let SessionEvent::Failed { key, fault, .. } = &event
            && fault.cause.as_deref() == Some(NO_HANDSHAKE)
        {
            let what = format!("#{at} has {key} ahead of every handshake");
            return Err(Violation::new("I6", what));
        }
        self.report(at, session, server, event)
    }

    /// Opens an event stream by GET.
    fn follow(
        &mut self,
        at: usize,
        generation: Generation,
        exchange: ExchangeId,
        route: Route,
        carry: Carry,
        delay: Duration,
    ) -> Result<(), Violation> {
        self.check_route(at, generation, &route)?;
        self.seats[at].live.insert(exchange, generation);
        self.carry(at, generation, exchange, route, carry, delay);
        Ok(())
    }

    fn read_again(&mut self, at: usize) {
        let when = self.now.after(self.delay());
        self.put(when, Event::Read(at));
    }

    fn send(
        &mut self,
        at: usize,
        generation: Generation,
        exchange: ExchangeId,
        route: Route,
        carry: Carry,
    ) {
        self.seats[at].live.insert(exchange, generation);
        let Carry::Post(purpose, body, _) = &carry else {
            return;
        };
        let purpose = *purpose;
        if purpose == Purpose::Request && is_ours(body) {
            self.seats[at].own_requests += 1;
        }
        if purpose == Purpose::Initialized
            && let Some(running) = self.seats[at].instances.get_mut(&generation)
        {
            running.confirming = Some(exchange);
        }
        if self.seats[at].http {
            self.carry(at, generation, exchange, route, carry, Duration::ZERO);
        } else {
            let body = body.clone();
            self.write(at, generation, exchange, body);
        }
    }

    fn note_output(&mut self, at: usize, output: &Output) {
        let now = u64::try_from(self.now.0.as_nanos()).unwrap_or(u64::MAX);
        let (tag, name, bytes) = match output {
            Output::Reserve { generation } => (2, generation.0, Bytes::new()),
            Output::Open { generation } => (3, generation.0, Bytes::new()),
            Output::Send { exchange, body, .. } => (4, exchange.0, body.to_bytes()),
            Output::Resume { exchange, .. } => (5, exchange.0, Bytes::new()),
            Output::Listen { exchange, .. } => (6, exchange.0, Bytes::new()),
            Output::Abort { exchange, .. } => (7, exchange.0, Bytes::new()),
            Output::RefreshCredentials => (8, 0, Bytes::new()),
            Output::Moved { key, .. } => (15, key.number, Bytes::new()),
            Output::End {
                generation, delete, ..
            } => (9, generation.0 * 2 + u64::from(*delete), Bytes::new()),
            Output::ToSession { session, .. } => (10, session.0, Bytes::new()),
            Output::Emit(_) => (11, 0, Bytes::new()),
            Output::Persist(record) => (12, record.generation.0, record.encode()),
            Output::Forget => (13, 0, Bytes::new()),
            Output::Sent { key, generation } => (14, key.number * 64 + generation.0, Bytes::new()),
        };
        if self.trace.is_kept() {
            let body = String::from_utf8_lossy(&bytes).into_owned();
            let line = match output {
                Output::Send {
                    generation,
                    exchange,
                    purpose,
                    route,
                    ..
                } => {
                    let id = route.session_id.as_deref().unwrap_or("-");
                    format!("Send {generation} {exchange:?} {purpose:?} {id} {body}")
                }
                other @ (Output::Persist(_)
                | Output::Forget
                | Output::Sent { .. }
                | Output::Reserve { .. }
                | Output::Open { .. }
                | Output::Resume { .. }
                | Output::Listen { .. }
                | Output::Abort { .. }
                | Output::RefreshCredentials
                | Output::Moved { .. }
                | Output::End { .. }
                | Output::ToSession { .. }
                | Output::Emit(_)) => format!("{other:?}"),
            };
            let when = self.now.0;
            self.trace.note(
                [tag, name, now, at as u64],
                &bytes,
                format_args!("{when:?} #{at} > {line}"),
            );
        } else {
            self.trace
                .note([tag, name, now, at as u64], &bytes, format_args!(""));
        }
    }

    /// An instance over HTTP is opened only where one is missing: never for a session that the
    /// server holds.
    fn check_licence(&mut self, at: usize) -> Result<(), Violation> {
        let seat = &mut self.seats[at];
        if !seat.http {
            return Ok(());
        }
        match seat.licence.opens.checked_sub(1) {
            Some(rest) => {
                seat.licence.opens = rest;
                Ok(())
            }
            None => Err(Violation::new(
                "one initialize",
                format!("#{at} opens an instance, and none was lost"),
            )),
        }
    }

    fn grant(&mut self, at: usize, event: &Told) -> Result<(), Violation> {
        let seat = &mut self.seats[at];
        let (http, licence) = (seat.http, &mut seat.licence);
        match event {
            Told::Lost { cause, .. } if cause.contains("refused the resumed session") => {
                if !licence.resumed || std::mem::replace(&mut licence.spent, true) {
                    let what = format!("#{at} gives a session up for a 401");
                    return Err(Violation::new("one-shot", what));
                }
                licence.opens += 1;
                // Nobody can end what refuses us: the server lets it expire.
                let sessions = seat.instances.values();
                let sessions = sessions.filter_map(|running| running.session.clone());
                for session in sessions.collect::<Vec<_>>() {
                    self.server.known(&session, false);
                }
            }
            Told::Lost { .. } if http => {
                if licence.losses == 0 {
                    let what = format!("#{at} gives up a session that the server holds");
                    return Err(Violation::new("one initialize", what));
                }
                licence.losses = 0;
                licence.opens += 1;
            }
            Told::Resumed { .. } => licence.spent = true,
            Told::Ended {
                reason: "abandoned",
                ..
            } if licence.released > 0 => licence.released -= 1,
            Told::StartFailed { .. }
            | Told::Ended {
                reason: "abandoned" | "no session uses it",
                ..
            } => {
                licence.opens += 1;
            }
            Told::Lost { .. }
            | Told::Drained
            | Told::Ready { .. }
            | Told::Replayed { .. }
            | Told::Ended { .. }
            | Told::Dropped { .. }
            | Told::Unreadable { .. }
            | Told::Unauthorized { .. } => {}
        }
        Ok(())
    }

    fn open(&mut self, at: usize, generation: Generation) -> Result<(), Violation> {
        let newest = self.seats[at].instances.keys().next_back().copied();
        if newest.is_some_and(|newest| newest >= generation) {
            return Err(Violation::new(
                "I3",
                format!("{generation} after {newest:?}"),
            ));
        }
        if !self.stack.is_new(&self.seats[at], generation) {
            return Err(Violation::new("I3", format!("{generation} comes twice")));
        }
        let http = self.seats[at].http;
        let fails = !http && self.strikes(Fault::SpawnFails);
        let slow = !http && self.strikes(Fault::SlowStart);
        let delay = match (http, slow) {
            (true, _) => Duration::ZERO,
            (false, true) => self.random.millis(100, 6_000),
            (false, false) => self.delay(),
        };
        let when = self.now.after(delay);
        let running = Running {
            opened: self.now,
            over: false,
            session: None,
            accepted: false,
            confirming: None,
            judged: false,
            alive: !http && !fails,
            initialized: false,
            deaf: false,
            pipe_in: when,
            pipe_out: when,
            questions: BTreeSet::new(),
        };
        self.seats[at].instances.insert(generation, running);
        self.seats[at].opens += 1;
        let input = if fails {
            let cause = "no such program".into();
            Input::Lost {
                generation,
                cause,
                never_ran: true,
            }
        } else {
            Input::Opened { generation }
        };
        self.put(when, Event::Input(at, Box::new(input)));
        Ok(())
    }

    /// When a child's turn in the start budget comes, its driver says so.
    fn reserve(&mut self, at: usize, generation: Generation) {
        self.seats[at].reserved.insert(generation);
        let waits = self.strikes(Fault::WaitsForTurn);
        let wait = if waits {
            self.random.millis(0, 9_000)
        } else {
            Duration::ZERO
        };
        if wait > CROWDED_AFTER {
            let max = 1;
            let crowded = Input::Crowded { generation, max };
            self.put(self.now, Event::Input(at, Box::new(crowded)));
        }
        let turn = self.now.after(wait);
        self.put(
            turn,
            Event::Input(at, Box::new(Input::Admitted { generation })),
        );
    }

    fn check_send(
        &self,
        at: usize,
        generation: Generation,
        purpose: Purpose,
        body: &Bytes,
        route: &Route,
    ) -> Result<(), Violation> {
        let Some(running) = self.seats[at].instances.get(&generation) else {
            return Err(Violation::new(
                "I6",
                format!("sent to unknown {generation}"),
            ));
        };
        if running.over {
            return Err(Violation::new(
                "I6",
                format!("sent to {generation}, which is over"),
            ));
        }
        if purpose == Purpose::Initialize {
            return if *route == Route::default() {
                Ok(())
            } else {
                Err(Violation::new("I14", "initialize carries a session"))
            };
        }
        self.check_route(at, generation, route)?;
        let Ok(message) = Message::parse(body.clone()) else {
            return Err(Violation::new("I13", format!("no message: {body:?}")));
        };
        // An answer to the server's own question may precede readiness; nothing else may.
        let asks = matches!(message.kind(), Kind::Request | Kind::Notification);
        if asks && purpose != Purpose::Initialized && !running.accepted {
            return Err(Violation::new(
                "I6",
                format!("{generation} is not ready: {body:?}"),
            ));
        }
        Ok(())
    }

    fn check_route(
        &self,
        at: usize,
        generation: Generation,
        route: &Route,
    ) -> Result<(), Violation> {
        let seat = &self.seats[at];
        let running = seat.instances.get(&generation);
        let session = running.and_then(|running| running.session.clone());
        if seat.http && (route.session_id != session || route.version.is_none()) {
            let what = format!("{generation} has session {session:?}, sent {route:?}");
            return Err(Violation::new("I14", what));
        }
        Ok(())
    }

    /// Sends an HTTP request on its way.
    fn carry(
        &mut self,
        at: usize,
        generation: Generation,
        exchange: ExchangeId,
        route: Route,
        carry: Carry,
        pause: Duration,
    ) {
        let sent = self.now.after(pause);
        let when = sent.after(self.delay());
        let unsent = self.server.down_until > sent || self.strikes(Fault::NotSent);
        let cut = self.strikes(Fault::CutBefore);
        if unsent || cut {
            let cause = "gone".into();
            if let (true, Carry::Post(Purpose::Request, body, _)) = (unsent, &carry)
                && is_ours(body)
            {
                self.seats[at].own_unsent += 1;
            }
            let end = if unsent {
                End::NotSent { cause }
            } else {
                End::Broken { cause }
            };
            let input = Input::Ended {
                generation,
                exchange,
                end,
            };
            self.put(when, Event::Input(at, Box::new(input)));
            return;
        }
        let credential = self.seats[at].credential;
        let request = Request {
            generation,
            exchange,
            route,
            credential,
            carry,
        };
        self.put(when, Event::Arrive(at, Box::new(request)));
    }

    /// Writes a line to a child: lines keep their order.
    fn write(&mut self, at: usize, generation: Generation, exchange: ExchangeId, body: Bytes) {
        let delay = self.delay();
        let told = self.now.after(self.delay());
        let closes = self.strikes(Fault::PipeClosed);
        let when = self.now.after(delay);
        let Some(running) = self.seats[at].instances.get_mut(&generation) else {
            return;
        };
        running.deaf |= closes;
        let end = if running.deaf || !running.alive {
            End::NotSent {
                cause: "the pipe is closed".into(),
            }
        } else {
            let when = when.max(running.pipe_in.after(Duration::from_nanos(1)));
            running.pipe_in = when;
            self.put(when, Event::Line(at, generation, body));
            End::Accepted
        };
        let input = Input::Ended {
            generation,
            exchange,
            end,
        };
        self.put(told, Event::Input(at, Box::new(input)));
    }

    fn end(
        &mut self,
        at: usize,
        generation: Generation,
        delete: bool,
        route: Route,
    ) -> Result<(), Violation> {
        let seat = &mut self.seats[at];
        seat.live.retain(|_, held| *held != generation);
        let http = seat.http;
        let Some(running) = seat.instances.get_mut(&generation) else {
            if seat.reserved.contains(&generation) {
                return Ok(());
            }
            return Err(Violation::new(
                "I3",
                format!("the end of unknown {generation}"),
            ));
        };
        running.over = true;
        if http {
            if let (true, Some(session)) = (delete, route.session_id) {
                let identity = self.seats[at].identity();
                self.server.deleting(&session, identity)?;
                let when = self.now.after(self.delay());
                self.put(when, Event::Delete(session));
            }
        } else {
            // The child reads on for a while.
            let when = self.now.after(self.random.millis(0, 2_000));
            self.put(when, Event::Exit(at, generation));
        }
        Ok(())
    }

    fn judge_event(&mut self, at: usize, event: &Told) -> Result<(), Violation> {
        self.grant(at, event)?;
        if matches!(event, Told::Drained) && self.seats[at].post == Post::Leaves {
            self.seats[at].post = Post::Left;
        }
        let (generation, ready) = match event {
            Told::Ready { generation, .. } => (generation, true),
            Told::StartFailed { generation, .. } => (generation, false),
            Told::Lost { .. }
            | Told::Replayed { .. }
            | Told::Ended { .. }
            | Told::Dropped { .. }
            | Told::Drained
            | Told::Unreadable { .. }
            | Told::Resumed { .. }
            | Told::Unauthorized { .. } => return Ok(()),
        };
        let patience = self.start_patience();
        let now = self.now;
        let seat = &mut self.seats[at];
        let Some(running) = seat.instances.get_mut(generation) else {
            if !ready && seat.reserved.contains(generation) {
                // It waited for room in vain.
                return Ok(());
            }
            return Err(Violation::new("I3", format!("unknown {generation}")));
        };
        running.judged = true;
        if ready && !running.accepted {
            return Err(Violation::new(
                "I6",
                format!("{generation} is published too early"),
            ));
        }
        if now.since(running.opened) > patience {
            return Err(Violation::new(
                "I7",
                format!("the attempt of {generation} took too long"),
            ));
        }
        Ok(())
    }

    /// Gives a machine what a driver reports, if there is still anybody to report it.
    pub(crate) fn deliver(&mut self, at: usize, input: Input) {
        let seat = &mut self.seats[at];
        if seat.dead {
            return;
        }
        let Some((generation, exchange)) = place_of(&input) else {
            self.feed(at, input);
            return;
        };
        let Some(running) = seat.instances.get(&generation) else {
            return;
        };
        let dead = exchange.is_some_and(|exchange| !seat.live.contains_key(&exchange));
        if running.over || dead {
            return;
        }
        if seat.writing.is_some() && !seat.catches_up {
            seat.inbox.push_back(input);
            return;
        }
        self.learn(at, generation, &input);
        self.feed(at, input);
        if self.strikes(Fault::Ghost) {
            self.haunt(at);
        }
    }

    /// What the driver and the checkers know from here on.
    fn learn(&mut self, at: usize, generation: Generation, input: &Input) {
        let seat = &mut self.seats[at];
        let Some(running) = seat.instances.get_mut(&generation) else {
            return;
        };
        match input {
            Input::Minted { session_id, .. } => {
                running.session = Some(Arc::clone(session_id));
                self.server.known(session_id, !seat.keeps_sessions);
            }
            Input::Ended { exchange, end, .. } => {
                seat.live.remove(exchange);
                let good = matches!(end, End::Accepted | End::Complete | End::StreamEnded { .. });
                running.accepted |= good && running.confirming == Some(*exchange);
            }
            Input::Lost { .. } => {
                running.over = true;
                seat.live.retain(|_, held| *held != generation);
            }
            _ => {}
        }
    }

    /// Something late from an instance that is over: it must change nothing (I2, I3).
    fn haunt(&mut self, at: usize) {
        let seat = &self.seats[at];
        let old = seat.instances.iter().find(|(_, running)| running.over);
        let Some((&generation, _)) = old else { return };
        let cause: Box<str> = "late".into();
        let exchange = ExchangeId(self.random.below(40));
        let id = self.random.below(40);
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"ghost":true}}}}"#);
        let input = match self.random.below(4) {
            0 => Input::Lost {
                generation,
                cause,
                never_ran: false,
            },
            1 => {
                let end = End::Refused(springline_proto::upstream::Refusal {
                    status: 404,
                    rpc_code: None,
                    answer: None,
                    foreign: false,
                    text: cause,
                    retry_after: None,
                });
                Input::Ended {
                    generation,
                    exchange,
                    end,
                }
            }
            2 => Input::Minted {
                generation,
                exchange,
                session_id: "ghost".into(),
            },
            _ => match Message::parse(text) {
                Ok(message) => Input::Message {
                    generation,
                    exchange: None,
                    message,
                },
                Err(_) => return,
            },
        };
        let when = self.now.after(self.delay());
        self.put(when, Event::Tell(at, Box::new(input)));
    }

    pub(crate) fn say(&mut self, at: usize, when: Moment, input: Input) {
        self.put(when, Event::Input(at, Box::new(input)));
    }
}

/// Whether a request is of the gateway's own: those of clients carry their number.
fn is_ours(body: &Bytes) -> bool {
    !body.windows(4).any(|part| part == b"\"n\":")
}

/// The instance and the exchange that a driver's report is of; nothing for any other input.
fn place_of(input: &Input) -> Option<(Generation, Option<ExchangeId>)> {
    Some(match input {
        Input::Minted {
            generation,
            exchange,
            ..
        }
        | Input::Stretch {
            generation,
            exchange,
            ..
        }
        | Input::Ended {
            generation,
            exchange,
            ..
        } => (*generation, Some(*exchange)),
        Input::Message {
            generation,
            exchange,
            ..
        }
        | Input::Garbled {
            generation,
            exchange,
            ..
        } => (*generation, *exchange),
        Input::Opened { generation } | Input::Lost { generation, .. } => (*generation, None),
        Input::Start { .. }
        | Input::Call { .. }
        | Input::Notify { .. }
        | Input::Reply { .. }
        | Input::Cancel { .. }
        | Input::Asking { .. }
        | Input::Greet { .. }
        | Input::Attached(_)
        | Input::Retire
        | Input::Drain(_)
        | Input::Take { .. }
        | Input::Settings(_)
        | Input::Of { .. }
        | Input::Holds { .. }
        | Input::Join(_)
        | Input::Close { .. }
        | Input::Credentials { .. }
        | Input::Withheld { .. }
        | Input::Crowded { .. }
        | Input::Admitted { .. }
        | Input::Timer => return None,
    })
}
