//! The measurements: builds what is measured and what measures, in release, and runs it.
//!
//! Owns: the order of the commands. It must not know what is measured; `bench/` does.

use std::path::Path;

use clap::Args;

use crate::step::command;

#[derive(Args)]
pub(crate) struct Options {
    /// Few rounds, short loads: shows that it works, proves no speed
    #[arg(long)]
    quick: bool,
    /// Only these sections, by commas: calls, large, stdio, footprint, scale, recovery
    #[arg(long, value_name = "SECTION")]
    only: Option<String>,
    /// How long each load goes on, in seconds
    #[arg(long)]
    seconds: Option<String>,
    /// Rounds of each measure; the median is printed
    #[arg(long)]
    rounds: Option<String>,
}

/// Builds `springline` and `bench` and runs the measures.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let build = ["build", "--release", "-p", "springline", "-p", "bench"];
    command(root, "cargo", &build, &[])?;
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let gateway = format!("{folder}/release/springline");
    let mut arguments = vec!["run", "--springline", &gateway];
    if options.quick {
        arguments.push("--quick");
    }
    let values = [
        ("--only", &options.only),
        ("--seconds", &options.seconds),
        ("--rounds", &options.rounds),
    ];
    for (flag, value) in values {
        if let Some(value) = value {
            arguments.extend([flag, value]);
        }
    }
    command(root, &format!("{folder}/release/bench"), &arguments, &[])
}
