//! Servers that others wrote, behind the gateway. "everything" is also what the clients in
//! [`super::client`] use.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{gateway, program};
use crate::harness::{Client, soon, text_of};

/// The names of all tools.
async fn tools(client: &Client) -> Vec<String> {
    let listed = client.ask("1", "tools/list", "{}").await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let name = |tool: &Value| tool["name"].as_str().unwrap().to_owned();
    tools.iter().map(name).collect()
}

#[tokio::test]
async fn the_filesystem_server_asks_for_roots_and_works_inside_them() {
    let folder = TempDir::new().unwrap();
    let whole = |path: &str| folder.path().canonicalize().unwrap().join(path);
    for name in ["given", "root"] {
        std::fs::create_dir(whole(name)).unwrap();
    }
    let config = json!({ "mcpServers": { "files": {
        "command": program("mcp-server-filesystem"),
        "args": [whole("given")],
    } } });
    let gateway = gateway(config).await;
    let client = gateway.open("/mcp/files").await;
    let mut stream = client.listen(None).await;
    let asked = soon("roots/list", stream.message()).await.unwrap();
    assert_eq!(asked["method"], "roots/list");
    let root = format!("file://{}", whole("root").display());
    let roots = json!({ "roots": [{ "uri": root, "name": "root" }] });
    let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "result": roots });
    assert_eq!(client.post(&answer.to_string()).await.status, 202);
    let allowed = format!("Allowed directories:\n{}", whole("root").display());
    soon("the new roots", async {
        // The server takes the roots over in its own time, and does not tell.
        while client.text(2, "list_allowed_directories", json!({})).await != allowed {}
    })
    .await;
    assert!(tools(&client).await.contains(&"read_text_file".to_owned()));
    let inside = json!({ "path": whole("root/note"), "content": "käse\n" });
    client.text(3, "write_file", inside.clone()).await;
    let read = client.text(4, "read_text_file", json!({ "path": inside["path"] }));
    assert_eq!(read.await, "käse\n");
    assert_eq!(
        std::fs::read_to_string(whole("root/note")).unwrap(),
        "käse\n"
    );
    let outside = json!({ "path": whole("given/note"), "content": "" });
    let refused = client.call(5, "write_file", outside).await;
    assert_eq!(refused["result"]["isError"], true, "{refused}");
    assert!(!whole("given/note").exists());
}

fn memory(file: &Path) -> Value {
    json!({ "command": program("mcp-server-memory"), "env": { "MEMORY_FILE_PATH": file } })
}

#[tokio::test]
async fn the_memory_server_keeps_what_two_sessions_tell_it() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("memory.jsonl");
    let gateway = gateway(json!({ "mcpServers": { "memory": memory(&file) } })).await;
    let client = gateway.open("/mcp/memory").await;
    assert!(tools(&client).await.contains(&"create_entities".to_owned()));
    let entity = json!({ "name": "Kiel", "entityType": "town", "observations": ["by the sea"] });
    let created = client
        .call(2, "create_entities", json!({ "entities": [entity] }))
        .await;
    assert_eq!(created["result"]["isError"], Value::Null, "{created}");
    let other = gateway.open("/mcp").await;
    let found = other.call(1, "memory__read_graph", json!({})).await;
    assert_eq!(
        found["result"]["structuredContent"]["entities"],
        json!([entity])
    );
}

#[tokio::test]
async fn the_time_server_tells_the_time() {
    let config = json!({ "mcpServers": { "time": {
        "command": program("mcp-server-time"),
        "args": ["--local-timezone=UTC"],
    } } });
    let gateway = gateway(config).await;
    for (path, prefix) in [("/mcp/time", ""), ("/mcp", "time__")] {
        let client = gateway.open(path).await;
        let names = ["get_current_time", "convert_time"].map(|name| format!("{prefix}{name}"));
        assert_eq!(tools(&client).await, names);
        let arguments = json!({
            "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kolkata",
        });
        let converted = client.call(2, &names[1], arguments).await;
        assert!(text_of(&converted).contains("17:30"), "{converted}");
    }
}
