//! The book of all calls: what was asked, what ran, what the client heard. The checkers of I1, I4,
//! I5, I7, I9 and I13 judge by it.

use std::collections::BTreeMap;
use std::time::Duration;

use springline_proto::call::{CallKey, Moment};
use springline_proto::error::{Fault, Outcome};
use springline_proto::message::{Kind, Message};

use crate::plan::Ask;

/// A broken promise.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// The invariant of DESIGN.md section 4, or what else was promised.
    pub rule: &'static str,
    /// What happened.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(rule: &'static str, what: impl Into<String>) -> Self {
        Self {
            rule,
            what: what.into(),
        }
    }
}

/// What must be told by number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Heard {
    Answer,
    NotExecuted,
    Unknown,
    Executed,
}

/// One request of a client.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) key: CallKey,
    /// None: it asked for the handshake.
    pub(crate) ask: Option<Ask>,
    pub(crate) accepted: Moment,
    pub(crate) cancelled: bool,
    pub(crate) heard: Option<Heard>,
    /// How often the request reached a server.
    pub(crate) arrivals: u32,
    /// How often it went from one upstream to the next, at a reload.
    pub(crate) moves: u32,
    pub(crate) executions: u32,
    /// The client's progress token, raw.
    pub(crate) token: Option<String>,
    /// Questions to the client that are open, since when, and for how long in all.
    pub(crate) asking: u32,
    pub(crate) asking_since: Moment,
    pub(crate) asked: Duration,
}

/// All requests of a run, by number.
#[derive(Debug, Default)]
pub(crate) struct Book {
    records: Vec<Record>,
    by_key: BTreeMap<CallKey, usize>,
}

/// What the client sends: the same ids and tokens in every session, on purpose (I9).
pub(crate) fn request(number: usize, ask: Ask, id: &str, token: Option<&str>) -> String {
    let (method, body) = match ask {
        Ask::Tool => ("tools/call", r#""name":"unsafe""#),
        Ask::SafeTool => ("tools/call", r#""name":"safe""#),
        Ask::HintedTool => ("tools/call", r#""name":"hinted""#),
        Ask::Read => ("resources/read", r#""uri":"sim://a""#),
        Ask::List => ("tools/list", r#""x":null"#),
        Ask::Subscribe => ("resources/subscribe", r#""uri":"sim://a""#),
        Ask::SetLevel => ("logging/setLevel", r#""level":"info""#),
        Ask::Other => ("vendor/thing", r#""a":1.0"#),
    };
    let meta = token.map_or(String::new(), |token| {
        format!(r#","_meta":{{"z":1e2,"progressToken":{token}}}"#)
    });
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"n":{number},{body},"big":12345678901234567890{meta}}},"more":null}}"#
    )
}

/// What a server answers to it.
pub(crate) fn result(number: usize) -> String {
    format!(r#"{{"n":{number},"big":12345678901234567890,"f":1.0,"z":null"#)
}

/// The number that stands behind this name in a message.
pub(crate) fn number_in(text: &str, name: &str) -> Option<usize> {
    let at = text.find(name)? + name.len();
    let digits = text[at..].bytes().take_while(u8::is_ascii_digit).count();
    text[at..at + digits].parse().ok()
}

impl Book {
    pub(crate) fn open(&mut self, record: Record) -> usize {
        let number = self.records.len();
        self.by_key.insert(record.key, number);
        self.records.push(record);
        number
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn number_of(&self, key: CallKey) -> Option<usize> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Record> {
        self.records.get(number)
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut Record> {
        self.records.get_mut(number)
    }

    /// A request of a client reached a server (I4, I5, I13).
    pub(crate) fn arrived(
        &mut self,
        number: usize,
        session: u64,
        id: &str,
        body: &str,
    ) -> Result<(), Violation> {
        let Some(record) = self.records.get_mut(number) else {
            return Err(Violation::new("I13", format!("unknown request {body}")));
        };
        let token = record.token.is_some().then_some(id);
        let want = record.ask.map(|ask| request(number, ask, id, token));
        if want.as_deref() != Some(body) {
            return Err(Violation::new(
                "I13",
                format!("{body} differs from {want:?}"),
            ));
        }
        if record.key.session.0 != session {
            return Err(Violation::new(
                "I9",
                format!("call {number} reached another's server"),
            ));
        }
        record.arrivals += 1;
        // One replay, and once more with fresh credentials; and what sets up state, at each reload.
        if record.arrivals > 3 + record.moves {
            return Err(Violation::new(
                "I5",
                format!("call {number} was sent {} times", record.arrivals),
            ));
        }
        Ok(())
    }

    /// A server did what the request asks.
    pub(crate) fn executed(&mut self, number: usize) -> Result<(), Violation> {
        let Some(record) = self.records.get_mut(number) else {
            return Ok(());
        };
        record.executions += 1;
        let once = matches!(record.ask, Some(Ask::Tool | Ask::HintedTool | Ask::Other));
        if once && record.executions > 1 {
            return Err(Violation::new(
                "I4",
                format!("call {number} ran {} times", record.executions),
            ));
        }
        if record.heard == Some(Heard::NotExecuted) {
            return Err(Violation::new(
                "I4",
                format!("call {number} ran after it was said that it had not"),
            ));
        }
        Ok(())
    }

    /// The client hears of a request: once, unless it took it back (I1, I7).
    fn settle(
        &mut self,
        now: Moment,
        key: CallKey,
        heard: Heard,
        bound: Duration,
    ) -> Result<usize, Violation> {
        let Some(number) = self.number_of(key) else {
            return Err(Violation::new(
                "I9",
                format!("told of {key}, which nobody asked"),
            ));
        };
        let record = &mut self.records[number];
        if let Some(before) = record.heard {
            return Err(Violation::new(
                "I1",
                format!("call {number} ended twice: {before:?}, {heard:?}"),
            ));
        }
        if record.cancelled {
            return Err(Violation::new(
                "I1",
                format!("call {number} was cancelled, yet ended: {heard:?}"),
            ));
        }
        record.heard = Some(heard);
        let took = now.since(record.accepted).saturating_sub(record.asked);
        if record.asking == 0 && took > bound {
            return Err(Violation::new("I7", format!("call {number} took {took:?}")));
        }
        Ok(number)
    }

    pub(crate) fn started(
        &mut self,
        now: Moment,
        key: CallKey,
        bound: Duration,
    ) -> Result<(), Violation> {
        let number = self.settle(now, key, Heard::Answer, bound)?;
        if self.records[number].ask.is_some() {
            return Err(Violation::new(
                "I1",
                format!("call {number} was answered by a handshake"),
            ));
        }
        Ok(())
    }

    pub(crate) fn answered(
        &mut self,
        now: Moment,
        key: CallKey,
        message: &Message,
        bound: Duration,
    ) -> Result<(), Violation> {
        let number = self.settle(now, key, Heard::Answer, bound)?;
        let record = &self.records[number];
        let body = match message.kind() {
            Kind::Result => message.result(),
            Kind::Error => message.error(),
            Kind::Request | Kind::Notification => None,
        };
        let body = body.unwrap_or_default();
        let text = String::from_utf8_lossy(&body);
        let right = match message.kind() {
            Kind::Result => text.starts_with(&result(number)),
            _ => text.contains(&format!("n={number}.")),
        };
        if !right {
            return Err(Violation::new("I9", format!("call {number} got {text}")));
        }
        if record.executions == 0 {
            return Err(Violation::new(
                "I4",
                format!("call {number} was answered, but never ran"),
            ));
        }
        Ok(())
    }

    pub(crate) fn failed(
        &mut self,
        now: Moment,
        key: CallKey,
        fault: &Fault,
        bound: Duration,
    ) -> Result<(), Violation> {
        let heard = match fault.outcome {
            Outcome::NotExecuted => Heard::NotExecuted,
            Outcome::Unknown => Heard::Unknown,
            Outcome::Executed => Heard::Executed,
        };
        let number = self.settle(now, key, heard, bound)?;
        let record = &self.records[number];
        match heard {
            Heard::NotExecuted if record.executions > 0 => Err(Violation::new(
                "I4",
                format!(
                    "call {number} ran, but was said not to have: {}",
                    fault.message()
                ),
            )),
            Heard::Executed if record.executions == 0 => Err(Violation::new(
                "I4",
                format!(
                    "call {number} never ran, but was said to have: {}",
                    fault.message()
                ),
            )),
            _ => Ok(()),
        }
    }

    /// At the end everything is settled (I1).
    pub(crate) fn close(&self) -> Result<(), Violation> {
        for (number, record) in self.records.iter().enumerate() {
            if record.heard.is_none() && !record.cancelled {
                return Err(Violation::new("I1", format!("call {number} never ended")));
            }
        }
        Ok(())
    }
}
