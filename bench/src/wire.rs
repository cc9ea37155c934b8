//! The smallest HTTP/1.1 client that can check an answer: the load must cost less than what it
//! measures.

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One keep-alive connection to an endpoint.
pub(crate) struct Connection {
    stream: TcpStream,
    host: String,
    path: String,
    buffer: Vec<u8>,
}

/// One answer, borrowed from the connection's buffer.
pub(crate) struct Answer<'a> {
    pub(crate) status: u16,
    pub(crate) head: &'a str,
    pub(crate) body: &'a [u8],
}

impl Connection {
    /// Connects to an `http` URL.
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("only http")?;
        let (host, path) = rest.split_once('/').context("a path")?;
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            host: host.to_owned(),
            path: format!("/{path}"),
            buffer: Vec::new(),
        })
    }

    /// The bytes of a POST with this body.
    pub(crate) fn render(&self, session: Option<&str>, body: &str) -> Vec<u8> {
        let session = session.map_or(String::new(), |id| {
            format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{session}Content-Length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            body.len()
        )
        .into_bytes()
    }

    /// Sends a rendered request and reads its answer, which must have a length.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.buffer.clear();
        let head_len = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill().await?;
        };
        let head = std::str::from_utf8(self.buffer.get(..head_len).unwrap_or_default())?;
        let status = head.get(9..12).context("a status")?.parse()?;
        let length = length_of(head)?;
        let whole = head_len + length;
        self.buffer.reserve(whole.saturating_sub(self.buffer.len()));
        while self.buffer.len() < whole {
            self.fill().await?;
        }
        let head = std::str::from_utf8(self.buffer.get(..head_len).unwrap_or_default())?;
        let body = self.buffer.get(head_len..whole).unwrap_or_default();
        Ok(Answer { status, head, body })
    }

    async fn fill(&mut self) -> anyhow::Result<()> {
        self.buffer.reserve(16 * 1024);
        if self.stream.read_buf(&mut self.buffer).await? == 0 {
            bail!("the connection was closed");
        }
        Ok(())
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
}

fn length_of(head: &str) -> anyhow::Result<usize> {
    for line in head.split("\r\n").skip(1) {
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                return Ok(value.trim().parse()?);
            }
            if name.eq_ignore_ascii_case("transfer-encoding") {
                bail!("an answer without a length: {head}");
            }
        }
    }
    Ok(0)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
