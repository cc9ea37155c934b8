//! What stands between hyper and the connection that it was given.
//!
//! Hyper refuses a head that it cannot read by itself, with no body, and knows one time for a head and
//! for the silence before it. Owns: the bodies of those refusals, and the time of a head from its
//! first byte on. It must not know what is asked for.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::Rewound;
use super::outflow::{Framed, Outflow, SendError};
use crate::clock;
use crate::downstream::answer::{self, Answer, AnswerBody, Cut};
use crate::downstream::call;
use crate::downstream::route::INVALID_REQUEST;

/// Bytes at the end of a write among which a refusal of hyper is looked for; it has no more.
const REFUSAL_MAX: usize = 256;

/// How long a client that was refused may still send.
const LINGER: Duration = Duration::from_secs(1);

/// How many turns hyper has for its answer before it is told that the client sends no more.
const TURNS: u8 = 16;

/// How many requests have begun on a connection, and how many of them are not answered yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Underway(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A request that is not answered yet, while it lives.
#[derive(Debug)]
pub(crate) struct Answering(Underway);

impl Underway {
    /// A request has begun: the bytes that follow are no head until it has ended.
    pub(crate) fn begin(&self) -> Answering {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    /// From now on nothing on the connection is a head.
    pub(crate) fn leave(&self) {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
    }

    fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::Relaxed)
    }

    fn is_any(&self) -> bool {
        self.begun() != self.0.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body of an answer, which ends with it.
pub(crate) struct Attended {
    body: AnswerBody,
    _answering: Answering,
}

impl Attended {
    pub(crate) fn new(body: AnswerBody, answering: Answering) -> Self {
        Self {
            body,
            _answering: answering,
        }
    }
}

impl Body for Attended {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A head that has begun to come.
struct Coming {
    /// How many requests had begun before it.
    begun: u64,
    /// When its time is over.
    until: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

/// How far our own refusal is.
enum Stage {
    /// There is none.
    None,
    Sending(Framed),
    /// Said; what the client still sends is read for a moment, so that it meets the answer and not a
    /// reset connection.
    Lingering(Pin<Box<Sleep>>),
    Done,
}

/// A connection that hyper is not left alone with.
pub(crate) struct Escort<S> {
    stream: Rewound<S>,
    underway: Underway,
    /// The time of a head.
    patience: Duration,
    coming: Option<Coming>,
    /// What is left of [`TURNS`].
    turns: u8,
    /// Whether hyper has bytes that the connection did not take.
    is_held: bool,
    outflow: Outflow,
    stage: Stage,
}

impl<S> Escort<S> {
    /// `until`: when the time of the head is over that the stream begins with.
    pub(crate) fn new(
        stream: Rewound<S>,
        until: Instant,
        patience: Duration,
        underway: Underway,
    ) -> Self {
        let coming = Coming {
            begun: underway.begun(),
            until,
            timer: None,
        };
        Self {
            stream,
            underway,
            patience,
            coming: Some(coming),
            turns: TURNS,
            is_held: false,
            outflow: Outflow::default(),
            stage: Stage::None,
        }
    }

    /// Whether the head that comes has had its time. `came`: some of it came just now.
    fn poll_late(&mut self, cx: &mut Context<'_>, came: bool) -> bool {
        let begun = self.underway.begun();
        if self.underway.is_any() || self.coming.as_ref().is_some_and(|it| it.begun != begun) {
            self.coming = None;
        }
        if self.underway.is_any() {
            return false;
        }
        let coming = match &mut self.coming {
            Some(coming) => coming,
            None if came => self.coming.insert(Coming {
                begun,
                until: clock::now() + self.patience,
                timer: None,
            }),
            None => return false,
        };
        if came {
            return clock::now() >= coming.until;
        }
        let until = coming.until;
        let timer = coming
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        timer.as_mut().poll(cx).is_ready()
    }

    fn refuse(&mut self, answer: Answer) {
        let framed = self.outflow.begin(call::close(answer), true);
        self.stage = Stage::Sending(framed);
    }

    /// What of a write goes out as it is: all but a refusal of hyper, which ends it.
    fn split(&mut self, bytes: &[u8]) -> usize {
        if self.underway.is_any() {
            return bytes.len();
        }
        match refusal_at_end(bytes) {
            Some((0, status)) => {
                self.refuse(unreadable(status));
                0
            }
            Some((at, _)) => at,
            None => bytes.len(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Escort<S> {
    /// Goes on with our own refusal. Ready when nothing of it is left to say.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Stage::Sending(framed) = &mut self.stage else {
            return Poll::Ready(Ok(()));
        };
        let sent = ready!(self.outflow.poll_send(cx, &mut self.stream, framed));
        sent.map_err(|error| match error {
            SendError::Write(error) => error,
            SendError::Gone | SendError::Short => io::ErrorKind::BrokenPipe.into(),
        })?;
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        self.stage = Stage::Lingering(Box::pin(sleep_until(clock::now() + LINGER)));
        Poll::Ready(Ok(()))
    }

    /// Reads on behind our own refusal.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Lingering(timer) = &mut self.stage else {
            return Poll::Ready(());
        };
        let mut room = [0; 4096];
        while timer.as_mut().poll(cx).is_pending() {
            let mut room = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room)) {
                Ok(()) if !room.filled().is_empty() => {}
                Ok(()) | Err(_) => break,
            }
        }
        self.stage = Stage::Done;
        Poll::Ready(())
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Escort<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if matches!(this.stage, Stage::None) {
            let before = buffer.filled().len();
            let read = Pin::new(&mut this.stream).poll_read(cx, buffer);
            let came = buffer.filled().len() > before;
            let is_end = read.is_ready() && !came;
            if is_end && this.turns > 0 && this.underway.is_any() {
                // To hyper the end is that of the client, and it would not even look for an answer.
                this.turns -= 1;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if is_end || !this.poll_late(cx, came) {
                return read;
            }
            // Of an answer that did not get out whole, nothing but the rest may follow.
            if !this.is_held {
                this.refuse(late());
            }
            buffer.set_filled(before);
        }
        ready!(this.poll_refusal(cx))?;
        ready!(this.poll_linger(cx));
        // To hyper it is the end.
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Escort<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let len = this.split(bytes);
        let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) else {
            return Poll::Ready(Ok(bytes.len()));
        };
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.is_held = !matches!(written, Poll::Ready(Ok(count)) if count == bytes.len());
        written
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        if let (Some(only), None) = (filled.next(), filled.next()) {
            return self.poll_write(cx, only);
        }
        // A refusal of hyper is a write of its own, or follows in one piece what waits already.
        let this = self.get_mut();
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.is_held = !matches!(written, Poll::Ready(Ok(count)) if count == len);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_refusal(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_refusal(cx))?;
        ready!(this.poll_linger(cx));
        if matches!(this.stage, Stage::None) {
            return Pin::new(&mut this.stream).poll_shutdown(cx);
        }
        Poll::Ready(Ok(()))
    }
}

/// Where a refusal of hyper begins that ends these bytes, and its status. It is a head alone, with no
/// type of a body: no answer of ours looks like that, and no body is behind one of hyper's.
fn refusal_at_end(bytes: &[u8]) -> Option<(usize, StatusCode)> {
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let from = bytes.len().saturating_sub(REFUSAL_MAX);
    let tail = bytes.get(from..)?;
    let at = memchr::memmem::rfind(tail, b"HTTP/1.")?;
    let mut fields = [httparse::EMPTY_HEADER; 4];
    let mut head = httparse::Response::new(&mut fields);
    let tail = tail.get(at..)?;
    let whole = head.parse(tail).ok()?;
    let is_bare = head.headers.iter().all(|field| {
        let is = |name: header::HeaderName| field.name.eq_ignore_ascii_case(name.as_str());
        is(header::CONNECTION)
            || is(header::DATE)
            || is(header::CONTENT_LENGTH) && field.value == b"0"
    });
    let status = head.code.filter(|code| *code >= 400)?;
    let is_all = whole == httparse::Status::Complete(tail.len());
    let status = StatusCode::from_u16(status).ok()?;
    (is_all && is_bare).then_some((from + at, status))
}

/// The refusal of a head that hyper refuses with this status.
fn unreadable(status: StatusCode) -> Answer {
    let text = match status {
        StatusCode::URI_TOO_LONG => "the address of the request is too long",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "the head of the request is too large: it may have 100 fields and 400 KiB"
        }
        _ => "the head of the request cannot be read as HTTP/1.1",
    };
    answer::refuse(status, None, INVALID_REQUEST, text)
}

/// The refusal of a head that did not come in time.
pub(super) fn late() -> Answer {
    let text = "the head of the request did not come in time";
    answer::refuse(StatusCode::REQUEST_TIMEOUT, None, INVALID_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\
        date: Tue, 01 Dec 2026 03:00:00 GMT\r\n\r\n";

    #[test]
    fn a_refusal_of_hyper_is_found_behind_an_answer_and_nothing_else_is_one() {
        let found =
            |text: &str| refusal_at_end(text.as_bytes()).map(|(at, code)| (at, code.as_u16()));
        assert_eq!(found(HEAD), Some((0, 400)));
        let answered = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(found(&format!("{answered}{HEAD}")), Some((40, 400)));
        let old = HEAD.replace(
            "1.1 400 Bad Request",
            "1.0 431 Request Header Fields Too Large",
        );
        assert_eq!(found(&old), Some((0, 431)));
        for other in [
            answered,
            &HEAD.replace("400 Bad Request", "200 OK"),
            &HEAD.replace("content-length: 0", "content-length: 9"),
            &HEAD.replace("connection: close", "content-type: text/plain"),
            &format!("{HEAD}{{}}"),
            &format!("{HEAD}\r\n\r\n"),
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
