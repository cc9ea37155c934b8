//! The measurements: builds what is measured and what measures, in release, and runs it.
//!
//! Owns: the order of the commands. It must not know what is measured; `bench/` does.

mod rival;

use std::path::Path;

use clap::Args;

use crate::peers::build_folder;
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
    /// Installs gateways and bridges of others under target/peers/bench/ and measures them, too
    #[arg(long)]
    peers: bool,
}

/// Builds `springline` and `bench` and runs the measures.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let build = ["build", "--release", "-p", "springline", "-p", "bench"];
    command(root, "cargo", &build, &[])?;
    let release = build_folder(root).join("release");
    let gateway = release.join("springline").to_string_lossy().into_owned();
    let mut arguments = vec!["run", "--springline", &gateway];
    if options.quick {
        arguments.push("--quick");
    }
    let folder = options.peers.then(|| rival::install(root)).transpose()?;
    let peers = folder.map(|folder| folder.to_string_lossy().into_owned());
    let values = [
        ("--only", &options.only),
        ("--seconds", &options.seconds),
        ("--rounds", &options.rounds),
        ("--peers", &peers),
    ];
    for (flag, value) in values {
        if let Some(value) = value {
            arguments.extend([flag, value]);
        }
    }
    let bench = release.join("bench");
    command(root, &bench.to_string_lossy(), &arguments, &[])
}

/// Some calls of each kind, with binaries that are built already; judges no speed.
pub(crate) fn smoke(root: &Path) -> anyhow::Result<()> {
    let folder = build_folder(root).join("debug");
    let gateway = folder.join("springline").to_string_lossy().into_owned();
    let arguments = ["run", "--smoke", "--springline", &gateway];
    let bench = folder.join("bench");
    command(root, &bench.to_string_lossy(), &arguments, &[])
}
