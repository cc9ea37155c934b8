//! What a client sends on a connection that is read in place.
//!
//! Owns: the buffer of what was received and taken by nobody yet, and the bodies that do not fit
//! into it. It must not know heads.

use std::future::Future as _;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::stock::{self, ROOM};

/// Room for one read of a large body.
const BODY_ROOM: usize = 64 * 1024;

/// Pieces of a body below this are copied out, so that the buffer is used again.
const COPIED_MAX: usize = 8 * 1024;

/// One connection, and what came on it.
pub(super) struct Inflow<S> {
    pub(super) stream: S,
    /// Received, and taken by nobody yet. No buffer while it is empty.
    pub(super) input: BytesMut,
}

impl<S: AsyncRead + Unpin> Inflow<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
        }
    }

    /// Reads what there is, at most the room of the buffer; zero at the end.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        if self.input.capacity() == 0 && room == ROOM {
            self.input = stock::take();
        } else if self.input.capacity() - self.input.len() < room / 2 {
            self.input.reserve(room);
        }
        // Cancel safe, so each poll may be one of its own.
        let read = pin!(self.stream.read_buf(&mut self.input)).poll(cx);
        if self.input.is_empty() {
            stock::give(std::mem::take(&mut self.input));
        }
        read
    }

    /// Keeps bytes that follow what was taken. The buffer is empty before.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.input = stock::take();
            self.input.extend_from_slice(bytes);
        }
    }

    /// Whether the client is gone: its end came, or an error. What it sends ahead is kept, up to one
    /// read; then its end is not looked for any more.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> bool {
        self.input.is_empty() && matches!(self.poll_fill(cx, ROOM), Poll::Ready(Ok(0) | Err(_)))
    }
}

/// The rest of a body that did not come with its head.
pub(super) struct Rest<'a, S> {
    inflow: &'a mut Inflow<S>,
    /// Bytes that were not taken yet.
    left: &'a mut u64,
}

impl<'a, S> Rest<'a, S> {
    pub(super) fn new(inflow: &'a mut Inflow<S>, left: &'a mut u64) -> Self {
        Self { inflow, left }
    }
}

impl<S: AsyncRead + Unpin> Body for Rest<'_, S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if *this.left == 0 {
            return Poll::Ready(None);
        }
        let left = usize::try_from(*this.left).unwrap_or(usize::MAX);
        if this.inflow.input.is_empty() {
            let room = left.clamp(ROOM, BODY_ROOM);
            if ready!(this.inflow.poll_fill(cx, room))? == 0 {
                return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
            }
        }
        let input = &mut this.inflow.input;
        let len = input.len().min(left);
        let data = if len >= COPIED_MAX {
            input.split_to(len).freeze()
        } else {
            let copy = Bytes::copy_from_slice(input.get(..len).unwrap_or_default());
            input.advance(len);
            copy
        };
        *this.left -= len as u64;
        if input.is_empty() {
            // Of one that shares its memory with what was taken, nothing is kept.
            this.inflow.input = BytesMut::new();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(*self.left)
    }
}

/// A connection that begins with bytes that were read before.
pub(crate) struct Rewound<S> {
    stream: S,
    before: BytesMut,
}

impl<S> Rewound<S> {
    pub(super) fn new(stream: S, before: BytesMut) -> Self {
        Self { stream, before }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.before.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let len = self.before.len().min(buffer.remaining());
        buffer.put_slice(self.before.get(..len).unwrap_or_default());
        self.before.advance(len);
        if self.before.is_empty() {
            self.before = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
