//! The validating scan of an answer that goes by in chunks and is not held.
//!
//! Owns the grammar of [`scan`](super::scan) as a state between chunks, and the place of the id in
//! what passes: the TypeScript SDK writes it last. Accepts what [`crate::message::Message`] takes for
//! an answer with an id, and nothing else. Keeps no byte but those of short routing members.

use std::ops::Range;

use bytes::Bytes;

use super::envelope::Member;
use super::nesting::Nesting;
use super::plain::{STRETCH, run};
use super::scan::Stop;
use super::string;

/// Bytes that are kept of one name or value, in all. Our own ids are short numbers, and no routing
/// member's name is longer, even if each of its characters is escaped.
const CAPTURE_MAX: usize = 256;

/// What becomes of the bytes of a chunk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// This range of the chunk passes unchanged.
    Pass(Range<usize>),
    /// The id stands here; its JSON text, which does not pass.
    Id(Bytes),
}

/// Why what goes by is no answer that can be passed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum FlowError {
    /// Not JSON, or not UTF-8.
    #[error("not valid JSON at byte {offset}")]
    Syntax {
        /// About where, in bytes from the start.
        offset: u64,
    },
    /// Nested deeper than [`DEPTH_MAX`](super::DEPTH_MAX).
    #[error("nested deeper than {} levels", super::DEPTH_MAX)]
    TooDeep,
    /// A routing member stands twice.
    #[error("\"{0}\" stands twice")]
    Duplicate(&'static str),
    /// It is a request, a notification or no message, or lacks a member.
    #[error("it is no answer: {0}")]
    NotAnswer(&'static str),
    /// The id is no string or integer, or longer than any of ours.
    #[error("its id is none of ours")]
    Id,
    /// It ended too early.
    #[error("it is not complete")]
    Cut,
}

/// Reads one answer in chunks.
#[derive(Clone, Debug)]
pub struct Flow {
    state: State,
    nesting: Nesting,
    /// Bytes of the chunks before this one.
    seen: u64,
    /// Of them, bytes before the message that do not pass.
    skipped: u64,
    /// The member whose value stands or comes next at the top level.
    member: Option<Member>,
    found: u8,
    capture: Option<Vec<u8>>,
    /// Whether the text at hand holds an escape.
    escaped: bool,
    utf8: Utf8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before the message; so many bytes of a byte order mark were read.
    Start(u8),
    /// Behind an opening bracket.
    First,
    /// Where a member's name must begin.
    Name,
    Colon,
    Value,
    /// Behind a value.
    After,
    Text {
        is_name: bool,
    },
    /// Behind a backslash.
    Escape {
        is_name: bool,
    },
    /// So many hexadecimal digits are missing.
    Hex {
        is_name: bool,
        missing: u8,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
    /// Behind the message.
    End,
}

/// What was read of a number last.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            state: State::Start(0),
            nesting: Nesting::new(0),
            seen: 0,
            skipped: 0,
            member: None,
            found: 0,
            capture: None,
            escaped: false,
            utf8: Utf8::default(),
        }
    }
}

impl Flow {
    /// At the start of an answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it is an answer as far as was read: it has a result or an error, and no method.
    pub fn is_answer(&self) -> bool {
        self.has(Member::Result) || self.has(Member::Error)
    }

    /// Bytes at the start that do not pass: white space and a byte order mark.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Reads a chunk and says what becomes of its bytes. After an error nothing more may pass.
    pub fn push(&mut self, chunk: &[u8], steps: &mut Vec<Step>) -> Result<(), FlowError> {
        let (mut utf8, decided) = (self.utf8, steps.len());
        self.walk(chunk, steps)
            .map_err(|error| match utf8.check(chunk) {
                Ok(()) => error,
                // That it is not UTF-8 comes first, wherever in the chunk.
                Err(at) => {
                    steps.truncate(decided);
                    self.syntax_at(at)
                }
            })
    }

    fn walk(&mut self, chunk: &[u8], steps: &mut Vec<Step>) -> Result<(), FlowError> {
        let mut walk = Walk {
            chunk,
            at: 0,
            passed: 0,
            captured: 0,
            steps,
        };
        while walk.at < chunk.len() {
            self.step(&mut walk)?;
        }
        if self.capture.is_some() {
            self.keep(&walk);
        }
        if !self.is_withholding() {
            walk.pass();
        }
        self.seen += chunk.len() as u64;
        Ok(())
    }

    /// Says whether what went by was a whole answer.
    pub fn finish(&self) -> Result<(), FlowError> {
        if matches!(self.state, State::End) {
            Ok(())
        } else {
            Err(FlowError::Cut)
        }
    }

    /// Says whether the answer has what makes it one, before its last bracket passes: whoever has the
    /// whole text by its length must not have one that is none.
    fn check(&self) -> Result<(), FlowError> {
        if !self.has(Member::Jsonrpc) {
            return Err(FlowError::NotAnswer("\"jsonrpc\" is missing"));
        }
        match (self.has(Member::Result), self.has(Member::Error)) {
            (true, true) => Err(FlowError::NotAnswer("it has both a result and an error")),
            (false, false) => Err(FlowError::NotAnswer("it has neither a result nor an error")),
            _ if !self.has(Member::Id) => Err(FlowError::NotAnswer("it has no id")),
            _ => Ok(()),
        }
    }

    fn has(&self, member: Member) -> bool {
        self.found & bit(member) != 0
    }

    fn syntax_at(&self, at: usize) -> FlowError {
        FlowError::Syntax {
            offset: self.seen + at as u64,
        }
    }

    /// Whether the bytes at hand do not pass.
    fn is_withholding(&self) -> bool {
        matches!(self.state, State::Start(_))
            || (self.member == Some(Member::Id) && self.capture.is_some())
    }

    /// Reads on from a byte that is there.
    fn step(&mut self, walk: &mut Walk<'_>) -> Result<(), FlowError> {
        match self.state {
            State::Text { is_name } => self.text(walk, is_name),
            State::Escape { is_name } => self.escape(walk, is_name),
            State::Hex { is_name, missing } => self.hex(walk, is_name, missing),
            State::Number(last) => self.number(walk, last),
            State::Word(rest) => self.word(walk, rest),
            State::Start(_)
            | State::First
            | State::Name
            | State::Colon
            | State::Value
            | State::After
            | State::End => self.between(walk),
        }
    }

    /// Outside of texts, numbers and words.
    fn between(&mut self, walk: &mut Walk<'_>) -> Result<(), FlowError> {
        let byte = walk.byte();
        if matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
            && !matches!(self.state, State::Start(1 | 2))
        {
            walk.at += 1;
            if matches!(self.state, State::Start(_)) {
                self.skip(walk);
            }
            return Ok(());
        }
        match (self.state, byte) {
            (State::Start(read @ 0..=2), 0xEF | 0xBB | 0xBF) if self.skipped == u64::from(read) => {
                if [0xEF, 0xBB, 0xBF].get(usize::from(read)) != Some(&byte) {
                    return Err(self.syntax_at(walk.at));
                }
                walk.at += 1;
                self.skip(walk);
                self.state = State::Start(read + 1);
            }
            (State::Start(0 | 3), b'{') => self.open(walk, true)?,
            (State::Start(0 | 3), b'[') => return Err(FlowError::NotAnswer("it is a batch")),
            (State::First | State::After, b'}') if self.nesting.is_object() => self.close(walk)?,
            (State::First | State::After, b']') if !self.nesting.is_object() => self.close(walk)?,
            (State::First, b'"') if self.nesting.is_object() => self.begin_name(walk),
            (State::First, _) if self.nesting.is_object() => return Err(self.syntax_at(walk.at)),
            (State::First | State::Value, _) => self.value(walk, byte)?,
            (State::Name, b'"') => self.begin_name(walk),
            (State::Colon, b':') => {
                walk.at += 1;
                self.state = State::Value;
            }
            (State::After, b',') => {
                walk.at += 1;
                self.state = if self.nesting.is_object() {
                    State::Name
                } else {
                    State::Value
                };
            }
            _ => return Err(self.syntax_at(walk.at)),
        }
        Ok(())
    }

    /// A byte before the message: it does not pass.
    fn skip(&mut self, walk: &mut Walk<'_>) {
        walk.passed = walk.at;
        self.skipped += 1;
    }

    fn value(&mut self, walk: &mut Walk<'_>, byte: u8) -> Result<(), FlowError> {
        let is_top = self.nesting.depth() == 1;
        if is_top && matches!(self.member, Some(Member::Id | Member::Jsonrpc)) {
            self.capture = Some(Vec::new());
            walk.captured = walk.at;
            if self.member == Some(Member::Id) {
                walk.pass();
            }
        }
        self.state = match byte {
            b'{' | b'[' if self.capture.is_some() => return Err(self.no_scalar()),
            b'{' | b'[' => return self.open(walk, byte == b'{'),
            b'"' => {
                self.escaped = false;
                State::Text { is_name: false }
            }
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            b't' => State::Word(b"rue"),
            b'f' => State::Word(b"alse"),
            b'n' => State::Word(b"ull"),
            _ => return Err(self.syntax_at(walk.at)),
        };
        walk.at += 1;
        Ok(())
    }

    fn no_scalar(&self) -> FlowError {
        match self.member {
            Some(Member::Id) => FlowError::Id,
            _ => FlowError::NotAnswer("\"jsonrpc\" is not \"2.0\""),
        }
    }

    fn open(&mut self, walk: &mut Walk<'_>, object: bool) -> Result<(), FlowError> {
        // It fails for no other reason.
        self.nesting
            .push(object)
            .map_err(|_: Stop| FlowError::TooDeep)?;
        walk.at += 1;
        self.state = State::First;
        Ok(())
    }

    fn close(&mut self, walk: &mut Walk<'_>) -> Result<(), FlowError> {
        self.nesting.pop();
        self.state = if self.nesting.is_empty() {
            self.check()?;
            State::End
        } else {
            State::After
        };
        walk.at += 1;
        Ok(())
    }

    fn begin_name(&mut self, walk: &mut Walk<'_>) {
        if self.nesting.depth() == 1 {
            self.member = None;
            self.capture = Some(Vec::new());
            walk.captured = walk.at;
        }
        self.escaped = false;
        self.state = State::Text { is_name: true };
        walk.at += 1;
    }

    fn text(&mut self, walk: &mut Walk<'_>, is_name: bool) -> Result<(), FlowError> {
        let limit = walk.at.saturating_add(STRETCH).min(walk.chunk.len());
        let run = run(walk.chunk.get(..limit).unwrap_or_default(), walk.at);
        if !run.ascii || self.utf8.is_cut() {
            let text = walk.chunk.get(walk.at..run.end).unwrap_or_default();
            self.utf8
                .check(text)
                .map_err(|at| self.syntax_at(walk.at + at))?;
        }
        walk.at = run.end;
        match walk.chunk.get(walk.at) {
            _ if run.end == limit => Ok(()),
            Some(_) if self.utf8.is_cut() => Err(self.syntax_at(walk.at)),
            Some(b'"') => {
                walk.at += 1;
                if is_name {
                    self.end_name(walk)
                } else {
                    self.end_value(walk)
                }
            }
            Some(b'\\') => {
                walk.at += 1;
                self.escaped = true;
                self.state = State::Escape { is_name };
                Ok(())
            }
            Some(_) | None => Err(self.syntax_at(walk.at)),
        }
    }

    fn escape(&mut self, walk: &mut Walk<'_>, is_name: bool) -> Result<(), FlowError> {
        self.state = match walk.byte() {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => State::Text { is_name },
            b'u' => State::Hex {
                is_name,
                missing: 4,
            },
            _ => return Err(self.syntax_at(walk.at)),
        };
        walk.at += 1;
        Ok(())
    }

    fn hex(&mut self, walk: &mut Walk<'_>, is_name: bool, missing: u8) -> Result<(), FlowError> {
        if !walk.byte().is_ascii_hexdigit() {
            return Err(self.syntax_at(walk.at));
        }
        walk.at += 1;
        self.state = match missing.saturating_sub(1) {
            0 => State::Text { is_name },
            missing => State::Hex { is_name, missing },
        };
        Ok(())
    }

    fn number(&mut self, walk: &mut Walk<'_>, last: Number) -> Result<(), FlowError> {
        use Number::{Digits, Exponent, Fraction, Minus, Point, Power, Sign, Zero};
        let next = match (last, walk.byte()) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Digits, b'0'..=b'9') => Digits,
            (Zero | Digits, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Digits | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => Sign,
            (Exponent | Sign | Power, b'0'..=b'9') => Power,
            (Zero | Digits | Fraction | Power, _) => return self.end_value(walk),
            (Minus | Point | Exponent | Sign, _) => return Err(self.syntax_at(walk.at)),
        };
        walk.at += 1;
        self.state = State::Number(next);
        Ok(())
    }

    fn word(&mut self, walk: &mut Walk<'_>, rest: &'static [u8]) -> Result<(), FlowError> {
        let Some((next, rest)) = rest.split_first() else {
            return self.end_value(walk);
        };
        if walk.byte() != *next {
            return Err(self.syntax_at(walk.at));
        }
        walk.at += 1;
        if rest.is_empty() {
            return self.end_value(walk);
        }
        self.state = State::Word(rest);
        Ok(())
    }

    /// Adds what this chunk holds of the text at hand to what is kept of it.
    fn keep(&mut self, walk: &Walk<'_>) {
        let Some(kept) = &mut self.capture else {
            return;
        };
        // One more than the bound tells that there was more.
        let room = (CAPTURE_MAX + 1).saturating_sub(kept.len());
        let bytes = walk.chunk.get(walk.captured..walk.at).unwrap_or_default();
        kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// The whole text at hand; empty if it was longer than the bound.
    fn take_text(&mut self, walk: &Walk<'_>) -> Vec<u8> {
        self.keep(walk);
        let text = self.capture.take().unwrap_or_default();
        if text.len() > CAPTURE_MAX {
            Vec::new()
        } else {
            text
        }
    }

    fn end_name(&mut self, walk: &Walk<'_>) -> Result<(), FlowError> {
        self.state = State::Colon;
        if self.capture.is_none() {
            return Ok(());
        }
        let text = self.take_text(walk);
        self.member = Member::named(&text, self.escaped);
        let Some(member) = self.member else {
            return Ok(());
        };
        if member == Member::Method {
            return Err(FlowError::NotAnswer("it has a method"));
        }
        if self.has(member) {
            let named = Member::ALL.into_iter().find(|(held, _)| *held == member);
            return Err(FlowError::Duplicate(named.map_or("", |(_, name)| name)));
        }
        self.found |= bit(member);
        Ok(())
    }

    fn end_value(&mut self, walk: &mut Walk<'_>) -> Result<(), FlowError> {
        self.state = State::After;
        if self.capture.is_none() {
            return Ok(());
        }
        let text = self.take_text(walk);
        if self.member == Some(Member::Id) {
            if !is_id(&text) {
                return Err(FlowError::Id);
            }
            walk.steps.push(Step::Id(Bytes::from(text)));
            walk.passed = walk.at;
        } else if string(&text).as_deref() != Some("2.0") {
            return Err(self.no_scalar());
        }
        Ok(())
    }
}

/// One chunk, and how far it was read.
struct Walk<'a> {
    chunk: &'a [u8],
    at: usize,
    /// Bytes before this one are decided on.
    passed: usize,
    /// Where the text at hand begins in this chunk, if it is kept.
    captured: usize,
    steps: &'a mut Vec<Step>,
}

impl Walk<'_> {
    fn byte(&self) -> u8 {
        self.chunk.get(self.at).copied().unwrap_or_default()
    }

    /// What was read and not decided on passes.
    fn pass(&mut self) {
        if self.passed < self.at {
            self.steps.push(Step::Pass(self.passed..self.at));
        }
        self.passed = self.at;
    }
}

fn bit(member: Member) -> u8 {
    match member {
        Member::Jsonrpc => 1,
        Member::Id => 2,
        Member::Method => 4,
        Member::Params => 8,
        Member::Result => 16,
        Member::Error => 32,
    }
}

/// A string or an integer, as [`crate::message::Message`] takes them; the text was validated.
fn is_id(text: &[u8]) -> bool {
    match text {
        [] => false,
        [b'"', ..] => true,
        [b'-', digits @ ..] | digits => digits.iter().all(u8::is_ascii_digit),
    }
}

/// Whether text is UTF-8, whatever parts it comes in.
#[derive(Clone, Copy, Debug, Default)]
struct Utf8 {
    /// The start of a character that the last part cut: so many bytes of these.
    begun: [u8; 4],
    len: usize,
}

impl Utf8 {
    /// Whether the last part cut a character.
    fn is_cut(self) -> bool {
        self.len > 0
    }

    /// Checks the next part; an error says where, from its start.
    fn check(&mut self, part: &[u8]) -> Result<(), usize> {
        let mut rest = part;
        while self.is_cut() {
            let Some((next, more)) = rest.split_first() else {
                return Ok(());
            };
            // No character has more bytes than there is room for.
            let place = self.begun.get_mut(self.len).ok_or(0_usize)?;
            *place = *next;
            self.len += 1;
            rest = more;
            match std::str::from_utf8(self.begun.get(..self.len).unwrap_or_default()) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(0),
            }
        }
        let Err(error) = std::str::from_utf8(rest) else {
            return Ok(());
        };
        let cut = rest.get(error.valid_up_to()..).unwrap_or_default();
        match self.begun.get_mut(..cut.len()) {
            Some(begun) if error.error_len().is_none() => {
                begun.copy_from_slice(cut);
                self.len = cut.len();
                Ok(())
            }
            _ => Err(part.len() - cut.len()),
        }
    }
}

#[cfg(test)]
mod tests;
