//! A small client on `rmcp`: an independent reader of what a server sends.
//!
//! Owns nothing but one short conversation. Must not know the test servers.

use anyhow::Context;
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};

/// Initialises, lists all tools, calls one, and gives what came as JSON.
///
/// Without a name, the first tool of the list is called without arguments.
pub async fn converse(
    url: &str,
    tool: Option<String>,
    arguments: Option<Value>,
) -> anyhow::Result<Value> {
    let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
    let client = ().serve(transport).await.context("initialize")?;
    let server = serde_json::to_value(client.peer_info().as_deref())?;
    let tools = client.list_all_tools().await.context("tools/list")?;
    let name = match tool {
        Some(name) => name,
        None => match tools.first() {
            Some(tool) => tool.name.to_string(),
            None => anyhow::bail!("the server has no tools"),
        },
    };
    let mut params = CallToolRequestParams::new(name);
    if let Some(Value::Object(map)) = arguments {
        params = params.with_arguments(map);
    }
    let result = client.call_tool(params).await.context("tools/call")?;
    let answer = json!({
        "server": server,
        "tools": tools.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>(),
        "result": serde_json::to_value(&result)?,
    });
    client.cancel().await.context("the end")?;
    Ok(answer)
}
