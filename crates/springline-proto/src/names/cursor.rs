//! Cursors of the lists on `/mcp`.
//!
//! Owns their form. A cursor is bound to its owner and its list by a keyed digest, so that one which
//! we did not hand out, or not to this client, is refused (I9). Must not know what a list holds.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::method::ListKind;

/// The version of the form, the first byte.
const VERSION: u8 = 2;

/// Version, kind, offset.
const BODY_LEN: usize = 1 + 1 + 4;

/// Half of HMAC-SHA-256; 128 bits cannot be guessed.
const TAG_LEN: usize = 16;

/// A secret of this gateway. Cursors of another key are refused.
#[derive(Clone)]
pub struct CursorKey([u8; 64]);

impl CursorKey {
    /// A key from 32 random bytes.
    pub fn new(secret: [u8; 32]) -> Self {
        // HMAC fills a short key up with zeros to the length of a block.
        let mut block = [0; 64];
        for (to, from) in block.iter_mut().zip(secret) {
            *to = from;
        }
        Self(block)
    }
}

/// Shows nothing: it is a secret.
impl std::fmt::Debug for CursorKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CursorKey")
    }
}

/// A place in a list.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cursor {
    /// The list.
    pub kind: ListKind,
    /// How many items come before.
    pub offset: u32,
}

/// Why a cursor is refused. One error for all reasons: a forger learns nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the cursor is not valid here")]
pub struct CursorError;

impl Cursor {
    /// The opaque text for clients. `owner` names who may use it: the session.
    pub fn encode(self, key: &CursorKey, owner: &[u8]) -> String {
        let body = self.body();
        let tag = mac(key, body, owner).finalize().into_bytes();
        let tag = tag.get(..TAG_LEN).unwrap_or_default();
        BASE64_URL_SAFE_NO_PAD.encode([&body[..], tag].concat())
    }

    /// Reads a cursor that [`Cursor::encode`] made for this list with the same key and owner. The
    /// empty text is a cursor too, and never one of ours.
    pub fn decode(
        text: &str,
        kind: ListKind,
        key: &CursorKey,
        owner: &[u8],
    ) -> Result<Self, CursorError> {
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| CursorError)?;
        let (body, tag) = bytes.split_first_chunk::<BODY_LEN>().ok_or(CursorError)?;
        let tag: &[u8; TAG_LEN] = tag.try_into().map_err(|_| CursorError)?;
        mac(key, *body, owner)
            .verify_truncated_left(tag)
            .map_err(|_| CursorError)?;
        let [_, _, offset @ ..] = body;
        let cursor = Self {
            kind,
            offset: u32::from_be_bytes(*offset),
        };
        // Version and kind are right if the whole is what we would write.
        if cursor.body() == *body {
            Ok(cursor)
        } else {
            Err(CursorError)
        }
    }

    fn body(self) -> [u8; BODY_LEN] {
        let [o0, o1, o2, o3] = self.offset.to_be_bytes();
        [VERSION, byte(self.kind), o0, o1, o2, o3]
    }
}

/// What stands for a list; never used for another one.
fn byte(kind: ListKind) -> u8 {
    match kind {
        ListKind::Tools => 1,
        ListKind::Prompts => 2,
        ListKind::Resources => 3,
        ListKind::Templates => 4,
    }
}

/// The body has a fixed length, so that body and owner cannot run into each other.
fn mac(key: &CursorKey, body: [u8; BODY_LEN], owner: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new(&key.0.into())
        .chain_update(b"springline list cursor\0")
        .chain_update(body)
        .chain_update(owner)
}
