//! The benchmark harness: what the gateway costs, beside a direct connection in the same run.
//!
//! Owns the peers of a measurement, the load, and the table. A figure without its partner in the
//! same round is not printed.

mod echo;
mod load;
mod process;
mod report;
mod round;
mod wire;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

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
    /// A fast MCP server on Streamable HTTP that echoes; prints its URL.
    Echo,
    /// Runs all measurements and prints a Markdown table.
    Run(Run),
}

/// How much to measure.
#[derive(clap::Args, Clone)]
struct Run {
    /// The gateway's binary.
    #[arg(long)]
    springline: PathBuf,
    /// Few rounds and calls: shows that it works, proves no speed.
    #[arg(long)]
    quick: bool,
    /// Rounds of each measure; the median is printed.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match Arguments::parse().command {
        Command::Echo => runtime.block_on(echo::run()),
        Command::Run(run) => runtime.block_on(round::run(&run)),
    }
}
