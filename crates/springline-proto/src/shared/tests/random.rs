//! Random sessions before a random server, against a naive model of what each client may hear.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::{binding, config, hello, key, request};
use crate::call::{CallKey, Generation, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::json;
use crate::message::{Kind, Message};
use crate::random::Random;
use crate::session::Level;
use crate::shared::Shared;
use crate::upstream::{
    Binding, Drain, End, Event, Input, Output, Purpose, SessionEvent, Standby, Upstream,
};

const URIS: [&str; 3] = ["x:/a", "x:/b", "x:/c"];
const LEVELS: [&str; 3] = ["debug", "info", "error"];

/// A child as the server sees itself.
#[derive(Default)]
struct Instance {
    subscribed: BTreeSet<String>,
    level: Option<Level>,
    /// Requests that are not answered: id, message, and whether they fail.
    open: Vec<(Bytes, Message, bool)>,
}

/// What one client knows.
#[derive(Default)]
struct Client {
    open: bool,
    subscribed: BTreeSet<String>,
    level: Option<Level>,
    /// Its requests that are not answered.
    waits: BTreeMap<u64, Message>,
    last: u64,
}

/// One machine with its instances; the last one is in service.
struct Place {
    machine: Shared,
    instances: BTreeMap<Generation, Instance>,
}

struct World {
    seed: u64,
    random: Random,
    now: Moment,
    places: Vec<Place>,
    work: VecDeque<(usize, Input)>,
    clients: Vec<Client>,
    /// From now on nothing goes wrong.
    calm: bool,
    /// Ends of instances, of all machines.
    ended: usize,
    /// Those of them that made room for another.
    gave_way: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let machine = Upstream::new(config(None), Moment::default());
        let place = Place {
            machine: Shared::new(machine, hello("{}"), None),
            instances: BTreeMap::new(),
        };
        Self {
            seed,
            random: Random::new(seed),
            now: Moment::default(),
            places: vec![place],
            work: VecDeque::new(),
            clients: (0..3).map(|_| Client::default()).collect(),
            calm: false,
            ended: 0,
            gave_way: 0,
        }
    }

    /// Lets the machines do what they have to do.
    fn settle(&mut self) {
        while let Some((at, input)) = self.work.pop_front() {
            self.places[at].machine.handle(self.now, input);
            while let Some(output) = self.places[at].machine.poll() {
                self.perform(at, output);
            }
        }
    }

    /// What a client says; what ends something reaches the machines on their way out, too.
    fn say(&mut self, who: usize, input: &Input) {
        let last = self.places.len() - 1;
        let everywhere = matches!(input, Input::Cancel { .. } | Input::Close { .. });
        for at in if everywhere { 0 } else { last }..=last {
            let input = Input::Of {
                binding: binding(who as u64, "s"),
                input: Box::new(input.clone()),
            };
            self.work.push_back((at, input));
        }
        self.settle();
    }

    fn perform(&mut self, at: usize, output: Output) {
        match output {
            Output::Reserve { generation } => {
                if self.random.below(4) == 0 {
                    let max = 1;
                    self.work
                        .push_back((at, Input::Crowded { generation, max }));
                }
                self.work.push_back((at, Input::Admitted { generation }));
            }
            Output::Open { generation } => {
                self.places[at]
                    .instances
                    .insert(generation, Instance::default());
                self.work.push_back((at, Input::Opened { generation }));
            }
            Output::Send {
                generation,
                exchange,
                body,
                purpose,
                ..
            } => {
                let message = Message::parse(body.to_bytes()).unwrap();
                // What the gateway asks for itself must not fail: nobody would hear of it.
                let may_fail = match message.method().as_deref() {
                    Some("tools/call") => true,
                    Some("resources/subscribe") => generation == Generation(1),
                    _ => false,
                };
                let fails = may_fail && !self.calm && self.random.below(8) == 0;
                if let Some(instance) = self.places[at].instances.get_mut(&generation) {
                    instance.hear(purpose, message, fails);
                }
                let end = End::Accepted;
                let input = Input::Ended {
                    generation,
                    exchange,
                    end,
                };
                self.work.push_back((at, input));
            }
            Output::End { generation, .. } => {
                self.ended += 1;
                self.places[at].instances.remove(&generation);
            }
            Output::Moved { key, server, moved } => {
                let last = self.places.len() - 1;
                assert_ne!(at, last, "{}", self.seed);
                let mut input = Input::Take { key, moved };
                if key.session != SessionKey::SHARED {
                    let session = key.session;
                    input = Input::Of {
                        binding: Binding { session, server },
                        input: Box::new(input),
                    };
                }
                self.work.push_back((last, input));
            }
            Output::ToSession {
                session,
                server,
                event,
            } => {
                assert_eq!(&*server, "s");
                self.hear(usize::try_from(session.0).unwrap(), event);
            }
            Output::Emit(Event::Drained) => assert!(at + 1 < self.places.len()),
            Output::Emit(_)
            | Output::Persist(_)
            | Output::Forget
            | Output::Sent { .. }
            | Output::Resume { .. }
            | Output::Listen { .. }
            | Output::Abort { .. }
            | Output::RefreshCredentials => {}
        }
    }

    /// A client hears something: it must be its own.
    fn hear(&mut self, who: usize, event: SessionEvent) {
        let seed = self.seed;
        let client = &mut self.clients[who];
        match event {
            SessionEvent::Answer { key, message } => {
                assert_eq!(key.session.0, who as u64, "{seed}");
                let asked = client.waits.remove(&key.number);
                let asked = asked.unwrap_or_else(|| panic!("{seed}: {key} once more"));
                client.learn(key, &asked, &message, seed);
            }
            SessionEvent::Started { key, .. } | SessionEvent::Failed { key, .. } => {
                assert_eq!(key.session.0, who as u64, "{seed}");
                assert!(client.waits.remove(&key.number).is_some(), "{seed}: {key}");
            }
            SessionEvent::Notification { related, message } => {
                assert!(related.is_none_or(|key| key.session.0 == who as u64));
                let is_update =
                    message.method().as_deref() == Some("notifications/resources/updated");
                if is_update && client.open {
                    let raw = message.param("uri").unwrap();
                    let uri = json::string(&raw).unwrap().into_owned();
                    let asked = |message: &Message| message.param("uri").as_ref() == Some(&raw);
                    let knows =
                        client.subscribed.contains(&uri) || client.waits.values().any(asked);
                    assert!(knows, "{seed}: {who} did not subscribe to {uri}");
                }
            }
            SessionEvent::Request { .. }
            | SessionEvent::Withdrawn { .. }
            | SessionEvent::InstanceGone { .. }
            | SessionEvent::Renewed { .. }
            | SessionEvent::StateLost { .. }
            | SessionEvent::ListChanged(_)
            | SessionEvent::Listed { .. } => {}
            SessionEvent::Passing { .. } => panic!("{seed}: nothing is large here"),
        }
    }

    fn ask(&mut self, who: usize, method: &str, params: &str) {
        let client = &mut self.clients[who];
        client.last += 1;
        let number = client.last;
        let message = request(method, params);
        client.waits.insert(number, message.clone());
        let key = key(who as u64, number);
        let call = Input::Call {
            key,
            message,
            stretches: false,
        };
        self.say(who, &call);
    }

    fn start(&mut self, who: usize) {
        let client = &mut self.clients[who];
        client.open = true;
        client.last += 1;
        let number = client.last;
        client.waits.insert(number, request("initialize", "{}"));
        let key = key(who as u64, number);
        let hello = hello("{}");
        self.say(who, &Input::Start { key, hello });
    }

    fn end(&mut self, who: usize) {
        let last = self.clients[who].last;
        self.clients[who] = Client {
            last,
            ..Client::default()
        };
        let fault = Fault::new(FaultKind::SessionEnded);
        let end_session = true;
        self.say(who, &Input::Close { fault, end_session });
    }

    fn act(&mut self) {
        let who = self.random.below(self.clients.len());
        if !self.clients[who].open {
            self.start(who);
            return;
        }
        let uri = self.random.pick(&URIS);
        match self.random.below(11) {
            0..=2 => {
                let number = self.clients[who].last + 1;
                let params =
                    format!(r#"{{"name":"{who}:{number}","_meta":{{"progressToken":1}}}}"#);
                self.ask(who, "tools/call", &params);
            }
            3 | 4 => self.ask(who, "resources/subscribe", &format!(r#"{{"uri":"{uri}"}}"#)),
            5 => self.ask(
                who,
                "resources/unsubscribe",
                &format!(r#"{{"uri":"{uri}"}}"#),
            ),
            6 => {
                let level = self.random.pick(&LEVELS);
                self.ask(
                    who,
                    "logging/setLevel",
                    &format!(r#"{{"level":"{level}"}}"#),
                );
            }
            7 => {
                let calls = self.clients[who].waits.iter();
                let is_call = |message: &Message| message.method().as_deref() == Some("tools/call");
                let number = calls
                    .filter(|(_, message)| is_call(message))
                    .map(|(number, _)| *number)
                    .next();
                if let Some(number) = number {
                    self.clients[who].waits.remove(&number);
                    let key = key(who as u64, number);
                    self.say(who, &Input::Cancel { key, message: None });
                }
            }
            8 => {
                let attached = self.random.below(2) == 0;
                self.say(who, &Input::Attached(attached));
            }
            9 => self.give_way(),
            _ => self.end(who),
        }
    }

    /// Another server needs the place of the child in service.
    fn give_way(&mut self) {
        let at = self.places.len() - 1;
        let machine = &mut self.places[at].machine;
        let may = machine.machine().gives_way().is_some();
        let gone = machine.give_way(self.now);
        assert_eq!(gone.is_some(), may, "{}", self.seed);
        self.work.push_back((at, Input::Timer));
        self.settle();
        if let Some(generation) = gone {
            let is_left = self.places[at].instances.contains_key(&generation);
            assert!(!is_left, "{}: it is not ended", self.seed);
            self.gave_way += 1;
        }
    }

    /// The servers do something.
    fn serve(&mut self) {
        let at = self.random.below(self.places.len());
        let generations: Vec<Generation> = self.places[at].instances.keys().copied().collect();
        if generations.is_empty() {
            return;
        }
        let generation = generations[self.random.below(generations.len())];
        let uri = self.random.pick(&URIS);
        let text = match self.random.below(if self.calm { 6 } else { 12 }) {
            0..=5 => {
                self.answer(at, generation);
                return;
            }
            6 => r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_owned(),
            7 => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}"}}}}"#
            ),
            8 => r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#.to_owned(),
            9 => super::LOG.to_owned(),
            10 => {
                self.places[at].instances.remove(&generation);
                let input = Input::Lost {
                    generation,
                    cause: "exit".into(),
                    never_ran: false,
                };
                self.work.push_back((at, input));
                self.settle();
                return;
            }
            _ => {
                self.hand_over();
                return;
            }
        };
        self.write(at, generation, text);
    }

    fn write(&mut self, at: usize, generation: Generation, text: String) {
        let message = Message::parse(text).unwrap();
        let exchange = None;
        self.work.push_back((
            at,
            Input::Message {
                generation,
                exchange,
                message,
            },
        ));
        self.settle();
    }

    fn answer(&mut self, at: usize, generation: Generation) {
        let Some(instance) = self.places[at].instances.get_mut(&generation) else {
            return;
        };
        if instance.open.is_empty() {
            return;
        }
        let which = self.random.below(instance.open.len());
        let (id, message, fails) = instance.open.remove(which);
        let id = String::from_utf8(id.to_vec()).unwrap();
        let text = if fails {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"no"}}}}"#)
        } else {
            let result = Instance::result(&message);
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
        };
        self.write(at, generation, text);
    }

    /// Another configuration takes the place of the present one.
    fn hand_over(&mut self) {
        if self.places.len() > 4 {
            return;
        }
        let last = self.places.len() - 1;
        let legacy = self.places[last].machine.legacy();
        self.places.push(Place {
            machine: Shared::succeed(config(None), legacy, self.now),
            instances: BTreeMap::new(),
        });
        self.work.push_back((last + 1, Input::Timer));
        self.work.push_back((last, Input::Drain(Drain::Move)));
        self.settle();
    }

    fn pass(&mut self) {
        self.now = self.now.after(std::time::Duration::from_secs(1));
        for at in 0..self.places.len() {
            self.work.push_back((at, Input::Timer));
        }
        self.settle();
    }

    /// Faults stop: everything that is open comes to its end.
    fn calm_down(&mut self) {
        self.calm = true;
        for who in 0..self.clients.len() {
            if self.clients[who].open {
                let number = self.clients[who].last + 1;
                self.ask(
                    who,
                    "tools/call",
                    &format!(r#"{{"name":"{who}:{number}"}}"#),
                );
            }
        }
        for _ in 0..2000 {
            self.serve();
            if self.random.below(10) == 0 {
                self.pass();
            }
        }
    }

    fn check(&self) {
        let seed = self.seed;
        for (who, client) in self.clients.iter().enumerate() {
            let waits: Vec<&u64> = client.waits.keys().collect();
            assert_eq!(waits, [] as [&u64; 0], "{seed}: {who} waits");
        }
        let place = self.places.last().unwrap();
        let machine = &place.machine;
        assert!(machine.calls.is_empty(), "{seed}: {:?}", machine.calls);
        assert!(machine.wishes.is_empty(), "{seed}: {:?}", machine.wishes);
        assert!(machine.lines.is_empty(), "{seed}: {:?}", machine.lines);
        let open = self.clients.iter().filter(|client| client.open).count();
        assert_eq!(machine.bindings.len(), open, "{seed}");
        let Standby::Ready(generation) = machine.machine().standby() else {
            assert_eq!(open, 0, "{seed}");
            return;
        };
        let instance = &place.instances[&generation];
        let wanted: BTreeSet<String> = self
            .clients
            .iter()
            .flat_map(|client| client.subscribed.iter().cloned())
            .collect();
        assert_eq!(instance.subscribed, wanted, "{seed}");
        if let Some(level) = self.clients.iter().filter_map(|client| client.level).min() {
            assert_eq!(instance.level, Some(level), "{seed}");
        }
    }
}

impl Instance {
    fn hear(&mut self, purpose: Purpose, message: Message, fails: bool) {
        match purpose {
            Purpose::Initialize | Purpose::Request => {
                if !fails {
                    self.obey(&message);
                }
                self.open.push((message.id().unwrap(), message, fails));
            }
            Purpose::Initialized => {}
            Purpose::Oneway => {
                if let Some(id) = message.param("requestId") {
                    self.open.retain(|(open, ..)| *open != id);
                }
            }
        }
    }

    /// Does what a request asks for, as it comes; it may be answered later.
    fn obey(&mut self, message: &Message) {
        let uri = || {
            let raw = message.param("uri").unwrap();
            json::string(&raw).unwrap().into_owned()
        };
        match message.method().as_deref() {
            Some("resources/subscribe") => {
                self.subscribed.insert(uri());
            }
            Some("resources/unsubscribe") => {
                self.subscribed.remove(&uri());
            }
            Some("logging/setLevel") => {
                self.level = Level::parse(&message.param("level").unwrap());
            }
            _ => {}
        }
    }

    fn result(message: &Message) -> String {
        match message.method().as_deref() {
            Some("initialize") => {
                r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#.to_owned()
            }
            Some("tools/call") => {
                let name = message.param("name").unwrap();
                format!(r#"{{"of":{}}}"#, String::from_utf8_lossy(&name))
            }
            _ => "{}".to_owned(),
        }
    }
}

impl Client {
    fn learn(&mut self, key: CallKey, asked: &Message, answer: &Message, seed: u64) {
        if answer.kind() != Kind::Result {
            return;
        }
        let uri = || {
            let raw = asked.param("uri").unwrap();
            json::string(&raw).unwrap().into_owned()
        };
        match asked.method().as_deref() {
            Some("tools/call") => {
                let result = String::from_utf8(answer.result().unwrap().to_vec()).unwrap();
                let own = format!(r#"{{"of":"{}:{}"}}"#, key.session, key.number);
                assert_eq!(result, own, "{seed}");
            }
            Some("resources/subscribe") => {
                self.subscribed.insert(uri());
            }
            Some("resources/unsubscribe") => {
                self.subscribed.remove(&uri());
            }
            Some("logging/setLevel") => {
                self.level = Level::parse(&asked.param("level").unwrap());
            }
            _ => {}
        }
    }
}

#[test]
fn sessions_hear_what_is_theirs_and_the_server_is_told_what_they_want_whatever_happens() {
    let mut gave_way = 0;
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..60 {
            if world.random.below(2) == 0 {
                world.act();
            } else {
                world.serve();
            }
            if world.random.below(10) == 0 {
                world.pass();
            }
        }
        world.calm_down();
        world.check();
        gave_way += world.gave_way;
        for who in 0..world.clients.len() {
            world.end(who);
        }
        let place = world.places.last().unwrap();
        assert!(place.instances.is_empty(), "{seed}: an instance is left");
        assert!(place.machine.bindings.is_empty() && place.machine.asks.is_empty());
        for place in &world.places {
            assert!(
                place.instances.is_empty(),
                "{seed}: an old instance is left"
            );
        }
    }
    assert!(gave_way > 20, "{gave_way}");
}
