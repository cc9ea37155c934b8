//! Many open sessions of which few are active, and many `connect` clients.

use std::time::{Duration, Instant};

use crate::call::Mix;
use crate::kernel;
use crate::load::{self, Amount, Client};
use crate::process::{self, Home, Server};
use crate::report::{Goal, Report, median, micros, range};
use crate::socket::{self, Attached};
use crate::tally::{Outcome, list};
use crate::{Run, report};

/// How many of each.
struct Size {
    active: usize,
    /// Open sessions, the active ones among them. A gateway keeps 10,000 at most.
    open: usize,
    /// `connect` clients.
    attached: usize,
    /// How long the gateway is watched doing nothing.
    idle: Duration,
    amount: Amount,
    rounds: usize,
}

impl Size {
    fn of(options: &Run) -> Self {
        let (active, open, attached, idle) = match (options.smoke, options.quick) {
            (true, _) => (10, 100, 50, 0),
            (false, true) => (20, 500, 100, 1),
            (false, false) => (100, 10_000, 1_000, 10),
        };
        Self {
            active,
            open,
            attached,
            idle: Duration::from_secs(idle),
            amount: options.amount(),
            rounds: options.rounds(),
        }
    }
}

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let size = Size::of(options);
    let echo = process::echo().await?;
    sessions(options, &size, &echo, report).await?;
    attached(options, &size, &echo, report).await
}

/// The same load on two gateways in turn: one has the active sessions alone.
async fn sessions(
    options: &Run,
    size: &Size,
    echo: &Server,
    report: &mut Report,
) -> anyhow::Result<()> {
    let homes = [Home::with_url(&echo.url)?, Home::with_url(&echo.url)?];
    let [few, many] = &homes;
    let few = few.start(&options.springline).await?;
    let many = many.start(&options.springline).await?;
    load::leave(&many.url, size.open - size.active).await?;
    let mut few_clients = load::open(&few.url, size.active).await?;
    let mut many_clients = load::open(&many.url, size.active).await?;
    // What was opened is written to the disk meanwhile.
    tokio::time::sleep(Duration::from_secs(2).min(size.idle)).await;
    let mut ratios = Vec::new();
    let mut p50 = (Vec::new(), Vec::new());
    for _ in 0..size.rounds {
        let (clients, with_few) = drive(few_clients, size, report).await?;
        few_clients = clients;
        let (clients, with_many) = drive(many_clients, size, report).await?;
        many_clients = clients;
        p50.0.push(micros(with_few.p50));
        p50.1.push(micros(with_many.p50));
        ratios.push(micros(with_many.p50) / micros(with_few.p50));
    }
    let name = format!(
        "p50, {} of {} open sessions active, of that of {} sessions",
        size.active, size.open, size.active
    );
    let cell = format!("{} ({:.0} µs)", range(&ratios, 2), median(&p50.1));
    let beside = format!("{} sessions: {:.0} µs", size.active, median(&p50.0));
    let beside = vec![("partner", beside)];
    report.add(name, (median(&ratios), cell), beside, Goal::AtMost(1.2), "");
    drop((few_clients, many_clients));
    idle(size, &few, &many, report).await
}

/// The time of the processor that a gateway takes while nobody calls.
async fn idle(size: &Size, few: &Server, many: &Server, report: &mut Report) -> anyhow::Result<()> {
    tokio::time::sleep(Duration::from_secs(1).min(size.idle)).await;
    let (few, many) = (few.pid()?, many.pid()?);
    let begun = Instant::now();
    let before = (kernel::busy(few)?, kernel::busy(many)?);
    tokio::time::sleep(size.idle).await;
    let after = (kernel::busy(few)?, kernel::busy(many)?);
    let share = |before: Duration, after: Duration| {
        let busy = after.saturating_sub(before).as_secs_f64();
        100.0 * busy / begun.elapsed().as_secs_f64()
    };
    let own = share(before.1, after.1);
    let beside = format!(
        "{} sessions: {:.2} %",
        size.active,
        share(before.0, after.0)
    );
    report.add(
        format!("processor at rest, {} open sessions, of a core", size.open),
        (own, format!("{own:.2} %")),
        vec![("partner", beside)],
        Goal::AtMost(1.0),
        " %",
    );
    Ok(())
}

/// `connect` clients: what they hold, and what a call takes when all are there.
async fn attached(
    options: &Run,
    size: &Size,
    echo: &Server,
    report: &mut Report,
) -> anyhow::Result<()> {
    let home = Home::with_url(&echo.url)?;
    let gateway = home.start(&options.springline).await?;
    let mut active = socket::open(&home.socket(), size.active).await?;
    let mut alone = Vec::new();
    for _ in 0..size.rounds {
        let (clients, outcome) = drive_attached(active, size, report).await?;
        active = clients;
        alone.push(micros(outcome.p50));
    }
    let before = gateway.memory()?.resident;
    let more = size.attached - size.active;
    let others = socket::open(&home.socket(), more).await?;
    let grown = gateway.memory()?.resident.saturating_sub(before);
    let mut among = Vec::new();
    for _ in 0..size.rounds {
        let (clients, outcome) = drive_attached(active, size, report).await?;
        active = clients;
        among.push(micros(outcome.p50));
    }
    active.extend(others);
    let (active, all) = drive_attached(active, size, report).await?;
    let peak = kernel::peak(gateway.pid()?)?;
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let (each, peak) = (grown as f64 / more as f64, peak as f64 / 1024.0);
    let ratios: Vec<f64> = among.iter().zip(&alone).map(|(a, b)| a / b).collect();
    report.add(
        format!(
            "p50, {} of {} `connect` clients active, of that of {}",
            size.active, size.attached, size.active
        ),
        (
            median(&ratios),
            format!("{} ({:.0} µs)", range(&ratios, 2), median(&among)),
        ),
        vec![(
            "partner",
            format!("{} clients: {:.0} µs", size.active, median(&alone)),
        )],
        Goal::None,
        "",
    );
    report.add(
        format!(
            "{} `connect` clients: KiB each (peak MiB while all call, {:.0} calls/s)",
            size.attached, all.rate
        ),
        (each, format!("{each:.1} ({peak:.1})")),
        Vec::new(),
        Goal::None,
        "",
    );
    drop(active);
    Ok(())
}

async fn drive(
    clients: Vec<Client>,
    size: &Size,
    report: &mut Report,
) -> anyhow::Result<(Vec<Client>, Outcome)> {
    let (clients, outcome) = load::drive(clients, size.amount, Mix::Small).await?;
    note("sessions", &outcome, report);
    Ok((clients, outcome))
}

async fn drive_attached(
    clients: Vec<Attached>,
    size: &Size,
    report: &mut Report,
) -> anyhow::Result<(Vec<Attached>, Outcome)> {
    let (clients, outcome) = socket::drive(clients, size.amount).await?;
    note("`connect` clients", &outcome, report);
    Ok((clients, outcome))
}

fn note(what: &str, outcome: &Outcome, report: &mut report::Report) {
    if !outcome.faults.is_empty() {
        let faults = list(&outcome.faults);
        report.faults.push(format!("scale, {what}: {faults}"));
    }
}
