//! Reloads under load: no client sees one, and nothing is left at any server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use springline_fixture::{FaultServer, Log};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::harness::{Client, Gateway, call, soon};
use crate::reload::{command, write};

/// How long it goes on, and for how many sessions at each endpoint. The command in docs/testing.md
/// sets more by the environment.
const SECONDS: usize = 5;
const SESSIONS: usize = 3;

/// The pause between two reloads.
const PERIOD: Duration = Duration::from_millis(100);

/// Which server each name reaches. `gone` comes and goes, `other` changes, `mixed` is shared now and
/// then, `second` is a second name of `shared` that comes and goes.
const NAMES: [(&str, usize); 6] = [
    ("same", 0),
    ("other", 1),
    ("gone", 2),
    ("shared", 3),
    ("second", 3),
    ("mixed", 4),
];

fn servers(servers: &[FaultServer], step: usize) -> Value {
    let mut entries = serde_json::Map::new();
    let mut add = |name: &str, server: &FaultServer, key: usize, scope: &str| {
        let entry = json!({
            "url": server.url, "headers": { "X-Key": key.to_string() },
            "springline": { "scope": scope },
        });
        entries.insert(name.to_owned(), entry);
    };
    add("same", &servers[0], 0, "session");
    add("other", &servers[1], step / 3, "session");
    if step.is_multiple_of(2) {
        add("gone", &servers[2], 0, "session");
    }
    add("shared", &servers[3], step / 7, "global");
    let scope = if step % 10 < 5 { "global" } else { "session" };
    add("mixed", &servers[4], 0, scope);
    if step % 4 < 2 {
        let alias = json!({ "springline": { "aliasOf": "shared" } });
        entries.insert("second".to_owned(), alias);
    }
    json!({ "mcpServers": entries })
}

#[derive(Default)]
struct Tally {
    answered: Vec<String>,
    /// Told that the server is not configured now.
    refused: Vec<String>,
}

/// Calls in a closed loop, now and then one that outlives some reloads.
async fn calls(client: Client, who: String, tools: Vec<String>, stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let id = format!("{who}-{n}");
        let tool = &tools[n % tools.len()];
        let (tool, arguments) = if n.is_multiple_of(9) {
            let sleep = tool.replace("charge", "sleep");
            (sleep, json!({ "ms": 150, "id": id }))
        } else {
            (tool.clone(), json!({ "id": id }))
        };
        let answer = client.post(&call(n as u64, &tool, &arguments)).await;
        assert_eq!(answer.status, 200, "a lost session: {}", answer.text());
        let response = answer.response();
        assert_eq!(response["id"], n, "{response}");
        let data = &response["error"]["data"];
        if response.get("result").is_some() {
            tally.answered.push(id);
        } else if data["code"] == "SERVER_REMOVED" && data["outcome"] == "not_executed" {
            tally.refused.push(id);
        } else {
            panic!("{who} {tool}: {response}");
        }
    }
    tally
}

/// What ran, by the id of its call; and each session that the server minted was ended once, with the
/// key that opened it.
fn account(log: &Log, runs: &mut BTreeMap<String, usize>) -> usize {
    for run in &log.executions {
        *runs.entry(run.id.clone()).or_default() += 1;
    }
    let mut ended: Vec<&str> = Vec::new();
    let mut keys: BTreeMap<&str, &str> = BTreeMap::new();
    for seen in &log.seen {
        let (Some(session), Some(key)) = (&seen.session, seen.headers.get("x-key")) else {
            continue;
        };
        let opened = keys.entry(session).or_insert(key);
        assert_eq!(opened, key, "{} with another key", seen.http);
        if seen.http == "DELETE" {
            ended.push(session);
        }
    }
    ended.sort_unstable();
    let mut minted: Vec<&str> = log.minted.iter().map(String::as_str).collect();
    minted.sort_unstable();
    assert_eq!(ended, minted, "each is ended once");
    assert_eq!((log.without_session, log.uninitialised), (0, 0));
    minted.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_lose_nothing_run_nothing_twice_and_leave_nothing() {
    let seconds = std::env::var("SPRINGLINE_RELOAD_SECONDS");
    let seconds = seconds.map_or(SECONDS, |text| text.parse().unwrap());
    let mut webs = Vec::new();
    for _ in 0..5 {
        webs.push(FaultServer::start().await.unwrap());
    }
    let gateway = Gateway::start(servers(&webs, 0), |_| {}).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for at in 0..SESSIONS {
        for (name, _) in NAMES {
            let client = gateway.open(&format!("/mcp/{name}")).await;
            let tools = vec!["charge".to_owned()];
            let who = format!("{name}-{at}");
            tasks.push(tokio::spawn(calls(client, who, tools, Arc::clone(&stop))));
        }
        let client = gateway.open("/mcp").await;
        let tools = NAMES.map(|(name, _)| format!("{name}__charge")).to_vec();
        let who = format!("all-{at}");
        tasks.push(tokio::spawn(calls(client, who, tools, Arc::clone(&stop))));
    }
    let sessions = tasks.len();
    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reloads = 0;
    while Instant::now() < until && tasks.iter().all(|task| !task.is_finished()) {
        ticks.tick().await;
        reloads += 1;
        write(&gateway, &servers(&webs, reloads));
        let output = command(&gateway, &["reload"]).await;
        assert!(output.status.success(), "{output:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut tally = Tally::default();
    for task in tasks {
        let one = soon("a session's last call", task).await.unwrap();
        tally.answered.extend(one.answered);
        tally.refused.extend(one.refused);
    }
    write(&gateway, &json!({ "mcpServers": {} }));
    let output = command(&gateway, &["reload"]).await;
    assert!(output.status.success(), "{output:?}");
    let (mut runs, mut ended) = (BTreeMap::new(), 0);
    for web in &webs {
        soon(
            "the end of all sessions",
            web.wait(|log| log.deletes >= log.minted.len() as u64),
        )
        .await;
        ended += account(&web.log(), &mut runs);
    }
    for id in &tally.answered {
        assert_eq!(runs.remove(id), Some(1), "{id} was answered");
    }
    assert_eq!(runs, BTreeMap::new(), "refused, and yet run");
    eprintln!(
        "{reloads} reloads in {seconds} s, {sessions} sessions: {} calls answered and run once, {} \
         refused and not run, {ended} sessions with servers each ended once, no session lost",
        tally.answered.len(),
        tally.refused.len()
    );
}
