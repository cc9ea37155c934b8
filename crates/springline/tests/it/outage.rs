//! The server or its network fails: refused, cut, killed, silent, or answering rubbish.

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Reply, Rule};

use crate::harness::{Client, Gateway, Ledger, Server, call, fault, soon, text_of};

async fn setup() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client)
}

#[tokio::test]
async fn a_server_killed_with_fifty_calls_in_flight_runs_none_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let ledger = Ledger(path.clone());
    let mut server = Server::start(&path, 0).await;
    let port = server.port();
    let gateway = Gateway::with(json!({ "s": {
        "url": server.url, "springline": { "reconnectWait": "20s" },
    }}))
    .await;
    let client = gateway.open("/mcp/s").await;
    // 25 are executed and wait, 25 are refused no answer before they run.
    server
        .order(json!({"do": "rule", "rule": {
            "on": "tools/call", "skip": 25, "times": 25,
            "action": {"kind": "hold_before", "gate": "before"},
        }}))
        .await;
    let bodies: Vec<String> = (0..50)
        .map(|n| {
            call(
                n + 1,
                "charge",
                &json!({"id": format!("k{n}"), "gate": "after"}),
            )
        })
        .collect();
    let calls = tokio::spawn({
        let client = client.clone();
        async move { client.calls(bodies).await }
    });
    server
        .order(json!({"do": "arrived", "id": "after", "count": 25}))
        .await;
    server
        .order(json!({"do": "arrived", "id": "before", "count": 25}))
        .await;
    server.kill().await;
    let answers = calls.await.unwrap();
    for answer in &answers {
        assert!(
            matches!(fault(answer).1, "not_executed" | "unknown"),
            "{answer}"
        );
    }
    let next = client.later(&call(99, "charge", &json!({"id": "next"})));
    let again = Server::start(&path, port).await;
    assert_eq!(text_of(&next.await.unwrap().response()), "charged next");
    assert_eq!(ledger.executed("next"), 1);
    let runs: usize = (0..50).map(|n| ledger.executed(&format!("k{n}"))).sum();
    assert_eq!(runs, 25, "none ran twice");
    for (n, answer) in answers.iter().enumerate() {
        let ran = ledger.executed(&format!("k{n}"));
        assert!(
            ran == 0 || fault(answer).1 == "unknown",
            "k{n} ran: {answer}"
        );
    }
    drop(again);
}

#[tokio::test]
async fn a_server_that_stays_away_is_told_as_not_executed_after_the_wait() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": {
        "url": server.url, "springline": { "reconnectWait": "300ms" },
    }}))
    .await;
    let client = gateway.open("/mcp/s").await;
    let (address, world) = server.stop().await;
    let answer = client.call(1, "charge", json!({"id": "away"})).await;
    assert_eq!(
        fault(&answer),
        ("SERVER_UNREACHABLE", "not_executed"),
        "{answer}"
    );
    assert_eq!(answer["error"]["data"]["server"], "s");
    let server = FaultServer::serve(world, Some(address), false)
        .await
        .unwrap();
    assert_eq!(
        client.text(2, "charge", json!({"id": "back"})).await,
        "charged back"
    );
    let log = server.log();
    assert_eq!(log.executed("away"), 0);
    assert_eq!(log.executed("back"), 1);
    assert_eq!(log.initializes, 1, "the session was never lost");
}

/// One call fails in this way; the session lives on and nothing is initialised anew.
async fn one_call_fails(action: Action, executed: usize) -> Value {
    let what = format!("{action:?}");
    let (server, _gateway, client) = setup().await;
    server.fault(Rule::once("tools/call", action));
    let answer = client.call(1, "charge", json!({"id": "once"})).await;
    assert_eq!(answer["id"], 1, "{what}");
    assert!(
        answer.get("result").is_none(),
        "{what}: a made-up success: {answer}"
    );
    let log = server.log();
    assert_eq!(log.executed("once"), executed, "{what}");
    assert_eq!(log.count("tools/call"), 1, "{what}: sent again");
    assert_eq!(
        client.text(2, "charge", json!({"id": "next"})).await,
        "charged next",
        "{what}"
    );
    assert_eq!(server.log().initializes, 1, "{what}");
    answer
}

#[tokio::test]
async fn a_connection_cut_after_the_request_left_ends_as_unknown() {
    for (action, executed) in [
        (Action::CutAfter, 1),
        (Action::CutBefore, 0),
        (Action::CutBody, 1),
    ] {
        let answer = one_call_fails(action, executed).await;
        assert_eq!(fault(&answer).1, "unknown", "{answer}");
    }
}

#[tokio::test]
async fn a_server_error_ends_one_call_and_nothing_is_initialised_anew() {
    for status in [500, 502, 503, 504] {
        let answer = one_call_fails(Action::Reply(Reply::status(status)), 0).await;
        assert_eq!(fault(&answer).1, "unknown", "{answer}");
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains(&status.to_string())
        );
    }
    let after = one_call_fails(Action::ReplyAfter(Reply::status(503)), 1).await;
    assert_eq!(fault(&after).1, "unknown", "{after}");
}

#[tokio::test]
async fn a_server_that_is_too_busy_says_when_to_come_again() {
    let reply = Reply::status(429).header("retry-after", "7");
    let answer = one_call_fails(Action::Reply(reply), 0).await;
    assert_eq!(
        fault(&answer),
        ("UPSTREAM_REFUSED", "not_executed"),
        "{answer}"
    );
    assert_eq!(answer["error"]["data"]["retryAfterMs"], 7000);
}

#[tokio::test]
async fn an_answer_that_is_none_is_an_error_and_never_a_success() {
    for action in [
        Action::EmptyBody,
        Action::Malformed,
        Action::WrongId,
        Action::MediaType {
            value: "text/html".into(),
        },
        Action::ReplyAfter(
            Reply::status(200)
                .header("content-type", "application/json")
                .body("[]"),
        ),
        Action::ReplyAfter(Reply::status(202)),
        Action::ReplyAfter(Reply::status(204)),
    ] {
        let answer = one_call_fails(action, 1).await;
        assert_eq!(fault(&answer).1, "unknown", "{answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_no_json_is_called_the_servers_fault_and_is_not_quoted() {
    for body in [r#"{"token":"hush"#, r#"{"secret":"hush"}"#, "hush"] {
        let reply = Reply::status(200).header("content-type", "application/json");
        let answer = one_call_fails(Action::ReplyAfter(reply.body(body)), 1).await;
        assert_eq!(fault(&answer), ("BAD_ANSWER", "unknown"), "{answer}");
        let text = answer.to_string();
        assert!(text.contains("HTTP 200 with application/json"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
    let malformed = one_call_fails(Action::Malformed, 1).await;
    assert_eq!(fault(&malformed), ("BAD_ANSWER", "unknown"), "{malformed}");
}

#[tokio::test]
async fn a_servers_own_error_passes_unchanged() {
    let (server, _gateway, client) = setup().await;
    let error = r#"{"code":-32042,"message":"no","data":{"b":1,"a":[1.0,9007199254740993]}}"#;
    let body = format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{error}}}"#);
    let reply = Reply::status(200)
        .header("content-type", "application/json")
        .body(body);
    server.fault(Rule::once("tools/call", Action::Reply(reply)));
    let answer = client.post(&call(1, "charge", &json!({}))).await;
    assert_eq!(answer.status, 200);
    assert!(answer.text().contains(error), "{}", answer.text());
}

#[tokio::test]
async fn a_method_that_only_reads_is_sent_again_after_a_cut() {
    let (server, _gateway, client) = setup().await;
    server.fault(Rule::once("resources/read", Action::CutAfter));
    let answer = client
        .ask("1", "resources/read", r#"{"uri":"test://plain"}"#)
        .await;
    assert_eq!(answer["result"]["contents"][0]["text"], "plain");
    let log = server.log();
    assert_eq!(log.count("resources/read"), 2);
    let ids: Vec<_> = log
        .of("resources/read")
        .map(|seen| seen.id.clone())
        .collect();
    assert_ne!(ids[0], ids[1], "a replay takes a new id");
}

#[tokio::test]
async fn a_silent_server_ends_the_call_by_its_timeout_and_hears_of_it() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": {
        "url": server.url, "springline": { "callTimeout": "200ms" },
    }}))
    .await;
    let client = gateway.open("/mcp/s").await;
    let answer = client
        .call(1, "charge", json!({"id": "slow", "gate": "never"}))
        .await;
    assert_eq!(fault(&answer), ("CALL_TIMEOUT", "unknown"), "{answer}");
    soon(
        "the cancellation",
        server.wait(|log| log.count("notifications/cancelled") == 1),
    )
    .await;
    let log = server.log();
    let cancelled: Value =
        serde_json::from_str(&log.of("notifications/cancelled").next().unwrap().body).unwrap();
    let asked = log.of("tools/call").next().unwrap().id.clone().unwrap();
    assert_eq!(cancelled["params"]["requestId"].to_string(), asked);
    assert_eq!(
        client.text(2, "charge", json!({"id": "next"})).await,
        "charged next"
    );
    assert_eq!(server.log().executed("slow"), 1);
}
