//! Opening a connection: names, both address families, proxies, TLS.
//!
//! Owns: everything up to the first byte of a request, so each failure here means that nothing
//! left. It must not know requests, sessions or the pool.

use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::proxy::{Proxy, Way};
use super::tls::{Tls, explain};

/// How long the second address family waits for the first (RFC 8305 recommends 250 ms).
const FAMILY_DELAY: Duration = Duration::from_millis(250);

/// Bytes of a proxy's answer to CONNECT; real ones have a few hundred.
const CONNECT_HEAD_MAX: usize = 16 * 1024;

/// Bytes that nobody takes for this long mean that the peer is gone; the kernel's own patience is a
/// quarter of an hour. Not shorter: a busy server that leaves a large request unread counts, too.
const UNACKNOWLEDGED_MAX_MS: u32 = 300_000;

/// A dead peer is noticed after idle + 3 x interval on a connection that carries nothing, such as
/// a GET stream over a path that forgot it.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// Scheme, host and port of a server.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Origin {
    pub(super) secure: bool,
    /// As in a URL: an IPv6 address stands in brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Origin {
    /// Of an `http` or `https` URL; none for another one.
    pub(super) fn of(url: &url::Url) -> Option<Self> {
        let secure = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = url.host_str()?.to_owned();
        Some(Self {
            secure,
            host,
            port: url.port_or_known_default()?,
        })
    }

    /// The value of `Host`: the port stands in it only if it is not the scheme's own.
    pub(super) fn authority(&self) -> String {
        if self.port == if self.secure { 443 } else { 80 } {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What a connection is: also what makes two of them interchangeable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Place {
    /// The server entry; connections never cross entries.
    pub(super) server: Arc<str>,
    pub(super) origin: Origin,
    /// `host:port` of the proxy.
    pub(super) proxy: Option<String>,
    pub(super) ca: Option<PathBuf>,
    /// Of all of the above, made once: each call looks for a connection to its place, and leaves one.
    hash: u64,
}

impl Place {
    pub(super) fn new(
        server: Arc<str>,
        origin: Origin,
        proxy: Option<String>,
        ca: Option<PathBuf>,
    ) -> Self {
        // Without random keys: places are the operator's words, and equal ones must meet.
        let hash = BuildHasherDefault::<DefaultHasher>::new();
        Self {
            hash: hash.hash_one((&server, &origin, &proxy, &ca)),
            server,
            origin,
            proxy,
            ca,
        }
    }
}

impl Hash for Place {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Why no connection could be made. No byte of a request left.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("the name {host} could not be resolved: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("the name {host} has no address")]
    NoAddress { host: String },
    #[error("{address}: {source}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("no connection to {place} within {} s", .after.as_secs())]
    TimedOut { place: String, after: Duration },
    #[error("TLS with {host} failed: {what}")]
    Tls { host: String, what: String },
    #[error("the proxy {proxy} {what}")]
    Proxy { proxy: String, what: String },
    #[error("the variable {0} names no proxy that can be used; http and https proxies can")]
    ProxyUnusable(&'static str),
}

/// A byte stream to a server or a proxy.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The bytes to and from a server.
pub(super) enum Channel {
    /// TCP, and nothing in between.
    Plain(TcpStream),
    /// Through TLS, a proxy or both, over this socket.
    Layered {
        stream: Box<dyn Stream>,
        socket: Socket,
    },
}

impl Channel {
    /// Whether what is written goes straight to the kernel, so that a refused write left nothing.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Whether an idle connection has nothing to read: no end, no error, no stray byte. Asks the
    /// kernel itself, so that an end that the runtime has not polled yet is seen; with `just_read`
    /// only if the runtime knows of something, since a read found nothing more a moment ago.
    pub(super) fn is_quiet(&self, just_read: bool) -> bool {
        use rustix::net::{RecvFlags, recv};
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Layered { socket, .. } => &*socket.0,
        };
        let look = || {
            let mut byte = [0u8; 1];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            recv(stream, &mut byte, flags).map_err(io::Error::from)
        };
        let seen = if just_read {
            stream.try_io(Interest::READABLE, look)
        } else {
            look()
        };
        matches!(seen, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Layered { stream, .. } => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Layered { stream, .. } => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Layered { stream, .. } => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Layered { stream, .. } => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Layered { stream, .. } => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Opens a connection to `place` by `way`, all within `patience`. Cancel safe: dropping the future
/// closes what was opened.
pub(super) async fn dial(
    place: &Place,
    way: &Way,
    tls: &Arc<Tls>,
    patience: Duration,
) -> Result<Channel, DialError> {
    match tokio::time::timeout(patience, dial_unbounded(place, way, tls)).await {
        Ok(done) => done,
        Err(_) => Err(DialError::TimedOut {
            place: place.origin.to_string(),
            after: patience,
        }),
    }
}

async fn dial_unbounded(place: &Place, way: &Way, tls: &Arc<Tls>) -> Result<Channel, DialError> {
    let origin = &place.origin;
    let (socket, stream) = match way {
        Way::Unusable(name) => return Err(DialError::ProxyUnusable(name)),
        Way::Direct => {
            let stream = connect(&origin.host, origin.port).await?;
            if !origin.secure {
                return Ok(Channel::Plain(stream));
            }
            let socket = Socket(Arc::new(stream));
            (socket.clone(), Box::new(socket) as Box<dyn Stream>)
        }
        Way::Via(proxy) => {
            let stream =
                connect(&proxy.host, proxy.port)
                    .await
                    .map_err(|error| DialError::Proxy {
                        proxy: proxy.to_string(),
                        what: format!("fails: {error}"),
                    })?;
            let socket = Socket(Arc::new(stream));
            let mut stream: Box<dyn Stream> = Box::new(socket.clone());
            if proxy.secure {
                stream = secure(stream, &proxy.host, place, tls).await?;
            }
            if origin.secure {
                tunnel(&mut stream, proxy, origin).await?;
            }
            (socket, stream)
        }
    };
    let stream = if origin.secure {
        secure(stream, &origin.host, place, tls).await?
    } else {
        stream
    };
    Ok(Channel::Layered { stream, socket })
}

/// Connects to the first address that answers, of either family (RFC 8305 in small).
async fn connect(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let addresses = resolve(host, port).await?;
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == first_is_v6);
    if second.is_empty() {
        return connect_in_turn(host, &first).await;
    }
    let mut head = std::pin::pin!(connect_in_turn(host, &first));
    let mut other = std::pin::pin!(connect_in_turn(host, &second));
    // If both fail, the first family's error is told: it is the one that people expect.
    tokio::select! {
        done = &mut head => match done {
            Ok(socket) => return Ok(socket),
            Err(error) => return other.await.map_err(|_| error),
        },
        () = tokio::time::sleep(FAMILY_DELAY) => {}
    }
    tokio::select! {
        done = &mut head => match done {
            Ok(socket) => Ok(socket),
            Err(error) => other.await.map_err(|_| error),
        },
        done = &mut other => match done {
            Ok(socket) => Ok(socket),
            Err(_) => head.await,
        },
    }
}

async fn connect_in_turn(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, DialError> {
    let mut failed = None;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                prepare(&stream);
                return Ok(stream);
            }
            Err(source) => {
                failed = Some(DialError::Connect {
                    address: *address,
                    source,
                });
            }
        }
    }
    Err(failed.unwrap_or_else(|| DialError::NoAddress {
        host: host.to_owned(),
    }))
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.trim_end_matches('.').eq_ignore_ascii_case("localhost") {
        // Whatever the resolver says: a server may listen on either alone.
        return Ok(vec![
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
        ]);
    }
    if let Ok(address) = bare.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = tokio::net::lookup_host((bare, port))
        .await
        .map_err(|source| DialError::Resolve {
            host: bare.to_owned(),
            source,
        })?;
    Ok(found.collect())
}

async fn secure(
    stream: Box<dyn Stream>,
    host: &str,
    place: &Place,
    tls: &Arc<Tls>,
) -> Result<Box<dyn Stream>, DialError> {
    let failed = |what: String| DialError::Tls {
        host: host.to_owned(),
        what,
    };
    let (tls, ca) = (Arc::clone(tls), place.ca.clone());
    // Reads certificate files, so it goes where blocking is allowed.
    let config = tokio::task::spawn_blocking(move || tls.config(ca.as_deref()))
        .await
        .map_err(|error| failed(error.to_string()))?
        .map_err(|error| failed(super::text_of(&error)))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(bare.to_owned())
        .map_err(|_| failed("the host name cannot stand in a certificate".to_owned()))?;
    let stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| failed(explain(&error)))?;
    Ok(Box::new(stream))
}

/// Asks a proxy for a tunnel (RFC 9110, 9.3.6).
async fn tunnel(
    stream: &mut Box<dyn Stream>,
    proxy: &Proxy,
    origin: &Origin,
) -> Result<(), DialError> {
    let failed = |what: String| DialError::Proxy {
        proxy: proxy.to_string(),
        what,
    };
    let mut head = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n").into_bytes();
    if let Some(value) = &proxy.authorization {
        head.extend_from_slice(b"Proxy-Authorization: ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let broken = |error: io::Error| failed(format!("broke: {error}"));
    stream.write_all(&head).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut answer = Vec::new();
    // The server behind speaks only after we did, so nothing can follow the head.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() >= CONNECT_HEAD_MAX {
            return Err(failed("answers with too large a head".to_owned()));
        }
        if stream.read_buf(&mut answer).await.map_err(broken)? == 0 {
            return Err(failed("closed the connection".to_owned()));
        }
        // A refusal has a body, and the head's end is then not the end of what was read.
        if let Some(status) = refusal(&answer) {
            let hint = if status == 407 {
                "; it wants credentials in its URL"
            } else {
                ""
            };
            return Err(failed(format!(
                "refuses a tunnel to {origin} with {status}{hint}"
            )));
        }
    }
    Ok(())
}

/// The status in the first line of a proxy's answer, if that line is whole and no 2xx. A line
/// without a status counts as 0.
fn refusal(answer: &[u8]) -> Option<u16> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8_lossy(answer.get(..end)?);
    let status = line
        .split_ascii_whitespace()
        .nth(1)
        .filter(|_| line.starts_with("HTTP/1."))
        .and_then(|status| status.parse().ok())
        .unwrap_or(0);
    (!(200..300).contains(&status)).then_some(status)
}

/// A TCP connection that can be looked at while something else reads and writes it.
#[derive(Clone, Debug)]
pub(super) struct Socket(Arc<TcpStream>);

/// Sets what every connection has.
fn prepare(stream: &TcpStream) {
    let (idle, interval, count) = KEEPALIVE;
    let set = stream
        .set_nodelay(true)
        .and_then(|()| Ok(rustix::net::sockopt::set_socket_keepalive(stream, true)?))
        .and_then(|()| Ok(rustix::net::sockopt::set_tcp_keepidle(stream, idle)?))
        .and_then(|()| Ok(rustix::net::sockopt::set_tcp_keepintvl(stream, interval)?))
        .and_then(|()| Ok(rustix::net::sockopt::set_tcp_keepcnt(stream, count)?))
        .and_then(|()| {
            let most = UNACKNOWLEDGED_MAX_MS;
            Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, most)?)
        });
    if let Err(error) = set {
        // The connection works without; it is only slower, or slower to be noticed dead.
        tracing::debug!(%error, "an option of a socket could not be set");
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(buf) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Socket {
    fn poll_try_write(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_try_write(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try_write(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&*self.0, rustix::net::Shutdown::Write) {
            // The peer may have been faster.
            Ok(()) | Err(rustix::io::Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
