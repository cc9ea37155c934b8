//! The server's sessions are lost, and recoveries fail half-way.

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Gone, Log, Reply, Rule};

use crate::harness::{Answer, Client, Gateway, call, fault, notification, soon, text_of};

/// A gateway before a server, and a client whose session is in use.
async fn setup() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "backoffMin": "20ms", "backoffMax": "100ms" },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    assert_eq!(
        client.text(1, "charge", json!({"id": "first"})).await,
        "charged first"
    );
    (server, gateway, client)
}

/// What holds of every server at all times: I6, I14 and the rules of `initialize`.
fn assert_orderly(log: &Log) {
    assert_eq!(log.without_session, 0, "requests without a session id");
    assert_eq!(
        log.uninitialised, 0,
        "requests into a session before it was initialised"
    );
    assert_eq!(
        log.initializes_with_session, 0,
        "initialize with a session id"
    );
}

async fn fifty_calls_survive(gone: Gone) {
    let (server, _gateway, client) = setup().await;
    server.faults().set(|settings| settings.gone = gone);
    let before = server.log();
    server.forget_sessions();
    let bodies = (100..150).map(|n| call(n, "charge", &json!({"id": format!("c{n}")})));
    let answers = client.calls(bodies.collect()).await;
    for (n, answer) in (100..150).zip(&answers) {
        assert_eq!(answer["id"], n);
        assert_eq!(text_of(answer), format!("charged c{n}"));
    }
    let log = server.log();
    assert_eq!(
        log.initializes,
        before.initializes + 1,
        "one recovery for all"
    );
    for n in 100..150 {
        assert_eq!(log.executed(&format!("c{n}")), 1, "c{n}");
    }
    assert_orderly(&log);
    let minted = log.minted.last().unwrap();
    let new = &log.executions[before.executions.len()..];
    assert!(new.iter().all(|run| run.session == *minted));
}

fn gone(status: u16, code: i64, message: &str) -> Gone {
    Gone {
        status,
        code,
        message: message.to_owned(),
        bare: false,
    }
}

#[tokio::test]
async fn fifty_calls_at_once_after_a_404_share_one_recovery() {
    fifty_calls_survive(Gone::default()).await;
}

#[tokio::test]
async fn fifty_calls_at_once_after_a_bare_404_share_one_recovery() {
    fifty_calls_survive(Gone {
        bare: true,
        ..Gone::default()
    })
    .await;
}

#[tokio::test]
async fn fifty_calls_at_once_after_a_400_of_a_known_kind_share_one_recovery() {
    fifty_calls_survive(gone(
        400,
        -32000,
        "Bad Request: No valid session ID provided",
    ))
    .await;
}

#[tokio::test]
async fn every_known_form_of_a_lost_session_is_recognised() {
    let (server, _gateway, client) = setup().await;
    let forms = [
        gone(404, -32001, "Session not found"),
        gone(404, -32600, "no such thing"),
        gone(400, -32001, "whatever"),
        gone(400, -32000, "Session not found"),
        gone(400, -32600, "Invalid session"),
        gone(400, -32000, "Your session has expired"),
        gone(400, -32600, "SESSION TERMINATED"),
        gone(400, -32000, "unknown session"),
    ];
    for (n, form) in (10..).zip(forms) {
        let what = format!("{form:?}");
        server.faults().set(|settings| settings.gone = form);
        server.forget_sessions();
        let answer = client
            .call(n, "charge", json!({"id": format!("f{n}")}))
            .await;
        assert!(answer.get("result").is_some(), "{what}: {answer}");
        assert_eq!(server.log().executed(&format!("f{n}")), 1, "{what}");
    }
    assert_eq!(server.log().initializes, 9);
    assert_orderly(&server.log());
}

#[tokio::test]
async fn a_404_of_html_is_a_lost_session_too() {
    let (server, _gateway, client) = setup().await;
    let html = Reply::status(404)
        .header("content-type", "text/html")
        .body("<h1>Not Found</h1>");
    server.fault(Rule::once("tools/call", Action::Reply(html)));
    assert_eq!(
        client.text(2, "charge", json!({"id": "html"})).await,
        "charged html"
    );
    assert_eq!(server.log().executed("html"), 1);
    assert_eq!(server.log().initializes, 2);
}

#[tokio::test]
async fn a_400_of_another_kind_is_an_error_of_the_call_alone() {
    let (server, _gateway, client) = setup().await;
    for (n, reply) in (2..).zip([
        Reply::error(400, -32602, "the session of parliament is not found"),
        Reply::error(400, -32000, "Bad Request: unknown tool"),
        Reply::status(400),
    ]) {
        server.fault(Rule::once("tools/call", Action::Reply(reply)));
        let answer = client.call(n, "charge", json!({"id": "x"})).await;
        assert!(answer.get("error").is_some(), "{answer}");
        assert_eq!(answer["id"], n);
    }
    assert_eq!(server.log().initializes, 1);
    assert_eq!(server.log().executed("x"), 0);
}

/// A recovery is refused in this way once: its owner hears of it, the next call is served.
async fn recovery_fails_once(on: &str, action: Action) -> (Value, Log) {
    let what = format!("{on} {action:?}");
    // An id that never arrived cannot be ended.
    let is_known = !matches!(action, Action::CutAfter);
    let (server, _gateway, client) = setup().await;
    server.forget_sessions();
    server.fault(Rule::once(on, action));
    let answer = client.call(2, "charge", json!({"id": "owner"})).await;
    assert_eq!(answer["id"], 2, "{what}");
    assert_eq!(
        fault(&answer),
        ("SESSION_RECOVERY_FAILED", "not_executed"),
        "{what}: {answer}"
    );
    let next = client.text(3, "charge", json!({"id": "next"})).await;
    assert_eq!(next, "charged next", "{what}");
    let log = server.log();
    assert_eq!(log.executed("owner"), 0, "{what}");
    assert_eq!(log.executed("next"), 1, "{what}");
    assert_eq!(log.initializes, 3, "{what}");
    assert_orderly(&log);
    // What the failed handshake minted is ended, and the session in use is not.
    let in_use = log.executions.last().unwrap().session.clone();
    let orphans: Vec<String> = log.minted[1..]
        .iter()
        .filter(|id| is_known && **id != in_use)
        .cloned()
        .collect();
    soon(
        "the DELETE of the half-open session",
        server.wait(|log| {
            orphans.iter().all(|id| {
                log.of("DELETE")
                    .any(|seen| seen.session.as_ref() == Some(id))
            })
        }),
    )
    .await;
    let log = server.log();
    assert!(
        log.of("DELETE")
            .all(|seen| seen.session.as_ref() != Some(&in_use)),
        "{what}"
    );
    (answer, log)
}

fn messages(answer: &Answer) -> Vec<Value> {
    let raw = answer.raw();
    raw.iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect()
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn a_recovery_refused_by_status_is_told_with_its_phase() {
    let (answer, _) = recovery_fails_once("initialize", Action::Reply(Reply::status(503))).await;
    assert!(message(&answer).contains("initialize"), "{answer}");
    assert!(message(&answer).contains("503"), "{answer}");
}

#[tokio::test]
async fn a_recovery_that_is_cut_leaves_the_next_call_served() {
    recovery_fails_once("initialize", Action::CutAfter).await;
    recovery_fails_once("initialize", Action::CutBody).await;
}

#[tokio::test]
async fn a_recovery_with_an_unusable_answer_leaves_the_next_call_served() {
    recovery_fails_once("initialize", Action::EmptyBody).await;
    recovery_fails_once("initialize", Action::Malformed).await;
    let wrong = r#"{"jsonrpc":"2.0","id":$ID,"result":{"protocolVersion":"1999-01-01","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}"#;
    let reply = Reply::status(200)
        .header("content-type", "application/json")
        .body(wrong);
    let (answer, _) = recovery_fails_once("initialize", Action::ReplyAfter(reply)).await;
    assert!(message(&answer).contains("1999-01-01"), "{answer}");
}

#[tokio::test]
async fn a_recovery_refused_by_a_json_rpc_error_names_code_and_message() {
    let reply = Reply::error(200, -32603, "no more\nsessions\u{202e} today");
    let (answer, _) = recovery_fails_once("initialize", Action::Reply(reply)).await;
    assert!(message(&answer).contains("-32603"), "{answer}");
    assert!(
        message(&answer).contains("no more sessions today"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_recovery_whose_initialized_is_refused_enters_nothing_and_is_done_afresh() {
    let (answer, log) = recovery_fails_once(
        "notifications/initialized",
        Action::Reply(Reply::status(502)),
    )
    .await;
    assert!(
        message(&answer).contains("notifications/initialized"),
        "{answer}"
    );
    assert_eq!(log.minted.len(), 3);
}

#[tokio::test]
async fn of_two_waiting_calls_the_owner_fails_and_the_other_owns_the_next_attempt() {
    let (server, _gateway, client) = setup().await;
    server.forget_sessions();
    server.fault(Rule::once(
        "notifications/initialized",
        Action::HoldBefore {
            gate: "half".into(),
        },
    ));
    server.fault(Rule::once(
        "notifications/initialized",
        Action::Reply(Reply::status(502)),
    ));
    let bodies: Vec<String> = (0..8)
        .map(|n| call(n + 10, "charge", &json!({"id": format!("w{n}")})))
        .collect();
    let calls = tokio::spawn({
        let client = client.clone();
        async move { client.calls(bodies).await }
    });
    soon("the half-open session", server.arrived("half", 1)).await;
    server.release("half");
    let answers = calls.await.unwrap();
    let failed: Vec<&Value> = answers
        .iter()
        .filter(|answer| answer.get("error").is_some())
        .collect();
    assert_eq!(failed.len(), 1, "{answers:?}");
    assert_eq!(fault(failed[0]).0, "SESSION_RECOVERY_FAILED");
    let log = server.log();
    let runs: usize = (0..8).map(|n| log.executed(&format!("w{n}"))).sum();
    assert_eq!(runs, 7);
    assert_eq!(log.initializes, 3);
    assert_orderly(&log);
}

#[tokio::test]
async fn a_server_that_forgets_at_once_costs_bounded_sends_and_no_wedge() {
    let (server, _gateway, client) = setup().await;
    server.fault(Rule::always(
        "tools/call",
        Action::Reply(Reply::error(404, -32001, "Session not found")),
    ));
    let before = server.log();
    let answer = client.call(2, "charge", json!({"id": "lost"})).await;
    assert_eq!(fault(&answer).1, "not_executed", "{answer}");
    let after = server.log();
    assert_eq!(
        after.count("tools/call") - before.count("tools/call"),
        2,
        "sent once more"
    );
    assert_eq!(after.initializes - before.initializes, 1);
    for n in 3..7 {
        let answer = client.call(n, "charge", json!({"id": "lost"})).await;
        assert_eq!(fault(&answer).1, "not_executed");
    }
    let sends = server.log().count("tools/call") - after.count("tools/call");
    assert!(sends <= 8, "four calls were sent {sends} times");
    server.faults().clear();
    assert_eq!(
        client.text(9, "charge", json!({"id": "good"})).await,
        "charged good"
    );
    assert_eq!(server.log().executed("good"), 1);
    assert_eq!(server.log().executed("lost"), 0);
    assert_orderly(&server.log());
}

#[tokio::test]
async fn in_session_state_is_made_again_and_its_loss_is_told_once() {
    let (server, _gateway, client) = setup().await;
    let mut stream = client.listen(None).await;
    let done = client
        .ask("2", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    assert!(done.get("result").is_some(), "{done}");
    let done = client
        .ask("3", "logging/setLevel", r#"{"level":"warning"}"#)
        .await;
    assert!(done.get("result").is_some(), "{done}");
    assert_eq!(client.text(4, "count", json!({})).await, "1");
    server.forget_sessions();
    let answer = client.post(&call(5, "count", &json!({}))).await;
    let response = answer.response();
    assert_eq!(text_of(&response), "1", "a new session counts afresh");
    // The notice belongs to the call that met the loss: it stands before its answer.
    let told: Vec<Value> = messages(&answer);
    assert_eq!(told.len(), 2, "{told:?}");
    let notice = &told[0];
    assert_eq!(notice["method"], "notifications/message", "{notice}");
    assert_eq!(notice["params"]["level"], "warning");
    assert_eq!(notice["params"]["logger"], "springline");
    assert!(
        notice["params"]["data"].to_string().contains("afresh"),
        "{notice}"
    );
    let minted = server.log().minted.last().unwrap().clone();
    soon(
        "the state made again",
        server.wait(|log| {
            let of = |method: &str| {
                log.of(method)
                    .any(|seen| seen.session.as_ref() == Some(&minted) && seen.status == Some(200))
            };
            of("resources/subscribe") && of("logging/setLevel")
        }),
    )
    .await;
    assert_eq!(client.text(6, "count", json!({})).await, "2");
    server.world().update_resource();
    // The notice came once: nothing stands before the update.
    let next = soon("the update", stream.message()).await.unwrap();
    assert_eq!(next["method"], "notifications/resources/updated", "{next}");
    assert_eq!(next["params"]["uri"], "test://watched");
}

#[tokio::test]
async fn a_changed_list_after_a_recovery_is_announced() {
    let (server, _gateway, client) = setup().await;
    let mut stream = client.listen(None).await;
    let listed = client.ask("2", "tools/list", "{}").await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 20);
    server.forget_sessions();
    // Nobody is told: no session is left.
    server.world().add_tool();
    let answer = client.post(&call(3, "charge", &json!({"id": "c"}))).await;
    assert_eq!(text_of(&answer.response()), "charged c");
    // While a call is in flight its own stream takes what the server says, else the GET stream.
    let mut methods: Vec<String> = answer
        .raw()
        .iter()
        .filter_map(|raw| {
            let message: Value = serde_json::from_str(raw).unwrap();
            Some(message["method"].as_str()?.to_owned())
        })
        .collect();
    while !methods
        .iter()
        .any(|method| method == "notifications/tools/list_changed")
    {
        let message = soon("list_changed", stream.message()).await.unwrap();
        methods.push(message["method"].as_str().unwrap().to_owned());
    }
    let listed = client.ask("4", "tools/list", "{}").await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 21);
}

#[tokio::test]
async fn a_client_that_initialises_again_leaks_no_session() {
    let (server, gateway, client) = setup().await;
    let second = gateway.open("/mcp/s").await;
    assert_ne!(client.session, second.session);
    assert_eq!(
        second.text(2, "charge", json!({"id": "second"})).await,
        "charged second"
    );
    let first = client.session.clone();
    assert_eq!(client.start("DELETE", "").await.status, 204);
    soon("the DELETE upstream", server.wait(|log| log.deletes == 1)).await;
    let log = server.log();
    assert_eq!(
        log.of("DELETE").next().unwrap().session.as_ref(),
        Some(&log.minted[0])
    );
    assert!(first.is_some());
    let refused = client
        .post(&notification(
            "notifications/cancelled",
            r#"{"requestId":1}"#,
        ))
        .await;
    assert_eq!(refused.status, 404);
    assert_eq!(
        second.text(3, "charge", json!({"id": "third"})).await,
        "charged third"
    );
}
