//! Sessions that go between machines with a question open: the answer goes to who asked.

use super::*;
use crate::call::InstanceKey;

/// The upstream that a session has for itself, as the driver of one sees it.
struct Own {
    machine: Upstream,
    /// What its server was sent.
    sent: Vec<String>,
    /// Who asked.
    asked: Vec<InstanceKey>,
}

impl Own {
    /// The session parts from what it shared.
    fn of(scene: &mut Scene, session: u64) -> Self {
        let parted = scene.machine.part(scene.now, &binding(session, "s"), true);
        let config = UpstreamConfig {
            session: SessionKey(session),
            seed: 2,
            ..config(None)
        };
        Self {
            machine: Upstream::succeed(config, parted.0, scene.now),
            sent: Vec::new(),
            asked: Vec::new(),
        }
    }

    fn feed(&mut self, now: Moment, input: Input) {
        self.machine.handle(now, input);
        while let Some(output) = self.machine.poll() {
            if let Output::Send { body, .. } = output {
                let body = body.to_bytes().to_vec();
                self.sent.push(String::from_utf8(body).unwrap());
            } else if let Output::ToSession {
                event: SessionEvent::Request { instance, .. },
                ..
            } = output
            {
                self.asked.push(instance);
            }
        }
    }

    /// A call, and the handshake as far as the answer to `initialize` in it.
    fn begin(&mut self, now: Moment) {
        self.feed(
            now,
            Input::Call {
                key: key(1, 90),
                message: request("tools/call", "{}"),
                stretches: true,
            },
        );
        let generation = self.machine.generation();
        self.feed(now, Input::Admitted { generation });
        self.feed(now, Input::Opened { generation });
        assert_eq!(self.sent.len(), 1, "the handshake alone: {:?}", self.sent);
    }
}

/// The shared upstream opens another instance, for a session that stays.
fn renew(scene: &mut Scene, session: u64) {
    let generation = scene.machine.machine().generation();
    scene.feed(Input::Lost {
        generation,
        cause: "exit status 1".into(),
        never_ran: false,
    });
    scene.call(session, 50, "tools/call", "{}");
    scene.open();
    scene.answers("ID");
    scene.heard();
}

fn reply(instance: InstanceKey) -> Input {
    Input::Reply {
        instance,
        id: Bytes::from_static(b"\"q\""),
        message: Message::parse(r#"{"jsonrpc":"2.0","id":1,"result":{"mine":1}}"#).unwrap(),
    }
}

#[test]
fn an_answer_reaches_the_machine_that_asked_and_no_other_of_the_same_generation() {
    let mut scene = Scene::with(2);
    let mut own = Own::of(&mut scene, 1);
    own.begin(scene.now);
    renew(&mut scene, 2);
    let (mine, theirs) = (
        own.machine.generation(),
        scene.machine.machine().generation(),
    );
    assert_eq!(mine, theirs, "each counts on from what both knew");
    // The session comes back, and is asked by the instance that all share.
    let legacy = Box::new(own.machine.legacy());
    scene.of(1, "s", Input::Join(legacy));
    scene.call(1, 7, "tools/call", "{}");
    scene.says(ASK);
    let asked = *scene.asked.last().unwrap();
    assert!(scene.machine.machine().has(asked) && !own.machine.has(asked));
    let before = own.sent.len();
    own.feed(scene.now, reply(asked));
    assert_eq!(own.sent.len(), before, "spoken to before it was ready");
    scene.of(1, "s", reply(asked));
    assert!(scene.sent.last().unwrap().1.contains("\"mine\""));
}

#[test]
fn an_answer_to_its_own_upstream_is_no_answer_to_what_it_shares_now() {
    let mut scene = Scene::with(2);
    let mut own = Own::of(&mut scene, 1);
    own.begin(scene.now);
    renew(&mut scene, 2);
    let legacy = Box::new(own.machine.legacy());
    scene.of(1, "s", Input::Join(legacy));
    scene.call(1, 7, "tools/call", "{}");
    scene.says(ASK);
    let generation = own.machine.generation();
    let question = Message::parse(ASK).unwrap();
    let exchange = None;
    own.feed(
        scene.now,
        Input::Message {
            generation,
            exchange,
            message: question,
        },
    );
    let (mine, theirs) = (own.asked[0], *scene.asked.last().unwrap());
    assert_eq!(mine.generation, theirs.generation);
    assert_ne!(
        mine, theirs,
        "one id of each, and a client answers one of them"
    );
    let before = scene.sent.len();
    scene.of(1, "s", reply(mine));
    assert_eq!(scene.sent.len(), before);
}

#[test]
fn who_is_asked_by_an_instance_that_nobody_uses_any_more_hears_that_it_is_gone() {
    let mut scene = Scene::with(1);
    scene.call(1, 7, "tools/call", "{}");
    let call = scene.last_id();
    scene.says(ASK);
    // Its call has its answer, its question is open, and the last that held the instance parts.
    scene.answers(&call);
    scene.heard();
    scene.machine.part(scene.now, &binding(1, "s"), true);
    scene.feed(Input::Timer);
    assert!(scene.done.contains(&"end 1".to_owned()), "{:?}", scene.done);
    assert_eq!(scene.heard(), ["1/s gone 1"]);
}
