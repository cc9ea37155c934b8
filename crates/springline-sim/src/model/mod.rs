//! Every order of events up to a bound: the very upstream machine, its callers, a server that can
//! lose its sessions, and a budget of faults.
//!
//! Owns the states and what is checked in each. It must not know how the machine comes to what it
//! says. Where the scenes draw a few runs from very many, this looks at all of a few.

mod act;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use springline_proto::call::{CallKey, ExchangeId, Generation, Moment, SessionKey};
use springline_proto::error::Outcome;
use springline_proto::message::Message;
use springline_proto::settings::UpstreamSettings;
use springline_proto::upstream::{
    End, Event, Hello, Input, Output, Purpose, Record, Refusal, Route, SessionEvent, Transport,
    Upstream, UpstreamConfig,
};

use self::act::Act;
use crate::book::{Violation, number_in};

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Whether the server is a child, and whether the session is one of before a restart.
    pub kind: Kind,
    /// Calls of clients; the third of them only reads.
    pub callers: usize,
    /// Things that go wrong, in all.
    pub faults: u8,
    /// Deadlines that may come before everything else is over.
    pub timers: u8,
}

/// What the machine begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// HTTP; the client has just sent `initialize`.
    Http,
    /// HTTP, with the session of a process before this one.
    Resumed,
    /// A child.
    Stdio,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 3] = [Self::Http, Self::Resumed, Self::Stdio];
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Explored {
    /// States that differ.
    pub states: u64,
    /// Those of them in which nothing is under way: from each the rest was played to its end.
    pub ends: u64,
}

/// One call of a client.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
struct Call {
    reads: bool,
    cancelled: bool,
    ended: bool,
    answered: bool,
    sends: u32,
    unsent: u32,
    /// It ran, or may have.
    may_have_run: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum What {
    Initialize,
    Initialized,
    Call(usize),
    Own,
}

/// Something that is under way to the server.
#[derive(Clone, Copy, Debug)]
struct Flight {
    generation: Generation,
    what: What,
    id: u64,
}

#[derive(Clone, Debug)]
struct Session {
    id: Arc<str>,
    held: bool,
    deletes: u32,
}

/// The machine with everything around it.
#[derive(Clone, Debug)]
struct State {
    machine: Upstream,
    http: bool,
    now: Moment,
    calls: Vec<Call>,
    flights: BTreeMap<ExchangeId, Flight>,
    sessions: Vec<Session>,
    session_of: BTreeMap<Generation, Arc<str>>,
    accepted: BTreeSet<Generation>,
    alive: BTreeSet<Generation>,
    over: BTreeSet<Generation>,
    newest: Generation,
    reading: bool,
    faults: u8,
    timers: u8,
    starts: u32,
    record: Option<Record>,
    /// The call whose answer is being given.
    answering: Option<usize>,
    /// Nothing may come of what is being said.
    is_late: bool,
}

const START: u64 = 1000;

fn key(number: u64) -> CallKey {
    let session = SessionKey(0);
    CallKey { session, number }
}

fn broken(rule: &'static str, what: impl Into<String>) -> Result<(), Violation> {
    Err(Violation::new(rule, what))
}

fn config(kind: Kind) -> UpstreamConfig {
    UpstreamConfig {
        server: Arc::from("s"),
        transport: match kind {
            Kind::Http | Kind::Resumed => Transport::Http,
            Kind::Stdio => Transport::Stdio,
        },
        session: SessionKey(0),
        settings: UpstreamSettings::default().into(),
        base: 0,
        seed: 1,
    }
}

fn refused(status: u16) -> End {
    End::Refused(Refusal {
        status,
        rpc_code: None,
        text: "no".into(),
        retry_after: None,
        answer: None,
        foreign: false,
    })
}

impl State {
    fn new(bounds: Bounds) -> Result<Self, Violation> {
        let mut state = Self {
            machine: Upstream::new(config(bounds.kind), Moment::default()),
            http: bounds.kind != Kind::Stdio,
            now: Moment::default(),
            calls: Vec::new(),
            flights: BTreeMap::new(),
            sessions: Vec::new(),
            session_of: BTreeMap::new(),
            accepted: BTreeSet::new(),
            alive: BTreeSet::new(),
            over: BTreeSet::new(),
            newest: Generation(0),
            reading: false,
            faults: 0,
            timers: 0,
            starts: 0,
            record: None,
            answering: None,
            is_late: false,
        };
        let params = Bytes::from_static(br#"{"capabilities":{}}"#);
        let hello = Hello { params };
        let key = key(START);
        state.feed(Input::Start { key, hello })?;
        if bounds.kind == Kind::Resumed {
            state.calm()?;
            let record = state.record.take();
            let record = record.ok_or_else(|| Violation::new("I10", "nothing went to rest"))?;
            state.machine = Upstream::resume(config(bounds.kind), record, state.now);
        }
        state.faults = bounds.faults;
        state.timers = bounds.timers;
        Ok(state)
    }

    /// Gives the machine an input, and does at once what cannot go wrong.
    fn feed(&mut self, input: Input) -> Result<(), Violation> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.machine.handle(self.now, input);
            while let Some(output) = self.machine.poll() {
                self.take(output, &mut inputs)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, output: Output, inputs: &mut VecDeque<Input>) -> Result<(), Violation> {
        if self.is_late && !matches!(output, Output::Emit(Event::Dropped { .. })) {
            return broken("I3", format!("a late verdict made it say {output:?}"));
        }
        match output {
            Output::Reserve { generation } => inputs.push_back(Input::Admitted { generation }),
            Output::Open { generation } => {
                if generation <= self.newest {
                    return broken("I3", format!("{generation} after {}", self.newest));
                }
                self.newest = generation;
                self.alive.insert(generation);
                inputs.push_back(Input::Opened { generation });
            }
            Output::Send {
                generation,
                exchange,
                body,
                purpose,
                route,
                ..
            } => {
                self.check_send(generation, purpose, &route)?;
                self.send(generation, exchange, purpose, &body.to_bytes(), inputs)?;
            }
            Output::Listen {
                generation,
                exchange,
                ..
            } => {
                let end = refused(405);
                inputs.push_back(Input::Ended {
                    generation,
                    exchange,
                    end,
                });
            }
            Output::Abort { exchange, .. } => self.drop_flight(exchange),
            Output::End {
                generation,
                delete,
                route,
            } => self.end(generation, delete, &route)?,
            Output::RefreshCredentials => self.reading = true,
            Output::Persist(record) => self.record = Some(*record),
            Output::ToSession { event, .. } => self.hear(event)?,
            Output::Emit(event) => self.note(&event)?,
            Output::Resume { .. } | Output::Forget | Output::Sent { .. } | Output::Moved { .. } => {
            }
        }
        Ok(())
    }

    fn check_send(
        &self,
        generation: Generation,
        purpose: Purpose,
        route: &Route,
    ) -> Result<(), Violation> {
        if !self.alive.contains(&generation) {
            return broken("I6", format!("sent to {generation}, which is over"));
        }
        if purpose == Purpose::Initialize {
            return if route.session_id.is_none() {
                Ok(())
            } else {
                broken("I14", "initialize carries a session")
            };
        }
        if self.http && route.session_id.as_ref() != self.session_of.get(&generation) {
            return broken("I14", format!("{generation} is sent {route:?}"));
        }
        if purpose != Purpose::Initialized && !self.accepted.contains(&generation) {
            return broken("I6", format!("{generation} is not ready"));
        }
        Ok(())
    }

    fn send(
        &mut self,
        generation: Generation,
        exchange: ExchangeId,
        purpose: Purpose,
        body: &Bytes,
        inputs: &mut VecDeque<Input>,
    ) -> Result<(), Violation> {
        let text = String::from_utf8_lossy(body);
        let what = match (purpose, number_in(&text, "\"n\":")) {
            (Purpose::Initialize, _) => What::Initialize,
            (Purpose::Initialized, _) => What::Initialized,
            (Purpose::Request, Some(number)) => What::Call(number),
            (Purpose::Request, None) => What::Own,
            (Purpose::Oneway, _) => {
                let end = End::Accepted;
                inputs.push_back(Input::Ended {
                    generation,
                    exchange,
                    end,
                });
                return Ok(());
            }
        };
        if let What::Call(number) = what {
            let call = &mut self.calls[number];
            call.sends += 1;
            if call.may_have_run && !call.reads {
                return broken("I4", format!("call {number} is sent again"));
            }
            // One replay, and once more with fresh credentials.
            if call.sends > 3 + call.unsent {
                return broken("I5", format!("call {number} is sent {} times", call.sends));
            }
        }
        let message = Message::parse(body.clone()).ok();
        let id = message.and_then(|message| message.id());
        let id = id.and_then(|id| std::str::from_utf8(&id).ok()?.parse().ok());
        let flight = Flight {
            generation,
            what,
            id: id.unwrap_or(0),
        };
        self.flights.insert(exchange, flight);
        Ok(())
    }

    /// Nobody waits for it any more; it may arrive all the same.
    fn drop_flight(&mut self, exchange: ExchangeId) {
        if let Some(Flight {
            what: What::Call(number),
            ..
        }) = self.flights.remove(&exchange)
        {
            self.calls[number].may_have_run = true;
        }
    }

    fn drop_flights(&mut self, generation: Generation) {
        let flights = self.flights.iter();
        let of_it = flights.filter(|(_, flight)| flight.generation == generation);
        for exchange in of_it.map(|(exchange, _)| *exchange).collect::<Vec<_>>() {
            self.drop_flight(exchange);
        }
    }

    fn end(
        &mut self,
        generation: Generation,
        delete: bool,
        route: &Route,
    ) -> Result<(), Violation> {
        self.drop_flights(generation);
        self.alive.remove(&generation);
        self.over.insert(generation);
        let mut sessions = self.sessions.iter_mut();
        let session = sessions.find(|session| route.session_id.as_ref() == Some(&session.id));
        if let (true, Some(session)) = (delete, session) {
            session.held = false;
            session.deletes += 1;
            if session.deletes > 1 {
                return broken("one DELETE", format!("{} was ended twice", session.id));
            }
        }
        Ok(())
    }

    fn note(&mut self, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Ready { generation, .. } if !self.accepted.contains(generation) => {
                broken("I6", format!("{generation} is published too early"))
            }
            Event::Lost {
                generation, cause, ..
            } if cause.contains("refused the resumed session") => {
                // Nobody can end what refuses us: the server lets it expire.
                let id = self.session_of.get(generation).cloned();
                let mut sessions = self.sessions.iter_mut();
                if let Some(session) = sessions.find(|held| Some(&held.id) == id.as_ref()) {
                    session.held = false;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn hear(&mut self, event: SessionEvent) -> Result<(), Violation> {
        match event {
            SessionEvent::Answer { key, .. } => {
                let number = usize::try_from(key.number).unwrap_or(usize::MAX);
                if self.answering != Some(number) {
                    return broken("I2", format!("call {number} gets what is not its own"));
                }
                self.settle(number, None)
            }
            SessionEvent::Started { key, .. } | SessionEvent::Failed { key, .. }
                if key.number == START =>
            {
                self.starts += 1;
                if self.starts > 1 {
                    return broken("I1", "the handshake ends twice");
                }
                Ok(())
            }
            SessionEvent::Failed { key, fault, .. } => {
                let number = usize::try_from(key.number).unwrap_or(usize::MAX);
                self.settle(number, Some(fault.outcome))
            }
            _ => Ok(()),
        }
    }

    fn settle(&mut self, number: usize, outcome: Option<Outcome>) -> Result<(), Violation> {
        let call = &mut self.calls[number];
        if call.ended || call.cancelled {
            return broken("I1", format!("call {number} ends twice"));
        }
        call.ended = true;
        call.answered = outcome.is_none();
        if outcome == Some(Outcome::NotExecuted) && call.may_have_run {
            return broken("I4", format!("call {number} may have run: {outcome:?}"));
        }
        Ok(())
    }
}

/// Looks at every state within the bounds; each has to keep every promise.
pub fn explore(bounds: Bounds) -> Result<Explored, (Violation, String)> {
    let fail = |violation, path: &[Act]| Err((violation, format!("{path:?}")));
    let mut explored = Explored::default();
    let mut seen = BTreeSet::new();
    let first = match State::new(bounds) {
        Ok(state) => state,
        Err(violation) => return fail(violation, &[]),
    };
    let mut open = vec![(first, Vec::new())];
    while let Some((state, path)) = open.pop() {
        if !seen.insert(crate::trace::fold(format!("{state:?}").as_bytes())) {
            continue;
        }
        explored.states += 1;
        if state.is_calm() {
            explored.ends += 1;
            if let Err(violation) = state.clone().play_out() {
                return fail(violation, &path);
            }
        }
        for act in state.acts(bounds) {
            let mut path = path.clone();
            path.push(act);
            let mut next = state.clone();
            match next.act(act) {
                Ok(()) => open.push((next, path)),
                Err(violation) => return fail(violation, &path),
            }
        }
    }
    Ok(explored)
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Explored, Kind, explore};

    /// Small enough for every run; `--model` explores more.
    fn reduced(kind: Kind) -> Explored {
        let bounds = Bounds {
            kind,
            callers: 3,
            faults: 2,
            timers: 1,
        };
        explore(bounds).unwrap_or_else(|(violation, path)| panic!("{violation:?}: {path}"))
    }

    #[test]
    fn every_order_of_three_calls_and_two_faults_keeps_every_promise_over_http() {
        assert!(reduced(Kind::Http).states > 20_000);
    }

    #[test]
    fn every_order_of_three_calls_and_two_faults_keeps_every_promise_on_a_resumed_session() {
        assert!(reduced(Kind::Resumed).states > 10_000);
    }

    #[test]
    fn every_order_of_three_calls_and_two_faults_keeps_every_promise_with_a_child() {
        assert!(reduced(Kind::Stdio).states > 5_000);
    }
}
