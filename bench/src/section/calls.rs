//! Calls over HTTP, small and large: direct, through the gateway, through others.

use crate::call::Mix;
use crate::kernel;
use crate::load::{self, Amount, Load};
use crate::peer;
use crate::process::{self, Home, Program, Server};
use crate::report::{Goal, Report, line};
use crate::rival::Rivals;
use crate::round::{Cell, OWN, Way, head, measure};
use crate::{Run, Section};

const MIB: usize = 1024 * 1024;

pub(super) async fn run(options: &Run, report: &mut Report) -> anyhow::Result<()> {
    let echo = process::echo().await?;
    let home = Home::with_url(&echo.url)?;
    let gateway = home.start(&options.springline).await?;
    let (proxies, servers) = others(options, &echo).await?;
    head(report);
    for cell in cells(options) {
        let mut ways = vec![Way::http("direct", &echo.url), Way::http(OWN, &gateway.url)];
        ways.extend(
            proxies
                .iter()
                .map(|(name, server)| Way::http(name, &server.url)),
        );
        // A hundred times slower than the others, they would only lengthen the rest.
        if matches!(cell.load.mix, Mix::Small) && cell.load.sessions <= 128 {
            ways.extend(
                servers
                    .iter()
                    .map(|(name, server)| Way::http(name, &server.url)),
            );
        }
        measure(&cell, ways, options.rounds(), report).await?;
    }
    if options.wants(Section::Large) && !options.smoke {
        drop((gateway, proxies, servers));
        large_memory(options, &echo, report).await?;
    }
    Ok(())
}

type Named = Vec<(&'static str, Server)>;

/// Byte proxies in front of the same echo server, and those that serve a stdio server over HTTP.
async fn others(options: &Run, echo: &Server) -> anyhow::Result<(Named, Named)> {
    let (mut proxies, mut servers) = (Vec::new(), Vec::new());
    if options.smoke {
        return Ok((proxies, servers));
    }
    match peer::nginx(&echo.url).await? {
        Some(server) => proxies.push(("nginx", server)),
        None => line("nginx is not installed: left out."),
    }
    if let Some(folder) = &options.peers {
        let rivals = Rivals::new(folder);
        proxies.extend(rivals.proxies(&echo.url).await);
        servers = rivals.servers(&Program::echo()?).await;
    }
    Ok((proxies, servers))
}

/// A measure of HTTP: its sessions, and the calls in flight of each.
fn cell(name: &'static str, load: (usize, usize), mix: Mix, goal: Goal) -> Cell {
    let (sessions, in_flight) = load;
    let added = match load {
        (1, 1) => Goal::AtMost(50.0),
        _ => Goal::None,
    };
    Cell {
        name,
        load: Load {
            sessions,
            in_flight,
            amount: Amount::Calls(16),
            mix,
        },
        goal,
        added,
    }
}

fn cells(options: &Run) -> Vec<Cell> {
    let at_least = Goal::AtLeast;
    let (small, none) = (Mix::Small, Goal::None);
    let mut cells = Vec::new();
    if options.wants(Section::Calls) {
        cells.extend([
            cell("calls/s, 1 session", (1, 1), small, none),
            cell("calls/s, 16 sessions", (16, 1), small, at_least(0.45)),
            cell("calls/s, 128 sessions", (128, 1), small, at_least(0.5)),
            cell("calls/s, 1000 sessions", (1000, 1), small, at_least(0.5)),
            cell("calls/s, 1 session, 16 in flight", (1, 16), small, none),
            cell("event streams, 16 sessions", (16, 1), Mix::Events, none),
            cell("mixed calls, 16 sessions", (16, 1), Mix::Mixed, none),
        ]);
    }
    if options.wants(Section::Large) {
        let (one, eight) = (Mix::Text(MIB), Mix::Text(8 * MIB));
        cells.extend([
            cell("results of 1 MiB, 8 sessions", (8, 1), one, at_least(0.7)),
            cell("results of 8 MiB, 4 sessions", (4, 1), eight, at_least(0.6)),
        ]);
    }
    cells.retain(|cell| !options.smoke || cell.load.sessions <= 128);
    for cell in &mut cells {
        // A smoke run makes few calls of large results, as the cells say.
        if !(options.smoke && matches!(cell.load.mix, Mix::Text(_))) {
            cell.load.amount = options.amount();
        }
    }
    cells
}

/// The most that the gateway holds while it passes many large results at once.
async fn large_memory(options: &Run, echo: &Server, report: &mut Report) -> anyhow::Result<()> {
    let sessions = if options.quick { 16 } else { 128 };
    let home = Home::with_url(&echo.url)?;
    let gateway = home.start(&options.springline).await?;
    let load = Load {
        sessions,
        in_flight: 1,
        amount: Amount::Calls(sessions * 2),
        mix: Mix::Text(8 * MIB),
    };
    let outcome = load::run(&gateway.url, load).await?;
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let peak = kernel::peak(gateway.pid()?)? as f64 / 1024.0;
    let name = format!("peak memory, results of 8 MiB, {sessions} sessions, MiB");
    if !outcome.faults.is_empty() {
        let faults = crate::tally::list(&outcome.faults);
        report.faults.push(format!("{name}: {faults}"));
    }
    report.add(
        name,
        (peak, format!("{peak:.1}")),
        Vec::new(),
        Goal::AtMost(64.0),
        " MiB",
    );
    Ok(())
}
