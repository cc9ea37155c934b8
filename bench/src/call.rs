//! The calls of a load, and whether an answer is the right one.
//!
//! Owns: what is asked and what must come back. It must not know how bytes travel.

use crate::tally::Fault;

/// The first message of a client.
pub(crate) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;

/// The last message of a handshake.
pub(crate) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What the calls of a load ask for.
#[derive(Clone, Copy)]
pub(crate) enum Mix {
    /// 100 bytes of arguments, echoed.
    Small,
    /// The same, answered as an event stream.
    Events,
    /// As much text in each result.
    Text(usize),
    /// Of 20 calls 14 small ones, 2 event streams, 2 lists, 1 of 16 KiB and 1 of 256 KiB.
    Mixed,
}

/// One call.
pub(crate) struct Call {
    pub(crate) id: u64,
    /// The message.
    pub(crate) body: String,
    /// What stands at the end of the right answer.
    tail: String,
    /// How long the right answer is at least.
    length_min: usize,
}

impl Call {
    /// The call with this id, which decides its kind in a mix.
    pub(crate) fn new(mix: Mix, id: u64) -> Self {
        match mix {
            Mix::Small => Self::small(id, ""),
            Mix::Events => Self::small(id, r#","stream":true"#),
            Mix::Text(bytes) => Self::text(id, bytes),
            Mix::Mixed => match id % 20 {
                3 | 13 => Self::small(id, r#","stream":true"#),
                6 | 16 => Self::tools(id),
                9 => Self::text(id, 16 * 1024),
                19 => Self::text(id, 256 * 1024),
                _ => Self::small(id, ""),
            },
        }
    }

    fn small(id: u64, more: &str) -> Self {
        let filler = "y".repeat(80);
        Self::tool(id, &format!(r#"{{"n":{id},"filler":"{filler}"{more}}}"#), 0)
    }

    fn text(id: u64, bytes: usize) -> Self {
        Self::tool(id, &format!(r#"{{"bytes":{bytes},"n":{id}}}"#), bytes)
    }

    fn tool(id: u64, arguments: &str, length_min: usize) -> Self {
        Self {
            id,
            body: format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
            ),
            tail: format!("{arguments}}}}}"),
            length_min,
        }
    }

    fn tools(id: u64) -> Self {
        Self {
            id,
            body: format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/list","params":{{}}}}"#),
            tail: r#""inputSchema":{"type":"object"}}]}}"#.to_owned(),
            length_min: 0,
        }
    }

    /// Whether a message is the right answer: the id, and the arguments or the text asked for. An
    /// answer of a peer that writes JSON anew may have the members in another order.
    pub(crate) fn check(&self, message: &[u8]) -> Result<(), Fault> {
        let is_whole = message.len() > self.length_min && message.ends_with(self.tail.as_bytes());
        let head = message.get(..64.min(message.len())).unwrap_or_default();
        if is_whole && id_of(head) == Some(self.id) {
            return Ok(());
        }
        self.check_slowly(message)
    }

    fn check_slowly(&self, message: &[u8]) -> Result<(), Fault> {
        let value: serde_json::Value =
            serde_json::from_slice(message).map_err(|_| Fault::Garbled("no JSON"))?;
        if let Some(code) = value.pointer("/error/code") {
            return Err(Fault::Rpc(code.as_i64().unwrap_or_default()));
        }
        if value.get("id").and_then(serde_json::Value::as_u64) != Some(self.id) {
            return Err(Fault::Wrong("an answer to another call"));
        }
        if message.len() <= self.length_min {
            return Err(Fault::Wrong("a short result"));
        }
        let is_echo = value
            .pointer("/result/structuredContent/n")
            .is_some_and(|n| n.as_u64() == Some(self.id));
        let is_list = value.pointer("/result/tools/0/name").is_some();
        if is_echo || is_list {
            return Ok(());
        }
        Err(Fault::Wrong("the arguments did not come back"))
    }
}

/// The first number that follows `"id":`.
pub(crate) fn id_of(message: &[u8]) -> Option<u64> {
    let at = message.windows(5).position(|window| window == b"\"id\":")? + 5;
    let digits = message.get(at..)?;
    let end = digits
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    std::str::from_utf8(digits.get(..end)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Call, Mix};
    use crate::tally::Fault;

    const LIST: &str = r#""result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}}"#;

    #[test]
    fn a_right_answer_passes_in_any_order_of_its_members() {
        let call = Call::new(Mix::Small, 7);
        let arguments = call.tail.strip_suffix("}}").unwrap();
        let plain =
            format!(r#"{{"jsonrpc":"2.0","id":7,"result":{{"structuredContent":{arguments}}}}}"#);
        call.check(plain.as_bytes()).unwrap();
        let turned =
            format!(r#"{{"result":{{"structuredContent":{arguments},"content":[]}},"id":7}}"#);
        call.check(turned.as_bytes()).unwrap();
        let list = format!(r#"{{"id":6,{LIST}"#);
        Call::new(Mix::Mixed, 6).check(list.as_bytes()).unwrap();
    }

    #[test]
    fn an_answer_of_somebody_else_an_error_and_a_short_text_are_told_apart() {
        let call = Call::new(Mix::Text(100), 7);
        let other = r#"{"id":8,"result":{"structuredContent":{"n":8}}}"#;
        let error = r#"{"id":7,"error":{"code":-31004,"message":"gone"}}"#;
        let short = r#"{"id":7,"result":{"structuredContent":{"n":7}}}"#;
        assert!(matches!(call.check(other.as_bytes()), Err(Fault::Wrong(_))));
        assert_eq!(call.check(error.as_bytes()), Err(Fault::Rpc(-31004)));
        assert_eq!(
            call.check(short.as_bytes()),
            Err(Fault::Wrong("a short result"))
        );
        assert!(call.check(b"").is_err());
    }
}
