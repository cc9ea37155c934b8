//! The endpoint's HTTP rules, on the real binary.

use serde_json::{Value, json};
use springline_fixture::FaultServer;

use crate::harness::{
    Answer, CAPABILITIES, Client, Gateway, call, fault, initialize, request, soon,
};

async fn setup() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "bodyMax": "64KiB", "drain": 0 },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client)
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":"q","method":"tools/list"}"#;

fn assert_refused(answer: &Answer, status: u16, code: i64) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json()["error"]["code"], code, "{}", answer.text());
}

async fn whole(client: &Client, method: &str) -> Answer {
    client.start(method, "").await.whole().await
}

#[tokio::test]
async fn an_unknown_session_is_404_and_a_missing_id_is_400() {
    let (_server, gateway, client) = setup().await;
    let mut unknown = client.clone();
    unknown.session = Some("gone-1".to_owned());
    let answer = unknown.post(LIST).await;
    assert_refused(&answer, 404, -32001);
    assert_eq!(answer.json()["error"]["message"], "Session not found");
    assert_eq!(answer.json()["id"], "q");
    for method in ["GET", "DELETE"] {
        assert_refused(&whole(&unknown, method).await, 404, -32001);
    }
    let nameless = gateway.client("/mcp/s");
    assert_refused(&nameless.post(LIST).await, 400, -32600);
    for method in ["GET", "DELETE"] {
        assert_refused(&whole(&nameless, method).await, 400, -32600);
    }
    // An `initialize` with a stale id opens a new session.
    let answer = unknown.post(&initialize("2025-11-25", CAPABILITIES)).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("mcp-session-id").is_some());
}

#[tokio::test]
async fn what_is_no_message_is_refused_with_a_json_rpc_body() {
    let (_server, _gateway, client) = setup().await;
    assert_refused(&client.post("{").await, 400, -32700);
    assert_refused(&client.post("[]").await, 400, -32600);
    assert_refused(&client.post(&format!("[{LIST}]")).await, 400, -32600);
    assert_refused(
        &client
            .post(r#"{"jsonrpc":"1.0","id":1,"method":"x"}"#)
            .await,
        400,
        -32600,
    );
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(client.post(&request("1", "x", &deep)).await.status, 400);
    let version = client.header("mcp-protocol-version", "1999-01-01");
    assert_refused(&version.post(LIST).await, 400, -32600);
}

#[tokio::test]
async fn methods_and_media_types_are_checked() {
    let (_server, _gateway, client) = setup().await;
    let put = whole(&client, "PUT").await;
    assert_refused(&put, 405, -32600);
    assert!(put.header("allow").unwrap().contains("POST"));
    assert_refused(
        &client.header("accept", "text/html").post(LIST).await,
        406,
        -32600,
    );
    assert_refused(
        &whole(&client.header("accept", "application/json"), "GET").await,
        406,
        -32600,
    );
    assert_refused(
        &client.header("content-type", "text/plain").post(LIST).await,
        415,
        -32600,
    );
    assert_refused(
        &client.header("content-type", "").post(LIST).await,
        415,
        -32600,
    );
    let spelled = client.header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(spelled.post(LIST).await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_told_the_limit() {
    let (_server, _gateway, client) = setup().await;
    let body = call(1, "echo", &json!({"text": "x".repeat(70_000)}));
    let answer = client.post(&body).await;
    assert_refused(&answer, 413, -32600);
    assert!(answer.text().contains("65536") && answer.text().contains("bodyMax"));
    let fits = call(2, "echo", &json!({"text": "x".repeat(10_000)}));
    assert_eq!(client.post(&fits).await.status, 200);
}

#[tokio::test]
async fn a_foreign_host_or_origin_is_refused() {
    let (_server, _gateway, client) = setup().await;
    for (name, value) in [
        ("host", "evil.example"),
        ("origin", "https://evil.example"),
        ("origin", "http://localhost.evil.example"),
        ("origin", "null"),
    ] {
        let answer = client.header(name, value).post(LIST).await;
        assert_eq!(answer.status, 403, "{name}: {value}");
        assert!(answer.text().contains("allowed"), "{}", answer.text());
    }
    for (name, value) in [
        ("host", "localhost:1234"),
        ("host", "[::1]:8080"),
        ("origin", "http://localhost:3000"),
    ] {
        assert_eq!(
            client.header(name, value).post(LIST).await.status,
            200,
            "{name}: {value}"
        );
    }
}

#[tokio::test]
async fn tokens_are_judged_first_and_sessions_belong_to_their_principal() {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "auth": { "tokens": { "a": "token-a-secret", "b": "token-b-secret" } } },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let stranger = gateway.client("/mcp/s");
    for client in [
        stranger.clone(),
        stranger.header("authorization", "Bearer wrong"),
    ] {
        let answer = client.post(&initialize("2025-11-25", "{}")).await;
        assert_eq!(answer.status, 401);
        assert!(
            answer
                .header("www-authenticate")
                .unwrap()
                .starts_with("Bearer")
        );
    }
    let mut first = stranger.header("authorization", "Bearer token-a-secret");
    first.open("{}").await;
    assert_eq!(first.post(LIST).await.status, 200);
    let mut second = stranger.header("authorization", "Bearer token-b-secret");
    second.session.clone_from(&first.session);
    assert_refused(&second.post(LIST).await, 404, -32001);
    assert_eq!(whole(&second, "DELETE").await.status, 404);
    assert_eq!(
        first.post(LIST).await.status,
        200,
        "another's DELETE ended it"
    );
    let log = server.log();
    let leaked = log
        .seen
        .iter()
        .find(|seen| seen.headers.contains_key("authorization"));
    assert!(leaked.is_none(), "the client's token went to the server");
    assert!(!gateway.log().contains("secret"));
}

#[tokio::test]
async fn both_spellings_of_a_path_are_one_and_unknown_servers_are_404() {
    let (_server, gateway, client) = setup().await;
    let mut slash = gateway.client("/mcp/s/");
    slash.session.clone_from(&client.session);
    assert_eq!(slash.post(LIST).await.status, 200);
    for path in ["/mcp/nobody", "/mcp/a%2Fb", "/elsewhere"] {
        let answer = gateway
            .client(path)
            .post(&initialize("2025-11-25", "{}"))
            .await;
        assert_eq!(answer.status, 404, "{path}");
        let _: Value = answer.json();
    }
    // A session belongs to its endpoint.
    let mut all = gateway.client("/mcp");
    all.session.clone_from(&client.session);
    assert_refused(&all.post(LIST).await, 404, -32001);
}

#[tokio::test]
async fn a_deleted_session_is_unknown_and_ended_upstream_once() {
    let (server, _gateway, client) = setup().await;
    let mut stream = client.listen(None).await;
    assert_eq!(whole(&client, "DELETE").await.status, 204);
    assert_refused(&client.post(LIST).await, 404, -32001);
    assert_refused(&whole(&client, "DELETE").await, 404, -32001);
    assert!(soon("the stream's end", stream.message()).await.is_none());
    soon("the DELETE", server.wait(|log| log.deletes == 1)).await;
    let log = server.log();
    assert_eq!(
        log.of("DELETE").next().unwrap().session.as_ref(),
        Some(&log.minted[0])
    );
}

#[tokio::test]
async fn an_orderly_stop_answers_the_calls_in_flight() {
    let (server, mut gateway, client) = setup().await;
    let later = client.later(&call(1, "charge", &json!({"id": "a", "gate": "never"})));
    soon("the call", server.arrived("never", 1)).await;
    gateway.signal("TERM");
    let answer = later.await.unwrap().response();
    assert_eq!(fault(&answer).1, "unknown", "{answer}");
    assert_eq!(gateway.ended().await.code(), Some(0));
    assert_eq!(server.log().executed("a"), 1);
}

#[tokio::test]
async fn the_protocol_version_is_that_of_each_hop() {
    let (server, gateway, _) = setup().await;
    server
        .faults()
        .set(|settings| settings.version = Some("2025-06-18".to_owned()));
    let client = gateway.open("/mcp/s").await;
    client.text(1, "charge", json!({"id": "v"})).await;
    let log = server.log();
    let minted = log.minted.last().unwrap();
    for seen in log
        .seen
        .iter()
        .filter(|seen| seen.session.as_ref() == Some(minted))
    {
        let sent = seen.protocol.as_deref();
        assert_eq!(sent, Some("2025-06-18"), "{:?}", seen.method);
    }
}

#[tokio::test]
async fn health_needs_no_session() {
    let (_server, gateway, _) = setup().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            gateway.client(path).start("GET", "").await.status,
            200,
            "{path}"
        );
    }
}
