//! Replacing parts of a message without copying the rest.
//!
//! Owns the order of edits and the joining of small results. Must not know JSON: what it is told to
//! put somewhere, it puts there.

use std::fmt;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::Span;

/// Results below this many bytes are joined into one segment: copying them costs less than one more
/// entry in a vectored write.
pub const JOIN_MAX: usize = 16 * 1024;

/// A message as consecutive segments, which share the bytes that were not replaced.
#[derive(Clone, Default)]
pub struct Pieces(SmallVec<[Bytes; 5]>);

/// Iterator over the segments of [`Pieces`].
pub type PiecesIter<'a> = std::slice::Iter<'a, Bytes>;

impl Pieces {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The length of the whole, in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Bytes::is_empty)
    }

    /// The segments in order; none is empty.
    pub fn iter(&self) -> PiecesIter<'_> {
        self.0.iter()
    }

    /// Appends a segment, as it is.
    pub fn push(&mut self, segment: impl Into<Bytes>) {
        let segment = segment.into();
        if !segment.is_empty() {
            self.0.push(segment);
        }
    }

    /// The whole as one buffer; a copy only when there are several segments.
    pub fn to_bytes(&self) -> Bytes {
        if let [only] = self.0.as_slice() {
            return only.clone();
        }
        let mut out = Vec::with_capacity(self.len());
        for segment in &self.0 {
            out.extend_from_slice(segment);
        }
        Bytes::from(out)
    }

    /// The same JSON without line ends, for transports that frame by lines (2025-11-25
    /// basic/transports, stdio). In valid JSON a raw line end is white space, so a space replaces it;
    /// segments without one are shared.
    #[must_use]
    pub fn one_line(self) -> Self {
        let flat = self.0.into_iter().map(|segment| {
            if memchr::memchr2(b'\n', b'\r', &segment).is_none() {
                return segment;
            }
            let mut copy = BytesMut::from(segment.as_ref());
            for byte in copy.iter_mut() {
                if matches!(*byte, b'\n' | b'\r') {
                    *byte = b' ';
                }
            }
            copy.freeze()
        });
        Self(flat.collect())
    }

    fn joined(self) -> Self {
        if self.0.len() > 1 && self.len() < JOIN_MAX {
            Self::from(self.to_bytes())
        } else {
            self
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        let mut pieces = Self::new();
        pieces.push(bytes);
        pieces
    }
}

impl<'a> IntoIterator for &'a Pieces {
    type Item = &'a Bytes;
    type IntoIter = PiecesIter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Pieces {
    type Item = Bytes;
    type IntoIter = smallvec::IntoIter<[Bytes; 5]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Shows sizes only: messages may carry secrets.
impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.0.iter().map(Bytes::len);
        f.debug_list().entries(sizes).finish()
    }
}

/// Edits of one message, given in any order and applied by [`Splice::finish`].
///
/// Edits must not overlap; of two that do, the one further left holds and the other is left out, like
/// one outside the message.
#[must_use]
pub struct Splice {
    bytes: Bytes,
    edits: SmallVec<[(Span, Bytes); 4]>,
}

impl Splice {
    /// No edit of `bytes` yet.
    pub fn new(bytes: &Bytes) -> Self {
        Self {
            bytes: bytes.clone(),
            edits: SmallVec::new(),
        }
    }

    /// Puts `with` in the place of `span`.
    pub fn replace(mut self, span: Span, with: impl Into<Bytes>) -> Self {
        self.edits.push((span, with.into()));
        self
    }

    /// Leaves `span` out. Commas are the caller's concern.
    pub fn remove(self, span: Span) -> Self {
        self.replace(span, Bytes::new())
    }

    /// Puts `what` before the byte at `offset`, and before a replacement that starts there.
    pub fn insert_at(self, offset: u32, what: impl Into<Bytes>) -> Self {
        let span = Span {
            start: offset,
            end: offset,
        };
        self.replace(span, what)
    }

    /// Applies the edits.
    pub fn finish(mut self) -> Pieces {
        // Stable, so that insertions at one place keep the order in which they were given.
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let mut pieces = Pieces::new();
        let mut done = 0;
        for (span, with) in self.edits {
            let fits = span.start >= done
                && span.end >= span.start
                && span.end as usize <= self.bytes.len();
            debug_assert!(fits, "an edit overlaps another or lies outside");
            if !fits {
                continue;
            }
            let kept = Span {
                start: done,
                end: span.start,
            };
            pieces.push(kept.slice(&self.bytes));
            pieces.push(with);
            done = span.end;
        }
        let rest = Span::new(done as usize, self.bytes.len());
        pieces.push(rest.slice(&self.bytes));
        pieces.joined()
    }
}
