//! Every server behind one endpoint.

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Rule};

use crate::harness::{Client, Gateway, Server, fault, soon, stdio_entry, text_of};

/// Servers `web` and `child` that work, `slow` whose handshake is held, `dead` at a port where
/// nobody listens, and `absent` whose launcher does not exist.
struct Fleet {
    web: FaultServer,
    slow: FaultServer,
    gateway: Gateway,
    client: Client,
    _folder: tempfile::TempDir,
}

async fn setup() -> Fleet {
    let web = FaultServer::start().await.unwrap();
    let slow = FaultServer::start().await.unwrap();
    slow.fault(Rule::once(
        "initialize",
        Action::HoldBefore {
            gate: "slow".into(),
        },
    ));
    let folder = tempfile::tempdir().unwrap();
    let mut dead = Server::start(&folder.path().join("dead"), 0).await;
    dead.kill().await;
    let config = json!({
        "mcpServers": {
            "slow": { "url": slow.url },
            "dead": { "url": dead.url },
            "web": { "url": web.url },
            "absent": { "command": "/nowhere/mcp-server" },
            "child": stdio_entry(&folder.path().join("child"), &[]),
        },
        "springline": { "listWait": "1s" },
    });
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp").await;
    Fleet {
        web,
        slow,
        gateway,
        client,
        _folder: folder,
    }
}

fn names<'a>(list: &'a Value, kind: &str, member: &str) -> Vec<&'a str> {
    let items = list["result"][kind]
        .as_array()
        .unwrap_or_else(|| panic!("{list}"));
    items
        .iter()
        .map(|item| item[member].as_str().unwrap())
        .collect()
}

fn of<'a>(names: &[&'a str], server: &str) -> Vec<&'a str> {
    let mut found = names.to_vec();
    found.retain(|name| name.starts_with(server));
    found
}

#[tokio::test]
async fn slow_and_dead_servers_do_not_delay_the_lists_of_the_others() {
    let fleet = setup().await;
    let mut stream = fleet.client.listen(None).await;
    let list = fleet.client.ask("1", "tools/list", "{}").await;
    let tools = names(&list, "tools", "name");
    assert_eq!(of(&tools, "web__").len(), 20);
    assert_eq!(of(&tools, "child__").len(), 20);
    assert_eq!(tools.len(), 40, "nothing of the others: {tools:?}");
    assert!(
        tools[0].starts_with("web__"),
        "in the order of the configuration"
    );
    fleet.slow.release("slow");
    loop {
        let message = soon("list_changed", stream.message()).await.unwrap();
        if message["method"] != "notifications/tools/list_changed" {
            continue;
        }
        let list = fleet.client.ask("2", "tools/list", "{}").await;
        let tools = names(&list, "tools", "name");
        if of(&tools, "slow__").len() == 20 {
            assert!(tools[0].starts_with("slow__"));
            return;
        }
    }
}

#[tokio::test]
async fn calls_go_to_the_server_that_their_name_says() {
    let fleet = setup().await;
    let text = fleet
        .client
        .text(1, "web__charge", json!({"id": "w"}))
        .await;
    assert_eq!(text, "charged w");
    let text = fleet
        .client
        .text(2, "child__charge", json!({"id": "c"}))
        .await;
    assert_eq!(text, "charged c");
    let log = fleet.web.log();
    assert_eq!((log.executed("w"), log.executed("c")), (1, 0));
    assert_eq!(fleet.slow.log().executions.len(), 0);
    for (n, name) in (3..).zip(["charge", "nobody__charge", "web_charge"]) {
        let answer = fleet.client.call(n, name, json!({})).await;
        assert_eq!(answer["error"]["code"], -32602, "{name}: {answer}");
    }
    let absent = fleet.client.call(9, "absent__x", json!({})).await;
    assert_eq!(fault(&absent).1, "not_executed", "{absent}");
    assert_eq!(absent["error"]["data"]["server"], "absent");
}

#[tokio::test]
async fn resources_and_prompts_carry_their_server_and_come_back() {
    let fleet = setup().await;
    let list = fleet.client.ask("1", "resources/list", "{}").await;
    let uris = names(&list, "resources", "uri");
    assert!(
        uris.contains(&"springline://web/test://watched"),
        "{uris:?}"
    );
    assert!(
        uris.contains(&"springline://child/test://plain"),
        "{uris:?}"
    );
    let read = fleet
        .client
        .ask(
            "2",
            "resources/read",
            r#"{"uri":"springline://web/test://plain"}"#,
        )
        .await;
    let content = &read["result"]["contents"][0];
    assert_eq!(content["uri"], "springline://web/test://plain", "{read}");
    assert_eq!(content["text"], "plain");
    let templates = fleet
        .client
        .ask("3", "resources/templates/list", "{}")
        .await;
    let templates = names(&templates, "resourceTemplates", "uriTemplate");
    assert!(
        templates.contains(&"springline://web/test://item/{id}"),
        "{templates:?}"
    );
    let item = fleet
        .client
        .ask(
            "4",
            "resources/read",
            r#"{"uri":"springline://child/test://item/7"}"#,
        )
        .await;
    assert_eq!(item["result"]["contents"][0]["text"], "item 7", "{item}");
    let prompts = fleet.client.ask("5", "prompts/list", "{}").await;
    assert!(names(&prompts, "prompts", "name").contains(&"web__greet"));
    let got = fleet
        .client
        .ask(
            "6",
            "prompts/get",
            r#"{"name":"child__greet","arguments":{"name":"Ada"}}"#,
        )
        .await;
    assert_eq!(
        got["result"]["messages"][0]["content"]["text"], "Hello Ada",
        "{got}"
    );
    let completed = fleet
        .client
        .ask(
            "7",
            "completion/complete",
            r#"{"ref":{"type":"ref/prompt","name":"web__greet"},"argument":{"name":"name","value":"a"}}"#,
        )
        .await;
    assert_eq!(
        completed["result"]["completion"]["values"],
        json!(["ada", "alan"])
    );
    let seen = fleet.web.log();
    let sent = &seen.of("completion/complete").next().unwrap().body;
    assert!(sent.contains(r#""name":"greet""#), "{sent}");
}

#[tokio::test]
async fn updates_of_a_resource_come_under_the_name_that_was_subscribed() {
    let fleet = setup().await;
    let mut stream = fleet.client.listen(None).await;
    let done = fleet
        .client
        .ask(
            "1",
            "resources/subscribe",
            r#"{"uri":"springline://web/test://watched"}"#,
        )
        .await;
    assert!(done.get("result").is_some(), "{done}");
    fleet.web.world().update_resource();
    loop {
        let message = soon("the update", stream.message()).await.unwrap();
        if message["method"] == "notifications/resources/updated" {
            assert_eq!(message["params"]["uri"], "springline://web/test://watched");
            return;
        }
    }
}

#[tokio::test]
async fn a_forged_cursor_is_refused() {
    let fleet = setup().await;
    for (n, kind) in (1..).zip(["tools/list", "resources/list", "prompts/list"]) {
        let id = n.to_string();
        let answer = fleet.client.ask(&id, kind, r#"{"cursor":"forged"}"#).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
}

#[tokio::test]
async fn every_page_of_a_server_is_listed() {
    let fleet = setup().await;
    fleet.web.faults().set(|settings| settings.page = Some(3));
    let mut client = fleet.gateway.client("/mcp");
    client.open("{}").await;
    let mut all: Vec<String> = Vec::new();
    let mut params = "{}".to_owned();
    for n in 1.. {
        let list = client.ask(&n.to_string(), "tools/list", &params).await;
        all.extend(names(&list, "tools", "name").into_iter().map(str::to_owned));
        match list["result"].get("nextCursor") {
            Some(cursor) => params = json!({ "cursor": cursor }).to_string(),
            None => break,
        }
        assert!(n < 100, "the pages never end");
    }
    all.retain(|name| name.starts_with("web__"));
    assert_eq!(all.len(), 20, "{all:?}");
}

#[tokio::test]
async fn a_lost_session_of_one_server_leaves_the_others_and_the_client_alone() {
    let fleet = setup().await;
    fleet
        .client
        .text(1, "web__charge", json!({"id": "a"}))
        .await;
    assert_eq!(fleet.client.text(2, "child__count", json!({})).await, "1");
    fleet.web.forget_sessions();
    assert_eq!(
        fleet
            .client
            .text(3, "web__charge", json!({"id": "b"}))
            .await,
        "charged b"
    );
    assert_eq!(fleet.client.text(4, "child__count", json!({})).await, "2");
    assert_eq!(fleet.web.log().executed("b"), 1);
}

#[tokio::test]
async fn a_question_to_the_user_says_which_server_asks() {
    let fleet = setup().await;
    let body = crate::harness::call(1, "web__ask_elicitation", &json!({}));
    let mut flow = fleet.client.start("POST", body).await;
    let asked = soon("the question", flow.message()).await.unwrap();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    assert_eq!(asked["params"]["message"], "[web] Who are you?");
    let outcome = r#"{"action":"decline"}"#;
    let answer = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{outcome}}}"#,
        asked["id"]
    );
    assert_eq!(fleet.client.post(&answer).await.status, 202);
    let done = soon("the answer", flow.message()).await.unwrap();
    assert_eq!(text_of(&done), outcome);
}

#[tokio::test]
async fn servers_that_hang_at_their_start_do_not_keep_the_others_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = serde_json::Map::new();
    // As many as may start at once, and all of them before the good one.
    for n in 0..4 {
        servers.insert(
            format!("h{n}"),
            json!({ "command": "sleep", "args": ["1000"] }),
        );
    }
    servers.insert(
        "z".to_owned(),
        stdio_entry(&folder.path().join("ledger"), &[]),
    );
    let gateway = Gateway::with(Value::Object(servers)).await;
    let _all = gateway.open("/mcp").await;
    let begun = std::time::Instant::now();
    // Another session: by now the four hold every turn.
    let client = gateway.open("/mcp/z").await;
    let text = client.text(1, "charge", json!({"id": "a"})).await;
    assert_eq!(text, "charged a");
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(20),
        "it waited for startTimeout"
    );
}
