//! The HTTP test server does what its script says and accounts for it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use springline_fixture::{Action, Answers, FaultServer, Reply, Rule};

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

/// One request on a connection of its own; an error if it was cut.
async fn start(
    server: &FaultServer,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<hyper::Response<Incoming>, hyper::Error> {
    let stream = tokio::net::TcpStream::connect(server.address())
        .await
        .expect("the server listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut request = hyper::Request::builder()
        .method(method)
        .uri("/mcp")
        .header("host", "127.0.0.1")
        .header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(Bytes::from(body.to_owned())))
        .expect("the request is well formed");
    sender.send_request(request).await
}

/// Reads a body until it contains the text.
async fn read_until(body: &mut Incoming, end: &str) -> String {
    let mut text = String::new();
    while !text.contains(end) {
        let frame = body.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    text
}

/// The same, with the whole body.
async fn send(
    server: &FaultServer,
    method: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Answer, hyper::Error> {
    let response = start(server, method, headers, body).await?;
    let status = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.to_string(), value)
        })
        .collect();
    let body = response.into_body().collect().await?.to_bytes();
    Ok(Answer {
        status,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"0"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

async fn post(server: &FaultServer, session: &str, body: &str) -> Result<Answer, hyper::Error> {
    send(server, "POST", &[("mcp-session-id", session)], body).await
}

async fn open(server: &FaultServer) -> String {
    let answer = send(server, "POST", &[], INITIALIZE).await.unwrap();
    let session = answer.headers["mcp-session-id"].clone();
    assert_eq!(
        post(server, &session, INITIALIZED).await.unwrap().status,
        202
    );
    session
}

fn call(id: &str, tool: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
    )
}

#[tokio::test]
async fn echo_keeps_the_bytes_of_its_arguments_and_of_the_id() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let raw = r#"{"n" : 1.50e+3, "b":[ ],"a":"\u00e9"}"#;
    let answer = post(&server, &session, &call("\"7\"", "echo", raw))
        .await
        .unwrap();
    assert!(answer.body.contains(r#""id":"7""#));
    assert!(
        answer
            .body
            .contains(&format!(r#""structuredContent":{raw}"#))
    );
}

#[tokio::test]
async fn a_call_cut_after_execution_is_in_the_ledger_and_one_cut_before_is_not() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    server.fault(Rule::once("tools/call", Action::CutBefore));
    server.fault(Rule::once("tools/call", Action::CutAfter));
    for id in ["a", "b", "c"] {
        let arguments = format!(r#"{{"id":"{id}"}}"#);
        let answer = post(&server, &session, &call("1", "charge", &arguments)).await;
        assert_eq!(answer.is_ok(), id == "c");
    }
    let log = server.log();
    assert_eq!(
        [log.executed("a"), log.executed("b"), log.executed("c")],
        [0, 1, 1]
    );
    assert_eq!(log.of("tools/call").next().unwrap().status, None);
    let cut = post(&server, &session, &call("2", "cut_after", r#"{"id":"d"}"#)).await;
    assert!(cut.is_err());
    assert_eq!(server.log().executed("d"), 1);
}

#[tokio::test]
async fn forgotten_sessions_answer_404_and_counters_tell_what_was_wrong() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    server.forget_sessions();
    let gone = post(&server, &session, &call("1", "count", "{}"))
        .await
        .unwrap();
    assert_eq!(gone.status, 404);
    assert!(gone.body.contains("-32001") && gone.body.contains(r#""id":1"#));

    let answer = send(&server, "POST", &[], INITIALIZE).await.unwrap();
    let fresh = answer.headers["mcp-session-id"].clone();
    post(&server, &fresh, &call("2", "count", "{}"))
        .await
        .unwrap();
    let bare = send(&server, "POST", &[], &call("3", "count", "{}"))
        .await
        .unwrap();
    assert_eq!(bare.status, 400);
    let log = server.log();
    assert_eq!((log.initializes, log.initialized), (2, 1));
    assert_eq!((log.uninitialised, log.without_session), (1, 1));
    assert_eq!(log.initializes_with_session, 0);
}

#[tokio::test]
async fn a_rule_refuses_just_as_often_as_it_says() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let busy = Reply::error(429, -32000, "busy").header("retry-after", "2");
    server.fault(Rule::times("tools/call", 2, Action::Reply(busy)).after(1));
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let answer = post(&server, &session, &call("1", "charge", r#"{"id":"x"}"#)).await;
        statuses.push(answer.unwrap().status);
    }
    assert_eq!(statuses, [200, 429, 429, 200]);
    assert_eq!(server.log().executed("x"), 2);
}

#[tokio::test]
async fn a_polling_answer_waits_for_the_cursor() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let form = Answers::Polling;
    server.fault(Rule::once("tools/call", Action::Answer { form }));
    let answer = post(&server, &session, &call("1", "count", "{}"))
        .await
        .unwrap();
    assert!(!answer.body.contains("result"));
    let cursor = answer
        .body
        .lines()
        .find_map(|line| line.strip_prefix("id: "))
        .unwrap();
    let headers = [
        ("mcp-session-id", session.as_str()),
        ("last-event-id", cursor),
    ];
    let resumed = send(&server, "GET", &headers, "").await.unwrap();
    assert!(resumed.body.contains(r#""id":1,"result""#));
    assert_eq!(server.log().executions.len(), 1);
}

#[tokio::test]
async fn held_call_answers_only_when_released_and_a_cancelled_one_never() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let held = async {
        let answer = post(&server, &session, &call("1", "hold", r#"{"id":"h"}"#)).await;
        answer.unwrap().body
    };
    let release = async {
        server.arrived("h", 1).await;
        server.release("h");
    };
    let (body, ()) = tokio::join!(held, release);
    assert!(body.contains("released h"));

    let cancelled = async {
        let answer = post(&server, &session, &call("2", "hold", r#"{"id":"k"}"#)).await;
        answer.unwrap().body
    };
    let cancel = async {
        server.arrived("k", 1).await;
        let text =
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}"#;
        post(&server, &session, text).await.unwrap();
    };
    let (body, ()) = tokio::join!(cancelled, cancel);
    assert_eq!(body, "");
}

#[tokio::test]
async fn spoiled_answers_are_spoiled_as_named() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let actions = [
        Action::EmptyBody,
        Action::Malformed,
        Action::WrongId,
        Action::MediaType {
            value: "Application/JSON;charset=UTF-8".to_owned(),
        },
        Action::CutBody,
    ];
    for action in actions {
        server.fault(Rule::once("tools/call", action));
    }
    let text = call("1", "count", "{}");
    assert_eq!(post(&server, &session, &text).await.unwrap().body, "");
    let malformed = post(&server, &session, &text).await.unwrap().body;
    assert!(serde_json::from_str::<serde_json::Value>(&malformed).is_err());
    let wrong = post(&server, &session, &text).await.unwrap().body;
    assert!(wrong.contains("nobody-asked") && wrong.contains("result"));
    let media = post(&server, &session, &text).await.unwrap();
    assert_eq!(
        media.headers["content-type"],
        "Application/JSON;charset=UTF-8"
    );
    assert!(post(&server, &session, &text).await.is_err());
    assert_eq!(server.log().executions.len(), 5);
}

#[tokio::test]
async fn a_rotated_bearer_refuses_the_old_one() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    server.faults().set(|s| s.bearer = Some("new".to_owned()));
    let text = call("1", "count", "{}");
    let with = async |token: &str| {
        let headers = [
            ("mcp-session-id", session.as_str()),
            ("authorization", token),
        ];
        send(&server, "POST", &headers, &text).await.unwrap()
    };
    let refused = with("Bearer old").await;
    assert_eq!(refused.status, 401);
    assert!(refused.headers.contains_key("www-authenticate"));
    assert_eq!(with("Bearer new").await.status, 200);
}

#[tokio::test]
async fn rmcp_client_understands_the_server() {
    let server = FaultServer::start().await.unwrap();
    let arguments = serde_json::json!({"id": "r"});
    let answer = springline_fixture::client::converse(
        &server.url,
        Some("charge".to_owned()),
        Some(arguments),
    )
    .await
    .unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "charged r");
    assert_eq!(server.log().executed("r"), 1);
}

#[tokio::test]
async fn a_torn_answer_is_resumed_in_pieces() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    server.faults().set(|s| {
        s.answers = Answers::Torn;
        s.pieces = Some(1);
        s.crlf = true;
        s.id_last = true;
    });
    let headers = [("mcp-session-id", session.as_str())];
    let text = call("1", "echo", r#"{"id":"é"}"#);
    let torn = start(&server, "POST", &headers, &text).await.unwrap();
    let mut torn = torn.into_body();
    read_until(&mut torn, "id: 2-0\r\n").await;
    assert!(torn.collect().await.is_err());
    let headers = [
        ("mcp-session-id", session.as_str()),
        ("last-event-id", "2-0"),
    ];
    let resumed = send(&server, "GET", &headers, "").await.unwrap();
    assert!(resumed.body.starts_with(": a comment\r\nid: 2-2\r\ndata: "));
    assert!(resumed.body.ends_with(",\"id\":1}\r\n\r\n"));
}

#[tokio::test]
async fn pages_hold_every_tool_once() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    server.faults().set(|s| s.page = Some(7));
    let mut names = std::collections::BTreeSet::new();
    let mut params = "{}".to_owned();
    loop {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{params}}}"#);
        let answer = post(&server, &session, &text).await.unwrap();
        let answer: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        for tool in answer["result"]["tools"].as_array().unwrap() {
            assert!(names.insert(tool["name"].to_string()));
        }
        match answer["result"]["nextCursor"].as_str() {
            Some(cursor) => params = format!(r#"{{"cursor":"{cursor}"}}"#),
            None => break,
        }
    }
    assert!(names.len() > 14);
}

#[tokio::test]
async fn a_subscriber_gets_the_update_on_its_get_stream() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://watched"}}"#;
    post(&server, &session, text).await.unwrap();
    server.world().update_resource();
    server.world().add_tool();
    let headers = [("mcp-session-id", session.as_str())];
    let mut body = start(&server, "GET", &headers, "")
        .await
        .unwrap()
        .into_body();
    let text = read_until(&mut body, "list_changed").await;
    assert!(text.contains("resources/updated"));
}

#[tokio::test]
async fn a_question_on_the_call_stream_is_answered_by_a_post() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let headers = [("mcp-session-id", session.as_str())];
    let text = call("1", "ask_roots", "{}");
    let response = start(&server, "POST", &headers, &text).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    read_until(&mut body, r#""id":1,"method":"roots/list""#).await;
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#;
    post(&server, &session, answer).await.unwrap();
    read_until(&mut body, r#""structuredContent":{"roots":[]}"#).await;
}

#[tokio::test]
async fn a_server_comes_back_at_its_address_with_or_without_its_sessions() {
    let server = FaultServer::start().await.unwrap();
    let session = open(&server).await;
    let (address, world) = server.stop().await;
    let server = FaultServer::serve(world, Some(address), false)
        .await
        .unwrap();
    let text = call("1", "count", "{}");
    assert_eq!(post(&server, &session, &text).await.unwrap().status, 200);
    let (address, _) = server.stop().await;
    let options = springline_fixture::Options {
        address: Some(address),
        ..springline_fixture::Options::default()
    };
    let server = FaultServer::start_with(options).await.unwrap();
    assert_eq!(post(&server, &session, &text).await.unwrap().status, 404);
}
