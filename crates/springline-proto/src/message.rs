//! One JSON-RPC message as it came, and what routing reads in it.
//!
//! Owns the rules that tell requests, notifications and answers apart (JSON-RPC 2.0, with MCP's
//! narrowing of ids: 2025-11-25 basic, Messages). Must not know methods.

use std::{borrow::Cow, fmt};

use bytes::Bytes;

use crate::json::{self, Envelope, Pieces, ScanError, Span, Splice};

/// What a message is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// A method with an id.
    Request,
    /// A method without an id.
    Notification,
    /// An answer with a result.
    Result,
    /// An answer with an error; its id may be absent.
    Error,
}

/// A valid JSON-RPC message: its bytes and where its members stand in them.
///
/// A clone shares the bytes. What the accessors return shares them too, so keeping an id keeps the
/// whole message in memory; copy what outlives the call.
#[derive(Clone)]
pub struct Message {
    bytes: Bytes,
    envelope: Envelope,
    kind: Kind,
}

/// The same bytes; everything else follows from them.
impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Message {}

impl Message {
    /// Checks `bytes` and takes them over. White space and a byte order mark around the message are
    /// cut off; nothing inside is touched (I13).
    pub fn parse(bytes: impl Into<Bytes>) -> Result<Self, ParseError> {
        Self::try_parse(bytes.into()).map_err(|(error, _)| error)
    }

    /// The same; what is no message is given back without what stood around it.
    pub fn try_parse(bytes: Bytes) -> Result<Self, (ParseError, Bytes)> {
        let bytes = trim(bytes);
        let envelope = match json::scan(&bytes) {
            Ok(envelope) => envelope,
            Err(error) => return Err((ParseError::from_scan(error, &bytes), bytes)),
        };
        match classify(&bytes, &envelope) {
            Ok(kind) => Ok(Self {
                bytes,
                envelope,
                kind,
            }),
            Err(reason) => {
                let error = ParseError {
                    kind: ParseErrorKind::Invalid(reason),
                    id: envelope.id.and_then(|id| usable_id(&bytes, id)),
                };
                Err((error, bytes))
            }
        }
    }

    /// What this message is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The whole message.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Where the members stand in [`Message::bytes`].
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The id's JSON text as it was sent (`"1"` is not `1`); `None` when absent or null.
    pub fn id(&self) -> Option<Bytes> {
        self.envelope.id.and_then(|id| usable_id(&self.bytes, id))
    }

    /// The id as [`Message::id`] gives it, for a look: nothing is shared.
    pub fn raw_id(&self) -> Option<&[u8]> {
        let text = self.envelope.id?.of(&self.bytes);
        matches!(Id::of(text), Some(Id::Usable)).then_some(text)
    }

    /// The method, decoded.
    pub fn method(&self) -> Option<Cow<'_, str>> {
        json::string(self.envelope.method?.of(&self.bytes))
    }

    /// The JSON text of `params`.
    pub fn params(&self) -> Option<Bytes> {
        self.slice(self.envelope.params)
    }

    /// The JSON text of `result`.
    pub fn result(&self) -> Option<Bytes> {
        self.slice(self.envelope.result)
    }

    /// The JSON text of `error`.
    pub fn error(&self) -> Option<Bytes> {
        self.slice(self.envelope.error)
    }

    /// The JSON text of the first member `name` of `params`.
    pub fn param(&self, name: &str) -> Option<Bytes> {
        self.slice(self.param_span(name))
    }

    /// Where the value of the first member `name` of `params` stands.
    pub fn param_span(&self, name: &str) -> Option<Span> {
        json::member(&self.bytes, self.envelope.params?, name)
    }

    /// The JSON text of `params._meta.progressToken`, as it was sent.
    pub fn progress_token(&self) -> Option<Bytes> {
        self.slice(self.envelope.progress_token)
    }

    /// This message under another id, given as JSON text. A message without an id gets one as its
    /// first member.
    pub fn with_id(&self, id: &[u8]) -> Pieces {
        if let Some(span) = self.envelope.id {
            return Splice::replaced(&self.bytes, span, id);
        }
        let member = [b"\"id\":", id, b","].concat();
        self.splice().insert_at(1, member).finish()
    }

    /// Starts edits of this message; spans come from [`Message::envelope`] or [`json`].
    pub fn splice(&self) -> Splice<'_> {
        Splice::new(&self.bytes)
    }

    fn slice(&self, span: Option<Span>) -> Option<Bytes> {
        span.map(|span| span.slice(&self.bytes))
    }
}

impl From<&Message> for Pieces {
    fn from(message: &Message) -> Self {
        Self::from(message.bytes.clone())
    }
}

/// Shows no content: arguments and results may carry secrets.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("kind", &self.kind)
            .field("method", &self.method())
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// Why bytes are not a message, and whom to tell.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{kind}")]
pub struct ParseError {
    /// What is wrong.
    pub kind: ParseErrorKind,
    /// The JSON text of the id to answer under, where a valid one can be read.
    pub id: Option<Bytes>,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseErrorKind {
    /// Not JSON, or not UTF-8.
    #[error("not valid JSON (at byte {offset})")]
    Syntax {
        /// The first byte that does not fit, counted behind leading white space.
        offset: usize,
    },
    /// Nested deeper than [`json::DEPTH_MAX`].
    #[error("nested deeper than {} levels", json::DEPTH_MAX)]
    TooDeep,
    /// A JSON array. No revision that we speak carries batches on these paths.
    #[error("batches are not supported")]
    Batch {
        /// Whether it has no element.
        empty: bool,
    },
    /// Valid JSON that is not a JSON-RPC message.
    #[error("not a JSON-RPC message: {0}")]
    Invalid(&'static str),
}

impl ParseError {
    /// The JSON-RPC error code: -32700 (parse error) or -32600 (invalid request).
    pub fn code(&self) -> i32 {
        match self.kind {
            ParseErrorKind::Syntax { .. } | ParseErrorKind::TooDeep => -32700,
            ParseErrorKind::Batch { .. } | ParseErrorKind::Invalid(_) => -32600,
        }
    }

    fn from_scan(error: ScanError, bytes: &Bytes) -> Self {
        let mut id = None;
        let kind = match error {
            ScanError::Syntax { offset } => ParseErrorKind::Syntax { offset },
            ScanError::TooDeep => ParseErrorKind::TooDeep,
            ScanError::Batch { empty } => ParseErrorKind::Batch { empty },
            ScanError::NotObject => ParseErrorKind::Invalid("it is not an object"),
            ScanError::TooLarge => ParseErrorKind::Invalid("it is larger than 4 GiB"),
            ScanError::Duplicate { member, id: span } => {
                id = span.and_then(|span| usable_id(bytes, span));
                ParseErrorKind::Invalid(match member {
                    "jsonrpc" => "\"jsonrpc\" stands twice",
                    "id" => "\"id\" stands twice",
                    "method" => "\"method\" stands twice",
                    "params" => "\"params\" stands twice",
                    "result" => "\"result\" stands twice",
                    "error" => "\"error\" stands twice",
                    _ => "\"progressToken\" stands twice",
                })
            }
        };
        Self { kind, id }
    }
}

/// Cuts off what may stand around a message.
fn trim(mut bytes: Bytes) -> Bytes {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        bytes = bytes.slice(3..);
    }
    let start = bytes.iter().take_while(|byte| is_space(byte)).count();
    let rest = bytes.get(start..).unwrap_or_default();
    let end = bytes.len() - rest.iter().rev().take_while(|byte| is_space(byte)).count();
    if start == 0 && end == bytes.len() {
        bytes
    } else {
        bytes.slice(start..end)
    }
}

fn classify(bytes: &[u8], envelope: &Envelope) -> Result<Kind, &'static str> {
    let version = envelope.jsonrpc.ok_or("\"jsonrpc\" is missing")?;
    if version.of(bytes) != b"\"2.0\"" && json::string(version.of(bytes)).as_deref() != Some("2.0")
    {
        return Err("\"jsonrpc\" is not \"2.0\"");
    }
    let id = match envelope.id {
        None => Id::Absent,
        Some(span) => Id::of(span.of(bytes)).ok_or("\"id\" is neither a string nor an integer")?,
    };
    let outcomes = (envelope.result.is_some(), envelope.error.is_some());
    match (envelope.method, outcomes, id) {
        (Some(_), (true, _) | (_, true), _) => Err("it is a request and an answer at once"),
        (Some(method), _, _) if method.of(bytes).first() != Some(&b'"') => {
            Err("\"method\" is not a string")
        }
        (Some(_), _, Id::Null) => Err("\"id\" is null"),
        (Some(_), _, Id::Usable) => Ok(Kind::Request),
        (Some(_), _, Id::Absent) => Ok(Kind::Notification),
        (None, (true, true), _) => Err("it has both a result and an error"),
        (None, (true, false), Id::Usable) => Ok(Kind::Result),
        (None, (true, false), Id::Null | Id::Absent) => Err("its result has no id"),
        (None, (false, true), _) => Ok(Kind::Error),
        (None, (false, false), _) => Err("it has neither a method nor a result nor an error"),
    }
}

enum Id {
    Absent,
    Null,
    Usable,
}

impl Id {
    /// Reads a validated value; `None` when no id can look like that. A fraction or an exponent is
    /// refused: 1, 1.0 and 1e0 are one number to some peers and three ids to others.
    fn of(text: &[u8]) -> Option<Self> {
        match text {
            [b'"', ..] => Some(Self::Usable),
            [b'-' | b'0'..=b'9', rest @ ..] => {
                rest.iter().all(u8::is_ascii_digit).then_some(Self::Usable)
            }
            b"null" => Some(Self::Null),
            _ => None,
        }
    }
}

fn usable_id(bytes: &Bytes, span: Span) -> Option<Bytes> {
    match Id::of(span.of(bytes)) {
        Some(Id::Usable) => Some(span.slice(bytes)),
        Some(Id::Null | Id::Absent) | None => None,
    }
}

#[cfg(test)]
mod tests;
