//! The measurements: builds what is measured and what measures, in release, and runs it.
//!
//! Owns: the order of the commands. It must not know what is measured; `bench/` does.

use std::path::Path;

use crate::step::command;

/// Builds `springline` and `bench` and runs all measures; `quick` proves no speed.
pub(crate) fn run(root: &Path, quick: bool) -> anyhow::Result<()> {
    let build = ["build", "--release", "-p", "springline", "-p", "bench"];
    command(root, "cargo", &build, &[])?;
    let folder = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let gateway = format!("{folder}/release/springline");
    let mut arguments = vec!["run", "--springline", &gateway];
    if quick {
        arguments.push("--quick");
    }
    command(root, &format!("{folder}/release/bench"), &arguments, &[])
}
