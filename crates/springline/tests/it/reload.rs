//! The configuration changes under a running gateway: what is the same is not touched, and nothing
//! that changes is seen by a client but in its lists.

use std::process::Output;

use serde_json::{Value, json};
use springline_fixture::{Action, FaultServer, Log, Rule};

use crate::harness::{
    Client, Flow, Gateway, Ledger, call, fault, initialize, runs, soon, stdio_entry, text_of,
};

/// Writes another configuration, in one step.
pub(crate) fn write(gateway: &Gateway, config: &Value) {
    let path = gateway.folder.path().join("config.json");
    let other = gateway.folder.path().join("config.json.new");
    std::fs::write(&other, config.to_string()).unwrap();
    std::fs::rename(&other, &path).unwrap();
}

pub(crate) async fn command(gateway: &Gateway, args: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_springline"));
    command
        .args(args)
        .arg("--socket")
        .arg(gateway.folder.path().join("run/springline.sock"))
        .kill_on_drop(true);
    soon("a command", command.output()).await.unwrap()
}

/// Asks for a reload that must be taken.
pub(crate) async fn reload(gateway: &Gateway, config: &Value) {
    write(gateway, config);
    let output = command(gateway, &["reload"]).await;
    assert!(output.status.success(), "{output:?}");
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers build the value in place"
)]
fn servers(servers: Value) -> Value {
    json!({ "mcpServers": servers })
}

/// The events of this name so far.
pub(crate) async fn events(gateway: &Gateway, name: &str) -> Vec<Value> {
    let output = command(gateway, &["events", "--json"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let mut events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    events.retain(|event| event["event"] == name);
    events
}

/// Waits until so many events of this name were recorded.
pub(crate) async fn happened(gateway: &Gateway, name: &str, count: usize) -> Vec<Value> {
    soon(name, async {
        loop {
            let events = events(gateway, name).await;
            if events.len() >= count {
                return events;
            }
        }
    })
    .await
}

fn web(server: &FaultServer, key: &str) -> Value {
    json!({ "url": server.url, "headers": { "X-Key": key } })
}

fn deletes(log: &Log) -> Vec<(String, String)> {
    log.seen
        .iter()
        .filter(|seen| seen.http == "DELETE")
        .map(|seen| {
            let session = seen.session.clone().unwrap_or_default();
            (session, seen.headers["x-key"].clone())
        })
        .collect()
}

fn held(n: u64, id: &str) -> String {
    call(n, "charge", &json!({ "id": id, "gate": id }))
}

async fn message(stream: &mut Flow, method: &str) -> Value {
    loop {
        let message = soon(method, stream.message()).await.unwrap();
        if message["method"] == method {
            return message;
        }
    }
}

#[tokio::test]
async fn an_unchanged_child_keeps_its_process_and_its_call() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = ["a", "b", "c"].map(|name| Ledger(folder.path().join(name)));
    let entry = |at: usize, flags: &[&str]| stdio_entry(&ledgers[at].0, flags);
    let gateway = Gateway::with(json!({ "a": entry(0, &[]), "b": entry(1, &[]) })).await;
    let (a, b) = (gateway.open("/mcp/a").await, gateway.open("/mcp/b").await);
    b.text(1, "charge", json!({"id": "before"})).await;
    let flight = a.later(&held(1, "flight"));
    ledgers[0]
        .wait("the call", |ledger| ledger.executed("flight") == 1)
        .await;
    let changed = servers(json!({
        "c": entry(2, &[]), "a": entry(0, &[]), "b": entry(1, &["--stderr-line", "new"]),
    }));
    reload(&gateway, &changed).await;
    assert_eq!(
        b.text(2, "charge", json!({"id": "after"})).await,
        "charged after"
    );
    assert_eq!(
        ledgers[1].of("start").len(),
        2,
        "the changed one has a new child"
    );
    let c = gateway.open("/mcp/c").await;
    assert_eq!(
        c.text(1, "charge", json!({"id": "new"})).await,
        "charged new"
    );
    a.text(2, "release", json!({"id": "flight"})).await;
    assert_eq!(
        text_of(&soon("the call", flight).await.unwrap().response()),
        "charged flight"
    );
    assert_eq!(ledgers[0].of("start").len(), 1);
    assert!(runs(ledgers[0].pid(0)));
    let done = events(&gateway, "reload.done").await;
    let (added, changed) = (json!(["c"]), json!(["b"]));
    assert!(
        done.iter()
            .any(|done| done["added"] == added && done["changed"] == changed),
        "{done:?}"
    );
}

/// The servers as `springline servers` has them.
async fn listed(gateway: &Gateway) -> Vec<Value> {
    let output = command(gateway, &["servers", "--json"]).await;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    answer["servers"].as_array().unwrap().clone()
}

/// State and pending calls of each instance.
fn instances(server: &Value) -> Vec<(&str, u64)> {
    let instances = server["instances"].as_array().unwrap().iter();
    instances
        .map(|instance| {
            let pending = instance["pending"].as_u64().unwrap();
            (instance["state"].as_str().unwrap(), pending)
        })
        .collect()
}

#[tokio::test]
async fn what_finishes_its_calls_after_a_reload_is_listed_as_draining() {
    let (server, other) = (
        FaultServer::start().await.unwrap(),
        FaultServer::start().await.unwrap(),
    );
    let shared = |key: &str| {
        let mut entry = web(&other, key);
        entry["springline"] = json!({ "scope": "global" });
        entry
    };
    let config = json!({ "s": web(&server, "one"), "g": shared("one") });
    let gateway = Gateway::with(config).await;
    let client = gateway.open("/mcp/s").await;
    let sharing = gateway.open("/mcp/g").await;
    let flights = [
        client.later(&held(3, "flight")),
        sharing.later(&held(3, "flight")),
    ];
    for web in [&server, &other] {
        web.wait(|log| log.executed("flight") == 1).await;
    }
    reload(
        &gateway,
        &servers(json!({ "s": web(&server, "two"), "g": shared("two") })),
    )
    .await;
    client.text(4, "charge", json!({"id": "new"})).await;
    sharing.text(4, "charge", json!({"id": "new"})).await;
    for entry in listed(&gateway).await {
        assert_eq!(entry["state"], "ready", "{entry}");
        assert_eq!(instances(&entry), [("ready", 0), ("draining", 1)]);
    }
    let output = command(&gateway, &["servers"]).await;
    let table = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(
        lines[1].starts_with('s') && lines[1].contains("ready"),
        "{table}"
    );
    assert!(
        lines[2].starts_with('s') && lines[2].contains("draining"),
        "{table}"
    );
    reload(&gateway, &servers(json!({ "new": web(&server, "two") }))).await;
    let entries = listed(&gateway).await;
    let draining = |name: &str| entries.iter().find(|entry| entry["server"] == name);
    for name in ["s", "g"] {
        let entry = draining(name).unwrap();
        assert_eq!(entry["state"], "draining", "{entry}");
        assert_eq!(entry["reason"], "it is not configured any more");
        assert!(instances(entry).contains(&("draining", 1)), "{entry}");
    }
    let status = command(&gateway, &["status", "--json"]).await;
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["servers"]["total"], 1, "what is gone is not counted");
    for (flight, web) in flights.into_iter().zip([&server, &other]) {
        web.release("flight");
        let answer = soon("the call", flight).await.unwrap();
        assert_eq!(text_of(&answer.response()), "charged flight");
    }
    soon("the end of what drained", async {
        while listed(&gateway).await.len() > 1 {}
    })
    .await;
}

#[tokio::test]
async fn new_calls_of_a_changed_server_go_to_a_new_instance_and_old_ones_finish() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": web(&server, "one") })).await;
    let client = gateway.open("/mcp/s").await;
    client
        .ask("1", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    client
        .ask("2", "logging/setLevel", r#"{"level":"info"}"#)
        .await;
    let flight = client.later(&held(3, "flight"));
    server.wait(|log| log.executed("flight") == 1).await;
    reload(&gateway, &servers(json!({ "s": web(&server, "two") }))).await;
    assert_eq!(
        client.text(4, "charge", json!({"id": "new"})).await,
        "charged new"
    );
    let log = server.log();
    assert_eq!(log.initializes, 2);
    assert_eq!(deletes(&log), [], "the old call is not over");
    let new = log.executions.last().unwrap();
    assert_eq!(new.session, log.minted[1]);
    let last = log.of("tools/call").last().unwrap();
    assert_eq!(last.headers["x-key"], "two");
    // The new one was told what the old one knew, and the client that its state is lost.
    assert_eq!(
        (
            log.count("resources/subscribe"),
            log.count("logging/setLevel")
        ),
        (2, 2)
    );
    server.release("flight");
    let answer = soon("the call", flight).await.unwrap();
    assert_eq!(text_of(&answer.response()), "charged flight");
    // The one call in flight carries what concerns the session.
    let notices = answer.raw().concat();
    assert!(
        notices.contains("its in-session state starts afresh"),
        "{notices}"
    );
    server.wait(|log| log.deletes == 1).await;
    let log = server.log();
    assert_eq!(deletes(&log), [(log.minted[0].clone(), "one".to_owned())]);
    assert_eq!(log.executed("flight"), 1);
    assert_eq!(log.without_session, 0);
    assert_eq!(
        client.text(5, "charge", json!({"id": "end"})).await,
        "charged end"
    );
}

#[tokio::test]
async fn a_removed_server_ends_each_session_once_and_a_slow_delete_delays_no_reload() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": web(&server, "one") })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    for client in &clients {
        client.text(1, "count", json!({})).await;
    }
    let flight = clients[0].later(&held(2, "flight"));
    server.wait(|log| log.executed("flight") == 1).await;
    server.fault(Rule::times(
        "DELETE",
        2,
        Action::HoldBefore {
            gate: "delete".into(),
        },
    ));
    reload(&gateway, &servers(json!({}))).await;
    server.arrived("delete", 1).await;
    for client in &clients {
        let answer = client.call(3, "count", json!({})).await;
        assert_eq!(
            fault(&answer),
            ("SERVER_REMOVED", "not_executed"),
            "{answer}"
        );
    }
    server.release("flight");
    assert_eq!(
        text_of(&soon("the call", flight).await.unwrap().response()),
        "charged flight"
    );
    server.arrived("delete", 2).await;
    // Both DELETEs hang: the next reload does not.
    let again = servers(json!({ "s": web(&server, "two") }));
    reload(&gateway, &again).await;
    for client in &clients {
        assert_eq!(
            client.text(4, "charge", json!({"id": "healed"})).await,
            "charged healed"
        );
    }
    server.world().gates.open("delete");
    server.wait(|log| log.deletes == 2).await;
    let log = server.log();
    let mut ended = deletes(&log);
    ended.sort();
    let mut old: Vec<_> = log.minted[..2]
        .iter()
        .map(|id| (id.clone(), "one".to_owned()))
        .collect();
    old.sort();
    assert_eq!(
        ended, old,
        "each once, with the configuration that opened it"
    );
    assert_eq!(log.initializes, 4);
    let told = happened(&gateway, "session.deleted", 2).await;
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(happened(&gateway, "server.drained", 2).await.len(), 2);
}

#[tokio::test]
async fn a_server_that_is_removed_and_added_again_at_once_keeps_its_session() {
    let server = FaultServer::start().await.unwrap();
    let config = servers(json!({ "s": web(&server, "one") }));
    let gateway = Gateway::start(config.clone(), |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    let flight = client.later(&held(1, "flight"));
    server.wait(|log| log.executed("flight") == 1).await;
    for _ in 0..3 {
        reload(&gateway, &servers(json!({}))).await;
        reload(&gateway, &config).await;
    }
    assert_eq!(
        client.text(2, "charge", json!({"id": "kept"})).await,
        "charged kept"
    );
    server.release("flight");
    assert_eq!(
        text_of(&soon("the call", flight).await.unwrap().response()),
        "charged flight"
    );
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
    assert_eq!(log.executions.last().unwrap().session, log.minted[0]);
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_says_where_it_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let gateway = Gateway::with(json!({ "s": stdio_entry(&ledger.0, &[]) })).await;
    let client = gateway.open("/mcp/s").await;
    let path = gateway.folder.path().join("config.json");
    std::fs::write(&path, "{\n  \"mcpServers\": {\n    \"s\": nonsense\n").unwrap();
    let output = command(&gateway, &["reload"]).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("config.json:3:"), "{said}");
    let refused = happened(&gateway, "reload.refused", 1).await;
    let reason = refused[0]["reason"].as_str().unwrap();
    assert!(reason.contains("config.json:3:"), "{reason}");
    assert_eq!(
        client.text(1, "charge", json!({"id": "on"})).await,
        "charged on"
    );
    assert_eq!(ledger.of("start").len(), 1);
    assert_eq!(events(&gateway, "reload.done").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_credential_that_rotates_in_its_file_keeps_the_session() {
    let server = FaultServer::start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "one\n").unwrap();
    let config = servers(json!({ "s": web(&server, &format!("${{file:{}}}", path.display())) }));
    let gateway = Gateway::start(config, |_| {}).await;
    let client = gateway.open("/mcp/s").await;
    client.text(1, "charge", json!({"id": "old"})).await;
    std::fs::write(&path, "two\n").unwrap();
    // Nobody asks for a reload: the file is watched.
    happened(&gateway, "reload.done", 1).await;
    let mut n = 2;
    soon("the new value", async {
        loop {
            client.text(n, "count", json!({})).await;
            n += 1;
            let log = server.log();
            if log.of("tools/call").last().unwrap().headers["x-key"] == "two" {
                return;
            }
        }
    })
    .await;
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
    assert!(
        log.of("tools/call")
            .all(|seen| seen.session.as_ref() == Some(&log.minted[0]))
    );
}

#[tokio::test]
async fn a_changed_env_file_is_a_new_child() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let path = folder.path().join("env");
    std::fs::write(&path, "A=1\n").unwrap();
    let mut entry = stdio_entry(&ledger.0, &[]);
    entry["envFile"] = json!(path);
    let gateway = Gateway::with(json!({ "s": entry })).await;
    let client = gateway.open("/mcp/s").await;
    client.text(1, "count", json!({})).await;
    std::fs::write(&path, "A=2\n").unwrap();
    let done = happened(&gateway, "reload.done", 1).await;
    assert_eq!(done[0]["changed"], json!(["s"]));
    assert_eq!(client.text(2, "count", json!({})).await, "1");
    assert_eq!(ledger.of("start").len(), 2);
}

#[tokio::test]
async fn a_hangup_reloads_and_a_changed_knob_restarts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Ledger(folder.path().join("ledger"));
    let mut entry = stdio_entry(&ledger.0, &[]);
    let gateway = Gateway::with(json!({ "s": entry })).await;
    let client = gateway.open("/mcp/s").await;
    let flight = client.later(&held(1, "never"));
    ledger
        .wait("the call", |ledger| ledger.executed("never") == 1)
        .await;
    entry["springline"] = json!({ "callTimeout": "1s" });
    write(&gateway, &servers(json!({ "s": entry })));
    gateway.signal("HUP");
    let answer = soon("the call", flight).await.unwrap().response();
    assert_eq!(fault(&answer), ("CALL_TIMEOUT", "unknown"), "{answer}");
    assert_eq!(
        client.text(2, "charge", json!({"id": "on"})).await,
        "charged on"
    );
    assert_eq!(ledger.of("start").len(), 1);
    let done = happened(&gateway, "reload.done", 1).await;
    assert_eq!(done[0]["kept"], json!(["s"]));
}

#[tokio::test]
async fn a_client_of_all_servers_hears_once_of_what_came_and_went() {
    let folder = tempfile::tempdir().unwrap();
    let ledgers = ["a", "b"].map(|name| Ledger(folder.path().join(name)));
    let entry = |at: usize| stdio_entry(&ledgers[at].0, &[]);
    let gateway = Gateway::with(json!({ "a": entry(0) })).await;
    let client = gateway.open("/mcp").await;
    let mut stream = client.listen(None).await;
    let tools = |list: Value, server: &str| {
        let tools = list["result"]["tools"].as_array().unwrap().clone();
        let of = |tool: &&Value| tool["name"].as_str().unwrap().starts_with(server);
        tools.iter().filter(of).count()
    };
    assert_eq!(tools(client.ask("1", "tools/list", "{}").await, "a__"), 20);
    reload(&gateway, &servers(json!({ "b": entry(1) }))).await;
    message(&mut stream, "notifications/tools/list_changed").await;
    let list = client.ask("2", "tools/list", "{}").await;
    assert_eq!((tools(list.clone(), "a__"), tools(list, "b__")), (0, 20));
    let answer = client.call(3, "a__count", json!({})).await;
    assert_eq!(
        fault(&answer),
        ("SERVER_REMOVED", "not_executed"),
        "{answer}"
    );
    assert_eq!(
        client.text(4, "b__charge", json!({"id": "b"})).await,
        "charged b"
    );
    reload(&gateway, &servers(json!({ "a": entry(0), "b": entry(1) }))).await;
    assert_eq!(
        client.text(5, "a__charge", json!({"id": "a"})).await,
        "charged a"
    );
    assert_eq!(ledgers[1].of("start").len(), 1);
}

#[tokio::test]
async fn tokens_change_at_once_and_the_address_does_not() {
    let config = |token: &str, listen: &str| {
        json!({ "mcpServers": {}, "springline": {
            "auth": { "tokens": { "laptop": token } }, "stateDir": listen,
        }})
    };
    let gateway = Gateway::start(config("first-token-of-all", "/nowhere/a"), |_| {}).await;
    let knock = async |token: &str| {
        let client: Client = gateway.client("/mcp");
        let client = client.header("authorization", &format!("Bearer {token}"));
        client.post(&initialize("2025-11-25", "{}")).await.status
    };
    assert_eq!(knock("first-token-of-all").await, 200);
    reload(&gateway, &config("second-token-of-all", "/nowhere/b")).await;
    assert_eq!(knock("first-token-of-all").await, 401);
    assert_eq!(knock("second-token-of-all").await, 200);
}

/// The same for all sessions.
fn global(mut entry: Value) -> Value {
    entry["springline"]["scope"] = json!("global");
    entry
}

fn alias() -> Value {
    json!({ "springline": { "aliasOf": "one" } })
}

fn disabled(mut entry: Value) -> Value {
    entry["disabled"] = json!(true);
    entry
}

async fn count(client: &Client, n: u64) -> String {
    client.text(n, "count", json!({})).await
}

#[tokio::test]
async fn a_second_name_that_is_still_in_use_keeps_the_records_of_the_shared_session() {
    let server = FaultServer::start().await.unwrap();
    let one = global(web(&server, "one"));
    let gateway = Gateway::with(json!({ "one": one, "two": alias() })).await;
    let client = gateway.open("/mcp/two").await;
    assert_eq!(count(&client, 1).await, "1");
    let config = servers(json!({ "one": disabled(one), "two": alias() }));
    reload(&gateway, &config).await;
    assert_eq!(count(&client, 2).await, "2");
    // At rest, too: also where only the second name is there from the start.
    let gateway = gateway.again("KILL", config).await;
    let client = client.moved(&gateway);
    assert_eq!(count(&client, 3).await, "3");
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
    assert_eq!(
        events(&gateway, "session.left_to_expire").await,
        Vec::<Value>::new()
    );
}

#[tokio::test]
async fn a_second_name_that_goes_takes_nothing_from_the_first() {
    let server = FaultServer::start().await.unwrap();
    let one = global(web(&server, "one"));
    let both = servers(json!({ "one": one, "two": alias() }));
    let gateway = Gateway::start(both.clone(), |_| {}).await;
    let (first, second) = (
        gateway.open("/mcp/one").await,
        gateway.open("/mcp/two").await,
    );
    assert_eq!(count(&first, 1).await, "1");
    let flight = second.later(&held(2, "flight"));
    server.wait(|log| log.executed("flight") == 1).await;
    reload(&gateway, &servers(json!({ "one": one }))).await;
    let answer = second.call(3, "count", json!({})).await;
    assert_eq!(
        fault(&answer),
        ("SERVER_REMOVED", "not_executed"),
        "{answer}"
    );
    assert_eq!(count(&first, 4).await, "2");
    server.release("flight");
    assert_eq!(
        text_of(&soon("the call", flight).await.unwrap().response()),
        "charged flight"
    );
    reload(&gateway, &both).await;
    assert_eq!(count(&second, 5).await, "3");
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (1, 0));
}

#[tokio::test]
async fn a_shared_server_that_changes_or_goes_is_ended_once_with_its_own_configuration() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": global(web(&server, "one")) })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    clients[1]
        .ask("1", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    let flight = clients[0].later(&held(2, "flight"));
    server.wait(|log| log.executed("flight") == 1).await;
    let changed = servers(json!({ "s": global(web(&server, "two")) }));
    reload(&gateway, &changed).await;
    for client in &clients {
        client.text(3, "charge", json!({"id": "new"})).await;
    }
    let log = server.log();
    assert_eq!((log.initializes, log.deletes), (2, 0));
    assert_eq!(log.count("resources/subscribe"), 2);
    server.release("flight");
    soon("the call", flight).await.unwrap();
    server.wait(|log| log.deletes == 1).await;
    reload(&gateway, &servers(json!({}))).await;
    server.wait(|log| log.deletes == 2).await;
    let log = server.log();
    let keys = [(0, "one"), (1, "two")];
    assert_eq!(
        deletes(&log),
        keys.map(|(at, key)| (log.minted[at].clone(), key.to_owned()))
    );
    for client in &clients {
        let answer = client.call(4, "count", json!({})).await;
        assert_eq!(fault(&answer), ("SERVER_REMOVED", "not_executed"));
    }
    reload(&gateway, &changed).await;
    assert_eq!(count(&clients[0], 5).await, "1");
    assert_eq!(count(&clients[1], 5).await, "2");
    // What was wanted of the one before is wanted of this one.
    server
        .wait(|log| log.count("resources/subscribe") == 3)
        .await;
}

#[tokio::test]
async fn a_server_that_is_shared_from_now_on_or_no_longer_keeps_its_clients() {
    let server = FaultServer::start().await.unwrap();
    let own = servers(json!({ "s": web(&server, "one") }));
    let shared = servers(json!({ "s": global(web(&server, "one")) }));
    let gateway = Gateway::start(own.clone(), |_| {}).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    clients[0]
        .ask("1", "resources/subscribe", r#"{"uri":"test://watched"}"#)
        .await;
    let flight = clients[1].later(&held(2, "first"));
    server.wait(|log| log.executed("first") == 1).await;
    reload(&gateway, &shared).await;
    assert_eq!(count(&clients[0], 3).await, "1");
    assert_eq!(count(&clients[1], 3).await, "2");
    server.release("first");
    soon("the call", flight).await.unwrap();
    server.wait(|log| log.deletes == 2).await;
    let flight = clients[0].later(&held(4, "second"));
    server.wait(|log| log.executed("second") == 1).await;
    reload(&gateway, &own).await;
    assert_eq!(count(&clients[0], 5).await, "1");
    assert_eq!(count(&clients[1], 5).await, "1");
    assert_eq!(server.log().deletes, 2, "a call is in flight");
    server.release("second");
    soon("the call", flight).await.unwrap();
    server.wait(|log| log.deletes == 3).await;
    let log = server.log();
    assert_eq!(log.initializes, 5);
    assert_eq!(log.count("resources/subscribe"), 3);
    let mut ended: Vec<String> = deletes(&log).into_iter().map(|(id, _)| id).collect();
    let mut minted = log.minted[..3].to_vec();
    ended.sort();
    minted.sort();
    assert_eq!(ended, minted, "each once");
}

/// Two clients whose sessions are at rest in a gateway that was started with this key.
async fn at_rest(server: &FaultServer, key: &str) -> (Gateway, [Client; 2]) {
    let gateway = Gateway::with(json!({ "s": web(server, "one") })).await;
    let clients = [gateway.open("/mcp/s").await, gateway.open("/mcp/s").await];
    for client in &clients {
        assert_eq!(count(client, 1).await, "1");
    }
    let config = servers(json!({ "s": web(server, key) }));
    let gateway = gateway.again("KILL", config).await;
    let clients = clients.map(|client| client.moved(&gateway));
    (gateway, clients)
}

#[tokio::test]
async fn two_sessions_at_rest_of_a_removed_server_get_two_deletes_and_two_events() {
    let server = FaultServer::start().await.unwrap();
    let (gateway, clients) = at_rest(&server, "one").await;
    reload(&gateway, &servers(json!({}))).await;
    let told = happened(&gateway, "session.deleted", 2).await;
    assert_eq!(told.len(), 2, "{told:?}");
    let log = server.log();
    let mut ended = deletes(&log);
    ended.sort();
    let mut minted: Vec<_> = log
        .minted
        .iter()
        .map(|id| (id.clone(), "one".to_owned()))
        .collect();
    minted.sort();
    assert_eq!(ended, minted);
    let answer = clients[0].call(2, "count", json!({})).await;
    assert_eq!(fault(&answer), ("SERVER_REMOVED", "not_executed"));
    reload(&gateway, &servers(json!({ "s": web(&server, "one") }))).await;
    for client in &clients {
        assert_eq!(count(client, 3).await, "1");
    }
    assert_eq!(server.log().deletes, 2);
    assert_eq!(
        events(&gateway, "session.left_to_expire").await,
        Vec::<Value>::new()
    );
}

#[tokio::test]
async fn sessions_at_rest_of_a_changed_server_are_ended_with_the_configuration_before() {
    let server = FaultServer::start().await.unwrap();
    let (gateway, clients) = at_rest(&server, "one").await;
    reload(&gateway, &servers(json!({ "s": web(&server, "two") }))).await;
    happened(&gateway, "session.deleted", 2).await;
    let keys: Vec<String> = deletes(&server.log())
        .into_iter()
        .map(|(_, key)| key)
        .collect();
    assert_eq!(keys, ["one", "one"]);
    for client in &clients {
        assert_eq!(count(client, 2).await, "1");
    }
    let last = server.log();
    assert_eq!(
        last.of("tools/call").last().unwrap().headers["x-key"],
        "two"
    );
    assert_eq!((last.initializes, last.deletes), (4, 2));
}

#[tokio::test]
async fn no_session_is_ended_with_the_credentials_of_another_configuration() {
    let server = FaultServer::start().await.unwrap();
    let (gateway, clients) = at_rest(&server, "two").await;
    reload(&gateway, &servers(json!({}))).await;
    let left = happened(&gateway, "session.left_to_expire", 2).await;
    assert_eq!(left.len(), 2, "{left:?}");
    reload(&gateway, &servers(json!({ "s": web(&server, "two") }))).await;
    for client in &clients {
        assert_eq!(count(client, 2).await, "1");
    }
    assert_eq!(server.log().deletes, 0);
}

#[tokio::test]
async fn a_session_that_a_kill_kept_from_being_ended_is_told_of_at_the_next_start() {
    let server = FaultServer::start().await.unwrap();
    let gateway = Gateway::with(json!({ "s": web(&server, "old") })).await;
    let client = gateway.open("/mcp/s").await;
    let flight = client.later(&held(1, "flight"));
    soon("the call", server.arrived("flight", 1)).await;
    let changed = servers(json!({ "s": web(&server, "new") }));
    reload(&gateway, &changed).await;
    assert_eq!(
        client.text(2, "charge", json!({"id": "new"})).await,
        "charged new"
    );
    assert_eq!(deletes(&server.log()), [], "the old one still has a call");
    let gateway = gateway.again("KILL", changed.clone()).await;
    drop(flight.await);
    let told = happened(&gateway, "session.left_to_expire", 1).await;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["server"], "s");
    // It is told once, and the session that took its place goes on.
    let client = client.moved(&gateway);
    assert_eq!(
        client.text(3, "charge", json!({"id": "next"})).await,
        "charged next"
    );
    assert_eq!(server.log().initializes, 2);
    let gateway = gateway.again("KILL", changed).await;
    client
        .moved(&gateway)
        .text(4, "charge", json!({"id": "last"}))
        .await;
    assert_eq!(events(&gateway, "session.left_to_expire").await.len(), 0);
    assert_eq!(deletes(&server.log()), []);
    server.release("flight");
}
