//! The validating scan: one pass over the bytes, no recursion, no allocation.
//!
//! Owns the JSON grammar and the envelope of a message. Must not know kinds of messages.

use super::{Span, text::key_is};

/// The deepest nesting that a message may have. Ample for any real schema, and small enough for the
/// stack of bits below; the recursive parsers in the peers give up earlier (`serde_json`: 128).
pub const DEPTH_MAX: usize = 512;

/// Where the members that routing needs stand in a message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Envelope {
    /// The value of `jsonrpc`.
    pub jsonrpc: Option<Span>,
    /// The value of `id`, any JSON value.
    pub id: Option<Span>,
    /// The value of `method`; with its quotes when it is a string.
    pub method: Option<Span>,
    /// The value of `params`.
    pub params: Option<Span>,
    /// The value of `result`.
    pub result: Option<Span>,
    /// The value of `error`.
    pub error: Option<Span>,
    /// The value of `params._meta.progressToken`, only beside a `method`.
    pub progress_token: Option<Span>,
    /// Whether `params` has more than one `name`, of which two readers could take different ones.
    pub name_twice: bool,
}

/// Why bytes are not one JSON-RPC object.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ScanError {
    /// Not JSON, or not UTF-8.
    #[error("not valid JSON at byte {offset}")]
    Syntax {
        /// The first byte that does not fit.
        offset: usize,
    },
    /// Nested deeper than [`DEPTH_MAX`].
    #[error("nested deeper than {DEPTH_MAX} levels")]
    TooDeep,
    /// Valid JSON, but a scalar.
    #[error("not a JSON object")]
    NotObject,
    /// A JSON array: a batch.
    #[error("a batch of messages")]
    Batch {
        /// Whether the array has no element.
        empty: bool,
    },
    /// A routing member stands twice, so that two readers could disagree about it.
    #[error("the member \"{member}\" stands twice")]
    Duplicate {
        /// Its name.
        member: &'static str,
        /// The message's id, when that can still be read.
        id: Option<Span>,
    },
    /// Larger than spans can address (4 GiB).
    #[error("larger than 4 GiB")]
    TooLarge,
}

/// Validates one message and finds its envelope.
///
/// Accepts a leading byte order mark and surrounding white space. Escaped member names count as what
/// they spell. Numbers are checked by grammar only, whatever their size, and lone surrogate escapes
/// are JSON (I13).
pub fn scan(bytes: &[u8]) -> Result<Envelope, ScanError> {
    let mut scanner = Scanner::open(bytes)?;
    match scanner.peek() {
        Some(b'{') => {}
        Some(b'[') => {
            scanner.document()?;
            return Err(ScanError::Batch {
                empty: is_empty_array(bytes),
            });
        }
        _ => {
            scanner.document()?;
            return Err(ScanError::NotObject);
        }
    }
    let mut finder = Finder::default();
    scanner.object(|scanner, key| finder.top(scanner, key))?;
    scanner.end()?;
    finder.finish()
}

/// Validates any one JSON value, with the same tolerance as [`scan`].
pub fn validate(bytes: &[u8]) -> Result<(), ScanError> {
    Scanner::open(bytes)?.document()
}

/// Whether a validated array has no element.
fn is_empty_array(bytes: &[u8]) -> bool {
    let mut inner = Scanner::at_start(bytes);
    inner.at += 1;
    inner.space();
    inner.peek() == Some(b']')
}

/// Collects the envelope while the scanner walks.
#[derive(Default)]
struct Finder {
    envelope: Envelope,
    duplicate: Option<&'static str>,
    meta_seen: bool,
    name_seen: bool,
    token_ambiguous: bool,
}

impl Finder {
    fn top(&mut self, scanner: &mut Scanner<'_>, key: Key) -> Result<(), ScanError> {
        let Some(member) = Member::of(scanner.bytes, key) else {
            return scanner.value(1);
        };
        let start = scanner.at;
        if member == Member::Params && scanner.peek() == Some(b'{') {
            scanner.object(|scanner, key| self.params(scanner, key))?;
        } else {
            scanner.value(1)?;
        }
        let value = Span::new(start, scanner.at);
        let (name, place) = match member {
            Member::Jsonrpc => ("jsonrpc", &mut self.envelope.jsonrpc),
            Member::Id => ("id", &mut self.envelope.id),
            Member::Method => ("method", &mut self.envelope.method),
            Member::Params => ("params", &mut self.envelope.params),
            Member::Result => ("result", &mut self.envelope.result),
            Member::Error => ("error", &mut self.envelope.error),
        };
        if place.replace(value).is_some() {
            self.duplicate = self.duplicate.or(Some(name));
        }
        Ok(())
    }

    fn params(&mut self, scanner: &mut Scanner<'_>, key: Key) -> Result<(), ScanError> {
        if key.is(scanner.bytes, "name") {
            self.envelope.name_twice |= std::mem::replace(&mut self.name_seen, true);
        }
        if !key.is(scanner.bytes, "_meta") {
            return scanner.value(2);
        }
        self.token_ambiguous |= std::mem::replace(&mut self.meta_seen, true);
        if scanner.peek() == Some(b'{') {
            scanner.object(|scanner, key| self.meta(scanner, key))
        } else {
            scanner.value(2)
        }
    }

    fn meta(&mut self, scanner: &mut Scanner<'_>, key: Key) -> Result<(), ScanError> {
        let start = scanner.at;
        scanner.value(3)?;
        if key.is(scanner.bytes, "progressToken") {
            let value = Span::new(start, scanner.at);
            self.token_ambiguous |= self.envelope.progress_token.replace(value).is_some();
        }
        Ok(())
    }

    /// A progress token that two readers could see differently would escape its mapping (I9), so it
    /// is refused, and a second `name` is noted; any other duplicate inside `params` passes
    /// untouched.
    fn finish(mut self) -> Result<Envelope, ScanError> {
        if self.envelope.method.is_none() {
            self.envelope.progress_token = None;
        }
        if self.token_ambiguous && self.envelope.progress_token.is_some() {
            self.duplicate = self.duplicate.or(Some("progressToken"));
        }
        match self.duplicate {
            None => Ok(self.envelope),
            Some(member) => Err(ScanError::Duplicate {
                member,
                id: self.envelope.id.filter(|_| member != "id"),
            }),
        }
    }
}

/// A top-level member that routing reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Member {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
}

impl Member {
    pub(super) const ALL: [(Self, &'static str); 6] = [
        (Self::Jsonrpc, "jsonrpc"),
        (Self::Id, "id"),
        (Self::Method, "method"),
        (Self::Params, "params"),
        (Self::Result, "result"),
        (Self::Error, "error"),
    ];

    fn of(bytes: &[u8], key: Key) -> Option<Self> {
        Self::named(key.span.of(bytes), key.escaped)
    }

    /// The member of this name, a literal with its quotes.
    pub(super) fn named(literal: &[u8], escaped: bool) -> Option<Self> {
        if escaped {
            return Self::ALL
                .into_iter()
                .find_map(|(member, name)| key_is(literal, name).then_some(member));
        }
        match literal {
            b"\"jsonrpc\"" => Some(Self::Jsonrpc),
            b"\"id\"" => Some(Self::Id),
            b"\"method\"" => Some(Self::Method),
            b"\"params\"" => Some(Self::Params),
            b"\"result\"" => Some(Self::Result),
            b"\"error\"" => Some(Self::Error),
            _ => None,
        }
    }
}

/// A member's name where it stands, with its quotes.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) span: Span,
    escaped: bool,
}

impl Key {
    pub(super) fn is(self, bytes: &[u8], name: &str) -> bool {
        let literal = self.span.of(bytes);
        if self.escaped {
            key_is(literal, name)
        } else {
            literal.len() == name.len() + 2 && literal.get(1..=name.len()) == Some(name.as_bytes())
        }
    }
}

/// A position in bytes, and the grammar.
pub(super) struct Scanner<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Scanner<'a> {
    /// Checks what holds for the whole (size, UTF-8) and stands at the first byte of the value.
    fn open(bytes: &'a [u8]) -> Result<Self, ScanError> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(ScanError::TooLarge);
        }
        std::str::from_utf8(bytes).map_err(|error| ScanError::Syntax {
            offset: error.valid_up_to(),
        })?;
        Ok(Self::at_start(bytes))
    }

    /// Behind the byte order mark and the first white space.
    fn at_start(bytes: &'a [u8]) -> Self {
        let at = if bytes.starts_with(b"\xEF\xBB\xBF") {
            3
        } else {
            0
        };
        let mut scanner = Self { bytes, at };
        scanner.space();
        scanner
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    pub(super) fn space(&mut self) {
        // Compact JSON, the usual case, has none: one comparison.
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.some_space();
        }
    }

    fn some_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    #[cold]
    fn syntax(&self) -> ScanError {
        ScanError::Syntax {
            offset: self.at.min(self.bytes.len()),
        }
    }

    /// One value, then nothing but white space.
    fn document(&mut self) -> Result<(), ScanError> {
        self.value(0)?;
        self.end()
    }

    fn end(&mut self) -> Result<(), ScanError> {
        self.space();
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(self.syntax())
        }
    }

    /// Walks the object that starts here; `visit` stands at each value and must consume it.
    fn object(
        &mut self,
        mut visit: impl FnMut(&mut Self, Key) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.key()?;
            visit(self, key)?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.syntax()),
            }
            self.space();
        }
    }

    /// A member's name, its colon and the white space around it.
    #[inline]
    pub(super) fn key(&mut self) -> Result<Key, ScanError> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.syntax());
        }
        let escaped = self.string()?;
        let span = Span::new(start, self.at);
        self.space();
        if self.peek() != Some(b':') {
            return Err(self.syntax());
        }
        self.at += 1;
        self.space();
        Ok(Key { span, escaped })
    }

    /// One value of any kind, inside `depth` open containers.
    #[inline]
    pub(super) fn value(&mut self, depth: usize) -> Result<(), ScanError> {
        match self.peek() {
            Some(b'{' | b'[') => self.container(depth),
            _ => self.scalar(),
        }
    }

    #[inline]
    fn scalar(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(self.syntax()),
        }
    }

    /// The object or array that starts here, with all that is in it.
    fn container(&mut self, depth: usize) -> Result<(), ScanError> {
        let mut nesting = Nesting::new(depth);
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    nesting.push(true)?;
                    self.space();
                    if self.peek() != Some(b'}') {
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    nesting.push(false)?;
                    self.space();
                    if self.peek() != Some(b']') {
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            if self.after_value(&mut nesting)? {
                return Ok(());
            }
        }
    }

    /// Closes what ends here and steps to the next value; true when the outermost value is complete.
    #[inline]
    fn after_value(&mut self, nesting: &mut Nesting) -> Result<bool, ScanError> {
        loop {
            if nesting.is_empty() {
                return Ok(true);
            }
            self.space();
            match (self.peek(), nesting.object) {
                (Some(b','), object) => {
                    self.at += 1;
                    self.space();
                    if object {
                        self.key()?;
                    }
                    return Ok(false);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    nesting.pop();
                }
                _ => return Err(self.syntax()),
            }
        }
    }

    /// The string whose opening quote stands here; true when it holds an escape.
    #[inline]
    pub(super) fn string(&mut self) -> Result<bool, ScanError> {
        self.at += 1;
        // Most names and values end within a word or two, and plainly.
        if let Some(word) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
            let found = special(u64::from_le_bytes(*word));
            if found == 0 {
                self.at += 8;
            } else {
                self.at += (found.trailing_zeros() / 8) as usize;
                if self.peek() == Some(b'"') {
                    self.at += 1;
                    return Ok(false);
                }
            }
        }
        let mut escaped = false;
        loop {
            self.at = plain_end(self.bytes, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.syntax()),
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        match self.bytes.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => match self.bytes.get(self.at + 2..self.at + 6) {
                Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                    Ok(())
                }
                _ => Err(self.syntax()),
            },
            _ => Err(self.syntax()),
        }
    }

    fn number(&mut self) -> Result<(), ScanError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start {
            Err(self.syntax())
        } else {
            Ok(())
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), ScanError> {
        if self.bytes.get(self.at..self.at + word.len()) == Some(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.syntax())
        }
    }
}

/// The open containers, one bit each: is it an object?
#[derive(Clone, Debug)]
pub(super) struct Nesting {
    /// The kinds of the containers around the innermost one.
    outer: [u64; DEPTH_MAX / 64],
    /// Containers opened by this walk.
    opened: usize,
    /// Containers open around this walk.
    base: usize,
    /// Whether the innermost one is an object.
    pub(super) object: bool,
}

impl Nesting {
    #[inline]
    pub(super) fn new(base: usize) -> Self {
        Self {
            outer: [0; DEPTH_MAX / 64],
            opened: 0,
            base,
            object: false,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.opened == 0
    }

    /// Containers opened by this walk and not closed.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.opened
    }

    #[inline]
    pub(super) fn push(&mut self, object: bool) -> Result<(), ScanError> {
        if self.base + self.opened >= DEPTH_MAX {
            return Err(ScanError::TooDeep);
        }
        if let Some(word) = self.outer.get_mut(self.opened / 64) {
            let bit = 1 << (self.opened % 64);
            *word = if self.object {
                *word | bit
            } else {
                *word & !bit
            };
        }
        self.opened += 1;
        self.object = object;
        Ok(())
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.opened = self.opened.saturating_sub(1);
        let word = self.outer.get(self.opened / 64).copied().unwrap_or(0);
        self.object = word >> (self.opened % 64) & 1 == 1;
    }
}

/// The first byte from `at` on that a string cannot hold plainly: a quote, a backslash or a control
/// character; the length when there is none.
#[inline]
pub(super) fn plain_end(bytes: &[u8], at: usize) -> usize {
    // Most strings are short; a long one is worth the wider steps.
    let near = at.saturating_add(NEAR);
    match bytes.get(..near) {
        None => plain_end_near(bytes, at),
        Some(head) => match plain_end_near(head, at) {
            end if end < near => end,
            _ => plain_end_near(bytes, plain_blocks(bytes, near)),
        },
    }
}

/// Bytes of a string that are searched by words before blocks are tried.
const NEAR: usize = 32;

/// Past the blocks from `at` on that are plain as a whole. Written so that the compiler makes vector
/// instructions of it: this is where the time of large results goes.
fn plain_blocks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<64>) {
        let ends = block.iter().fold(0, |ends, &byte| {
            ends | u8::from(byte < 0x20) | u8::from(byte == b'"') | u8::from(byte == b'\\')
        });
        if ends != 0 {
            break;
        }
        at += 64;
    }
    at
}

#[inline]
fn plain_end_near(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let found = special(u64::from_le_bytes(*chunk));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while let Some(&byte) = bytes.get(at) {
        if byte < 0x20 || byte == b'"' || byte == b'\\' {
            break;
        }
        at += 1;
    }
    at
}

/// Marks the bytes of `word` that end a plain run, in their high bits. A borrow can only mark bytes
/// above a true mark, so the lowest mark is exact.
#[inline]
fn special(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let quote = word ^ (ONES * 0x22);
    let backslash = word ^ (ONES * 0x5C);
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = quote.wrapping_sub(ONES) & !quote;
    let backslash = backslash.wrapping_sub(ONES) & !backslash;
    (control | quote | backslash) & HIGH
}
