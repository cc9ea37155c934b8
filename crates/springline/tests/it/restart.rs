//! The gateway is killed or stopped, and started again: its clients' sessions go on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use springline_fixture::{FaultServer, Options, Settings};
use tokio::sync::watch;

use crate::comeback::connect;
use crate::harness::{Client, Gateway, Ledger, call, fault, soon, stdio_entry, text_of};
use crate::pipe::Pipe;

fn config(url: &str) -> Value {
    json!({ "mcpServers": { "s": { "url": url } } })
}

/// A gateway before a server, and a client that has counted to two in its session.
async fn counted() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    for n in 1..=2 {
        assert_eq!(client.text(n, "count", json!({})).await, n.to_string());
    }
    (server, gateway, client)
}

async fn a_session_survives(signal: &str) {
    let (server, gateway, client) = counted().await;
    let before = server.log();
    let gateway = gateway.again(signal, config(&server.url)).await;
    let client = client.moved(&gateway);
    let bodies = (3..13).map(|n| call(n, "charge", &json!({ "id": format!("c{n}") })));
    for (n, answer) in (3..13).zip(client.calls(bodies.collect()).await) {
        assert_eq!(text_of(&answer), format!("charged c{n}"));
    }
    assert_eq!(
        client.text(20, "count", json!({})).await,
        "3",
        "the server's own state"
    );
    let log = server.log();
    assert_eq!(
        log.initializes, before.initializes,
        "no handshake for a session that lives"
    );
    assert_eq!(log.deletes, 0, "a stop ends no session");
    assert_eq!(log.without_session, 0);
    for n in 3..13 {
        assert_eq!(log.executed(&format!("c{n}")), 1);
    }
}

#[tokio::test]
async fn a_killed_gateway_goes_on_with_the_session_on_both_sides() {
    a_session_survives("KILL").await;
}

#[tokio::test]
async fn a_stopped_gateway_goes_on_with_the_session_on_both_sides() {
    a_session_survives("TERM").await;
}

#[tokio::test]
async fn a_session_that_the_server_lost_meanwhile_is_recovered_once() {
    let (server, gateway, client) = counted().await;
    let before = server.log();
    server.forget_sessions();
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let client = client.moved(&gateway);
    let bodies = (3..13).map(|n| call(n, "charge", &json!({ "id": format!("c{n}") })));
    for (n, answer) in (3..13).zip(client.calls(bodies.collect()).await) {
        assert_eq!(text_of(&answer), format!("charged c{n}"));
    }
    let log = server.log();
    assert_eq!(log.initializes, before.initializes + 1);
    for n in 3..13 {
        assert_eq!(log.executed(&format!("c{n}")), 1);
    }
}

#[tokio::test]
async fn a_child_of_a_killed_gateway_is_started_again_under_the_same_session() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let config = json!({ "mcpServers": { "s": stdio_entry(&ledger.0, &[]) } });
    let gateway = Gateway::start(config.clone(), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(
        client.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    let gateway = gateway.again("KILL", config).await;
    let client = client.moved(&gateway);
    assert_eq!(
        client.text(2, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    assert_eq!((ledger.executed("a"), ledger.executed("b")), (1, 1));
    assert_eq!(ledger.of("start").len(), 2);
}

#[tokio::test]
async fn a_call_that_was_in_flight_at_the_kill_ends_as_unknown_on_its_own_stream() {
    let (server, gateway, client) = counted().await;
    let mut flow = client
        .start("POST", call(7, "hold", &json!({ "id": "h" })))
        .await;
    let first = flow.event().await.unwrap();
    let cursor = first.id.unwrap();
    server.arrived("h", 1).await;
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let client = client.moved(&gateway);
    let mut resumed = client.listen(Some(&cursor)).await;
    let answer = resumed.message().await.unwrap();
    assert_eq!(answer["id"], 7);
    assert_eq!(fault(&answer), ("OUTCOME_UNKNOWN", "unknown"));
    let data = &answer["error"]["data"];
    assert_eq!(data["server"], "s");
    let text = data["message"].as_str().unwrap();
    assert!(text.contains("the gateway was restarted"), "{text}");
    assert!(!text.contains("connection"), "{text}");
    server.release("h");
    assert_eq!(client.text(8, "count", json!({})).await, "3");
}

#[tokio::test]
async fn an_answer_that_nobody_heard_before_the_kill_is_redelivered_after_it() {
    let (server, gateway, client) = counted().await;
    let mut flow = client
        .start("POST", call(7, "hold", &json!({ "id": "h" })))
        .await;
    let cursor = flow.event().await.unwrap().id.unwrap();
    server.arrived("h", 1).await;
    drop(flow);
    server.release("h");
    // The answer is at rest when a second reader of the same stream has it.
    let heard = client.listen(Some(&cursor)).await.message().await.unwrap();
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let client = client.moved(&gateway);
    let again = client.listen(Some(&cursor)).await.message().await.unwrap();
    assert_eq!(heard, again);
    assert_eq!(again["id"], 7);
    assert_eq!(server.log().executed("h"), 1);
}

#[tokio::test]
async fn subscriptions_and_log_level_are_made_again_on_the_resumed_session() {
    let (server, gateway, client) = counted().await;
    client
        .ask("101", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    client
        .ask("102", "logging/setLevel", r#"{"level":"error"}"#)
        .await;
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let client = client.moved(&gateway);
    let mut stream = client.listen(None).await;
    assert_eq!(client.text(9, "count", json!({})).await, "3");
    server.wait(|log| log.count("GET") >= 2).await;
    server
        .wait(|log| log.count("resources/subscribe") >= 2)
        .await;
    server.world().update_resource();
    let updated = loop {
        let message = stream.message().await.unwrap();
        if message["method"] == "notifications/resources/updated" {
            break message;
        }
    };
    assert_eq!(updated["params"]["uri"], "test://watched");
    assert_eq!(server.log().initializes, 1);
}

#[tokio::test]
async fn a_session_of_another_definition_is_left_to_expire_and_not_ended() {
    let (server, gateway, client) = counted().await;
    let mut other = config(&server.url);
    other["mcpServers"]["s"]["headers"] = json!({ "X-Team": "b" });
    let gateway = gateway.again("TERM", other).await;
    let client = client.moved(&gateway);
    assert_eq!(
        client.text(3, "count", json!({})).await,
        "1",
        "a session of its own"
    );
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (2, 0));
    assert!(gateway.log().contains("session.left_to_expire"));
}

#[tokio::test]
async fn an_unknown_id_and_another_principals_session_stay_unknown_after_a_restart() {
    let (server, gateway, client) = counted().await;
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let mut stranger = client.moved(&gateway);
    stranger.session = Some("0123456789abcdef0123456789abcdef".to_owned());
    assert_eq!(
        stranger.post(&call(1, "count", &json!({}))).await.status,
        404
    );
    let ended = client.moved(&gateway);
    assert_eq!(ended.start("DELETE", "").await.whole().await.status, 204);
    // Ending a session ends it upstream, also after a restart; nobody waits for that.
    soon("the DELETE", server.wait(|log| log.deletes == 1)).await;
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let ended = ended.moved(&gateway);
    assert_eq!(ended.post(&call(1, "count", &json!({}))).await.status, 404);
}

#[tokio::test]
async fn a_resumed_session_that_is_refused_gets_one_handshake() {
    let settings = Settings {
        bearer: Some("old".to_owned()),
        ..Settings::default()
    };
    let options = Options {
        settings,
        ..Options::default()
    };
    let server = FaultServer::start_with(options).await.unwrap();
    let with = |token: &str| {
        json!({ "mcpServers": { "s": {
            "url": server.url, "headers": { "Authorization": format!("Bearer {token}") },
        } } })
    };
    let gateway = Gateway::start(with("old"), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(client.text(1, "count", json!({})).await, "1");
    // The server takes only another credential now: the session is not resumed with it, and the
    // old one is not ended with it either.
    server
        .faults()
        .set(|settings| settings.bearer = Some("new".to_owned()));
    let gateway = gateway.again("KILL", with("new")).await;
    let client = client.moved(&gateway);
    assert_eq!(client.text(2, "count", json!({})).await, "1");
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (2, 0));
}

/// Sessions that call without a pause while the gateway is killed, and how often that happens. The
/// command in docs/testing.md sets more by the environment.
const SESSIONS: usize = 16;
const KILLS: usize = 12;

/// What became of the calls of one session.
#[derive(Default)]
struct Tally {
    answered: Vec<String>,
    /// The connection broke before anything of an answer: that was the client's answer.
    broken: Vec<String>,
    /// The one answer was that the outcome is unknown.
    unknown: Vec<String>,
    refused: Vec<String>,
}

impl Tally {
    /// Notes the one answer to a call.
    fn note(&mut self, id: String, message: &Value) {
        if message.get("result").is_some() {
            assert_eq!(text_of(message), format!("charged {id}"));
            self.answered.push(id);
        } else if message["error"]["data"]["code"] == "OUTCOME_UNKNOWN" {
            self.unknown.push(id);
        } else {
            self.refused.push(format!("{id}: {message}"));
        }
    }

    fn add(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.broken.extend(other.broken);
        self.unknown.extend(other.unknown);
        self.refused.extend(other.refused);
    }
}

fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// Calls in a closed loop until the address is taken away; each call has an id of its own.
async fn calls(
    who: usize,
    client: Client,
    mut address: watch::Receiver<Option<SocketAddr>>,
    done: Arc<AtomicUsize>,
) -> Tally {
    let mut tally = Tally::default();
    let mut client = client;
    for n in 0.. {
        let Some(at) = *address.borrow_and_update() else {
            break;
        };
        client.address = at;
        let id = format!("k{who}-{n}");
        let body = call(n + 10, "charge", &json!({ "id": id }));
        let Ok(flow) = client.try_start("POST", body).await else {
            tally.broken.push(id);
            // Until the next gateway is there; the old one may still be dying.
            drop(soon("the next gateway", address.changed()).await);
            continue;
        };
        let answer = flow.whole().await;
        assert_eq!(answer.status, 200, "a lost session: {}", answer.text());
        match serde_json::from_str::<Value>(&answer.text()) {
            Ok(message) if message["id"] == n + 10 => {
                tally.note(id, &message);
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(other) => panic!("another call's answer: {other}"),
            Err(_) => {
                tally.broken.push(id);
                drop(soon("the next gateway", address.changed()).await);
            }
        }
    }
    tally
}

/// The same over `connect`, which is one process from the first call to the last. It must answer
/// each call, once.
async fn piped_calls(
    who: usize,
    mut pipe: Pipe,
    is_over: watch::Receiver<Option<SocketAddr>>,
    done: Arc<AtomicUsize>,
) -> Tally {
    let mut tally = Tally::default();
    for n in 0.. {
        if is_over.borrow().is_none() {
            break;
        }
        let id = format!("p{who}-{n}");
        pipe.send(&[&call(n + 10, "charge", &json!({ "id": id }))])
            .await;
        let message = pipe.response().await;
        assert_eq!(message["id"], n + 10, "another call's answer: {message}");
        tally.note(id, &message);
        done.fetch_add(1, Ordering::Relaxed);
    }
    pipe.input = None;
    while let Some(line) = pipe.line().await {
        let message: Value = serde_json::from_str(&line).unwrap();
        assert!(
            message.get("method").is_some(),
            "an answer too many: {line}"
        );
    }
    let (status, said) = pipe.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    tally
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_at_random_moments_lose_no_session_and_run_no_call_twice() {
    let (sessions, kills) = (
        number("SPRINGLINE_SESSIONS", SESSIONS),
        number("SPRINGLINE_KILLS", KILLS),
    );
    let server = FaultServer::start().await.unwrap();
    let mut gateway = Gateway::start(config(&server.url), |_| {}).await;
    let (tell, address) = watch::channel(Some(gateway.address));
    let done = Arc::new(AtomicUsize::new(0));
    let (mut over_http, mut piped) = (Vec::new(), Vec::new());
    for who in 0..sessions {
        let (address, done) = (address.clone(), Arc::clone(&done));
        if who % 2 == 0 {
            let client = gateway.open("/mcp/s").await;
            over_http.push(tokio::spawn(calls(who, client, address, done)));
        } else {
            let mut pipe = connect(&gateway);
            pipe.open().await;
            piped.push(tokio::spawn(piped_calls(who, pipe, address, done)));
        }
    }
    let before = server.log().initializes;
    for kill in 0..kills {
        // At another point of the traffic each time: after so many more answers.
        let until = done.load(Ordering::Relaxed) + 20 + kill * 37 % 101;
        soon("traffic", async {
            while done.load(Ordering::Relaxed) < until {
                tokio::task::yield_now().await;
            }
        })
        .await;
        gateway = gateway.again("KILL", config(&server.url)).await;
        tell.send_replace(Some(gateway.address));
    }
    tell.send_replace(None);
    for (kind, tasks) in [("HTTP", over_http), ("connect", piped)] {
        let count = tasks.len();
        let mut tally = Tally::default();
        for task in tasks {
            tally.add(soon("a session's end", task).await.unwrap());
        }
        check_tally(kind, &tally, &server);
        eprintln!(
            "{kills} kills, {count} sessions over {kind}: {} calls answered and run once, {} told \
             as unknown and {} connections broken, none of them run twice, no session lost",
            tally.answered.len(),
            tally.unknown.len(),
            tally.broken.len()
        );
    }
    let log = server.log();
    assert_eq!(
        log.initializes, before,
        "no handshake for a session that lives"
    );
    assert_eq!(log.without_session, 0);
}

fn check_tally(kind: &str, tally: &Tally, server: &FaultServer) {
    let log = server.log();
    for id in &tally.answered {
        assert_eq!(log.executed(id), 1, "{id} was answered");
    }
    for id in tally.broken.iter().chain(&tally.unknown) {
        assert!(log.executed(id) <= 1, "{id} ran twice");
    }
    assert!(tally.refused.is_empty(), "{:?}", tally.refused);
    assert!(!tally.answered.is_empty(), "there was traffic over {kind}");
}
