//! The measurements: interleaved rounds, so that a drift of the machine touches all alike.

use std::time::{Duration, Instant};

use crate::Run;
use crate::load::{self, Client, Load};
use crate::process::{self, Server};
use crate::report::{line, median, micros, spread};

struct Measure {
    name: &'static str,
    load: Load,
}

fn measures(quick: bool) -> Vec<Measure> {
    let calls = if quick { 200 } else { 20_000 };
    let large = if quick { 8 } else { 200 };
    let all = [
        ("calls/s, 1 session", 1, calls / 2, None),
        ("calls/s, 16 sessions", 16, calls, None),
        ("calls/s, 128 sessions", 128, calls, None),
        ("calls/s, 1000 sessions", 1000, calls, None),
        ("results of 1 MiB, 8 sessions", 8, large, Some(1024 * 1024)),
        (
            "results of 8 MiB, 4 sessions",
            4,
            large / 4,
            Some(8 * 1024 * 1024),
        ),
    ];
    all.into_iter()
        .filter(|(_, sessions, ..)| !quick || *sessions <= 128)
        .map(|(name, sessions, calls, bytes)| Measure {
            name,
            load: Load {
                sessions,
                calls,
                bytes,
            },
        })
        .collect()
}

/// One way to the echo server, and what was measured on it.
struct Way {
    name: &'static str,
    url: String,
    rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

/// Runs everything and prints the tables.
pub(crate) async fn run(options: &Run) -> anyhow::Result<()> {
    let rounds = if options.quick { 1 } else { options.rounds };
    let echo = process::echo().await?;
    let gateway = process::springline(&options.springline, Some(&echo.url)).await?;
    let nginx = process::nginx(&echo.url).await?;
    line(&format!(
        "machine: {} cores, load {}",
        cores(),
        load_average()
    ));
    line("| measure | way | calls/s | of direct (lowest to highest round) | p50 µs | p99 µs |");
    line("|---|---|---|---|---|---|");
    for measure in measures(options.quick) {
        let mut ways = ways(&echo, &gateway, nginx.as_ref());
        for _ in 0..rounds {
            for way in &mut ways {
                let outcome = load::run(&way.url, measure.load).await?;
                way.rates.push(outcome.calls_per_second);
                way.p50.push(micros(outcome.p50));
                way.p99.push(micros(outcome.p99));
            }
        }
        print(&measure, &ways);
    }
    line(&format!("load at the end: {}", load_average()));
    drop((gateway, nginx));
    footprint(options, &echo).await
}

fn ways(echo: &Server, gateway: &Server, nginx: Option<&Server>) -> Vec<Way> {
    let mut ways = vec![("direct", &echo.url), ("springline", &gateway.url)];
    ways.extend(nginx.map(|server| ("nginx", &server.url)));
    ways.into_iter()
        .map(|(name, url)| Way {
            name,
            url: url.clone(),
            rates: Vec::new(),
            p50: Vec::new(),
            p99: Vec::new(),
        })
        .collect()
}

fn print(measure: &Measure, ways: &[Way]) {
    let Some(direct) = ways.first() else { return };
    for way in ways {
        let ratios: Vec<f64> = way
            .rates
            .iter()
            .zip(&direct.rates)
            .map(|(way, direct)| way / direct)
            .collect();
        let (low, high) = spread(&ratios);
        line(&format!(
            "| {} | {} | {:.0} | {:.2} ({low:.2} to {high:.2}) | {:.0} | {:.0} |",
            measure.name,
            way.name,
            median(way.rates.clone()),
            median(ratios),
            median(way.p50.clone()),
            median(way.p99.clone()),
        ));
    }
}

/// Start, idle memory, and memory of each open session.
async fn footprint(options: &Run, echo: &Server) -> anyhow::Result<()> {
    let sessions = if options.quick { 200 } else { 10_000 };
    let tries = if options.quick { 1 } else { options.rounds };
    let mut ready = Vec::new();
    let mut first = Vec::new();
    let mut idle = Vec::new();
    for _ in 0..tries {
        let begun = Instant::now();
        let gateway = process::springline(&options.springline, Some(&echo.url)).await?;
        ready.push(gateway.ready.as_secs_f64() * 1e3);
        drop(Client::open(&gateway.url).await?);
        first.push(begun.elapsed().as_secs_f64() * 1e3);
        drop(gateway);
        let gateway = process::springline(&options.springline, None).await?;
        settle().await;
        idle.push(gateway.memory()?);
    }
    let kib = |pick: fn(&process::Memory) -> u64| {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        median(
            idle.iter()
                .map(|memory| pick(memory) as f64 / 1024.0)
                .collect(),
        )
    };
    line("| footprint of the gateway | figure |");
    line("|---|---|");
    line(&format!("| start to ready | {:.1} ms |", median(ready)));
    line(&format!(
        "| start to the first `initialize` answered | {:.1} ms |",
        median(first)
    ));
    line(&format!(
        "| idle memory, resident (proportional) | {:.1} ({:.1}) MiB |",
        kib(|memory| memory.resident),
        kib(|memory| memory.proportional)
    ));
    let gateway = process::springline(&options.springline, Some(&echo.url)).await?;
    let before = gateway.memory()?.resident;
    for _ in 0..sessions {
        drop(Client::open(&gateway.url).await?);
    }
    settle().await;
    let grown = gateway.memory()?.resident.saturating_sub(before);
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let each = grown as f64 / f64::from(sessions);
    line(&format!(
        "| memory for each open session ({sessions} sessions) | {each:.1} KiB |"
    ));
    Ok(())
}

/// Lets closed connections be noticed before memory is read.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
