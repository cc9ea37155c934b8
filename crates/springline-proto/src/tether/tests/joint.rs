//! A tether and a session machine with a wire between them that breaks, and a gateway that is
//! killed between any two effects: random steps, and what must hold of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::call::{CallKey, Connection, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::message::{Kind, Message};
use crate::random::Random;
use crate::session::{
    ClientFrame, Comeback, Downstream, Endpoint, Input as SessionInput, Mark,
    Output as SessionOutput, Part, Past, PastCall, Record, Session, SessionConfig, Welcome,
    unnoted,
};
use crate::settings::SessionSettings;
use crate::tether::{Input, Output, Tether};
use crate::upstream::{self, SessionEvent};

const KEY: SessionKey = SessionKey(1);

/// A frame on its way.
enum Frame {
    Message(u64, u64, Bytes),
    Ack(u64),
    End,
}

/// How far the journal knows a call to have come.
#[derive(Clone)]
enum Held {
    Accepted,
    Sent,
    Answered(Bytes),
}

/// For each call the frame that brought it, and how far it has come.
type Calls = BTreeMap<u64, (u64, Held)>;

/// A request that the server has, by call number.
struct Asked {
    id: String,
    is_initialize: bool,
    /// It left: it is executed.
    left: bool,
}

#[derive(Default)]
struct Tally {
    results: usize,
    unknown: usize,
    lost: usize,
    resumed: usize,
    fresh: usize,
    withheld: usize,
    unnoted_kills: usize,
}

struct World {
    random: Random,
    now: Moment,
    tether: Tether,
    session: Option<Session>,
    /// Whether the client's end knows the session by name.
    named: bool,
    starts: u64,
    connection: Option<Connection>,
    connections: u64,
    to_gateway: VecDeque<Frame>,
    to_client: VecDeque<Frame>,
    record: Option<Record>,
    taken: u64,
    /// The last frame of which the client may hear that it was taken.
    acknowledged: u64,
    journal: Calls,
    /// While no write to the journal goes well: what it holds. The two above are then what it should.
    stale: Option<(u64, Calls)>,
    /// Notifications in frames that were not noted: they may come twice.
    loose: BTreeSet<String>,
    asked: BTreeMap<u64, Asked>,
    /// Outputs until the gateway is killed.
    fuse: Option<usize>,
    next: u64,
    sent: BTreeMap<String, bool>,
    cancelled: BTreeSet<String>,
    answers: BTreeMap<String, Message>,
    executed: BTreeMap<String, usize>,
    told: BTreeMap<String, usize>,
    heard: BTreeMap<String, usize>,
    tally: Tally,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            now: Moment(Duration::from_secs(1)),
            tether: Tether::new(None, Duration::from_secs(5)),
            session: None,
            named: false,
            starts: 0,
            connection: None,
            connections: 0,
            to_gateway: VecDeque::new(),
            to_client: VecDeque::new(),
            record: None,
            taken: 0,
            acknowledged: 0,
            journal: BTreeMap::new(),
            stale: None,
            loose: BTreeSet::new(),
            asked: BTreeMap::new(),
            fuse: None,
            next: 0,
            sent: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            answers: BTreeMap::new(),
            executed: BTreeMap::new(),
            told: BTreeMap::new(),
            heard: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    fn config(&self) -> SessionConfig {
        SessionConfig {
            key: KEY,
            endpoint: Endpoint::One("time".into()),
            downstream: Downstream::Socket,
            settings: SessionSettings::default().into(),
            cursor_key: [7; 32],
            base: self.starts << 32,
            entries: Vec::new(),
        }
    }

    fn tell(&mut self, input: Input) {
        self.tether.handle(self.now, input);
        while let Some(output) = self.tether.poll() {
            match output {
                Output::ToClient(data) => self.hear(&data.to_bytes()),
                Output::ToGateway {
                    number,
                    received,
                    body,
                } => {
                    let frame = Frame::Message(number, received, body.to_bytes());
                    self.to_gateway.push_back(frame);
                }
                Output::Acknowledge(received) => self.to_gateway.push_back(Frame::Ack(received)),
                Output::Leave | Output::Abandon(_) => self.disconnect(),
            }
        }
    }

    /// The client hears a message.
    fn hear(&mut self, bytes: &Bytes) {
        let message = Message::parse(bytes.clone()).unwrap();
        if message.kind() == Kind::Notification {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            if text.contains("\"n\":") {
                let count = self.heard.entry(text.clone()).or_default();
                *count += 1;
                assert_eq!(*count, 1, "{text} comes twice");
            }
            return;
        }
        let id = String::from_utf8(message.id().unwrap().to_vec()).unwrap();
        assert!(self.sent.contains_key(&id), "{id} was never asked");
        assert!(!self.cancelled.contains(&id), "{id} was taken back");
        let before = self.answers.insert(id.clone(), message);
        assert!(before.is_none(), "{id} is answered twice");
    }

    /// Gives the session an input: what goes to rest does so first, then the rest is done, unless
    /// the gateway is killed before.
    fn input(&mut self, input: SessionInput) {
        let Some(session) = &mut self.session else {
            return;
        };
        session.handle(self.now, input);
        let mut outputs = VecDeque::new();
        while let Some(output) = session.poll() {
            outputs.push_back(output);
        }
        if self.burns() {
            return;
        }
        for output in &outputs {
            self.keep(output);
        }
        let mut told = Vec::new();
        if self.stale.is_some() {
            told = unnoted(&mut outputs, "no space");
            self.tally.withheld += told.len();
            self.loose.extend(outputs.iter().filter_map(text_of));
        }
        for output in outputs {
            if self.burns() {
                return;
            }
            self.perform(output);
        }
        for input in told {
            self.input(input);
        }
    }

    /// Whether the gateway is killed now.
    fn burns(&mut self) -> bool {
        match self.fuse.map(|left| left.checked_sub(1)) {
            Some(None) => {
                self.kill();
                true
            }
            Some(left) => {
                self.fuse = left;
                false
            }
            None => false,
        }
    }

    fn keep(&mut self, output: &SessionOutput) {
        match output {
            SessionOutput::Persist(record) => {
                let bytes = record.encode();
                self.record = Record::decode(&bytes);
            }
            SessionOutput::Taken(frame) => self.taken = *frame,
            SessionOutput::Mark { number, mark } => match mark {
                Mark::Accepted { frame } => {
                    self.journal.insert(*number, (*frame, Held::Accepted));
                }
                Mark::Answered(body) => {
                    if let Some((_, held)) = self.journal.get_mut(number) {
                        *held = Held::Answered(body.to_bytes());
                    }
                }
                Mark::Settled => {
                    self.journal.remove(number);
                }
            },
            _ => {}
        }
    }

    fn perform(&mut self, output: SessionOutput) {
        match output {
            SessionOutput::ToStream { connection, part } => {
                if self.connection != Some(connection) {
                    return;
                }
                match part {
                    Part::Welcome(welcome) => self.welcome(welcome),
                    Part::Frame { number, data } => {
                        let taken = self.acknowledged;
                        self.to_client
                            .push_back(Frame::Message(number, taken, data.to_bytes()));
                    }
                    Part::End => self.to_client.push_back(Frame::End),
                    other => panic!("{other:?}"),
                }
            }
            SessionOutput::Taken(frame) => self.acknowledged = frame,
            SessionOutput::ToUpstream { input, .. } => match *input {
                upstream::Input::Call { key, message, .. } => self.ask(key, &message),
                upstream::Input::Start { key, .. } => {
                    let asked = Asked {
                        id: String::new(),
                        is_initialize: true,
                        left: true,
                    };
                    self.asked.insert(key.number, asked);
                }
                upstream::Input::Cancel { key, .. } => {
                    self.asked.remove(&key.number);
                }
                upstream::Input::Notify { message } => {
                    let text = String::from_utf8(message.bytes().to_vec()).unwrap();
                    let count = self.told.entry(text.clone()).or_default();
                    *count += 1;
                    let is_loose = self.loose.contains(&text);
                    assert!(*count == 1 || is_loose, "{text} is told twice");
                }
                _ => {}
            },
            SessionOutput::Closed => self.end(),
            _ => {}
        }
    }

    fn ask(&mut self, key: CallKey, message: &Message) {
        let id = String::from_utf8(message.id().unwrap().to_vec()).unwrap();
        let asked = Asked {
            id,
            is_initialize: false,
            left: false,
        };
        self.asked.insert(key.number, asked);
    }

    fn welcome(&mut self, welcome: Welcome) {
        let is_resumed = self.named && self.tether.has_session();
        self.named = true;
        if is_resumed {
            self.tally.resumed += 1;
        } else {
            self.tally.fresh += 1;
        }
        self.tell(Input::Attached {
            is_resumed,
            welcome,
        });
    }

    /// The session is over.
    fn end(&mut self) {
        self.session = None;
        self.asked.clear();
        self.record = None;
        self.forget_journal();
        self.to_client.push_back(Frame::End);
    }

    fn forget_journal(&mut self) {
        self.journal.clear();
        (self.taken, self.acknowledged) = (0, 0);
        if let Some((taken, journal)) = &mut self.stale {
            *taken = 0;
            journal.clear();
        }
    }

    /// Writes to the journal fail from now on, or go well again; then it is brought up to date.
    fn turn_disk(&mut self) {
        self.stale = match self.stale.take() {
            None => Some((self.taken, self.journal.clone())),
            Some(_) => None,
        };
    }

    /// The connection breaks: what was on its way is gone.
    fn disconnect(&mut self) {
        self.to_gateway.clear();
        self.to_client.clear();
        if let Some(connection) = self.connection.take() {
            self.input(SessionInput::StreamClosed(connection));
        }
    }

    fn cut(&mut self) {
        if self.connection.is_some() {
            self.disconnect();
            self.tell(Input::Cut);
        }
    }

    fn kill(&mut self) {
        self.fuse = None;
        // The next process starts where it can write.
        if let Some((taken, journal)) = self.stale.take() {
            self.tally.unnoted_kills += usize::from(taken < self.taken);
            (self.taken, self.journal) = (taken, journal);
        }
        self.acknowledged = self.taken;
        self.session = None;
        self.asked.clear();
        self.connection = None;
        self.to_gateway.clear();
        self.to_client.clear();
        self.tell(Input::Cut);
    }

    fn connect(&mut self) {
        if self.connection.is_some() {
            return;
        }
        if self.session.is_none() {
            self.start();
        }
        let is_known = self.named && self.tether.has_session() && self.session.is_some();
        let comeback = if is_known {
            self.tether.comeback()
        } else {
            // Another client's session, as it were: nobody names it.
            self.named = false;
            self.record = None;
            self.forget_journal();
            self.asked.clear();
            self.starts += 1;
            self.session = Some(Session::new(self.config(), self.now));
            Comeback::default()
        };
        self.connections += 1;
        let connection = Connection(self.connections);
        self.connection = Some(connection);
        self.input(SessionInput::Attached {
            connection,
            comeback,
        });
    }

    /// A new process, with what is at rest.
    fn start(&mut self) {
        self.starts += 1;
        let Some(record) = self.record.clone() else {
            return;
        };
        let calls = self.journal.iter().map(|(number, (frame, held))| PastCall {
            number: *number,
            frame: *frame,
            fate: match held {
                Held::Accepted => Past::NotSent,
                Held::Sent => Past::Sent,
                Held::Answered(body) => Past::Answered(body.clone()),
            },
        });
        let calls = calls.collect();
        let session = Session::restore(self.config(), &record, calls, self.now);
        self.session = Some(session.taken_up_to(self.taken));
    }

    fn deliver_to_gateway(&mut self) {
        let Some(connection) = self.connection else {
            return;
        };
        match self.to_gateway.pop_front() {
            Some(Frame::Message(number, received, body)) => {
                self.input(SessionInput::Frame(Box::new(ClientFrame {
                    connection,
                    number,
                    received,
                    line: Message::parse(body),
                    refusal: None,
                })));
            }
            Some(Frame::Ack(received)) => self.input(SessionInput::Acknowledged {
                connection,
                received,
            }),
            Some(Frame::End) | None => {}
        }
    }

    fn deliver_to_client(&mut self) {
        match self.to_client.pop_front() {
            Some(Frame::Message(number, received, body)) => self.tell(Input::Frame {
                number,
                received,
                body,
            }),
            Some(Frame::Ack(received)) => self.tell(Input::Acknowledged(received)),
            Some(Frame::End) => {
                self.connection = None;
                self.to_gateway.clear();
                self.to_client.clear();
                self.tell(Input::Ended);
            }
            None => {}
        }
    }

    /// The server gets on with one of its requests.
    fn serve(&mut self) {
        let numbers: Vec<u64> = self.asked.keys().copied().collect();
        if numbers.is_empty() {
            return;
        }
        let number = numbers[self.random.below(numbers.len())];
        let key = CallKey {
            session: KEY,
            number,
        };
        let asked = self.asked.get_mut(&number).unwrap();
        if !asked.left {
            let journal = self.stale.as_ref().map(|(_, journal)| journal);
            if let Some((_, Held::Accepted)) = journal.and_then(|held| held.get(&number)) {
                // After a crash it would count as never sent, so it is not.
                self.asked.remove(&number);
                let event = SessionEvent::Failed {
                    key,
                    fault: Fault::new(FaultKind::StateUnwritable),
                    server_error: None,
                };
                let server = "time".into();
                self.input(SessionInput::Upstream { server, event });
                return;
            }
            asked.left = true;
            let id = asked.id.clone();
            if let Some((_, held)) = self.journal.get_mut(&number) {
                *held = Held::Sent;
            }
            *self.executed.entry(id).or_default() += 1;
            return;
        }
        let asked = self.asked.remove(&number).unwrap();
        let event = if asked.is_initialize {
            let result = br#"{"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}"#;
            let result = Bytes::from_static(result);
            SessionEvent::Started { key, result }
        } else {
            let text = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
            let message = Message::parse(text.as_bytes().to_vec()).unwrap();
            SessionEvent::Answer { key, message }
        };
        let server = "time".into();
        self.input(SessionInput::Upstream { server, event });
    }

    fn notify(&mut self) {
        self.next += 1;
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/vendor","params":{{"n":{}}}}}"#,
            self.next
        );
        let event = SessionEvent::Notification {
            related: None,
            message: Message::parse(text).unwrap(),
        };
        let server = "time".into();
        self.input(SessionInput::Upstream { server, event });
    }

    fn client(&mut self, text: String) {
        self.tell(Input::Client(Message::parse(text).unwrap()));
    }

    fn request(&mut self) {
        self.next += 1;
        let id = self.next.to_string();
        let method = self.random.pick(&[
            "tools/call",
            "tools/call",
            "tools/call",
            "resources/read",
            "ping",
        ]);
        self.sent.insert(id.clone(), method == "tools/call");
        self.client(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{}}}}"#
        ));
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..=3 => self.request(),
            4 => {
                self.next += 1;
                let next = self.next;
                self.client(format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/vendor","params":{{"n":{next}}}}}"#
                ));
            }
            5 => self.cancel(),
            6..=10 => self.deliver_to_gateway(),
            11..=14 => self.deliver_to_client(),
            15..=18 => self.serve(),
            19 => self.notify(),
            20 if self.random.below(3) == 0 => self.cut(),
            21 if self.random.below(3) == 0 => self.turn_disk(),
            22 if self.random.below(4) == 0 => {
                self.fuse = Some(self.random.below(8));
            }
            23 => {
                let millis = if self.random.below(20) == 0 {
                    61_000
                } else {
                    700
                };
                self.pass(Duration::from_millis(millis));
            }
            _ => self.connect(),
        }
    }

    fn cancel(&mut self) {
        let open: Vec<String> = self
            .sent
            .keys()
            .filter(|id| !self.answers.contains_key(*id) && !self.cancelled.contains(*id))
            .filter(|id| *id != "0")
            .cloned()
            .collect();
        if open.is_empty() {
            return;
        }
        let id = open[self.random.below(open.len())].clone();
        self.cancelled.insert(id.clone());
        self.client(format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
        ));
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.tell(Input::Timer);
        self.input(SessionInput::Timer);
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            self.connect();
            self.deliver_to_gateway();
            self.deliver_to_client();
            self.serve();
            if self.to_gateway.is_empty() && self.to_client.is_empty() && self.asked.is_empty() {
                if !self.tether.is_waiting() {
                    return;
                }
                self.pass(Duration::from_secs(1));
            }
        }
        panic!("the client waits for ever");
    }

    fn check(&mut self) {
        for (id, is_call) in &self.sent {
            let ran = self.executed.get(id).copied().unwrap_or(0);
            if *is_call {
                assert!(ran <= 1, "{id} ran {ran} times");
            }
            let Some(answer) = self.answers.get(id) else {
                assert!(self.cancelled.contains(id), "{id} was never answered");
                continue;
            };
            let text = String::from_utf8_lossy(answer.bytes()).into_owned();
            if answer.kind() == Kind::Result {
                self.tally.results += 1;
                assert!(ran == 1 || !is_call, "{id} has a result and did not run");
            } else if text.contains("OUTCOME_UNKNOWN") {
                self.tally.unknown += 1;
            } else if text.contains("RESULT_LOST") {
                self.tally.lost += 1;
                assert_eq!(ran, 1, "{id}");
            } else {
                // A read that is sent again may have run before it was turned away.
                assert!(
                    !text.contains("\"not_executed\"") || ran == 0 || !is_call,
                    "{id}: {text}"
                );
            }
        }
    }
}

fn play(seed: u64, tally: &mut Tally) {
    let mut world = World::new(seed);
    world.sent.insert("0".to_owned(), false);
    world.client(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#
            .to_owned(),
    );
    world.settle();
    world.client(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned());
    for _ in 0..400 {
        world.step();
    }
    world.fuse = None;
    world.stale = None;
    world.settle();
    // What was acknowledged leaves the journal.
    world.pass(Duration::from_secs(2));
    world.settle();
    world.check();
    assert!(
        world.journal.is_empty(),
        "seed {seed}: {:?}",
        world.journal.keys()
    );
    tally.results += world.tally.results;
    tally.unknown += world.tally.unknown;
    tally.lost += world.tally.lost;
    tally.resumed += world.tally.resumed;
    tally.fresh += world.tally.fresh;
    tally.withheld += world.tally.withheld;
    tally.unnoted_kills += world.tally.unnoted_kills;
}

/// The text of a notification for a server.
fn text_of(output: &SessionOutput) -> Option<String> {
    let SessionOutput::ToUpstream { input, .. } = output else {
        return None;
    };
    let upstream::Input::Notify { message } = &**input else {
        return None;
    };
    String::from_utf8(message.bytes().to_vec()).ok()
}

#[test]
fn through_cuts_and_kills_each_request_has_one_answer_and_no_call_runs_twice() {
    let mut tally = Tally::default();
    for seed in 0..300 {
        play(seed, &mut tally);
    }
    // The test sees what it is for.
    assert!(
        tally.results > 1000 && tally.unknown > 100,
        "{} {}",
        tally.results,
        tally.unknown
    );
    assert!(
        tally.resumed > 1000 && tally.fresh > 300,
        "{} {}",
        tally.resumed,
        tally.fresh
    );
    assert!(
        tally.withheld > 300 && tally.unnoted_kills > 50,
        "{} {}",
        tally.withheld,
        tally.unnoted_kills
    );
}
