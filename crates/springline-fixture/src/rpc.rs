//! JSON-RPC text in and out.
//!
//! Owns how a message is read and written. Ids, progress tokens and tool
//! arguments are kept as the raw text that came, so that a test can compare
//! bytes. Must not know transports.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// One message from a client.
#[derive(Debug, Deserialize)]
pub struct Incoming {
    /// Raw id text; absent or null gives `None`.
    #[serde(default)]
    pub id: Option<Box<RawValue>>,
    /// The method, absent in a response.
    #[serde(default)]
    pub method: Option<String>,
    /// Raw parameters.
    #[serde(default)]
    pub params: Option<Box<RawValue>>,
    /// Raw result of a response.
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
    /// Raw error of a response.
    #[serde(default)]
    pub error: Option<Box<RawValue>>,
}

impl Incoming {
    /// Reads one message.
    pub fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The raw text of the id.
    pub fn id_text(&self) -> Option<String> {
        self.id.as_ref().map(|id| id.get().to_owned())
    }

    /// The parameters as a value; null where absent.
    pub fn params_value(&self) -> Value {
        self.params
            .as_ref()
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
            .unwrap_or(Value::Null)
    }

    /// The raw text of a member of the parameters.
    pub fn param_text(&self, name: &str) -> Option<String> {
        let raw = self.params.as_ref()?;
        member(raw.get(), name)
    }

    /// The raw text of `params._meta.progressToken`.
    pub fn progress_token(&self) -> Option<String> {
        member(&self.param_text("_meta")?, "progressToken")
    }
}

/// The raw text of a member of a JSON object.
pub fn member(object: &str, name: &str) -> Option<String> {
    let map: std::collections::BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(object).ok()?;
    map.get(name).map(|raw| raw.get().to_owned())
}

/// Bytes in lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

/// Quotes a text as a JSON string.
pub fn quote(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A response with a raw id and a raw result.
pub fn result(id: &str, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// The same with the id at the end.
pub fn result_id_last(id: &str, result: &str) -> String {
    format!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#)
}

/// An error response; without an id where it could not be read.
pub fn error(id: Option<&str>, code: i64, message: &str) -> String {
    let body = json!({"code": code, "message": message});
    match id {
        Some(id) => format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{body}}}"#),
        None => format!(r#"{{"jsonrpc":"2.0","error":{body}}}"#),
    }
}

/// A notification.
pub fn notification(method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":{},"params":{params}}}"#,
        quote(method)
    )
}

/// A request of the server to the client.
pub fn request(id: u64, method: &str, params: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":{},"params":{params}}}"#,
        quote(method)
    )
}
