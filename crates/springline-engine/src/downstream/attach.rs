//! The gateway's end of `connect`: an upgraded connection on the unix socket.
//!
//! Owns: the upgrade, the numbering of frames and their acknowledgement. It must not know what
//! messages say. A connection that breaks ends its session: the frames leave room for taking a
//! session up again, but nothing keeps one yet.

#![expect(
    clippy::result_large_err,
    reason = "an answer that refuses is built once and sent at once"
)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use springline_proto::error::{error_response, plain_error};
use springline_proto::message::Message;
use springline_proto::session::{Endpoint, Part};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::answer::{self, Answer};
use super::frame::{ACK_EVERY, Frame, FrameReader, PROTOCOL};
use super::port::{OpenError, Parts as _, Session};
use super::raised;

/// The path that `connect` upgrades on.
pub const PATH: &str = "/connect";

/// How long a `connect` may take for its first frame, and for the upgrade itself.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// The endpoint that an upgrade asks for, or the answer that refuses it.
pub(crate) fn requested<B>(request: &Request<B>) -> Result<Endpoint, Answer> {
    let refuse = |status, text: &str| Err(answer::refuse(status, None, -32600, text));
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "the method must be GET");
    }
    let upgrade = request
        .headers()
        .get(header::UPGRADE)
        .and_then(|value| value.to_str().ok());
    if !upgrade.is_some_and(|name| name.eq_ignore_ascii_case(PROTOCOL)) {
        let text = format!("this path is for Upgrade: {PROTOCOL}");
        return refuse(StatusCode::UPGRADE_REQUIRED, &text);
    }
    let query = request.uri().query().unwrap_or_default();
    // Names of servers need no escapes.
    let server = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("server="));
    Ok(server.map_or(Endpoint::All, |name| Endpoint::One(Arc::from(name))))
}

/// The answer to an upgrade whose session was not opened; `names` are the servers that there are.
pub(crate) fn refused(error: OpenError, endpoint: &Endpoint, names: &[String]) -> Answer {
    let status = match error {
        OpenError::UnknownServer => StatusCode::NOT_FOUND,
        OpenError::TooManySessions | OpenError::Stopping | OpenError::NoRandom => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let text = match (error, endpoint) {
        (OpenError::UnknownServer, Endpoint::One(name)) if names.is_empty() => {
            format!("there is no server {name:?}")
        }
        (OpenError::UnknownServer, Endpoint::One(name)) => {
            format!(
                "there is no server {name:?}; configured are {}",
                names.join(", ")
            )
        }
        _ => error.to_string(),
    };
    let body = error_response(None, &plain_error(-32600, &text));
    answer::json(status, body)
}

/// The answer that switches the connection over.
pub(crate) fn switching() -> Answer {
    let mut answer = answer::bare(StatusCode::SWITCHING_PROTOCOLS);
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    answer
}

/// One attached `connect`.
pub(crate) struct Pipe<S> {
    pub(crate) session: Arc<S>,
    pub(crate) frame_max: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) cut: watch::Receiver<bool>,
}

impl<S: Session> Pipe<S> {
    /// Carries messages both ways until either side ends; then the session ends too.
    pub(crate) async fn run(self, upgrade: OnUpgrade) {
        let session = Arc::clone(&self.session);
        match timeout(HELLO_PATIENCE, upgrade).await {
            Ok(Ok(upgraded)) => {
                if let Err(error) = self.carry(TokioIo::new(upgraded)).await {
                    tracing::debug!(%error, "a pipe ended");
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "an upgrade failed"),
            Err(_) => tracing::debug!("an upgrade did not come"),
        }
        session.close();
    }

    async fn carry<T>(self, stream: T) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let (read, mut write) = tokio::io::split(stream);
        let mut reader = FrameReader::new(read, self.frame_max);
        let hello = timeout(HELLO_PATIENCE, reader.next()).await??;
        if !matches!(hello, Some(Frame::Hello(_))) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the first frame is no hello",
            ));
        }
        Frame::Hello(hello_text()).write(&mut write).await?;
        let received = AtomicU64::new(0);
        let owed = Notify::new();
        let mut cut = self.cut.clone();
        tokio::select! {
            ended = self.take(&mut reader, &received, &owed) => ended,
            ended = self.give(&mut write, &received, &owed) => ended,
            () = raised(&mut cut) => Ok(()),
        }
    }

    /// Takes the client's frames until it ends.
    async fn take<R: AsyncRead + Unpin>(
        &self,
        reader: &mut FrameReader<R>,
        received: &AtomicU64,
        owed: &Notify,
    ) -> io::Result<()> {
        let mut expected = 1;
        while let Some(frame) = reader.next().await? {
            match frame {
                Frame::Message { number, body, .. } if number == expected => {
                    expected += 1;
                    received.store(number, Ordering::Release);
                    self.session.line(Message::parse(body.to_bytes()));
                    if number % ACK_EVERY == 0 {
                        owed.notify_one();
                    }
                }
                Frame::Message { .. } => {
                    let text = "a frame is out of order";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
                Frame::End(_) => return Ok(()),
                Frame::Hello(_) | Frame::Ack(_) | Frame::Note(_) | Frame::Unknown => {}
            }
        }
        Ok(())
    }

    /// Gives the session's messages and acknowledgements to the client until the session ends.
    async fn give<W: AsyncWrite + Unpin>(
        &self,
        write: &mut W,
        received: &AtomicU64,
        owed: &Notify,
    ) -> io::Result<()> {
        let mut parts = self.session.pipe();
        let mut stopping = self.stopping.clone();
        let mut is_told = false;
        let mut number = 0;
        let mut acked = 0;
        loop {
            let frame = tokio::select! {
                biased;
                part = parts.next() => match part {
                    Some(Part::Event { data, .. }) => {
                        number += 1;
                        acked = received.load(Ordering::Acquire);
                        Frame::Message { number, received: acked, body: data }
                    }
                    Some(Part::Begin | Part::Accepted | Part::Json(_) | Part::Refuse { .. }) => {
                        continue;
                    }
                    Some(Part::End) | None => {
                        let end = Bytes::from_static(br#"{"reason":"session-ended"}"#);
                        return Frame::End(end).write(write).await;
                    }
                },
                () = raised(&mut stopping), if !is_told => {
                    is_told = true;
                    Frame::Note(Bytes::from_static(br#"{"stopping":true}"#))
                }
                () = pause(owed, self.heartbeat) => {
                    let last = received.load(Ordering::Acquire);
                    if last == acked {
                        continue;
                    }
                    acked = last;
                    Frame::Ack(last)
                }
            };
            frame.write(write).await?;
        }
    }
}

/// Until an acknowledgement is owed, or the heartbeat has passed.
async fn pause(owed: &Notify, heartbeat: Duration) {
    // Either is a reason to look.
    drop(timeout(heartbeat, owed.notified()).await);
}

fn hello_text() -> Bytes {
    Bytes::from(format!(
        r#"{{"version":"{}","resumed":false}}"#,
        env!("CARGO_PKG_VERSION")
    ))
}
