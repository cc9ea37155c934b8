//! The benchmark harness: what the gateway costs, beside a direct connection in the same run.
//!
//! Owns the peers of a measurement, the load, and the table. A figure without its partner in the
//! same round is not printed.

mod call;
mod echo;
mod kernel;
mod load;
mod peer;
mod pipe;
mod process;
mod report;
mod rival;
mod round;
mod section;
mod socket;
mod tally;
mod wire;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// What to do.
#[derive(Parser)]
#[command(
    name = "bench",
    about = "Measures the gateway beside a direct connection"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A fast MCP server that echoes; on HTTP it prints its URL.
    Echo(echo::Options),
    /// Runs the measurements and prints Markdown tables.
    Run(Run),
}

/// How much to measure.
#[derive(clap::Args, Clone)]
struct Run {
    /// The gateway's binary.
    #[arg(long)]
    springline: PathBuf,
    /// Few rounds, short loads: shows that it works, proves no speed.
    #[arg(long)]
    quick: bool,
    /// Some calls of each kind, and an error if any of them goes wrong; judges no speed.
    #[arg(long)]
    smoke: bool,
    /// Rounds of each measure; the median is printed. Default: 7.
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each load goes on, in seconds. Default: 1.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only these sections.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Section>,
    /// The folder with the programs of others; with it they are measured, too.
    #[arg(long)]
    peers: Option<PathBuf>,
}

/// A part of the measurements.
#[derive(Clone, Copy, Eq, PartialEq, ValueEnum)]
enum Section {
    /// Small calls over HTTP.
    Calls,
    /// Large results over HTTP.
    Large,
    /// `bridge` and `connect`.
    Stdio,
    /// Start and memory.
    Footprint,
    /// Ten thousand sessions, a thousand `connect` clients.
    Scale,
    /// Lost servers, cold starts, a killed gateway.
    Recovery,
}

impl Run {
    fn rounds(&self) -> usize {
        let default = if self.quick || self.smoke { 1 } else { 7 };
        self.rounds.unwrap_or(default).max(1)
    }

    fn seconds(&self) -> Duration {
        let default = if self.quick { 0.3 } else { 1.0 };
        let seconds = self.seconds.unwrap_or(default).clamp(0.01, 600.0);
        Duration::from_secs_f64(seconds)
    }

    /// How much one load is.
    fn amount(&self) -> load::Amount {
        if self.smoke {
            load::Amount::Calls(300)
        } else {
            load::Amount::Time(self.seconds())
        }
    }

    fn wants(&self, section: Section) -> bool {
        self.only.is_empty() || self.only.contains(&section)
    }
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match Arguments::parse().command {
        Command::Echo(options) => runtime.block_on(echo::run(options)),
        Command::Run(run) => runtime.block_on(section::run(&run)),
    }
}
