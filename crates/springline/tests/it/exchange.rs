//! What travels both ways: ids, progress, cancellation, and requests of servers.

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Reply, Rule};

use crate::harness::{Client, Flow, Gateway, call, fault, notification, request, soon, text_of};

async fn setup() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client)
}

/// A call with a raw id and a raw progress token.
fn tracked(id: &str, token: &str, tool: &str, arguments: &str) -> String {
    request(
        id,
        "tools/call",
        &format!(
            r#"{{"name":"{tool}","arguments":{arguments},"_meta":{{"progressToken":{token},"x.y/z":[1.0,null]}}}}"#
        ),
    )
}

#[tokio::test]
async fn two_clients_with_the_same_ids_and_tokens_get_their_own() {
    let (server, gateway, first) = setup().await;
    let second = gateway.open("/mcp/s").await;
    let bodies = |who: &str| {
        [
            tracked(
                "7",
                "1",
                "progress",
                &format!(r#"{{"n":2,"id":"{who}-7","gate":"{who}"}}"#),
            ),
            tracked(
                r#""7""#,
                r#""1""#,
                "progress",
                &format!(r#"{{"n":3,"id":"{who}-s","gate":"{who}"}}"#),
            ),
        ]
    };
    let mut flying = Vec::new();
    for (client, who) in [(&first, "a"), (&second, "b")] {
        for body in bodies(who) {
            flying.push(client.later(&body));
        }
    }
    for gate in ["a", "b"] {
        soon("both calls", server.arrived(gate, 2)).await;
    }
    for gate in ["b", "a"] {
        server.release(gate);
        server.release(gate);
    }
    let expected = [("7", "1", 2), (r#""7""#, r#""1""#, 3)];
    for (at, later) in flying.into_iter().enumerate() {
        let answer = later.await.unwrap();
        let (id, token, steps) = expected[at % 2];
        let raw = answer.raw();
        assert_eq!(raw.len(), steps + 1, "{raw:?}");
        for (step, text) in (1..).zip(&raw[..steps]) {
            let message: Value = serde_json::from_str(text).unwrap();
            assert_eq!(message["method"], "notifications/progress");
            assert_eq!(message["params"]["progressToken"].to_string(), token);
            assert_eq!(message["params"]["progress"], step);
        }
        assert!(raw[steps].contains(&format!(r#""id":{id}"#)), "{raw:?}");
        assert_eq!(text_of(&answer.response()), format!("{steps} steps"));
    }
    let log = server.log();
    for seen in log.of("tools/call") {
        assert!(seen.body.contains(r#""x.y/z":[1.0,null]"#), "{}", seen.body);
    }
}

#[tokio::test]
async fn a_duplicate_id_in_flight_is_refused_and_the_first_is_untouched() {
    let (server, _gateway, client) = setup().await;
    let first = client.later(&call(5, "charge", &json!({"id": "first", "gate": "g"})));
    soon("the first call", server.arrived("g", 1)).await;
    let second = client
        .post(&call(5, "charge", &json!({"id": "second"})))
        .await;
    assert_eq!(second.status, 400);
    assert_eq!(second.json()["error"]["code"], -32600);
    assert_eq!(second.json()["id"], 5);
    server.release("g");
    assert_eq!(text_of(&first.await.unwrap().response()), "charged first");
    assert_eq!(server.log().executed("second"), 0);
    // Once answered, the id is free again.
    assert_eq!(
        client.text(5, "charge", json!({"id": "third"})).await,
        "charged third"
    );
}

#[tokio::test]
async fn a_cancellation_reaches_the_server_under_its_own_id_and_nothing_is_answered() {
    let (server, _gateway, client) = setup().await;
    let later = client.later(&call(41, "charge", &json!({"id": "c", "gate": "g"})));
    soon("the call", server.arrived("g", 1)).await;
    let body = notification(
        "notifications/cancelled",
        r#"{"requestId":41,"reason":"enough"}"#,
    );
    assert_eq!(client.post(&body).await.status, 202);
    soon(
        "the cancellation",
        server.wait(|log| log.count("notifications/cancelled") == 1),
    )
    .await;
    let log = server.log();
    let seen: Value =
        serde_json::from_str(&log.of("notifications/cancelled").next().unwrap().body).unwrap();
    let asked = log.of("tools/call").next().unwrap().id.clone().unwrap();
    assert_eq!(seen["params"]["requestId"].to_string(), asked);
    assert_eq!(seen["params"]["reason"], "enough");
    server.release("g");
    let answer = later.await.unwrap();
    assert!(!answer.text().contains(r#""id":41"#), "{}", answer.text());
    assert_eq!(
        client.text(42, "charge", json!({"id": "d"})).await,
        "charged d"
    );
    // A cancellation of what is not in flight goes nowhere.
    let body = notification("notifications/cancelled", r#"{"requestId":999}"#);
    assert_eq!(client.post(&body).await.status, 202);
    client.text(43, "charge", json!({"id": "e"})).await;
    assert_eq!(server.log().count("notifications/cancelled"), 1);
}

/// Answers the one server request on this stream; gives it, and the result of the call.
async fn answered(client: &Client, mut flow: Flow, outcome: &str) -> (Value, Value) {
    assert!(flow.is_stream());
    let asked = soon("the server's request", flow.message()).await.unwrap();
    let id = &asked["id"];
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#);
    assert_eq!(client.post(&body).await.status, 202);
    let answer = soon("the answer", flow.message()).await.unwrap();
    assert!(flow.message().await.is_none());
    (asked, answer)
}

#[tokio::test]
async fn a_servers_requests_are_answered_through_the_stream_of_their_call() {
    let (_server, _gateway, client) = setup().await;
    let cases = [
        (
            "ask_sampling",
            "sampling/createMessage",
            r#"{"role":"assistant","content":{"type":"text","text":"hi"},"model":"m","x":1.0}"#,
        ),
        (
            "ask_elicitation",
            "elicitation/create",
            r#"{"action":"accept","content":{"name":"Ada"}}"#,
        ),
        (
            "ask_roots",
            "roots/list",
            r#"{"roots":[{"uri":"file:///r"}]}"#,
        ),
    ];
    for (n, (tool, method, result)) in (1..).zip(cases) {
        let flow = client.start("POST", call(n, tool, &json!({}))).await;
        let (asked, answer) = answered(&client, flow, &format!(r#""result":{result}"#)).await;
        assert_eq!(asked["method"], method);
        assert_eq!(answer["id"], n);
        assert_eq!(text_of(&answer), result, "byte for byte");
    }
}

#[tokio::test]
async fn a_clients_refusal_passes_unchanged() {
    let (_server, _gateway, client) = setup().await;
    let flow = client
        .start("POST", call(1, "ask_sampling", &json!({})))
        .await;
    let error = r#"{"code":-1,"message":"User rejected","data":{"a":1.0}}"#;
    let (_, answer) = answered(&client, flow, &format!(r#""error":{error}"#)).await;
    assert_eq!(text_of(&answer), error);
}

#[tokio::test]
async fn a_request_that_the_client_cannot_answer_is_refused_at_once() {
    let (_server, gateway, _) = setup().await;
    let mut client = gateway.client("/mcp/s");
    client.open("{}").await;
    for (n, tool) in (1..).zip(["ask_sampling", "ask_elicitation", "ask_roots"]) {
        let answer = client.post(&call(n, tool, &json!({}))).await;
        assert_eq!(
            answer.raw().len(),
            1,
            "the client sees no request: {}",
            answer.text()
        );
        let refusal: Value = serde_json::from_str(&text_of(&answer.response())).unwrap();
        assert!(refusal["code"].is_i64(), "{refusal}");
    }
}

#[tokio::test]
async fn a_ping_of_the_server_is_answered_by_the_gateway() {
    let (server, _gateway, client) = setup().await;
    let answer = client.post(&call(1, "ask_ping", &json!({}))).await;
    assert_eq!(answer.raw().len(), 1, "{}", answer.text());
    assert_eq!(text_of(&answer.response()), "{}");
    let pong = client.ask("2", "ping", "{}").await;
    assert_eq!(pong["result"], json!({}));
    drop(server);
}

#[tokio::test]
async fn a_request_on_the_servers_own_stream_belongs_to_the_one_call_in_flight() {
    let (_server, _gateway, client) = setup().await;
    let body = call(1, "ask_roots", &json!({"standalone": true}));
    let flow = client.start("POST", body).await;
    let (asked, answer) = answered(&client, flow, r#""result":{"roots":[]}"#).await;
    assert_eq!(asked["method"], "roots/list");
    assert_eq!(text_of(&answer), r#"{"roots":[]}"#);
}

#[tokio::test]
async fn a_request_among_several_calls_goes_to_the_standing_stream() {
    let (server, _gateway, client) = setup().await;
    let mut stream = client.listen(None).await;
    let other = client.later(&call(1, "charge", &json!({"gate": "g"})));
    soon("the other call", server.arrived("g", 1)).await;
    let later = client.later(&call(2, "ask_roots", &json!({"standalone": true})));
    let asked = soon("the request", stream.message()).await.unwrap();
    assert_eq!(asked["method"], "roots/list");
    let id = &asked["id"];
    let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#);
    assert_eq!(client.post(&body).await.status, 202);
    assert_eq!(text_of(&later.await.unwrap().response()), r#"{"roots":[]}"#);
    server.release("g");
    other.await.unwrap().response();
}

#[tokio::test]
async fn log_lines_follow_the_level_of_their_session() {
    let (_server, gateway, quiet) = setup().await;
    let loud = gateway.open("/mcp/s").await;
    quiet
        .ask("1", "logging/setLevel", r#"{"level":"error"}"#)
        .await;
    let answer = quiet.post(&call(2, "log", &json!({"text": "psst"}))).await;
    assert!(!answer.text().contains("psst"));
    let answer = loud.post(&call(2, "log", &json!({"text": "psst"}))).await;
    let raw = answer.raw();
    assert_eq!(raw.len(), 2, "{raw:?}");
    assert!(raw[0].contains("psst"), "it stands before the answer");
}

#[tokio::test]
async fn a_servers_own_error_passes_unchanged_whatever_its_status() {
    let (server, _gateway, client) = setup().await;
    let error = r#"{"code":-32602,"message":"Unknown tool\n\u202e","data":{"n":1.0}}"#;
    let reply = Reply::status(400)
        .header("content-type", "application/json")
        .body(format!(r#"{{"jsonrpc":"2.0","id":$ID,"error":{error}}}"#));
    server.fault(Rule::once("tools/call", Action::Reply(reply)));
    let answer = client.later(&call(9, "nowhere", &json!({}))).await.unwrap();
    let raw = answer.raw();
    assert_eq!(
        raw,
        [format!(r#"{{"jsonrpc":"2.0","id":9,"error":{error}}}"#)]
    );
    let foreign = Reply::status(400)
        .header("content-type", "application/json")
        .body(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no"}}"#);
    server.fault(Rule::once("tools/call", Action::Reply(foreign)));
    let answer = client.call(10, "nowhere", json!({})).await;
    assert_eq!(
        fault(&answer),
        ("UPSTREAM_REFUSED", "not_executed"),
        "{answer}"
    );
}
