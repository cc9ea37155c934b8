//! Scripts of the upstream machine: what goes in, one line each, and under it what comes out.
//!
//! `call 2 tools/call a` is a request of the client; `x3 404` is how the driver ends exchange 3;
//! `+5s` lets time pass, with a timer at each deadline. Lines that begin with `>` are outputs.

mod child;
mod drain;
mod end;
mod fault;
mod passing;
mod recovery;
mod resume;
mod travel;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{
    Drain, End, Hello, Input, Output, Passing, Record, Refusal, SessionEvent, Stretch, Transport,
    Upstream, UpstreamConfig,
};
use crate::call::{CallKey, ExchangeId, Generation, InstanceKey, MachineKey, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::message::Message;
use crate::settings::UpstreamSettings;

/// An exchange as the scripted peer knows it.
struct Sent {
    generation: Generation,
    id: String,
    initialize: bool,
}

struct Script {
    machine: Upstream,
    stdio: bool,
    now: Moment,
    sent: BTreeMap<u64, Sent>,
    hellos: u32,
    /// There is no room for children until they are admitted, if so: so many may run.
    crowd: Option<usize>,
    /// Whether what goes to rest is shown.
    shows_rest: bool,
    /// What went to rest last.
    record: Option<Record>,
}

/// Plays a script over HTTP and compares what comes out.
fn http(script: &str) {
    play(Transport::Http, UpstreamSettings::default(), script);
}

/// The same with a child.
fn stdio(script: &str) {
    play(Transport::Stdio, UpstreamSettings::default(), script);
}

/// The beginning of most scripts over HTTP: session A is open in generation 1.
const OPENED_HTTP: &str = "
    start 1
    > open g1
    g1 opened
    > x1 to g1: initialize id 1 hello 1
    x1 minted A
    x1 result
    > x2 to g1 session A: notifications/initialized
    x1 done
    x2 accepted
    > started 1
";

/// The same with a child: generation 1 is ready.
const OPENED_STDIO: &str = "
    start 1
    > open g1
    g1 opened
    > x1 to g1: initialize id 1 hello 1
    x1 accepted
    x1 result
    > x2 to g1: notifications/initialized
    x2 accepted
    > started 1
";

/// Plays a script over HTTP after the handshake.
fn opened_http(script: &str) {
    http(&format!("{OPENED_HTTP}{script}"));
}

/// The same with a child.
fn opened_stdio(script: &str) {
    stdio(&format!("{OPENED_STDIO}{script}"));
}

/// The lines of each number, one after the other.
fn each(numbers: std::ops::Range<u32>, lines: impl Fn(u32) -> String) -> String {
    numbers.map(lines).collect::<Vec<_>>().join("\n")
}

fn play(transport: Transport, settings: UpstreamSettings, script: &str) {
    let mut machine = http_machine();
    machine.config.transport = transport;
    machine.config.settings = settings.into();
    compare(Script::new(machine), script);
}

fn http_machine() -> Upstream {
    let config = UpstreamConfig {
        server: Arc::from("s"),
        transport: Transport::Http,
        session: SessionKey(0),
        settings: std::sync::Arc::default(),
        base: 0,
        seed: 1,
    };
    Upstream::new(config, Moment::default())
}

fn compare(mut player: Script, script: &str) {
    let mut actual = String::new();
    let mut expected = String::new();
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        writeln!(expected, "{line}").unwrap();
        if !line.starts_with('>') {
            writeln!(actual, "{line}").unwrap();
            player.line(line, &mut actual);
        }
    }
    let first = actual.lines().zip(expected.lines()).find(|(a, b)| a != b);
    assert!(
        actual == expected,
        "the first difference is {first:?}; the script plays like this:\n{actual}"
    );
}

fn key(text: &str) -> CallKey {
    CallKey {
        session: SessionKey(0),
        number: text.parse().unwrap(),
    }
}

fn message(text: impl Into<Bytes>) -> Message {
    Message::parse(text).unwrap()
}

impl Script {
    fn new(machine: Upstream) -> Self {
        Self {
            stdio: machine.config.transport == Transport::Stdio,
            machine,
            now: Moment::default(),
            sent: BTreeMap::new(),
            hellos: 0,
            crowd: None,
            shows_rest: false,
            record: None,
        }
    }

    fn line(&mut self, line: &str, out: &mut String) {
        let words: Vec<&str> = line.split(' ').collect();
        if let Some(span) = line.strip_prefix('+') {
            self.pass(span, out);
            return;
        }
        let input = match words[0].split_at(1) {
            ("x", exchange) if exchange.parse::<u64>().is_ok() => {
                self.exchange(exchange.parse().unwrap(), &words[1..])
            }
            ("g", generation) if generation.parse::<u64>().is_ok() => {
                let generation = Generation(generation.parse().unwrap());
                Self::instance(generation, &words[1..])
            }
            _ => self.client(&words),
        };
        self.feed(input, out);
    }

    fn pass(&mut self, span: &str, out: &mut String) {
        let span = match span.strip_suffix("ms") {
            Some(millis) => Duration::from_millis(millis.parse().unwrap()),
            None => Duration::from_secs(span.strip_suffix('s').unwrap().parse().unwrap()),
        };
        let end = self.now.after(span);
        while let Some(due) = self.machine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.feed(Input::Timer, out);
            let next = self.machine.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "a deadline stays");
        }
        self.now = end;
    }

    fn client(&mut self, words: &[&str]) -> Input {
        match *words {
            ["start", number] => {
                self.hellos += 1;
                let params = format!(r#"{{"hello":{}}}"#, self.hellos).into();
                let hello = Hello { params };
                Input::Start {
                    key: key(number),
                    hello,
                }
            }
            ["call", number, method, ref rest @ ..] => {
                let params = match rest {
                    [name, token] => {
                        format!(r#"{{"name":"{name}","_meta":{{"progressToken":{token}}}}}"#)
                    }
                    [name] => format!(r#"{{"name":"{name}","uri":"{name}","level":"{name}"}}"#),
                    _ => "{}".to_owned(),
                };
                let text = format!(
                    r#"{{"jsonrpc":"2.0","id":"c","method":"{method}","params":{params}}}"#
                );
                Input::Call {
                    key: key(number),
                    message: message(text),
                    stretches: true,
                }
            }
            ["notify"] => Input::Notify {
                message: message(
                    r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
                ),
            },
            ["reply", generation, id] => Input::Reply {
                instance: InstanceKey {
                    machine: MachineKey(1),
                    generation: Generation(generation[1..].parse().unwrap()),
                },
                id: Bytes::copy_from_slice(id.as_bytes()),
                message: message(r#"{"jsonrpc":"2.0","id":9,"result":{}}"#),
            },
            ["cancel", number] => Input::Cancel {
                key: key(number),
                message: None,
            },
            ["asking", number, begins] => Input::Asking {
                key: key(number),
                begins: begins == "on",
            },
            ["attached", on] => Input::Attached(on == "on"),
            ["retire"] => Input::Retire,
            ["crowd", max] => {
                self.crowd = max.parse().ok();
                Input::Timer
            }
            ["give", "way"] => {
                self.machine.give_way(self.now);
                Input::Timer
            }
            ["drain", "move"] => Input::Drain(Drain::Move),
            ["drain", _] => Input::Drain(Drain::Refuse(Fault::new(FaultKind::ServerRemoved))),
            ["close", what] => Input::Close {
                fault: Fault::new(FaultKind::ServerRemoved),
                end_session: what == "end",
            },
            ["credentials", what] => Input::Credentials {
                changed: what == "changed",
            },
            _ => panic!("unknown line {words:?}"),
        }
    }

    fn instance(generation: Generation, words: &[&str]) -> Input {
        match *words {
            ["opened"] => Input::Opened { generation },
            ["admitted"] => Input::Admitted { generation },
            ["lost"] => Input::Lost {
                generation,
                cause: "exit status 1".into(),
                never_ran: false,
            },
            ["failed"] => Input::Lost {
                generation,
                cause: "no such file".into(),
                never_ran: true,
            },
            ["says", ref text @ ..] => Input::Message {
                generation,
                exchange: None,
                message: message(text.join(" ")),
            },
            ["noise", "large", id] => Input::Garbled {
                generation,
                exchange: None,
                id: Some(Bytes::copy_from_slice(id.as_bytes())),
                cause: "too large".into(),
                too_large: true,
            },
            _ => panic!("unknown line {words:?}"),
        }
    }

    fn exchange(&mut self, exchange: u64, words: &[&str]) -> Input {
        let sent = &self.sent[&exchange];
        let generation = sent.generation;
        let body = match *words {
            ["withheld"] => {
                let (exchange, cause) = (ExchangeId(exchange), "disk full".into());
                return Input::Withheld { exchange, cause };
            }
            ["minted", id] => {
                let (exchange, session_id) = (ExchangeId(exchange), id.into());
                return Input::Minted {
                    generation,
                    exchange,
                    session_id,
                };
            }
            ["result"] if sent.initialize => Some(
                r#""result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}}}"#
                    .to_owned(),
            ),
            ["result", version] if sent.initialize => Some(format!(
                r#""result":{{"protocolVersion":"{version}","capabilities":{{}}}}"#
            )),
            ["result"] => Some(r#""result":{}"#.to_owned()),
            ["result", result] => Some(format!(r#""result":{result}"#)),
            ["error", code, ref text @ ..] => {
                let text = text.join(" ");
                Some(format!(r#""error":{{"code":{code},"message":"{text}"}}"#))
            }
            ["passes", what, ref rest @ ..] => {
                let bytes = |text: &str| Bytes::from(text.replace("ID", &sent.id));
                let stretch = match (what, rest) {
                    ("begin", []) => Stretch::Begin {
                        id: None,
                        len: None,
                    },
                    ("begin", [id]) => Stretch::Begin {
                        id: Some(bytes(id)),
                        len: Some(1000),
                    },
                    ("id", [id]) => Stretch::Id(bytes(id)),
                    ("bytes", text) => Stretch::Bytes(bytes(&text.join(" "))),
                    _ => Stretch::End,
                };
                let exchange = ExchangeId(exchange);
                return Input::Stretch {
                    generation,
                    exchange,
                    stretch,
                };
            }
            ["noise", ref cause @ ..] => {
                let cause = cause.join(" ").into();
                return Input::Garbled {
                    generation,
                    exchange: Some(ExchangeId(exchange)),
                    id: None,
                    cause,
                    too_large: false,
                };
            }
            ["says", ref text @ ..] => {
                let message = message(text.join(" "));
                let exchange = Some(ExchangeId(exchange));
                return Input::Message {
                    generation,
                    exchange,
                    message,
                };
            }
            _ => None,
        };
        if let Some(body) = body {
            let message = message(format!(r#"{{"jsonrpc":"2.0","id":{},{body}}}"#, sent.id));
            let exchange = (!self.stdio).then_some(ExchangeId(exchange));
            return Input::Message {
                generation,
                exchange,
                message,
            };
        }
        let exchange = ExchangeId(exchange);
        Input::Ended {
            generation,
            exchange,
            end: end(words),
        }
    }

    fn feed(&mut self, input: Input, out: &mut String) {
        self.machine.handle(self.now, input);
        while let Some(output) = self.machine.poll() {
            if let Output::Reserve { generation } = output {
                // Where scripts say nothing of other children the turn comes at once.
                let input = match self.crowd {
                    Some(max) => {
                        writeln!(out, "> no room for g{generation}").unwrap();
                        Input::Crowded { generation, max }
                    }
                    None => Input::Admitted { generation },
                };
                self.machine.handle(self.now, input);
            }
            if let Some(text) = self.show(&output) {
                writeln!(out, "> {text}").unwrap();
            }
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "everything else is shown by `show`"
    )]
    fn show_rest(&mut self, output: &Output) -> Option<String> {
        let text = match output {
            Output::Persist(record) => {
                self.record = Some((**record).clone());
                let session = record.route.session_id.as_deref().unwrap_or("none");
                format!("keep g{} session {session}", record.generation)
            }
            Output::Forget => "forget".into(),
            Output::Sent { key, generation } => format!("sent {} to g{generation}", key.number),
            _ => return None,
        };
        self.shows_rest.then_some(text)
    }

    fn show(&mut self, output: &Output) -> Option<String> {
        Some(match output {
            Output::Open { generation } => format!("open g{generation}"),
            Output::Send {
                generation,
                exchange,
                body,
                route,
                ..
            } => {
                let body = message(body.to_bytes());
                let id = body
                    .id()
                    .map(|id| String::from_utf8_lossy(&id).into_owned());
                let method = body
                    .method()
                    .map_or("answer".into(), std::borrow::Cow::into_owned);
                self.sent.insert(
                    exchange.0,
                    Sent {
                        generation: *generation,
                        id: id.clone().unwrap_or_default(),
                        initialize: method == "initialize",
                    },
                );
                let session = route
                    .session_id
                    .as_deref()
                    .map_or(String::new(), |id| format!(" session {id}"));
                let id = id.map_or(String::new(), |id| format!(" id {id}"));
                let hello = body.param("hello").map_or(String::new(), |raw| {
                    format!(" hello {}", String::from_utf8_lossy(&raw))
                });
                let cancelled = body.param("requestId").map_or(String::new(), |raw| {
                    format!(" of {}", String::from_utf8_lossy(&raw))
                });
                format!("x{exchange} to g{generation}{session}: {method}{id}{hello}{cancelled}")
            }
            Output::Resume {
                exchange,
                last_event_id,
                delay,
                ..
            } => {
                format!("resume x{exchange} from {last_event_id} after {delay:?}")
            }
            Output::Listen {
                generation,
                exchange,
                delay,
                ..
            } => {
                self.sent.insert(
                    exchange.0,
                    Sent {
                        generation: *generation,
                        id: String::new(),
                        initialize: false,
                    },
                );
                format!("x{exchange} listens to g{generation} after {delay:?}")
            }
            Output::Abort { exchange, .. } => format!("abort x{exchange}"),
            Output::RefreshCredentials => "read credentials".into(),
            Output::End {
                generation,
                delete,
                route,
            } => {
                let delete = if *delete { " DELETE " } else { "" };
                let session = route
                    .session_id
                    .as_deref()
                    .filter(|_| !delete.is_empty())
                    .unwrap_or("");
                format!("end g{generation}{delete}{session}")
            }
            Output::Moved { key, .. } => format!("moved {}", key.number),
            Output::ToSession { event, .. } => return show_event(event),
            Output::Persist(_) | Output::Forget | Output::Sent { .. } => {
                return self.show_rest(output);
            }
            Output::Reserve { .. } | Output::Emit(_) => return None,
        })
    }
}

fn show_event(event: &SessionEvent) -> Option<String> {
    let text = |message: &Message| String::from_utf8_lossy(message.bytes()).into_owned();
    Some(match event {
        SessionEvent::Started { key, .. } => format!("started {}", key.number),
        SessionEvent::Answer { key, .. } => format!("answer {}", key.number),
        SessionEvent::Passing { key, passing } => match passing {
            Passing::Begin { len } => format!("begin {} {len:?}", key.number),
            Passing::Bytes(bytes) => {
                format!("bytes {} {}", key.number, String::from_utf8_lossy(bytes))
            }
            Passing::Id => format!("id {}", key.number),
            Passing::End => format!("answered {}", key.number),
        },
        SessionEvent::Failed {
            key,
            fault,
            server_error,
        } => {
            let own = if server_error.is_some() {
                " with the server's error"
            } else {
                ""
            };
            let cause = fault.cause.as_deref().unwrap_or("-");
            format!(
                "failed {} {} {}{own}: {cause}",
                key.number,
                fault.kind.as_str(),
                fault.outcome.as_str()
            )
        }
        SessionEvent::Notification { related, message } => {
            let related = related.map_or(String::new(), |key| format!(" of {}", key.number));
            format!("heard{related}: {}", text(message))
        }
        SessionEvent::Request {
            related,
            instance,
            message,
        } => {
            let related = related.map_or(String::new(), |key| format!(" of {}", key.number));
            format!("asked{related} by g{instance}: {}", text(message))
        }
        SessionEvent::Withdrawn { id, .. } => format!("withdrawn {}", String::from_utf8_lossy(id)),
        SessionEvent::StateLost { .. } => "state lost".into(),
        SessionEvent::ListChanged(kind) => format!("changed {kind:?}"),
        SessionEvent::InstanceGone { .. }
        | SessionEvent::Listed { .. }
        | SessionEvent::Renewed { .. } => return None,
    })
}

fn end(words: &[&str]) -> End {
    let cause = "cut".into();
    match *words {
        ["accepted"] => End::Accepted,
        ["done"] => End::Complete,
        ["ended"] => End::StreamEnded {
            last_event_id: None,
            retry: None,
        },
        ["ended", id] => End::StreamEnded {
            last_event_id: Some(id.into()),
            retry: None,
        },
        ["unsent"] => End::NotSent { cause },
        ["broken"] => End::Broken { cause },
        ["unreadable"] => End::Unreadable {
            cause: "not JSON".into(),
        },
        [status] => refusal(status, None, "no"),
        [status, "own", id, code] => own_error(status, id, code),
        [status, code, ref text @ ..] => refusal(status, code.parse().ok(), &text.join(" ")),
        [] => panic!("an exchange without an end"),
    }
}

fn refusal(status: &str, rpc_code: Option<i64>, text: &str) -> End {
    End::Refused(Refusal {
        status: status.parse().unwrap(),
        rpc_code,
        text: text.into(),
        foreign: text.starts_with("page"),
        retry_after: None,
        answer: None,
    })
}

/// A refusal whose body is a JSON-RPC error to the request of this id.
fn own_error(status: &str, id: &str, code: &str) -> End {
    let answer =
        format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"no"}}}}"#);
    let End::Refused(mut refused) = refusal(status, code.parse().ok(), "no") else {
        panic!("no refusal");
    };
    refused.answer = Some(message(answer));
    End::Refused(refused)
}
