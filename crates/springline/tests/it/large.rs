//! Results that are too large to be held: they pass while they come, or are seen to be cut.

use serde_json::json;
use springline_fixture::{Action, Answers, FaultServer, Reply, Rule};

use crate::harness::{Client, Flow, Gateway, call, fault, soon};

const MIB: usize = 1024 * 1024;

/// A gateway that answers calls as JSON, or as streams at once.
async fn setup(streams: bool) -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "streamAfter": if streams { json!(0) } else { json!("1h") } },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client)
}

/// A result of so many bytes, in more than one line.
fn result(len: usize) -> String {
    let text = "é€\\n\\u00e9 0123456789".repeat(len / 24 + 1);
    format!("{{\n \"content\": [ {{\"type\":\"text\",\"text\":\"{text}\"}}],\n\"x\":1.0}}")
}

/// The call is executed, and answered with this body.
fn answer(server: &FaultServer, kind: &str, body: impl Into<String>) {
    let reply = Reply::status(200).header("content-type", kind).body(body);
    server.fault(Rule::once("tools/call", Action::ReplyAfter(reply)));
}

async fn charge(client: &Client, id: u64) -> Flow {
    let body = call(id, "charge", &json!({"id": format!("b{id}")}));
    client.start("POST", body).await
}

/// The session and the way to the server are as good as before.
async fn assert_well(client: &Client) {
    let text = client.text(99, "charge", json!({"id": "after"})).await;
    assert_eq!(text, "charged after");
}

#[tokio::test]
async fn a_large_result_passes_byte_for_byte_in_every_form() {
    let result = result(2 * MIB);
    let last = format!(r#"{{"result":{result},"jsonrpc":"2.0","vendor":null, "id" : $ID}}"#);
    let first = format!(r#"{{"id":$ID,"jsonrpc":"2.0","result":{result}}}"#);
    for streams in [false, true] {
        let (server, _gateway, client) = setup(streams).await;
        for body in [&last, &first] {
            let lines = body.replace('\n', "\ndata: ");
            for (kind, sent) in [
                ("application/json", body.clone()),
                ("text/event-stream", format!("id: 7\ndata: {lines}\n\n")),
            ] {
                answer(&server, kind, sent);
                let mut flow = charge(&client, 17).await;
                let wanted = body.replace("$ID", "17");
                let (got, wanted) = if streams {
                    let priming = soon("the priming event", flow.event()).await.unwrap();
                    assert_eq!(priming.data, "");
                    let event = soon("the answer", flow.event()).await.unwrap();
                    assert!(event.id.is_some());
                    (event.data, wanted.replace('\n', " "))
                } else {
                    let (got, whole) = flow.rest().await;
                    assert!(whole);
                    (String::from_utf8(got).unwrap(), wanted)
                };
                assert!(got == wanted, "{kind}, {streams}: {} bytes", got.len());
            }
        }
        assert_well(&client).await;
    }
}

#[tokio::test]
async fn what_cannot_be_completed_never_ends_well_as_json() {
    let result = result(3 * MIB);
    let (server, _gateway, client) = setup(false).await;
    let spoilt = [
        format!(r#"{{"result":{result},"jsonrpc":"2.0","id":"another"}}"#),
        format!(r#"{{"result":{result},"jsonrpc":"2.0","id":$ID,"id":$ID}}"#),
        format!(r#"{{"result":{result},"jsonrpc":"2.0"}}"#),
        format!(r#"{{"result":{result},"jsonrpc":"2.0","id":$ID"#),
        format!(r#"{{"result":{result},,"jsonrpc":"2.0","id":$ID}}"#),
    ];
    for (id, body) in (1..).zip(spoilt) {
        let events = format!("data: {}\n\n", body.replace('\n', " "));
        for (kind, body) in [("application/json", body), ("text/event-stream", events)] {
            answer(&server, kind, body);
            let (got, whole) = charge(&client, id).await.rest().await;
            assert!(!whole, "{id}, {kind}: {} bytes are no answer", got.len());
        }
    }
    server.fault(Rule::once("tools/call", Action::CutBody));
    let arguments = json!({"text": "x".repeat(3 * MIB)});
    let flow = client.start("POST", call(8, "echo", &arguments)).await;
    assert!(!flow.rest().await.1, "half an answer is none");
    assert_well(&client).await;
}

#[tokio::test]
async fn an_event_that_breaks_in_the_midst_is_told_of_on_resume() {
    let (server, _gateway, client) = setup(true).await;
    for form in [Answers::Auto, Answers::Sse] {
        server.faults().set(|settings| settings.answers = form);
        server.fault(Rule::once("tools/call", Action::CutBody));
        let arguments = json!({"text": "x".repeat(3 * MIB)});
        let mut flow = client.start("POST", call(8, "echo", &arguments)).await;
        let cursor = soon("the priming event", flow.event()).await.unwrap();
        let (got, whole) = flow.rest().await;
        assert!(!whole && got.len() > MIB, "{} bytes came", got.len());
        assert!(!got.ends_with(b"\n\n"), "the event is incomplete");
        let mut again = client.listen(cursor.id.as_deref()).await;
        let told = soon("the error", again.message()).await.unwrap();
        assert_eq!(fault(&told), ("OUTCOME_UNKNOWN", "unknown"));
        assert_eq!(told["id"], 8);
    }
    assert_well(&client).await;
}

#[tokio::test]
async fn whoever_breaks_off_hears_that_the_result_is_lost() {
    let (server, _gateway, client) = setup(true).await;
    let body = format!(
        r#"{{"jsonrpc":"2.0","result":{},"id":$ID}}"#,
        result(8 * MIB)
    );
    answer(&server, "application/json", body);
    let mut flow = charge(&client, 1).await;
    let cursor = soon("the priming event", flow.event()).await.unwrap();
    soon("the answer's begin", flow.begun()).await;
    drop(flow);
    let mut again = client.listen(cursor.id.as_deref()).await;
    let told = soon("the error", again.message()).await.unwrap();
    assert_eq!(fault(&told), ("RESULT_LOST", "executed"));
    assert_well(&client).await;
}

/// The most memory that the process ever held, in bytes.
fn peak(pid: u32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1024
}

#[tokio::test]
async fn memory_stays_bounded_while_clients_read_slowly() {
    const CLIENTS: u64 = 16;
    for streams in [false, true] {
        let (server, gateway, client) = setup(streams).await;
        let body = format!(
            r#"{{"jsonrpc":"2.0","result":{},"id":$ID}}"#,
            result(8 * MIB)
        );
        assert_well(&client).await;
        let before = peak(gateway.pid());
        let mut flows = Vec::new();
        for id in 1..=CLIENTS {
            answer(&server, "application/json", body.clone());
            // Its head has come, and nobody reads on.
            let flow = charge(&client, id).await;
            soon(
                "the call",
                server.wait(|log| log.executed(&format!("b{id}")) == 1),
            )
            .await;
            flows.push(flow);
        }
        for flow in flows {
            let (got, whole) = flow.rest().await;
            assert!(whole && got.len() > 8 * MIB, "{} bytes came", got.len());
        }
        let held = peak(gateway.pid()) - before;
        assert!(held < 40 * MIB, "{} MiB for {CLIENTS} results", held / MIB);
    }
}
