//! How many processes the gateway's servers are: none for clients that go away, few for clients that
//! do not use them, and never more than may be.

use serde_json::{Value, json};

use crate::harness::{
    Client, Gateway, Ledger, call, fault, gone, initialize, runs, soon, stdio_entry, text_of,
};
use crate::reload::{events, happened, reload};

struct Place {
    _folder: tempfile::TempDir,
    a: Ledger,
    b: Ledger,
}

fn folder() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let ledger = |name: &str| Ledger(folder.path().join(name));
    Place {
        a: ledger("a"),
        b: ledger("b"),
        _folder: folder,
    }
}

fn entry(ledger: &Ledger) -> Value {
    stdio_entry(&ledger.0, &[])
}

fn starts(ledger: &Ledger) -> usize {
    ledger.of("start").len()
}

/// How many of the processes run that were started.
fn running(ledger: &Ledger) -> usize {
    (0..starts(ledger)).filter(|n| runs(ledger.pid(*n))).count()
}

async fn charge(client: &Client, n: u64, id: &str) {
    let text = client.text(n, "charge", json!({ "id": id })).await;
    assert_eq!(text, format!("charged {id}"));
}

#[tokio::test]
async fn clients_that_say_initialize_and_go_away_start_nothing() {
    let folder = folder();
    let servers = json!({ "a": entry(&folder.a), "b": entry(&folder.b) });
    let gateway = Gateway::with(servers).await;
    for _ in 0..50 {
        let client = gateway.client("/mcp");
        let answer = client.post(&initialize("2025-11-25", "{}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // Starts have their turns in order: what the fifty had started would have been started by now.
    let client = gateway.open("/mcp").await;
    let text = client.text(1, "a__charge", json!({"id": "a"})).await;
    assert_eq!(text, "charged a");
    let text = client.text(2, "b__charge", json!({"id": "b"})).await;
    assert_eq!(text, "charged b");
    assert_eq!((starts(&folder.a), starts(&folder.b)), (1, 1));
}

#[tokio::test]
async fn a_first_request_starts_the_servers_if_initialized_does_not_come() {
    let folder = folder();
    let gateway = Gateway::with(json!({ "a": entry(&folder.a) })).await;
    let mut client = gateway.client("/mcp");
    let answer = client.post(&initialize("2025-11-25", "{}")).await;
    client.session = answer.header("mcp-session-id").map(str::to_owned);
    let text = client.text(1, "a__charge", json!({"id": "a"})).await;
    assert_eq!(text, "charged a");
    assert_eq!(starts(&folder.a), 1);
}

#[tokio::test]
async fn a_reload_starts_servers_for_attached_clients_and_for_others_with_their_next_call() {
    let folder = folder();
    let before = json!({ "a": entry(&folder.a) });
    let gateway = Gateway::with(before).await;
    let mut clients = Vec::new();
    for n in 0..4 {
        let client = gateway.open("/mcp").await;
        let id = format!("first {n}");
        let text = client.text(1, "a__charge", json!({"id": id})).await;
        assert_eq!(text, format!("charged {id}"));
        clients.push(client);
    }
    let _attached = clients[0].listen(None).await;
    let changed = stdio_entry(&folder.a.0, &["--stderr-line", "new"]);
    let after = json!({ "mcpServers": { "a": changed, "b": entry(&folder.b) } });
    reload(&gateway, &after).await;
    let started = |of: usize| move |ledger: &Ledger| starts(ledger) == of;
    folder.a.wait("the changed one", started(5)).await;
    folder.b.wait("the new one", started(1)).await;
    let text = clients[1].text(2, "b__charge", json!({"id": "b"})).await;
    assert_eq!(text, "charged b");
    let text = clients[1].text(3, "a__charge", json!({"id": "a"})).await;
    assert_eq!(text, "charged a");
    assert_eq!((starts(&folder.a), starts(&folder.b)), (6, 2));
}

#[tokio::test]
async fn a_child_that_is_not_used_ends_soon_after_its_client_is_gone() {
    let folder = folder();
    let config = |unused: &str| {
        json!({
            "mcpServers": { "a": entry(&folder.a) },
            "springline": { "childUnused": unused },
        })
    };
    let gateway = Gateway::start(config("10m"), |_| {}).await;
    let used = gateway.open("/mcp/a").await;
    charge(&used, 1, "used").await;
    let client = gateway.open("/mcp").await;
    let mut stream = client.listen(None).await;
    client.ask("1", "tools/list", "{}").await;
    let (first, second) = (folder.a.pid(0), folder.a.pid(1));
    reload(&gateway, &config("100ms")).await;
    assert!(runs(second));
    drop(stream);
    let ended = happened(&gateway, "server.ended", 1).await;
    assert_eq!(ended[0]["reason"], "idle", "{ended:?}");
    gone(second).await;
    assert!(runs(first), "one that was used stays");
    // Whoever comes back meets a new one, and there is nothing that was lost.
    stream = client.listen(None).await;
    let text = client.text(2, "a__charge", json!({"id": "a"})).await;
    assert_eq!(text, "charged a");
    assert_eq!(starts(&folder.a), 3);
    assert_eq!(client.start("DELETE", "").await.status, 204);
    while let Some(message) = soon("the stream's end", stream.message()).await {
        let text = message.to_string();
        assert!(!text.contains("starts afresh"), "{text}");
    }
}

#[tokio::test]
async fn a_session_that_comes_back_after_a_restart_keeps_no_child_for_ever() {
    let folder = folder();
    let config = json!({
        "mcpServers": { "a": entry(&folder.a) },
        "springline": { "childIdle": "100ms" },
    });
    let gateway = Gateway::start(config.clone(), |_| {}).await;
    let client = gateway.open("/mcp/a").await;
    charge(&client, 1, "before").await;
    let gateway = gateway.again("TERM", config).await;
    let client = client.moved(&gateway);
    charge(&client, 2, "after").await;
    let ended = happened(&gateway, "server.ended", 1).await;
    assert_eq!(ended[0]["reason"], "idle", "{ended:?}");
    charge(&client, 3, "again").await;
}

fn capped(folder: &Place, max: usize, start_timeout: &str) -> Value {
    json!({
        "mcpServers": { "a": entry(&folder.a) },
        "springline": { "childrenMax": max, "startTimeout": start_timeout },
    })
}

#[tokio::test]
async fn at_the_bound_the_child_gives_way_that_nobody_is_attached_to_and_was_used_least_recently() {
    let folder = folder();
    let gateway = Gateway::start(capped(&folder, 3, "1m"), |_| {}).await;
    let mut clients = Vec::new();
    for n in 0..3 {
        let client = gateway.open("/mcp/a").await;
        charge(&client, 1, &n.to_string()).await;
        clients.push(client);
    }
    let pids: Vec<u32> = (0..3).map(|n| folder.a.pid(n)).collect();
    // The first is the oldest, but somebody is there; the second has been used since.
    let _attached = clients[0].listen(None).await;
    charge(&clients[1], 2, "more").await;
    let fourth = gateway.open("/mcp/a").await;
    charge(&fourth, 1, "fourth").await;
    gone(pids[2]).await;
    assert!(runs(pids[0]) && runs(pids[1]));
    let evicted = happened(&gateway, "server.evicted", 1).await;
    assert_eq!(evicted.len(), 1);
    assert_eq!(evicted[0]["server"], "a");
    assert_eq!(evicted[0]["childrenMax"], 3);
    // The session goes on, at the cost of the next one.
    charge(&clients[2], 2, "third").await;
    gone(pids[1]).await;
    assert!(runs(pids[0]));
    assert_eq!(events(&gateway, "server.evicted").await.len(), 2);
    assert_eq!(running(&folder.a), 3);
    charge(&clients[1], 3, "second").await;
    charge(&clients[0], 2, "first").await;
    assert_eq!(starts(&folder.a), 6);
}

#[tokio::test]
async fn a_lower_bound_ends_as_many_as_are_too_many_and_nobody_needs() {
    let folder = folder();
    let gateway = Gateway::start(capped(&folder, 4, "1m"), |_| {}).await;
    let mut clients = Vec::new();
    for n in 0..4 {
        let client = gateway.open("/mcp/a").await;
        charge(&client, 1, &n.to_string()).await;
        clients.push(client);
    }
    let _attached = clients[0].listen(None).await;
    reload(&gateway, &capped(&folder, 2, "1m")).await;
    gone(folder.a.pid(1)).await;
    gone(folder.a.pid(2)).await;
    assert!(runs(folder.a.pid(0)) && runs(folder.a.pid(3)));
    assert_eq!(events(&gateway, "server.evicted").await.len(), 2);
    charge(&clients[1], 2, "again").await;
    gone(folder.a.pid(3)).await;
    assert_eq!(running(&folder.a), 2);
}

#[tokio::test]
async fn many_at_once_are_served_with_few_children_at_a_time() {
    let folder = folder();
    let gateway = Gateway::start(capped(&folder, 2, "1m"), |_| {}).await;
    let mut clients = Vec::new();
    for n in 0..8 {
        let client = gateway.open("/mcp/a").await;
        charge(&client, 1, &format!("first {n}")).await;
        clients.push(client);
    }
    let calls: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(n, client)| client.later(&call(2, "charge", &json!({"id": format!("{n}")}))))
        .collect();
    for (n, answer) in calls.into_iter().enumerate() {
        let answer = soon("a call", answer).await.unwrap();
        assert_eq!(text_of(&answer.response()), format!("charged {n}"));
        assert_eq!(folder.a.executed(&n.to_string()), 1);
    }
    assert!(running(&folder.a) <= 2);
}

#[tokio::test]
async fn at_the_bound_with_all_busy_a_call_hears_which_limit_it_is_and_waits_for_a_higher_one() {
    let folder = folder();
    let gateway = Gateway::start(capped(&folder, 1, "1m"), |_| {}).await;
    let busy = gateway.open("/mcp/a").await;
    let held = busy.later(&call(1, "charge", &json!({"id": "held", "gate": "held"})));
    let is_held = |ledger: &Ledger| ledger.executed("held") == 1;
    folder.a.wait("the call", is_held).await;
    reload(&gateway, &capped(&folder, 1, "300ms")).await;
    // Its handshake is answered with what is remembered.
    let client = gateway.open("/mcp/a").await;
    let answer = client.call(1, "charge", json!({"id": "crowded"})).await;
    assert_eq!(fault(&answer), ("TOO_MANY_CHILDREN", "not_executed"));
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("childrenMax is 1"), "{text}");
    let all = gateway.open("/mcp").await;
    let answer = all.call(1, "a__charge", json!({"id": "crowded"})).await;
    assert_eq!(fault(&answer), ("TOO_MANY_CHILDREN", "not_executed"));
    assert_eq!(starts(&folder.a), 1);
    reload(&gateway, &capped(&folder, 1, "1m")).await;
    let waiting = client.later(&call(2, "charge", &json!({"id": "let in"})));
    reload(&gateway, &capped(&folder, 2, "1m")).await;
    let answer = soon("the call", waiting).await.unwrap().response();
    assert_eq!(text_of(&answer), "charged let in");
    busy.text(2, "release", json!({"id": "held"})).await;
    let answer = soon("the held call", held).await.unwrap().response();
    assert_eq!(text_of(&answer), "charged held");
    assert_eq!(folder.a.executed("crowded"), 0);
    assert_eq!(events(&gateway, "server.evicted").await.len(), 0);
}

#[tokio::test]
async fn a_call_that_waits_has_the_place_of_one_that_is_over() {
    let folder = folder();
    let gateway = Gateway::start(capped(&folder, 1, "1m"), |_| {}).await;
    let busy = gateway.open("/mcp/a").await;
    let held = busy.later(&call(1, "charge", &json!({"id": "held", "gate": "held"})));
    let is_held = |ledger: &Ledger| ledger.executed("held") == 1;
    folder.a.wait("the call", is_held).await;
    let other = gateway.client("/mcp/a");
    let waits = tokio::spawn(async move {
        let mut other = other;
        other.open("{}").await;
        other.text(1, "charge", json!({"id": "next"})).await
    });
    busy.text(2, "release", json!({"id": "held"})).await;
    let answer = soon("the held call", held).await.unwrap().response();
    assert_eq!(text_of(&answer), "charged held");
    assert_eq!(soon("the next", waits).await.unwrap(), "charged next");
    gone(folder.a.pid(0)).await;
    assert_eq!(events(&gateway, "server.evicted").await.len(), 1);
}
