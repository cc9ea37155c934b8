//! Children: their deaths, their noise, and that none is left behind.

use serde_json::{Value, json};

use crate::harness::{
    Client, Gateway, Ledger, call, fault, gone, pid_of, runs, signal, soon, stdio_entry,
};

async fn setup(flags: &[&str]) -> (tempfile::TempDir, Ledger, Gateway, Client) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let gateway = Gateway::with(json!({ "s": stdio_entry(&path, flags) })).await;
    let client = gateway.open("/mcp/s").await;
    (folder, Ledger(path), gateway, client)
}

#[tokio::test]
async fn a_child_killed_while_idle_is_replaced_by_the_next_call() {
    let (_folder, ledger, _gateway, client) = setup(&[]).await;
    let listed = client.ask("1", "tools/list", "{}").await;
    assert!(listed.get("result").is_some(), "{listed}");
    client
        .ask("2", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    client
        .ask("3", "logging/setLevel", r#"{"level":"error"}"#)
        .await;
    let first = ledger.pid(0);
    signal(first, "KILL");
    gone(first).await;
    assert_eq!(
        client.text(4, "charge", json!({"id": "next"})).await,
        "charged next"
    );
    assert_eq!(ledger.executed("next"), 1);
    assert_eq!(ledger.of("start").len(), 2);
    let second = ledger.pid(1);
    ledger
        .wait("the state made again", |ledger| {
            let messages = ledger.of("message");
            let of = |method: &str| {
                messages
                    .iter()
                    .any(|m| m["pid"] == second && m["detail"]["method"] == method)
            };
            of("tools/list") && of("resources/subscribe") && of("logging/setLevel")
        })
        .await;
    // Nothing but the handshake came before `initialized`.
    let early = ledger.of("message").into_iter().find(|message| {
        message["detail"]["initialised"] == false
            && !matches!(
                message["detail"]["method"].as_str(),
                Some("initialize" | "notifications/initialized" | "ping")
            )
    });
    assert_eq!(early, None);
}

#[tokio::test]
async fn a_child_that_dies_in_mid_call_ends_it_as_unknown_with_status_and_stderr() {
    let (_folder, ledger, _gateway, client) = setup(&["--stderr-line", "disk is on fire"]).await;
    let answer = client.call(1, "crash_after", json!({"id": "boom"})).await;
    assert_eq!(fault(&answer), ("SERVER_EXITED", "unknown"), "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("70"), "{message}");
    assert!(message.contains("disk is on fire"), "{message}");
    assert_eq!(
        client.text(2, "charge", json!({"id": "next"})).await,
        "charged next"
    );
    assert_eq!(ledger.executed("boom"), 1);
    let before = client.call(3, "crash_before", json!({"id": "early"})).await;
    assert_eq!(fault(&before), ("SERVER_EXITED", "unknown"), "{before}");
    assert_eq!(ledger.executed("early"), 0);
}

#[tokio::test]
async fn every_call_in_flight_hears_of_the_childs_death_once() {
    let (_folder, ledger, _gateway, client) = setup(&[]).await;
    let bodies: Vec<String> = (0..20)
        .map(|n| {
            call(
                n + 1,
                "charge",
                &json!({"id": format!("d{n}"), "gate": "never"}),
            )
        })
        .collect();
    let calls = tokio::spawn({
        let client = client.clone();
        async move { client.calls(bodies).await }
    });
    ledger
        .wait("the calls", |ledger| ledger.of("execute").len() == 20)
        .await;
    signal(ledger.pid(0), "KILL");
    for answer in calls.await.unwrap() {
        assert_eq!(fault(&answer), ("SERVER_EXITED", "unknown"), "{answer}");
    }
    assert_eq!(
        client.text(99, "charge", json!({"id": "next"})).await,
        "charged next"
    );
    for n in 0..20 {
        assert_eq!(ledger.executed(&format!("d{n}")), 1);
    }
}

#[tokio::test]
async fn rubbish_floods_and_split_characters_do_not_disturb_a_call() {
    for flags in [
        &["--banner", "--rubbish", "--stderr-flood"][..],
        &["--one-byte", "--id-last"],
    ] {
        let (_folder, ledger, _gateway, client) = setup(flags).await;
        let text = client.text(1, "echo", json!({"id": "é読み—🎉"})).await;
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap(),
            json!({"id": "é読み—🎉"})
        );
        assert_eq!(ledger.of("start").len(), 1, "noise is no reason to restart");
    }
}

#[tokio::test]
async fn a_child_that_fails_its_handshake_is_an_error_and_the_next_initialize_tries_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger");
    let flags = [
        "--exit-in-initialize",
        "3",
        "--initialize-faults",
        "1",
        "--stderr-line",
        "no licence",
    ];
    let gateway = Gateway::with(json!({ "s": stdio_entry(&path, &flags) })).await;
    let mut client = gateway.client("/mcp/s");
    let answer = client
        .post(&crate::harness::initialize("2025-11-25", "{}"))
        .await;
    let response = answer.response();
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("mcp-session-id"),
        None,
        "no session was opened"
    );
    assert_eq!(fault(&response).1, "not_executed", "{response}");
    assert!(
        response["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no licence"),
        "{response}"
    );
    let failed = reason(&gateway).await;
    assert!(failed.as_str().unwrap().contains("no licence"), "{failed}");
    client.open("{}").await;
    assert_eq!(
        client.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!(reason(&gateway).await, Value::Null);
}

/// What `springline servers` says of the only server.
async fn reason(gateway: &Gateway) -> Value {
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_springline"))
        .args(["servers", "--json", "--socket"])
        .arg(gateway.folder.path().join("run/springline.sock"))
        .output()
        .await
        .unwrap();
    let servers: Value = serde_json::from_slice(&output.stdout).unwrap();
    servers["servers"][0]["reason"].clone()
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_named_in_the_error() {
    let gateway = Gateway::with(json!({ "s": { "command": "/nowhere/mcp-server" } })).await;
    let answer = gateway
        .client("/mcp/s")
        .post(&crate::harness::initialize("2025-11-25", "{}"))
        .await;
    let response = answer.response();
    assert_eq!(fault(&response).1, "not_executed", "{response}");
    assert!(
        response["error"]["message"]
            .as_str()
            .unwrap()
            .contains("/nowhere/mcp-server"),
        "{response}"
    );
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_child() {
    let (_folder, ledger, _gateway, client) = setup(&[]).await;
    client.text(1, "charge", json!({"id": "a"})).await;
    let pid = ledger.pid(0);
    assert!(runs(pid));
    assert_eq!(client.start("DELETE", "").await.status, 204);
    gone(pid).await;
    assert_eq!(ledger.of("eof").len(), 1, "its stdin was closed first");
}

#[tokio::test]
async fn an_orderly_stop_ends_deaf_children_and_grandchildren_in_time() {
    let (_folder, ledger, mut gateway, client) =
        setup(&["--ignore-eof", "--ignore-sigterm", "--grandchild"]).await;
    client.text(1, "charge", json!({"id": "a"})).await;
    let pid = ledger.pid(0);
    let grandchild = pid_of(&ledger.of("grandchild")[0]["detail"]["child"]);
    assert!(runs(pid) && runs(grandchild));
    gateway.signal("TERM");
    let status = gateway.ended().await;
    assert_eq!(status.code(), Some(0), "{status}: {}", gateway.log());
    assert!(!runs(pid), "the child outlived the gateway");
    assert!(!runs(grandchild), "the grandchild outlived the gateway");
    assert_eq!(ledger.of("eof").len(), 1);
    assert_eq!(ledger.of("sigterm").len(), 1);
}

#[tokio::test]
async fn an_orderly_stop_does_not_wait_for_an_open_stream() {
    let (_folder, _ledger, mut gateway, client) = setup(&[]).await;
    let mut stream = client.listen(None).await;
    assert_eq!(stream.status, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().await.code(), Some(0));
    while soon("the stream's end", stream.event()).await.is_some() {}
}

#[tokio::test]
async fn a_gateway_killed_at_once_leaves_no_child() {
    let (_folder, ledger, mut gateway, client) = setup(&["--ignore-eof"]).await;
    client.text(1, "charge", json!({"id": "a"})).await;
    let pid = ledger.pid(0);
    gateway.signal("KILL");
    gateway.ended().await;
    gone(pid).await;
}
