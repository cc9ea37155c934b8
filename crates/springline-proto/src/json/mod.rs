//! JSON as bytes: validating, finding and replacing members without building values.
//!
//! Owns the grammar (RFC 8259), spans into a message and splicing. Must not know what a member
//! means beyond the six top-level names of JSON-RPC and the progress token. Bytes that nobody asked
//! to replace are never rewritten (I13).

mod envelope;
mod flow;
mod nesting;
mod plain;
mod scan;
mod skim;
mod snippet;
mod splice;
mod text;
mod walk;

use bytes::Bytes;

pub use envelope::{Envelope, scan};
pub use flow::{Flow, FlowError, Step};
pub use scan::{DEPTH_MAX, ScanError, validate};
pub use skim::Skim;
pub use snippet::Snippet;
pub use splice::{JOIN_MAX, Pieces, PiecesIter, Splice};
pub use text::{quote, string};
pub use walk::{Elements, Members, elements, member, members, path, same};

/// A range of a message, in bytes from its start.
///
/// Offsets are 32 bits wide: the scanner refuses larger messages long before they overflow.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of this span; empty when it does not lie inside `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    /// The same range as a cheap share of `bytes`; empty when it does not lie inside.
    pub fn slice(self, bytes: &Bytes) -> Bytes {
        let (start, end) = (self.start as usize, self.end as usize);
        if start <= end && end <= bytes.len() {
            bytes.slice(start..end)
        } else {
            Bytes::new()
        }
    }

    /// The length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether the span holds no byte.
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// The whole of `bytes`, as far as 32 bits reach.
    pub fn whole(bytes: &[u8]) -> Self {
        Self::new(0, bytes.len())
    }

    pub(crate) fn new(start: usize, end: usize) -> Self {
        let narrow = |at| u32::try_from(at).unwrap_or(u32::MAX);
        Self {
            start: narrow(start),
            end: narrow(end),
        }
    }
}

#[cfg(test)]
mod tests;
