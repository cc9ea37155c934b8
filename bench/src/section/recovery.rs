//! How long trouble lasts: a server that lost its sessions, a server that was started again, and a
//! gateway that was killed with many stored sessions. `pause` has the gateway that is killed under
//! its clients.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::pause;
use crate::Run;
use crate::call::Mix;
use crate::load::{self, Client};
use crate::process::{self, Home, Server};
use crate::report::{Goal, Report, median, millis, range};
use crate::tally::{Fault, Faults, list, quantile};
use crate::wire::Connection;

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    lost_sessions(options, report).await?;
    server_restart(options, report).await?;
    cold_start(options, report).await?;
    pause::run(options, report).await
}

fn tries(options: &Run, whole: usize) -> usize {
    if options.smoke || options.quick {
        2
    } else {
        whole
    }
}

fn p50_p99(spans: &[Duration]) -> String {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    format!(
        "{:.2} / {:.2}",
        millis(quantile(&spans, 50)),
        millis(quantile(&spans, 99))
    )
}

/// The server answers 404 to a session that it had: the time until the client has its answer, less
/// that of an ordinary call, which the 404 itself took.
async fn lost_sessions(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let echo = process::echo().await?;
    let home = Home::with_url(&echo.url)?;
    let gateway = home.start(&options.springline).await?;
    let mut client = Client::open(&gateway.url).await?;
    let mut direct = Client::open(&echo.url).await?;
    let (mut healed, mut by_hand, mut round_trips) = (Vec::new(), Vec::new(), Vec::new());
    let mut faults = Faults::new();
    for _ in 0..tries(options, 50) {
        let ordinary = client.call(Mix::Small).await?;
        round_trips.push(direct.call(Mix::Small).await?);
        forget(&echo).await?;
        match client.call(Mix::Small).await {
            Ok(took) => healed.push(took.saturating_sub(ordinary)),
            Err(fault) => {
                *faults.entry(fault).or_default() += 1;
                client = Client::open(&gateway.url).await?;
            }
        }
        by_hand.push(heal(&mut direct, &echo.url).await?);
    }
    if !faults.is_empty() {
        let faults = list(&faults);
        report
            .faults
            .push(format!("a server that lost its sessions: {faults}"));
    }
    round_trips.sort_unstable();
    healed.sort_unstable();
    let bound = 3.0 * millis(quantile(&round_trips, 50)) + 1.0;
    report.add(
        "404 to replayed answer, ms, p50 / p99",
        (millis(quantile(&healed, 50)), p50_p99(&healed)),
        vec![(
            "partner",
            format!("a client by itself: {}", p50_p99(&by_hand)),
        )],
        Goal::AtMost((bound * 100.0).round() / 100.0),
        " ms (3 round trips + 1 ms)",
    );
    Ok(())
}

/// Has the server forget every session.
async fn forget(echo: &Server) -> anyhow::Result<()> {
    let url = echo.url.replace("/mcp", "/forget");
    let mut connection = Connection::open(&url).await?;
    let request = connection.render("POST", None, "{}");
    connection.exchange(&request).await?;
    Ok(())
}

/// What a client does itself about a 404: the time from the 404 to the answer.
async fn heal(client: &mut Client, url: &str) -> anyhow::Result<Duration> {
    let refused = client.call(Mix::Small).await;
    let begun = Instant::now();
    if refused != Err(Fault::Status(404)) {
        anyhow::bail!("the echo server kept a session that it was to forget");
    }
    *client = Client::open(url).await?;
    client.call(Mix::Small).await?;
    Ok(begun.elapsed())
}

/// The server is killed and started again while a call waits: the time from the moment at which the
/// server is ready to the answer.
async fn server_restart(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let listen = format!("127.0.0.1:{}", process::free_port()?);
    let mut echo = process::echo_at(&listen).await?;
    let home = Home::with_url(&echo.url)?;
    let gateway = home.start(&options.springline).await?;
    let mut client = Client::open(&gateway.url).await?;
    let (mut waited, mut beside) = (Vec::new(), Vec::new());
    let mut faults = Faults::new();
    for _ in 0..tries(options, 20) {
        client.call(Mix::Small).await?;
        echo.kill().await?;
        let calling = tokio::spawn(async move {
            let called = client.call(Mix::Small).await;
            (client, called, Instant::now())
        });
        // Long enough that the call meets the closed port at least once.
        tokio::time::sleep(Duration::from_millis(20)).await;
        echo = process::echo_at(&listen).await?;
        let ready = Instant::now();
        let mut direct = Client::open(&echo.url).await?;
        direct.call(Mix::Small).await?;
        beside.push(ready.elapsed());
        let (back, called, answered) = calling.await?;
        client = back;
        match called {
            Ok(_) => waited.push(answered.saturating_duration_since(ready)),
            Err(fault) => {
                *faults.entry(fault).or_default() += 1;
                client = Client::open(&gateway.url).await?;
            }
        }
    }
    if !faults.is_empty() {
        let faults = list(&faults);
        report
            .faults
            .push(format!("a server that was started again: {faults}"));
    }
    waited.sort_unstable();
    let own = millis(quantile(&waited, 50));
    report.add(
        "server ready again to the answer of a call that waited, ms, p50 / p99",
        (own, p50_p99(&waited)),
        vec![(
            "partner",
            format!("a new session, direct: {}", p50_p99(&beside)),
        )],
        Goal::None,
        " ms",
    );
    Ok(())
}

/// Starts after a kill, with many stored sessions and with none.
async fn cold_start(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let sessions = match (options.smoke, options.quick) {
        (true, _) => 50,
        (false, true) => 500,
        (false, false) => 10_000,
    };
    let echo = process::echo().await?;
    let (full, empty) = (Home::with_url(&echo.url)?, Home::with_url(&echo.url)?);
    let gateway = full.start(&options.springline).await?;
    let mut stored = load::leave(&gateway.url, sessions).await?;
    gateway.kill().await?;
    let (mut ready, mut first) = (Vec::new(), Vec::new());
    let (mut ready_empty, mut first_empty) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds() {
        let begun = Instant::now();
        let gateway = full.start(&options.springline).await?;
        ready.push(millis(gateway.ready));
        let session = stored.pop().context("a stored session")?;
        let mut client = Client::again(&gateway.url, &session, 0).await?;
        match client.call(Mix::Small).await {
            Ok(_) => first.push(millis(begun.elapsed())),
            Err(fault) => report.faults.push(format!("a stored session: {fault}")),
        }
        gateway.kill().await?;
        let begun = Instant::now();
        let gateway = empty.start(&options.springline).await?;
        ready_empty.push(millis(gateway.ready));
        Client::open(&gateway.url).await?.call(Mix::Small).await?;
        first_empty.push(millis(begun.elapsed()));
        gateway.kill().await?;
    }
    let partner = "partner";
    report.add(
        format!("start to ready after kill -9, {sessions} stored sessions, ms"),
        (median(&ready), range(&ready, 1)),
        vec![(partner, format!("none stored: {:.1}", median(&ready_empty)))],
        Goal::AtMost(50.0),
        " ms",
    );
    report.add(
        format!("start to the first answer of a resumed session, {sessions} stored, ms"),
        (median(&first), range(&first, 1)),
        vec![(
            partner,
            format!("of a new one, none stored: {:.1}", median(&first_empty)),
        )],
        Goal::None,
        " ms",
    );
    Ok(())
}
