//! The official conformance suite, server side, revision 2025-11-25: the fixture alone as the
//! baseline, then the same fixture through the gateway.

use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::{command, gateway, program, run};
use crate::harness::{Gateway, fixture, soon};

const REVISION: &str = "2025-11-25";

/// The fixture for this suite on Streamable HTTP; it is killed when dropped.
struct Fixture {
    _child: Child,
    url: String,
}

impl Fixture {
    /// `name`: which of the servers that hold the contents for the suite.
    async fn start(name: &str) -> Self {
        let mut child = Command::new(fixture())
            .args([name, "http"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = soon("the fixture", lines.next_line())
            .await
            .unwrap()
            .unwrap();
        Self {
            _child: child,
            url: line.trim_start_matches("LISTENING ").to_owned(),
        }
    }
}

/// What the suite found. Its exit status was 0.
#[derive(Debug)]
struct Verdict {
    /// Checks passed, over all scenarios.
    passed: u32,
    /// Lines of the scenarios that are not scored, with their mark.
    unscored: Vec<String>,
    /// Each scenario with its count of passed checks.
    scenarios: Vec<(String, u32)>,
}

/// Lets the suite judge the server at `url`. Every scored check must pass.
async fn judge(url: &str, gateway: Option<&Gateway>) -> Verdict {
    let folder = TempDir::new().unwrap();
    let mut command = command("node", folder.path());
    command
        .arg(program("conformance"))
        .args(["server", "--url", url, "--requirements", REVISION, "-o"])
        .arg(folder.path().join("checks"))
        .current_dir(folder.path());
    let printed = run(command, gateway).await;
    let summary = printed.split("=== SUMMARY ===").nth(1).unwrap();
    let mut verdict = Verdict {
        passed: 0,
        unscored: Vec::new(),
        scenarios: Vec::new(),
    };
    for line in summary.lines().map(str::trim) {
        let counted = line
            .split_once(": ")
            .and_then(|(name, counts)| Some((name, counts.split_once(" passed, ")?)));
        match counted {
            Some(("Total", (passed, failed))) => {
                assert_eq!(failed, "0 failed", "{summary}");
                verdict.passed = passed.parse().unwrap();
            }
            Some((name, (passed, failed))) => {
                assert!(failed.starts_with("0 failed"), "{summary}");
                let name = name.trim_start_matches("✓ ").to_owned();
                verdict.scenarios.push((name, passed.parse().unwrap()));
            }
            None if line.ends_with(')') => verdict.unscored.push(line.to_owned()),
            None => {}
        }
    }
    assert!(verdict.scenarios.len() >= 30, "{summary}");
    assert!(!verdict.unscored.is_empty(), "{summary}");
    for line in &verdict.unscored {
        assert!(line.starts_with('✓'), "{summary}");
    }
    verdict
}

/// Through the gateway each scenario passes as many checks as without it, `but` for the named ones.
fn assert_equal(direct: &Verdict, through: &Verdict, but: &[&str]) {
    let kept = |verdict: &Verdict| -> Vec<(String, u32)> {
        let mut scenarios = verdict.scenarios.clone();
        scenarios.retain(|(name, _)| !but.contains(&name.as_str()));
        scenarios
    };
    assert_eq!(kept(direct), kept(through));
}

/// The suite on the fixture alone, and through a gateway with this entry for it.
async fn compare(name: &str, config: impl FnOnce(&Fixture) -> Value, but: &[&str]) -> Verdict {
    let fixture = Fixture::start(name).await;
    let direct = judge(&fixture.url, None).await;
    let gateway = gateway(config(&fixture)).await;
    let url = format!("http://{}/mcp/fixture", gateway.address);
    let through = judge(&url, Some(&gateway)).await;
    assert_equal(&direct, &through, but);
    through
}

/// The server that shares no code with any SDK.
const OURS: &str = "conformance";

/// Some of their checks look at event streams alone; an answer that is there at once comes as JSON.
const STREAM_ALONE: [&str; 2] = [POLLING, "server-sse-multiple-streams"];
const POLLING: &str = "server-sse-polling";

#[tokio::test]
async fn every_check_of_the_suite_passes_in_front_of_a_server_on_http() {
    let verdict = compare(OURS, http, &STREAM_ALONE).await;
    assert!(verdict.passed >= 80, "{verdict:?}");
}

#[tokio::test]
async fn every_check_of_the_suite_passes_in_front_of_a_server_on_stdio() {
    let entry = |_: &Fixture| json!({ "mcpServers": { "fixture": stdio(OURS) } });
    let verdict = compare(OURS, entry, &STREAM_ALONE).await;
    assert!(verdict.passed >= 80, "{verdict:?}");
}

#[tokio::test]
async fn every_check_of_the_suite_passes_when_every_answer_is_a_stream() {
    let entry = |_: &Fixture| {
        json!({
            "mcpServers": { "fixture": stdio(OURS) },
            "springline": { "streamAfter": "1ms" },
        })
    };
    let verdict = compare(OURS, entry, &STREAM_ALONE).await;
    // Two of its three checks: the fixture ends its stream before it answers, and the gateway's
    // own stream stays.
    let polling = verdict.scenarios.iter().find(|(name, _)| name == POLLING);
    assert_eq!(polling.map(|(_, passed)| *passed), Some(2), "{verdict:?}");
}

#[tokio::test]
async fn every_check_of_the_suite_passes_in_front_of_the_rust_sdk() {
    let name = "rmcp-server";
    compare(name, http, &STREAM_ALONE).await;
    let entry = |_: &Fixture| json!({ "mcpServers": { "fixture": stdio(name) } });
    let verdict = compare(name, entry, &STREAM_ALONE).await;
    assert!(verdict.passed >= 80, "{verdict:?}");
}

fn http(fixture: &Fixture) -> Value {
    json!({ "mcpServers": { "fixture": { "url": fixture.url } } })
}

fn stdio(name: &str) -> Value {
    json!({ "command": fixture(), "args": [name, "stdio"] })
}
