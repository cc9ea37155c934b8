//! The JSON Schema of the configuration file.
//!
//! Derives from the declaration table alone.

use serde_json::{Value, json};

use super::default::{DECLARATIONS, Declaration, Home, Kind, Preset};

/// The JSON Schema (draft 2020-12) of a configuration file. Keys that the parser refuses are not
/// allowed by it, keys that the parser ignores are.
pub fn schema() -> Value {
    let top = object(Home::Top, "Settings of the gateway.");
    let block = object(Home::Block, "What Springline adds to the entry.");
    let mut entry = object(Home::Entry, "A server, by `command` or by `url`.");
    if let Some(entry) = entry.as_object_mut() {
        // Keys of other hosts are ignored.
        entry.insert("additionalProperties".to_owned(), json!(true));
        entry.insert(
            "anyOf".to_owned(),
            json!([{"required": ["command"]}, {"required": ["url"]}]),
        );
        if let Some(keys) = entry.get_mut("properties").and_then(Value::as_object_mut) {
            keys.insert("springline".to_owned(), block);
        }
    }
    let names = json!({ "pattern": "^(?!.*__)[A-Za-z0-9_-]{1,32}$" });
    let servers = json!({
        "type": "object",
        "description": "The server entries by name.",
        "propertyNames": names,
        "additionalProperties": { "$ref": "#/$defs/entry" },
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Springline configuration",
        "type": "object",
        "properties": {
            "mcpServers": servers.clone(),
            "servers": servers,
            "springline": top,
        },
        "$defs": { "entry": entry },
    })
}

/// The text of `docs/config.schema.json`.
pub fn schema_page() -> String {
    format!("{:#}\n", schema())
}

/// The schema of one block; keys with dots become objects in it.
fn object(home: Home, description: &str) -> Value {
    let mut root = json!({
        "type": "object",
        "description": description,
        "properties": {},
        "additionalProperties": false,
    });
    for declared in DECLARATIONS.iter().filter(|declared| declared.home == home) {
        let (folders, name) = match declared.key.rsplit_once('.') {
            Some((folders, name)) => (folders, name),
            None => ("", declared.key),
        };
        let mut properties = root.get_mut("properties").and_then(Value::as_object_mut);
        for folder in folders.split('.').filter(|folder| !folder.is_empty()) {
            properties = properties.and_then(|properties| {
                let inner = properties.entry(folder).or_insert_with(
                    || json!({ "type": "object", "properties": {}, "additionalProperties": false }),
                );
                inner.get_mut("properties").and_then(Value::as_object_mut)
            });
        }
        if let Some(properties) = properties {
            properties.insert(name.to_owned(), property(declared));
        }
    }
    root
}

fn property(declared: &Declaration) -> Value {
    let variable = json!({ "type": "string", "pattern": "\\$\\{" });
    let text = json!({ "type": "string" });
    let scalar = json!({ "type": ["string", "number", "boolean", "null"] });
    // The grammar of `unit.rs`; the alternative is a string that a variable completes.
    let either = |pattern: &str| {
        json!({ "anyOf": [
            { "type": "integer", "minimum": 0 },
            { "type": "string", "pattern": pattern },
            variable.clone(),
        ]})
    };
    let mut schema = match declared.kind {
        Kind::Duration | Kind::DurationOrZero => either("^[0-9]+ ?(ms|s|m|min|h|d)?$"),
        Kind::Bytes => either("^[0-9]+ ?(B|KiB|MiB|GiB)?$"),
        Kind::Count => either("^[0-9]+$"),
        Kind::Flag => json!({ "anyOf": [{ "type": "boolean" }, variable] }),
        Kind::Text | Kind::Path | Kind::Secret => text,
        Kind::Listen => json!({ "anyOf": [{ "type": "string" }, { "const": false }] }),
        Kind::Choice(choices) => json!({ "anyOf": [{ "enum": choices }, variable] }),
        Kind::List => json!({ "type": "array", "items": scalar }),
        Kind::Secrets => json!({ "type": "object", "additionalProperties": scalar }),
        Kind::Later => json!(false),
    };
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("description".to_owned(), json!(sentence(declared)));
        if let Some(preset) = preset(declared) {
            schema.insert("default".to_owned(), preset);
        }
    }
    schema
}

/// The text of the table as a sentence of its own.
fn sentence(declared: &Declaration) -> String {
    let mut chars = declared.text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), chars.as_str())
}

fn preset(declared: &Declaration) -> Option<Value> {
    match declared.preset {
        Preset::Ms(ms) => Some(json!(super::show_duration(
            std::time::Duration::from_millis(ms)
        ))),
        Preset::Number(number) if declared.kind == Kind::Bytes => {
            Some(json!(super::show_bytes(number)))
        }
        Preset::Number(number) => Some(json!(number)),
        Preset::Flag(flag) => Some(json!(flag)),
        Preset::Text(text) => Some(json!(text)),
        Preset::Nothing(_) => None,
    }
}
