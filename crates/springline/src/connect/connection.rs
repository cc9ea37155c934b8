//! One connection to the gateway: the client's end of `springline/1`.
//!
//! Owns: the upgrade, the hellos, and the bytes of frames. It must not know what they mean.

use std::time::Duration;

use bytes::Bytes;
use springline_engine::downstream::attach::{COMEBACK, UNKNOWN_SERVER};
use springline_engine::downstream::frame::{Frame, FrameReader, PROTOCOL};
use springline_engine::downstream::hello::{ClientHello, GatewayHello};
use springline_proto::json;
use springline_proto::message::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::ConnectArgs;
use super::refusal::AttachError;

/// Bytes that the head of an answer to the upgrade may have.
const HEAD_MAX: usize = 16 * 1024;

/// A connection to the gateway.
pub(super) struct Connection {
    reader: FrameReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Connection {
    /// Upgrades a connection and exchanges hellos.
    pub(super) async fn open(
        mut stream: UnixStream,
        args: &ConnectArgs,
        hello: &ClientHello,
    ) -> Result<(Self, GatewayHello), AttachError> {
        let server = args.server.as_ref().map(|name| format!("server={name}"));
        let comeback = hello.session.as_ref().map(|_| COMEBACK.to_owned());
        let wanted: Vec<String> = server.into_iter().chain(comeback).collect();
        let mark = if wanted.is_empty() { "" } else { "?" };
        let query = format!("{mark}{}", wanted.join("&"));
        let request = format!(
            "GET /connect{query} HTTP/1.1\r\nHost: springline\r\nConnection: Upgrade\r\n\
             Upgrade: {PROTOCOL}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let head = read_head(&mut stream).await?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        if status != "101" {
            return Err(match (status, refusal(&mut stream, &head).await) {
                ("404", Some(text)) => AttachError::Unknown(text),
                ("503", Some(text)) => AttachError::Busy(text),
                (_, Some(text)) => AttachError::Refused(text),
                (_, None) => AttachError::Refused(format!("status {status}")),
            });
        }
        let (read, mut write) = stream.into_split();
        Frame::Hello(hello.to_json()).write(&mut write).await?;
        let mut reader = FrameReader::new(read, args.body_max);
        match reader.next().await? {
            Some(Frame::Hello(json)) => Ok((Self { reader, write }, GatewayHello::parse(&json))),
            Some(Frame::End(json)) => Err(ended(&json)),
            Some(_) => Err(AttachError::Refused(
                "its first frame is no hello".to_owned(),
            )),
            None => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// The next frame; nothing when the gateway has closed. Cancel safe.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Frame>> {
        self.reader.next().await
    }

    /// Sends a frame. Not cancel safe.
    pub(super) async fn send(&mut self, frame: Frame) -> std::io::Result<()> {
        frame.write(&mut self.write).await
    }

    /// Says that we are done. The gateway may be gone already.
    pub(super) async fn end(mut self) {
        let end = Frame::End(Bytes::from_static(br#"{"reason":"done"}"#));
        drop(timeout(Duration::from_secs(1), end.write(&mut self.write)).await);
    }
}

/// Why the gateway opened no session after all.
fn ended(json: &Bytes) -> AttachError {
    let is_unknown = member(json, "reason").is_some_and(|reason| reason == UNKNOWN_SERVER);
    match member(json, "message") {
        Some(text) if is_unknown => AttachError::Unknown(text),
        Some(text) => AttachError::Busy(text),
        // The session that was named ended at this moment.
        None => std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into(),
    }
}

fn member(json: &Bytes, name: &str) -> Option<String> {
    json::validate(json).ok()?;
    let value = json::member(json, json::Span::whole(json), name)?;
    json::string(value.of(json)).map(std::borrow::Cow::into_owned)
}

/// Whether a note says that the gateway ends as soon as nothing is pending.
pub(super) fn is_stopping(note: &Bytes) -> bool {
    json::validate(note).is_ok()
        && json::member(note, json::Span::whole(note), "stopping")
            .is_some_and(|value| value.of(note) == b"true")
}

pub(super) async fn read_head(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the frames.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// What the gateway says of a refused upgrade.
async fn refusal(stream: &mut UnixStream, head: &str) -> Option<String> {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0_usize).min(HEAD_MAX)];
    let message = match stream.read_exact(&mut body).await {
        Ok(_) => Message::parse(body)
            .ok()
            .and_then(|message| message.error()),
        Err(_) => None,
    };
    member(&message?, "message")
}
