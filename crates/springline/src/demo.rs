//! `springline demo`: a small MCP server on stdin and stdout, to try the gateway with.

use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};

use crate::exit::Exit;

const TOOLS: &str = r#"[
 {"name":"echo","description":"Answers with the text that it was given.",
  "inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]},
  "annotations":{"readOnlyHint":true}},
 {"name":"add","description":"Adds two numbers.",
  "inputSchema":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"number"}},"required":["a","b"]},
  "annotations":{"readOnlyHint":true}},
 {"name":"count","description":"Counts the calls of this session, to show that state is kept.",
  "inputSchema":{"type":"object"}}
]"#;

/// Serves until stdin ends.
pub(crate) fn run() -> anyhow::Result<Exit> {
    let mut count = 0_u64;
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) else {
            continue;
        };
        let answer = match answer(method, &message["params"], &mut count) {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err((code, text)) => {
                json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": text } })
            }
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

fn answer(method: &str, params: &Value, count: &mut u64) -> Result<Value, (i32, String)> {
    match method {
        "initialize" => Ok(json!({
            "protocolVersion": version(params),
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "springline-demo", "version": env!("CARGO_PKG_VERSION") },
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({
            "tools": serde_json::from_str::<Value>(TOOLS).unwrap_or_default(),
        })),
        "tools/call" => call(params, count),
        _ => Err((-32601, format!("there is no method {method}"))),
    }
}

fn version(params: &Value) -> &str {
    match params["protocolVersion"].as_str() {
        Some(known @ ("2024-11-05" | "2025-03-26" | "2025-06-18")) => known,
        _ => "2025-11-25",
    }
}

fn call(params: &Value, count: &mut u64) -> Result<Value, (i32, String)> {
    let arguments = &params["arguments"];
    let text = match params["name"].as_str().unwrap_or_default() {
        "echo" => arguments["text"].as_str().map(str::to_owned),
        "add" => arguments["a"]
            .as_f64()
            .zip(arguments["b"].as_f64())
            .map(|(a, b)| (a + b).to_string()),
        "count" => {
            *count += 1;
            Some(count.to_string())
        }
        name => return Err((-32602, format!("Unknown tool: {name}"))),
    };
    Ok(match text {
        Some(text) => json!({ "content": [{ "type": "text", "text": text }] }),
        None => json!({
            "content": [{ "type": "text", "text": "an argument is missing or of another type" }],
            "isError": true,
        }),
    })
}
