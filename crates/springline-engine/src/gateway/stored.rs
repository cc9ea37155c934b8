//! The value of a session at rest.
//!
//! Owns its layout and its key. Must not know what the machine's record in it holds.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use springline_proto::session::Downstream;
use springline_store::SessionDigest;

use super::rest::since_epoch;

/// How the client of a stored session is attached; the first byte of its value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SessionKind {
    Http = 1,
    Socket = 2,
}

impl SessionKind {
    pub(crate) fn of(downstream: Downstream) -> Self {
        match downstream {
            Downstream::Http | Downstream::Pipe => Self::Http,
            Downstream::Socket => Self::Socket,
        }
    }

    pub(crate) fn downstream(self) -> Downstream {
        match self {
            Self::Http => Downstream::Http,
            Self::Socket => Downstream::Socket,
        }
    }

    fn read(byte: u8) -> Option<Self> {
        [Self::Http, Self::Socket]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A stored session, opened.
pub(crate) struct Stored {
    pub(crate) kind: SessionKind,
    pub(crate) principal: String,
    pub(crate) endpoint: Option<String>,
    pub(crate) key: u64,
    pub(crate) cursor_key: [u8; 32],
    pub(crate) record: Bytes,
}

/// The layout of a stored session; the last use comes first, so that a start reads no more.
pub(crate) fn session_value(
    kind: SessionKind,
    principal: &str,
    endpoint: Option<&str>,
    key: u64,
    cursor_key: &[u8; 32],
    record: &[u8],
) -> Bytes {
    let mut out = BytesMut::with_capacity(96 + record.len());
    out.put_u8(kind as u8);
    out.put_u64(u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX));
    out.put_u64(key);
    out.put_slice(cursor_key);
    for text in [Some(principal), endpoint] {
        let bytes = text.unwrap_or("\0").as_bytes();
        out.put_u16(u16::try_from(bytes.len()).unwrap_or(u16::MAX));
        out.put_slice(bytes);
    }
    out.put_slice(record);
    out.freeze()
}

pub(super) fn kind_and_use(value: &[u8]) -> Option<(SessionKind, Duration)> {
    let kind = SessionKind::read(*value.first()?)?;
    let millis = u64::from_be_bytes(value.get(1..9)?.try_into().ok()?);
    Some((kind, Duration::from_millis(millis)))
}

pub(super) fn open_session(value: &Bytes) -> Option<Stored> {
    let (kind, _) = kind_and_use(value)?;
    let key = u64::from_be_bytes(value.get(9..17)?.try_into().ok()?);
    let cursor_key = value.get(17..49)?.try_into().ok()?;
    let mut at = 49;
    let mut text = || {
        let len = usize::from(u16::from_be_bytes(value.get(at..at + 2)?.try_into().ok()?));
        let bytes = value.get(at + 2..at + 2 + len)?;
        at += 2 + len;
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    };
    let (principal, endpoint) = (text()?, text()?);
    Some(Stored {
        kind,
        principal,
        endpoint: (endpoint != "\0").then_some(endpoint),
        key,
        cursor_key,
        record: value.slice(at..),
    })
}

pub(super) fn key_of(session: SessionDigest) -> Bytes {
    Bytes::copy_from_slice(&session.0)
}

pub(super) fn digest_of(key: &[u8]) -> Option<SessionDigest> {
    key.try_into().ok().map(SessionDigest)
}
