//! Several sessions on one upstream: who hears what, and what the server is asked.
//!
//! The server is a child that does nothing by itself: a test says what it writes.

mod ask;
mod random;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Shared;
use crate::call::{CallKey, ExchangeId, Generation, InstanceKey, MachineKey, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::message::Message;
use crate::settings::UpstreamSettings;
use crate::upstream::{
    Binding, Drain, End, Hello, Input, Output, SessionEvent, Transport, Upstream, UpstreamConfig,
};

struct Scene {
    machine: Shared,
    now: Moment,
    /// What the server was sent, in order: exchange and body.
    sent: Vec<(ExchangeId, String)>,
    /// What sessions heard, in order.
    heard: Vec<String>,
    /// Who asked sessions something.
    asked: Vec<InstanceKey>,
    /// Everything else of interest.
    done: Vec<String>,
}

fn config(idle: Option<Duration>) -> UpstreamConfig {
    let settings = UpstreamSettings {
        idle_timeout: idle,
        ..UpstreamSettings::default()
    };
    UpstreamConfig {
        server: Arc::from("s"),
        transport: Transport::Stdio,
        session: SessionKey::SHARED,
        settings: settings.into(),
        base: 0,
        seed: 1,
    }
}

fn hello(text: &str) -> Hello {
    Hello {
        params: Bytes::copy_from_slice(text.as_bytes()),
    }
}

fn binding(session: u64, server: &str) -> Binding {
    Binding {
        session: SessionKey(session),
        server: Arc::from(server),
    }
}

fn key(session: u64, number: u64) -> CallKey {
    CallKey {
        session: SessionKey(session),
        number,
    }
}

fn request(method: &str, params: &str) -> Message {
    let text = format!(r#"{{"jsonrpc":"2.0","id":"c","method":"{method}","params":{params}}}"#);
    Message::parse(text).unwrap()
}

fn show(event: &SessionEvent) -> String {
    let text = |message: &Message| String::from_utf8_lossy(message.bytes()).into_owned();
    match event {
        SessionEvent::Started { key, result } => {
            format!("started {} {}", key.number, String::from_utf8_lossy(result))
        }
        SessionEvent::Answer { key, message } => {
            let body = message.result().or(message.error()).unwrap_or_default();
            format!("answer {} {}", key.number, String::from_utf8_lossy(&body))
        }
        SessionEvent::Passing { key, passing } => format!("passing {} {passing:?}", key.number),
        SessionEvent::Failed { key, fault, .. } => {
            format!("failed {} {}", key.number, fault.kind.as_str())
        }
        SessionEvent::Notification { related, message } => {
            let related = related.map_or(String::new(), |key| format!("of {key} "));
            format!("note {related}{}", text(message))
        }
        SessionEvent::Request { message, .. } => format!("asked {}", text(message)),
        SessionEvent::Withdrawn { .. } => "withdrawn".to_owned(),
        SessionEvent::InstanceGone { instance } => format!("gone {instance}"),
        SessionEvent::Renewed { .. } => "renewed".to_owned(),
        SessionEvent::StateLost { .. } => "state lost".to_owned(),
        SessionEvent::ListChanged(kind) => format!("changed {kind:?}"),
        SessionEvent::Listed { kind, .. } => format!("listed {kind:?}"),
    }
}

impl Scene {
    fn new(idle: Option<Duration>) -> Self {
        let machine = Upstream::new(config(idle), Moment::default());
        Self {
            machine: Shared::new(machine, hello(r#"{"us":1}"#), None),
            now: Moment::default(),
            sent: Vec::new(),
            heard: Vec::new(),
            asked: Vec::new(),
            done: Vec::new(),
        }
    }

    /// With so many sessions, all of them started.
    fn with(sessions: u64) -> Self {
        let mut scene = Self::new(None);
        for session in 1..=sessions {
            scene.start(session, "s");
        }
        scene.open();
        scene.heard.clear();
        scene.done.clear();
        scene
    }

    fn feed(&mut self, input: Input) {
        self.machine.handle(self.now, input);
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Send { exchange, body, .. } => {
                    let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
                    self.sent.push((exchange, body));
                }
                Output::ToSession {
                    session,
                    server,
                    event,
                } => {
                    self.heard
                        .push(format!("{session}/{server} {}", show(&event)));
                    if let SessionEvent::Request { instance, .. } = event {
                        self.asked.push(instance);
                    }
                }
                Output::Reserve { generation } => self.done.push(format!("reserve {generation}")),
                Output::End { generation, .. } => self.done.push(format!("end {generation}")),
                Output::Forget => self.done.push("forget".to_owned()),
                Output::Moved { key, .. } => self.done.push(format!("moved {key}")),
                Output::Emit(event) => {
                    if let crate::upstream::Event::Dropped { reason, .. } = event {
                        self.done.push(format!("dropped: {reason}"));
                    }
                }
                Output::Open { .. }
                | Output::Persist(_)
                | Output::Sent { .. }
                | Output::Resume { .. }
                | Output::Listen { .. }
                | Output::Abort { .. }
                | Output::RefreshCredentials => {}
            }
        }
    }

    fn of(&mut self, session: u64, server: &str, input: Input) {
        self.feed(Input::Of {
            binding: binding(session, server),
            input: Box::new(input),
        });
    }

    fn start(&mut self, session: u64, server: &str) {
        let input = Input::Start {
            key: key(session, 1),
            hello: hello(&format!(r#"{{"session":{session}}}"#)),
        };
        self.of(session, server, input);
    }

    /// The server shakes hands in the generation that is starting.
    fn open(&mut self) {
        let generation = self.machine.machine().generation();
        self.feed(Input::Admitted { generation });
        self.feed(Input::Opened { generation });
        self.says(
            r#"{"jsonrpc":"2.0","id":ID,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#,
        );
        let (exchange, _) = *self
            .sent
            .last()
            .map(|(exchange, body)| (exchange, body))
            .as_ref()
            .unwrap();
        let exchange = *exchange;
        self.feed(Input::Ended {
            generation,
            exchange,
            end: End::Accepted,
        });
    }

    fn call(&mut self, session: u64, number: u64, method: &str, params: &str) {
        let input = Input::Call {
            key: key(session, number),
            message: request(method, params),
            stretches: true,
        };
        self.of(session, "s", input);
    }

    /// The server writes a line; `ID` stands for the id of the last request that it was sent.
    fn says(&mut self, text: &str) {
        let text = text.replace("ID", &self.last_id());
        let generation = self.machine.machine().generation();
        self.feed(Input::Message {
            generation,
            exchange: None,
            message: Message::parse(text).unwrap(),
        });
    }

    /// The server answers the request with this id.
    fn answers(&mut self, id: &str) {
        self.says(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"of":{id}}}}}"#
        ));
    }

    fn last_id(&self) -> String {
        let ids = self.sent.iter().rev().filter_map(|(_, body)| {
            let message = Message::parse(body.clone()).unwrap();
            message.method()?;
            message.id()
        });
        let id = ids.map(|id| String::from_utf8(id.to_vec()).unwrap());
        id.take(1).next().unwrap_or_default()
    }

    fn close(&mut self, session: u64, end_session: bool) {
        let fault = Fault::new(FaultKind::SessionEnded);
        self.of(session, "s", Input::Close { fault, end_session });
    }

    fn sent_of(&self, method: &str) -> Vec<&str> {
        let name = format!("\"{method}\"");
        let bodies = self.sent.iter().map(|(_, body)| body.as_str());
        bodies.filter(|body| body.contains(&name)).collect()
    }

    fn heard(&mut self) -> Vec<String> {
        std::mem::take(&mut self.heard)
    }
}

#[test]
fn one_handshake_serves_all_and_carries_our_own_parameters() {
    let mut scene = Scene::new(None);
    scene.start(1, "s");
    scene.start(2, "s");
    scene.start(2, "alias");
    scene.open();
    assert_eq!(scene.sent_of("initialize").len(), 1);
    assert!(scene.sent_of("initialize")[0].contains(r#""us":1"#));
    let heard = scene.heard();
    assert_eq!(heard.len(), 2, "{heard:?}");
    scene.start(3, "s");
    assert!(scene.heard()[0].starts_with("3/s started 1 {\"protocolVersion\""));
    assert_eq!(scene.done, ["reserve 1"]);
}

#[test]
fn the_same_ids_and_tokens_of_two_clients_never_meet() {
    let mut scene = Scene::with(2);
    let params = r#"{"name":"a","_meta":{"progressToken":"t"}}"#;
    scene.call(1, 7, "tools/call", params);
    let first = scene.last_id();
    scene.call(2, 7, "tools/call", params);
    let second = scene.last_id();
    assert_ne!(first, second);
    scene.says(
        r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":ID,"progress":1}}"#,
    );
    let heard = scene.heard();
    assert_eq!(heard.len(), 1);
    assert!(
        heard[0].starts_with("2/s note of 2:7") && heard[0].contains(r#""progressToken":"t""#),
        "{heard:?}"
    );
    scene.answers(&first);
    scene.answers(&second);
    let heard = scene.heard();
    assert_eq!(heard[0], format!("1/s answer 7 {{\"of\":{first}}}"));
    assert_eq!(heard[1], format!("2/s answer 7 {{\"of\":{second}}}"));
}

const LOG: &str =
    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":1}}"#;
const ASK: &str = r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{}}"#;

#[test]
fn what_is_nobodys_goes_to_the_one_with_calls_in_flight_and_to_none_of_several() {
    let mut scene = Scene::with(3);
    scene.says(LOG);
    assert_eq!(scene.heard(), [] as [String; 0]);
    scene.call(2, 5, "tools/call", "{}");
    scene.says(LOG);
    scene.says(ASK);
    let heard = scene.heard();
    assert!(
        heard.iter().all(|line| line.starts_with("2/s")),
        "{heard:?}"
    );
    assert_eq!(heard.len(), 2);
    scene.call(1, 5, "tools/call", "{}");
    scene.says(LOG);
    assert_eq!(scene.heard(), [] as [String; 0]);
    scene.says(&ASK.replace("\"q\"", "\"q2\""));
    assert_eq!(scene.heard(), [] as [String; 0]);
    let refusal = &scene.sent.last().unwrap().1;
    assert!(
        refusal.contains("\"q2\"") && refusal.contains("CLIENT_UNREACHABLE"),
        "{refusal}"
    );
    // Only who was asked may answer.
    let reply = |generation| Input::Reply {
        instance: InstanceKey {
            machine: MachineKey(1),
            generation,
        },
        id: Bytes::from_static(b"\"q\""),
        message: Message::parse(r#"{"jsonrpc":"2.0","id":1,"result":{"mine":1}}"#).unwrap(),
    };
    let before = scene.sent.len();
    scene.of(1, "s", reply(Generation(1)));
    assert_eq!(scene.sent.len(), before);
    scene.of(2, "s", reply(Generation(1)));
    assert!(scene.sent.last().unwrap().1.contains("\"mine\""));
}

#[test]
fn changed_lists_are_for_all_and_updates_for_those_that_subscribed() {
    let mut scene = Scene::with(3);
    scene.says(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    let heard = scene.heard();
    assert_eq!(heard.len(), 3, "{heard:?}");
    scene.call(2, 5, "resources/subscribe", r#"{"uri":"x:/a"}"#);
    scene.answers("ID");
    scene.heard();
    let update = |uri: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
        )
    };
    scene.says(&update("x:/a/b"));
    scene.says(&update("x:/c"));
    let heard = scene.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].starts_with("2/s note"));
}

#[test]
fn the_server_is_subscribed_from_the_first_session_to_the_last() {
    let mut scene = Scene::with(3);
    let uri = r#"{"uri":"x:/a"}"#;
    scene.call(1, 5, "resources/subscribe", uri);
    // The second waits for what becomes of the first.
    scene.call(2, 5, "resources/subscribe", uri);
    assert_eq!(scene.sent_of("resources/subscribe").len(), 1);
    scene.answers("ID");
    assert_eq!(scene.heard().len(), 2);
    scene.call(3, 5, "resources/subscribe", uri);
    assert_eq!(scene.heard(), ["3/s answer 5 {}"]);
    assert_eq!(scene.sent_of("resources/subscribe").len(), 1);
    scene.call(1, 6, "resources/unsubscribe", uri);
    assert_eq!(scene.heard(), ["1/s answer 6 {}"]);
    scene.close(2, true);
    assert_eq!(scene.sent_of("resources/unsubscribe").len(), 0);
    scene.close(3, true);
    assert_eq!(scene.sent_of("resources/unsubscribe").len(), 1);
    // Wanted again while that is under way: after it.
    scene.call(1, 7, "resources/subscribe", uri);
    assert_eq!(scene.sent_of("resources/subscribe").len(), 1);
    scene.answers("ID");
    assert_eq!(scene.sent_of("resources/subscribe").len(), 2);
    scene.answers("ID");
    assert!(scene.heard().last().unwrap().starts_with("1/s answer 7"));
}

#[test]
fn the_server_logs_as_much_as_the_most_curious_session_wants() {
    let mut scene = Scene::with(2);
    let levels = |scene: &Scene| -> Vec<String> {
        let sent = scene.sent_of("logging/setLevel");
        let level = |body: &&str| {
            let at = body.find("\"level\":\"").unwrap() + 9;
            body[at..].split('"').next().unwrap().to_owned()
        };
        sent.iter().map(level).collect()
    };
    scene.call(1, 5, "logging/setLevel", r#"{"level":"debug"}"#);
    scene.answers("ID");
    scene.call(2, 5, "logging/setLevel", r#"{"level":"error"}"#);
    assert_eq!(scene.heard().len(), 2);
    assert_eq!(levels(&scene), ["debug"]);
    scene.call(1, 6, "logging/setLevel", r#"{"level":"critical"}"#);
    assert_eq!(levels(&scene), ["debug", "error"]);
    scene.answers("ID");
    assert!(scene.heard()[0].starts_with("1/s answer 6"));
    scene.close(2, true);
    assert_eq!(levels(&scene), ["debug", "error", "critical"]);
}

#[test]
fn a_session_that_ends_takes_only_its_own_calls_along() {
    let mut scene = Scene::with(2);
    scene.call(1, 5, "tools/call", "{}");
    let first = scene.last_id();
    scene.call(2, 5, "tools/call", "{}");
    let second = scene.last_id();
    scene.close(1, true);
    let cancelled = scene.sent_of("notifications/cancelled");
    assert_eq!(cancelled.len(), 1);
    assert!(cancelled[0].contains(&format!("\"requestId\":{first}")));
    scene.answers(&first);
    scene.answers(&second);
    let heard = scene.heard();
    assert_eq!(heard, [format!("2/s answer 5 {{\"of\":{second}}}")]);
    assert_eq!(scene.machine.bindings_len(), 1);
}

#[test]
fn the_instance_ends_with_the_last_session_unless_one_may_come_back() {
    let mut scene = Scene::with(2);
    scene.close(1, true);
    scene.close(2, false);
    assert!(
        !scene.done.contains(&"end 1".to_owned()),
        "{:?}",
        scene.done
    );
    scene.close(9, true);
    assert_eq!(scene.done, ["forget", "end 1"]);
    scene.start(3, "s");
    scene.open();
    assert_eq!(scene.done, ["forget", "end 1", "reserve 2"]);
    let heard = scene.heard();
    assert_eq!(heard.len(), 1, "{heard:?}");
}

#[test]
fn the_last_session_may_leave_the_instance_for_a_while() {
    let mut scene = Scene::new(Some(Duration::from_secs(5)));
    scene.start(1, "s");
    scene.open();
    scene.now = scene.now.after(Duration::from_mins(1));
    scene.feed(Input::Timer);
    assert_eq!(scene.done, ["reserve 1"], "somebody uses it");
    scene.close(1, true);
    scene.now = scene.now.after(Duration::from_secs(4));
    scene.start(2, "s");
    scene.close(2, true);
    let due = scene.machine.next_deadline().unwrap();
    assert_eq!(due, scene.now.after(Duration::from_secs(5)));
    scene.now = due;
    scene.feed(Input::Timer);
    assert_eq!(scene.done, ["reserve 1", "forget", "end 1"]);
}

#[test]
fn a_lost_instance_is_recovered_once_for_all_and_told_what_all_wanted() {
    let mut scene = Scene::with(2);
    scene.call(1, 5, "resources/subscribe", r#"{"uri":"x:/a"}"#);
    scene.answers("ID");
    scene.heard();
    scene.feed(Input::Lost {
        generation: Generation(1),
        cause: "exit".into(),
        never_ran: false,
    });
    scene.call(1, 6, "tools/call", "{}");
    scene.call(2, 6, "tools/call", "{}");
    assert_eq!(scene.done.last().unwrap(), "reserve 2");
    scene.open();
    assert_eq!(scene.sent_of("initialize").len(), 2);
    assert_eq!(scene.sent_of("resources/subscribe").len(), 2);
    assert_eq!(scene.sent_of("tools/call").len(), 2);
    let heard = scene.heard();
    for session in ["1/s", "2/s"] {
        let lost = format!("{session} state lost");
        assert_eq!(
            heard.iter().filter(|line| **line == lost).count(),
            1,
            "{heard:?}"
        );
    }
}

/// What another machine goes on with, and what it was given.
fn handed_over(scene: &mut Scene) -> Shared {
    let legacy = scene.machine.legacy();
    scene.feed(Input::Drain(Drain::Move));
    Shared::succeed(config(None), legacy, scene.now)
}

#[test]
fn the_next_machine_knows_all_sessions_and_the_old_one_finishes_their_calls() {
    let mut scene = Scene::with(2);
    scene.call(1, 5, "resources/subscribe", r#"{"uri":"x:/a"}"#);
    scene.answers("ID");
    scene.call(1, 6, "tools/call", "{}");
    let flight = scene.last_id();
    scene.call(2, 7, "resources/unsubscribe", r#"{"uri":"x:/b"}"#);
    scene.heard();
    let mut next = Scene::new(None);
    next.machine = handed_over(&mut scene);
    assert_eq!(scene.done, ["moved 2:7"]);
    next.feed(Input::Take {
        key: key(2, 7),
        moved: Box::new(crate::upstream::Moved::fresh(
            next.now,
            request("resources/unsubscribe", r#"{"uri":"x:/b"}"#),
        )),
    });
    next.open();
    assert_eq!(next.sent_of("resources/subscribe").len(), 1);
    assert_eq!(next.sent_of("resources/unsubscribe").len(), 1);
    next.answers("ID");
    next.call(2, 8, "tools/call", "{}");
    next.answers("ID");
    let heard = next.heard();
    assert!(
        heard.iter().any(|line| line.starts_with("2/s answer 8")),
        "{heard:?}"
    );
    scene.answers(&flight);
    assert_eq!(scene.heard().len(), 1);
    assert!(scene.done.contains(&"end 1".to_owned()));
}

#[test]
fn a_call_that_comes_ahead_of_every_handshake_starts_the_server_all_the_same() {
    let mut scene = Scene::new(None);
    scene.call(1, 5, "tools/call", "{}");
    scene.open();
    assert!(scene.sent_of("initialize")[0].contains(r#""params":{"us":1}"#));
    scene.answers("ID");
    assert_eq!(scene.heard().last().unwrap(), "1/s answer 5 {\"of\":2}");
}

#[test]
fn a_machine_in_the_place_of_one_that_nobody_used_takes_what_comes_first() {
    let mut scene = Scene::with(1);
    scene.close(1, true);
    assert_eq!(scene.done, ["forget", "end 1"]);
    let mut next = Scene::new(None);
    next.machine = handed_over(&mut scene);
    let moved = crate::upstream::Moved::fresh(next.now, request("tools/call", "{}"));
    let (key, moved) = (key(2, 7), Box::new(moved));
    next.of(2, "s", Input::Take { key, moved });
    next.open();
    next.answers("ID");
    let heard = next.heard();
    assert!(
        heard.iter().any(|line| line.starts_with("2/s answer 7")),
        "{heard:?}"
    );
}

#[test]
fn a_session_gets_an_upstream_of_its_own_with_what_it_had_here() {
    let mut scene = Scene::with(2);
    scene.call(1, 5, "resources/subscribe", r#"{"uri":"x:/a"}"#);
    scene.answers("ID");
    scene.call(1, 6, "tools/call", "{}");
    let flight = scene.last_id();
    scene.call(1, 7, "resources/subscribe", r#"{"uri":"x:/b"}"#);
    scene.heard();
    let (legacy, moved) = scene.machine.part(scene.now, &binding(1, "s"), true);
    assert_eq!(legacy.hello().unwrap().params, r#"{"session":1}"#);
    assert_eq!(legacy.wishes().0.len(), 1);
    assert_eq!(moved.len(), 1);
    scene.feed(Input::Timer);
    scene.says(r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
    assert_eq!(scene.heard().len(), 1, "only the other is told");
    scene.answers(&flight);
    assert!(scene.heard()[0].starts_with("1/s answer 6"));
    assert_eq!(scene.machine.bindings_len(), 1);
    scene.call(2, 5, "tools/call", "{}");
    scene.machine.part(scene.now, &binding(2, "s"), true);
    scene.feed(Input::Timer);
    assert_eq!(scene.done, [] as [String; 0], "a call is in flight");
    scene.answers("ID");
    assert_eq!(scene.done, ["forget", "end 1"]);
}

#[test]
fn sessions_that_come_back_after_a_restart_bring_their_wishes() {
    let mut scene = Scene::new(None);
    scene.of(1, "s", Input::Greet { hello: hello("{}") });
    scene.of(
        1,
        "s",
        Input::Holds {
            subscriptions: vec!["x:/a".into()],
            level: Some(Bytes::from_static(b"\"info\"")),
        },
    );
    scene.call(1, 5, "tools/call", "{}");
    scene.open();
    assert_eq!(scene.sent_of("resources/subscribe").len(), 1);
    assert_eq!(scene.sent_of("logging/setLevel").len(), 1);
    scene.call(2, 6, "resources/subscribe", r#"{"uri":"x:/a"}"#);
    assert!(scene.heard().contains(&"2/s answer 6 {}".to_owned()));
}
