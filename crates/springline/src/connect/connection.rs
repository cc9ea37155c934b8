//! One session on the gateway: the client's end of `springline/1`.
//!
//! Owns: the upgrade, the numbers and the acknowledgements. It must not know what messages say.

use std::time::Duration;

use bytes::Bytes;
use springline_engine::clock;
use springline_engine::downstream::frame::{ACK_EVERY, Frame, FrameReader, PROTOCOL};
use springline_proto::json::{self, Pieces};
use springline_proto::message::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use super::ConnectArgs;
use super::refusal::AttachError;

/// How long a message that was received may stay without an acknowledgement.
const ACK_PAUSE: Duration = Duration::from_secs(15);

/// Bytes that the head of an answer to the upgrade may have.
const HEAD_MAX: usize = 16 * 1024;

/// A session on the gateway.
pub(super) struct Connection {
    reader: FrameReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    sent: u64,
    received: u64,
    acked: u64,
    ack_due: Instant,
    /// The gateway ends as soon as nothing is pending.
    pub(super) is_stopping: bool,
}

impl Connection {
    /// Upgrades a connection and exchanges hellos.
    pub(super) async fn open(
        mut stream: UnixStream,
        args: &ConnectArgs,
    ) -> Result<Self, AttachError> {
        let query = args
            .server
            .as_ref()
            .map(|name| format!("?server={name}"))
            .unwrap_or_default();
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
                (_, Some(text)) => AttachError::Refused(text),
                (_, None) => AttachError::Refused(format!("status {status}")),
            });
        }
        let (read, mut write) = stream.into_split();
        let hello = format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
        Frame::Hello(hello.into()).write(&mut write).await?;
        let mut reader = FrameReader::new(read, args.body_max);
        if !matches!(reader.next().await?, Some(Frame::Hello(_))) {
            return Err(AttachError::Refused(
                "its first frame is no hello".to_owned(),
            ));
        }
        let ack_due = clock::now() + ACK_PAUSE;
        Ok(Self {
            reader,
            write,
            sent: 0,
            received: 0,
            acked: 0,
            ack_due,
            is_stopping: false,
        })
    }

    /// The next frame, counted. Cancel safe.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Frame>> {
        loop {
            let is_owing = self.received > self.acked;
            let frame = tokio::select! {
                frame = self.reader.next() => frame?,
                () = sleep_until(self.ack_due), if is_owing => {
                    // Short, and the gateway always reads: this does not wait.
                    self.acknowledge().await?;
                    continue;
                }
            };
            match &frame {
                Some(Frame::Message { number, .. }) if *number == self.received + 1 => {
                    if !is_owing {
                        self.ack_due = clock::now() + ACK_PAUSE;
                    }
                    self.received = *number;
                }
                Some(Frame::Message { .. }) => {
                    let text = "a frame is out of order";
                    return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
                }
                Some(Frame::Note(note)) => self.is_stopping |= is_stopping(note),
                _ => {}
            }
            return Ok(frame);
        }
    }

    /// Sends a message. Not cancel safe.
    pub(super) async fn send(&mut self, body: Pieces) -> std::io::Result<()> {
        self.sent += 1;
        self.acked = self.received;
        let frame = Frame::Message {
            number: self.sent,
            received: self.received,
            body,
        };
        frame.write(&mut self.write).await
    }

    async fn acknowledge(&mut self) -> std::io::Result<()> {
        self.acked = self.received;
        Frame::Ack(self.received).write(&mut self.write).await
    }

    /// Acknowledges when much has been received.
    pub(super) async fn acknowledge_if_due(&mut self) {
        if self.received >= self.acked + ACK_EVERY {
            // A broken connection shows in the next read.
            drop(self.acknowledge().await);
        }
    }

    /// Says that we are done. The gateway may be gone already.
    pub(super) async fn end(mut self) {
        let end = Frame::End(Bytes::from_static(br#"{"reason":"done"}"#));
        drop(timeout(Duration::from_secs(1), end.write(&mut self.write)).await);
    }
}

fn is_stopping(note: &Bytes) -> bool {
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
    let error = message?;
    let text = json::member(&error, json::Span::whole(&error), "message")?;
    json::string(text.of(&error)).map(std::borrow::Cow::into_owned)
}
