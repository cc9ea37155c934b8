//! HTTP/1.1 on one connection to a server: heads, and where a body ends (RFC 9112).
//!
//! Owns: framing, and the difference between a request of which no byte left and one that may have
//! left (I4). It must not know what an answer means. A connection is read and written by the task
//! whose exchange is on it: an answer costs no other task a turn.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{StatusCode, Version};
use springline_proto::json::Pieces;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};

use super::chunk::{Chunked, Step};
use super::dial::Channel;
use super::field::Fields;
use crate::stock;

/// Fields of an answer's head.
const FIELDS_MAX: usize = 100;

/// Bytes of an answer's head.
const HEAD_MAX: usize = 256 * 1024;

/// A body below this is copied behind the head, so that both are one segment.
const JOINED_MAX: usize = 16 * 1024;

/// Segments of one write; the kernel takes more, but no message has as many.
const SLICES_MAX: usize = 16;

/// Room for one read: enough for most heads with their body, and at most, for large bodies.
const READ_ROOM: (usize, usize) = (stock::ROOM, 64 * 1024);

/// Pieces of a body below this are copied out, so that the buffer of the connection is used again.
const COPIED_MAX: usize = 8 * 1024;

/// A connection, ready for a request.
pub(super) struct Connection {
    channel: Channel,
    /// Received, and taken by nobody yet. Bounded by [`HEAD_MAX`] and [`READ_ROOM`]; no buffer while it
    /// is empty.
    buffer: BytesMut,
}

/// Why there is no answer.
pub(super) enum AskError {
    /// No byte of the request left.
    Unsent(io::Error),
    /// Some of it may have left.
    Broken(String),
}

/// The head of an answer.
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
}

/// Where the body of an answer ends.
#[derive(Debug)]
enum Framing {
    /// So many bytes are missing.
    Length(u64),
    Chunked(Chunked),
    /// With the connection.
    Close,
}

/// The body of an answer, and the connection on which it comes. Dropped, it closes.
pub(super) struct Body {
    connection: Connection,
    framing: Framing,
    /// Whether the connection may carry another request after it.
    keeps: bool,
}

impl Connection {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            buffer: BytesMut::new(),
        }
    }

    /// Whether it shows neither its end nor a stray byte. `just_read` says that the last read was a
    /// moment ago: that one is believed, unless the runtime heard of more since.
    pub(super) fn is_quiet(&self, just_read: bool) -> bool {
        self.buffer.is_empty() && self.channel.is_quiet(just_read)
    }

    /// Sends a request, whose head is complete, and reads the head of its answer. An answer that
    /// comes before the request is out is taken. Not cancel safe: dropped, the connection is lost.
    ///
    /// No `async fn`, which would hold its arguments twice: an exchange is made for each call.
    pub(super) fn ask(
        self,
        head: Vec<u8>,
        body: &Pieces,
    ) -> impl Future<Output = Result<(Head, Body), AskError>> {
        let mut out = Outflow::new(head, body);
        let mut connection = Some(self);
        poll_fn(move |cx| {
            let Some(asking) = &mut connection else {
                return Poll::Pending;
            };
            let (head, framing, keeps) = ready!(asking.poll_ask(cx, &mut out))?;
            let Some(connection) = connection.take() else {
                return Poll::Pending;
            };
            // A server that answers a request that it has not read closes in the midst of it.
            let keeps = keeps && out.is_done();
            let body = Body {
                connection,
                framing,
                keeps,
            };
            Poll::Ready(Ok((head, body)))
        })
    }

    fn poll_ask(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut Outflow<'_>,
    ) -> Poll<Result<(Head, Framing, bool), AskError>> {
        let failed = out.poll(cx, &mut self.channel).err();
        if let Some(error) = failed
            && out.sent == 0
            && self.channel.is_plain()
        {
            return Poll::Ready(Err(AskError::Unsent(error)));
        }
        loop {
            match parse(&mut self.buffer) {
                Ok(Some(found)) => return Poll::Ready(Ok(found)),
                Ok(None) => {}
                Err(what) => return Poll::Ready(Err(AskError::Broken(what))),
            }
            let read = self.poll_fill(cx, READ_ROOM.0);
            let cause = match (read, &out.failed) {
                (Poll::Pending, None) => return Poll::Pending,
                (Poll::Ready(Ok(1..)), _) => continue,
                // The write tells more than the end that followed it.
                (_, Some(cause)) => cause.clone(),
                (Poll::Ready(Ok(0)), None) => "the server closed the connection".to_owned(),
                (Poll::Ready(Err(error)), None) => error.to_string(),
            };
            return Poll::Ready(Err(AskError::Broken(cause)));
        }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<io::Result<usize>> {
        if self.buffer.capacity() == 0 && room <= stock::ROOM {
            self.buffer = stock::take();
        } else if self.buffer.capacity() - self.buffer.len() < room / 2 {
            self.buffer.reserve(room);
        }
        // Cancel safe, so each poll may be one of its own.
        let read = pin!(self.channel.read_buf(&mut self.buffer)).poll(cx);
        if self.buffer.is_empty() {
            stock::give(std::mem::take(&mut self.buffer));
        }
        read
    }

    async fn fill(&mut self, room: usize) -> io::Result<usize> {
        poll_fn(|cx| self.poll_fill(cx, room)).await
    }

    /// Takes up to `most` bytes of the buffer.
    fn take(&mut self, most: u64) -> Bytes {
        let len =
            usize::try_from(most).map_or(self.buffer.len(), |most| most.min(self.buffer.len()));
        if len >= COPIED_MAX {
            return self.buffer.split_to(len).freeze();
        }
        let copy = Bytes::copy_from_slice(self.buffer.get(..len).unwrap_or_default());
        self.buffer.advance(len);
        copy
    }
}

/// A request on its way out.
struct Outflow<'a> {
    /// With the body, if that is small.
    head: Vec<u8>,
    /// Otherwise.
    body: Option<&'a Pieces>,
    total: usize,
    sent: usize,
    flushed: bool,
    failed: Option<String>,
}

impl<'a> Outflow<'a> {
    fn new(mut head: Vec<u8>, body: &'a Pieces) -> Self {
        let is_joined = body.len() <= JOINED_MAX;
        if is_joined {
            for segment in body {
                head.extend_from_slice(segment);
            }
        }
        let body = (!is_joined).then_some(body);
        let total = head.len() + body.map_or(0, Pieces::len);
        Self {
            head,
            body,
            total,
            sent: 0,
            flushed: false,
            failed: None,
        }
    }

    fn is_done(&self) -> bool {
        self.flushed && self.failed.is_none()
    }

    /// Writes as much as can be; an error once, when it happens.
    fn poll(&mut self, cx: &mut Context<'_>, channel: &mut Channel) -> io::Result<()> {
        while self.sent < self.total && self.failed.is_none() {
            match self.poll_write(cx, channel) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => return Err(self.fail(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => return Err(self.fail(error)),
            }
        }
        if self.sent == self.total && !self.flushed && self.failed.is_none() {
            match Pin::new(channel).poll_flush(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => {
                    self.flushed = true;
                    // The answer may take its time, and another request can use the memory meanwhile.
                    self.head = Vec::new();
                }
                Poll::Ready(Err(error)) => return Err(self.fail(error)),
            }
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) -> io::Error {
        self.failed = Some(error.to_string());
        error
    }

    fn poll_write(&self, cx: &mut Context<'_>, channel: &mut Channel) -> Poll<io::Result<usize>> {
        let channel = Pin::new(channel);
        let Some(body) = self.body else {
            return channel.poll_write(cx, self.head.get(self.sent..).unwrap_or_default());
        };
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut skip = self.sent;
        let mut filled = 0;
        let segments = body.iter().map(|segment| &segment[..]);
        for segment in std::iter::once(&self.head[..]).chain(segments) {
            let rest = segment.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(segment.len());
            if rest.is_empty() {
                continue;
            }
            let Some(slice) = slices.get_mut(filled) else {
                break;
            };
            *slice = IoSlice::new(rest);
            filled += 1;
        }
        channel.poll_write_vectored(cx, slices.get(..filled).unwrap_or_default())
    }
}

impl Body {
    /// The next bytes, never empty; `None` at the proper end. Cancel safe.
    pub(super) async fn chunk(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let bytes = match &mut self.framing {
                Framing::Length(0) => return None,
                Framing::Length(left) => {
                    let bytes = self.connection.take(*left);
                    *left -= bytes.len() as u64;
                    bytes
                }
                Framing::Close => self.connection.take(u64::MAX),
                Framing::Chunked(state) => match state.step(&mut self.connection.buffer) {
                    Ok(Step::End) => return None,
                    Ok(Step::Data(left)) => {
                        let bytes = self.connection.take(left);
                        state.took(bytes.len() as u64);
                        bytes
                    }
                    Ok(Step::More) => Bytes::new(),
                    Err(what) => return Some(Err(io::Error::other(what))),
                },
            };
            if !bytes.is_empty() {
                return Some(Ok(bytes));
            }
            match self.connection.fill(self.room()).await {
                Ok(0) if matches!(self.framing, Framing::Close) => {
                    self.framing = Framing::Length(0);
                    return None;
                }
                Ok(0) => return Some(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn room(&self) -> usize {
        let wanted = match &self.framing {
            Framing::Length(left) => usize::try_from(*left).unwrap_or(usize::MAX),
            Framing::Chunked(state) => usize::try_from(state.left()).unwrap_or(usize::MAX),
            Framing::Close => 0,
        };
        wanted.clamp(READ_ROOM.0, READ_ROOM.1)
    }

    /// How many bytes are missing, if the head said so.
    pub(super) fn left(&self) -> Option<u64> {
        match &self.framing {
            Framing::Length(left) => Some(*left),
            Framing::Chunked(_) | Framing::Close => None,
        }
    }

    /// The whole body, if its length was said and all of it is here, and at most `max`.
    pub(super) fn at_hand(&mut self, max: usize) -> Option<Bytes> {
        let Framing::Length(left) = &mut self.framing else {
            return None;
        };
        let len = usize::try_from(*left).ok()?;
        if len > max || len > self.connection.buffer.len() {
            return None;
        }
        *left = 0;
        Some(self.connection.take(len as u64))
    }

    /// Reads what [`Self::left`] says, straight into one buffer.
    pub(super) async fn whole(&mut self, left: usize) -> io::Result<Bytes> {
        if self.connection.buffer.len() >= left {
            self.framing = Framing::Length(0);
            return Ok(self.connection.take(left as u64));
        }
        let mut whole = BytesMut::with_capacity(left);
        whole.extend_from_slice(&self.connection.buffer);
        self.connection.buffer.clear();
        let channel = &mut self.connection.channel;
        while whole.len() < left {
            let rest = left - whole.len();
            if channel.take(rest as u64).read_buf(&mut whole).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.framing = Framing::Length(0);
        Ok(whole.freeze())
    }

    /// Whether its end was read.
    pub(super) fn is_done(&self) -> bool {
        match &self.framing {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(state) => state.is_done(),
            Framing::Close => false,
        }
    }

    /// The connection, if the body was read to its end and another request may follow.
    pub(super) fn into_connection(self) -> Option<Connection> {
        let mut connection = self.connection;
        let is_done = matches!(self.framing, Framing::Length(0))
            || matches!(&self.framing, Framing::Chunked(state) if state.is_done());
        if !is_done || !self.keeps || !connection.buffer.is_empty() {
            return None;
        }
        stock::give(std::mem::take(&mut connection.buffer));
        Some(connection)
    }
}

/// Takes a head off the buffer, if it is there whole. Heads that only announce are skipped.
fn parse(buffer: &mut BytesMut) -> Result<Option<(Head, Framing, bool)>, String> {
    loop {
        if buffer.is_empty() {
            return Ok(None);
        }
        let Some((status, version, fields)) = parse_head(buffer)? else {
            return Ok(None);
        };
        // 101 would be another protocol, which was not asked for: it is a refusal.
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            continue;
        }
        let framing = framing(status, &fields)?;
        let keeps = keeps(version, &fields)
            && !matches!(framing, Framing::Close)
            && status != StatusCode::SWITCHING_PROTOCOLS;
        return Ok(Some((Head { status, fields }, framing, keeps)));
    }
}

type RawHead = (StatusCode, Version, Fields);

fn parse_head(buffer: &mut BytesMut) -> Result<Option<RawHead>, String> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut answer = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut answer,
        buffer,
        &mut fields,
    );
    let len = match parsed {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if buffer.len() > HEAD_MAX => {
            return Err(format!("the head of the answer is over {HEAD_MAX} bytes"));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("what came is no HTTP/1 answer ({error})")),
    };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or("the answer has no status")?;
    let version = match answer.version {
        Some(0) => Version::HTTP_10,
        _ => Version::HTTP_11,
    };
    let fields = Fields::of(buffer.get(..len).unwrap_or_default(), answer.headers);
    buffer.advance(len);
    Ok(Some((status, version, fields)))
}

/// RFC 9112, 6.3.
fn framing(status: StatusCode, fields: &Fields) -> Result<Framing, String> {
    if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(Framing::Length(0));
    }
    if let Some(last) = fields.all("transfer-encoding").next_back() {
        let text = last.rsplit(|byte| *byte == b',').next();
        let is_chunked =
            text.is_some_and(|text| text.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        return Ok(if is_chunked {
            Framing::Chunked(Chunked::default())
        } else {
            Framing::Close
        });
    }
    let mut length = None;
    for value in fields.all("content-length") {
        for part in value.split(|byte| *byte == b',') {
            let text = std::str::from_utf8(part.trim_ascii()).unwrap_or_default();
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let told = text.parse::<u64>().ok().filter(|_| is_number);
            if told.is_none() || length.is_some_and(|known| Some(known) != told) {
                return Err("the answer's Content-Length cannot be read".to_owned());
            }
            length = told;
        }
    }
    Ok(length.map_or(Framing::Close, Framing::Length))
}

fn keeps(version: Version, fields: &Fields) -> bool {
    let says = |word: &[u8]| {
        fields.all("connection").any(|value| {
            let mut words = value.split(|byte| *byte == b',');
            words.any(|said| said.trim_ascii().eq_ignore_ascii_case(word))
        })
    };
    if version == Version::HTTP_10 {
        says(b"keep-alive")
    } else {
        !says(b"close")
    }
}
