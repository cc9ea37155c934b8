//! Tools, resources and prompts of the server for fault tests.
//!
//! Owns their side effects, each of which goes through the account. Must not
//! know transports.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::rpc;
use crate::session::Outbox;
use crate::world::{Call, Outcome};

/// The resource that can be watched.
pub const WATCHED: &str = "test://watched";

/// Answers a method that is not common to both servers.
pub async fn answer(call: &Call, method: &str, params: &Value) -> Outcome {
    match method {
        "tools/list" => page(call, params),
        "tools/call" => tool(call, params).await,
        "resources/list" => Outcome::value(&json!({"resources": [
            {"uri": WATCHED, "name": "watched", "mimeType": "text/plain"},
            {"uri": "test://plain", "name": "plain", "mimeType": "text/plain"},
        ]})),
        "resources/templates/list" => Outcome::value(&json!({"resourceTemplates": [
            {"uriTemplate": "test://item/{id}", "name": "item", "mimeType": "text/plain"},
        ]})),
        "resources/read" => read(call, params["uri"].as_str().unwrap_or_default()),
        "prompts/list" => Outcome::value(&json!({"prompts": [
            {"name": "greet", "description": "Greets", "arguments": [{"name": "name", "required": true}]},
        ]})),
        "prompts/get" => prompt(params),
        "completion/complete" => {
            let prefix = params["argument"]["value"].as_str().unwrap_or_default();
            let values: Vec<&str> = ["ada", "alan", "grace"]
                .into_iter()
                .filter(|name| name.starts_with(prefix))
                .collect();
            Outcome::value(&json!({"completion": {"values": values, "hasMore": false}}))
        }
        _ => Outcome::Error(-32601, format!("Method not found: {method}")),
    }
}

fn page(call: &Call, params: &Value) -> Outcome {
    let all = tools(call.world.added_tools());
    let Some(size) = call.world.faults.settings().page else {
        return Outcome::value(&json!({ "tools": all }));
    };
    let start = match params["cursor"].as_str().map(str::parse::<usize>) {
        None => 0,
        Some(Ok(at)) if at < all.len() => at,
        Some(_) => return Outcome::Error(-32602, "Unknown cursor".to_owned()),
    };
    let end = start.saturating_add(size.max(1)).min(all.len());
    let mut result = json!({"tools": all.get(start..end)});
    if end < all.len() {
        result["nextCursor"] = json!(end.to_string());
    }
    Outcome::value(&result)
}

fn read(call: &Call, uri: &str) -> Outcome {
    let text = match uri {
        WATCHED => format!("revision {}", call.world.revision()),
        "test://plain" => "plain".to_owned(),
        _ => match uri.strip_prefix("test://item/") {
            Some(item) => format!("item {item}"),
            None => return Outcome::Error(-32002, "Resource not found".to_owned()),
        },
    };
    Outcome::value(&json!({"contents": [
        {"uri": uri, "mimeType": "text/plain", "text": text},
    ]}))
}

fn prompt(params: &Value) -> Outcome {
    if params["name"] != "greet" {
        return Outcome::Error(-32602, "Unknown prompt".to_owned());
    }
    let name = params["arguments"]["name"].as_str().unwrap_or("nobody");
    Outcome::value(&json!({"messages": [
        {"role": "user", "content": {"type": "text", "text": format!("Hello {name}")}},
    ]}))
}

fn tools(added: u64) -> Vec<Value> {
    let text = json!({"type": "string"});
    let number = json!({"type": "integer", "minimum": 0});
    let tool = |name: &str, about: &str, properties: Value| {
        json!({"name": name, "description": about,
               "inputSchema": {"type": "object", "properties": properties}})
    };
    let mut all = vec![
        tool("echo", "Answers its arguments", json!({})),
        tool("count", "Counts up within the session", json!({})),
        tool("sleep", "Waits", json!({"ms": number})),
        tool("charge", "Has a side effect", json!({"id": text})),
        tool("big", "Answers so many bytes", json!({"bytes": number})),
        tool("hold", "Answers when released", json!({"id": text})),
        tool("release", "Releases a held call", json!({"id": text})),
        tool("progress", "Reports progress", json!({"n": number})),
        tool(
            "ask_sampling",
            "Asks for sampling",
            json!({"standalone": {"type": "boolean"}}),
        ),
        tool(
            "ask_elicitation",
            "Asks the user",
            json!({"standalone": {"type": "boolean"}}),
        ),
        tool(
            "ask_roots",
            "Asks for roots",
            json!({"standalone": {"type": "boolean"}}),
        ),
        tool(
            "ask_ping",
            "Pings",
            json!({"standalone": {"type": "boolean"}}),
        ),
        tool("log", "Logs", json!({"text": text})),
        tool(
            "crash_after",
            "Has its side effect, then dies",
            json!({"id": text}),
        ),
        tool("crash_before", "Dies", json!({"id": text})),
        tool(
            "cut_after",
            "Has its side effect, then cuts",
            json!({"id": text}),
        ),
        tool("whoami", "Tells what the server sees", json!({})),
        tool("touch", "Changes the watched resource", json!({})),
        tool("grow", "Adds a tool", json!({})),
        tool("fail", "Answers isError", json!({})),
    ];
    for number in 1..=added {
        all.push(tool(&format!("added_{number}"), "Came later", json!({})));
    }
    // Hints as a server would give them; whether to trust them is not ours.
    for name in ["echo", "whoami"] {
        if let Some(tool) = all.iter_mut().find(|tool| tool["name"] == name) {
            tool["annotations"] = json!({"readOnlyHint": true});
        }
    }
    all
}

async fn tool(call: &Call, params: &Value) -> Outcome {
    let name = params["name"].as_str().unwrap_or_default();
    let arguments = &params["arguments"];
    let id = arguments["id"].as_str().unwrap_or_default();
    let execute = || call.world.account.execute(name, id, &call.session.id);
    if name != "crash_before" {
        execute();
    }
    let outcome = act(call, name, id, arguments).await;
    if let Some(gate) = arguments["gate"].as_str() {
        call.world.gates.pass(gate).await;
    }
    outcome
}

/// What a tool does. Every tool also takes `gate`: it then has its effect, and
/// answers when the gate lets it pass.
async fn act(call: &Call, name: &str, id: &str, arguments: &Value) -> Outcome {
    match name {
        "echo" => echo(call),
        "count" => Outcome::text(&call.session.count().to_string()),
        "sleep" => {
            let ms = arguments["ms"].as_u64().unwrap_or_default();
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Outcome::text("slept")
        }
        "charge" => Outcome::text(&format!("charged {id}")),
        "big" => {
            let bytes = arguments["bytes"].as_u64().unwrap_or_default();
            Outcome::text(&"x".repeat(usize::try_from(bytes).unwrap_or_default()))
        }
        "hold" => {
            call.world.gates.pass(id).await;
            Outcome::text(&format!("released {id}"))
        }
        "release" => {
            call.world.gates.release(id);
            Outcome::text("done")
        }
        "progress" => {
            let total = arguments["n"].as_u64().unwrap_or(3);
            for step in 1..=total {
                call.progress(step, total);
            }
            Outcome::text(&format!("{total} steps"))
        }
        "ask_sampling" | "ask_elicitation" | "ask_roots" | "ask_ping" => {
            ask(call, name, arguments).await
        }
        "log" => {
            call.log(arguments["text"].as_str().unwrap_or("hello"));
            Outcome::text("logged")
        }
        "crash_after" | "crash_before" | "cut_after" => Outcome::Cut(70),
        "whoami" => whoami(call),
        "touch" => {
            call.world.update_resource();
            Outcome::text("touched")
        }
        "grow" => {
            call.world.add_tool();
            Outcome::text("grown")
        }
        "fail" => Outcome::value(&json!({
            "content": [{"type": "text", "text": "failed on purpose"}], "isError": true,
        })),
        _ if name.starts_with("added_") => Outcome::text(name),
        _ => Outcome::Error(-32602, format!("Unknown tool: {name}")),
    }
}

/// The arguments come back byte for byte, as text and as structured content.
fn echo(call: &Call) -> Outcome {
    let raw = call
        .request
        .param_text("arguments")
        .unwrap_or_else(|| "{}".to_owned());
    let text = rpc::quote(&raw);
    Outcome::Result(format!(
        r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{raw}}}"#
    ))
}

fn whoami(call: &Call) -> Outcome {
    let digest = Sha256::digest(call.session.id.as_bytes());
    let digest = rpc::hex(digest.get(..8).unwrap_or_default());
    let facts = json!({
        "session": digest,
        "pid": std::process::id(),
        "protocol": call.session.protocol(),
        "level": call.session.level(),
        "capabilities": call.session.capabilities(),
        "subscriptions": call.session.subscriptions(),
        "headers": call.headers,
    });
    Outcome::value(&json!({
        "content": [{"type": "text", "text": facts.to_string()}],
        "structuredContent": facts,
    }))
}

async fn ask(call: &Call, name: &str, arguments: &Value) -> Outcome {
    let (method, params) = match name {
        "ask_sampling" => (
            "sampling/createMessage",
            json!({"maxTokens": 16, "messages": [
                {"role": "user", "content": {"type": "text", "text": "Say something"}},
            ]}),
        ),
        "ask_elicitation" => (
            "elicitation/create",
            json!({"message": "Who are you?", "requestedSchema": {
                "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
            }}),
        ),
        "ask_ping" => ("ping", json!({})),
        _ => ("roots/list", json!({})),
    };
    let outbox: &Outbox = if arguments["standalone"] == true {
        &call.session.standalone
    } else {
        &call.outbox
    };
    let Some(raw) = call.session.ask(outbox, method, &params.to_string()).await else {
        return Outcome::Silent;
    };
    let text = rpc::quote(&raw);
    Outcome::Result(format!(
        r#"{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{raw}}}"#
    ))
}
