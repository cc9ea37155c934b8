//! As many sessions as there may be, and who gives way to a new one.

use serde_json::json;

use crate::harness::{
    CAPABILITIES, Client, Flow, Gateway, INITIALIZED, Ledger, fault, initialize, stdio_entry,
};

async fn attached(gateway: &Gateway) -> (Client, Flow) {
    let client = gateway.open("/mcp/s").await;
    let stream = client.listen(None).await;
    assert_eq!(stream.status, 200);
    (client, stream)
}

#[tokio::test]
async fn who_only_opens_sessions_pushes_out_nobody_elses_and_who_is_attached_stays() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let config = json!({
        "mcpServers": { "s": stdio_entry(&ledger.0, &[]) },
        "springline": { "sessionsMax": 3 },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let user = gateway.open("/mcp/s").await;
    assert_eq!(
        user.text(1, "charge", json!({"id": "a"})).await,
        "charged a"
    );
    let newcomer = gateway.client("/mcp/s");
    for _ in 0..6 {
        let answer = newcomer.post(&initialize("2025-11-25", CAPABILITIES)).await;
        assert!(answer.response()["result"].is_object(), "{}", answer.text());
        let mut looped = newcomer.clone();
        looped.session = answer.header("mcp-session-id").map(str::to_owned);
        assert_eq!(looped.post(INITIALIZED).await.status, 202);
    }
    // One that was used, though longer ago than all of these.
    assert_eq!(
        user.text(2, "charge", json!({"id": "b"})).await,
        "charged b"
    );
    let stream = user.listen(None).await;
    let held = [attached(&gateway).await, attached(&gateway).await];
    let refused = newcomer.post(&initialize("2025-11-25", CAPABILITIES)).await;
    let refused = refused.response();
    assert_eq!(fault(&refused), ("TOO_MANY_SESSIONS", "not_executed"));
    assert_eq!(refused["error"]["data"]["server"], "s");
    for (client, _) in &held {
        assert_eq!(
            client.text(3, "charge", json!({"id": "c"})).await,
            "charged c"
        );
    }
    drop(stream);
    loop {
        let answer = newcomer.post(&initialize("2025-11-25", CAPABILITIES)).await;
        if answer.response()["result"].is_object() {
            break;
        }
    }
    assert_eq!(user.post(INITIALIZED).await.status, 404);
}
