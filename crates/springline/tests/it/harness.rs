//! What every end-to-end test needs: the gateway as a process, an HTTP client that hides nothing,
//! and readers of what a server saw.
//!
//! Owns processes and folders, all of which end with the test. It must not know any single test,
//! and shares no code with the gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// How long anything may take before a test says what it waited for. Only a broken test gets
/// there.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that must happen.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// The binary with the servers for tests: `SPRINGLINE_FIXTURE`, else beside the gateway's.
pub(crate) fn fixture() -> PathBuf {
    if let Some(path) = std::env::var_os("SPRINGLINE_FIXTURE") {
        return path.into();
    }
    let beside = Path::new(env!("CARGO_BIN_EXE_springline")).with_file_name("springline-fixture");
    assert!(
        beside.exists(),
        "build the fixture first: cargo build -p springline-fixture"
    );
    beside
}

/// Lines that a process wrote to stderr, and whoever waits for one.
#[derive(Debug, Default)]
struct Lines {
    text: Mutex<Vec<String>>,
    changed: Notify,
    ended: Notify,
}

/// A gateway of its own for one test; it is killed when dropped.
pub(crate) struct Gateway {
    child: Child,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Everything that it may write to.
    pub(crate) folder: tempfile::TempDir,
    lines: Arc<Lines>,
}

impl Gateway {
    /// Starts one with these entries under `mcpServers`.
    pub(crate) async fn with(servers: Value) -> Self {
        Self::start(json!({ "mcpServers": servers }), |_| {}).await
    }

    /// Starts one with this configuration and waits until it says that it is ready.
    pub(crate) async fn start(config: Value, adjust: impl FnOnce(&mut Command)) -> Self {
        Self::launch(tempfile::tempdir().unwrap(), config, adjust).await
    }

    /// Ends this one by a signal, and starts another with the same state and this configuration.
    pub(crate) async fn again(mut self, signal: &str, config: Value) -> Self {
        self.signal(signal);
        self.ended().await;
        Self::launch(self.folder, config, |_| {}).await
    }

    /// As [`Self::again`] after a kill, but no file of its may be longer than this for now.
    pub(crate) async fn again_within(mut self, len_max: u64, config: Value) -> Self {
        self.signal("KILL");
        self.ended().await;
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--fsize={len_max}:"))
            .arg(env!("CARGO_BIN_EXE_springline"));
        Self::launch_as(command, self.folder, config, |_| {}).await
    }

    /// Waits for this one's end, and starts another with the same state and this configuration.
    pub(crate) async fn after(mut self, config: Value) -> Self {
        self.ended().await;
        Self::launch(self.folder, config, |_| {}).await
    }

    async fn launch(
        folder: tempfile::TempDir,
        config: Value,
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let command = Command::new(env!("CARGO_BIN_EXE_springline"));
        Self::launch_as(command, folder, config, adjust).await
    }

    async fn launch_as(
        mut command: Command,
        folder: tempfile::TempDir,
        config: Value,
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let path = folder.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        command
            .arg("serve")
            .arg("--config")
            .arg(&path)
            .args(["--listen", "127.0.0.1:0"])
            .arg("--socket")
            .arg(folder.path().join("run/springline.sock"))
            .arg("--state-dir")
            .arg(folder.path().join("state"))
            .env("SPRINGLINE_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        for name in [
            "http_proxy",
            "https_proxy",
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
        ] {
            command.env_remove(name);
        }
        adjust(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Lines::default());
        let stderr = child.stderr.take().unwrap();
        tokio::spawn(collect(stderr, Arc::clone(&lines)));
        let mut gateway = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            folder,
            lines,
        };
        gateway.line("springline: ready:").await;
        let listening = gateway.line("springline: listening on http://").await;
        let address = listening
            .trim_start_matches("springline: listening on http://")
            .trim_end_matches("/mcp");
        gateway.address = address.parse().unwrap();
        gateway
    }

    /// The first line on stderr that begins so, when it comes.
    pub(crate) async fn line(&self, start: &str) -> String {
        soon(&format!("the line \"{start}\""), async {
            loop {
                let changed = self.lines.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let found = self
                    .lines
                    .text
                    .lock()
                    .iter()
                    .find(|line| line.starts_with(start))
                    .cloned();
                if let Some(line) = found {
                    return line;
                }
                changed.await;
            }
        })
        .await
    }

    /// All that it has written to stderr.
    pub(crate) fn log(&self) -> String {
        self.lines.text.lock().join("\n")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Sends a signal, `TERM` for example.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        soon("the gateway's end", self.child.wait()).await.unwrap()
    }

    /// A client of this endpoint without a session.
    pub(crate) fn client(&self, path: &str) -> Client {
        Client {
            address: self.address,
            path: path.to_owned(),
            session: None,
            version: None,
            headers: BTreeMap::new(),
        }
    }

    /// A client with a session and the capabilities that most tests want.
    pub(crate) async fn open(&self, path: &str) -> Client {
        let mut client = self.client(path);
        client.open(CAPABILITIES).await;
        client
    }
}

/// What a client declares that can do everything.
pub(crate) const CAPABILITIES: &str =
    r#"{"sampling":{},"elicitation":{},"roots":{"listChanged":true}}"#;

async fn collect(stderr: tokio::process::ChildStderr, lines: Arc<Lines>) {
    let mut reader = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = reader.next_line().await {
        lines.text.lock().push(line);
        lines.changed.notify_waiters();
    }
    lines.ended.notify_waiters();
}

/// Sends a signal to a process that this test started, or that its gateway did.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = std::process::Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .status()
        .unwrap();
    assert!(sent.success(), "no process {pid} to signal");
}

/// Whether a process runs; a zombie does not.
pub(crate) fn runs(pid: u32) -> bool {
    // A thread that is still dying holds the pipes of the process open.
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    tasks.flatten().any(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        !state.is_empty() && !state.starts_with(['Z', 'X'])
    })
}

/// Waits until a process is gone.
pub(crate) async fn gone(pid: u32) {
    soon(&format!("the end of process {pid}"), async {
        while runs(pid) {
            tokio::time::sleep(LOOK).await;
        }
    })
    .await;
}

/// The pause between two looks at something that cannot tell: a file, or another's process.
const LOOK: Duration = Duration::from_millis(5);

/// The ledger of a server in a process of its own.
#[derive(Clone, Debug)]
pub(crate) struct Ledger(pub(crate) PathBuf);

impl Ledger {
    /// All events so far, each with `event`, `pid` and `detail`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        // A line in the making has no end yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The events with this name.
    pub(crate) fn of(&self, name: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["event"] == name);
        events
    }

    /// How often a call with this `arguments.id` was executed.
    pub(crate) fn executed(&self, id: &str) -> usize {
        let runs = self.of("execute");
        runs.iter().filter(|run| run["detail"]["id"] == id).count()
    }

    /// How many messages or requests with this method came.
    pub(crate) fn count(&self, method: &str) -> usize {
        let events = self.events();
        events
            .iter()
            .filter(|event| event["detail"]["method"] == method)
            .count()
    }

    /// Waits until the events satisfy `done`.
    pub(crate) async fn wait(&self, what: &str, done: impl Fn(&Self) -> bool) {
        soon(what, async {
            while !done(self) {
                tokio::time::sleep(LOOK).await;
            }
        })
        .await;
    }

    /// The process of the n-th start.
    pub(crate) fn pid(&self, start: usize) -> u32 {
        pid_of(&self.of("start")[start]["pid"])
    }
}

/// A process id out of JSON.
pub(crate) fn pid_of(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

/// The entry of a fixture on stdio, whose ledger is in this folder.
pub(crate) fn stdio_entry(ledger: &Path, flags: &[&str]) -> Value {
    let mut args = vec!["faulty", "stdio", "--ledger", ledger.to_str().unwrap()];
    args.extend_from_slice(flags);
    json!({ "command": fixture(), "args": args })
}

/// The HTTP fixture in a process of its own, which a test can kill.
pub(crate) struct Server {
    child: Child,
    /// The MCP endpoint.
    pub(crate) url: String,
}

impl Server {
    /// Starts one on this port, 0 for any.
    pub(crate) async fn start(ledger: &Path, port: u16) -> Self {
        let mut child = Command::new(fixture())
            .args(["faulty", "http", "--port", &port.to_string(), "--ledger"])
            .arg(ledger)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = soon("the fixture", lines.next_line())
            .await
            .unwrap()
            .unwrap();
        Self {
            child,
            url: line.trim_start_matches("LISTENING ").to_owned(),
        }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        let address = self
            .url
            .trim_start_matches("http://")
            .trim_end_matches("/mcp");
        address.parse::<SocketAddr>().unwrap().port()
    }

    /// Gives an order to its control endpoint; returns when it was carried out.
    pub(crate) async fn order(&self, order: Value) {
        let address = self
            .url
            .trim_start_matches("http://")
            .trim_end_matches("/mcp");
        let client = Client {
            address: address.parse().unwrap(),
            path: "/__control".to_owned(),
            session: None,
            version: None,
            headers: BTreeMap::new(),
        };
        let answer = client.post(&order.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Kills it at once.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

/// One event of a stream.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) retry: Option<String>,
    pub(crate) data: String,
}

impl Event {
    /// The message in it.
    pub(crate) fn message(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }
}

/// An answer whose body may still be coming.
pub(crate) struct Flow {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    body: hyper::body::Incoming,
    held: Vec<u8>,
    _connection: JoinSet<()>,
}

impl Flow {
    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Whether it is a stream of events.
    pub(crate) fn is_stream(&self) -> bool {
        self.header("content-type") == Some("text/event-stream")
    }

    /// Waits until something has come behind what was read.
    pub(crate) async fn begun(&mut self) {
        while self.held.is_empty() {
            assert!(self.more().await, "an end, and nothing before it");
        }
    }

    async fn more(&mut self) -> bool {
        let frame = soon("more of an answer", self.body.frame()).await;
        match frame {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.held.extend_from_slice(data);
                }
                true
            }
            Some(Err(_)) | None => false,
        }
    }

    /// The next event; nothing at the end of the stream. Comments are passed over.
    pub(crate) async fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.held.drain(..end + 2).collect();
                if let Some(event) = parse_event(&block) {
                    return Some(event);
                }
                continue;
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// The next message; nothing at the end of the stream. Priming events are passed over.
    pub(crate) async fn message(&mut self) -> Option<Value> {
        loop {
            let event = self.event().await?;
            if !event.data.is_empty() {
                return Some(event.message());
            }
        }
    }

    /// The rest as it came, and whether it came to a proper end.
    pub(crate) async fn rest(mut self) -> (Vec<u8>, bool) {
        loop {
            match soon("more of an answer", self.body.frame()).await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.held.extend_from_slice(data);
                    }
                }
                Some(Err(_)) => return (self.held, false),
                None => return (self.held, true),
            }
        }
    }

    /// The rest, whole.
    pub(crate) async fn whole(mut self) -> Answer {
        while self.more().await {}
        Answer {
            status: self.status,
            headers: self.headers,
            body: self.held,
        }
    }
}

fn parse_event(block: &[u8]) -> Option<Event> {
    let text = std::str::from_utf8(block).unwrap();
    let mut event = Event::default();
    let mut is_event = false;
    for line in text.lines() {
        if let Some(id) = line.strip_prefix("id: ") {
            event.id = Some(id.to_owned());
            is_event = true;
        } else if let Some(retry) = line.strip_prefix("retry: ") {
            event.retry = Some(retry.to_owned());
            is_event = true;
        } else if let Some(data) = line.strip_prefix("data: ") {
            event.data.push_str(data);
            is_event = true;
        }
    }
    is_event.then_some(event)
}

/// A whole answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// A header's text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    /// Every message, whether it came as JSON or as events, as raw text.
    pub(crate) fn raw(&self) -> Vec<String> {
        if self.header("content-type") == Some("text/event-stream") {
            let text = self.text();
            return text
                .split_inclusive("\n\n")
                .filter_map(|block| parse_event(block.as_bytes()))
                .map(|event| event.data)
                .filter(|data| !data.is_empty())
                .collect();
        }
        vec![self.text()]
    }

    /// The response among the messages.
    pub(crate) fn response(&self) -> Value {
        let responses: Vec<Value> = self
            .raw()
            .iter()
            .map(|text| {
                serde_json::from_str(text).unwrap_or_else(|_| panic!("{} {text}", self.status))
            })
            .filter(|message: &Value| message.get("method").is_none())
            .collect();
        assert_eq!(responses.len(), 1, "{} {}", self.status, self.text());
        responses[0].clone()
    }
}

/// A client of one endpoint; each request has a connection of its own.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// Where its gateway listens.
    pub(crate) address: SocketAddr,
    path: String,
    /// The `Mcp-Session-Id` that it sends.
    pub(crate) session: Option<String>,
    /// The `MCP-Protocol-Version` that it sends.
    pub(crate) version: Option<String>,
    /// Headers that replace or add to the usual ones; an empty value leaves one out.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Client {
    /// The same client at the address of a gateway that was started again.
    pub(crate) fn moved(&self, gateway: &Gateway) -> Self {
        let mut other = self.clone();
        other.address = gateway.address;
        other
    }

    /// The same client with another header.
    pub(crate) fn header(&self, name: &str, value: &str) -> Self {
        let mut other = self.clone();
        other.headers.insert(name.to_owned(), value.to_owned());
        other
    }

    /// One request, whose answer may still be coming; an error if there is no answer.
    pub(crate) async fn try_start(
        &self,
        method: &str,
        body: impl Into<Bytes>,
    ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
        let stream = tokio::net::TcpStream::connect(self.address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // How the connection ends shows in the answer.
            drop(connection.await);
        });
        let mut headers: BTreeMap<&str, &str> = BTreeMap::from([
            ("host", "127.0.0.1"),
            ("accept", "application/json, text/event-stream"),
        ]);
        if method == "POST" {
            headers.insert("content-type", "application/json");
        }
        if method == "GET" {
            headers.insert("accept", "text/event-stream");
        }
        if let Some(session) = &self.session {
            headers.insert("mcp-session-id", session);
        }
        if let Some(version) = &self.version {
            headers.insert("mcp-protocol-version", version);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value);
        }
        let mut request = hyper::Request::builder().method(method).uri(&self.path);
        for (name, value) in headers {
            if !value.is_empty() {
                request = request.header(name, value);
            }
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let answer = soon("an answer", sender.send_request(request)).await?;
        let (parts, body) = answer.into_parts();
        Ok(Flow {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            held: Vec::new(),
            _connection: driver,
        })
    }

    /// One request that must be answered.
    pub(crate) async fn start(&self, method: &str, body: impl Into<Bytes>) -> Flow {
        self.try_start(method, body).await.unwrap()
    }

    /// One POST and its whole answer.
    pub(crate) async fn post(&self, body: &str) -> Answer {
        self.start("POST", body.to_owned()).await.whole().await
    }

    /// The stream of messages outside any call, resumed behind `cursor` if there is one.
    pub(crate) async fn listen(&self, cursor: Option<&str>) -> Flow {
        let client = match cursor {
            Some(cursor) => self.header("last-event-id", cursor),
            None => self.clone(),
        };
        client.start("GET", "").await
    }

    /// Shakes hands, and keeps the session.
    pub(crate) async fn open(&mut self, capabilities: &str) -> Value {
        let answer = self.post(&initialize("2025-11-25", capabilities)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let response = answer.response();
        let version = response["result"]["protocolVersion"].as_str();
        self.version = Some(version.unwrap_or_else(|| panic!("{response}")).to_owned());
        self.session = Some(answer.header("mcp-session-id").unwrap().to_owned());
        let accepted = self.post(INITIALIZED).await;
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        response
    }

    /// One request and its response.
    pub(crate) async fn ask(&self, id: &str, method: &str, params: &str) -> Value {
        self.post(&request(id, method, params)).await.response()
    }

    /// One call of a tool and its response.
    pub(crate) async fn call(&self, id: u64, tool: &str, arguments: Value) -> Value {
        self.post(&call(id, tool, &arguments)).await.response()
    }

    /// One call of a tool that must succeed: the text of its result.
    pub(crate) async fn text(&self, id: u64, tool: &str, arguments: Value) -> String {
        text_of(&self.call(id, tool, arguments).await)
    }

    /// Many calls at once: their responses, in the order of the ids.
    pub(crate) async fn calls(&self, bodies: Vec<String>) -> Vec<Value> {
        let mut set = JoinSet::new();
        for (at, body) in bodies.into_iter().enumerate() {
            let client = self.clone();
            set.spawn(async move { (at, client.post(&body).await.response()) });
        }
        let mut answers = set.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Starts one POST in the background: its whole answer, later.
    pub(crate) fn later(&self, body: &str) -> tokio::task::JoinHandle<Answer> {
        let client = self.clone();
        let body = body.to_owned();
        tokio::spawn(async move { client.post(&body).await })
    }
}

/// The text of a result's first content.
pub(crate) fn text_of(response: &Value) -> String {
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {response}"))
        .to_owned()
}

/// `error.data.code` and `error.data.outcome` of one of the gateway's own errors.
pub(crate) fn fault(response: &Value) -> (&str, &str) {
    let data = &response["error"]["data"];
    match (data["code"].as_str(), data["outcome"].as_str()) {
        (Some(code), Some(outcome)) => (code, outcome),
        _ => panic!("no error of the gateway: {response}"),
    }
}

/// The notification after a handshake.
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// An `initialize` with these capabilities.
pub(crate) fn initialize(version: &str, capabilities: &str) -> String {
    request(
        "0",
        "initialize",
        &format!(
            r#"{{"protocolVersion":"{version}","capabilities":{capabilities},"clientInfo":{{"name":"it","version":"1"}}}}"#
        ),
    )
}

/// A request with a raw id and raw parameters.
pub(crate) fn request(id: &str, method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#)
}

/// A call of a tool.
pub(crate) fn call(id: u64, tool: &str, arguments: &Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments });
    request(&id.to_string(), "tools/call", &params.to_string())
}

/// A notification with raw parameters.
pub(crate) fn notification(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#)
}
