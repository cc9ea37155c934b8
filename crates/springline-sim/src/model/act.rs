//! What can happen next, and how the rest is played to its end.

use std::sync::Arc;

use springline_proto::call::{ExchangeId, Generation};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::message::Message;
use springline_proto::upstream::{End, Input, Standby};

use super::{Bounds, Call, Flight, Session, State, What, broken, key, refused};
use crate::book::Violation;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    /// The next client calls.
    Call,
    /// A client takes its call back.
    Cancel(usize),
    /// The next deadline comes.
    Timer,
    /// The server forgets its sessions.
    Forget,
    /// The child exits.
    Exit,
    /// A verdict about an instance that is over.
    Late(Generation),
    /// The sources of credentials were read.
    Credentials { changed: bool },
    /// The server takes what is under way, or does not.
    Deliver(ExchangeId, Verdict),
}

/// What becomes of an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    Good,
    NotSent,
    Cut,
    Status(u16),
    /// A JSON-RPC error.
    Error,
    /// An answer without a message.
    Empty,
    /// A result that cannot be used.
    Useless,
    /// The session id came, then the connection was cut.
    MintedAndCut,
}

const STEPS_MAX: u32 = 400;

impl State {
    pub(super) fn acts(&self, bounds: Bounds) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.calls.len() < bounds.callers {
            acts.push(Act::Call);
        }
        if self.reading {
            acts.extend([true, false].map(|changed| Act::Credentials { changed }));
        }
        if self.timers > 0 && self.machine.next_deadline().is_some() {
            acts.push(Act::Timer);
        }
        for (exchange, flight) in &self.flights {
            let verdicts = self.verdicts(*flight);
            acts.extend(
                verdicts
                    .into_iter()
                    .map(|verdict| Act::Deliver(*exchange, verdict)),
            );
        }
        if self.faults == 0 {
            return acts;
        }
        let open = |call: &&Call| !call.ended && !call.cancelled;
        if let Some(number) = self.calls.iter().position(|call| open(&call)) {
            acts.push(Act::Cancel(number));
        }
        if self.sessions.iter().any(|session| session.held) {
            acts.push(Act::Forget);
        }
        if !self.http && !self.alive.is_empty() {
            acts.push(Act::Exit);
        }
        acts.extend(self.over.iter().map(|generation| Act::Late(*generation)));
        acts
    }

    fn is_held(&self, generation: Generation) -> bool {
        let id = self.session_of.get(&generation);
        let mut sessions = self.sessions.iter();
        !self.http || sessions.any(|session| Some(&session.id) == id && session.held)
    }

    fn verdicts(&self, flight: Flight) -> Vec<Verdict> {
        let held = flight.what == What::Initialize || self.is_held(flight.generation);
        let mut verdicts = vec![if held {
            Verdict::Good
        } else {
            Verdict::Status(404)
        }];
        if self.faults == 0 {
            return verdicts;
        }
        verdicts.push(Verdict::NotSent);
        if !self.http {
            if flight.what != What::Initialized {
                verdicts.push(Verdict::Error);
            }
            return verdicts;
        }
        verdicts.extend([Verdict::Cut, Verdict::Status(401), Verdict::Status(503)]);
        match flight.what {
            What::Initialize => verdicts.extend([
                Verdict::Error,
                Verdict::Empty,
                Verdict::Useless,
                Verdict::MintedAndCut,
            ]),
            What::Call(_) | What::Own if held => {
                verdicts.extend([Verdict::Error, Verdict::Empty]);
            }
            What::Initialized | What::Call(_) | What::Own => {}
        }
        verdicts
    }

    pub(super) fn act(&mut self, act: Act) -> Result<(), Violation> {
        match act {
            Act::Call => self.call(),
            Act::Timer => {
                self.timers -= 1;
                self.fire()
            }
            Act::Credentials { changed } => {
                self.reading = false;
                self.feed(Input::Credentials { changed })
            }
            Act::Deliver(exchange, verdict) => {
                let is_free = matches!(verdict, Verdict::Good | Verdict::Status(404));
                self.faults -= u8::from(!is_free);
                self.deliver(exchange, verdict)
            }
            Act::Cancel(number) => {
                self.faults -= 1;
                self.calls[number].cancelled = true;
                let key = key(number as u64);
                let message = None;
                self.feed(Input::Cancel { key, message })
            }
            Act::Forget => {
                self.faults -= 1;
                for session in &mut self.sessions {
                    session.held = false;
                }
                Ok(())
            }
            Act::Exit => {
                self.faults -= 1;
                let Some(generation) = self.alive.pop_last() else {
                    return Ok(());
                };
                self.over.insert(generation);
                self.drop_flights(generation);
                self.feed(Input::Lost {
                    generation,
                    cause: "exit status 1".into(),
                    never_ran: false,
                })
            }
            Act::Late(generation) => self.late(generation),
        }
    }

    fn call(&mut self) -> Result<(), Violation> {
        let number = self.calls.len();
        let reads = number == 2;
        self.calls.push(Call {
            reads,
            ..Call::default()
        });
        let method = if reads {
            "resources/read"
        } else {
            "tools/call"
        };
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"n":{number},"name":"t"}}}}"#
        );
        let key = key(number as u64);
        match Message::parse(text) {
            Ok(message) => self.feed(Input::Call {
                key,
                message,
                stretches: false,
            }),
            Err(error) => broken("I13", error.to_string()),
        }
    }

    fn fire(&mut self) -> Result<(), Violation> {
        let Some(due) = self.machine.next_deadline() else {
            return Ok(());
        };
        self.now = self.now.max(due);
        self.feed(Input::Timer)?;
        if self
            .machine
            .next_deadline()
            .is_some_and(|next| next <= self.now)
        {
            return broken("I7", "a deadline stays in the past");
        }
        Ok(())
    }

    /// What an old instance says, or what is said of it, changes nothing.
    fn late(&mut self, generation: Generation) -> Result<(), Violation> {
        self.faults -= 1;
        let before = self.machine.standby();
        let flight = self
            .flights
            .iter()
            .next()
            .map(|(exchange, flight)| (*exchange, flight.id));
        let (exchange, id) = flight.unwrap_or((ExchangeId(1), 1));
        self.is_late = true;
        self.feed(Input::Ended {
            generation,
            exchange,
            end: refused(404),
        })?;
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
        if let Ok(message) = Message::parse(text) {
            self.feed(Input::Message {
                generation,
                exchange: None,
                message,
            })?;
        }
        self.feed(Input::Lost {
            generation,
            cause: "late".into(),
            never_ran: false,
        })?;
        self.is_late = false;
        if self.machine.standby() == before {
            Ok(())
        } else {
            broken("I3", format!("a late verdict about {generation} counts"))
        }
    }

    fn mint(&mut self, exchange: ExchangeId, flight: Flight) -> Result<(), Violation> {
        if !self.http {
            return Ok(());
        }
        let session_id: Arc<str> = format!("s{}", self.sessions.len()).into();
        self.sessions.push(Session {
            id: Arc::clone(&session_id),
            held: true,
            deletes: 0,
        });
        let generation = flight.generation;
        self.session_of.insert(generation, Arc::clone(&session_id));
        self.feed(Input::Minted {
            generation,
            exchange,
            session_id,
        })
    }

    pub(super) fn deliver(
        &mut self,
        exchange: ExchangeId,
        verdict: Verdict,
    ) -> Result<(), Violation> {
        let Some(flight) = self.flights.get(&exchange).copied() else {
            return Ok(());
        };
        if let What::Call(number) = flight.what {
            let call = &mut self.calls[number];
            match verdict {
                Verdict::NotSent => call.unsent += 1,
                Verdict::Status(401 | 404) => {}
                _ => call.may_have_run = true,
            }
        }
        let id = flight.id;
        let body = match (flight.what, verdict) {
            (What::Initialize, Verdict::Good) => {
                Some(r#""result":{"protocolVersion":"2025-06-18","capabilities":{}}"#)
            }
            (What::Initialize, Verdict::Useless) | (What::Call(_) | What::Own, Verdict::Good) => {
                Some(r#""result":{}"#)
            }
            (_, Verdict::Error) => Some(r#""error":{"code":-32050,"message":"no"}"#),
            _ => None,
        };
        let mints = matches!(
            verdict,
            Verdict::Good | Verdict::Useless | Verdict::Error | Verdict::MintedAndCut
        );
        if flight.what == What::Initialize && mints {
            self.mint(exchange, flight)?;
        }
        if let Some(body) = body {
            self.answer(
                exchange,
                flight,
                &format!(r#"{{"jsonrpc":"2.0","id":{id},{body}}}"#),
            )?;
        }
        self.conclude(exchange, flight, verdict)
    }

    fn answer(
        &mut self,
        exchange: ExchangeId,
        flight: Flight,
        text: &str,
    ) -> Result<(), Violation> {
        let generation = flight.generation;
        if !self.http {
            self.flights.remove(&exchange);
            let end = End::Accepted;
            self.feed(Input::Ended {
                generation,
                exchange,
                end,
            })?;
        }
        let Ok(message) = Message::parse(text.to_owned()) else {
            return broken("I13", text);
        };
        self.answering = match flight.what {
            What::Call(number) => Some(number),
            What::Initialize | What::Initialized | What::Own => None,
        };
        let fed = self.feed(Input::Message {
            generation,
            exchange: self.http.then_some(exchange),
            message,
        });
        self.answering = None;
        fed
    }

    /// The exchange is over, unless the machine has dropped it meanwhile.
    fn conclude(
        &mut self,
        exchange: ExchangeId,
        flight: Flight,
        verdict: Verdict,
    ) -> Result<(), Violation> {
        if self.flights.remove(&exchange).is_none() {
            return Ok(());
        }
        let generation = flight.generation;
        let cause = "cut".into();
        let end = match (flight.what, verdict) {
            (_, Verdict::NotSent) => End::NotSent { cause },
            (_, Verdict::Cut | Verdict::MintedAndCut) => End::Broken { cause },
            (_, Verdict::Status(status)) => refused(status),
            (What::Initialized, _) => {
                self.accepted.insert(generation);
                End::Accepted
            }
            (What::Initialize | What::Call(_) | What::Own, _) => End::Complete,
        };
        self.feed(Input::Ended {
            generation,
            exchange,
            end,
        })
    }

    /// Nothing is under way, and nobody calls: only time passes from here on.
    pub(super) fn is_calm(&self) -> bool {
        self.flights.is_empty() && !self.reading
    }

    /// Delivers everything, with nothing going wrong.
    pub(super) fn calm(&mut self) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            if self.reading {
                self.act(Act::Credentials { changed: false })?;
            } else if let Some((exchange, flight)) = self.flights.iter().next() {
                let (exchange, flight) = (*exchange, *flight);
                let held = flight.what == What::Initialize || self.is_held(flight.generation);
                let verdict = if held {
                    Verdict::Good
                } else {
                    Verdict::Status(404)
                };
                self.deliver(exchange, verdict)?;
            } else {
                return Ok(());
            }
        }
        broken("I5", "it does not come to rest")
    }

    fn play_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), Violation> {
        for _ in 0..STEPS_MAX {
            self.calm()?;
            if done(self) {
                return Ok(());
            }
            if self.machine.next_deadline().is_none() {
                return broken("I1", format!("{what}, and nothing is waited for"));
            }
            self.fire()?;
        }
        broken("I7", what)
    }

    /// Nothing goes wrong any more: every call ends, the next one is answered, and after the close
    /// nothing is left.
    pub(super) fn play_out(mut self) -> Result<(), Violation> {
        let ends = |state: &Self| {
            let mut calls = state.calls.iter();
            calls.all(|call| call.ended || call.cancelled)
        };
        self.play_until("a call does not end", ends)?;
        self.call()?;
        self.play_until("the next call does not end", ends)?;
        if self.calls.last().is_some_and(|call| !call.answered) {
            return broken("I5", "the next call is not answered");
        }
        let fault = Fault::new(FaultKind::ShuttingDown);
        let end_session = true;
        self.feed(Input::Close { fault, end_session })?;
        self.play_until("it is not gone", |state| state.machine.is_gone())?;
        if self.machine.standby() != Standby::Closed || !self.alive.is_empty() {
            return broken("leak", format!("{:?} is left", self.alive));
        }
        match self.sessions.iter().find(|session| session.held) {
            Some(session) => broken("one DELETE", format!("{} was never ended", session.id)),
            None => Ok(()),
        }
    }
}
