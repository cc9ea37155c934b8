//! The head of a request that is served in place.
//!
//! Owns: which requests are plain. It must not know what they ask for. Whatever is odd, wrong or only
//! rare is none of them, and hyper judges it: what is taken here, hyper would take as the same
//! request, of the same length (RFC 9112, 11.2: who disagrees about a length can be made to
//! disagree about a request).

use std::mem::MaybeUninit;

use httparse::Status;

use crate::downstream::field::{Field, Fields};
use crate::downstream::route;

/// Bytes of a head. Hyper takes more.
pub(super) const HEAD_MAX: usize = 16 * 1024;

/// Fields of a head. Hyper takes more.
const FIELDS_MAX: usize = 64;

/// Fields that are looked at.
const LOOKED_AT: usize = 10;

/// How every plain request begins.
const BEGIN: &[u8] = b"POST /mcp";

/// What stands at the beginning of what was received.
#[derive(Debug)]
pub(super) enum Look<'a> {
    /// A plain request: its head is here.
    Plain(Head<'a>),
    /// What may become one.
    Partial,
    /// Something for hyper.
    Other,
}

/// The head of a POST on an endpoint of the protocol, in HTTP/1.1, with one length and no coding.
#[derive(Debug)]
pub(super) struct Head<'a> {
    /// Its own length, in bytes.
    pub(super) len: usize,
    /// The server that the path names; empty for all of them.
    pub(super) server: &'a str,
    /// The length of the body, in bytes.
    pub(super) length: u64,
    /// Whether the connection ends with the answer.
    pub(super) closes: bool,
    /// The fields that are looked at; none of them came twice.
    values: [Option<&'a [u8]>; LOOKED_AT],
}

impl Fields for Head<'_> {
    fn all(&self, field: Field) -> impl Iterator<Item = &[u8]> {
        self.values
            .get(field as usize)
            .copied()
            .flatten()
            .into_iter()
    }
}

/// Looks at what was received since the end of the last request.
pub(super) fn look(bytes: &[u8]) -> Look<'_> {
    let len = bytes.len().min(BEGIN.len());
    if bytes.get(..len) != BEGIN.get(..len) {
        return Look::Other;
    }
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    // As hyper has it: nothing is forgiven.
    let parser = httparse::ParserConfig::default();
    match parser.parse_request_with_uninit_headers(&mut request, bytes, &mut fields) {
        Ok(Status::Complete(len)) if len <= HEAD_MAX => {
            Head::of(&request, len).map_or(Look::Other, Look::Plain)
        }
        Ok(Status::Partial) if bytes.len() < HEAD_MAX => Look::Partial,
        Ok(_) | Err(_) => Look::Other,
    }
}

/// Whether a head may have ended among the bytes after the first `seen`, which held no end. Saves
/// the parsing of one that comes in small pieces.
pub(super) fn may_end(bytes: &[u8], seen: usize) -> bool {
    if seen == 0 {
        return !bytes.is_empty();
    }
    let tail = bytes.get(seen.saturating_sub(3)..).unwrap_or_default();
    memchr::memchr_iter(b'\n', tail).any(|at| {
        let rest = tail.get(at + 1..).unwrap_or_default();
        rest.starts_with(b"\n") || rest.starts_with(b"\r\n")
    })
}

impl<'a> Head<'a> {
    /// Nothing if the request is not plain.
    fn of(request: &httparse::Request<'_, 'a>, len: usize) -> Option<Self> {
        let is_plain = request.method == Some("POST") && request.version == Some(1);
        let mut head = Self {
            len,
            server: route::server_of(request.path?).filter(|_| is_plain)?,
            length: 0,
            closes: false,
            values: [None; LOOKED_AT],
        };
        let (mut length, mut connection) = (None, None);
        for field in request.headers.iter() {
            let place = match known(field.name) {
                Known::Nothing => continue,
                Known::Looked(field) => head.values.get_mut(field as usize)?,
                Known::Length => &mut length,
                Known::Connection => &mut connection,
                Known::Odd => return None,
            };
            if place.replace(field.value).is_some() {
                return None;
            }
        }
        head.length = digits(length?)?;
        head.closes = match connection {
            None => false,
            Some(value) if value.eq_ignore_ascii_case(b"keep-alive") => false,
            Some(value) if value.eq_ignore_ascii_case(b"close") => true,
            Some(_) => return None,
        };
        Some(head)
    }
}

/// What a field is here.
enum Known {
    /// Without meaning for us.
    Nothing,
    /// One that the checks look at.
    Looked(Field),
    Length,
    Connection,
    /// One that makes a request not plain.
    Odd,
}

fn known(name: &str) -> Known {
    let name = name.as_bytes();
    match name.len() {
        4 if is(name, b"host") => Known::Looked(Field::Host),
        6 if is(name, b"accept") => Known::Looked(Field::Accept),
        6 if is(name, b"origin") => Known::Looked(Field::Origin),
        6 if is(name, b"expect") => Known::Odd,
        7 if is(name, b"upgrade") => Known::Odd,
        10 if is(name, b"connection") => Known::Connection,
        12 if is(name, b"content-type") => Known::Looked(Field::ContentType),
        13 if is(name, b"authorization") => Known::Looked(Field::Authorization),
        14 if is(name, b"content-length") => Known::Length,
        14 if is(name, b"mcp-session-id") => Known::Looked(Field::Session),
        16 if is(name, b"content-encoding") => Known::Looked(Field::Encoding),
        17 if is(name, b"transfer-encoding") => Known::Odd,
        20 if is(name, b"mcp-protocol-version") => Known::Looked(Field::Version),
        _ => Known::Nothing,
    }
}

/// Whether a name is this one, which has small letters. The length is known and there is no way out
/// before the end, so that the compiler looks at many bytes at once.
fn is<const LEN: usize>(name: &[u8], known: &[u8; LEN]) -> bool {
    <&[u8; LEN]>::try_from(name).is_ok_and(|name| {
        let pairs = name.iter().zip(known);
        pairs.fold(true, |so_far, (byte, known)| {
            so_far & (byte.to_ascii_lowercase() == *known)
        })
    })
}

/// Digits alone: no sign, no list, no white space.
fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(sum * 10 + digit)
    })
}
