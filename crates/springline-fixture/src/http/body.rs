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

struct Chunks(mpsc::Receiver<io::Result<Bytes>>);

impl HttpBody for Chunks {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.0
            .poll_recv(context)
            .map(|chunk| chunk.map(|result| result.map(Frame::data)))
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
            // Lets the first half reach the wire before the connection goes.
            tokio::task::yield_now().await;
            drop(chunks.send(Err(cut())).await);
        }
    });
    Chunks(body).boxed_unsync()
}

/// One event as text.
pub(super) fn event(id: Option<&str>, data: &str) -> String {
    match id {
        Some(id) => format!("id: {id}\ndata: {data}\n\n"),
        None => format!("data: {data}\n\n"),
    }
}

/// The events of a stream from `at` on.
///
/// Entries of the standalone stream count as delivered once the body took them.
pub(super) fn events(stream: Arc<Stream>, at: usize, retry_ms: u64) -> Body {
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
            let chunk = match entry {
                None | Some(Entry::Close) => return,
                Some(Entry::Spent) => continue,
                Some(Entry::Cut) => Err(cut()),
                Some(Entry::Priming) => Ok(format!("retry: {retry_ms}\n{}", event(Some(&id), ""))),
                Some(Entry::Message(text)) => {
                    Ok(event(stream.primed().then_some(id.as_str()), &text))
                }
            };
            if chunks.send(chunk.map(Bytes::from)).await.is_err() {
                return;
            }
            stream.mark(at);
        }
    });
    Chunks(body).boxed_unsync()
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
