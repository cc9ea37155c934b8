//! The transport against a server that does what each test says, byte by byte.

mod answer;
mod connection;
mod request;
mod secure;
mod session;
mod stretch;

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use springline_proto::call::{ExchangeId, Generation};
use springline_proto::json::Pieces;
use springline_proto::message::Message;
use springline_proto::upstream::{End, Input, Purpose, Route};
use springline_proto::version::Version;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::{
    Credentials, DeleteOutcome, HttpAuth, HttpLimits, HttpShared, HttpSink, HttpSpec,
    HttpTransport, Post, ProxyEnv,
};
use crate::spawn::Errand;
use crate::upstream::Sink;

/// A bound on what a test waits for; reached only by a failure.
const PATIENCE: Duration = Duration::from_secs(20);

const GEN: Generation = Generation(1);
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t"}}"#;
const ANSWER: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}"#;

/// Who owns the machine.
struct Tell {
    heard: mpsc::UnboundedSender<Input>,
    /// What the re-reader gives next.
    fresh: Mutex<Result<Credentials, String>>,
    /// Who hears of DELETEs.
    deletes: Option<mpsc::UnboundedSender<DeleteOutcome>>,
}

impl Sink for Tell {
    fn input(&self, input: Input) {
        self.heard.send(input).unwrap();
    }
}

impl HttpSink for Tell {
    fn reread(&self) -> Result<Credentials, String> {
        self.fresh.lock().unwrap().clone()
    }

    fn deleted(&self, generation: Generation, outcome: DeleteOutcome) {
        assert_eq!(generation, GEN);
        if let Some(deletes) = &self.deletes {
            deletes.send(outcome).unwrap();
        }
    }
}

/// The runtime asks the kernel once, as it does before it hears of a client's next request.
async fn heard_by_the_runtime() {
    tokio::task::yield_now().await;
}

/// A transport with a listener that plays its server.
struct Rig {
    transport: HttpTransport,
    heard: mpsc::UnboundedReceiver<Input>,
    listener: TcpListener,
    sink: Arc<Tell>,
}

struct Setup {
    credentials: Credentials,
    limits: HttpLimits,
    proxies: ProxyEnv,
    spec: Box<dyn Fn(&mut HttpSpec)>,
    deletes: Option<mpsc::UnboundedSender<DeleteOutcome>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            credentials: Credentials::none(),
            limits: HttpLimits::default(),
            proxies: ProxyEnv::none(),
            spec: Box::new(|_| {}),
            deletes: None,
        }
    }
}

/// The time that signatures and cookies see.
fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(1_757_600_001_234)
}

impl Rig {
    async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, setup)
    }

    fn on(listener: TcpListener, setup: Setup) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (tell, heard) = mpsc::unbounded_channel();
        let sink = Arc::new(Tell {
            heard: tell,
            fresh: Mutex::new(Ok(setup.credentials.clone())),
            deletes: setup.deletes,
        });
        let mut spec = HttpSpec {
            server: "demo".into(),
            url: format!("http://127.0.0.1:{port}/api/mcp?k=v")
                .parse()
                .unwrap(),
            credentials: setup.credentials,
            ca: None,
        };
        (setup.spec)(&mut spec);
        let shared = Arc::new(HttpShared::new(setup.proxies, Arc::new(wall)));
        let owner = Arc::downgrade(&sink) as Weak<dyn HttpSink>;
        let transport = HttpTransport::new(spec, owner, Arc::new(setup.limits), shared);
        transport.open(GEN);
        let mut rig = Self {
            transport,
            heard,
            listener,
            sink,
        };
        assert!(matches!(
            rig.heard.try_recv(),
            Ok(Input::Opened { generation: GEN })
        ));
        rig
    }

    fn send(&self, exchange: u64) {
        self.send_as(exchange, Purpose::Request, Route::default(), false);
    }

    fn send_as(&self, exchange: u64, purpose: Purpose, route: Route, repeatable: bool) {
        let body = Pieces::from(bytes::Bytes::from_static(CALL.as_bytes()));
        let none = &mut Errand::none();
        let id = ExchangeId(exchange);
        let post = Post {
            repeatable,
            ..post(body, purpose, route)
        };
        self.transport.send(GEN, id, post, none);
    }

    /// The next connection to the server.
    async fn accept(&self) -> Peer<TcpStream> {
        let (stream, _) = tokio::time::timeout(PATIENCE, self.listener.accept())
            .await
            .expect("a dial")
            .unwrap();
        Peer {
            stream,
            buffer: Vec::new(),
        }
    }

    /// The next input.
    async fn input(&mut self) -> Input {
        tokio::time::timeout(PATIENCE, self.heard.recv())
            .await
            .expect("an input")
            .unwrap()
    }

    async fn message(&mut self) -> Message {
        match self.input().await {
            Input::Message { message, .. } => message,
            other => panic!("no message: {other:?}"),
        }
    }

    async fn end(&mut self) -> End {
        match self.input().await {
            Input::Ended { end, .. } => end,
            other => panic!("no end: {other:?}"),
        }
    }

    /// The cause of an end that is `Broken`.
    async fn broken(&mut self) -> String {
        match self.end().await {
            End::Broken { cause } => cause.into(),
            other => panic!("not broken: {other:?}"),
        }
    }

    async fn unreadable(&mut self) -> String {
        match self.end().await {
            End::Unreadable { cause } => cause.into(),
            other => panic!("not unreadable: {other:?}"),
        }
    }

    async fn unsent(&mut self) -> String {
        match self.end().await {
            End::NotSent { cause } => cause.into(),
            other => panic!("sent: {other:?}"),
        }
    }

    /// One call from end to end on `peer`, answered as JSON.
    async fn answered<S: AsyncRead + AsyncWrite + Unpin>(&mut self, peer: &mut Peer<S>) -> Asked {
        let asked = peer.request().await;
        peer.json(ANSWER).await;
        assert_eq!(&self.message().await.bytes()[..], ANSWER.as_bytes());
        assert_eq!(self.end().await, End::Complete);
        asked
    }
}

fn post(body: Pieces, purpose: Purpose, route: Route) -> Post {
    Post {
        body,
        purpose,
        route,
        repeatable: false,
        stretches: false,
    }
}

/// A route as after a handshake.
fn route() -> Route {
    Route {
        session_id: Some("s-1".into()),
        version: Some(Version::V2025_06_18),
    }
}

/// The server's side of one connection.
struct Peer<S> {
    stream: S,
    buffer: Vec<u8>,
}

/// A request as it came.
struct Asked {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Asked {
    fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} stands twice");
        value
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    async fn request(&mut self) -> Asked {
        let head_end = loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.fill().await, "the connection closed before a request");
        };
        let head: Vec<u8> = self.buffer.drain(..head_end).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let line = lines.next().unwrap().to_owned();
        let headers: Vec<(String, String)> = lines
            .map(|line| {
                let (key, value) = line.split_once(':').unwrap();
                (key.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        let mut asked = Asked {
            line,
            headers,
            body: String::new(),
        };
        let length: usize = asked
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        while self.buffer.len() < length {
            assert!(self.fill().await, "the connection closed in a body");
        }
        asked.body = String::from_utf8(self.buffer.drain(..length).collect()).unwrap();
        asked
    }

    /// Reads more; false at the end.
    async fn fill(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.buffer);
        match tokio::time::timeout(PATIENCE, read)
            .await
            .expect("bytes or the end")
        {
            Ok(count) => count > 0,
            // A reset is an end, too.
            Err(_) => false,
        }
    }

    /// Waits for the end of the connection, without another request.
    async fn closed(&mut self) {
        while self.fill().await {}
        assert_eq!(String::from_utf8_lossy(&self.buffer), "");
    }

    async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    async fn json(&mut self, body: &str) {
        self.reply("200 OK", "Content-Type: application/json\r\n", body)
            .await;
    }

    async fn reply(&mut self, status: &str, headers: &str, body: impl AsRef<[u8]>) {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.write([head.as_bytes(), body].concat()).await;
    }

    /// The head of a chunked answer.
    async fn chunked(&mut self, headers: &str) {
        self.write(format!(
            "HTTP/1.1 200 OK\r\n{headers}Transfer-Encoding: chunked\r\n\r\n"
        ))
        .await;
    }

    async fn chunk(&mut self, data: impl AsRef<[u8]>) {
        let data = data.as_ref();
        let head = format!("{:x}\r\n", data.len());
        self.write([head.as_bytes(), data, b"\r\n"].concat()).await;
    }

    async fn last_chunk(&mut self) {
        self.write("0\r\n\r\n").await;
    }
}
