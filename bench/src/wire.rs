//! The smallest HTTP/1.1 client that can check an answer: the load must cost less than what it
//! measures.
//!
//! Owns: one keep-alive connection, to a port or to a unix socket. It must not know MCP.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::tally::Fault;

/// A byte stream of either kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One keep-alive connection to an endpoint.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    host: String,
    path: String,
    buffer: Vec<u8>,
    /// A chunked body, put together.
    joined: Vec<u8>,
}

/// One answer, borrowed from the connection's buffer.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) head: &'a str,
    pub(crate) body: &'a [u8],
}

impl Connection {
    /// Connects to an `http` URL.
    pub(crate) async fn open(url: &str) -> Result<Self, Fault> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Box::new(stream), host, path))
    }

    /// Connects to a unix socket.
    pub(crate) async fn open_socket(socket: &Path, path: &str) -> Result<Self, Fault> {
        let stream = UnixStream::connect(socket).await?;
        Ok(Self::over(Box::new(stream), "localhost", path))
    }

    fn over(stream: Box<dyn Stream>, host: &str, path: &str) -> Self {
        Self {
            stream,
            host: host.to_owned(),
            path: format!("/{path}"),
            buffer: Vec::new(),
            joined: Vec::new(),
        }
    }

    /// The bytes of a request with this body.
    pub(crate) fn render(&self, method: &str, session: Option<&str>, body: &str) -> Vec<u8> {
        let session = session.map_or(String::new(), |id| {
            format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        format!(
            "{method} {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            body.len()
        )
        .into_bytes()
    }

    /// Sends a rendered request and reads its answer.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>, Fault> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head_len = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill().await?;
        };
        let head = head_of(&self.buffer, head_len)?;
        let status = head.get(9..12).and_then(|status| status.parse().ok());
        let status = status.ok_or(Fault::Garbled("no status"))?;
        let is_joined = match extent(head)? {
            Extent::Length(length) => {
                let whole = head_len + length;
                self.buffer.reserve(whole.saturating_sub(self.buffer.len()));
                while self.buffer.len() < whole {
                    self.fill().await?;
                }
                false
            }
            Extent::Chunked => {
                self.join(head_len).await?;
                true
            }
        };
        let head = head_of(&self.buffer, head_len)?;
        let plain = self.buffer.get(head_len..).unwrap_or_default();
        let body = if is_joined { &self.joined } else { plain };
        Ok(Answer { status, head, body })
    }

    /// Reads chunks up to the last one.
    async fn join(&mut self, mut at: usize) -> Result<(), Fault> {
        self.joined.clear();
        loop {
            let line_end = loop {
                let rest = self.buffer.get(at..).unwrap_or_default();
                match find(rest, b"\r\n") {
                    Some(end) => break at + end,
                    None => self.fill().await?,
                }
            };
            let size = self.buffer.get(at..line_end).unwrap_or_default();
            let size = std::str::from_utf8(size).ok();
            let size = size.and_then(|size| usize::from_str_radix(size.trim(), 16).ok());
            let size = size.ok_or(Fault::Garbled("no chunk size"))?;
            let (start, end) = (line_end + 2, line_end + 2 + size);
            while self.buffer.len() < end + 2 {
                self.fill().await?;
            }
            let chunk = self.buffer.get(start..end).unwrap_or_default();
            self.joined.extend_from_slice(chunk);
            at = end + 2;
            if size == 0 {
                return Ok(());
            }
        }
    }

    async fn fill(&mut self) -> Result<(), Fault> {
        self.buffer.reserve(16 * 1024);
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(Fault::Closed);
        }
        Ok(())
    }

    /// Changes the protocol, and gives the stream with what came of it already.
    pub(crate) async fn upgrade(
        mut self,
        protocol: &str,
    ) -> Result<(Box<dyn Stream>, Vec<u8>), Fault> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n",
            self.path, self.host
        );
        let answer = self.exchange(request.as_bytes()).await?;
        if answer.status != 101 {
            return Err(Fault::Status(answer.status));
        }
        let head_len = answer.head.len();
        let mut rest = self.buffer;
        rest.drain(..head_len);
        Ok((self.stream, rest))
    }
}

impl Answer<'_> {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.split("\r\n").skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The JSON of the answer: the body, or the data of the last event of a stream.
    pub(crate) fn message(&self) -> &[u8] {
        let kind = self.header("content-type").unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return self.body;
        }
        let lines = self.body.split(|byte| *byte == b'\n');
        let data = lines.filter_map(|line| line.strip_prefix(b"data:"));
        data.map(<[u8]>::trim_ascii)
            .rfind(|data| !data.is_empty())
            .unwrap_or_default()
    }
}

/// How far a body reaches.
enum Extent {
    Length(usize),
    Chunked,
}

fn extent(head: &str) -> Result<Extent, Fault> {
    for line in head.split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                let length = value.trim().parse();
                return length
                    .map(Extent::Length)
                    .map_err(|_| Fault::Garbled("no length"));
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                return Ok(Extent::Chunked);
            }
        }
    }
    Ok(Extent::Length(0))
}

fn head_of(buffer: &[u8], len: usize) -> Result<&str, Fault> {
    let head = buffer.get(..len).unwrap_or_default();
    std::str::from_utf8(head).map_err(|_| Fault::Garbled("a head that is no text"))
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
