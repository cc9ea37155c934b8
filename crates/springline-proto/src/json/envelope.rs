//! The envelope of a message: the members that routing reads.
//!
//! Owns which members these are and what it means that one stands twice. Must not know kinds of
//! messages.

use super::{
    ScanError, Span,
    scan::{Key, Scanner, Stop},
    text::key_is,
};

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

/// How most messages begin: a member that need not be walked.
const USUAL: &[u8] = br#"{"jsonrpc":"2.0","#;

/// Validates one message and finds its envelope.
///
/// Accepts a leading byte order mark and surrounding white space. Escaped member names count as what
/// they spell. Numbers are checked by grammar only, whatever their size, and lone surrogate escapes
/// are JSON (I13).
pub fn scan(bytes: &[u8]) -> Result<Envelope, ScanError> {
    let mut scanner = Scanner::open(bytes)?;
    if scanner.peek() != Some(b'{') {
        return Err(no_object(scanner));
    }
    let mut finder = Finder::default();
    let rest = bytes.get(scanner.at..).unwrap_or_default();
    let walked = if rest.starts_with(USUAL) {
        let value = scanner.at + USUAL.len() - 6;
        finder.envelope.jsonrpc = Some(Span::new(value, value + 5));
        scanner.at += USUAL.len();
        scanner.space();
        scanner.members(|scanner, key| finder.top(scanner, key))
    } else {
        scanner.object(|scanner, key| finder.top(scanner, key))
    };
    if let Err(stop) = walked.and_then(|()| scanner.end()) {
        return Err(scanner.explain(stop));
    }
    finder.finish()
}

/// What is wrong with anything else than an object.
#[cold]
fn no_object(mut scanner: Scanner<'_>) -> ScanError {
    let is_array = scanner.peek() == Some(b'[');
    match scanner.document() {
        Err(stop) => scanner.explain(stop),
        Ok(()) if is_array => ScanError::Batch {
            empty: is_empty_array(scanner.bytes),
        },
        Ok(()) => ScanError::NotObject,
    }
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
    fn top(&mut self, scanner: &mut Scanner<'_>, key: Key<'_>) -> Result<(), Stop> {
        let Some(member) = Member::named(key.literal, key.escaped) else {
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

    fn params(&mut self, scanner: &mut Scanner<'_>, key: Key<'_>) -> Result<(), Stop> {
        if key.is(b"\"name\"") {
            self.envelope.name_twice |= std::mem::replace(&mut self.name_seen, true);
        }
        if !key.is(b"\"_meta\"") {
            return scanner.value(2);
        }
        self.token_ambiguous |= std::mem::replace(&mut self.meta_seen, true);
        if scanner.peek() == Some(b'{') {
            scanner.object(|scanner, key| self.meta(scanner, key))
        } else {
            scanner.value(2)
        }
    }

    fn meta(&mut self, scanner: &mut Scanner<'_>, key: Key<'_>) -> Result<(), Stop> {
        let start = scanner.at;
        scanner.value(3)?;
        if key.is(b"\"progressToken\"") {
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

    /// The member of this name, a literal with its quotes.
    #[inline]
    pub(super) fn named(literal: &[u8], escaped: bool) -> Option<Self> {
        match literal {
            b"\"jsonrpc\"" => Some(Self::Jsonrpc),
            b"\"id\"" => Some(Self::Id),
            b"\"method\"" => Some(Self::Method),
            b"\"params\"" => Some(Self::Params),
            b"\"result\"" => Some(Self::Result),
            b"\"error\"" => Some(Self::Error),
            _ if escaped => Self::spelt(literal),
            _ => None,
        }
    }

    /// The same, of a name with escapes.
    #[cold]
    fn spelt(literal: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find_map(|(member, name)| key_is(literal, name).then_some(member))
    }
}
