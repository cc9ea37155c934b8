//! The language of the scripts.
//!
//! A line that starts with `<` is an output; every other line is an input. [`run`] plays the inputs
//! and compares the transcript with the script. `"jsonrpc":"2.0"` is left out on both sides, and an
//! error of our own is shown by its name and outcome. Cursors are numbered as they appear (`#1`).
//!
//! | input | means |
//! |---|---|
//! | `c {…}` | the client writes a line to the pipe |
//! | `p1 {…}` / `j1 {…}` | POST 1; `j`: the client takes JSON alone |
//! | `x1` | the connection of POST 1 broke |
//! | `g1`, `g1 #2` | connection 1 opens (GET or pipe), with a cursor |
//! | `z1` | connection 1 is gone |
//! | `h1 4 2,3` | the socket attaches as connection 1, has frame 4, and waits for those in 2 and 3 |
//! | `f1 3 4 {…}` | frame 3 comes on it, with the acknowledgement of ours up to 4 |
//! | `k1 4` | our frames up to 4 are acknowledged on it |
//! | `+500` | so many milliseconds later, with a timer |
//! | `shed 40` | so many bytes of events may stay |
//! | `close` | the session ends |
//! | `SERVER EVENT …` | an upstream reports |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{
    CallKey, ClientExchange, Connection, Generation, InstanceKey, MachineKey, Moment, SessionKey,
};
use crate::error::{Fault, FaultKind};
use crate::message::Message;
use crate::method::ListKind;
use crate::session::*;
use crate::upstream::{self, Passing, SessionEvent};

pub(super) const KEY: SessionKey = SessionKey(1);

pub(super) fn one(downstream: Downstream) -> SessionConfig {
    SessionConfig {
        key: KEY,
        endpoint: Endpoint::One("time".into()),
        downstream,
        settings: Arc::default(),
        cursor_key: [7; 32],
        base: 0,
        entries: Vec::new(),
    }
}

/// Plays `script` after `before`, and compares the transcript of the former.
#[track_caller]
pub(super) fn run_after(config: SessionConfig, before: &str, script: &str) {
    let mut player = Player::new(config);
    for line in inputs(before) {
        player.play(line);
    }
    compare(&mut player, script);
}

/// Plays `script`, and compares the transcript.
#[track_caller]
pub(super) fn compare(player: &mut Player, script: &str) {
    let mut transcript = String::new();
    for line in inputs(script) {
        writeln!(transcript, "{line}").unwrap();
        for output in player.play(line) {
            writeln!(transcript, "< {output}").unwrap();
        }
    }
    let expected: String = script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .fold(String::new(), |all, line| all + line + "\n");
    assert!(
        transcript == expected,
        "the transcript is:\n{transcript}\nbut should be:\n{expected}"
    );
}

#[track_caller]
pub(super) fn run(config: SessionConfig, script: &str) {
    run_after(config, "", script);
}

fn inputs(script: &str) -> impl Iterator<Item = &str> {
    script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('<'))
}

pub(super) struct Player {
    pub(super) session: Session,
    now: Moment,
    pub(super) cursors: BTreeMap<Arc<str>, usize>,
    /// Whether it is shown that something goes to rest.
    pub(super) shows_rest: bool,
    /// Whether the marks for the journal are shown.
    pub(super) shows_marks: bool,
    /// Whether it is shown how much is held for redelivery.
    pub(super) shows_held: bool,
    /// What went to rest last.
    pub(super) record: Option<Record>,
}

impl Player {
    pub(super) fn new(config: SessionConfig) -> Self {
        Self::of(Session::new(config, Moment(Duration::from_secs(1))))
    }

    pub(super) fn of(session: Session) -> Self {
        Self {
            session,
            now: Moment(Duration::from_secs(1)),
            cursors: BTreeMap::new(),
            shows_rest: false,
            shows_marks: false,
            shows_held: false,
            record: None,
        }
    }

    pub(super) fn play(&mut self, line: &str) -> Vec<String> {
        let input = self.input(line);
        self.session.handle(self.now, input);
        let mut out = Vec::new();
        while let Some(output) = self.session.poll() {
            // What goes to rest has scripts of its own.
            if let Output::Persist(record) = output {
                self.record = Some(*record);
                if self.shows_rest {
                    out.push("persist".to_owned());
                }
            } else if self.shows(&output) {
                out.push(self.show(output));
            }
        }
        out
    }

    fn shows(&self, output: &Output) -> bool {
        match output {
            Output::Mark { .. } | Output::Taken(_) => self.shows_marks,
            Output::Held(_) => self.shows_held,
            _ => true,
        }
    }

    fn input(&mut self, line: &str) -> Input {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || word[1..].parse::<u64>().ok();
        match (word.as_bytes()[0], number()) {
            (b'c', None) if word == "c" => match Message::parse(full(rest)) {
                Ok(message) => Input::Message {
                    exchange: None,
                    accept: Accept::Both,
                    message,
                },
                Err(error) => Input::Malformed(error),
            },
            (b'p' | b'j', Some(n)) => Input::Message {
                exchange: Some(ClientExchange(n)),
                accept: if word.starts_with('j') {
                    Accept::Json
                } else {
                    Accept::Both
                },
                message: Message::parse(full(rest)).unwrap(),
            },
            (b'x', Some(n)) => Input::ExchangeGone(ClientExchange(n)),
            (b'g', Some(n)) => Input::StreamOpened {
                connection: Connection(n),
                cursor: (!rest.is_empty()).then(|| self.cursor(rest)),
            },
            (b'z', Some(n)) => Input::StreamClosed(Connection(n)),
            (b'h', Some(n)) => {
                let (received, pending) = rest.split_once(' ').unwrap_or((rest, ""));
                let pending = pending.split(',').filter_map(|frame| frame.parse().ok());
                Input::Attached {
                    connection: Connection(n),
                    comeback: Comeback {
                        received: received.parse().unwrap_or(0),
                        pending: pending.collect(),
                    },
                }
            }
            (b'f', Some(n)) => {
                let mut words = rest.splitn(3, ' ');
                let mut number = || words.next().unwrap().parse().unwrap();
                Input::Frame(Box::new(ClientFrame {
                    connection: Connection(n),
                    number: number(),
                    received: number(),
                    line: Message::parse(full(words.next().unwrap())),
                    refusal: None,
                }))
            }
            (b'k', Some(n)) => Input::Acknowledged {
                connection: Connection(n),
                received: rest.parse().unwrap(),
            },
            (b'+', Some(n)) => {
                self.now = self.now.after(Duration::from_millis(n));
                Input::Timer
            }
            _ if word == "close" => Input::Close,
            _ if word == "keep" => Input::Keep,
            _ if word == "shed" => Input::Shed {
                most: rest.parse().unwrap(),
            },
            _ if word == "entries" => Input::Entries(serverless(rest)),
            _ => Input::Upstream {
                server: word.into(),
                event: event(rest),
            },
        }
    }

    fn cursor(&self, text: &str) -> Box<str> {
        let number = text
            .strip_prefix('#')
            .and_then(|text| text.parse::<usize>().ok());
        let known = self.cursors.iter().find(|(_, n)| Some(**n) == number);
        known.map_or(text, |(cursor, _)| cursor).into()
    }

    fn show(&mut self, output: Output) -> String {
        match output {
            Output::Persist(_) => String::new(),
            Output::Taken(frame) => format!("taken {frame}"),
            Output::Held(bytes) => format!("held {bytes}"),
            Output::Mark { number, mark } => match mark {
                Mark::Accepted { frame } => format!("accepted {number} in {frame}"),
                Mark::Answered(_) => format!("answered {number}"),
                Mark::Settled => format!("settled {number}"),
            },
            Output::ToExchange { exchange, part } => format!("{exchange} {}", self.part(part)),
            Output::ToStream { connection, part } => format!("g{connection} {}", self.part(part)),
            Output::ToUpstream { server, input } => format!("{server} {}", show_input(*input)),
            Output::Remember { server, what } => match what {
                Known::Initialize(_) => format!("remember {server} initialize"),
                Known::List(kind, pages) => format!("remember {server} {kind:?} {}", pages.len()),
            },
            Output::Emit(event) => format!("emit {event:?}"),
            Output::Closed => "closed".to_owned(),
        }
    }

    fn part(&mut self, part: Part) -> String {
        match part {
            Part::Accepted => "202".to_owned(),
            Part::Json(pieces) => format!("json {}", brief(&pieces.to_bytes())),
            Part::Refuse { status, body } => format!("{status} {}", brief(&body)),
            Part::Open { len: Some(len) } => format!("open {len}"),
            Part::Open { len: None } => "open".to_owned(),
            Part::OpenEvent => "open event".to_owned(),
            Part::Bytes(bytes) => format!("bytes {}", String::from_utf8_lossy(&bytes)),
            Part::Close { id } => {
                let next = self.cursors.len() + 1;
                format!("close #{}", self.cursors.entry(id).or_insert(next))
            }
            Part::Cut => "cut".to_owned(),
            Part::Begin => "begin".to_owned(),
            Part::End => "end".to_owned(),
            Part::Welcome(Welcome { taken, fates }) => format!("welcome {taken} {fates:?}"),
            Part::Frame { number, data } => format!("frame {number} {}", brief(&data.to_bytes())),
            Part::Event { id, retry, data } => {
                let mut text = "event".to_owned();
                if let Some(id) = id {
                    let next = self.cursors.len() + 1;
                    let number = self.cursors.entry(id).or_insert(next);
                    write!(text, " #{number}").unwrap();
                }
                if let Some(retry) = retry {
                    write!(text, " retry {}", retry.as_millis()).unwrap();
                }
                if !data.is_empty() {
                    write!(text, " {}", brief(&data.to_bytes())).unwrap();
                }
                text
            }
        }
    }
}

fn event(text: &str) -> SessionEvent {
    let mut words = text.splitn(2, ' ');
    let (kind, rest) = (words.next().unwrap(), words.next().unwrap_or(""));
    let (first, last) = rest.split_once(' ').unwrap_or((rest, ""));
    let key = |text: &str| CallKey {
        session: KEY,
        number: text.parse().unwrap(),
    };
    let related = (first != "-" && first.parse::<u64>().is_ok()).then(|| key(first));
    let message = |text: &str| Message::parse(full(text)).unwrap();
    let instance = |text: &str| InstanceKey {
        machine: MachineKey(1),
        generation: Generation(text.parse().unwrap()),
    };
    match kind {
        "started" => SessionEvent::Started {
            key: key(first),
            result: bytes(last),
        },
        "answer" => {
            let text = last.replacen('{', r#"{"id":99,"#, 1);
            SessionEvent::Answer {
                key: key(first),
                message: message(&text),
            }
        }
        "passing" => {
            let (what, text) = last.split_once(' ').unwrap_or((last, ""));
            let passing = match what {
                "begin" => Passing::Begin {
                    len: text.parse().ok(),
                },
                "bytes" => Passing::Bytes(bytes(text)),
                "id" => Passing::Id,
                _ => Passing::End,
            };
            SessionEvent::Passing {
                key: key(first),
                passing,
            }
        }
        "failed" => SessionEvent::Failed {
            key: key(first),
            fault: Fault::new(FaultKind::ServerStartFailed),
            server_error: (!last.is_empty()).then(|| bytes(last)),
        },
        "notify" => SessionEvent::Notification {
            related,
            message: message(last),
        },
        "ask" => {
            let (gen_text, last) = last.split_once(' ').unwrap();
            SessionEvent::Request {
                related,
                instance: instance(gen_text),
                message: message(last),
            }
        }
        "withdrawn" => {
            let (id, last) = last.split_once(' ').unwrap();
            SessionEvent::Withdrawn {
                instance: instance(first),
                id: bytes(id),
                message: message(last),
            }
        }
        "gone" => SessionEvent::InstanceGone {
            instance: instance(first),
        },
        "lost" => SessionEvent::StateLost {
            reason: rest.into(),
        },
        "changed" => SessionEvent::ListChanged(list_kind(first)),
        "listed" => SessionEvent::Listed {
            kind: list_kind(first),
            pages: vec![bytes(last)],
        },
        other => panic!("no such event: {other}"),
    }
}

fn serverless(names: &str) -> Vec<EntryView> {
    names
        .split_whitespace()
        .map(|name| EntryView {
            name: name.into(),
            unavailable: None,
            remembered: None,
        })
        .collect()
}

fn list_kind(text: &str) -> ListKind {
    ListKind::ALL
        .into_iter()
        .find(|kind| format!("{kind:?}") == text)
        .unwrap()
}

fn show_input(input: upstream::Input) -> String {
    use upstream::Input;
    match input {
        Input::Start { key, hello } => format!("start {} {}", key.number, brief(&hello.params)),
        Input::Call { key, message, .. } => {
            format!("call {} {}", key.number, brief(message.bytes()))
        }
        Input::Notify { message } => format!("notify {}", brief(message.bytes())),
        Input::Reply {
            instance,
            id,
            message,
        } => {
            format!("reply {instance} {} {}", text(&id), brief(message.bytes()))
        }
        Input::Cancel { key, message } => {
            let message = message
                .map(|message| brief(message.bytes()))
                .unwrap_or_default();
            format!("cancel {} {message}", key.number)
        }
        Input::Asking { key, begins } => format!("asking {} {begins}", key.number),
        Input::Attached(attached) => format!("attached {attached}"),
        Input::Close { fault, end_session } => {
            format!("close {} {end_session}", fault.kind.as_str())
        }
        other => format!("{other:?}"),
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn full(text: &str) -> Bytes {
    bytes(&text.replacen('{', r#"{"jsonrpc":"2.0","#, 1))
}

/// Also checks that what the client gets is valid.
fn brief(bytes: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(bytes).expect("valid JSON");
    let code = &value["error"]["data"]["code"];
    if let Some(code) = code.as_str() {
        let data = &value["error"]["data"];
        let outcome = data["outcome"].as_str().unwrap();
        // What a server is told of the client is about no server.
        let is_lacking = data["server"].is_null() && code != "CLIENT_UNREACHABLE";
        let lacking = if is_lacking { " of no server" } else { "" };
        return format!("{} {code} {outcome}{lacking}", value["id"]);
    }
    text(bytes).replacen(r#""jsonrpc":"2.0","#, "", 1)
}
