//! `connect` and its gateway: what a client sees of a gateway that is killed, stopped or replaced.

use std::ffi::OsStr;

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Rule};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::harness::{
    Gateway, INITIALIZED, call, fault, gone, initialize, request, signal, soon, text_of,
};
use crate::pipe::{Pipe, Started};
use crate::reload::{happened, reload};

fn config(url: &str) -> Value {
    json!({ "mcpServers": { "s": { "url": url } } })
}

/// A `connect` that starts no gateway.
pub(crate) fn connect(gateway: &Gateway) -> Pipe {
    let folder = gateway.folder.path();
    let (config, socket) = (
        folder.join("config.json"),
        folder.join("run/springline.sock"),
    );
    let mut args: Vec<&OsStr> = ["connect", "s", "--no-start", "--config"]
        .map(OsStr::new)
        .into();
    args.extend([config.as_os_str(), "--socket".as_ref(), socket.as_os_str()]);
    Pipe::start(args)
}

/// A gateway before a server, and a client that has counted to one in its session.
async fn counted() -> (FaultServer, Gateway, Pipe) {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let mut pipe = connect(&gateway);
    pipe.open().await;
    assert_eq!(pipe.text(1, "count", json!({})).await, "1");
    (server, gateway, pipe)
}

#[tokio::test]
async fn an_idle_client_of_a_killed_gateway_notices_nothing() {
    let (server, gateway, mut pipe) = counted().await;
    let gateway = gateway.again("KILL", config(&server.url)).await;
    assert_eq!(pipe.text(2, "count", json!({})).await, "2");
    let _gateway = gateway.again("TERM", config(&server.url)).await;
    assert_eq!(pipe.text(3, "count", json!({})).await, "3");
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
}

#[tokio::test]
async fn a_call_that_may_have_run_is_told_as_unknown_and_a_read_is_sent_again() {
    let (server, gateway, mut pipe) = counted().await;
    let held = |gate: &str| Action::HoldAfter { gate: gate.into() };
    server.fault(Rule::once("tools/list", held("list")));
    pipe.send(&[
        &call(2, "hold", &json!({"id": "h"})),
        &request("3", "tools/list", "{}"),
    ])
    .await;
    soon("the call", server.arrived("h", 1)).await;
    soon("the list", server.arrived("list", 1)).await;
    let _gateway = gateway.again("KILL", config(&server.url)).await;
    let mut answers = [pipe.response().await, pipe.response().await];
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers[0]["id"], 2);
    assert_eq!(answers[0]["error"]["data"]["server"], "s", "{}", answers[0]);
    assert_eq!(fault(&answers[0]), ("OUTCOME_UNKNOWN", "unknown"));
    assert!(answers[1]["result"]["tools"].is_array(), "{}", answers[1]);
    server.release("h");
    server.release("list");
    assert_eq!(pipe.text(4, "count", json!({})).await, "2");
    let log = server.log();
    assert_eq!((log.initializes, log.count("tools/list")), (1, 2));
}

#[tokio::test]
async fn a_call_that_was_never_sent_runs_once_and_what_came_meanwhile_too() {
    let (server, gateway, mut pipe) = counted().await;
    server.forget_sessions();
    let gate = "i".to_owned();
    server.fault(Rule::once("initialize", Action::HoldBefore { gate }));
    pipe.send(&[&call(2, "charge", &json!({"id": "a"}))]).await;
    soon("the recovery", server.arrived("i", 1)).await;
    // This one waits for the recovery; the gateway has it when it answers what came after it.
    pipe.send(&[
        &call(3, "charge", &json!({"id": "b"})),
        &request("4", "ping", "{}"),
    ])
    .await;
    assert_eq!(pipe.response().await["id"], 4);
    signal(gateway.pid(), "STOP");
    pipe.send(&[&call(5, "charge", &json!({"id": "c"}))]).await;
    let _gateway = gateway.again("KILL", config(&server.url)).await;
    server.release("i");
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(pipe.response().await);
    }
    answers.sort_by_key(|answer| answer["id"].as_u64());
    // It was refused, but that is not in the journal.
    assert_eq!(fault(&answers[0]), ("OUTCOME_UNKNOWN", "unknown"));
    assert_eq!(text_of(&answers[1]), "charged b");
    assert_eq!(text_of(&answers[2]), "charged c");
    let log = server.log();
    let ran = ["a", "b", "c"].map(|id| log.executed(id));
    assert_eq!(ran, [0, 1, 1]);
}

#[tokio::test]
async fn a_gateway_that_is_replaced_finishes_what_it_has_and_gives_the_rest_to_the_next() {
    let (server, gateway, mut pipe) = counted().await;
    pipe.send(&[&call(2, "hold", &json!({"id": "h"}))]).await;
    soon("the call", server.arrived("h", 1)).await;
    signal(gateway.pid(), "TERM");
    gateway.line("springline: stopping:").await;
    pipe.send(&[&call(3, "charge", &json!({"id": "late"}))])
        .await;
    server.release("h");
    let first = pipe.response().await;
    assert_eq!((&first["id"], first.get("error")), (&2.into(), None));
    let _gateway = gateway.after(config(&server.url)).await;
    let second = pipe.response().await;
    assert_eq!(text_of(&second), "charged late");
    assert_eq!(server.log().executed("late"), 1);
    assert_eq!(server.log().initializes, 1);
}

#[tokio::test]
async fn a_lost_gateway_is_started_again_if_nobody_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let server = FaultServer::start().await.unwrap();
    let state = folder.path().join("state");
    let config = folder.path().join("config.json");
    let text = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": {
            "listen": false, "stateDir": state,
            "socket": folder.path().join("run/springline.sock"),
        },
    });
    std::fs::write(&config, text.to_string()).unwrap();
    let started = || {
        let lock = std::fs::read_to_string(state.join("lock")).unwrap();
        Started(lock.trim().parse().unwrap())
    };
    let args = [
        "connect".as_ref(),
        "s".as_ref(),
        "--config".as_ref(),
        config.as_os_str(),
    ];
    let mut pipe = Pipe::start(args);
    pipe.open().await;
    assert_eq!(pipe.text(1, "count", json!({})).await, "1");
    let first = started();
    signal(first.0, "KILL");
    gone(first.0).await;
    assert_eq!(pipe.text(2, "count", json!({})).await, "2");
    let second = started();
    assert_ne!(first.0, second.0);
    assert_eq!(server.log().initializes, 1);
}

#[tokio::test]
async fn a_gateway_with_another_state_gets_the_handshake_again_and_the_client_hears_of_it() {
    let (server, gateway, mut pipe) = counted().await;
    pipe.send(&[&call(2, "hold", &json!({"id": "h"}))]).await;
    soon("the call", server.arrived("h", 1)).await;
    signal(gateway.pid(), "STOP");
    std::fs::remove_dir_all(gateway.folder.path().join("state")).unwrap();
    let _gateway = gateway.again("KILL", config(&server.url)).await;
    let answer = pipe.response().await;
    assert_eq!(fault(&answer), ("OUTCOME_UNKNOWN", "unknown"));
    server.release("h");
    pipe.send(&[&call(3, "count", &json!({}))]).await;
    let notice = pipe.message().await;
    assert_eq!(notice["params"]["logger"], "springline", "{notice}");
    assert_eq!(text_of(&pipe.response().await), "1");
    assert_eq!(server.log().initializes, 2);
}

#[tokio::test]
async fn a_goodbye_ends_the_session_at_once_and_a_cut_does_not() {
    let (server, gateway, mut pipe) = counted().await;
    pipe.input = None;
    pipe.ended().await;
    soon("the DELETE", server.wait(|log| log.deletes == 1)).await;
    let mut pipe = connect(&gateway);
    pipe.open().await;
    signal(pipe.child.id().unwrap(), "KILL");
    pipe.ended().await;
    // The gateway has seen the end of that connection when it has served another.
    let mut raw = Raw::attach(&gateway, "?server=s", json!({})).await.0;
    raw.open().await;
    assert_eq!(server.log().deletes, 1);
    let socket = gateway.folder.path().join("run/springline.sock");
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let head = "GET /api/sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut listed = String::new();
    soon("the list", stream.read_to_string(&mut listed))
        .await
        .unwrap();
    assert_eq!(listed.matches("uid:").count(), 2, "{listed}");
}

/// A client that speaks in frames by hand.
struct Raw {
    lines: Lines<BufReader<OwnedReadHalf>>,
    write: OwnedWriteHalf,
    sent: u64,
}

impl Raw {
    /// Attaches with this hello; returns the gateway's too.
    async fn attach(gateway: &Gateway, query: &str, hello: Value) -> (Self, Value) {
        let socket = gateway.folder.path().join("run/springline.sock");
        let (read, write) = UnixStream::connect(socket).await.unwrap().into_split();
        let mut raw = Self {
            lines: BufReader::new(read).lines(),
            write,
            sent: 0,
        };
        let head = format!(
            "GET /connect{query} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: springline/1\r\n\r\n"
        );
        raw.put(&head).await;
        while !raw.line().await.unwrap().is_empty() {}
        raw.put(&format!("H {hello}\n")).await;
        let hello = raw.line().await.unwrap();
        let hello = serde_json::from_str(hello.strip_prefix("H ").unwrap()).unwrap();
        (raw, hello)
    }

    async fn put(&mut self, text: &str) {
        self.write.write_all(text.as_bytes()).await.unwrap();
    }

    async fn line(&mut self) -> Option<String> {
        soon("a frame", self.lines.next_line()).await.unwrap()
    }

    async fn send(&mut self, text: &str) {
        self.sent += 1;
        let line = format!("M {} 0 {text}\n", self.sent);
        self.put(&line).await;
    }

    /// The next message and its number.
    async fn message(&mut self) -> (u64, Value) {
        loop {
            let line = self.line().await.unwrap();
            let Some(frame) = line.strip_prefix("M ") else {
                continue;
            };
            let mut words = frame.splitn(3, ' ');
            let number = words.next().unwrap().parse().unwrap();
            let message = serde_json::from_str(words.nth(1).unwrap()).unwrap();
            return (number, message);
        }
    }

    async fn open(&mut self) {
        self.send(&initialize("2025-11-25", "{}")).await;
        self.send(INITIALIZED).await;
        assert_eq!(self.message().await.0, 1);
    }
}

#[tokio::test]
async fn an_answer_that_a_cut_client_missed_comes_again_also_after_a_kill() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let (mut raw, hello) = Raw::attach(&gateway, "?server=s", json!({})).await;
    assert_eq!(hello["resumed"], false);
    let token = hello["session"].as_str().unwrap().to_owned();
    raw.open().await;
    raw.send(&call(7, "hold", &json!({"id": "h"}))).await;
    soon("the call", server.arrived("h", 1)).await;
    drop(raw);
    server.release("h");
    let back = json!({"session": token, "received": 1, "pending": [3]});
    let (mut raw, hello) = Raw::attach(&gateway, "?server=s", back.clone()).await;
    assert_eq!(
        (&hello["resumed"], &hello["received"]),
        (&true.into(), &3.into())
    );
    let (number, heard) = raw.message().await;
    assert_eq!((number, &heard["id"]), (2, &7.into()));
    drop(raw);
    // It was not acknowledged: it is at rest.
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let (mut raw, hello) = Raw::attach(&gateway, "?server=s", back).await;
    assert_eq!(
        (&hello["resumed"], &hello["received"]),
        (&true.into(), &3.into())
    );
    assert_eq!(raw.message().await, (2, heard));
    // Now it is, and nobody gets it again.
    raw.sent = 3;
    raw.put("A 2\n").await;
    raw.send(&request("8", "ping", "{}")).await;
    assert_eq!(raw.message().await.1["id"], 8);
    drop(raw);
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let back = json!({"session": token, "received": 2, "pending": [3]});
    let (_, hello) = Raw::attach(&gateway, "?server=s", back).await;
    assert_eq!(hello["sent"], json!([3]), "it is not known any more");
    assert_eq!(server.log().executed("h"), 1);
}

#[tokio::test]
async fn an_answer_of_more_than_a_mebibyte_is_told_as_lost_after_a_kill() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let (mut raw, hello) = Raw::attach(&gateway, "?server=s", json!({})).await;
    let token = hello["session"].as_str().unwrap().to_owned();
    raw.open().await;
    raw.send(&call(7, "echo", &json!({"text": "x".repeat(1 << 20)})))
        .await;
    assert_eq!(raw.message().await.1["id"], 7);
    drop(raw);
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let back = json!({"session": token, "received": 1, "pending": [3]});
    let (_, hello) = Raw::attach(&gateway, "?server=s", back).await;
    assert_eq!(hello["lost"], json!([3]));
}

#[tokio::test]
async fn a_session_of_the_socket_is_nobody_elses() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let (mut raw, hello) = Raw::attach(&gateway, "?server=s", json!({})).await;
    let token = hello["session"].as_str().unwrap().to_owned();
    raw.open().await;
    let mut stranger = gateway.client("/mcp/s");
    stranger.session = Some(token.clone());
    let answer = stranger.post(&call(1, "count", &json!({}))).await;
    assert_eq!(answer.status, 404, "over HTTP it is unknown");
    for (query, token) in [
        ("", &*token),
        ("?server=s", "0123456789abcdef0123456789abcdef"),
    ] {
        let (_, hello) = Raw::attach(&gateway, query, json!({"session": token})).await;
        assert_eq!(hello["resumed"], false, "{query}");
    }
    // The one that it belongs to still has it.
    raw.send(&request("2", "ping", "{}")).await;
    assert_eq!(raw.message().await.1["id"], 2);
    raw.put("E {}\n").await;
    while raw.line().await.is_some() {}
    let (_, hello) = Raw::attach(&gateway, "?server=s", json!({"session": token})).await;
    assert_eq!(hello["resumed"], false, "its client said goodbye");
}

#[tokio::test]
async fn a_client_whose_server_was_removed_meanwhile_keeps_its_session_until_it_is_there_again() {
    let (server, mut gateway, mut pipe) = counted().await;
    let none = json!({ "mcpServers": {} });
    for signal in ["KILL", "TERM"] {
        reload(&gateway, &none).await;
        happened(&gateway, "session.deleted", 1).await;
        gateway = gateway.again(signal, none.clone()).await;
        pipe.send(&[&call(2, "count", &json!({}))]).await;
        let answer = pipe.response().await;
        assert_eq!(fault(&answer), ("SERVER_REMOVED", "not_executed"));
        reload(&gateway, &config(&server.url)).await;
        // The server's own session ended with the entry.
        assert_eq!(pipe.text(3, "count", json!({})).await, "1");
    }
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (3, 2));
}
