//! The gateway's end of `connect`: an upgraded connection on the unix socket.
//!
//! Owns: the upgrade, the hellos, and when what was taken is acknowledged. It must not know what
//! messages say, nor what a client that comes back has missed: the session does.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use springline_proto::call::Connection;
use springline_proto::error::{error_response, plain_error};
use springline_proto::json::Pieces;
use springline_proto::message::Message;
use springline_proto::session::{Comeback, Downstream, Endpoint, Part};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::{Sleep, sleep, timeout};

use super::answer::{self, Answer};
use super::frame::{ACK_EVERY, ACK_EVERY_BYTES, Frame, FrameReader, PROTOCOL};
use super::hello::{ClientHello, GatewayHello, Token};
use super::outgoing::{ENOUGH, Outgoing};
use super::port::{Gate, OpenError, Parts, Principal, Session};
use super::raised;
use super::server::HttpServer;
use crate::{clock, lane};

/// The path that `connect` upgrades on.
pub const PATH: &str = "/connect";

/// In the query of an upgrade: the client comes back to a session. That may outlive the entry of its
/// server: its calls are then answered with that, until the entry is there again.
pub const COMEBACK: &str = "comeback";

/// How long a `connect` may take for its first frame, and for the upgrade itself.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// What an upgrade asks for.
pub(crate) struct Wanted {
    pub(crate) endpoint: Endpoint,
    /// The client says that it has a session here. Whether that is so, its hello shows.
    pub(crate) comes_back: bool,
}

/// What an upgrade asks for, or the answer that refuses it.
pub(crate) fn requested<B>(request: &Request<B>) -> Result<Wanted, Answer> {
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
    Ok(Wanted {
        endpoint: server.map_or(Endpoint::All, |name| Endpoint::One(Arc::from(name))),
        comes_back: query.split('&').any(|pair| pair == COMEBACK),
    })
}

/// The answer to an upgrade whose session was not opened; `names` are the servers that there are.
pub(crate) fn refused(error: OpenError, endpoint: &Endpoint, names: &[String]) -> Answer {
    let status = match error {
        OpenError::UnknownServer => StatusCode::NOT_FOUND,
        OpenError::TooManySessions | OpenError::Stopping | OpenError::NoRandom => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    let text = text_of(error, endpoint, names);
    let body = error_response(None, &plain_error(-32600, &text));
    answer::json(status, body)
}

fn text_of(error: OpenError, endpoint: &Endpoint, names: &[String]) -> String {
    match (error, endpoint) {
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
    }
}

/// The answer that switches the connection over.
pub(crate) fn switching() -> Answer {
    let mut answer = answer::bare(StatusCode::SWITCHING_PROTOCOLS);
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
    answer
}

/// One connection of a `connect`.
pub(crate) struct Pipe<G> {
    pub(crate) server: Arc<HttpServer<G>>,
    pub(crate) principal: Principal,
    pub(crate) endpoint: Endpoint,
    pub(crate) frame_max: usize,
    pub(crate) heartbeat: Duration,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) cut: watch::Receiver<bool>,
}

/// How a client left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Leave {
    /// With a goodbye: nobody comes back.
    Done,
    /// Its connection is gone; it may come back.
    Cut,
}

impl<G: Gate> Pipe<G> {
    /// Carries messages both ways until either side ends. A client that says goodbye ends its
    /// session; one that is cut finds it again.
    pub(crate) async fn run(self, upgrade: OnUpgrade) {
        match timeout(HELLO_PATIENCE, upgrade).await {
            Ok(Ok(upgraded)) => {
                if let Err(error) = self.carry(TokioIo::new(upgraded)).await {
                    tracing::debug!(%error, "a pipe ended");
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "an upgrade failed"),
            Err(_) => tracing::debug!("an upgrade did not come"),
        }
    }

    async fn carry<T>(self, stream: T) -> io::Result<()>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let (read, write) = tokio::io::split(stream);
        let mut out = Outgoing::new(write);
        let mut reader = FrameReader::new(read, self.frame_max);
        let hello = match timeout(HELLO_PATIENCE, reader.next()).await?? {
            Some(Frame::Hello(json)) => ClientHello::parse(&json),
            _ => return Err(invalid("the first frame is no hello")),
        };
        let (session, is_resumed) = match self.session(&hello) {
            Ok(found) => found,
            Err(error) => {
                let reason = match error {
                    OpenError::UnknownServer => UNKNOWN_SERVER,
                    OpenError::TooManySessions | OpenError::Stopping | OpenError::NoRandom => {
                        "refused"
                    }
                };
                let names = self.server.gate().names();
                let message = text_of(error, &self.endpoint, &names);
                let text = serde_json::json!({"reason": reason, "message": message});
                Frame::End(text.to_string().into()).put(&mut out);
                return out.flush().await;
            }
        };
        let comeback = if is_resumed {
            hello.comeback
        } else {
            Comeback::default()
        };
        let (connection, mut parts) = session.attach(comeback);
        let Some(Part::Welcome(welcome)) = parts.next().await else {
            Frame::End(Bytes::from_static(ENDED)).put(&mut out);
            return out.flush().await;
        };
        let acked = welcome.taken;
        let hello = GatewayHello {
            is_resumed,
            session: Some(Token::new(session.id())),
            welcome,
        };
        Frame::Hello(hello.to_json()).put(&mut out);
        out.flush().await?;
        let owed = Notify::new();
        let mut cut = self.cut.clone();
        let left = tokio::select! {
            left = take(&session, connection, &mut reader, &owed) => left?,
            given = self.give(&session, &mut parts, &mut out, &owed, acked) => {
                given?;
                Leave::Cut
            }
            () = raised(&mut cut) => Leave::Cut,
        };
        if left == Leave::Done {
            session.close();
        }
        Ok(())
    }

    /// The session that the client names, else a new one.
    fn session(&self, hello: &ClientHello) -> Result<(G::Session, bool), OpenError> {
        let gate = self.server.gate();
        let named = hello.session.as_ref();
        let found =
            named.and_then(|token| gate.take_up(token.as_str(), &self.principal, &self.endpoint));
        match found {
            Some(session) => Ok((session, true)),
            None => gate
                .open(&self.principal, self.endpoint.clone(), Downstream::Socket)
                .map(|session| (session, false)),
        }
    }

    /// Gives the session's messages and acknowledgements to the client until the session ends.
    async fn give<W: AsyncWrite + Unpin>(
        &self,
        session: &G::Session,
        parts: &mut <G::Session as Session>::Parts,
        out: &mut Outgoing<W>,
        owed: &Notify,
        mut acked: u64,
    ) -> io::Result<()> {
        let mut stopping = self.stopping.clone();
        let mut is_told = false;
        let mut heartbeat = std::pin::pin!(sleep(self.heartbeat));
        loop {
            let said = tokio::select! {
                biased;
                part = parts.next() => Said::of(part),
                // What was said in the same turn leaves in one write.
                flushed = out.flush(), if !out.is_empty() => {
                    flushed?;
                    continue;
                }
                () = raised(&mut stopping), if !is_told => {
                    is_told = true;
                    Frame::Note(Bytes::from_static(br#"{"stopping":true}"#)).put(out);
                    continue;
                }
                () = pause(owed, heartbeat.as_mut()) => {
                    heartbeat.as_mut().reset(clock::now() + self.heartbeat);
                    let last = session.taken();
                    if last != acked {
                        acked = last;
                        Frame::Ack(last).put(out);
                    }
                    continue;
                }
            };
            match said {
                Said::Message { number, body } => {
                    lane::stay_awake();
                    acked = session.taken();
                    let received = acked;
                    Frame::Message {
                        number,
                        received,
                        body,
                    }
                    .put(out);
                }
                Said::Nothing => continue,
                Said::End => {
                    Frame::End(Bytes::from_static(ENDED)).put(out);
                    return out.flush().await;
                }
            }
            if out.len() >= ENOUGH {
                out.flush().await?;
            }
        }
    }
}

/// What a part means to a client of the socket.
enum Said {
    Message { number: u64, body: Pieces },
    Nothing,
    End,
}

impl Said {
    fn of(part: Option<Part>) -> Self {
        match part {
            Some(Part::Frame { number, data }) => Self::Message { number, body: data },
            Some(
                Part::Begin
                | Part::Accepted
                | Part::Json(_)
                | Part::Open { .. }
                | Part::OpenEvent
                | Part::Bytes(_)
                | Part::Close { .. }
                | Part::Refuse { .. }
                | Part::Event { .. }
                | Part::Welcome(_),
            ) => Self::Nothing,
            Some(Part::Cut | Part::End) | None => Self::End,
        }
    }
}

/// The reason in the last frame for a client that came back to nothing, and asks for a server that
/// there is not.
pub const UNKNOWN_SERVER: &str = "unknown-server";

/// The last frame of a session that is over.
const ENDED: &[u8] = br#"{"reason":"session-ended"}"#;

/// Takes the client's frames until it goes.
async fn take<S: Session, R: AsyncRead + Unpin>(
    session: &S,
    connection: Connection,
    reader: &mut FrameReader<R>,
    owed: &Notify,
) -> io::Result<Leave> {
    let mut bytes = 0;
    while let Some(frame) = reader.next().await? {
        match frame {
            Frame::Message {
                number,
                received,
                body,
            } => {
                bytes += body.len();
                lane::stay_awake();
                session.frame(
                    connection,
                    number,
                    received,
                    Message::parse(body.to_bytes()),
                );
                if number % ACK_EVERY == 0 || bytes >= ACK_EVERY_BYTES {
                    bytes = 0;
                    owed.notify_one();
                }
            }
            Frame::Ack(received) => session.acknowledged(connection, received),
            Frame::End(_) => return Ok(Leave::Done),
            Frame::Hello(_) | Frame::Note(_) | Frame::Unknown => {}
        }
    }
    Ok(Leave::Cut)
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Until an acknowledgement is owed, or the heartbeat has passed.
async fn pause(owed: &Notify, heartbeat: Pin<&mut Sleep>) {
    // Either is a reason to look.
    tokio::select! {
        () = owed.notified() => {}
        () = heartbeat => {}
    }
}
