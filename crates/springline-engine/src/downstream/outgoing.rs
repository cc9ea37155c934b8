//! Bytes that wait to be written, so that what is ready in one turn leaves in one write.
//!
//! Owns the queue and how far it was written. It must not know what the bytes say.

use std::collections::VecDeque;
use std::io;

use bytes::{Bytes, BytesMut};
use springline_proto::json::{JOIN_MAX, Pieces};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// From so many bytes on, what is ready is written before more is added. A quarter of what a pipe
/// or a socket takes at once by default, so that one write mostly takes all of it.
pub const ENOUGH: usize = 16 * 1024;

/// A writer, and what waits for it. Whoever puts something in flushes, or waits for room: the queue
/// has no bound of its own.
#[derive(Debug)]
pub struct Outgoing<W> {
    write: W,
    /// Older than `tail`. The first may be half written.
    chunks: VecDeque<Bytes>,
    /// Short lines, joined.
    tail: BytesMut,
    len: usize,
}

impl<W: AsyncWrite + Unpin> Outgoing<W> {
    /// A queue in front of `write`.
    pub fn new(write: W) -> Self {
        Self {
            write,
            chunks: VecDeque::new(),
            tail: BytesMut::new(),
            len: 0,
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether all was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a line: `head`, `body` without line ends, and a line end. A long body is not copied.
    pub fn put(&mut self, head: &str, body: &Pieces) {
        self.len += head.len() + body.len() + 1;
        self.tail.extend_from_slice(head.as_bytes());
        if body.len() < JOIN_MAX {
            for segment in body {
                self.tail.extend_from_slice(segment);
            }
        } else {
            self.close_tail();
            self.chunks.extend(body.iter().cloned());
        }
        self.tail.extend_from_slice(b"\n");
    }

    /// Writes all that waits, and flushes. Cancel safe: what was not written still waits.
    ///
    /// # Errors
    /// The writer's own; what waits is then of no use.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.close_tail();
        while let Some(chunk) = self.chunks.front_mut() {
            if !chunk.is_empty() {
                let count = self.write.write_buf(chunk).await?;
                if count == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                self.len = self.len.saturating_sub(count);
            }
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.write.flush().await
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn lines_leave_in_their_order_and_short_ones_in_one_write() {
        let (mut writes, counted) = (Vec::new(), Pieces::from(Bytes::from_static(b"{}")));
        let mut outgoing = Outgoing::new(&mut writes);
        outgoing.put("A 1", &Pieces::new());
        outgoing.put("M 1 0 ", &counted);
        assert_eq!((outgoing.len(), outgoing.chunks.len()), (13, 0));
        let long = Bytes::from(vec![b'x'; JOIN_MAX]);
        outgoing.put("M 2 0 ", &long.clone().into());
        outgoing.put("", &counted);
        assert_eq!(outgoing.chunks.len(), 2, "what is long is not copied");
        outgoing.flush().await.unwrap();
        assert!(outgoing.is_empty());
        let expected = [b"A 1\nM 1 0 {}\nM 2 0 ", &long[..], b"\n{}\n"].concat();
        assert_eq!(writes, expected);
    }

    #[tokio::test]
    async fn a_flush_that_is_given_up_goes_on_where_it_was() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let mut outgoing = Outgoing::new(ours);
        outgoing.put("", &Bytes::from_static(b"0123456789").into());
        {
            let mut context = Context::from_waker(Waker::noop());
            let first = pin!(outgoing.flush()).poll(&mut context);
            assert!(matches!(first, Poll::Pending), "it has room for eight");
        }
        assert_eq!(outgoing.len(), 3);
        outgoing.put("", &Bytes::from_static(b"ab").into());
        let mut read = [0; 14];
        let (flushed, seen) = tokio::join!(outgoing.flush(), theirs.read_exact(&mut read));
        flushed.unwrap();
        seen.unwrap();
        assert_eq!(&read, b"0123456789\nab\n");
    }
}
