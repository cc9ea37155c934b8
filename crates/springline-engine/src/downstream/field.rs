//! The fields of a request's head that the checks look at.
//!
//! Owns: their names, and what a readable value is. It must not know how a head was read: by hyper,
//! or in place (`wire`). So each check is written once for both.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// A field that decides something.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Field {
    /// The media types of the answer.
    Accept,
    /// The credentials.
    Authorization,
    /// The media type of the body.
    ContentType,
    /// `Last-Event-ID`.
    Cursor,
    /// How the body is coded: compressed, for one.
    Encoding,
    /// Whether the client waits for a word before it sends the body.
    Expect,
    /// Where the client believes to be.
    Host,
    /// The page in a browser that sends the request.
    Origin,
    /// `Mcp-Session-Id`.
    Session,
    /// `MCP-Protocol-Version`.
    Version,
}

impl Field {
    /// Its name, as a key of hyper's map.
    pub const fn name(self) -> HeaderName {
        match self {
            Self::Accept => header::ACCEPT,
            Self::Authorization => header::AUTHORIZATION,
            Self::ContentType => header::CONTENT_TYPE,
            Self::Cursor => HeaderName::from_static("last-event-id"),
            Self::Encoding => header::CONTENT_ENCODING,
            Self::Expect => header::EXPECT,
            Self::Host => header::HOST,
            Self::Origin => header::ORIGIN,
            Self::Session => HeaderName::from_static("mcp-session-id"),
            Self::Version => HeaderName::from_static("mcp-protocol-version"),
        }
    }
}

/// The fields of one head.
pub trait Fields {
    /// The values of a field, in their order.
    fn all(&self, field: Field) -> impl Iterator<Item = &[u8]>;

    /// Whether it is there at all.
    fn has(&self, field: Field) -> bool {
        self.all(field).next().is_some()
    }

    /// The value of a field that must not come twice; nothing if it does or cannot be read.
    fn single(&self, field: Field) -> Option<&str> {
        let mut values = self.all(field);
        let value = text(values.next()?)?;
        values.next().is_none().then_some(value)
    }
}

impl Fields for HeaderMap {
    fn all(&self, field: Field) -> impl Iterator<Item = &[u8]> {
        self.get_all(field.name()).iter().map(HeaderValue::as_bytes)
    }
}

/// A value that is made of visible ASCII, spaces and tabs alone.
pub fn text(value: &[u8]) -> Option<&str> {
    // Without a way out, so that the compiler looks at many at once.
    let is_visible = value.iter().fold(true, |so_far, byte| {
        so_far & matches!(byte, b' '..=b'~' | b'\t')
    });
    std::str::from_utf8(value).ok().filter(|_| is_visible)
}
