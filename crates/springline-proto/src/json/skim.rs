//! Reading a message that goes by in chunks and is not kept.
//!
//! Owns a bounded state machine that finds the top-level `id` and `method`, wherever they stand: the
//! TypeScript SDK writes the id last. It checks no more grammar than it needs, so what it finds is
//! good for telling whom an unreadable message concerned, not for accepting it.

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;

use super::{string, text::key_is, validate};

/// The longest id or method that is remembered, in bytes of JSON text. Ids that peers really use are
/// numbers or UUIDs; a longer one counts as not found, it is never cut.
const CAPTURE_MAX: usize = 1024;

/// Finds the id and the method of one message given in chunks. Holds at most 3 KiB.
#[derive(Debug, Default)]
pub struct Skim {
    seen: u64,
    depth: u64,
    state: State,
    /// The member whose value stands or comes next at the top level.
    member: Member,
    capture: Capture,
    id: Found<(Bytes, Range<u64>)>,
    method: Found<String>,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    /// Before the opening brace.
    #[default]
    Start,
    /// At the top level, where a member's name may begin.
    BeforeName,
    /// Anywhere else outside strings.
    Between,
    /// In a string, possibly behind a backslash.
    String { role: Role, escaped: bool },
    /// In a number or word that is the value of `id`.
    Scalar,
    /// Behind the message, or the bytes are no object.
    Done,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Role {
    Name,
    Value,
    Ignored,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Member {
    Id,
    Method,
    #[default]
    Other,
}

#[derive(Debug, Default)]
struct Capture {
    text: Vec<u8>,
    start: u64,
    cut: bool,
}

impl Capture {
    fn begin(&mut self, start: u64) {
        self.text.clear();
        self.cut = false;
        self.start = start;
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = CAPTURE_MAX - self.text.len().min(CAPTURE_MAX);
        self.cut |= bytes.len() > room;
        self.text
            .extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn text(&self) -> Option<&[u8]> {
        (!self.cut).then_some(&self.text)
    }
}

/// A value that must stand once to be believed.
#[derive(Debug, Default)]
enum Found<T> {
    #[default]
    Nothing,
    Once(T),
    /// Unusable, or there are several.
    Unclear,
}

impl<T> Found<T> {
    fn add(&mut self, value: Option<T>) {
        *self = match (&self, value) {
            (Self::Nothing, Some(value)) => Self::Once(value),
            _ => Self::Unclear,
        };
    }

    fn once(&self) -> Option<&T> {
        match self {
            Self::Once(value) => Some(value),
            Self::Nothing | Self::Unclear => None,
        }
    }
}

impl Skim {
    /// At the start of a message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads on.
    pub fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() && self.state != State::Done {
            let used = match self.state {
                State::String { role, escaped } => self.in_string(rest, role, escaped),
                State::Start | State::BeforeName | State::Between | State::Scalar | State::Done => {
                    self.outside(rest)
                }
            };
            self.seen += used as u64;
            rest = rest.get(used..).unwrap_or_default();
        }
        self.seen += rest.len() as u64;
    }

    /// The bytes read so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The JSON text of the id, once its end was read: a string or an integer that stands once.
    pub fn id(&self) -> Option<&Bytes> {
        self.id.once().map(|(text, _)| text)
    }

    /// Where the id stands, in bytes from the start of the message.
    pub fn id_range(&self) -> Option<Range<u64>> {
        self.id.once().map(|(_, range)| range.clone())
    }

    /// The method, decoded, once its end was read.
    pub fn method(&self) -> Option<&str> {
        self.method.once().map(String::as_str)
    }

    /// The id of bytes that are no JSON and yet mean to be an answer: cut short, badly encoded or
    /// badly quoted. `None` where that is not clear: a request of the server is no answer to us.
    pub fn answer_id(bytes: &[u8]) -> Option<Bytes> {
        let has = |name: &[u8]| memmem::find(bytes, name).is_some();
        if !has(br#""jsonrpc""#) || !(has(br#""result""#) || has(br#""error""#)) {
            return None;
        }
        let mut skim = Self::new();
        skim.push(bytes);
        let is_call = !matches!(skim.method, Found::Nothing);
        skim.id().filter(|_| !is_call).cloned()
    }

    /// Reads up to the end of a string or of `bytes`; returns the bytes used.
    fn in_string(&mut self, bytes: &[u8], role: Role, escaped: bool) -> usize {
        let mut used = usize::from(escaped);
        let mut still_escaped = false;
        let mut closed = false;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            let Some(at) = memchr::memchr2(b'"', b'\\', rest) else {
                used = bytes.len();
                break;
            };
            closed = rest.get(at) == Some(&b'"');
            if closed {
                used += at + 1;
                break;
            }
            used += at + 2;
            still_escaped = used > bytes.len();
        }
        let used = used.min(bytes.len());
        if role != Role::Ignored {
            self.capture.push(bytes.get(..used).unwrap_or_default());
        }
        if closed {
            self.close_string(role, used);
        } else {
            self.state = State::String {
                role,
                escaped: still_escaped,
            };
        }
        used
    }

    fn close_string(&mut self, role: Role, used: usize) {
        self.state = State::Between;
        match role {
            Role::Ignored => {}
            Role::Value => self.take_value(used),
            Role::Name => {
                self.member = match self.capture.text() {
                    Some(name) if key_is(name, "id") => Member::Id,
                    Some(name) if key_is(name, "method") => Member::Method,
                    _ => Member::Other,
                }
            }
        }
    }

    /// Reads bytes outside strings until the state changes; returns the bytes used.
    fn outside(&mut self, bytes: &[u8]) -> usize {
        let state = self.state;
        for (at, &byte) in bytes.iter().enumerate() {
            self.byte(byte, at);
            if self.state != state {
                return at + 1;
            }
        }
        bytes.len()
    }

    fn byte(&mut self, byte: u8, at: usize) {
        if self.state == State::Scalar {
            if !matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t') {
                self.capture.push(&[byte]);
                return;
            }
            self.state = State::Between;
            self.take_value(at);
        }
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {}
            0xEF | 0xBB | 0xBF if self.state == State::Start => {}
            b'{' if self.state == State::Start => {
                self.depth = 1;
                self.state = State::BeforeName;
            }
            _ if self.state == State::Start => self.state = State::Done,
            b'"' => self.open_string(at),
            b'{' | b'[' => self.open_container(),
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.state = State::Done;
                }
            }
            b',' if self.depth == 1 => self.state = State::BeforeName,
            _ if self.depth == 1 && self.member != Member::Other && byte != b':' => {
                self.capture.begin(self.seen + at as u64);
                self.capture.push(&[byte]);
                self.state = State::Scalar;
            }
            _ => {}
        }
    }

    fn open_string(&mut self, at: usize) {
        let role = match (self.depth, self.state, self.member) {
            (1, State::BeforeName, _) => Role::Name,
            (1, _, Member::Id | Member::Method) => Role::Value,
            _ => Role::Ignored,
        };
        if role != Role::Ignored {
            self.capture.begin(self.seen + at as u64);
            self.capture.push(b"\"");
        }
        self.state = State::String {
            role,
            escaped: false,
        };
    }

    fn open_container(&mut self) {
        if self.depth == 1 {
            // Neither member may be a container.
            match std::mem::take(&mut self.member) {
                Member::Id => self.id.add(None),
                Member::Method => self.method.add(None),
                Member::Other => {}
            }
        }
        self.depth += 1;
        self.state = State::Between;
    }

    /// Takes the captured value of the current member; it ended `used` bytes behind `seen`.
    fn take_value(&mut self, used: usize) {
        let text = self.capture.text().filter(|text| validate(text).is_ok());
        match std::mem::take(&mut self.member) {
            Member::Id => {
                let range = self.capture.start..self.seen + used as u64;
                let usable = text.filter(|text| is_id(text));
                let id = usable.map(|text| (Bytes::copy_from_slice(text), range));
                self.id.add(id);
            }
            Member::Method => {
                let method = text.and_then(string).map(std::borrow::Cow::into_owned);
                self.method.add(method);
            }
            Member::Other => {}
        }
    }
}

/// A string or an integer, as [`crate::message::Message`] takes them.
fn is_id(text: &[u8]) -> bool {
    match text {
        [b'"', ..] => true,
        [b'-', digits @ ..] | digits => digits.iter().all(u8::is_ascii_digit),
    }
}

#[cfg(test)]
mod tests;
