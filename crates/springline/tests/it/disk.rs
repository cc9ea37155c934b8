//! A disk that is full for a while, with the real gateway on it: no file of its can grow meanwhile.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use springline_fixture::FaultServer;

use crate::harness::{Answer, Client, Gateway, call, fault, soon, text_of};

/// More calls than the journal has room for without growing.
const BATCHES_MAX: u64 = 80;
const BATCH: u64 = 50;

fn config(url: &str) -> Value {
    json!({ "mcpServers": { "s": { "url": url } } })
}

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

/// Calls until some are withheld; each ran once or was refused as one that did not run.
async fn call_until_withheld(client: &Client, server: &FaultServer) {
    for batch in 0..BATCHES_MAX {
        let ids = batch * BATCH + 100..(batch + 1) * BATCH + 100;
        let bodies = ids
            .clone()
            .map(|n| call(n, "charge", &json!({ "id": format!("c{n}") })));
        let answers = client.calls(bodies.collect()).await;
        let log = server.log();
        let mut withheld = 0;
        for (n, answer) in ids.zip(answers) {
            let id = format!("c{n}");
            if answer.get("error").is_some() {
                assert_eq!(fault(&answer), ("STATE_UNWRITABLE", "not_executed"));
                assert_eq!(log.executed(&id), 0);
                withheld += 1;
            } else {
                assert_eq!(text_of(&answer), format!("charged {id}"));
                assert_eq!(log.executed(&id), 1);
            }
        }
        if withheld > 0 {
            return;
        }
    }
    panic!("every call left, though none could be written down");
}

#[tokio::test]
async fn a_full_disk_withholds_calls_until_there_is_room_and_then_no_session_is_lost() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::start(config(&server.url), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(client.text(1, "count", json!({})).await, "1");
    let ready = ask(&gateway, "/readyz").await;
    assert_eq!((ready.status, ready.text().as_str()), (200, "ok\n"));

    let_files_grow(gateway.pid(), false);
    let late = gateway.open("/mcp/s").await;
    call_until_withheld(&client, &server).await;
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
    soon("the recovery", async {
        while ask(&gateway, "/readyz").await.status != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
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
    assert_eq!(before.initializes, 2);
    let gateway = gateway.again("KILL", config(&server.url)).await;
    let status = ask(&gateway, "/api/status").await.json();
    assert_eq!(status["sessions"]["atRest"], 2, "{status}");
    let client = client.moved(&gateway);
    assert_eq!(client.text(30, "count", json!({})).await, "2");
    let late = late.moved(&gateway);
    assert_eq!(late.text(30, "count", json!({})).await, "1");
    assert_eq!(
        server.log().initializes,
        2,
        "both go on with their sessions"
    );
}
