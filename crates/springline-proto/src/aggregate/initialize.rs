//! The result of `initialize` for all servers together.
//!
//! Owns the union of capabilities. An entry that was never seen counts as one with tools, prompts
//! and resources. Must not know which servers run.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::json::{self, Span};
use crate::version::Version;

/// The most text of instructions, in bytes; what does not fit is left out, server by server.
const INSTRUCTIONS_MAX: usize = 4096;

/// Whether a raw `result` of `initialize` declares the capability along this path.
pub(crate) fn has_capability(result: &[u8], names: &[&str]) -> bool {
    let path: Vec<&str> = std::iter::once("capabilities")
        .chain(names.iter().copied())
        .collect();
    json::path(result, Span::whole(result), &path)
        .is_some_and(|span| matches!(span.of(result), [b'{', ..] | b"true"))
}

/// The raw `result` for these servers: each its name and the result that is remembered of it.
///
/// Changes of lists are always announced: a server that comes late changes them.
pub(crate) fn initialize_result(version: Version, servers: &[(&str, Option<Bytes>)]) -> Bytes {
    let known = || servers.iter().filter_map(|(_, result)| result.as_ref());
    let is_unseen = servers.iter().any(|(_, result)| result.is_none());
    let any = |names: &[&str]| known().any(|result| has_capability(result, names));
    let mut parts = Vec::new();
    if any(&["logging"]) {
        parts.push(r#""logging":{}"#);
    }
    if any(&["completions"]) {
        parts.push(r#""completions":{}"#);
    }
    if is_unseen || any(&["prompts"]) {
        parts.push(r#""prompts":{"listChanged":true}"#);
    }
    if any(&["resources", "subscribe"]) {
        parts.push(r#""resources":{"subscribe":true,"listChanged":true}"#);
    } else if is_unseen || any(&["resources"]) {
        parts.push(r#""resources":{"listChanged":true}"#);
    }
    // Without any server there still is a list of tools, and it may change.
    if is_unseen || any(&["tools"]) || servers.is_empty() {
        parts.push(r#""tools":{"listChanged":true}"#);
    }
    let mut result = format!(
        concat!(
            r#"{{"protocolVersion":"{}","capabilities":{{{}}},"#,
            r#""serverInfo":{{"name":"springline","version":"{}"}}"#
        ),
        version.as_str(),
        parts.join(","),
        env!("CARGO_PKG_VERSION")
    );
    let text = instructions(servers);
    if !text.is_empty() {
        // Writing to a String cannot fail.
        write!(result, r#","instructions":{}"#, json::quote(&text)).unwrap_or_default();
    }
    result.push('}');
    result.into()
}

/// What the servers say of their use, each under its name.
fn instructions(servers: &[(&str, Option<Bytes>)]) -> String {
    let mut all = String::new();
    for (name, result) in servers {
        let text = result.as_ref().and_then(|result| {
            let span = json::member(result, Span::whole(result), "instructions")?;
            Some(json::string(span.of(result))?.into_owned())
        });
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
            continue;
        };
        if all.len() + name.len() + text.len() <= INSTRUCTIONS_MAX {
            let gap = if all.is_empty() { "" } else { "\n\n" };
            write!(all, "{gap}[{name}] {}", text.trim()).unwrap_or_default();
        }
    }
    all
}
