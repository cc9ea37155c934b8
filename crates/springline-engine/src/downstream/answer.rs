//! The bytes of answers: whole ones, streams and refusals.
//!
//! Owns: the response body, how a part becomes an event, and the heartbeat. It must not know what
//! a message says.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use springline_proto::error::{error_response, plain_error};
use springline_proto::json::Pieces;
use springline_proto::session::Part;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use super::port::Parts;
use super::raised;
use super::seat::{self, Busy};
use crate::clock;

/// An HTTP answer of ours.
pub struct Answer {
    status: StatusCode,
    /// The media type of the body. Most answers have no other field, and then no map.
    kind: Option<&'static str>,
    headers: Option<Box<HeaderMap>>,
    body: AnswerBody,
}

impl Answer {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The media type of its body.
    pub fn kind(&self) -> Option<&'static str> {
        self.kind
    }

    /// Its fields, without the media type, and without those that frame the body.
    pub fn headers(&self) -> Option<&HeaderMap> {
        self.headers.as_deref()
    }

    /// The same, to add some.
    pub fn headers_mut(&mut self) -> &mut HeaderMap {
        self.headers.get_or_insert_default()
    }

    /// Whether it says that the connection ends with it: nothing else of ours is said there.
    pub fn closes(&self) -> bool {
        self.headers()
            .is_some_and(|headers| headers.contains_key(header::CONNECTION))
    }

    /// Its body.
    pub fn body(&self) -> &AnswerBody {
        &self.body
    }

    /// The same, alone.
    pub fn into_body(self) -> AnswerBody {
        self.body
    }

    /// The same, for hyper.
    pub fn into_response(self) -> Response<AnswerBody> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(kind) = self.kind {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        if let Some(more) = self.headers {
            headers.extend(*more);
        }
        response
    }
}

/// The media type of most answers.
pub const JSON: &str = "application/json";

/// Events that are joined into one buffer before they are written; larger ones keep their pieces.
const JOIN_MAX: usize = 16 * 1024;

/// The body of an answer.
pub enum AnswerBody {
    /// One known segment, as most answers are; an empty one is no body.
    Whole(Bytes),
    /// Several, with their length; none is copied.
    Pieces(VecDeque<Bytes>),
    /// Events as they come.
    Stream(EventBody),
}

impl AnswerBody {
    /// No body.
    pub fn empty() -> Self {
        Self::Whole(Bytes::new())
    }
}

impl From<Bytes> for AnswerBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(bytes)
    }
}

impl From<String> for AnswerBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<Pieces> for AnswerBody {
    fn from(pieces: Pieces) -> Self {
        match pieces.into_only() {
            Ok(only) => Self::Whole(only),
            Err(pieces) => Self::Pieces(pieces.into_iter().collect()),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let next = match self.get_mut() {
            Self::Whole(whole) => {
                let whole = std::mem::take(whole);
                (!whole.is_empty()).then_some(Ok(whole))
            }
            Self::Pieces(pieces) => pieces.pop_front().map(Ok),
            Self::Stream(stream) => match stream.poll_segment(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(next) => next,
            },
        };
        Poll::Ready(next.map(|bytes| bytes.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole) => whole.is_empty(),
            Self::Pieces(pieces) => pieces.is_empty(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Self::Pieces(pieces) => {
                SizeHint::with_exact(pieces.iter().map(|bytes| bytes.len() as u64).sum())
            }
            Self::Stream(stream) => stream
                .left
                .map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// An answer ends before its time: its client does not read, or what passed cannot be completed. The
/// connection is aborted, so that nobody takes what came for the whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the answer was cut")]
pub struct Cut;

/// The writing of a stream, and how it ended.
type Writing = Pin<Box<dyn Future<Output = Result<(), Cut>> + Send>>;

/// A body that is written while it comes: an event stream, or a large JSON answer. The connection's
/// own task drives it: a client that reads slowly holds one event here, and the rest waits within the
/// session's bounds, or with the server.
pub struct EventBody {
    driver: Option<Writing>,
    segments: mpsc::Receiver<Bytes>,
    cut: Option<Cut>,
    _busy: Busy,
    /// What is missing of its length, if that is known.
    left: Option<u64>,
}

/// How a stream of events behaves besides its events.
#[derive(Clone, Debug)]
pub struct StreamManners {
    /// The pause after which a comment shows that the stream lives.
    pub heartbeat: Duration,
    /// Ends the stream when it turns true; nothing for a stream that carries an answer.
    pub stopping: Option<watch::Receiver<bool>>,
}

impl EventBody {
    /// A stream of `parts`, of which [`Part::Begin`] has been taken.
    pub fn new<P: Parts>(parts: P, manners: StreamManners) -> Self {
        Self::ending(|sender| drive(parts, manners, sender))
    }

    /// A JSON answer that passes, of which [`Part::Open`] has been taken. With a length, a client can
    /// tell from it that the answer was cut; without, from the missing last chunk.
    pub fn passing<P: Parts>(parts: P, len: Option<u64>) -> Self {
        let mut body = Self::ending(|sender| pass(parts, sender));
        body.left = len;
        body
    }

    /// A stream of what `make`'s future sends; it is complete when that future is. The receiving
    /// end closes when the client is gone.
    pub fn driven<F>(make: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::ending(|sender| {
            let whole = make(sender);
            async {
                whole.await;
                Ok(())
            }
        })
    }

    fn ending<F>(make: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = Result<(), Cut>> + Send + 'static,
    {
        let (sender, segments) = mpsc::channel(1);
        Self {
            driver: Some(Box::pin(make(sender))),
            segments,
            cut: None,
            _busy: seat::busy(),
            left: None,
        }
    }

    fn poll_segment(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        loop {
            if let Ok(segment) = self.segments.try_recv() {
                if let Some(left) = &mut self.left {
                    *left = left.saturating_sub(segment.len() as u64);
                }
                return Poll::Ready(Some(Ok(segment)));
            }
            let Some(driver) = &mut self.driver else {
                return Poll::Ready(self.cut.take().map(Err));
            };
            if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
                self.cut = ended.err();
                self.driver = None;
            } else if self.segments.is_empty() {
                return Poll::Pending;
            }
        }
    }
}

async fn pass<P: Parts>(mut parts: P, sender: mpsc::Sender<Bytes>) -> Result<(), Cut> {
    loop {
        match parts.next().await {
            Some(Part::Bytes(bytes)) => {
                if sender.send(bytes).await.is_err() {
                    return Ok(());
                }
            }
            Some(Part::End) => return Ok(()),
            // Nothing else is a proper end, or goes between.
            _ => return Err(Cut),
        }
    }
}

async fn drive<P: Parts>(
    mut parts: P,
    manners: StreamManners,
    sender: mpsc::Sender<Bytes>,
) -> Result<(), Cut> {
    let mut stopping = manners.stopping;
    let mut beat = clock::now() + manners.heartbeat;
    // In the midst of a large event nothing else can be said, and no end is proper.
    let mut is_open = false;
    loop {
        let part = tokio::select! {
            biased;
            part = parts.next() => part,
            () = stopped(&mut stopping) => return if is_open { Err(Cut) } else { Ok(()) },
            () = sleep_until(beat), if !is_open => {
                if sender.send(Bytes::from_static(b": keep-alive\n\n")).await.is_err() {
                    return Ok(());
                }
                beat = clock::now() + manners.heartbeat;
                continue;
            }
        };
        let segments = match part {
            Some(Part::Event { id, retry, data }) => event(id.as_deref(), retry, data),
            Some(Part::OpenEvent) => {
                is_open = true;
                vec![Bytes::from_static(b"event: message\ndata: ")]
            }
            Some(Part::Bytes(bytes)) if is_open => {
                Pieces::from(bytes).one_line().into_iter().collect()
            }
            Some(Part::Close { id }) if is_open => {
                is_open = false;
                // Behind the data, so that nobody has the cursor before the event.
                vec![format!("\nid: {id}\n\n").into()]
            }
            Some(Part::Begin) => continue,
            // A stream has begun: nothing else can be said on it.
            _ if is_open || parts.is_cut() => return Err(Cut),
            Some(Part::Cut) => return Err(Cut),
            Some(
                Part::Accepted
                | Part::Json(_)
                | Part::Open { .. }
                | Part::Bytes(_)
                | Part::Close { .. }
                | Part::Refuse { .. }
                | Part::Welcome(_)
                | Part::Frame { .. }
                | Part::End,
            )
            | None => return Ok(()),
        };
        for segment in segments {
            if sender.send(segment).await.is_err() {
                return Ok(());
            }
        }
        beat = clock::now() + manners.heartbeat;
    }
}

async fn stopped(stopping: &mut Option<watch::Receiver<bool>>) {
    match stopping {
        Some(stopping) => raised(stopping).await,
        None => std::future::pending().await,
    }
}

/// One event as it goes over the wire (HTML living standard, event streams; 2025-11-25
/// basic/transports). Its name is spelled out: some readers know no default.
fn event(id: Option<&str>, retry: Option<Duration>, data: Pieces) -> Vec<Bytes> {
    let mut head = String::new();
    if let Some(id) = id {
        head.push_str("id: ");
        head.push_str(id);
        head.push('\n');
    }
    if let Some(retry) = retry {
        // Writing to a String cannot fail.
        writeln!(head, "retry: {}", retry.as_millis()).unwrap_or_default();
    }
    if !data.is_empty() {
        head.push_str("event: message\n");
    }
    head.push_str("data: ");
    // A raw line end in valid JSON is white space; on one line it needs no second data field.
    let data = data.one_line();
    if data.len() < JOIN_MAX {
        let mut whole = Vec::with_capacity(head.len() + data.len() + 2);
        whole.extend_from_slice(head.as_bytes());
        for segment in &data {
            whole.extend_from_slice(segment);
        }
        whole.extend_from_slice(b"\n\n");
        return vec![whole.into()];
    }
    let mut segments = vec![Bytes::from(head)];
    segments.extend(data);
    segments.push(Bytes::from_static(b"\n\n"));
    segments
}

/// A status alone.
pub fn bare(status: StatusCode) -> Answer {
    with_body(status, None, AnswerBody::empty())
}

/// A whole body of this media type.
pub fn with_body(status: StatusCode, kind: Option<&'static str>, body: AnswerBody) -> Answer {
    Answer {
        status,
        kind,
        headers: None,
        body,
    }
}

/// A whole JSON answer.
pub fn json(status: StatusCode, body: impl Into<AnswerBody>) -> Answer {
    with_body(status, Some(JSON), body.into())
}

/// An event stream; its head leaves at once.
pub fn stream(body: EventBody) -> Answer {
    let body = AnswerBody::Stream(body);
    let mut answer = with_body(StatusCode::OK, Some("text/event-stream"), body);
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx holds streams back without it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

/// Refuses an HTTP request: a status with a JSON-RPC error, under the id where one could be read.
pub fn refuse(status: StatusCode, id: Option<&[u8]>, code: i32, message: &str) -> Answer {
    json(status, error_response(id, &plain_error(code, message)))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// One event, and then the end of a mailbox that was cut or not.
    struct Short {
        event: Option<Part>,
        cut: bool,
    }

    impl Parts for Short {
        async fn next(&mut self) -> Option<Part> {
            self.event.take()
        }

        fn is_cut(&self) -> bool {
            self.cut
        }
    }

    #[tokio::test]
    async fn a_stream_that_was_cut_never_ends_well() {
        for cut in [false, true] {
            let data = Bytes::from_static(b"{}").into();
            let parts = Short {
                event: Some(Part::Event {
                    id: None,
                    retry: None,
                    data,
                }),
                cut,
            };
            let manners = StreamManners {
                heartbeat: Duration::from_secs(15),
                stopping: None,
            };
            let mut body = AnswerBody::Stream(EventBody::new(parts, manners));
            let first = body.frame().await.unwrap().unwrap();
            assert_eq!(first.into_data().unwrap(), "event: message\ndata: {}\n\n");
            let last = body.frame().await;
            assert_eq!(last.map(|end| end.unwrap_err()), cut.then_some(Cut));
        }
    }
}
