//! A published server that loses its sessions, with the answer that it gives itself: "everything"
//! says 400, -32000, "Bad Request: No valid session ID provided".

use std::collections::BTreeSet;

use serde_json::json;
use tempfile::TempDir;

use super::{Everything, gateway};
use crate::harness::{call, text_of};

#[tokio::test]
async fn the_everything_server_restarts_and_nobody_sees_it() {
    let folder = TempDir::new().unwrap();
    let first = Everything::start(folder.path()).await;
    let config = json!({ "mcpServers": { "everything": { "url": first.url() } } });
    let gateway = gateway(config).await;
    let client = gateway.open("/mcp/everything").await;
    let text = client.text(1, "echo", json!({ "message": "before" })).await;
    assert_eq!(text, "Echo: before");
    let port = first.port;
    assert_eq!(first.end().await, 1);

    let second = Everything::start_on(port, folder.path()).await;
    let bodies = (0..20).map(|id| call(id, "get-sum", &json!({ "a": id, "b": 1000 })));
    let answers = client.calls(bodies.collect()).await;
    let texts: BTreeSet<String> = answers.iter().map(text_of).collect();
    assert_eq!(texts.len(), 20, "{texts:?}");
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], id);
        assert!(
            text_of(answer).contains(&format!("is {}.", id + 1000)),
            "{answer}"
        );
    }
    assert_eq!(second.end().await, 1, "one recovery for all the calls");
}
