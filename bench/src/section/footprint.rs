//! Start, idle memory, and memory of each open session, of the gateway and of nginx.

use std::time::Instant;

use crate::load::{self, Client};
use crate::peer;
use crate::process::{self, Home, Server};
use crate::report::{Goal, Report, median, millis, range};
use crate::{Run, kernel};

/// What one program was found to take.
#[derive(Default)]
struct Footprint {
    ready: Vec<f64>,
    first: Vec<f64>,
    resident: Vec<f64>,
    proportional: Vec<f64>,
}

impl Footprint {
    fn add_memory(&mut self, memory: kernel::Memory) {
        self.resident.push(mib(memory.resident));
        self.proportional.push(mib(memory.proportional));
    }

    fn memory(&self) -> String {
        let (resident, proportional) = (median(&self.resident), median(&self.proportional));
        format!("{proportional:.1} ({resident:.1})")
    }
}

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let sessions = if options.quick { 500 } else { 10_000 };
    let echo = process::echo().await?;
    let (mut own, mut nginx) = (Footprint::default(), Footprint::default());
    for _ in 0..options.rounds() {
        let home = Home::with_url(&echo.url)?;
        let begun = Instant::now();
        let gateway = home.start(&options.springline).await?;
        own.ready.push(millis(gateway.ready));
        drop(Client::open(&gateway.url).await?);
        own.first.push(millis(begun.elapsed()));
        drop(gateway);
        let gateway = Home::new("")?.start(&options.springline).await?;
        settle().await;
        own.add_memory(gateway.memory()?);
        drop(gateway);
        let begun = Instant::now();
        if let Some(server) = peer::nginx(&echo.url).await? {
            drop(Client::open(&server.url).await?);
            nginx.first.push(millis(begun.elapsed()));
        }
        if let Some(server) = peer::nginx(&echo.url).await? {
            settle().await;
            nginx.add_memory(server.memory()?);
        }
    }
    let home = Home::with_url(&echo.url)?;
    let each = each_session(&home.start(&options.springline).await?, sessions).await?;
    let beside = match peer::nginx(&echo.url).await? {
        Some(server) => Some(each_session(&server, sessions).await?),
        None => None,
    };
    add(report, &own, &nginx);
    report.add(
        format!("memory for each open session, {sessions} sessions, KiB"),
        (each, format!("{each:.2}")),
        beside
            .map(|each| ("nginx", format!("{each:.2}")))
            .into_iter()
            .collect(),
        Goal::AtMost(4.0),
        " KiB",
    );
    Ok(())
}

fn add(report: &mut Report, own: &Footprint, nginx: &Footprint) {
    let beside = |cell: String| {
        let is_there = !nginx.first.is_empty();
        is_there.then_some(("nginx", cell)).into_iter().collect()
    };
    report.add(
        "start to ready, ms",
        (median(&own.ready), range(&own.ready, 1)),
        Vec::new(),
        Goal::None,
        " ms",
    );
    report.add(
        "start to the first `initialize` answered, ms",
        (median(&own.first), range(&own.first, 1)),
        beside(format!("{:.1}", median(&nginx.first))),
        Goal::AtMost(20.0),
        " ms",
    );
    report.add(
        "idle memory, proportional (resident), MiB",
        (median(&own.proportional), own.memory()),
        beside(nginx.memory()),
        Goal::AtMost(12.0),
        " (16) MiB",
    );
}

/// (resident with the sessions - resident with none) / sessions, in KiB; client connections closed.
async fn each_session(server: &Server, sessions: usize) -> anyhow::Result<f64> {
    settle().await;
    let before = server.memory()?.resident;
    load::leave(&server.url, sessions).await?;
    settle().await;
    let grown = server.memory()?.resident.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    Ok(grown as f64 / sessions as f64)
}

fn mib(kib: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let kib = kib as f64;
    kib / 1024.0
}

/// Lets closed connections be noticed before memory is read.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
}
