//! `bridge --resume NAME`: a client that is started anew goes on with the session of before.

use std::path::Path;

use serde_json::json;
use springline_fixture::{Action, FaultServer, Reply, Rule};

use crate::harness::{CAPABILITIES, Gateway, INITIALIZED, call, initialize, signal};
use crate::pipe::Pipe;

/// A bridge that keeps its session under this name.
fn kept(state: &Path, name: &str, url: &str, more: &[&str]) -> Pipe {
    let mut args = vec!["bridge", "--resume", name, "--state-dir"];
    args.push(state.to_str().unwrap());
    args.extend_from_slice(more);
    args.push(url);
    Pipe::start(args)
}

/// Ends a bridge by the end of its input: what it said.
async fn end(mut pipe: Pipe) -> String {
    pipe.input = None;
    let (status, said) = pipe.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    said
}

#[tokio::test]
async fn a_client_that_is_started_anew_goes_on_with_its_session() {
    let server = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    for (round, kills) in [false, true, false].into_iter().enumerate() {
        let mut pipe = kept(state.path(), "n", &server.url, &[]);
        pipe.open().await;
        let id = format!("r{round}");
        let text = pipe.text(1, "charge", json!({ "id": id })).await;
        assert_eq!(text, format!("charged {id}"));
        if kills {
            signal(pipe.child.id().unwrap(), "KILL");
            pipe.ended().await;
        } else {
            assert_eq!(end(pipe).await, "");
        }
    }
    let log = server.log();
    assert_eq!((log.initializes, log.initialized, log.deletes), (1, 1, 0));
    assert_eq!((log.without_session, log.uninitialised), (0, 0));
    assert_eq!(log.executions.len(), 3);
    let sessions: Vec<_> = log.of("tools/call").map(|seen| &seen.session).collect();
    assert!(sessions.iter().all(|id| *id == sessions[0]), "{sessions:?}");
    let mut ids: Vec<_> = log.of("tools/call").map(|seen| seen.id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "no request id comes twice in one session");
}

#[tokio::test]
async fn the_end_of_a_bridge_without_a_name_ends_its_session_as_ever() {
    let server = FaultServer::start().await.unwrap();
    let mut pipe = Pipe::start(["bridge", &server.url]);
    pipe.open().await;
    end(pipe).await;
    assert_eq!((server.log().initializes, server.log().deletes), (1, 1));
}

#[tokio::test]
async fn a_client_with_other_parameters_ends_the_kept_session_once_and_opens_its_own() {
    let server = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.open().await;
    end(pipe).await;
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.send(&[&initialize("2025-11-25", "{}"), INITIALIZED])
        .await;
    assert!(pipe.response().await.get("result").is_some());
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    end(pipe).await;
    // The same parameters in another writing are the same.
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    let other_writing = initialize("2025-11-25", "{ }").replace(
        r#""name":"it","version":"1""#,
        r#""version" : "1", "name" : "i\u0074""#,
    );
    pipe.send(&[&other_writing, INITIALIZED]).await;
    assert!(pipe.response().await.get("result").is_some());
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    end(pipe).await;
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (2, 1));
    let ended = log.of("DELETE").next().unwrap();
    assert_eq!(ended.session.as_ref(), log.minted.first());
    assert_eq!((log.executed("a"), log.executed("b")), (1, 1));
}

#[tokio::test]
async fn a_session_of_other_credentials_or_another_server_is_left_to_expire() {
    let server = FaultServer::start().await.unwrap();
    let other = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let secret = "x-key: s3cret-1";
    let mut pipe = kept(state.path(), "n", &server.url, &["--header", secret]);
    pipe.open().await;
    end(pipe).await;
    let mut pipe = kept(
        state.path(),
        "n",
        &server.url,
        &["--header", "x-key: s3cret-2"],
    );
    pipe.open().await;
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    let said = end(pipe).await;
    assert!(said.contains("left to expire"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    assert_eq!((server.log().initializes, server.log().deletes), (2, 0));
    let mut pipe = kept(state.path(), "n", &other.url, &["--header", secret]);
    pipe.open().await;
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    end(pipe).await;
    assert_eq!((server.log().initializes, server.log().deletes), (2, 0));
    assert_eq!((other.log().initializes, other.log().deletes), (1, 0));
}

#[tokio::test]
async fn a_second_bridge_of_the_same_name_says_so_and_leaves() {
    let server = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut first = kept(state.path(), "n", &server.url, &[]);
    first.open().await;
    let mut second = kept(state.path(), "n", &server.url, &[]);
    let (status, said) = second.ended().await;
    assert_eq!(status.code(), Some(4), "{said}");
    assert!(
        said.contains(&first.child.id().unwrap().to_string()),
        "{said}"
    );
    let mut other = kept(state.path(), "m", &server.url, &[]);
    other.open().await;
    assert_eq!(
        first.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!((server.log().initializes, server.log().deletes), (2, 0));
}

#[tokio::test]
async fn a_server_that_lost_the_kept_session_costs_one_handshake() {
    let server = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.open().await;
    end(pipe).await;
    server.forget_sessions();
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    let first = initialize("2025-11-25", CAPABILITIES);
    let calls: Vec<String> = (1..=3)
        .map(|n| call(n, "charge", &json!({"id": format!("o{n}")})))
        .collect();
    let mut lines = vec![&*first, INITIALIZED];
    lines.extend(calls.iter().map(String::as_str));
    pipe.send(&lines).await;
    for _ in 0..4 {
        let answer = pipe.response().await;
        assert!(answer.get("result").is_some(), "{answer}");
    }
    end(pipe).await;
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (2, 0));
    assert_eq!(log.executions.len(), 3);
    // And the new one is kept.
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.open().await;
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!(server.log().initializes, 2);
}

#[tokio::test]
async fn a_first_request_that_is_refused_with_401_costs_one_handshake_and_a_later_one_none() {
    let server = FaultServer::start().await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.open().await;
    end(pipe).await;
    let refuse = || Rule::once("tools/call", Action::Reply(Reply::status(401)));
    server.fault(refuse());
    let mut pipe = kept(state.path(), "n", &server.url, &[]);
    pipe.open().await;
    assert_eq!(
        pipe.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!(server.log().initializes, 2);
    server.fault(refuse());
    pipe.send(&[&call(2, "charge", &json!({"id": "b"}))]).await;
    let answer = pipe.response().await;
    assert_eq!(
        crate::harness::fault(&answer),
        ("UPSTREAM_UNAUTHORIZED", "not_executed")
    );
    assert_eq!((server.log().initializes, server.log().deletes), (2, 0));
}

#[tokio::test]
async fn nothing_is_kept_of_a_program_or_under_a_bad_name() {
    let cases: [&[&str]; 2] = [
        &["bridge", "--resume", "n", "--", "cat"],
        &["bridge", "--resume", "../n", "http://127.0.0.1:1/mcp"],
    ];
    for args in cases {
        let (status, said) = Pipe::start(args).ended().await;
        assert_eq!(status.code(), Some(2), "{said}");
        assert!(said.contains("--resume"), "{said}");
    }
}

#[tokio::test]
async fn a_url_that_is_no_mcp_endpoint_is_called_so() {
    let page = |status| {
        Reply::status(status)
            .header("content-type", "text/html; charset=utf-8")
            .body("<!DOCTYPE html><title>Welcome to the wiki</title><p>A long page")
    };
    for (reply, told) in [
        (
            page(200),
            "HTTP 200: text/html, titled \"Welcome to the wiki\"",
        ),
        (
            page(404),
            "HTTP 404: text/html, titled \"Welcome to the wiki\"",
        ),
        (Reply::status(405).body("Method Not Allowed"), "HTTP 405"),
        (Reply::status(501), "HTTP 501"),
    ] {
        let server = FaultServer::start().await.unwrap();
        server.fault(Rule::always("initialize", Action::Reply(reply)));
        let mut pipe = Pipe::start(["bridge", &server.url]);
        pipe.send(&[&initialize("2025-11-25", CAPABILITIES)]).await;
        let answer = pipe.response().await;
        let kind = crate::harness::fault(&answer);
        assert_eq!(kind, ("NOT_MCP_ENDPOINT", "not_executed"), "{answer}");
        pipe.input = None;
        let (status, said) = pipe.ended().await;
        assert_eq!(status.code(), Some(1), "{said}");
        for part in ["the URL is no MCP endpoint", told, "/mcp", "/sse"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
        let client = gateway.client("/mcp/s");
        let answer = client
            .post(&initialize("2025-11-25", "{}"))
            .await
            .response();
        assert_eq!(crate::harness::fault(&answer).0, "NOT_MCP_ENDPOINT");
        let servers = tokio::process::Command::new(env!("CARGO_BIN_EXE_springline"))
            .args(["servers", "--json", "--socket"])
            .arg(gateway.folder.path().join("run/springline.sock"))
            .output()
            .await
            .unwrap();
        let servers = String::from_utf8(servers.stdout).unwrap();
        assert!(servers.contains("the URL is no MCP endpoint"), "{servers}");
    }
}
