//! The client of the gateway's admin API on the unix socket.
//!
//! Owns: one connection, and what its failures mean for the exit code. It must not know what is
//! asked.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use springline_engine::spawn;
use springline_proto::json::{self, Span};
use tokio::net::UnixStream;

use crate::exit::Exit;

/// Why a command ended early: what is said, and with which exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
        }
    }
}

impl From<io::Error> for Failure {
    /// An error of standard output. Whoever closed it has read enough: that is no failure.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Exit::Done, "");
        }
        Self::new(Exit::Failed, format!("standard output: {error}"))
    }
}

/// A connection to the gateway.
pub(crate) struct Api {
    sender: SendRequest<Full<Bytes>>,
    /// The gateway's process, if the system tells it.
    pub(crate) pid: Option<i32>,
    socket: PathBuf,
}

impl Api {
    /// Connects to the gateway that serves this socket.
    pub(crate) async fn connect(socket: &Path) -> Result<Self, Failure> {
        let stream = match UnixStream::connect(socket).await {
            Ok(stream) => stream,
            Err(error) => return Err(absent(socket, &error)),
        };
        let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| broken(socket, &error))?;
        spawn::named("api connection", async move {
            // Its end is told to the request that waits.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the connection to the gateway ended");
            }
        });
        Ok(Self {
            sender,
            pid,
            socket: socket.to_owned(),
        })
    }

    /// The whole answer to a GET.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Bytes, Failure> {
        let body = self.send(Method::GET, path, Bytes::new()).await?;
        self.whole(body).await
    }

    /// The whole answer to a POST of a JSON object.
    pub(crate) async fn post(&mut self, path: &str, body: Vec<u8>) -> Result<Bytes, Failure> {
        let body = self.send(Method::POST, path, body.into()).await?;
        self.whole(body).await
    }

    /// The answer to a GET as it comes.
    pub(crate) async fn stream(&mut self, path: &str) -> Result<Incoming, Failure> {
        self.send(Method::GET, path, Bytes::new()).await
    }

    async fn send(&mut self, method: Method, path: &str, body: Bytes) -> Result<Incoming, Failure> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let sent = self.sender.send_request(request).await;
        let answer = sent.map_err(|error| broken(&self.socket, &error))?;
        let status = answer.status();
        let body = answer.into_body();
        if status.is_success() {
            return Ok(body);
        }
        let text = self.whole(body).await?;
        Err(refused(status, &text))
    }

    async fn whole(&self, body: Incoming) -> Result<Bytes, Failure> {
        let whole = body.collect().await;
        whole
            .map(http_body_util::Collected::to_bytes)
            .map_err(|error| broken(&self.socket, &error))
    }
}

fn absent(socket: &Path, error: &io::Error) -> Failure {
    let socket = socket.display();
    let text = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no gateway runs at {socket}; start one with: springline serve --config FILE")
        }
        _ => format!("no gateway can be reached at {socket}: {error}"),
    };
    Failure::new(Exit::Unreachable, text)
}

fn broken(socket: &Path, error: &hyper::Error) -> Failure {
    let text = format!(
        "the gateway at {} went away before it answered: {error}",
        socket.display()
    );
    Failure::new(Exit::Unreachable, text)
}

/// What the gateway says against the request.
fn refused(status: StatusCode, body: &Bytes) -> Failure {
    let member = |name| {
        let span = json::path(body, Span::whole(body), &["error", name])?;
        json::string(span.of(body)).map(std::borrow::Cow::into_owned)
    };
    let exit = match member("code").as_deref() {
        Some("unknown_server" | "unknown_tool") => Exit::Unknown,
        Some("bad_request") => Exit::Usage,
        Some("config_refused") => Exit::Config,
        _ => Exit::Failed,
    };
    let text = member("message").unwrap_or_else(|| format!("the gateway answered {status}"));
    Failure::new(exit, text)
}
