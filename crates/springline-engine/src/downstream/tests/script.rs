//! A scripted gateway, a server in front of it, and a client that sends raw bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use springline_proto::call::Connection;
use springline_proto::json::Pieces;
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Comeback, Downstream, Endpoint, Fate, Part, Welcome};
use springline_proto::version::Version;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use crate::downstream::guard::Arrival;
use crate::downstream::port::{Gate, OpenError, Parts, Principal, Session};
use crate::downstream::{HttpServer, HttpSettings};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A gateway that answers by the name of the method.
#[derive(Clone, Default)]
pub(super) struct Script(Arc<Inner>);

type Entry = (Principal, Endpoint, Arc<ScriptSession>);

#[derive(Default)]
struct Inner {
    sessions: Mutex<HashMap<String, Entry>>,
    opened: AtomicU64,
}

impl Script {
    pub(super) fn session(&self, id: &str) -> Arc<ScriptSession> {
        Arc::clone(&self.0.sessions.lock()[id].2)
    }

    pub(super) fn opened(&self) -> u64 {
        self.0.opened.load(Ordering::SeqCst)
    }

    /// The session that was opened last.
    pub(super) fn last(&self) -> Arc<ScriptSession> {
        self.session(&format!("s-{}", self.opened()))
    }

    pub(super) fn principal(&self, id: &str) -> Principal {
        self.0.sessions.lock()[id].0.clone()
    }
}

impl Gate for Script {
    type Session = Arc<ScriptSession>;

    fn open(
        &self,
        principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<Arc<ScriptSession>, OpenError> {
        match &endpoint {
            Endpoint::One(name) if &**name == "full" => return Err(OpenError::TooManySessions),
            Endpoint::One(name) if &**name == "stopping" => return Err(OpenError::Stopping),
            Endpoint::One(name) if &**name != "time" => return Err(OpenError::UnknownServer),
            _ => {}
        }
        let number = self.0.opened.fetch_add(1, Ordering::SeqCst) + 1;
        let (to_stream, stream) = mpsc::channel(16);
        let session = Arc::new(ScriptSession {
            id: format!("s-{number}"),
            kind,
            version: Mutex::new(None),
            taken: Mutex::new(0),
            heard: Mutex::new(Vec::new()),
            to_stream,
            stream: Mutex::new(Some(stream)),
            gone: watch::Sender::new(0),
            is_closed: watch::Sender::new(false),
        });
        let entry = (principal.clone(), endpoint, Arc::clone(&session));
        self.0.sessions.lock().insert(session.id.clone(), entry);
        Ok(session)
    }

    fn admits(&self, endpoint: &Endpoint) -> Result<(), OpenError> {
        match endpoint {
            Endpoint::One(name) if &**name == "nobody" => Err(OpenError::UnknownServer),
            _ => Ok(()),
        }
    }

    fn take_up(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<ScriptSession>> {
        self.find(id, principal, endpoint)
    }

    fn find(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<ScriptSession>> {
        let sessions = self.0.sessions.lock();
        let (owner, place, session) = sessions.get(id)?;
        (owner == principal && place == endpoint && !*session.is_closed.borrow())
            .then(|| Arc::clone(session))
    }
}

pub(super) struct ScriptSession {
    id: String,
    pub(super) kind: Downstream,
    version: Mutex<Option<Version>>,
    taken: Mutex<u64>,
    pub(super) heard: Mutex<Vec<String>>,
    /// Feeds the GET stream or the pipe.
    pub(super) to_stream: mpsc::Sender<Part>,
    stream: Mutex<Option<mpsc::Receiver<Part>>>,
    /// How many answers were dropped.
    pub(super) gone: watch::Sender<u32>,
    pub(super) is_closed: watch::Sender<bool>,
}

pub(super) fn event(id: Option<&str>, data: &str) -> Part {
    Part::Event {
        id: id.map(Arc::from),
        retry: None,
        data: Bytes::from(data.to_owned()).into(),
    }
}

fn result(message: &Message, result: &str) -> Pieces {
    let id = message.id().unwrap_or_default();
    let mut pieces = Pieces::new();
    pieces.push(Bytes::from_static(br#"{"jsonrpc":"2.0","id":"#));
    pieces.push(id);
    pieces.push(Bytes::from(format!(r#","result":{result}}}"#)));
    pieces
}

impl ScriptSession {
    fn script(&self, message: &Message, accept: Accept) -> (Vec<Part>, bool) {
        let method = message.method().unwrap_or_default().into_owned();
        self.heard.lock().push(format!("{method} {accept:?}"));
        let error =
            Bytes::from_static(br#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"no"}}"#);
        match method.as_str() {
            "initialize" => {
                let asked = message.param("protocolVersion").unwrap_or_default();
                let asked = String::from_utf8_lossy(&asked).replace('"', "");
                if asked == "fail" {
                    let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-31004,"message":"no"}}"#;
                    return (
                        vec![Part::Json(Bytes::from_static(body.as_bytes()).into())],
                        false,
                    );
                }
                *self.version.lock() = Version::parse(&asked);
                (
                    vec![Part::Json(result(message, "{\"capabilities\":{}}"))],
                    false,
                )
            }
            "echo" => {
                let params = message.params().unwrap_or_default();
                let params = String::from_utf8(params.to_vec()).unwrap();
                (vec![Part::Json(result(message, &params))], false)
            }
            "stream" => {
                let priming = Part::Event {
                    id: Some(Arc::from("c.0")),
                    retry: Some(Duration::from_secs(1)),
                    data: Pieces::new(),
                };
                let last = Part::Event {
                    id: Some(Arc::from("c.1")),
                    retry: None,
                    data: result(message, "{\n  \"a\": 1\r\n}"),
                };
                (vec![Part::Begin, priming, last, Part::End], false)
            }
            "wait" => (vec![Part::Begin], true),
            "silent" => (vec![], true),
            "nothing" => (vec![], false),
            "flood" => {
                let text = format!("{{\"t\":\"{}\"}}", "x".repeat(1 << 20));
                let mut parts = vec![Part::Begin];
                parts.extend((0..64).map(|_| event(None, &text)));
                (parts, true)
            }
            "refuse" => (
                vec![Part::Refuse {
                    status: 400,
                    body: error,
                }],
                false,
            ),
            _ => (vec![Part::Accepted], false),
        }
    }
}

impl Session for Arc<ScriptSession> {
    type Parts = ScriptParts;

    fn id(&self) -> &str {
        &self.id
    }

    fn version(&self) -> Option<Version> {
        *self.version.lock()
    }

    fn post(&self, message: Message, accept: Accept) -> ScriptParts {
        let (parts, holds) = self.script(&message, accept);
        ScriptParts {
            parts: parts.into(),
            holds,
            more: None,
            gone: self.gone.clone(),
            is_socket: self.kind == Downstream::Socket,
            number: 0,
        }
    }

    fn listen(&self, cursor: Option<Box<str>>) -> ScriptParts {
        self.heard.lock().push(format!("listen {cursor:?}"));
        let first = match cursor.as_deref() {
            Some("forged") => {
                let body = Bytes::from_static(
                    br#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"cursor"}}"#,
                );
                Part::Refuse { status: 400, body }
            }
            _ => Part::Begin,
        };
        let more = self.stream.lock().take();
        ScriptParts {
            parts: [first].into(),
            holds: true,
            more,
            gone: self.gone.clone(),
            is_socket: self.kind == Downstream::Socket,
            number: 0,
        }
    }

    fn pipe(&self) -> ScriptParts {
        let more = self.stream.lock().take();
        ScriptParts {
            parts: [].into(),
            holds: false,
            more,
            gone: self.gone.clone(),
            is_socket: self.kind == Downstream::Socket,
            number: 0,
        }
    }

    fn line(&self, message: Result<Message, ParseError>) {
        let part = match &message {
            Ok(message) => {
                self.heard
                    .lock()
                    .push(message.method().unwrap_or_default().into_owned());
                match message.method().as_deref() {
                    Some("quit") => Part::End,
                    Some("quiet") => return,
                    _ => Part::Event {
                        id: None,
                        retry: None,
                        data: result(message, "{\n}"),
                    },
                }
            }
            Err(error) => event(None, &format!("{{\"code\":{}}}", error.code())),
        };
        self.to_stream.try_send(part).unwrap();
    }

    fn attach(&self, comeback: Comeback) -> (Connection, ScriptParts) {
        self.heard.lock().push(format!("attach {comeback:?}"));
        let mut parts = self.pipe();
        let taken = *self.taken.lock();
        let welcome = Welcome {
            taken,
            fates: comeback
                .pending
                .iter()
                .map(|frame| (*frame, Fate::NotSent))
                .collect(),
        };
        parts.parts.push_front(Part::Welcome(welcome));
        parts.holds = true;
        (Connection(1), parts)
    }

    fn frame(&self, _: Connection, number: u64, _: u64, line: Result<Message, ParseError>) {
        let mut taken = self.taken.lock();
        if number != *taken + 1 {
            self.to_stream.try_send(Part::End).unwrap();
            return;
        }
        *taken = number;
        self.line(line);
    }

    fn acknowledged(&self, _: Connection, received: u64) {
        self.heard.lock().push(format!("acknowledged {received}"));
    }

    fn taken(&self) -> u64 {
        *self.taken.lock()
    }

    fn close(&self) {
        self.is_closed.send_replace(true);
    }
}

pub(super) struct ScriptParts {
    parts: std::collections::VecDeque<Part>,
    holds: bool,
    more: Option<mpsc::Receiver<Part>>,
    gone: watch::Sender<u32>,
    is_socket: bool,
    number: u64,
}

impl Parts for ScriptParts {
    async fn next(&mut self) -> Option<Part> {
        if let Some(part) = self.parts.pop_front() {
            return Some(part);
        }
        if let Some(more) = &mut self.more {
            return match (more.recv().await, self.is_socket) {
                (Some(Part::Event { data, .. }), true) => {
                    self.number += 1;
                    let number = self.number;
                    Some(Part::Frame { number, data })
                }
                (part, _) => part,
            };
        }
        if self.holds {
            std::future::pending::<()>().await;
        }
        None
    }
}

impl Drop for ScriptParts {
    fn drop(&mut self) {
        self.gone.send_modify(|count| *count += 1);
    }
}

/// A server on a port of its own.
pub(super) struct House {
    pub(super) server: Arc<HttpServer<Script>>,
    pub(super) script: Script,
    pub(super) address: SocketAddr,
}

impl House {
    pub(super) async fn open(settings: HttpSettings) -> Self {
        let script = Script::default();
        let server = HttpServer::new(script.clone(), settings, None);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Arc::clone(&server).serve_tcp(listener));
        Self {
            server,
            script,
            address,
        }
    }

    pub(super) async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends raw bytes and reads until the server closes.
    pub(super) async fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.dial().await;
        stream.write_all(request).await.unwrap();
        let mut bytes = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .unwrap()
            .unwrap();
        Reply::parse(&bytes)
    }

    /// A whole request; `Host` and `Connection: close` are added, and the length of a body.
    pub(super) async fn ask(&self, line: &str, headers: &[&str], body: &str) -> Reply {
        self.raw(&request(line, headers, body)).await
    }

    pub(super) async fn post(&self, headers: &[&str], body: &str) -> Reply {
        let mut all = vec!["Content-Type: application/json"];
        all.extend_from_slice(headers);
        self.ask("POST /mcp", &all, body).await
    }

    /// Opens a session on `/mcp` and returns the header that names it.
    pub(super) async fn session(&self, headers: &[&str], version: &str) -> String {
        let reply = self.post(headers, &initialize(version)).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        format!(
            "Mcp-Session-Id: {}",
            reply.header("mcp-session-id").unwrap()
        )
    }
}

pub(super) fn initialize(version: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"{version}"}}}}"#
    )
}

pub(super) fn request(line: &str, headers: &[&str], body: &str) -> Vec<u8> {
    let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
    if !headers
        .iter()
        .any(|header| header.to_ascii_lowercase().starts_with("host:"))
    {
        text.push_str("Host: localhost\r\n");
    }
    for header in headers {
        text.push_str(header);
        text.push_str("\r\n");
    }
    if !body.is_empty() {
        text.push_str("Content-Length: ");
        text.push_str(&body.len().to_string());
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text.push_str(body);
    text.into_bytes()
}

/// What came back.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text
            .split_once("\r\n\r\n")
            .unwrap_or_else(|| panic!("no head: {text}"));
        let mut lines = head.lines();
        let status = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers: Vec<_> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let is_chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        let body = if is_chunked {
            unchunk(body)
        } else {
            body.to_owned()
        };
        Self {
            status,
            headers,
            body,
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// Checks that this refuses, with a JSON-RPC error, and returns its message.
    pub(super) fn refusal(
        &self,
        status: u16,
        code: i64,
        id: impl Into<Option<serde_json::Value>>,
    ) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let json = self.json();
        assert_eq!(json["jsonrpc"], "2.0");
        assert_eq!(json["error"]["code"], code, "{self:?}");
        assert_eq!(json.get("id"), id.into().as_ref(), "{self:?}");
        json["error"]["message"].as_str().unwrap().to_owned()
    }
}

fn unchunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        out.push_str(rest.get(..size).unwrap_or(rest));
        text = rest.get(size + 2..).unwrap_or_default();
    }
    out
}

/// Waits until a counter or flag is as wanted.
pub(super) async fn until<T>(flag: &watch::Sender<T>, wanted: impl FnMut(&T) -> bool) {
    drop(
        timeout(PATIENCE, flag.subscribe().wait_for(wanted))
            .await
            .expect("it never came"),
    );
}

pub(super) fn uid(uid: u32) -> Arrival {
    Arrival::Socket { uid }
}
