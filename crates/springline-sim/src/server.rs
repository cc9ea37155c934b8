//! A server behind Streamable HTTP: sessions, streams, credentials, and what can go wrong with
//! them. All upstreams of a run speak to one server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{ExchangeId, Generation, Moment, SessionKey};
use springline_proto::message::{Kind, Message};
use springline_proto::upstream::{End, Input, Purpose, Refusal, Route, Stretch};

use crate::book::Violation;
use crate::peer::Said;
use crate::plan::{Fault, LossForm};
use crate::random::Random;
use crate::world::World;

/// What an HTTP request is.
pub(crate) enum Carry {
    /// With whether a large answer may come in stretches.
    Post(Purpose, Bytes, bool),
    Resume(Arc<str>),
    Listen,
}

/// One HTTP request.
pub(crate) struct Request {
    pub(crate) generation: Generation,
    pub(crate) exchange: ExchangeId,
    pub(crate) route: Route,
    pub(crate) credential: u64,
    pub(crate) carry: Carry,
}

/// One session that was ever minted.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
struct Minted {
    /// The server still has it.
    held: bool,
    /// `notifications/initialized` was accepted.
    initialized: bool,
    /// The gateway was told its id, and shall end it.
    known: bool,
    deletes: u32,
    /// The session and the server entry that it was minted for.
    owner: Option<(SessionKey, Arc<str>)>,
    /// The configuration of the entry, credentials included, that it was opened with.
    identity: u64,
    /// Ids of the requests that it got.
    ids: BTreeSet<Bytes>,
    /// It was lost, and the server says so with 401 or 403.
    shut: bool,
}

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    sessions: BTreeMap<Arc<str>, Minted>,
    /// The rest of streams that were cut, by event id.
    streams: BTreeMap<Arc<str>, Vec<String>>,
    /// What it wants, and what the sources of the gateway hold.
    pub(crate) credential: u64,
    pub(crate) source: u64,
    pub(crate) down_until: Moment,
    pub(crate) questions: u64,
    streams_cut: u64,
    random: Random,
}

impl Server {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            sessions: BTreeMap::new(),
            streams: BTreeMap::new(),
            credential: 0,
            source: 0,
            down_until: Moment::default(),
            questions: 0,
            streams_cut: 0,
            random,
        }
    }

    pub(crate) fn heal(&mut self) {
        self.down_until = Moment::default();
        self.source = self.credential;
    }

    pub(crate) fn lose_sessions(&mut self) {
        for session in self.sessions.values_mut() {
            session.held = false;
        }
        self.streams.clear();
    }

    /// The server forgets all sessions, and takes their ids for bad credentials.
    pub(crate) fn shut_sessions(&mut self) {
        for session in self.sessions.values_mut() {
            session.shut |= session.held;
        }
        self.lose_sessions();
    }

    /// Whether the gateway has begun to end this session.
    pub(crate) fn is_ending(&self, id: &Arc<str>) -> bool {
        let session = self.sessions.get(id);
        session.is_none_or(|session| session.deletes > 0)
    }

    fn mint(&mut self, owner: (SessionKey, Arc<str>), identity: u64) -> Arc<str> {
        let id: Arc<str> =
            format!("s{}-{:x}", self.sessions.len(), self.random.below(0xFFFF)).into();
        let minted = Minted {
            held: true,
            owner: Some(owner),
            identity,
            ..Minted::default()
        };
        self.sessions.insert(Arc::clone(&id), minted);
        id
    }

    pub(crate) fn known(&mut self, id: &Arc<str>, known: bool) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.known = known;
        }
    }

    /// The gateway ends a session: once, and with the configuration that opened it.
    pub(crate) fn deleting(&mut self, id: &Arc<str>, identity: u64) -> Result<(), Violation> {
        let Some(session) = self.sessions.get_mut(id) else {
            return Err(Violation::new("I14", format!("DELETE of unknown {id}")));
        };
        if session.identity != identity {
            let what = format!("DELETE of {id} with other credentials");
            return Err(Violation::new("credentials", what));
        }
        session.deletes += 1;
        if session.deletes > 1 {
            return Err(Violation::new(
                "one DELETE",
                format!("{id} was ended twice"),
            ));
        }
        Ok(())
    }

    /// A gateway that was killed knows no session any more, but for what was at rest.
    pub(crate) fn know_none(&mut self) {
        for session in self.sessions.values_mut() {
            session.known = false;
        }
    }

    /// A record that could not be removed outlives the end of its session.
    pub(crate) fn is_known_again(&mut self, id: &Arc<str>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.deletes = 0;
            session.known = session.held;
        }
    }

    pub(crate) fn delete(&mut self, id: &Arc<str>) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.held = false;
        }
    }

    pub(crate) fn check_gone(&self) -> Result<(), Violation> {
        let left = self
            .sessions
            .iter()
            .find(|(_, session)| session.held && session.known);
        left.map_or(Ok(()), |(id, _)| {
            Err(Violation::new(
                "one DELETE",
                format!("session {id} was never ended"),
            ))
        })
    }
}

fn refused(status: u16, rpc_code: Option<i64>, text: &str) -> End {
    End::Refused(Refusal {
        status,
        rpc_code,
        answer: None,
        foreign: false,
        text: text.into(),
        retry_after: (status == 503).then_some(Duration::from_secs(1)),
    })
}

fn lost(form: LossForm) -> End {
    match form {
        LossForm::NotFound => refused(404, None, "Not Found"),
        LossForm::NotFoundRpc => refused(404, Some(-32001), "Session not found"),
        LossForm::NpmEverything => refused(
            400,
            Some(-32000),
            "Bad Request: No valid session ID provided",
        ),
        LossForm::InvalidRequest => refused(400, Some(-32600), "Session has expired"),
        LossForm::Code => refused(400, Some(-32001), "gone"),
    }
}

/// How an HTTP answer goes on.
struct Answer<'a> {
    /// Whether a large one may come in stretches.
    stretches: bool,
    world: &'a mut World,
    seat: usize,
    generation: Generation,
    exchange: ExchangeId,
    at: Moment,
}

impl Answer<'_> {
    fn put(&mut self, input: Input) {
        let gap = self.world.delay() + Duration::from_nanos(1);
        self.at = self.at.after(gap);
        self.world.say(self.seat, self.at, input);
    }

    fn text(&mut self, text: String) {
        if let Ok(message) = Message::parse(text) {
            let (generation, exchange) = (self.generation, Some(self.exchange));
            self.put(Input::Message {
                generation,
                exchange,
                message,
            });
        }
    }

    fn said(&mut self, said: Said) {
        match said {
            Said::Text(text) => self.text(text),
            Said::Noise { id, too_large } => {
                let (generation, exchange) = (self.generation, Some(self.exchange));
                let id = id.map(Bytes::from);
                let cause = "noise".into();
                self.put(Input::Garbled {
                    generation,
                    exchange,
                    id,
                    cause,
                    too_large,
                });
            }
        }
    }

    fn end(&mut self, end: End) {
        let (generation, exchange) = (self.generation, self.exchange);
        self.put(Input::Ended {
            generation,
            exchange,
            end,
        });
    }

    fn broken(&mut self) {
        self.end(End::Broken {
            cause: "cut".into(),
        });
    }

    fn stream_ended(&mut self, last_event_id: Option<Arc<str>>) {
        let retry = self
            .world
            .random
            .chance(300)
            .then(|| self.world.random.millis(0, 3_000));
        self.end(End::StreamEnded {
            last_event_id,
            retry,
        });
    }
}

impl World {
    /// An HTTP request reaches the server, whether or not anybody still waits for its answer.
    pub(crate) fn arrive(&mut self, seat: usize, request: Request) {
        let Request {
            generation,
            exchange,
            route,
            credential,
            carry,
        } = request;
        let at = self.now;
        let stale = credential != self.server.credential;
        let fails = self.strikes(Fault::ErrorBefore);
        let busy = self.strikes(Fault::Refused);
        let initialize = matches!(carry, Carry::Post(Purpose::Initialize, ..));
        let gone = !initialize && !self.has_session(seat, &route);
        let shut = gone && self.is_shut(&route);
        let form = self.plan.loss_form;
        let stretches = matches!(carry, Carry::Post(_, _, true));
        let mut answer = Answer {
            stretches,
            world: self,
            seat,
            generation,
            exchange,
            at,
        };
        if stale || shut {
            let status = answer.world.random.pick(&[401, 403]);
            answer.end(refused(status, None, "credentials"));
        } else if fails {
            answer.end(refused(503, None, "busy"));
        } else if busy {
            answer.end(refused(429, None, "too many"));
        } else if gone {
            answer.world.seats[seat].licence.losses += 1;
            answer.end(lost(form));
        } else {
            match carry {
                Carry::Post(Purpose::Initialize, body, _) => answer.initialize(body),
                Carry::Post(Purpose::Initialized, ..) => answer.initialized(&route),
                Carry::Post(Purpose::Oneway, body, _) => answer.oneway(&route, body),
                Carry::Post(Purpose::Request, body, _) => answer.request(&route, body),
                Carry::Resume(id) => answer.resume(&id),
                Carry::Listen => answer.listen(),
            }
        }
    }

    fn mint(&mut self, seat: usize) -> Arc<str> {
        let seat = &self.seats[seat];
        let owner = (seat.session, Arc::clone(&seat.server));
        let identity = seat.identity();
        self.server.mint(owner, identity)
    }

    fn is_shut(&self, route: &Route) -> bool {
        let session = route
            .session_id
            .as_ref()
            .and_then(|id| self.server.sessions.get(id));
        session.is_some_and(|session| session.shut)
    }

    fn has_session(&mut self, seat: usize, route: &Route) -> bool {
        let loses = self.strikes(Fault::LosesSession);
        let Some(id) = &route.session_id else {
            return !self.plan.sessions;
        };
        let own = (
            self.seats[seat].session,
            Arc::clone(&self.seats[seat].server),
        );
        let session = self.server.sessions.get(id);
        if session.is_none_or(|session| session.owner.as_ref() != Some(&own)) {
            let what = format!("{own:?} uses the session {id} of another");
            self.hold(Err(Violation::new("I9", what)));
            return false;
        }
        let identity = self.seats[seat].identity();
        if session.is_some_and(|session| session.identity != identity) {
            let what = format!("{own:?} uses {id} with other credentials");
            self.hold(Err(Violation::new("credentials", what)));
        }
        let session = self.server.sessions.get_mut(id);
        session.is_some_and(|session| {
            session.held &= !loses;
            session.held
        })
    }

    fn is_initialized(&self, seat: usize, generation: Generation, route: &Route) -> bool {
        if let Some(id) = &route.session_id {
            let session = self.server.sessions.get(id);
            return session.is_some_and(|session| session.initialized);
        }
        let running = self.seats[seat].instances.get(&generation);
        running.is_some_and(|running| running.initialized)
    }
}

impl Answer<'_> {
    fn strikes(&mut self, fault: Fault) -> bool {
        self.world.strikes(fault)
    }

    fn initialize(&mut self, body: Bytes) {
        if self.strikes(Fault::InitializeStatus) {
            let status = self.world.random.pick(&[400, 404, 500, 502]);
            self.end(refused(status, None, "no"));
            return;
        }
        let Ok(message) = Message::parse(body) else {
            return;
        };
        let id = message.id().unwrap_or_default();
        let text = self.world.greet(&String::from_utf8_lossy(&id));
        if self.world.plan.sessions {
            let session_id = self.world.mint(self.seat);
            if self.strikes(Fault::CutAfter) {
                self.broken();
                return;
            }
            let (generation, exchange) = (self.generation, self.exchange);
            self.put(Input::Minted {
                generation,
                exchange,
                session_id,
            });
        }
        if self.strikes(Fault::Hang) {
            return;
        }
        if self.strikes(Fault::InitializeCut) {
            self.broken();
        } else if self.strikes(Fault::InitializeEmpty) {
            self.end(End::Complete);
        } else {
            self.text(text);
            self.close();
        }
    }

    /// A JSON body or a stream comes to its end.
    fn close(&mut self) {
        if self.world.random.chance(500) {
            self.end(End::Complete);
        } else {
            self.stream_ended(None);
        }
    }

    fn initialized(&mut self, route: &Route) {
        if self.strikes(Fault::InitializedRefused) {
            let status = self.world.random.pick(&[404, 500, 502]);
            self.end(refused(status, None, "no"));
            return;
        }
        let world = &mut *self.world;
        if let Some(id) = &route.session_id {
            if let Some(session) = world.server.sessions.get_mut(id) {
                session.initialized = true;
            }
        } else if let Some(running) = world.seats[self.seat].instances.get_mut(&self.generation) {
            running.initialized = true;
        }
        if self.strikes(Fault::CutAfter) {
            self.broken();
        } else {
            self.end(End::Accepted);
        }
    }

    fn check_ready(&mut self, route: &Route, body: &Bytes) {
        if !self.world.is_initialized(self.seat, self.generation, route) {
            let what = format!("into an unready session: {body:?}");
            self.world.hold(Err(Violation::new("I6", what)));
        }
    }

    /// A request id comes once in a session, whichever process uses it.
    fn check_id(&mut self, route: &Route, message: &Message) {
        let id = message.id().unwrap_or_default();
        let sessions = &mut self.world.server.sessions;
        let session = route
            .session_id
            .as_ref()
            .and_then(|of| sessions.get_mut(of));
        if session.is_some_and(|session| !session.ids.insert(id.clone())) {
            let what = format!("request id {id:?} comes twice in {route:?}");
            self.world.hold(Err(Violation::new("I9", what)));
        }
    }

    fn oneway(&mut self, route: &Route, body: Bytes) {
        let Ok(message) = Message::parse(body) else {
            return;
        };
        if message.kind() == Kind::Notification {
            self.check_ready(route, message.bytes());
        } else {
            self.world.take_reply(self.seat, self.generation, &message);
        }
        if self.strikes(Fault::CutAfter) {
            self.broken();
        } else {
            self.end(End::Accepted);
        }
    }

    fn request(&mut self, route: &Route, body: Bytes) {
        self.check_ready(route, &body);
        let Ok(message) = Message::parse(body) else {
            return;
        };
        self.check_id(route, &message);
        let said = self.world.execute(self.seat, self.generation, &message);
        let quiet = self.world.random.millis(0, 30);
        let slow = self.strikes(Fault::Slow);
        let busy = if slow {
            self.world.random.millis(0, 8_000)
        } else {
            quiet
        };
        self.at = self.at.after(busy);
        if self.strikes(Fault::Hang) {
            return;
        }
        if self.strikes(Fault::CutAfter) {
            self.broken();
        } else if self.strikes(Fault::ErrorAfter) {
            self.end(refused(500, None, "after"));
        } else if self.strikes(Fault::EmptyAnswer) {
            let end = self.world.random.chance(500);
            self.end(if end { End::Accepted } else { End::Complete });
        } else {
            self.stream(said);
        }
    }

    /// Says it all, unless the stream is cut; with an event id, the rest can be had later.
    fn stream(&mut self, said: Vec<Said>) {
        let cut = self.strikes(Fault::StreamCut);
        let resumes = self.strikes(Fault::StreamResumes);
        let keep = self.world.random.below(said.len() as u64 + 1);
        let keep = usize::try_from(keep).unwrap_or(0);
        let mut rest = Vec::new();
        for (place, said) in said.into_iter().enumerate() {
            if place < keep || !(cut || resumes) {
                match said {
                    Said::Text(text) if self.is_large(&text) => {
                        if !self.large(&text) {
                            return;
                        }
                    }
                    said => self.said(said),
                }
            } else if let Said::Text(text) = said {
                rest.push(text);
            }
        }
        if resumes {
            self.hold_stream(rest);
        } else if cut {
            self.stream_ended(None);
        } else {
            self.close();
        }
    }

    /// Whether this is an answer, and too large to be held.
    fn is_large(&mut self, text: &str) -> bool {
        let large = &mut self.world.plan.large;
        self.stretches
            && !text.contains("\"method\"")
            && large.rates.0 > 0
            && large.random.chance(large.rates.0)
    }

    fn stretch(&mut self, stretch: Stretch) {
        let (generation, exchange) = (self.generation, self.exchange);
        self.put(Input::Stretch {
            generation,
            exchange,
            stretch,
        });
    }

    /// Says an answer in stretches; says whether it came to its end.
    fn large(&mut self, text: &str) -> bool {
        let Ok(message) = Message::parse(text.to_owned()) else {
            return true;
        };
        let (bytes, span) = (message.bytes().clone(), message.envelope().id);
        let Some(span) = span else { return true };
        let large = &mut self.world.plan.large;
        let (_, cut, wrong) = large.rates;
        let id = if large.random.chance(wrong) {
            Bytes::from(large.random.pick(&["0", "\"1\"", "999999"]))
        } else {
            span.slice(&bytes)
        };
        let ends = (!large.random.chance(cut)).then_some(());
        let steps = large.random.below(5);
        let known = large.random.chance(500).then_some(bytes.len() as u64);
        let told = large.random.chance(500).then(|| id.clone());
        let middle = bytes.len().midpoint(span.end as usize);
        let mut all = vec![
            Stretch::Begin {
                id: told,
                // Only a length that the right id has is told.
                len: known.filter(|_| id.len() == span.len()),
            },
            Stretch::Bytes(bytes.slice(..span.start as usize)),
            Stretch::Id(id),
            Stretch::Bytes(bytes.slice(span.end as usize..middle)),
            Stretch::Bytes(bytes.slice(middle..)),
            Stretch::End,
        ];
        if ends.is_none() {
            all.truncate(usize::try_from(steps + 1).unwrap_or(1));
        }
        for stretch in all {
            self.stretch(stretch);
        }
        if ends.is_none() {
            self.cut_large();
        }
        ends.is_some()
    }

    /// An answer that has begun goes no further.
    fn cut_large(&mut self) {
        match self.world.plan.large.random.below(4) {
            0 => self.broken(),
            1 => self.stream_ended(None),
            2 => self.hold_stream(Vec::new()),
            _ => {
                let (generation, exchange) = (self.generation, Some(self.exchange));
                let too_large = self.world.plan.large.random.chance(300);
                self.put(Input::Garbled {
                    generation,
                    exchange,
                    id: None,
                    cause: "no JSON".into(),
                    too_large,
                });
                self.close();
            }
        }
    }

    fn hold_stream(&mut self, rest: Vec<String>) {
        self.world.server.streams_cut += 1;
        let id: Arc<str> = format!("e{}", self.world.server.streams_cut).into();
        self.world.server.streams.insert(Arc::clone(&id), rest);
        self.stream_ended(Some(id));
    }

    fn resume(&mut self, id: &Arc<str>) {
        match self.world.server.streams.remove(id) {
            Some(rest) => {
                let said = rest.into_iter().map(Said::Text).collect();
                self.stream(said);
            }
            None => self.end(refused(400, None, "unknown event")),
        }
    }

    /// On the stream of a session that several clients share.
    fn tell_all(&mut self) {
        for _ in 0..self.world.random.below(3) {
            let (method, params) = self.world.random.pick(&[
                ("tools/list_changed", ""),
                ("resources/updated", r#","params":{"uri":"sim://a"}"#),
            ]);
            self.text(format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/{method}"{params}}}"#
            ));
        }
        if self.strikes(Fault::GetBreaks) {
            let id = self.world.random.chance(500).then(|| Arc::from("g1"));
            self.stream_ended(id);
        }
    }

    fn listen(&mut self) {
        if self.strikes(Fault::GetFails) {
            let status = self.world.random.pick(&[404, 405, 503]);
            self.end(refused(status, None, "no"));
            return;
        }
        if self.world.seats[self.seat].is_shared() {
            self.tell_all();
            return;
        }
        let session = self.world.seats[self.seat].session.0;
        for _ in 0..self.world.random.below(3) {
            let method = self.world.random.pick(&["tools/list_changed", "message"]);
            self.text(format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/{method}","params":{{"session":{session}}}}}"#
            ));
        }
        if self.strikes(Fault::GetBreaks) {
            let id = self.world.random.chance(500).then(|| Arc::from("g1"));
            self.stream_ended(id);
        }
    }
}
