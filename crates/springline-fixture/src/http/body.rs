//! Response bodies: whole, broken off, or a stream of events.
//!
//! Owns the event-stream text that is sent. Must not know methods.

use std::io;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as HttpBody, Frame};
use tokio::sync::{Notify, mpsc};

use crate::session::{Entry, Stream};

/// A response body.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body that is sent as a whole, with its length.
pub(super) fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

struct Chunks {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    cut: Option<io::Error>,
}

impl Chunks {
    fn boxed(chunks: mpsc::Receiver<io::Result<Bytes>>) -> Body {
        Self { chunks, cut: None }.boxed_unsync()
    }
}

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if let Some(error) = self.cut.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match self.chunks.poll_recv(context) {
            Poll::Ready(Some(Err(error))) => {
                // An idle turn lets hyper flush what came before; an error
                // makes it drop what it still holds.
                self.cut = Some(error);
                context.waker().wake_by_ref();
                Poll::Pending
            }
            chunk => chunk.map(|chunk| chunk.map(|result| result.map(Frame::data))),
        }
    }
}

/// The error with which a body is broken off.
pub(super) fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "cut on purpose")
}

/// A body that breaks off in the middle of `text`.
pub(super) fn broken(text: &str) -> Body {
    let (chunks, body) = mpsc::channel(2);
    let half = Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]);
    tokio::spawn(async move {
        if chunks.send(Ok(half)).await.is_ok() {
            drop(chunks.send(Err(cut())).await);
        }
    });
    Chunks::boxed(body)
}

/// One event as text.
pub(super) fn event(id: Option<&str>, data: &str) -> String {
    match id {
        Some(id) => format!("id: {id}\ndata: {data}\n\n"),
        None => format!("data: {data}\n\n"),
    }
}

/// How events are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    /// `retry:` of a priming event, in milliseconds.
    pub(super) retry_ms: u64,
    /// Lines end by CR LF, and comments are sent.
    pub(super) crlf: bool,
    /// Bytes of a piece, if events are cut into pieces.
    pub(super) pieces: Option<usize>,
}

impl Style {
    fn chunks(self, text: &str) -> Vec<Bytes> {
        let text = if self.crlf {
            format!(": a comment\n{text}").replace('\n', "\r\n")
        } else {
            text.to_owned()
        };
        match self.pieces {
            Some(size) => text
                .as_bytes()
                .chunks(size.max(1))
                .map(Bytes::copy_from_slice)
                .collect(),
            None => vec![Bytes::from(text)],
        }
    }
}

/// The events of a stream from `at` on.
///
/// Entries of the standalone stream count as delivered once the body took them.
pub(super) fn events(stream: Arc<Stream>, at: usize, style: Style) -> Body {
    let (chunks, body) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut at = at;
        loop {
            let entry = tokio::select! {
                entry = stream.next(at) => entry,
                () = chunks.closed() => return,
            };
            let id = format!("{}-{at}", stream.number);
            at += 1;
            let text = match entry {
                None | Some(Entry::Close) => return,
                Some(Entry::Spent) => continue,
                Some(Entry::Cut) => {
                    drop(chunks.send(Err(cut())).await);
                    return;
                }
                Some(Entry::Priming) => {
                    format!("retry: {}\n{}", style.retry_ms, event(Some(&id), ""))
                }
                Some(Entry::Message(text)) => event(stream.primed().then_some(id.as_str()), &text),
            };
            for chunk in style.chunks(&text) {
                if chunks.send(Ok(chunk)).await.is_err() {
                    return;
                }
            }
            stream.mark(at);
        }
    });
    Chunks::boxed(body)
}

/// Compresses a text.
pub(super) fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text)?;
    encoder.finish()
}

/// Tells when a body is at its end or was dropped.
struct Watched {
    body: Body,
    ended: Arc<Notify>,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.ended.notify_one();
    }
}

/// The same body; `ended` is told when it is gone.
pub(super) fn watched(body: Body, ended: Arc<Notify>) -> Body {
    Watched { body, ended }.boxed_unsync()
}
