//! Streams that break: the answer is redelivered, and only to whom it belongs.

use serde_json::json;
use springline_fixture::{Answers, FaultServer};

use crate::harness::{Answer, Client, Flow, Gateway, call, fault, soon, text_of};

/// A gateway that answers calls as streams at once.
async fn setup() -> (FaultServer, Gateway, Client) {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "streamAfter": 0 },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    (server, gateway, client)
}

/// Starts a held call, and breaks its stream behind the priming event: the cursor.
async fn broken(server: &FaultServer, client: &Client, id: u64) -> String {
    let gate = format!("g{id}");
    let body = call(id, "charge", &json!({"id": format!("b{id}"), "gate": gate}));
    let mut flow = client.start("POST", body).await;
    assert!(flow.is_stream());
    let priming = soon("the priming event", flow.event()).await.unwrap();
    assert_eq!(priming.data, "");
    assert_eq!(priming.retry.as_deref(), Some("1000"));
    soon("the call", server.arrived(&gate, 1)).await;
    drop(flow);
    priming.id.unwrap()
}

async fn last(flow: &mut Flow) -> crate::harness::Event {
    let event = soon("the answer", flow.event()).await.unwrap();
    assert!(
        soon("the end", flow.event()).await.is_none(),
        "nothing follows the answer"
    );
    event
}

#[tokio::test]
async fn an_answer_missed_by_a_broken_stream_comes_with_the_cursor() {
    let (server, _gateway, client) = setup().await;
    let cursor = broken(&server, &client, 1).await;
    server.release("g1");
    let mut again = client.listen(Some(&cursor)).await;
    assert_eq!(again.status, 200);
    let event = last(&mut again).await;
    assert_eq!(event.message()["id"], 1);
    assert_eq!(text_of(&event.message()), "charged b1");
    // Not behind its own cursor; again before it.
    let mut behind = client.listen(event.id.as_deref()).await;
    assert!(soon("the end", behind.event()).await.is_none());
    let mut before = client.listen(Some(&cursor)).await;
    assert_eq!(last(&mut before).await, event);
    assert_eq!(server.log().executed("b1"), 1);
    assert_eq!(
        server.log().count("notifications/cancelled"),
        0,
        "a broken stream cancels nothing"
    );
}

#[tokio::test]
async fn a_stream_resumed_in_mid_call_gets_the_answer_when_it_comes() {
    let (server, _gateway, client) = setup().await;
    let cursor = broken(&server, &client, 1).await;
    let other = broken(&server, &client, 2).await;
    let mut first = client.listen(Some(&cursor)).await;
    let mut second = client.listen(Some(&other)).await;
    server.release("g2");
    assert_eq!(text_of(&last(&mut second).await.message()), "charged b2");
    server.release("g1");
    assert_eq!(text_of(&last(&mut first).await.message()), "charged b1");
}

#[tokio::test]
async fn foreign_forged_and_unknown_cursors_are_refused_alike() {
    let (server, gateway, client) = setup().await;
    let stranger = gateway.open("/mcp/s").await;
    let cursor = broken(&server, &client, 1).await;
    let (head, tail) = cursor.split_at(cursor.len() - 1);
    let forged = format!("{head}{}", if tail == "A" { "B" } else { "A" });
    let mut refusals: Vec<Answer> = Vec::new();
    for (who, cursor) in [
        (&stranger, &*cursor),
        (&client, &*forged),
        (&client, "0"),
        (&client, "nonsense"),
    ] {
        let flow = who.listen(Some(cursor)).await;
        assert_eq!(flow.status, 400, "{cursor}");
        refusals.push(flow.whole().await);
    }
    assert!(
        refusals
            .iter()
            .all(|refusal| refusal.body == refusals[0].body)
    );
    server.release("g1");
    let mut own = client.listen(Some(&cursor)).await;
    assert_eq!(text_of(&last(&mut own).await.message()), "charged b1");
}

#[tokio::test]
async fn initialize_and_older_clients_get_no_priming_event() {
    let (_server, gateway, _) = setup().await;
    let mut old = gateway.client("/mcp/s");
    let answer = old
        .post(&crate::harness::initialize("2025-06-18", "{}"))
        .await;
    assert_eq!(answer.response()["result"]["protocolVersion"], "2025-06-18");
    assert!(!answer.text().contains("id: "), "{}", answer.text());
    old.session = Some(answer.header("mcp-session-id").unwrap().to_owned());
    old.version = Some("2025-06-18".to_owned());
    assert_eq!(old.post(crate::harness::INITIALIZED).await.status, 202);
    let mut flow = old
        .start("POST", call(1, "charge", &json!({"id": "o"})))
        .await;
    let event = soon("the answer", flow.event()).await.unwrap();
    assert_eq!(text_of(&event.message()), "charged o");
    assert!(event.id.is_some(), "ids stand on the messages");
}

#[tokio::test]
async fn a_quick_answer_is_json_and_accept_decides() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": { "url": server.url } })).await;
    let client = gateway.open("/mcp/s").await;
    let quick = client.post(&call(1, "charge", &json!({}))).await;
    assert_eq!(quick.header("content-type"), Some("application/json"));
    let body = call(2, "progress", &json!({"n": 2}));
    let only = client
        .header("accept", "application/json")
        .post(&body)
        .await;
    assert_eq!(only.header("content-type"), Some("application/json"));
    assert_eq!(text_of(&only.response()), "2 steps");
    for accept in ["", "*/*"] {
        let both = client
            .header("accept", accept)
            .post(&call(3, "charge", &json!({})))
            .await;
        assert_eq!(both.status, 200, "{accept}");
    }
}

#[tokio::test]
async fn a_server_that_closes_streams_and_is_polled_answers_without_a_second_post() {
    let (server, _gateway, client) = setup().await;
    for (n, form) in (1..).zip([Answers::Polling, Answers::Torn, Answers::Primed]) {
        server.faults().set(|settings| settings.answers = form);
        let id = format!("p{n}");
        assert_eq!(
            client.text(n, "charge", json!({"id": id})).await,
            format!("charged {id}")
        );
        assert_eq!(server.log().executed(&id), 1);
    }
    let log = server.log();
    assert_eq!(log.count("tools/call"), 3);
    let resumed = log
        .of("GET")
        .filter(|seen| seen.headers.contains_key("last-event-id"));
    assert_eq!(resumed.count(), 2);
    assert_eq!(log.initializes, 1);
}

#[tokio::test]
async fn events_of_all_sessions_have_a_bound_and_the_one_that_holds_most_loses_first() {
    let server = FaultServer::start().await.unwrap();
    let config = json!({
        "mcpServers": { "s": { "url": server.url } },
        "springline": { "streamAfter": 0, "redeliveryTotalBytes": "100KiB" },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let [one, two, three] = [
        gateway.open("/mcp/s").await,
        gateway.open("/mcp/s").await,
        gateway.open("/mcp/s").await,
    ];
    let mut cursors = Vec::new();
    for (id, client) in (1..).zip([&one, &one, &two, &three]) {
        let long = id.to_string().repeat(30 * 1024);
        let body = call(id, "charge", &json!({ "id": long }));
        let mut flow = client.start("POST", body).await;
        let priming = soon("the priming event", flow.event()).await.unwrap();
        assert_eq!(
            text_of(&last(&mut flow).await.message()).len(),
            30 * 1024 + 8
        );
        cursors.push((client, priming.id.unwrap()));
    }
    for (n, (client, cursor)) in cursors.iter().enumerate() {
        let mut again = client.listen(Some(cursor)).await;
        let message = last(&mut again).await.message();
        if n == 0 {
            assert_eq!(fault(&message), ("RESULT_LOST", "executed"));
        } else {
            assert_eq!(text_of(&message).len(), 30 * 1024 + 8, "{n}");
        }
    }
    let metrics = gateway
        .client("/metrics")
        .start("GET", "")
        .await
        .whole()
        .await;
    let text = metrics.text();
    let line = text
        .lines()
        .find(|line| line.starts_with("springline_redelivery_bytes "));
    let bytes = line
        .and_then(|line| line.rsplit(' ').next()?.parse::<usize>().ok())
        .unwrap();
    assert!((3 * 30 * 1024..=100 * 1024).contains(&bytes), "{bytes}");
    for client in [&one, &two, &three] {
        assert_eq!(client.start("DELETE", "").await.status, 204);
    }
    let metrics = gateway
        .client("/metrics")
        .start("GET", "")
        .await
        .whole()
        .await;
    assert!(metrics.text().contains("\nspringline_redelivery_bytes 0\n"));
}
