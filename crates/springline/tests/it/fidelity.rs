//! Bytes that need no change pass unchanged (I13), whatever carries them.

use serde_json::{Value, json};
use springline_fixture::{Action, Answers, FaultServer, Rule};

use crate::harness::{Client, Gateway, request, stdio_entry};

/// What a float-based or typed JSON layer would damage.
const TRICKY: &str = r#"{"z":725653563933458433,"a":1.0,"m":-0,"exp":1E+2,"tiny":1e-7,"dup":1,"dup":2,"null":null,"nested":{"b":[],"a":{}},"text":"\u00e9\/\ud83c\udf89 é🎉","spaced" : [ 1 , 2.50 ] ,"unknown":{"_meta":{"q":0.10}}}"#;
/// The same with a number that no machine type holds.
const HUGE: &str = r#"{"b":1e400,"a":-1E-400,"i":123456789012345678901234567890.50}"#;

fn echo(arguments: &str) -> String {
    request(
        "1",
        "tools/call",
        &format!(r#"{{"name":"echo","x-vendor":{{"k":1.50}},"arguments":{arguments}}}"#),
    )
}

/// A call's arguments and result are the same bytes on both sides.
async fn assert_faithful(client: &Client, arguments: &str) {
    let answer = client.post(&echo(arguments)).await;
    assert_eq!(answer.status, 200);
    let raw = answer.raw();
    let wanted = format!(r#""structuredContent":{arguments}}}"#);
    assert!(
        raw[0].contains(&wanted),
        "{} bytes came back otherwise: {}",
        arguments.len(),
        raw[0].chars().take(2000).collect::<String>()
    );
    assert!(raw[0].contains(r#""id":1"#));
}

#[tokio::test]
async fn arguments_and_results_pass_byte_for_byte_over_http() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    for form in [Answers::Auto, Answers::Sse, Answers::Primed] {
        for id_last in [false, true] {
            server.faults().set(|settings| {
                settings.answers = form;
                settings.id_last = id_last;
            });
            assert_faithful(&client, TRICKY).await;
        }
    }
    for seen in server.log().of("tools/call") {
        assert!(seen.body.contains(TRICKY), "{}", seen.body);
        assert!(
            seen.body.contains(r#""x-vendor":{"k":1.50}"#),
            "{}",
            seen.body
        );
    }
}

#[tokio::test]
async fn eight_mebibytes_pass_in_both_directions_over_http() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    let text = "é\\n0123456789".repeat(8 * 1024 * 1024 / 14);
    let arguments = format!(r#"{{"text":"{text}"}}"#);
    for form in [Answers::Auto, Answers::Sse] {
        for id_last in [false, true] {
            server.faults().set(|settings| {
                settings.answers = form;
                settings.id_last = id_last;
            });
            assert_faithful(&client, &arguments).await;
        }
    }
}

#[tokio::test]
async fn arguments_and_results_pass_byte_for_byte_over_stdio() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = Gateway::with(json!({
        "first": stdio_entry(&folder.path().join("first"), &[]),
        "last": stdio_entry(&folder.path().join("last"), &["--id-last"]),
    }))
    .await;
    let text = "é\\n0123456789".repeat(8 * 1024 * 1024 / 14);
    for path in ["/mcp/first", "/mcp/last"] {
        let client = gateway.open(path).await;
        assert_faithful(&client, TRICKY).await;
        assert_faithful(&client, &format!(r#"{{"text":"{text}"}}"#)).await;
    }
}

#[tokio::test]
async fn numbers_that_no_type_holds_pass_in_both_directions() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    let result =
        format!(r#"{{"content":[],"structuredContent":{HUGE},"_meta":{{"n":1.0}},"vendor":null}}"#);
    let reply = springline_fixture::Reply::status(200)
        .header("content-type", "application/json")
        .body(format!(
            r#"{{"jsonrpc":"2.0","extra":[1.0],"result":{result},"id":$ID}}"#
        ));
    server.fault(Rule::once("tools/call", Action::Reply(reply)));
    let answer = client.post(&echo(HUGE)).await;
    assert_eq!(
        answer.text(),
        format!(r#"{{"jsonrpc":"2.0","extra":[1.0],"result":{result},"id":1}}"#)
    );
    assert!(
        server
            .log()
            .of("tools/call")
            .next()
            .unwrap()
            .body
            .contains(HUGE)
    );
}

#[tokio::test]
async fn absent_and_null_stay_apart() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    let before = server.log().count("prompts/list");
    let absent = client
        .post(r#"{"jsonrpc":"2.0","id":1,"method":"prompts/list"}"#)
        .await;
    assert!(absent.response()["result"]["prompts"].is_array());
    let empty = client
        .post(r#"{"jsonrpc":"2.0","id":2,"method":"prompts/list","params":{"_meta":null}}"#)
        .await;
    assert!(empty.response()["result"]["prompts"].is_array());
    let log = server.log();
    let bodies: Vec<&str> = log
        .of("prompts/list")
        .skip(before)
        .map(|seen| &*seen.body)
        .collect();
    assert!(!bodies[0].contains("params"), "{bodies:?}");
    assert!(
        bodies[1].contains(r#""params":{"_meta":null}"#),
        "{bodies:?}"
    );
}

#[tokio::test]
async fn unknown_methods_and_notifications_pass_on_the_endpoint_of_one_server() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    let answer = client.ask("1", "vendor/thing", r#"{"n":1.0}"#).await;
    assert_eq!(answer["error"]["code"], -32601);
    assert_eq!(answer["error"]["message"], "Method not found: vendor/thing");
    let sent = r#"{"jsonrpc":"2.0","method":"notifications/vendor","params":{"n":1.0}}"#;
    assert_eq!(client.post(sent).await.status, 202);
    server
        .wait(|log| log.count("notifications/vendor") == 1)
        .await;
    assert_eq!(
        server.log().of("notifications/vendor").next().unwrap().body,
        sent
    );
}

#[tokio::test]
async fn initialize_carries_the_clients_own_words_and_the_servers_answer() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let mut client = gateway.client("/mcp/s");
    let response = client
        .open(r#"{"sampling":{},"experimental":{"x":{"n":1.0}}}"#)
        .await;
    assert_eq!(
        response["result"]["serverInfo"]["name"],
        "springline-fixture"
    );
    assert_eq!(response["result"]["instructions"], "A test peer.");
    let log = server.log();
    let seen: Value = serde_json::from_str(&log.of("initialize").next().unwrap().body).unwrap();
    assert_eq!(seen["params"]["clientInfo"]["name"], "it");
    let declared = &seen["params"]["capabilities"];
    assert_eq!(declared["sampling"], json!({}));
    assert_eq!(declared.get("roots"), None, "the client has none");
}
