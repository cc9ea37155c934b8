//! Paths, methods, sizes, JSON, sessions and versions: the status of each.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::script::{House, Reply, initialize, request, until};
use crate::downstream::HttpSettings;

const PING: &str = r#"{"jsonrpc":"2.0","id":"p","method":"echo","params":{"a":1}}"#;
const V: &str = "2025-11-25";

async fn house() -> House {
    House::open(HttpSettings::default()).await
}

#[tokio::test]
async fn both_spellings_of_a_path_serve_without_a_redirect() {
    let house = house().await;
    for path in ["/mcp", "/mcp/", "/mcp/time", "/mcp/time/"] {
        let head = ["Content-Type: application/json"];
        let reply = house
            .ask(&format!("POST {path}"), &head, &initialize(V))
            .await;
        assert_eq!(reply.status, 200, "{path}");
        assert_eq!(
            reply.header("content-length").unwrap(),
            reply.body.len().to_string()
        );
    }
}

#[tokio::test]
async fn an_unknown_path_is_404_and_a_wrong_method_405() {
    let house = house().await;
    for path in ["/", "/mcpx", "/mcp/a/b", "/mcp//", "/mcp/%20", "/connect"] {
        house
            .ask(&format!("GET {path}"), &[], "")
            .await
            .refusal(404, -32600, None);
    }
    for method in ["PUT", "PATCH"] {
        let reply = house.ask(&format!("{method} /mcp"), &[], "").await;
        reply.refusal(405, -32600, None);
        assert_eq!(reply.header("allow"), Some("GET, POST, DELETE, OPTIONS"));
    }
    let reply = house.ask("HEAD /mcp", &[], "").await;
    assert_eq!((reply.status, reply.body.as_str()), (405, ""));
    assert_eq!(house.ask("OPTIONS /mcp", &[], "").await.status, 204);
}

#[tokio::test]
async fn health_is_told_without_credentials_until_the_server_stops() {
    let tokens = vec![crate::downstream::Token::new("a", "b")];
    let house = House::open(HttpSettings {
        tokens,
        ..HttpSettings::default()
    })
    .await;
    for path in ["/healthz", "/readyz"] {
        let reply = house.ask(&format!("GET {path}"), &[], "").await;
        assert_eq!((reply.status, reply.body.as_str()), (200, "ok\n"));
        assert_eq!(
            house.ask(&format!("POST {path}"), &[], "").await.status,
            405
        );
    }
}

#[tokio::test]
async fn media_types_other_than_ours_are_415_and_406() {
    let house = house().await;
    let post = |headers: &'static [&'static str]| house.ask("POST /mcp", headers, PING);
    post(&["Content-Type: text/plain"])
        .await
        .refusal(415, -32600, None);
    post(&[]).await.refusal(415, -32600, None);
    let text = post(&["Content-Type: application/json; charset=utf-16"])
        .await
        .refusal(415, -32600, None);
    assert!(text.contains("UTF-8"), "{text}");
    post(&["Content-Type: application/json", "Accept: text/html"])
        .await
        .refusal(406, -32600, None);
    house
        .ask("GET /mcp", &["Accept: application/json"], "")
        .await
        .refusal(406, -32600, None);
}

#[tokio::test]
async fn what_is_no_message_is_400_and_reaches_no_session() {
    let house = house().await;
    let session = house.session(&[], V).await;
    for (body, code, id) in [
        ("{", -32700, None),
        ("\u{1}", -32700, None),
        ("[]", -32600, None),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"echo"}]"#,
            -32600,
            None,
        ),
        ("3", -32600, None),
        (
            r#"{"jsonrpc":"1.0","id":4,"method":"echo"}"#,
            -32600,
            Some(4.into()),
        ),
        (r#"{"jsonrpc":"2.0","id":"x"}"#, -32600, Some("x".into())),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"echo"}"#,
            -32600,
            None,
        ),
    ] {
        house.post(&[&session], body).await.refusal(400, code, id);
    }
    house
        .post(&[&session, "Content-Length: 0"], "")
        .await
        .refusal(400, -32700, None);
    assert_eq!(
        *house.script.session("s-1").heard.lock(),
        ["initialize Both"]
    );
}

#[tokio::test]
async fn a_batch_under_2025_03_26_is_refused_plainly() {
    let house = house().await;
    let session = house.session(&[], "2025-03-26").await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"echo"}]"#;
    let text = house
        .post(&[&session], batch)
        .await
        .refusal(400, -32600, None);
    assert!(text.contains("2025-03-26"), "{text}");
}

#[tokio::test]
async fn requests_need_a_session_that_is_theirs_and_lives() {
    let house = house().await;
    let session = house.session(&[], V).await;
    house
        .post(&[], PING)
        .await
        .refusal(400, -32600, Some("p".into()));
    for line in ["GET /mcp", "DELETE /mcp"] {
        house.ask(line, &[], "").await.refusal(400, -32600, None);
        house
            .ask(line, &["Mcp-Session-Id: gone"], "")
            .await
            .refusal(404, -32001, None);
    }
    house
        .post(&["Mcp-Session-Id: gone"], PING)
        .await
        .refusal(404, -32001, Some("p".into()));
    house
        .post(&[&session, &session], PING)
        .await
        .refusal(404, -32001, Some("p".into()));
    let head = [session.as_str(), "Content-Type: application/json"];
    house
        .ask("POST /mcp/time", &head, PING)
        .await
        .refusal(404, -32001, Some("p".into()));
    let reply = house.post(&[&session], PING).await;
    assert_eq!(
        (reply.status, &reply.json()["result"]),
        (200, &serde_json::json!({"a": 1}))
    );
    let reply = house.ask("DELETE /mcp", &[&session], "").await;
    assert_eq!((reply.status, reply.body.as_str()), (204, ""));
    house
        .ask("DELETE /mcp", &[&session], "")
        .await
        .refusal(404, -32001, None);
    house
        .post(&[&session], PING)
        .await
        .refusal(404, -32001, Some("p".into()));
}

#[tokio::test]
async fn initialize_opens_a_session_even_under_a_stale_id() {
    let house = house().await;
    let stale = house.post(&["Mcp-Session-Id: gone"], &initialize(V)).await;
    assert_eq!(stale.header("mcp-session-id"), Some("s-1"));
    let again = house.post(&["Mcp-Session-Id: s-1"], &initialize(V)).await;
    assert_eq!(again.header("mcp-session-id"), Some("s-2"));
    let other = house
        .post(&["MCP-Protocol-Version: 2026-07-28"], &initialize(V))
        .await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn an_initialize_that_fails_names_no_session() {
    let house = house().await;
    let reply = house.post(&[], &initialize("fail")).await;
    assert_eq!((reply.status, reply.header("mcp-session-id")), (200, None));
    assert_eq!(reply.json()["error"]["code"], -31004);
    let head = ["Content-Type: application/json"];
    let reply = house.ask("POST /mcp/nobody", &head, &initialize(V)).await;
    reply.refusal(404, -32600, Some(1.into()));
    for (name, code) in [("full", -31021), ("stopping", -31018)] {
        let reply = house
            .ask(&format!("POST /mcp/{name}"), &head, &initialize(V))
            .await;
        assert_eq!(reply.status, 200, "{name}");
        assert_eq!(reply.json()["error"]["code"], code, "{name}");
        assert_eq!(reply.json()["error"]["data"]["server"], name);
        assert_eq!(reply.json()["id"], 1);
    }
}

#[tokio::test]
async fn the_version_header_must_name_a_revision_that_we_know() {
    let house = house().await;
    let session = house.session(&[], "2025-06-18").await;
    let with = |version: &str| format!("MCP-Protocol-Version: {version}");
    for known in ["2025-06-18", "2025-11-25", "2024-11-05"] {
        assert_eq!(
            house.post(&[&session, &with(known)], PING).await.status,
            200,
            "{known}"
        );
    }
    for unknown in ["1999-01-01", "2026-07-28", "x"] {
        let reply = house.post(&[&session, &with(unknown)], PING).await;
        assert!(
            reply
                .refusal(400, -32600, Some("p".into()))
                .contains("2025-11-25")
        );
        house
            .ask("GET /mcp", &[&session, &with(unknown)], "")
            .await
            .refusal(400, -32600, None);
        house
            .ask("DELETE /mcp", &[&session, &with(unknown)], "")
            .await
            .refusal(400, -32600, None);
    }
    let reply = house
        .post(&["Mcp-Session-Id: gone", &with("x")], PING)
        .await;
    reply.refusal(404, -32001, Some("p".into()));
}

#[tokio::test]
async fn what_is_accepted_without_an_answer_is_202_without_a_body() {
    let house = house().await;
    let session = house.session(&[], V).await;
    for body in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":"srv-3","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":"srv-3","error":{"code":1,"message":""}}"#,
    ] {
        let reply = house.post(&[&session], body).await;
        assert_eq!((reply.status, reply.body.as_str()), (202, ""));
        assert_eq!(reply.header("content-type"), None);
    }
    let refuse = r#"{"jsonrpc":"2.0","id":1,"method":"refuse"}"#;
    house
        .post(&[&session], refuse)
        .await
        .refusal(400, -32600, None);
    let nothing = r#"{"jsonrpc":"2.0","id":1,"method":"nothing"}"#;
    let reply = house.post(&[&session], nothing).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (200, &(-31015).into())
    );
}

fn sized(len: usize) -> String {
    let frame = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"t":""}}"#.len();
    let text = "x".repeat(len - frame);
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{{"t":"{text}"}}}}"#)
}

fn chunked(session: &str, body: &str) -> Vec<u8> {
    let head = [
        session,
        "Content-Type: application/json",
        "Transfer-Encoding: chunked",
    ];
    let mut bytes = request("POST /mcp", &head, "");
    for chunk in body.as_bytes().chunks(60_000) {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

#[tokio::test]
async fn bodies_pass_up_to_the_cap_and_over_it_get_413_that_names_it() {
    let settings = HttpSettings {
        body_max: 4_000_000,
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    for size in [99_000, 105_000, 2_100_000, 4_000_000] {
        let body = sized(size);
        let reply = house.post(&[&session], &body).await;
        assert_eq!(reply.status, 200, "{size}");
        let sent: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(reply.json()["result"] == sent["params"], "{size}");
        let reply = house.raw(&chunked(&session, &body)).await;
        assert!(
            reply.status == 200 && reply.json()["result"] == sent["params"],
            "{size}"
        );
    }
    let body = sized(4_000_001);
    for reply in [
        house.post(&[&session], &body).await,
        house.raw(&chunked(&session, &body)).await,
    ] {
        let text = reply.refusal(413, -32600, Some(1.into()));
        assert!(
            text.contains("4000000") && text.contains("bodyMax"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn of_a_large_body_without_a_session_only_the_id_is_read() {
    let house = house().await;
    let stale = "Mcp-Session-Id: s-99";
    let body = sized(1_000_000);
    for reply in [
        house.post(&[stale], &body).await,
        house.raw(&chunked(stale, &body)).await,
    ] {
        reply.refusal(404, -32001, Some(1.into()));
        assert_eq!(reply.header("connection"), Some("close"));
    }
    let reply = house.post(&[], &body).await;
    reply.refusal(400, -32600, Some(1.into()));
    // Who sends nothing of what he announces is not waited for.
    let head = [
        stale,
        "Content-Type: application/json",
        "Content-Length: 60000000",
    ];
    let reply = house.ask("POST /mcp", &head, "").await;
    reply.refusal(404, -32001, None);
    let reply = house.ask("POST /nowhere", &head, "").await;
    reply.refusal(404, -32600, None);
    assert_eq!(reply.header("connection"), Some("close"));
    // An `initialize` is read whole, whatever session it names.
    let head = [stale, "Content-Type: application/json"];
    let reply = house.ask("POST /mcp", &head, &initialize(V)).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn who_asks_before_writing_is_told_before_writing() {
    let settings = HttpSettings {
        body_max: 1000,
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let head = [
        session.as_str(),
        "Content-Type: application/json",
        "Expect: 100-continue",
        "Content-Length: 999999",
    ];
    house
        .ask("POST /mcp", &head, "")
        .await
        .refusal(413, -32600, None);
}

#[tokio::test]
async fn who_announces_too_much_and_sends_nothing_is_refused_without_a_wait_for_it() {
    let settings = HttpSettings {
        body_max: 1000,
        read_patience: std::time::Duration::from_hours(1),
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let head = [
        session.as_str(),
        "Content-Type: application/json",
        "Content-Length: 999999",
    ];
    let reply = house.ask("POST /mcp", &head, "").await;
    reply.refusal(413, -32600, None);
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_request() {
    let house = house().await;
    let mut stream = house.dial().await;
    let text = String::from_utf8(request("GET /healthz", &[], "")).unwrap();
    let text = text.replace("Connection: close\r\n", "");
    for _ in 0..3 {
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"ok\n") {
            assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
        }
        assert_eq!(Reply::parse(&seen).status, 200);
    }
    assert_eq!(house.server.connections(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_is_noticed() {
    let house = house().await;
    let session = house.session(&[], V).await;
    let script = house.script.session("s-1");
    let before = *script.gone.borrow();
    for method in ["silent", "wait"] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let head = [session.as_str(), "Content-Type: application/json"];
        let mut stream = house.dial().await;
        stream
            .write_all(&request("POST /mcp", &head, &body))
            .await
            .unwrap();
        let count = script.heard.lock().len();
        assert!(count >= 1);
        while !script
            .heard
            .lock()
            .iter()
            .any(|heard| heard.starts_with(method))
        {
            tokio::task::yield_now().await;
        }
        drop(stream);
        let wanted = before + if method == "silent" { 1 } else { 2 };
        until(&script.gone, |gone| *gone >= wanted).await;
    }
    assert!(Arc::strong_count(&script) >= 1);
}
