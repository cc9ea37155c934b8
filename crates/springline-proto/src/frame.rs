//! Newline framing: chunks of bytes in, lines out.
//!
//! Owns the line buffer and its bound (I8), for both directions of stdio and of the gateway's own
//! socket (2025-11-25 basic/transports, stdio). Lines are cut at the byte 0x0A, which never stands
//! inside a UTF-8 sequence. Must not know whether a line is a message.

use std::fmt;

use bytes::{Buf as _, Bytes, BytesMut};

use crate::json::Skim;

/// Lines up to this length are copied out of the buffer, so that a short line never keeps a large
/// buffer alive; longer ones share it, since copying them costs more than it saves.
const COPY_MAX: usize = 16 * 1024;

/// An empty buffer larger than this is given back, so that idle peers cost nothing.
const IDLE_MAX: usize = 1024;

/// One line, without its end.
#[derive(Clone, Eq, PartialEq)]
pub enum Line {
    /// A line that is not blank; a byte order mark and a trailing CR are cut off.
    Message(Bytes),
    /// A line over the cap. Its bytes were not kept.
    TooLong {
        /// Its length in bytes.
        len_seen: u64,
        /// The JSON text of its top-level `id`, if it has one that stands once.
        id: Option<Bytes>,
        /// Its top-level `method`.
        method: Option<String>,
    },
}

/// Shows no content: lines may carry secrets.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(bytes) => write!(f, "Message({} bytes)", bytes.len()),
            Self::TooLong {
                len_seen, method, ..
            } => write!(f, "TooLong({len_seen} bytes, method {method:?})"),
        }
    }
}

/// Cuts a byte stream into lines.
///
/// After each [`push`](Self::push), call [`next`](Self::next) until it returns `None`. Then at most
/// `frame_max` bytes are buffered.
pub struct LineFramer {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    frame_max: usize,
    /// The line in progress, once it went over the cap; the buffer then holds later bytes only.
    long: Option<Box<Skim>>,
}

impl LineFramer {
    /// A framer that keeps lines of up to `frame_max` bytes, the line end not counted.
    pub fn new(frame_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            frame_max,
            long: None,
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        match &mut self.long {
            Some(skim) if self.buffer.is_empty() && memchr::memchr(b'\n', chunk).is_none() => {
                skim.push(chunk);
            }
            _ => self.buffer.extend_from_slice(chunk),
        }
    }

    /// The next complete line, if there is one. Not an iterator: after `None` more may come.
    #[expect(
        clippy::should_implement_trait,
        reason = "None means not yet, which an iterator may not say"
    )]
    pub fn next(&mut self) -> Option<Line> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', unsearched) else {
                self.no_end_yet();
                return None;
            };
            let len = self.searched + at;
            self.searched = 0;
            let line = self.take(len);
            self.buffer.advance(1);
            if line.is_some() {
                return line;
            }
        }
    }

    /// The last line of a stream that ended without a line end. Call it once, after [`next`].
    ///
    /// [`next`]: Self::next
    pub fn finish(&mut self) -> Option<Line> {
        self.searched = 0;
        self.take(self.buffer.len())
    }

    /// Treats the line in progress as over the cap, whatever its length so far, and forgets its
    /// bytes: for a driver that has no room left. Call it after [`next`](Self::next) returned `None`.
    pub fn give_up(&mut self) {
        if !self.buffer.is_empty() {
            self.long.get_or_insert_default().push(&self.buffer);
            self.buffer = BytesMut::new();
            self.searched = 0;
        }
    }

    /// The bytes held now.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    fn no_end_yet(&mut self) {
        if self.long.is_some() || self.buffer.len() > self.frame_max {
            self.long.get_or_insert_default().push(&self.buffer);
            self.buffer = BytesMut::new();
        } else if self.buffer.is_empty() && self.buffer.capacity() > IDLE_MAX {
            self.buffer = BytesMut::new();
        }
        self.searched = self.buffer.len();
    }

    /// Takes a line of `len` bytes off the buffer, its end not included; `None` when it is blank.
    fn take(&mut self, len: usize) -> Option<Line> {
        if self.long.is_none() && len <= self.frame_max {
            let line = trim(self.buffer.get(..len).unwrap_or_default());
            if line.is_empty() {
                self.buffer.advance(len);
                return None;
            }
            if len <= COPY_MAX {
                let copy = Bytes::copy_from_slice(line);
                self.buffer.advance(len);
                return Some(Line::Message(copy));
            }
            let raw = self.buffer.split_to(len).freeze();
            return Some(Line::Message(raw.slice_ref(trim(&raw))));
        }
        let mut skim = self.long.take().unwrap_or_default();
        skim.push(self.buffer.get(..len).unwrap_or_default());
        self.buffer.advance(len);
        Some(Line::TooLong {
            len_seen: skim.seen(),
            id: skim.id().cloned(),
            method: skim.method().map(str::to_owned),
        })
    }
}

/// Cuts off a byte order mark and a trailing CR; empty when only white space is left.
fn trim(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.iter().all(u8::is_ascii_whitespace) {
        &[]
    } else {
        line
    }
}

#[cfg(test)]
mod tests;
