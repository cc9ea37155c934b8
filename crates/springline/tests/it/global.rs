//! One instance of a server for all sessions: each client has its own answers and notices, and
//! nothing of another's.

use serde_json::{Value, json};
use springline_fixture::FaultServer;

use crate::harness::{
    Client, Flow, Gateway, Ledger, call, gone, request, signal, soon, stdio_entry, text_of,
};

fn global(mut entry: Value) -> Value {
    entry["springline"]["scope"] = json!("global");
    entry
}

async fn web() -> (FaultServer, Value) {
    let server = FaultServer::start().await.unwrap();
    let entry = global(json!({ "url": server.url }));
    (server, entry)
}

async fn count(client: &Client, n: u64) -> String {
    client.text(n, "count", json!({})).await
}

async fn end(client: &Client) {
    let ended = client.start("DELETE", "").await.whole().await;
    assert_eq!(ended.status, 204);
}

/// The next message on a stream of messages outside calls.
async fn next(stream: &mut Flow) -> Value {
    soon("a message", stream.message()).await.unwrap()
}

#[tokio::test]
async fn one_session_with_the_server_serves_all_clients_and_ends_with_the_last() {
    let (server, entry) = web().await;
    let alias = json!({ "springline": { "aliasOf": "one" } });
    let gateway = Gateway::with(json!({ "one": entry, "two": alias })).await;
    let clients = [
        gateway.open("/mcp/one").await,
        gateway.open("/mcp/two").await,
        gateway.open("/mcp").await,
    ];
    assert_eq!(count(&clients[0], 1).await, "1");
    assert_eq!(count(&clients[1], 1).await, "2");
    for (n, tool) in ["one__count", "two__count"].into_iter().enumerate() {
        let text = clients[2].text(5 + n as u64, tool, json!({})).await;
        assert_eq!(text, (n + 3).to_string());
    }
    let log = server.log();
    assert_eq!(log.initializes, 1, "{:?}", log.minted);
    let hello = &log.of("initialize").next().unwrap().body;
    assert!(
        hello.contains(r#""name":"springline""#) && !hello.contains("roots"),
        "{hello}"
    );
    end(&clients[0]).await;
    end(&clients[2]).await;
    assert_eq!(count(&clients[1], 2).await, "5");
    assert_eq!(server.log().deletes, 0, "one still uses it");
    end(&clients[1]).await;
    server.wait(|log| log.deletes == 1).await;
    let again = gateway.open("/mcp/one").await;
    assert_eq!(count(&again, 1).await, "1", "a session of its own");
    assert_eq!(server.log().initializes, 2);
}

async fn same_ids(gateway: &Gateway, arrived: impl AsyncFn(), release: impl AsyncFn(&Client)) {
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    let body = |id: &str, token: &str, steps: usize| {
        let params = format!(
            r#"{{"name":"progress","arguments":{{"n":{steps},"gate":"g"}},"_meta":{{"progressToken":{token}}}}}"#
        );
        request(id, "tools/call", &params)
    };
    let cases = [("7", "1", 2), (r#""7""#, r#""1""#, 3)];
    let mut flying = Vec::new();
    for (at, client) in clients.iter().enumerate() {
        for (id, token, steps) in cases {
            flying.push((
                id,
                token,
                steps + at,
                client.later(&body(id, token, steps + at)),
            ));
        }
    }
    arrived().await;
    release(&clients[0]).await;
    for (id, token, steps, later) in flying {
        let answer = soon("an answer", later).await.unwrap();
        let raw = answer.raw();
        let of_token = format!(r#""progressToken":{token}"#);
        let progress: Vec<&String> = raw
            .iter()
            .filter(|text| text.contains("notifications/progress"))
            .collect();
        assert_eq!(progress.len(), steps, "{raw:?}");
        assert!(
            progress.iter().all(|text| text.contains(&of_token)),
            "{raw:?}"
        );
        let response = raw.iter().find(|text| text.contains("result")).unwrap();
        assert!(response.contains(&format!(r#""id":{id}"#)), "{response}");
        assert!(response.contains(&format!("{steps} steps")), "{response}");
    }
}

#[tokio::test]
async fn the_same_ids_and_tokens_on_one_shared_server_never_meet() {
    let (server, entry) = web().await;
    let gateway = Gateway::with(json!({ "s": entry })).await;
    same_ids(
        &gateway,
        async || server.arrived("g", 4).await,
        async |_| server.world().gates.open("g"),
    )
    .await;
    assert_eq!(server.log().initializes, 1);
}

#[tokio::test]
async fn the_same_ids_and_tokens_on_one_shared_child_never_meet() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let entry = global(stdio_entry(&ledger.0, &[]));
    let gateway = Gateway::with(json!({ "s": entry })).await;
    same_ids(
        &gateway,
        async || {
            let ran = |ledger: &Ledger| {
                let runs = ledger.of("execute");
                let progress = |run: &&Value| run["detail"]["tool"] == "progress";
                runs.iter().filter(progress).count() == 4
            };
            ledger.wait("four calls", ran).await;
        },
        async |client| {
            for n in 100..104 {
                client.text(n, "release", json!({ "id": "g" })).await;
            }
        },
    )
    .await;
    assert_eq!(ledger.of("start").len(), 1);
}

#[tokio::test]
async fn changed_lists_reach_all_and_updates_those_that_subscribed() {
    let (server, entry) = web().await;
    let gateway = Gateway::with(json!({ "s": entry })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    let mut streams = Vec::new();
    for client in &clients {
        streams.push(client.listen(None).await);
    }
    let watched = r#"{"uri":"test://watched"}"#;
    for client in &clients {
        client.ask("1", "resources/subscribe", watched).await;
    }
    assert_eq!(server.log().count("resources/subscribe"), 1);
    clients[1].ask("2", "resources/unsubscribe", watched).await;
    assert_eq!(server.log().count("resources/unsubscribe"), 0);
    server.wait(|log| log.count("GET") >= 1).await;
    server.world().update_resource();
    server.world().add_tool();
    let first = next(&mut streams[0]).await;
    assert_eq!(first["method"], "notifications/resources/updated");
    for stream in &mut streams {
        let changed = next(stream).await;
        assert_eq!(changed["method"], "notifications/tools/list_changed");
    }
    end(&clients[0]).await;
    server
        .wait(|log| log.count("resources/unsubscribe") == 1)
        .await;
}

#[tokio::test]
async fn a_log_line_goes_to_the_one_with_a_call_in_flight_and_to_none_of_several() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let gateway = Gateway::with(json!({ "s": global(stdio_entry(&ledger.0, &[])) })).await;
    let (a, b) = (gateway.open("/mcp/s").await, gateway.open("/mcp/s").await);
    let logged = async |n: u64| {
        let body = call(n, "log", &json!({ "text": "only one shall hear" }));
        b.post(&body)
            .await
            .raw()
            .concat()
            .contains("only one shall hear")
    };
    assert!(logged(1).await);
    let flight = a.later(&call(1, "hold", &json!({ "id": "held" })));
    ledger
        .wait("the call", |ledger| ledger.executed("held") == 1)
        .await;
    assert!(!logged(2).await);
    b.text(3, "release", json!({ "id": "held" })).await;
    let answer = soon("the call", flight).await.unwrap();
    assert!(!answer.raw().concat().contains("only one shall hear"));
    assert_eq!(text_of(&answer.response()), "released held");
}

#[tokio::test]
async fn a_lost_session_is_recovered_once_for_all_clients() {
    let (server, entry) = web().await;
    let gateway = Gateway::with(json!({ "s": entry })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    for client in &clients {
        count(client, 1).await;
    }
    server.forget_sessions();
    let bodies = |who: usize| {
        (10..22)
            .map(|n| call(n, "charge", &json!({ "id": format!("{who}-{n}") })))
            .collect()
    };
    let (first, second) = tokio::join!(clients[0].calls(bodies(0)), clients[1].calls(bodies(1)));
    for (who, answers) in [first, second].into_iter().enumerate() {
        for (n, answer) in (10..22).zip(answers) {
            assert_eq!(text_of(&answer), format!("charged {who}-{n}"));
        }
    }
    let log = server.log();
    assert_eq!(log.initializes, 2);
    for who in 0..2 {
        for n in 10..22 {
            assert_eq!(log.executed(&format!("{who}-{n}")), 1);
        }
    }
}

#[tokio::test]
async fn a_shared_child_that_dies_is_started_once_for_all_clients() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let gateway = Gateway::with(json!({ "s": global(stdio_entry(&ledger.0, &[])) })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    for client in &clients {
        count(client, 1).await;
    }
    let first = ledger.pid(0);
    signal(first, "KILL");
    // A call that is written to it before would be in doubt, and rightly end so.
    gone(first).await;
    let (first, second) = tokio::join!(
        clients[0].text(2, "charge", json!({ "id": "a" })),
        clients[1].text(2, "charge", json!({ "id": "b" }))
    );
    assert_eq!(
        (first.as_str(), second.as_str()),
        ("charged a", "charged b")
    );
    assert_eq!(ledger.of("start").len(), 2);
    for client in &clients {
        end(client).await;
    }
    gone(ledger.pid(1)).await;
}

#[tokio::test]
async fn a_shared_session_is_resumed_once_after_a_kill_and_waits_for_all_that_may_come_back() {
    let (server, entry) = web().await;
    let config = json!({ "mcpServers": { "s": entry } });
    let gateway = Gateway::start(config.clone(), |_| {}).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    let watched = r#"{"uri":"test://watched"}"#;
    clients[1].ask("9", "resources/subscribe", watched).await;
    for client in &clients {
        count(client, 1).await;
    }
    let gateway = gateway.again("KILL", config).await;
    let clients = clients.map(|client| client.moved(&gateway));
    assert_eq!(count(&clients[0], 2).await, "3");
    end(&clients[0]).await;
    let mut stream = clients[1].listen(None).await;
    assert_eq!(count(&clients[1], 2).await, "4");
    server.wait(|log| log.count("GET") >= 2).await;
    server.world().update_resource();
    assert_eq!(
        next(&mut stream).await["method"],
        "notifications/resources/updated"
    );
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
    let third = gateway.open("/mcp/s").await;
    assert_eq!(count(&third, 1).await, "5");
    for client in [&clients[1], &third] {
        end(client).await;
    }
    server.wait(|log| log.deletes == 1).await;
    assert_eq!(server.log().initializes, 1);
}
