//! Checks of credentials: bearer tokens and `rmq-hmac-sha256`, revision 1.
//!
//! Owns this crate's own implementation of the signature, which shares nothing
//! with the gateway's. Must not know sessions.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac as Mac256, KeyInit, Mac};
use sha2::Sha256;

use crate::fault::{Hmac, Reply, Settings};
use crate::rpc;

const SCHEME: &str = "rmq-hmac-sha256";
/// How far a timestamp may be off, in either direction, inclusive.
const WINDOW: Duration = Duration::from_mins(5);

/// The refusal of a request with bad credentials, if they are bad.
pub fn check(
    settings: &Settings,
    headers: &BTreeMap<String, String>,
    method: &str,
    target: &str,
) -> Option<Reply> {
    let sent = headers.get("authorization").map(String::as_str);
    if let Some(token) = &settings.bearer
        && sent != Some(format!("Bearer {token}").as_str())
    {
        return Some(
            Reply::status(401)
                .header("www-authenticate", "Bearer error=\"invalid_token\"")
                .header("content-type", "application/json")
                .body(r#"{"error":"invalid_token"}"#),
        );
    }
    let hmac = settings.hmac.as_ref()?;
    let message = match sent {
        None => "MCP authentication is required.",
        Some(sent) if signed(hmac, sent, headers, method, target, now_ms()) => return None,
        Some(_) => "MCP authentication failed.",
    };
    let body = serde_json::json!({"code": "UNAUTHENTICATED", "message": message});
    Some(
        Reply::status(401)
            .header("www-authenticate", SCHEME)
            .header("content-type", "application/json")
            .body(body.to_string()),
    )
}

fn now_ms() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis()
}

fn signed(
    hmac: &Hmac,
    sent: &str,
    headers: &BTreeMap<String, String>,
    method: &str,
    target: &str,
    now_ms: u128,
) -> bool {
    let header = |name: &str| headers.get(name).map(String::as_str).unwrap_or_default();
    let timestamp = header("x-rmq-timestamp");
    let Ok(at) = timestamp.parse::<u128>() else {
        return false;
    };
    let expected = signature(hmac, timestamp, method, target);
    let credential = escape(&hmac.access_key);
    now_ms.abs_diff(at) <= WINDOW.as_millis()
        && header("x-rmq-instance-id") == hmac.instance_id
        && sent == format!("{SCHEME} Credential={credential}, Signature={expected}")
}

/// The signature in lower-case hexadecimal.
pub fn signature(hmac: &Hmac, timestamp: &str, method: &str, target: &str) -> String {
    let text = [
        SCHEME,
        &hmac.access_key,
        &hmac.instance_id,
        timestamp,
        method,
        target,
    ]
    .join("\n");
    let Ok(mut mac) = Mac256::<Sha256>::new_from_slice(hmac.secret_key.as_bytes()) else {
        return String::new();
    };
    mac.update(text.as_bytes());
    rpc::hex(&mac.finalize().into_bytes())
}

/// Escapes all but the unreserved characters of RFC 3986.
fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential() -> Hmac {
        Hmac {
            access_key: "AK~EXAMPLE.3".to_owned(),
            secret_key: "SKEXAMPLE3SECRET".to_owned(),
            instance_id: "instance with space".to_owned(),
        }
    }

    #[test]
    fn signature_of_a_known_request_is_the_published_one() {
        assert_eq!(
            signature(
                &credential(),
                "1757699999999",
                "POST",
                "/api/mcp/tools/call"
            ),
            "ffaf4e54584524cabc87c9ad9b4d08e4ec0902b220ce9fe80708b142fd7eeff6"
        );
    }

    #[test]
    fn timestamp_is_good_for_five_minutes_and_no_longer() {
        let hmac = credential();
        let sent = format!(
            "{SCHEME} Credential=AK~EXAMPLE.3, Signature={}",
            signature(&hmac, "1000000", "POST", "/mcp")
        );
        let headers = BTreeMap::from([
            ("x-rmq-timestamp".to_owned(), "1000000".to_owned()),
            ("x-rmq-instance-id".to_owned(), hmac.instance_id.clone()),
        ]);
        let at = |now| signed(&hmac, &sent, &headers, "POST", "/mcp", now);
        assert!(at(1_300_000));
        assert!(!at(1_300_001));
        assert!(!signed(&hmac, &sent, &headers, "GET", "/mcp", 1_000_000));
    }
}
