//! An answer on its way out.
//!
//! Owns: its head, how its body is framed (RFC 9112, 6), and what of it was not written yet. It must
//! not know why it says what it says. The fields and their order are those that hyper writes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::UNIX_EPOCH;

use bytes::{Buf as _, Bytes, BytesMut};
use http::StatusCode;
use http_body::Body as _;
use tokio::io::AsyncWrite;

use crate::clock;
use crate::downstream::answer::{self, Answer, AnswerBody};
use crate::stock;

/// A segment is copied behind what waits already, up to so many bytes: one write for all of it.
const JOINED_MAX: usize = 16 * 1024;

/// Segments of one write; few answers have as many.
const SLICES_MAX: usize = 16;

/// Bytes that wait before a body is asked for more.
const WAITING_MAX: usize = 64 * 1024;

/// How most answers begin.
const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";

/// Where the body of an answer ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Framing {
    /// So many bytes are to come.
    Length(u64),
    Chunked,
}

/// Why an answer did not get out whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    /// The connection takes no more.
    #[error("the client takes no more")]
    Write(#[source] io::Error),
    /// The client has closed the connection, or broken it.
    #[error("the client is gone")]
    Gone,
    /// What it is made of ended too early. The client must not take it for whole.
    #[error("the answer broke off")]
    Short,
}

/// What is to be written.
#[derive(Default)]
pub(super) struct Outflow {
    /// The first bytes; of a buffer that is there only while something waits.
    joined: BytesMut,
    /// How many of them were written.
    sent: usize,
    /// What follows them.
    segments: VecDeque<Bytes>,
    /// Bytes of the segments.
    behind: usize,
}

/// A body as it is framed.
pub(super) struct Framed {
    body: AnswerBody,
    framing: Framing,
    is_over: bool,
}

impl Outflow {
    /// Begins an answer: puts down its head.
    pub(super) fn begin(&mut self, answer: Answer, closes: bool) -> Framed {
        let status = answer.status();
        let size = http_body::Body::size_hint(answer.body()).exact();
        let framing = size.map_or(Framing::Chunked, Framing::Length);
        let out = self.room();
        match answer.kind() {
            Some(answer::JSON) if status == StatusCode::OK => out.extend_from_slice(PLAIN),
            kind => put_begin(out, status, kind),
        }
        for (name, value) in answer.headers().into_iter().flatten() {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        if closes && !answer.closes() {
            out.extend_from_slice(b"connection: close\r\n");
        }
        match framing {
            Framing::Length(0) if status == StatusCode::NO_CONTENT => {}
            Framing::Length(length) => {
                out.extend_from_slice(b"content-length: ");
                put_number::<10>(out, length);
                out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        }
        put_end(out);
        match answer.into_body() {
            // All of it is here: nobody has to ask for it.
            AnswerBody::Whole(whole) => {
                self.put(whole);
                Framed {
                    body: AnswerBody::empty(),
                    framing: Framing::Length(0),
                    is_over: true,
                }
            }
            body => Framed {
                body,
                framing,
                is_over: false,
            },
        }
    }

    /// Writes what there is of the answer. Ready when all of it is out.
    pub(super) fn poll_send<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        framed: &mut Framed,
    ) -> Poll<Result<(), SendError>> {
        loop {
            let waits = self.gather(cx, framed)?;
            ready!(self.poll_flush(cx, stream)).map_err(SendError::Write)?;
            if framed.is_over {
                stock::give(std::mem::take(&mut self.joined));
                return Poll::Ready(Ok(()));
            }
            if waits {
                return Poll::Pending;
            }
        }
    }

    /// Takes what the body has. Says whether it waits for more.
    fn gather(&mut self, cx: &mut Context<'_>, framed: &mut Framed) -> Result<bool, SendError> {
        while !framed.is_over && self.joined.len() + self.behind < WAITING_MAX {
            match Pin::new(&mut framed.body).poll_frame(cx) {
                Poll::Pending => return Ok(true),
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.put_data(data, &mut framed.framing)?;
                    }
                }
                Poll::Ready(Some(Err(_))) => return Err(SendError::Short),
                Poll::Ready(None) => {
                    framed.is_over = true;
                    match framed.framing {
                        Framing::Length(0) => {}
                        Framing::Length(_) => return Err(SendError::Short),
                        Framing::Chunked => self.put(Bytes::from_static(b"0\r\n\r\n")),
                    }
                }
            }
        }
        Ok(false)
    }

    fn put_data(&mut self, data: Bytes, framing: &mut Framing) -> Result<(), SendError> {
        if data.is_empty() {
            return Ok(());
        }
        let len = data.len() as u64;
        match framing {
            Framing::Length(left) => {
                *left = left.checked_sub(len).ok_or(SendError::Short)?;
                self.put(data);
            }
            Framing::Chunked => {
                let mut size = BytesMut::new();
                let size_of = if self.segments.is_empty() {
                    self.room()
                } else {
                    &mut size
                };
                put_number::<16>(size_of, len);
                size_of.extend_from_slice(b"\r\n");
                self.put(size.freeze());
                self.put(data);
                self.put(Bytes::from_static(b"\r\n"));
            }
        }
        Ok(())
    }

    /// What is joined, with room.
    fn room(&mut self) -> &mut BytesMut {
        if self.joined.capacity() == 0 {
            self.joined = stock::take();
        }
        &mut self.joined
    }

    fn put(&mut self, segment: Bytes) {
        if segment.is_empty() {
            return;
        }
        if self.segments.is_empty() && self.joined.len() + segment.len() <= JOINED_MAX {
            self.room().extend_from_slice(&segment);
        } else {
            self.behind += segment.len();
            self.segments.push_back(segment);
        }
    }

    fn poll_flush<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<()>> {
        while self.sent < self.joined.len() || !self.segments.is_empty() {
            let count = ready!(self.poll_write(cx, stream))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.wrote(count);
        }
        self.joined.clear();
        self.sent = 0;
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        let joined = self.joined.get(self.sent..).unwrap_or_default();
        let stream = Pin::new(stream);
        if self.segments.is_empty() {
            return stream.poll_write(cx, joined);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let parts = std::iter::once(joined).chain(self.segments.iter().map(|segment| &segment[..]));
        let mut filled = 0;
        for (slice, part) in slices.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slice = IoSlice::new(part);
            filled += 1;
        }
        stream.poll_write_vectored(cx, slices.get(..filled).unwrap_or_default())
    }

    /// So many bytes are out.
    fn wrote(&mut self, mut count: usize) {
        let first = count.min(self.joined.len() - self.sent);
        self.sent += first;
        count -= first;
        while count > 0
            && let Some(segment) = self.segments.front_mut()
        {
            let part = count.min(segment.len());
            segment.advance(part);
            count -= part;
            self.behind -= part;
            if segment.is_empty() {
                self.segments.pop_front();
            }
        }
    }
}

fn put_begin(out: &mut BytesMut, status: StatusCode, kind: Option<&str>) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.extend_from_slice(b" ");
    let reason = status.canonical_reason().unwrap_or("<none>");
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(kind) = kind {
        out.extend_from_slice(b"content-type: ");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Digits of this base, without leading zeros.
fn put_number<const BASE: u64>(out: &mut BytesMut, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    for digit in digits.iter_mut().rev() {
        let value = u8::try_from(number % BASE).unwrap_or_default();
        *digit = if value < 10 {
            b'0' + value
        } else {
            b'A' + value - 10
        };
        at -= 1;
        number /= BASE;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

/// The time of day (RFC 9110, 5.6.7), written anew once a second, and the end of a head.
fn put_end(out: &mut BytesMut) {
    thread_local! {
        static HELD: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let now = clock::wall();
    let second = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    HELD.with(|held| {
        let mut held = held.borrow_mut();
        if held.0 != second || held.1.is_empty() {
            let date = httpdate::fmt_http_date(now);
            *held = (second, format!("date: {date}\r\n\r\n"));
        }
        out.extend_from_slice(held.1.as_bytes());
    });
}
