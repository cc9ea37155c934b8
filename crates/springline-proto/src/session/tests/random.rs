//! Random sequences of inputs, and what must hold after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::script::one;
use crate::call::{
    CallKey, ClientExchange, Connection, Generation, InstanceKey, MachineKey, Moment,
};
use crate::error::{Fault, FaultKind};
use crate::message::Message;
use crate::random::Random;
use crate::session::*;
use crate::upstream::{self, Passing, SessionEvent};

/// What a client may see of a POST or GET.
#[derive(Default)]
struct Seen {
    begun: bool,
    ended: bool,
    /// It is one large JSON answer.
    whole: bool,
    /// What came of a large answer.
    open: Option<Vec<u8>>,
    events: usize,
}

/// A client, a server and the checks.
struct World {
    random: Random,
    session: Session,
    now: Moment,
    exchanges: BTreeMap<ClientExchange, Seen>,
    streams: BTreeMap<Connection, Seen>,
    gone: BTreeSet<ClientExchange>,
    closed_streams: BTreeSet<Connection>,
    /// Calls that the server has, by number.
    calls: BTreeMap<u64, Arc<str>>,
    /// Those of them whose answer is large, and those of these whose answer has begun.
    passing: BTreeSet<u64>,
    begun: BTreeSet<u64>,
    /// What each cursor stands for.
    cursors: BTreeMap<Arc<str>, Bytes>,
    /// Marks of answers that the client got, by the cursor of the event if it had one.
    answers: BTreeMap<String, Option<Arc<str>>>,
    next: u64,
    is_closed: bool,
}

fn message(text: &str) -> Message {
    Message::parse(text.as_bytes().to_vec()).unwrap()
}

impl World {
    fn new(seed: u64, config: SessionConfig) -> Self {
        let now = Moment(Duration::from_secs(1));
        Self {
            random: Random::new(seed),
            session: Session::new(config, now),
            now,
            exchanges: BTreeMap::new(),
            streams: BTreeMap::new(),
            gone: BTreeSet::new(),
            closed_streams: BTreeSet::new(),
            calls: BTreeMap::new(),
            passing: BTreeSet::new(),
            begun: BTreeSet::new(),
            cursors: BTreeMap::new(),
            answers: BTreeMap::new(),
            next: 0,
            is_closed: false,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn give(&mut self, input: Input) {
        self.session.handle(self.now, input);
        while let Some(output) = self.session.poll() {
            assert!(!self.is_closed, "an output after the last: {output:?}");
            self.check(output);
        }
        if let Some(deadline) = self.session.next_deadline() {
            assert!(deadline > self.now, "a deadline that has passed");
        }
    }

    fn check(&mut self, output: Output) {
        match output {
            Output::ToExchange { exchange, part } => {
                assert!(
                    !self.gone.contains(&exchange),
                    "a part for a connection that is gone"
                );
                let mut seen = self
                    .exchanges
                    .remove(&exchange)
                    .expect("an exchange that exists");
                self.check_part(&mut seen, part);
                self.exchanges.insert(exchange, seen);
            }
            Output::ToStream { connection, part } => {
                assert!(
                    !self.closed_streams.contains(&connection),
                    "a part for a closed stream"
                );
                let mut seen = self
                    .streams
                    .remove(&connection)
                    .expect("a stream that exists");
                self.check_part(&mut seen, part);
                self.streams.insert(connection, seen);
            }
            Output::ToUpstream { server, input } => match *input {
                upstream::Input::Call { key, stretches, .. } => {
                    self.calls.insert(key.number, server);
                    if stretches && self.random.below(2) == 0 {
                        self.passing.insert(key.number);
                    }
                }
                upstream::Input::Start { key, .. } => {
                    self.calls.insert(key.number, server);
                }
                upstream::Input::Cancel { key, .. } => {
                    assert!(self.calls.contains_key(&key.number), "a cancel of nothing");
                }
                _ => {}
            },
            Output::Closed => self.is_closed = true,
            Output::Persist(_)
            | Output::Mark { .. }
            | Output::Taken(_)
            | Output::Remember { .. }
            | Output::Held(_)
            | Output::Emit(_) => {}
        }
    }

    fn check_part(&mut self, seen: &mut Seen, part: Part) {
        assert!(!seen.ended, "a part after the end: {part:?}");
        match part {
            Part::Accepted | Part::Refuse { .. } => {
                assert!(!seen.begun);
                seen.ended = true;
            }
            Part::Json(body) => {
                assert!(!seen.begun);
                seen.ended = true;
                self.check_answer(&body.to_bytes(), None);
            }
            Part::Open { .. } => {
                assert!(!seen.begun);
                (seen.begun, seen.whole) = (true, true);
                seen.open = Some(Vec::new());
            }
            Part::OpenEvent => {
                assert!(seen.begun && seen.open.is_none());
                seen.open = Some(Vec::new());
            }
            Part::Bytes(bytes) => seen.open.as_mut().expect("an open answer").extend(bytes),
            Part::Close { id } => {
                assert!(!seen.whole);
                let body = Bytes::from(seen.open.take().expect("an open event"));
                self.check_answer(&body, Some(&id));
            }
            Part::Cut => {
                assert!(seen.open.take().is_some(), "nothing is open");
                seen.ended = true;
            }
            Part::Welcome(_) | Part::Frame { .. } => panic!("a frame"),
            Part::Begin => {
                assert!(!seen.begun);
                seen.begun = true;
            }
            Part::Event { id, data, .. } => {
                seen.events += 1;
                let data = data.to_bytes();
                if let Some(id) = id.clone() {
                    let before = self.cursors.insert(id, data.clone());
                    assert!(
                        before.is_none_or(|before| before == data),
                        "one cursor, two events"
                    );
                }
                if !data.is_empty() {
                    self.check_answer(&data, id.as_ref());
                }
            }
            Part::End => {
                assert!(seen.begun);
                if let Some(body) = seen.open.take() {
                    assert!(seen.whole, "an end in the midst of an event");
                    self.check_answer(&Bytes::from(body), None);
                }
                seen.ended = true;
            }
        }
    }

    /// An answer of the server carries a mark; no mark reaches the client twice, but for the
    /// redelivery of the same event.
    fn check_answer(&mut self, body: &Bytes, cursor: Option<&Arc<str>>) {
        let value: serde_json::Value = serde_json::from_slice(body).expect("valid JSON");
        if let Some(mark) = value["result"]["mark"].as_str() {
            let is_new = match self.answers.insert(mark.to_owned(), cursor.cloned()) {
                None => true,
                Some(before) => cursor.is_some() && before.as_ref() == cursor,
            };
            assert!(is_new, "answer {mark} came twice");
            assert_eq!(
                value["id"].to_string(),
                mark.split('/').next_back().unwrap()
            );
        }
    }

    fn step(&mut self, downstream: Downstream) {
        let ids = ["1", "\"1\"", "2", "\"x\"", "3", "4", "5", "6"];
        let id = self.random.pick(&ids[..]).to_owned();
        match self.random.below(16) {
            0..=4 => {
                let request = self.random.pick(&REQUESTS[..]).to_owned();
                let text = format!(r#"{{"jsonrpc":"2.0","id":{id},{request}}}"#);
                self.send(downstream, &text);
            }
            5..=7 => self.answer(),
            8 => {
                let text = format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
                );
                self.send(downstream, &text);
            }
            9 => self.notify(),
            10 => self.ask(),
            11 => {
                let n = self.random.below(8);
                self.send(
                    downstream,
                    &format!(r#"{{"jsonrpc":"2.0","id":{n},"result":{{}}}}"#),
                );
            }
            12 => self.lose(),
            13 => self.listen(),
            _ => {
                let millis = self.random.below(2000) as u64;
                self.now = self.now.after(Duration::from_millis(millis));
                self.give(Input::Timer);
            }
        }
    }

    fn send(&mut self, downstream: Downstream, text: &str) {
        let exchange = (downstream == Downstream::Http).then(|| ClientExchange(self.next()));
        if let Some(exchange) = exchange {
            self.exchanges.insert(exchange, Seen::default());
        }
        let accept = if self.random.below(4) == 0 {
            Accept::Json
        } else {
            Accept::Both
        };
        self.give(Input::Message {
            exchange,
            accept,
            message: message(text),
        });
    }

    fn some_call(&mut self) -> Option<CallKey> {
        let calls: Vec<u64> = self.calls.keys().copied().collect();
        let number = *calls.get(self.random.below(calls.len().max(1)))?;
        Some(CallKey {
            session: super::script::KEY,
            number,
        })
    }

    fn report(&mut self, server: Option<Arc<str>>, event: SessionEvent) {
        let server = server.unwrap_or_else(|| "time".into());
        self.give(Input::Upstream { server, event });
    }

    /// The mark names the id that the session holds for the call.
    fn answer(&mut self) {
        let Some(key) = self.some_call() else {
            return;
        };
        let server = self.calls.remove(&key.number);
        if self.random.below(4) == 0 {
            let fault = Fault::new(FaultKind::ServerExited);
            self.report(
                server,
                SessionEvent::Failed {
                    key,
                    fault,
                    server_error: None,
                },
            );
            return;
        }
        let id = self
            .session
            .pending
            .get(&key.number)
            .map(|pending| pending.id.clone());
        let id = id.map_or_else(String::new, |id| {
            String::from_utf8_lossy(id.as_slice()).into_owned()
        });
        let mark = serde_json::to_string(&format!("{}/{id}", key.number)).unwrap();
        let text = format!(
            r#"{{"jsonrpc":"2.0","result":{{"tools":[{{"name":"t"}}],"mark":{mark}}},"id":0}}"#
        );
        if self.passing.contains(&key.number) {
            self.pass(server, key, &text);
            return;
        }
        self.report(
            server,
            SessionEvent::Answer {
                key,
                message: message(&text),
            },
        );
    }

    /// The same in stretches; of some of them, only the first come now, and the rest with what
    /// happens to the call next.
    fn pass(&mut self, server: Option<Arc<str>>, key: CallKey, text: &str) {
        let (head, tail) = text.rsplit_once('0').unwrap();
        let begin = Passing::Begin { len: None };
        let bytes = |text: &str| Passing::Bytes(Bytes::copy_from_slice(text.as_bytes()));
        if self.begun.insert(key.number) {
            self.report(
                server.clone(),
                SessionEvent::Passing {
                    key,
                    passing: begin,
                },
            );
            let passing = bytes(head);
            self.report(server.clone(), SessionEvent::Passing { key, passing });
        }
        if self.random.below(2) == 0 {
            self.calls.extend(server.map(|server| (key.number, server)));
            return;
        }
        for passing in [Passing::Id, bytes(tail), Passing::End] {
            self.report(server.clone(), SessionEvent::Passing { key, passing });
        }
    }

    fn notify(&mut self) {
        let method = self
            .random
            .pick(&["progress", "message", "vendor"][..])
            .to_owned();
        let related = if self.random.below(3) == 0 {
            None
        } else {
            self.some_call()
        };
        let text = format!(r#"{{"jsonrpc":"2.0","method":"notifications/{method}"}}"#);
        let server = related.and_then(|key| self.calls.get(&key.number).cloned());
        self.report(
            server,
            SessionEvent::Notification {
                related,
                message: message(&text),
            },
        );
    }

    fn ask(&mut self) {
        let instance = InstanceKey {
            machine: MachineKey(1),
            generation: Generation(self.random.below(3) as u64),
        };
        let id = self.random.below(5);
        if self.random.below(4) == 0 {
            self.report(None, SessionEvent::InstanceGone { instance });
            return;
        }
        let related = if self.random.below(2) == 0 {
            None
        } else {
            self.some_call()
        };
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
        let server = related.and_then(|key| self.calls.get(&key.number).cloned());
        self.report(
            server,
            SessionEvent::Request {
                related,
                instance,
                message: message(&text),
            },
        );
    }

    fn lose(&mut self) {
        let open: Vec<ClientExchange> = self
            .exchanges
            .iter()
            .filter(|(exchange, seen)| !seen.ended && !self.gone.contains(exchange))
            .map(|(exchange, _)| *exchange)
            .collect();
        if let Some(exchange) = open.get(self.random.below(open.len().max(1))) {
            self.gone.insert(*exchange);
            self.give(Input::ExchangeGone(*exchange));
        }
    }

    fn listen(&mut self) {
        let open: Vec<Connection> = self
            .streams
            .iter()
            .filter(|(connection, seen)| !seen.ended && !self.closed_streams.contains(connection))
            .map(|(connection, _)| *connection)
            .collect();
        if let Some(connection) = open.get(self.random.below(open.len().max(1) * 2)) {
            self.closed_streams.insert(*connection);
            self.give(Input::StreamClosed(*connection));
            return;
        }
        let connection = Connection(self.next());
        self.streams.insert(connection, Seen::default());
        let cursors: Vec<Arc<str>> = self.cursors.keys().cloned().collect();
        let cursor = cursors.get(self.random.below(cursors.len().max(1) * 2));
        let cursor = cursor.map(|cursor| (**cursor).into());
        self.give(Input::StreamOpened { connection, cursor });
    }
}

/// Requests that a client sends; which of them exist depends on the endpoint.
const REQUESTS: [&str; 5] = [
    r#""method":"tools/call","params":{"name":"time__t"}"#,
    r#""method":"resources/read","params":{"uri":"springline://time/u:1"}"#,
    r#""method":"tools/list""#,
    r#""method":"prompts/list","params":{}"#,
    r#""method":"logging/setLevel","params":{"level":"info"}"#,
];

fn play(seed: u64, config: SessionConfig) {
    let downstream = config.downstream;
    let mut world = World::new(seed, config);
    if downstream == Downstream::Pipe {
        world.listen();
    }
    world.send(
        downstream,
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}}}}"#,
    );
    for (number, server) in std::mem::take(&mut world.calls) {
        let key = CallKey {
            session: super::script::KEY,
            number,
        };
        let result =
            Bytes::from_static(br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#);
        world.report(Some(server), SessionEvent::Started { key, result });
    }
    world.send(
        downstream,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    );
    for _ in 0..200 {
        world.step(downstream);
    }
    let ids = world
        .session
        .pending
        .values()
        .map(|pending| pending.id.as_slice());
    let ids = ids.collect::<std::collections::BTreeSet<_>>();
    assert_eq!(ids.len(), world.session.pending.len());
    world.give(Input::Close);
    assert!(world.is_closed && world.session.next_deadline().is_none());
    for (exchange, seen) in &world.exchanges {
        assert!(
            seen.ended || world.gone.contains(exchange),
            "{exchange} was never answered"
        );
    }
    assert_eq!(world.session.pending(), 0);
}

#[test]
fn no_answer_is_lost_or_given_twice_over_http() {
    for seed in 0..100 {
        play(seed, one(Downstream::Http));
    }
}

#[test]
fn no_answer_is_given_twice_on_a_pipe() {
    for seed in 0..50 {
        play(seed, one(Downstream::Pipe));
    }
}

#[test]
fn no_answer_is_lost_or_given_twice_with_all_servers() {
    for seed in 0..100 {
        let entry = |name: &str| EntryView {
            name: name.into(),
            unavailable: None,
            remembered: None,
        };
        let entries = vec![entry("time"), entry("other")];
        play(
            seed,
            SessionConfig {
                endpoint: Endpoint::All,
                entries,
                ..one(Downstream::Http)
            },
        );
    }
}
