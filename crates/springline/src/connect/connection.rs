//! One connection to the gateway: the client's end of `springline/1`.
//!
//! Owns: the upgrade, the hellos, and the bytes of frames. It must not know what they mean.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use springline_engine::downstream::attach::{COMEBACK, UNKNOWN_SERVER};
use springline_engine::downstream::frame::{Frame, FrameReader, PROTOCOL};
use springline_engine::downstream::hello::{ClientHello, GatewayHello};
use springline_engine::downstream::local::LocalStream;
use springline_engine::downstream::outgoing::Outgoing;
use springline_proto::json;
use springline_proto::message::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::ConnectArgs;
use super::refusal::AttachError;

/// Bytes that the head of an answer to the upgrade may have.
const HEAD_MAX: usize = 16 * 1024;

/// Bytes that may wait to be sent, besides one frame.
const WAITING_MAX: usize = 256 * 1024;

/// A connection to the gateway. Its halves are used at the same time.
pub(super) struct Connection {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
}

/// The frames of the gateway.
pub(super) struct Reader(FrameReader<ReadHalf<LocalStream>>);

/// The frames for it.
pub(super) struct Writer(Outgoing<WriteHalf<LocalStream>>);

impl Connection {
    /// Upgrades a connection and exchanges hellos.
    pub(super) async fn open(
        stream: UnixStream,
        args: &ConnectArgs,
        hello: &ClientHello,
    ) -> Result<(Self, GatewayHello), AttachError> {
        let mut stream = LocalStream::new(stream.into_std()?)?;
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
        let (read, write) = tokio::io::split(stream);
        let mut out = Outgoing::new(write);
        Frame::Hello(hello.to_json()).put(&mut out);
        out.flush().await?;
        let mut reader = FrameReader::new(read, args.body_max);
        match reader.next().await? {
            Some(Frame::Hello(json)) => {
                let (reader, writer) = (Reader(reader), Writer(out));
                Ok((Self { reader, writer }, GatewayHello::parse(&json)))
            }
            Some(Frame::End(json)) => Err(ended(&json)),
            Some(_) => Err(AttachError::Refused(
                "its first frame is no hello".to_owned(),
            )),
            None => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
    }

    /// Says that we are done. The gateway may be gone already.
    pub(super) async fn end(mut self) {
        let out = &mut self.writer.0;
        Frame::End(Bytes::from_static(br#"{"reason":"done"}"#)).put(out);
        drop(timeout(Duration::from_secs(1), out.flush()).await);
    }
}

impl Reader {
    /// The next frame; nothing when the gateway has closed. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        self.0.next().await
    }
}

impl Writer {
    /// Adds a frame to what waits; waits itself while that is too much. Not cancel safe.
    pub(super) async fn send(&mut self, frame: Frame) -> io::Result<()> {
        frame.put(&mut self.0);
        if self.0.len() > WAITING_MAX {
            self.0.flush().await?;
        }
        Ok(())
    }

    /// Sends what waits. Cancel safe.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.flush().await
    }

    /// Sends what waits whenever that is possible; ends only when the connection is broken. Cancel
    /// safe.
    pub(super) async fn work(&mut self) -> io::Error {
        match self.flush().await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    }
}

/// Why the gateway opened no session after all.
fn ended(json: &Bytes) -> AttachError {
    let is_unknown = member(json, "reason").is_some_and(|reason| reason == UNKNOWN_SERVER);
    match member(json, "message") {
        Some(text) if is_unknown => AttachError::Unknown(text),
        Some(text) => AttachError::Busy(text),
        // The session that was named ended at this moment.
        None => io::Error::from(io::ErrorKind::UnexpectedEof).into(),
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

pub(super) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the frames.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        head.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// What the gateway says of a refused upgrade.
async fn refusal(stream: &mut LocalStream, head: &str) -> Option<String> {
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
