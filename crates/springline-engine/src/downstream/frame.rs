//! The frames of `springline/1`, which `connect` and the gateway exchange on the unix socket.
//!
//! Owns: their text form and their reading. It must not know what a message says. The protocol is
//! described in `docs/socket-protocol.md`.
//!
//! One frame is one line. Its first byte says its kind; a reader skips kinds that it does not know,
//! so that either side may learn new ones within a major version.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use springline_proto::json::Pieces;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::outgoing::Outgoing;

/// The name of the protocol in `Upgrade`.
pub const PROTOCOL: &str = "springline/1";

/// Messages after which a receiver acknowledges even when it has nothing to send.
pub const ACK_EVERY: u64 = 64;

/// Bytes of messages after which it does so as well: its peer keeps them until then.
pub const ACK_EVERY_BYTES: usize = 256 * 1024;

/// Bytes that the head of a frame may have: a letter, two numbers and blanks.
const HEAD_MAX: usize = 64;

/// One frame.
#[derive(Clone, Debug)]
pub enum Frame {
    /// The first frame of either side: a JSON object.
    Hello(Bytes),
    /// One message, numbered from 1 for each direction, and the last number that its sender has
    /// received.
    Message {
        /// Its number.
        number: u64,
        /// The last one received.
        received: u64,
        /// The message, on one line.
        body: Pieces,
    },
    /// The last number received.
    Ack(u64),
    /// Something to know, a JSON object; unknown members are ignored.
    Note(Bytes),
    /// The last frame of its sender: a JSON object that says why.
    End(Bytes),
    /// A kind of a later version.
    Unknown,
}

/// The line is no frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the peer sent a line that is no frame")]
pub struct FrameError;

impl Frame {
    /// Reads one line, without its line end.
    pub fn parse(line: &Bytes) -> Result<Self, FrameError> {
        let (kind, rest) = line.split_first().ok_or(FrameError)?;
        let rest = match rest.split_first() {
            Some((b' ', _)) => line.slice(2..),
            Some(_) => return Err(FrameError),
            None => Bytes::new(),
        };
        match kind {
            b'H' => Ok(Self::Hello(rest)),
            b'N' => Ok(Self::Note(rest)),
            b'E' => Ok(Self::End(rest)),
            b'A' => number(&rest).map(|(received, _)| Self::Ack(received)),
            b'M' => {
                let (number_, rest) = number(&rest)?;
                let (received, body) = number(&rest)?;
                Ok(Self::Message {
                    number: number_,
                    received,
                    body: body.into(),
                })
            }
            b'A'..=b'Z' => Ok(Self::Unknown),
            _ => Err(FrameError),
        }
    }

    /// Adds the frame and its line end to what waits to be written.
    pub fn put<W: AsyncWrite + Unpin>(self, out: &mut Outgoing<W>) {
        match self {
            Self::Hello(json) => out.put("H ", &json.into()),
            Self::Note(json) => out.put("N ", &json.into()),
            Self::End(json) => out.put("E ", &json.into()),
            Self::Ack(received) => out.put(&format!("A {received}"), &Pieces::new()),
            Self::Message {
                number,
                received,
                body,
            } => out.put(&format!("M {number} {received} "), &body.one_line()),
            Self::Unknown => {}
        }
    }
}

/// A decimal number up to a blank or the end, and what follows it.
fn number(text: &Bytes) -> Result<(u64, Bytes), FrameError> {
    let end = text
        .iter()
        .position(|byte| *byte == b' ')
        .unwrap_or(text.len());
    let digits = text.get(..end).unwrap_or_default();
    let value = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok());
    let rest = text.slice((end + 1).min(text.len())..);
    value.map(|value| (value, rest)).ok_or(FrameError)
}

/// Reads frames from a byte stream.
pub struct FrameReader<R> {
    inner: R,
    buffer: BytesMut,
    /// Bytes of the buffer that hold no line end.
    searched: usize,
    line_max: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// A reader that takes messages of up to `body_max` bytes.
    pub fn new(inner: R, body_max: usize) -> Self {
        let line_max = body_max.saturating_add(HEAD_MAX);
        Self {
            inner,
            buffer: BytesMut::new(),
            searched: 0,
            line_max,
        }
    }

    /// The next frame; nothing when the peer has closed. A line that is no frame or over the cap is
    /// an error of kind `InvalidData`. Cancel safe.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = memchr::memchr(b'\n', unsearched) {
                let line = self.buffer.split_to(self.searched + at).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                return Frame::parse(&line)
                    .map(Some)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            }
            self.searched = self.buffer.len();
            if self.searched > self.line_max {
                return Err(io::Error::new(io::ErrorKind::InvalidData, FrameError));
            }
            self.buffer.reserve(8 * 1024);
            if self.inner.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}
