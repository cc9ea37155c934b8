//! A disk that is full for a while, with the real gateway on it: no file of its can grow meanwhile.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use springline_fixture::FaultServer;

use crate::comeback::connect;
use crate::harness::{Answer, Client, Gateway, call, fault, soon, text_of};
use crate::pipe::Pipe;

/// More calls than the journal has room for without growing.
const BATCHES_MAX: u64 = 80;
const BATCH: u64 = 50;

fn config(url: &str) -> Value {
    json!({ "mcpServers": { "s": { "url": url } } })
}

/// What a gateway may write of a file: enough for the index of the database, and too little for the journal.
const SMALL: u64 = 32 << 10;

/// Whether the files of a process may grow.
fn let_files_grow(pid: u32, is_allowed: bool) {
    let mut limit = getrlimit(Resource::Fsize);
    if !is_allowed {
        limit = Rlimit {
            current: Some(0),
            maximum: limit.maximum,
        };
    }
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    prlimit(Some(pid), Resource::Fsize, limit).unwrap();
}

async fn ask(gateway: &Gateway, path: &str) -> Answer {
    let asker = gateway.client(path);
    asker.start("GET", "").await.whole().await
}

/// Calls until the journal has no room; each ran once or was refused as one that did not run. One is refused
/// if the journal held it as accepted at that moment, which none need be.
async fn call_until_full(gateway: &Gateway, client: &Client, server: &FaultServer) {
    for batch in 0..BATCHES_MAX {
        let ids = batch * BATCH + 100..(batch + 1) * BATCH + 100;
        let bodies = ids
            .clone()
            .map(|n| call(n, "charge", &json!({ "id": format!("c{n}") })));
        let answers = client.calls(bodies.collect()).await;
        let log = server.log();
        for (n, answer) in ids.zip(answers) {
            let id = format!("c{n}");
            if answer.get("error").is_some() {
                assert_eq!(fault(&answer), ("STATE_UNWRITABLE", "not_executed"));
                assert_eq!(log.executed(&id), 0);
            } else {
                assert_eq!(text_of(&answer), format!("charged {id}"));
                assert_eq!(log.executed(&id), 1);
            }
        }
        if ask(gateway, "/readyz")
            .await
            .text()
            .contains("journal since")
        {
            return;
        }
    }
    panic!("the journal had room for all of them");
}

/// A call that must not leave while it cannot be written down: after a kill `connect` would send it again.
async fn withheld(pipe: &mut Pipe, id: u64) {
    pipe.send(&[&call(id, "charge", &json!({ "id": "early" }))])
        .await;
    let answer = pipe.response().await;
    assert_eq!(fault(&answer), ("STATE_UNWRITABLE", "not_executed"));
}

#[tokio::test]
async fn a_full_disk_withholds_calls_until_there_is_room_and_then_no_session_is_lost() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(client.text(1, "count", json!({})).await, "1");
    let ready = ask(&gateway, "/readyz").await;
    assert_eq!((ready.status, ready.text().as_str()), (200, "ok\n"));

    let mut pipe = connect(&gateway);
    pipe.open().await;
    let_files_grow(gateway.pid(), false);
    let late = gateway.open("/mcp/s").await;
    call_until_full(&gateway, &client, &server).await;
    withheld(&mut pipe, 1).await;
    let ready = ask(&gateway, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("records since"), "{}", ready.text());
    let status = ask(&gateway, "/api/status").await.json();
    assert_eq!(status["state"]["writable"], false, "{status}");
    assert_eq!(status["state"]["failures"].as_array().unwrap().len(), 2);
    let metrics = ask(&gateway, "/metrics").await.text();
    for what in ["records", "journal"] {
        let line = format!("springline_state_writable{{what=\"{what}\"}} 0\n");
        assert!(metrics.contains(&line), "{metrics}");
    }

    let_files_grow(gateway.pid(), true);
    recovered(&gateway).await;
    let metrics = ask(&gateway, "/metrics").await.text();
    for event in ["store.failed", "store.recovered"] {
        let line = format!("springline_events_total{{event=\"{event}\"}} 2\n");
        assert!(metrics.contains(&line), "{metrics}");
    }
    let bodies = (1..=20).map(|n| call(n, "charge", &json!({ "id": format!("after{n}") })));
    for (n, answer) in (1..=20).zip(client.calls(bodies.collect()).await) {
        assert_eq!(text_of(&answer), format!("charged after{n}"));
    }

    let before = server.log();
    assert_eq!((before.initializes, before.executed("early")), (3, 0));
    drop(pipe);
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let status = ask(&gateway, "/api/status").await.json();
    let at_rest = status["sessions"]["atRest"].as_u64().unwrap();
    assert!(at_rest >= 2, "{status}");
    let client = client.moved(&gateway);
    assert_eq!(client.text(30, "count", json!({})).await, "2");
    let late = late.moved(&gateway);
    assert_eq!(late.text(30, "count", json!({})).await, "1");
    assert_eq!(
        server.log().initializes,
        3,
        "both go on with their sessions"
    );
}

/// Waits until the gateway has opened all again.
async fn recovered(gateway: &Gateway) {
    soon("the recovery", async {
        while ask(gateway, "/readyz").await.status != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_gateway_starts_on_a_full_disk_with_all_that_it_held_and_recovers_by_itself() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(client.text(1, "count", json!({})).await, "1");

    let gateway = gateway.again_within(SMALL, config(&server.url)).await;
    let ready = ask(&gateway, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("journal since"), "{}", ready.text());
    let status = ask(&gateway, "/api/status").await.json();
    assert_eq!(status["state"]["writable"], false, "{status}");
    let client = client.moved(&gateway);
    assert_eq!(client.text(2, "count", json!({})).await, "2");

    // Once more: no number of the life before comes again, and no half-made file is in the way.
    let gateway = gateway.again_within(SMALL, config(&server.url)).await;
    let client = client.moved(&gateway);
    assert_eq!(client.text(3, "count", json!({})).await, "3");

    let_files_grow(gateway.pid(), true);
    recovered(&gateway).await;
    let metrics = ask(&gateway, "/metrics").await.text();
    let failed = count_of(&metrics, "store.failed");
    assert!(failed > 0, "{metrics}");
    assert_eq!(count_of(&metrics, "store.recovered"), failed);
    let gateway = gateway.again("KILL", config(&server.url)).await;
    assert_eq!(ask(&gateway, "/readyz").await.status, 200);
    let client = client.moved(&gateway);
    assert_eq!(client.text(4, "count", json!({})).await, "4");
    assert_eq!(server.log().initializes, 1, "it is one session all along");
}

fn count_of(metrics: &str, event: &str) -> u64 {
    let start = format!("springline_events_total{{event=\"{event}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn what_was_in_flight_before_a_start_on_a_full_disk_stays_unknown_and_runs_once() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    let mut flow = client
        .start("POST", call(7, "hold", &json!({ "id": "h" })))
        .await;
    let cursor = flow.event().await.unwrap().id.unwrap();
    server.arrived("h", 1).await;
    let mut pipe = connect(&gateway);
    pipe.open().await;
    pipe.send(&[&call(1, "hold", &json!({ "id": "p" }))]).await;
    server.arrived("p", 1).await;

    let mut gateway = gateway.again_within(SMALL, config(&server.url)).await;
    let answer = pipe.response().await;
    assert_eq!(fault(&answer), ("OUTCOME_UNKNOWN", "unknown"));
    withheld(&mut pipe, 2).await;
    for life in 0..3 {
        let client = client.clone().moved(&gateway);
        let mut resumed = client.listen(Some(&cursor)).await;
        let answer = resumed.message().await.unwrap();
        assert_eq!(answer["id"], 7);
        let told = fault(&answer);
        assert_eq!(told, ("OUTCOME_UNKNOWN", "unknown"), "life {life}");
        drop(resumed);
        gateway = match life {
            // The disk has heard nothing of that.
            0 => gateway.again_within(SMALL, config(&server.url)).await,
            1 => {
                let_files_grow(gateway.pid(), true);
                recovered(&gateway).await;
                gateway.again("KILL", config(&server.url)).await
            }
            _ => gateway,
        };
    }
    pipe.send(&[&call(3, "charge", &json!({ "id": "late" }))])
        .await;
    assert_eq!(text_of(&pipe.response().await), "charged late");
    server.release("h");
    server.release("p");
    assert_eq!(
        client.moved(&gateway).text(8, "count", json!({})).await,
        "1"
    );
    let log = server.log();
    let calls = ["h", "p", "early", "late"].map(|id| log.executed(id));
    assert!(calls[0] <= 1 && calls[1] <= 1, "{calls:?}");
    assert_eq!(calls[2..], [0, 1]);
    assert_eq!(log.count("tools/call"), 4, "none was sent again");
}
