//! Clients on stdin and stdout: `bridge` to one server, and `connect` to the gateway.

use std::ffi::OsStr;
use std::process::{ExitStatus, Stdio};

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Rule};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::harness::{
    CAPABILITIES, Gateway, INITIALIZED, Ledger, call, fault, fixture, gone, initialize,
    notification, runs, signal, soon, stdio_entry, text_of,
};

/// A command of Springline whose stdin and stdout are the protocol channel.
pub(crate) struct Pipe {
    pub(crate) child: Child,
    pub(crate) input: Option<ChildStdin>,
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Pipe {
    pub(crate) fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_springline"));
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = child.stdout.take().map(|out| BufReader::new(out).lines());
        Self {
            child,
            input,
            output,
        }
    }

    /// Writes lines in one go.
    pub(crate) async fn send(&mut self, lines: &[&str]) {
        let text = format!("{}\n", lines.join("\n"));
        let input = self.input.as_mut().unwrap();
        soon("the pipe", input.write_all(text.as_bytes()))
            .await
            .unwrap();
    }

    /// The next line; nothing at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        let output = self.output.as_mut().unwrap();
        soon("a line", output.next_line()).await.unwrap()
    }

    /// The next message, which must come.
    pub(crate) async fn message(&mut self) -> Value {
        serde_json::from_str(&self.line().await.unwrap()).unwrap()
    }

    /// The next message that is no notification.
    pub(crate) async fn response(&mut self) -> Value {
        loop {
            let message = self.message().await;
            if message.get("method").is_none() {
                return message;
            }
        }
    }

    pub(crate) async fn open(&mut self) {
        self.send(&[&initialize("2025-11-25", CAPABILITIES), INITIALIZED])
            .await;
        let answer = self.response().await;
        assert!(answer.get("result").is_some(), "{answer}");
    }

    pub(crate) async fn text(&mut self, id: u64, tool: &str, arguments: Value) -> String {
        self.send(&[&call(id, tool, &arguments)]).await;
        let answer = self.response().await;
        assert_eq!(answer["id"], id);
        text_of(&answer)
    }

    /// The end: how, and what it said on stderr.
    pub(crate) async fn ended(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        soon("the end of stderr", stderr.read_to_string(&mut said))
            .await
            .unwrap();
        let status = soon("the end", self.child.wait()).await.unwrap();
        (status, said)
    }
}

/// A bridge to a child with a ledger.
fn to_child(ledger: &Ledger, flags: &[&str]) -> Pipe {
    let mut args = vec!["bridge".into(), "--".into(), fixture().into_os_string()];
    for arg in ["faulty", "stdio", "--ledger"] {
        args.push(arg.into());
    }
    args.push(ledger.0.clone().into_os_string());
    args.extend(flags.iter().map(Into::into));
    Pipe::start(args)
}

#[tokio::test]
async fn a_bridge_keeps_the_order_through_the_handshake() {
    let server = FaultServer::start().await.unwrap();
    server.fault(Rule::once(
        "initialize",
        Action::HoldBefore { gate: "i".into() },
    ));
    server.fault(Rule::once(
        "notifications/initialized",
        Action::HoldBefore { gate: "n".into() },
    ));
    let mut pipe = Pipe::start(["bridge", &server.url]);
    let calls: Vec<String> = (1..=20)
        .map(|n| call(n, "charge", &json!({"id": format!("o{n}")})))
        .collect();
    let first = initialize("2025-11-25", "{}");
    let mut lines = vec![&*first, INITIALIZED];
    lines.extend(calls.iter().map(String::as_str));
    pipe.send(&lines).await;
    for gate in ["i", "n"] {
        soon("the handshake", server.arrived(gate, 1)).await;
        server.release(gate);
    }
    assert_eq!(pipe.response().await["id"], 0);
    let mut ids: Vec<u64> = Vec::new();
    for _ in 0..20 {
        let answer = pipe.response().await;
        ids.push(answer["id"].as_u64().unwrap());
        assert!(text_of(&answer).starts_with("charged o"));
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=20).collect::<Vec<_>>());
    let log = server.log();
    assert_eq!((log.uninitialised, log.without_session), (0, 0));
    assert_eq!(log.initializes, 1);
}

#[tokio::test]
async fn a_bridge_survives_lost_sessions_and_malformed_lines() {
    let server = FaultServer::start().await.unwrap();
    let mut pipe = Pipe::start(["bridge", &server.url]);
    pipe.open().await;
    pipe.send(&["{not json", "[]", "\u{feff}", "", "\"text\""])
        .await;
    let expected = [-32700, -32600, -32600];
    for code in expected {
        let answer = pipe.response().await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(answer.get("id"), None, "{answer}");
    }
    server.forget_sessions();
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!(server.log().executed("a"), 1);
    assert_eq!(server.log().initializes, 2);
}

#[tokio::test]
async fn a_bridge_whose_input_ends_finishes_its_calls_first() {
    let server = FaultServer::start().await.unwrap();
    let mut pipe = Pipe::start(["bridge", &server.url]);
    pipe.open().await;
    let last = notification("notifications/vendor", r#"{"last":true}"#);
    pipe.send(&[&call(1, "charge", &json!({"id": "e", "gate": "g"})), &last])
        .await;
    soon("the call", server.arrived("g", 1)).await;
    pipe.input = None;
    server.release("g");
    assert_eq!(text_of(&pipe.response().await), "charged e");
    assert_eq!(pipe.line().await, None);
    let (status, said) = pipe.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    let log = server.log();
    assert_eq!(log.count("notifications/vendor"), 1);
    assert_eq!(log.deletes, 1);
    assert_eq!(log.executed("e"), 1);
}

#[tokio::test]
async fn a_bridge_told_to_stop_ends_its_child_or_session_in_time() {
    let server = FaultServer::start().await.unwrap();
    let mut pipe = Pipe::start(["bridge", &server.url]);
    pipe.open().await;
    signal(pipe.child.id().unwrap(), "TERM");
    let (_, said) = pipe.ended().await;
    assert_eq!(server.log().deletes, 1, "{said}");
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let mut pipe = to_child(&ledger, &["--ignore-eof", "--ignore-sigterm"]);
    pipe.open().await;
    signal(pipe.child.id().unwrap(), "TERM");
    pipe.ended().await;
    assert!(!runs(ledger.pid(0)), "the child outlived the bridge");
}

#[tokio::test]
async fn a_bridge_whose_reader_is_gone_ends_by_itself() {
    let server = FaultServer::start().await.unwrap();
    let mut pipe = Pipe::start(["bridge", &server.url]);
    pipe.open().await;
    pipe.output = None;
    pipe.send(&[&call(1, "charge", &json!({"id": "x"}))]).await;
    pipe.ended().await;
    assert!(server.log().executed("x") <= 1);
}

#[tokio::test]
async fn a_bridge_killed_at_once_leaves_no_child() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let mut pipe = to_child(&ledger, &["--ignore-eof"]);
    pipe.open().await;
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    signal(pipe.child.id().unwrap(), "KILL");
    pipe.ended().await;
    gone(ledger.pid(0)).await;
}

#[tokio::test]
async fn a_bridge_tells_of_a_childs_death_and_starts_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let mut pipe = to_child(&ledger, &["--stderr-line", "disk is on fire"]);
    pipe.open().await;
    pipe.send(&[&call(1, "crash_after", &json!({"id": "boom"}))])
        .await;
    let answer = pipe.response().await;
    assert_eq!(fault(&answer), ("SERVER_EXITED", "unknown"), "{answer}");
    assert_eq!(
        pipe.text(2, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    assert_eq!(ledger.executed("boom"), 1);
    pipe.input = None;
    let (_, said) = pipe.ended().await;
    assert!(said.lines().all(|line| line.len() < 2000), "{said}");
}

#[tokio::test]
async fn connect_carries_one_server_or_all_of_them() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let config = gateway.folder.path().join("config.json");
    let socket = gateway.folder.path().join("run/springline.sock");
    let start = |name: &[&str]| {
        let mut args: Vec<&OsStr> = vec!["connect".as_ref()];
        args.extend(name.iter().map(OsStr::new));
        args.extend(["--no-start", "--config"].map(OsStr::new));
        args.push(config.as_os_str());
        args.push("--socket".as_ref());
        args.push(socket.as_os_str());
        Pipe::start(args)
    };
    let mut one = start(&["s"]);
    let mut all = start(&[]);
    one.open().await;
    all.open().await;
    let tricky = r#"{"n":725653563933458433,"f":1.0,"z":-0}"#;
    let params = format!(r#"{{"name":"echo","arguments":{tricky}}}"#);
    one.send(&[&crate::harness::request(r#""1""#, "tools/call", &params)])
        .await;
    let line = one.line().await.unwrap();
    assert!(
        line.contains(&format!(r#""structuredContent":{tricky}"#)),
        "{line}"
    );
    assert!(line.contains(r#""id":"1""#), "{line}");
    assert_eq!(
        all.text(1, "s__charge", json!({"id": "all"})).await,
        "charged all"
    );
    one.send(&[&call(2, "ask_roots", &json!({}))]).await;
    let asked = one.message().await;
    assert_eq!(asked["method"], "roots/list", "{asked}");
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"roots":[]}}}}"#,
        asked["id"]
    );
    one.send(&[&answer]).await;
    assert_eq!(text_of(&one.response().await), r#"{"roots":[]}"#);
    server.forget_sessions();
    assert_eq!(one.text(3, "charge", json!({"id": "c"})).await, "charged c");
    one.input = None;
    let (status, said) = one.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(server.log().executed("all"), 1);
    assert_eq!(server.log().executed("c"), 1);
}

#[tokio::test]
async fn a_second_gateway_on_the_same_socket_names_the_first_and_leaves() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let folder = gateway.folder.path();
    let mut second = Command::new(env!("CARGO_BIN_EXE_springline"));
    second
        .arg("serve")
        .arg("--config")
        .arg(folder.join("config.json"))
        .args(["--listen", "127.0.0.1:0", "--socket"])
        .arg(folder.join("run/springline.sock"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .kill_on_drop(true);
    let output = soon("the second gateway's end", second.output())
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&gateway.pid().to_string()), "{said}");
    gateway.open("/mcp/s").await;
}

/// A gateway that a `connect` started; ended with the test.
pub(crate) struct Started(pub(crate) u32);

impl Drop for Started {
    fn drop(&mut self) {
        if runs(self.0) {
            signal(self.0, "KILL");
        }
    }
}

#[tokio::test]
async fn connect_starts_a_gateway_when_none_runs() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let ledger = Ledger(folder.path().join("ledger"));
    let config = folder.path().join("config.json");
    let text = json!({
        "mcpServers": { "s": stdio_entry(&ledger.0, &[]) },
        "springline": {
            "listen": false, "stateDir": state,
            "socket": folder.path().join("run/springline.sock"),
        },
    });
    std::fs::write(&config, text.to_string()).unwrap();
    let args = [
        "connect".as_ref(),
        "s".as_ref(),
        "--config".as_ref(),
        config.as_os_str(),
    ];
    let mut pipe = Pipe::start(args);
    pipe.open().await;
    let lock = std::fs::read_to_string(state.join("lock")).unwrap();
    let started = Started(lock.trim().parse().unwrap());
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    pipe.input = None;
    let (status, said) = pipe.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(
        runs(started.0),
        "the gateway outlives the one that started it"
    );
    gone(ledger.pid(0)).await;
    signal(started.0, "TERM");
    gone(started.0).await;
}
