//! Replacing parts of a message without copying the rest.
//!
//! Owns the order of edits and the joining of small results. Must not know JSON: what it is told to
//! put somewhere, it puts there.

use std::fmt;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

use super::{Snippet, Span};

/// Results below this many bytes are joined into one segment: copying them costs less than one more
/// entry in a vectored write.
pub const JOIN_MAX: usize = 16 * 1024;

/// A message as consecutive segments, which share the bytes that were not replaced.
///
/// Nearly every message is one segment, and moves through several hands: only a large one has more,
/// and may cost an allocation for them.
#[derive(Clone, Default)]
pub struct Pieces(SmallVec<[Bytes; 1]>);

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

    /// The only segment, empty if there is none; the pieces themselves if there are several.
    pub fn into_only(mut self) -> Result<Bytes, Self> {
        if self.0.len() > 1 {
            return Err(self);
        }
        Ok(self.0.pop().unwrap_or_default())
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
    type IntoIter = smallvec::IntoIter<[Bytes; 1]>;

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
pub struct Splice<'a> {
    bytes: &'a Bytes,
    edits: SmallVec<[(Span, Snippet); 2]>,
}

impl<'a> Splice<'a> {
    /// No edit of `bytes` yet.
    pub fn new(bytes: &'a Bytes) -> Self {
        Self {
            bytes,
            edits: SmallVec::new(),
        }
    }

    /// Puts `with` in the place of `span`.
    pub fn replace(mut self, span: Span, with: impl Into<Bytes>) -> Self {
        self.edits.push((span, Snippet::from(with.into())));
        self
    }

    /// Puts a copy of `with` in the place of `span`: best for what is short, as ids are.
    pub fn replace_copied(mut self, span: Span, with: &[u8]) -> Self {
        self.edits.push((span, Snippet::of(with)));
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

    /// One edit at once: a copy of `with` in the place of `span`.
    pub fn replaced(bytes: &'a Bytes, span: Span, with: &[u8]) -> Pieces {
        let (start, end) = (span.start as usize, span.end as usize);
        let len = bytes.len().saturating_add(with.len());
        match (bytes.get(..start), bytes.get(end..)) {
            (Some(before), Some(after)) if start <= end && len < JOIN_MAX => {
                let mut out = Vec::with_capacity(before.len() + with.len() + after.len());
                out.extend_from_slice(before);
                out.extend_from_slice(with);
                out.extend_from_slice(after);
                Bytes::from(out).into()
            }
            _ => Self::new(bytes).replace_copied(span, with).finish(),
        }
    }

    /// Applies the edits.
    pub fn finish(mut self) -> Pieces {
        // Stable, so that insertions at one place keep the order in which they were given.
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let (mut done, mut replaced, mut added) = (0, 0, 0);
        let whole = self.bytes.len();
        self.edits.retain(|(span, with)| {
            let fits = span.start >= done && span.end >= span.start && span.end as usize <= whole;
            debug_assert!(fits, "an edit overlaps another or lies outside");
            if fits {
                done = span.end;
                replaced += span.len();
                added += with.as_slice().len();
            }
            fits
        });
        let len = whole.saturating_sub(replaced).saturating_add(added);
        if self.edits.is_empty() {
            self.bytes.clone().into()
        } else if len < JOIN_MAX {
            self.joined(len)
        } else {
            self.in_pieces()
        }
    }

    /// The result in one new buffer of this length.
    fn joined(&self, len: usize) -> Pieces {
        let mut out = Vec::with_capacity(len);
        let mut done = 0;
        for (span, with) in &self.edits {
            let kept = Span {
                start: done,
                end: span.start,
            };
            out.extend_from_slice(kept.of(self.bytes));
            out.extend_from_slice(with.as_slice());
            done = span.end;
        }
        out.extend_from_slice(Span::new(done as usize, self.bytes.len()).of(self.bytes));
        Bytes::from(out).into()
    }

    /// The result in segments that share what was not replaced.
    fn in_pieces(self) -> Pieces {
        let mut pieces = Pieces(SmallVec::with_capacity(self.edits.len() * 2 + 1));
        let mut done = 0;
        for (span, with) in self.edits {
            let kept = Span {
                start: done,
                end: span.start,
            };
            pieces.push(kept.slice(self.bytes));
            pieces.push(with.to_bytes());
            done = span.end;
        }
        let rest = Span::new(done as usize, self.bytes.len());
        pieces.push(rest.slice(self.bytes));
        pieces
    }
}
