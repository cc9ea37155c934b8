//! The server wants other credentials: our trouble, never the client's.

use std::path::Path;

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Options, Reply, Rule, Settings};

use crate::harness::{Client, Gateway, call, fault, initialize, text_of};

/// A server that wants a token, and a gateway that reads it from a file.
async fn setup() -> (FaultServer, Gateway, Client, tempfile::TempDir) {
    let server = FaultServer::start_with(Options {
        settings: Settings {
            bearer: Some("one".to_owned()),
            ..Settings::default()
        },
        ..Options::default()
    })
    .await
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    write(&path, "one");
    let gateway = Gateway::with(entry(&server, &path)).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client, folder)
}

fn entry(server: &FaultServer, path: &Path) -> Value {
    json!({ "s": {
        "url": server.url,
        "headers": { "Authorization": format!("Bearer ${{file:{}}}", path.display()) },
    }})
}

fn write(path: &Path, token: &str) {
    std::fs::write(path, format!("{token}\n")).unwrap();
}

fn want(server: &FaultServer, token: &str) {
    server
        .faults()
        .set(|settings| settings.bearer = Some(token.to_owned()));
}

#[tokio::test]
async fn a_fresh_token_in_the_file_serves_the_same_session() {
    let (server, _gateway, client, folder) = setup().await;
    client.text(1, "charge", json!({"id": "old"})).await;
    want(&server, "two");
    write(&folder.path().join("token"), "two");
    assert_eq!(
        client.text(2, "charge", json!({"id": "new"})).await,
        "charged new"
    );
    let log = server.log();
    assert_eq!(log.initializes, 1);
    assert_eq!(log.executed("new"), 1);
    let sent: Vec<_> = log.of("tools/call").skip(1).collect();
    assert_eq!(sent.len(), 2, "refused once, sent once more");
    assert_eq!(sent[0].status, Some(401));
    assert_eq!(sent[1].headers["authorization"], "Bearer two");
    assert!(
        sent.iter()
            .all(|seen| seen.session.as_ref() == Some(&log.minted[0]))
    );
}

#[tokio::test]
async fn many_calls_that_meet_the_rotation_at_once_all_succeed_once() {
    let (server, _gateway, client, folder) = setup().await;
    want(&server, "two");
    write(&folder.path().join("token"), "two");
    let bodies = (0..20).map(|n| call(n, "charge", &json!({"id": format!("r{n}")})));
    for (n, answer) in client.calls(bodies.collect()).await.iter().enumerate() {
        assert_eq!(text_of(answer), format!("charged r{n}"));
        assert_eq!(server.log().executed(&format!("r{n}")), 1);
    }
    assert_eq!(server.log().initializes, 1);
}

#[tokio::test]
async fn without_a_fresh_token_the_error_names_the_server_and_heals_later() {
    let (server, _gateway, client, folder) = setup().await;
    want(&server, "two");
    for n in 1..3 {
        let answer = client
            .post(&call(n, "charge", &json!({"id": "refused"})))
            .await;
        assert_eq!(answer.status, 200, "our trouble is not the client's 401");
        assert_eq!(answer.header("www-authenticate"), None);
        let response = answer.response();
        assert_eq!(fault(&response), ("UPSTREAM_UNAUTHORIZED", "not_executed"));
        assert_eq!(response["error"]["data"]["server"], "s");
    }
    assert_eq!(server.log().initializes, 1, "a 401 is no lost session");
    write(&folder.path().join("token"), "two");
    assert_eq!(
        client.text(4, "charge", json!({"id": "healed"})).await,
        "charged healed"
    );
    assert_eq!(server.log().initializes, 1);
    assert_eq!(server.log().executed("refused"), 0);
}

#[tokio::test]
async fn a_403_is_treated_alike_and_a_fresh_token_that_is_refused_too_ends_the_call() {
    let (server, _gateway, client, folder) = setup().await;
    server.fault(Rule::times(
        "tools/call",
        2,
        Action::Reply(Reply::status(403)),
    ));
    write(&folder.path().join("token"), "two");
    want(&server, "two");
    let answer = client.call(1, "charge", json!({"id": "x"})).await;
    assert_eq!(
        fault(&answer),
        ("UPSTREAM_UNAUTHORIZED", "not_executed"),
        "{answer}"
    );
    assert_eq!(server.log().count("tools/call"), 2, "once, and once more");
    assert_eq!(server.log().initializes, 1);
    assert_eq!(
        client.text(2, "charge", json!({"id": "y"})).await,
        "charged y"
    );
}

#[tokio::test]
async fn credentials_refused_at_the_first_handshake_open_no_session() {
    let (server, _gateway, _client, folder) = setup().await;
    let path = folder.path().join("token");
    want(&server, "two");
    let gateway = Gateway::with(entry(&server, &path)).await;
    let client = gateway.client("/mcp/s");
    let answer = client.post(&initialize("2025-11-25", "{}")).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("mcp-session-id"), None);
    let response = answer.response();
    assert_eq!(fault(&response).0, "UPSTREAM_UNAUTHORIZED", "{response}");
    assert!(!answer.text().contains("Bearer one"));
    write(&path, "two");
    let client = gateway.open("/mcp/s").await;
    assert_eq!(
        client.text(1, "charge", json!({"id": "z"})).await,
        "charged z"
    );
}

#[tokio::test]
async fn a_server_that_was_seen_before_opens_a_session_even_while_it_refuses() {
    let (server, gateway, _client, folder) = setup().await;
    want(&server, "two");
    let client = gateway.open("/mcp/s").await;
    let answer = client.call(1, "charge", json!({"id": "x"})).await;
    assert_eq!(
        fault(&answer),
        ("UPSTREAM_UNAUTHORIZED", "not_executed"),
        "{answer}"
    );
    write(&folder.path().join("token"), "two");
    assert_eq!(
        client.text(2, "charge", json!({"id": "y"})).await,
        "charged y"
    );
}

#[tokio::test]
async fn a_session_whose_token_was_rotated_in_its_life_goes_on_after_a_kill() {
    let (server, gateway, client, folder) = setup().await;
    want(&server, "two");
    let path = folder.path().join("token");
    write(&path, "two");
    assert_eq!(
        client.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    let config = json!({ "mcpServers": entry(&server, &path) });
    let gateway = gateway.again("KILL", config).await;
    let client = client.moved(&gateway);
    assert_eq!(
        client.text(2, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
}
