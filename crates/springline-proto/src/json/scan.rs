//! The validating walk: one pass over the bytes, no recursion, no allocation.
//!
//! Owns the JSON grammar. Must not know messages.

use super::{
    Span,
    nesting::Nesting,
    plain::{STRETCH, ascii_end, run},
    text::string,
};

/// The deepest nesting that a message may have. Ample for any real schema, and small enough for the
/// stack of bits that the walk keeps; the recursive parsers in the peers give up earlier
/// (`serde_json`: 128).
pub const DEPTH_MAX: usize = 512;

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

/// Validates any one JSON value, with the same tolerance as [`scan`](super::scan).
pub fn validate(bytes: &[u8]) -> Result<(), ScanError> {
    let mut scanner = Scanner::open(bytes)?;
    scanner.document().map_err(|stop| scanner.explain(stop))
}

/// Why a walk stopped, at the byte where the scanner stands. It fits into a register, which a
/// [`ScanError`] does not.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stop {
    Syntax,
    TooDeep,
}

/// A member's name where it stands, with its quotes.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) literal: &'a [u8],
    pub(super) escaped: bool,
}

impl Key<'_> {
    /// Whether it spells `quoted`, a plain name with its quotes.
    #[inline]
    pub(super) fn is<const LEN: usize>(self, quoted: &[u8; LEN]) -> bool {
        self.literal == quoted || (self.escaped && string(self.literal) == string(quoted))
    }
}

/// A position in bytes, and the grammar.
pub(super) struct Scanner<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    /// Whether strings are checked for UTF-8.
    checks: bool,
}

impl<'a> Scanner<'a> {
    /// Checks the size and stands at the first byte of the value.
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self, ScanError> {
        if u32::try_from(bytes.len()).is_err() {
            return Err(ScanError::TooLarge);
        }
        Ok(Self::at_start(bytes))
    }

    /// At a byte of what was checked for UTF-8 before, or will be.
    #[inline]
    pub(super) fn within(bytes: &'a [u8], at: usize) -> Self {
        Self {
            bytes,
            at,
            checks: false,
        }
    }

    /// Behind the byte order mark and the first white space.
    pub(super) fn at_start(bytes: &'a [u8]) -> Self {
        let at = if bytes.starts_with(b"\xEF\xBB\xBF") {
            3
        } else {
            0
        };
        let mut scanner = Self {
            bytes,
            at,
            checks: true,
        };
        scanner.space();
        scanner
    }

    /// What is wrong where the walk stopped. Bytes that are not UTF-8 come first, wherever they are.
    #[cold]
    pub(super) fn explain(&self, stop: Stop) -> ScanError {
        let at = match std::str::from_utf8(self.bytes) {
            Ok(_) if stop == Stop::TooDeep => return ScanError::TooDeep,
            Ok(_) => self.at.min(self.bytes.len()),
            Err(error) => error.valid_up_to(),
        };
        ScanError::Syntax { offset: at }
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    pub(super) fn space(&mut self) {
        self.token();
    }

    /// The byte behind white space, where the scanner then stands.
    #[inline]
    fn token(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        // Compact JSON, the usual case, has none: one comparison.
        if byte > b' ' {
            return Some(byte);
        }
        self.some_space();
        self.peek()
    }

    fn some_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// One value, then nothing but white space.
    pub(super) fn document(&mut self) -> Result<(), Stop> {
        self.value(0)?;
        self.end()
    }

    pub(super) fn end(&mut self) -> Result<(), Stop> {
        self.space();
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(Stop::Syntax)
        }
    }

    /// Walks the object that starts here; `visit` stands at each value and must consume it.
    #[inline]
    pub(super) fn object(
        &mut self,
        visit: impl FnMut(&mut Self, Key<'a>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.at += 1;
        if self.token() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        self.members(visit)
    }

    /// The same, from the name of a member on.
    #[inline]
    pub(super) fn members(
        &mut self,
        mut visit: impl FnMut(&mut Self, Key<'a>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        loop {
            let key = self.key()?;
            visit(self, key)?;
            match self.token() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(Stop::Syntax),
            }
            self.space();
        }
    }

    /// A member's name, its colon and the white space around it.
    #[inline]
    pub(super) fn key(&mut self) -> Result<Key<'a>, Stop> {
        let start = self.at;
        let escaped = self.name()?;
        let literal = self.bytes.get(start..self.at).unwrap_or_default();
        self.colon()?;
        Ok(Key { literal, escaped })
    }

    #[inline]
    fn name(&mut self) -> Result<bool, Stop> {
        match self.peek() {
            Some(b'"') => self.string(),
            _ => Err(Stop::Syntax),
        }
    }

    #[inline]
    fn colon(&mut self) -> Result<(), Stop> {
        if self.token() != Some(b':') {
            return Err(Stop::Syntax);
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    /// One value of any kind, inside `depth` open containers.
    #[inline]
    pub(super) fn value(&mut self, depth: usize) -> Result<(), Stop> {
        match self.peek() {
            Some(b'"') => self.string().map(drop),
            Some(b'{' | b'[') => self.container(depth),
            _ => self.plain_scalar(),
        }
    }

    /// A number or a word.
    fn plain_scalar(&mut self) -> Result<(), Stop> {
        match self.peek() {
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            _ => Err(Stop::Syntax),
        }
    }

    /// The object or array that starts here, with all that is in it.
    fn container(&mut self, depth: usize) -> Result<(), Stop> {
        let mut nesting = Nesting::new(depth);
        loop {
            match self.peek() {
                Some(b'"') => self.string().map(drop)?,
                Some(b'{') => {
                    self.at += 1;
                    nesting.push(true)?;
                    if self.token() != Some(b'}') {
                        self.name()?;
                        self.colon()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    self.at += 1;
                    nesting.push(false)?;
                    if self.token() != Some(b']') {
                        continue;
                    }
                }
                _ => self.plain_scalar()?,
            }
            if self.after_value(&mut nesting)? {
                return Ok(());
            }
        }
    }

    /// Closes what ends here and steps to the next value; true when the outermost value is complete.
    #[inline]
    fn after_value(&mut self, nesting: &mut Nesting) -> Result<bool, Stop> {
        while !nesting.is_empty() {
            let is_object = nesting.is_object();
            match self.token() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                    if is_object {
                        self.name()?;
                        self.colon()?;
                    }
                    return Ok(false);
                }
                Some(b'}') if is_object => {}
                Some(b']') if !is_object => {}
                _ => return Err(Stop::Syntax),
            }
            self.at += 1;
            nesting.pop();
        }
        Ok(true)
    }

    /// The string whose opening quote stands here; true when it holds an escape.
    #[inline]
    pub(super) fn string(&mut self) -> Result<bool, Stop> {
        self.at = ascii_end(self.bytes, self.at + 1);
        // Nearly every string ends so: as plain ASCII.
        if self.peek() == Some(b'"') {
            self.at += 1;
            return Ok(false);
        }
        self.rest_of_string()
    }

    /// The same, of a string that is ASCII so far.
    fn rest_of_string(&mut self) -> Result<bool, Stop> {
        let mut escaped = false;
        // The characters before this byte are whole.
        let mut checked = self.at;
        loop {
            let limit = self.at.saturating_add(STRETCH).min(self.bytes.len());
            let run = run(self.bytes.get(..limit).unwrap_or_default(), self.at);
            if run.ascii && checked == self.at {
                checked = run.end;
            } else if self.checks {
                checked = self.whole_characters(checked, run.end)?;
            } else {
                checked = run.end;
            }
            self.at = run.end;
            match self.peek() {
                Some(_) if run.end == limit => {}
                _ if checked < run.end => return Err(Stop::Syntax),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                    checked = self.at;
                }
                _ => return Err(Stop::Syntax),
            }
        }
    }

    /// Checks text for UTF-8; the end of the last whole character in it.
    fn whole_characters(&self, start: usize, end: usize) -> Result<usize, Stop> {
        let text = self.bytes.get(start..end).unwrap_or_default();
        match std::str::from_utf8(text) {
            Ok(_) => Ok(end),
            Err(error) if error.error_len().is_none() => Ok(start + error.valid_up_to()),
            Err(_) => Err(Stop::Syntax),
        }
    }

    fn escape(&mut self) -> Result<(), Stop> {
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
                _ => Err(Stop::Syntax),
            },
            _ => Err(Stop::Syntax),
        }
    }

    fn number(&mut self) -> Result<(), Stop> {
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
    fn digits(&mut self) -> Result<(), Stop> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start {
            Err(Stop::Syntax)
        } else {
            Ok(())
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Stop> {
        if self.bytes.get(self.at..self.at + word.len()) == Some(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(Stop::Syntax)
        }
    }
}
