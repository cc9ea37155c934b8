//! The server that the official conformance suite wants, revision 2025-11-25.
//!
//! Owns the names and contents that its scenarios ask for. Must not know
//! transports.

use std::time::Duration;

use serde_json::{Value, json};

use crate::world::{Call, Outcome};

/// A red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
/// A WAV header without samples.
const WAV: &str = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA==";
/// The pace of logging and progress, as the scenarios ask.
const PACE: Duration = Duration::from_millis(50);

/// Answers a method that is not common to both servers.
pub async fn answer(call: &Call, method: &str, params: &Value) -> Outcome {
    match method {
        "tools/list" => Outcome::value(&json!({"tools": tools()})),
        "tools/call" => tool(call, params).await,
        "resources/list" => Outcome::value(&resources()),
        "resources/templates/list" => Outcome::value(&templates()),
        "resources/read" => read(params["uri"].as_str().unwrap_or_default()),
        "prompts/list" => Outcome::value(&prompts()),
        "prompts/get" => prompt(params),
        "completion/complete" => completion(params),
        _ => Outcome::Error(-32601, format!("Method not found: {method}")),
    }
}

/// Answers `completion/complete`.
pub fn completion(params: &Value) -> Outcome {
    let prefix = params["argument"]["value"].as_str().unwrap_or_default();
    let values: Vec<&str> = ["paris", "park", "party", "test://static-text"]
        .into_iter()
        .filter(|word| word.starts_with(prefix))
        .collect();
    Outcome::value(&json!({"completion": {
        "values": values, "total": values.len(), "hasMore": false,
    }}))
}

/// Answers `resources/templates/list`.
pub fn templates() -> Value {
    json!({"resourceTemplates": [{
        "uriTemplate": "test://template/{id}/data", "name": "template",
        "description": "A resource with a parameter", "mimeType": "application/json",
    }]})
}

/// Answers `resources/list`.
pub fn resources() -> Value {
    let resource = |uri: &str, name: &str, about: &str, mime: &str| json!({"uri": uri, "name": name, "description": about, "mimeType": mime});
    json!({"resources": [
        resource("test://static-text", "static-text", "A text", "text/plain"),
        resource("test://static-binary", "static-binary", "A picture", "image/png"),
        resource("test://watched-resource", "watched-resource", "May be watched", "text/plain"),
    ]})
}

/// Answers `resources/read`.
pub fn read(uri: &str) -> Outcome {
    let content = match uri {
        "test://static-text" => json!({"uri": uri, "mimeType": "text/plain",
            "text": "This is the content of the static text resource."}),
        "test://static-binary" => json!({"uri": uri, "mimeType": "image/png", "blob": PNG}),
        "test://watched-resource" => json!({"uri": uri, "mimeType": "text/plain",
            "text": "Watched resource content"}),
        _ => {
            let id = uri
                .strip_prefix("test://template/")
                .and_then(|rest| rest.strip_suffix("/data"));
            let Some(id) = id else {
                return Outcome::Error(-32002, "Resource not found".to_owned());
            };
            let text =
                json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            json!({"uri": uri, "mimeType": "application/json", "text": text.to_string()})
        }
    };
    Outcome::value(&json!({"contents": [content]}))
}

/// Answers `prompts/list`.
pub fn prompts() -> Value {
    let argument =
        |name: &str, about: &str| json!({"name": name, "description": about, "required": true});
    json!({"prompts": [
        {"name": "test_simple_prompt", "description": "A prompt without arguments"},
        {"name": "test_prompt_with_arguments", "description": "A prompt with two arguments",
         "arguments": [argument("arg1", "The first"), argument("arg2", "The second")]},
        {"name": "test_prompt_with_embedded_resource", "description": "A prompt with a resource",
         "arguments": [argument("resourceUri", "The resource")]},
        {"name": "test_prompt_with_image", "description": "A prompt with a picture"},
    ]})
}

/// Answers `prompts/get`.
pub fn prompt(params: &Value) -> Outcome {
    let argument = |name: &str| params["arguments"][name].as_str().unwrap_or_default();
    let text = |text: String| json!({"role": "user", "content": {"type": "text", "text": text}});
    let messages = match params["name"].as_str().unwrap_or_default() {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.".to_owned())],
        "test_prompt_with_arguments" => vec![text(format!(
            "Prompt with arguments: arg1='{}', arg2='{}'",
            argument("arg1"),
            argument("arg2")
        ))],
        "test_prompt_with_embedded_resource" => vec![
            json!({"role": "user", "content": {"type": "resource", "resource": {
                "uri": argument("resourceUri"), "mimeType": "text/plain",
                "text": "Embedded resource content for testing.",
            }}}),
            text("Please process the embedded resource above.".to_owned()),
        ],
        "test_prompt_with_image" => vec![
            json!({"role": "user", "content":
                {"type": "image", "data": PNG, "mimeType": "image/png"}}),
            text("Please analyze the image above.".to_owned()),
        ],
        _ => return Outcome::Error(-32602, "Unknown prompt".to_owned()),
    };
    Outcome::value(&json!({"messages": messages}))
}

/// The tools of `tools/list`.
pub fn tools() -> Vec<Value> {
    let plain = |name: &str, about: &str| json!({"name": name, "description": about, "inputSchema": {"type": "object"}});
    let asking = |name: &str, argument: &str| {
        json!({"name": name, "description": "Asks the client", "inputSchema": {
            "type": "object",
            "properties": {argument: {"type": "string", "description": "What to ask"}},
            "required": [argument],
        }})
    };
    vec![
        plain("test_simple_text", "Answers a text"),
        plain("test_image_content", "Answers a picture"),
        plain("test_audio_content", "Answers a sound"),
        plain("test_embedded_resource", "Answers a resource"),
        plain("test_multiple_content_types", "Answers a mixture"),
        plain("test_tool_with_logging", "Logs while it runs"),
        plain("test_tool_with_progress", "Reports progress"),
        plain("test_error_handling", "Fails"),
        asking("test_sampling", "prompt"),
        asking("test_elicitation", "message"),
        plain("test_elicitation_sep1034_defaults", "Asks with defaults"),
        plain("test_elicitation_sep1330_enums", "Asks with choices"),
        plain("test_reconnection", "Ends its stream before it answers"),
        schema_tool(),
    ]
}

fn schema_tool() -> Value {
    json!({
        "name": "json_schema_2020_12_tool",
        "description": "Tool with JSON Schema 2020-12 features",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {
                "$anchor": "addressDef", "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }},
            "properties": {
                "name": {"type": "string"},
                "address": {"$ref": "#/$defs/address"},
                "contactMethod": {"type": "string", "enum": ["phone", "email"]},
                "phone": {"type": "string"},
                "email": {"type": "string"},
            },
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
            "then": {"required": ["phone"]},
            "else": {"required": ["email"]},
            "additionalProperties": false,
        },
    })
}

/// What `test_tool_with_logging` logs.
pub const LOGGED: [&str; 3] = [
    "Tool execution started",
    "Tool processing data",
    "Tool execution completed",
];

/// What a tool asks the client.
#[derive(Debug)]
pub enum Asked {
    /// Parameters of `sampling/createMessage`.
    Sampling(Value),
    /// How the answer's text begins, and parameters of `elicitation/create`.
    Elicitation(&'static str, Value),
}

async fn tool(call: &Call, params: &Value) -> Outcome {
    let name = params["name"].as_str().unwrap_or_default();
    let arguments = &params["arguments"];
    call.world.account.execute(name, "", &call.session.id);
    match name {
        "test_tool_with_logging" => {
            for text in LOGGED {
                call.log(text);
                tokio::time::sleep(PACE).await;
            }
            Outcome::text("Tool with logging executed successfully")
        }
        "test_tool_with_progress" => {
            for step in [0, 50, 100] {
                call.progress(step, 100);
                tokio::time::sleep(PACE).await;
            }
            Outcome::text("Tool with progress executed successfully")
        }
        "test_reconnection" => {
            call.outbox.prime();
            call.outbox.close();
            tokio::time::sleep(PACE).await;
            Outcome::text("Reconnection test completed successfully")
        }
        _ => match asked(name, arguments) {
            Some(asked) => ask(call, asked).await,
            None => content(name, arguments),
        },
    }
}

async fn ask(call: &Call, asked: Asked) -> Outcome {
    let (capability, method, params) = match &asked {
        Asked::Sampling(params) => ("sampling", "sampling/createMessage", params),
        Asked::Elicitation(_, params) => ("elicitation", "elicitation/create", params),
    };
    if call.session.capabilities()[capability].is_null() {
        return lacking(capability);
    }
    match (call.ask(method, params).await, &asked) {
        (Some(answer), Asked::Sampling(_)) => sampled(&answer),
        (Some(answer), Asked::Elicitation(lead, _)) => elicited(lead, &answer),
        (None, _) => Outcome::Silent,
    }
}

/// What a tool answers that needs nothing from the client.
pub fn content(name: &str, arguments: &Value) -> Outcome {
    let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
    let content = match name {
        "test_simple_text" => {
            json!([{"type": "text", "text": "This is a simple text response for testing."}])
        }
        "test_image_content" => json!([image]),
        "test_audio_content" => json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]),
        "test_embedded_resource" => json!([{"type": "resource", "resource": {
            "uri": "test://embedded-resource", "mimeType": "text/plain",
            "text": "This is an embedded resource content.",
        }}]),
        "test_multiple_content_types" => json!([
            {"type": "text", "text": "Multiple content types test:"},
            image,
            {"type": "resource", "resource": {
                "uri": "test://mixed-content-resource", "mimeType": "application/json",
                "text": r#"{"test":"data","value":123}"#,
            }},
        ]),
        "json_schema_2020_12_tool" => {
            json!([{"type": "text", "text": format!("Called with {arguments}")}])
        }
        "test_reconnection" => json!([{"type": "text", "text": "Nothing was reconnected"}]),
        "test_error_handling" => {
            return Outcome::value(&json!({"isError": true, "content": [{
                "type": "text", "text": "This tool intentionally returns an error for testing",
            }]}));
        }
        _ => return Outcome::Error(-32602, format!("Unknown tool: {name}")),
    };
    Outcome::value(&json!({"content": content}))
}

fn lacking(what: &str) -> Outcome {
    Outcome::value(&json!({"isError": true, "content": [{
        "type": "text", "text": format!("The client does not support {what}"),
    }]}))
}

/// What a tool asks the client, if it does.
pub fn asked(name: &str, arguments: &Value) -> Option<Asked> {
    let text = |name: &str| arguments[name].as_str().unwrap_or_default();
    let (lead, message, schema) = match name {
        "test_sampling" => {
            return Some(Asked::Sampling(json!({"maxTokens": 100, "messages": [
                {"role": "user", "content": {"type": "text", "text": text("prompt")}},
            ]})));
        }
        "test_elicitation" => ("User response", text("message"), person()),
        "test_elicitation_sep1034_defaults" => {
            ("Elicitation completed", "Please review", defaults())
        }
        "test_elicitation_sep1330_enums" => ("Elicitation completed", "Please choose", choices()),
        _ => return None,
    };
    let params = json!({"message": message, "requestedSchema": schema});
    Some(Asked::Elicitation(lead, params))
}

/// The result made of an answer to `sampling/createMessage`.
pub fn sampled(answer: &Value) -> Outcome {
    let text = answer["content"]["text"].as_str().unwrap_or("No response");
    Outcome::text(&format!("LLM response: {text}"))
}

/// The result made of an answer to `elicitation/create`.
pub fn elicited(lead: &str, answer: &Value) -> Outcome {
    let action = answer["action"].as_str().unwrap_or("none");
    let content = &answer["content"];
    Outcome::text(&format!("{lead}: action={action}, content={content}"))
}

fn person() -> Value {
    json!({"type": "object", "required": ["username", "email"], "properties": {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }})
}

fn defaults() -> Value {
    json!({"type": "object", "required": [], "properties": {
        "name": {"type": "string", "description": "Name", "default": "John Doe"},
        "age": {"type": "integer", "description": "Age", "default": 30},
        "score": {"type": "number", "description": "Score", "default": 95.5},
        "status": {"type": "string", "description": "Status",
                   "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "description": "Verified", "default": true},
    }})
}

fn choices() -> Value {
    let titled = |values: [(&str, &str); 3]| {
        values
            .map(|(value, title)| json!({"const": value, "title": title}))
            .to_vec()
    };
    json!({"type": "object", "required": [], "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled([
            ("value1", "First Option"), ("value2", "Second Option"), ("value3", "Third Option"),
        ])},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                       "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items":
            {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled([
            ("value1", "First Choice"), ("value2", "Second Choice"), ("value3", "Third Choice"),
        ])}},
    }})
}
