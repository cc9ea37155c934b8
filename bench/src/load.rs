//! Closed-loop load: each session has a connection and one call in flight, and checks every answer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::wire::Connection;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What is loaded.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) sessions: usize,
    /// Calls of all sessions together.
    pub(crate) calls: usize,
    /// Bytes of text in each result; none echoes 100 bytes of arguments.
    pub(crate) bytes: Option<usize>,
}

/// What came of it.
pub(crate) struct Outcome {
    pub(crate) calls_per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// One client with a session.
pub(crate) struct Client {
    connection: Connection,
    session: String,
}

impl Client {
    /// Opens a session.
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let mut connection = Connection::open(url).await?;
        let request = connection.render(None, INITIALIZE);
        let answer = connection.exchange(&request).await?;
        ensure!(answer.status == 200, "initialize: {}", answer.head);
        let session = answer
            .header("mcp-session-id")
            .context("a session id")?
            .to_owned();
        let request = connection.render(Some(&session), INITIALIZED);
        let answer = connection.exchange(&request).await?;
        ensure!(answer.status == 202, "initialized: {}", answer.head);
        Ok(Self {
            connection,
            session,
        })
    }

    async fn run(mut self, calls: usize, bytes: Option<usize>) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(calls);
        let filler = "y".repeat(80);
        for id in 1..=calls {
            let arguments = match bytes {
                Some(bytes) => format!(r#"{{"bytes":{bytes}}}"#),
                None => format!(r#"{{"n":{id},"filler":"{filler}"}}"#),
            };
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{arguments}}}}}"#
            );
            let request = self.connection.render(Some(&self.session), &body);
            let begun = Instant::now();
            let answer = self.connection.exchange(&request).await?;
            times.push(begun.elapsed());
            check(id, answer.status, answer.body, &arguments, bytes)?;
        }
        Ok(times)
    }
}

/// Every answer is the right one: status, id, and the arguments or as much text as was asked for.
fn check(
    id: usize,
    status: u16,
    body: &[u8],
    arguments: &str,
    bytes: Option<usize>,
) -> anyhow::Result<()> {
    ensure!(status == 200, "status {status}");
    let id = format!(r#""id":{id},"#);
    let head = body.get(..64.min(body.len())).unwrap_or_default();
    let named = head.windows(id.len()).any(|window| window == id.as_bytes());
    ensure!(
        named,
        "an answer to another call: {}",
        String::from_utf8_lossy(head)
    );
    let tail = format!("{arguments}}}}}");
    ensure!(
        body.ends_with(tail.as_bytes()),
        "the arguments did not come back"
    );
    ensure!(body.len() > bytes.unwrap_or(0), "a short result");
    Ok(())
}

/// Runs a load against an endpoint.
pub(crate) async fn run(url: &str, load: Load) -> anyhow::Result<Outcome> {
    let mut clients = Vec::with_capacity(load.sessions);
    for _ in 0..load.sessions {
        clients.push(Client::open(url).await?);
    }
    let each = load.calls.div_ceil(load.sessions);
    let begun = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|client| tokio::spawn(client.run(each, load.bytes)))
        .collect();
    let mut times = Vec::with_capacity(load.calls);
    for task in tasks {
        times.extend(task.await??);
    }
    let took = begun.elapsed();
    times.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let calls_per_second = times.len() as f64 / took.as_secs_f64();
    Ok(Outcome {
        calls_per_second,
        p50: quantile(&times, 50),
        p99: quantile(&times, 99),
    })
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len().saturating_sub(1)) * percent / 100;
    sorted.get(at).copied().unwrap_or_default()
}
