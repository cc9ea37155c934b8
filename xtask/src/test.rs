//! The one test command: checks, builds and tests everything, on a machine that has only Rust,
//! Node.js and Python.
//!
//! Owns: the order of the steps and what the tests are told about their surroundings. It must not
//! know any single test.

use std::env;
use std::ffi::OsString;
use std::path::Path;

use anyhow::Context as _;
use clap::Args;

use crate::step::{Steps, answers, command};
use crate::{bench, docs, peers, say, tidy};

/// Everything but the tests with programs of others, as nextest's filter language says it.
const WITHOUT_PEERS: &str = "not (package(springline) and binary(it) and test(/^peer::/))";

#[derive(Args)]
pub(crate) struct Options {
    /// Installs no peers and leaves the tests with them out (without nextest, all in tests/)
    #[arg(long)]
    quick: bool,
    /// Runs only the tests that match, and no other check: a filterset of nextest, or a part of
    /// the names where only `cargo test` is there
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
}

/// Runs the steps in order; the first that fails ends the chore with an error that names it.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let whole = options.filter.is_none();
    if whole {
        steps.run("format", || {
            command(root, "cargo", &["fmt", "--all", "--check"], &[])
        })?;
        steps.run("tidy", || tidy::run(root))?;
        steps.run("generated pages", || docs::run(root, true))?;
    }
    let mut environment = Vec::new();
    if !options.quick {
        steps.run("peers", || {
            environment = peers::install(root)?.environment()?;
            Ok(())
        })?;
    }
    if whole {
        steps.run("lints", || command(root, "cargo", LINTS, &[]))?;
    }
    steps.run("build", || command(root, "cargo", BUILD, &[]))?;
    let fixture = peers::build_folder(root).join("debug/springline-fixture");
    environment.push(("SPRINGLINE_FIXTURE", fixture.into_os_string()));
    let nextest = answers("cargo", &["nextest", "--version"]);
    if whole {
        steps.run("examples in the docs", || {
            command(root, "cargo", DOC_TESTS, &[])
        })?;
    }
    steps.run("tests", || tests(root, options, nextest, &environment))?;
    if whole {
        steps.run("smoke of the benchmark", || bench::smoke(root))?;
    }
    if whole {
        let seconds = if in_ci() { "60" } else { "10" };
        steps.run("simulator", || {
            command(
                root,
                "cargo",
                &[SIMULATOR, &["--regressions"]].concat(),
                &[],
            )?;
            command(
                root,
                "cargo",
                &[SIMULATOR, &["--seeds", "0..10000"]].concat(),
                &[],
            )?;
            fresh_seeds(root, seconds)
        })?;
    }
    say::line(steps.summary())
}

const LINTS: &[&str] = &[
    "clippy",
    "--quiet",
    "--workspace",
    "--all-targets",
    "--",
    "-D",
    "warnings",
];
const BUILD: &[&str] = &["build", "--workspace", "--lib", "--bins", "--tests"];
const SIMULATOR: &[&str] = &["run", "--quiet", "--package", "springline-sim", "--"];
const DOC_TESTS: &[&str] = &["test", "--quiet", "--workspace", "--doc"];

/// Seeds that nobody ran before. One that fails is printed with the command that replays it.
fn fresh_seeds(root: &Path, seconds: &str) -> anyhow::Result<()> {
    let arguments = [SIMULATOR, &["--fresh-seconds", seconds]].concat();
    let advice = "a fresh seed failed: replay it, mend the cause, keep it as a regression";
    command(root, "cargo", &arguments, &[]).context(advice)
}

fn tests(
    root: &Path,
    options: &Options,
    nextest: bool,
    environment: &[(&str, OsString)],
) -> anyhow::Result<()> {
    command(
        root,
        "cargo",
        &arguments(options, nextest, in_ci()),
        environment,
    )
}

/// What cargo is told to run the chosen tests.
fn arguments(options: &Options, nextest: bool, ci: bool) -> Vec<&str> {
    let mut arguments = if nextest {
        vec!["nextest", "run", "--workspace"]
    } else {
        vec!["test", "--workspace", "--lib", "--bins"]
    };
    match (nextest, options.quick) {
        (true, true) => arguments.extend(["-E", WITHOUT_PEERS]),
        (false, false) => arguments.push("--tests"),
        (true, false) | (false, true) => {}
    }
    match &options.filter {
        Some(filter) if nextest => arguments.extend(["-E", filter]),
        Some(filter) => arguments.push(filter),
        None => {}
    }
    if ci && nextest {
        arguments.extend(["--profile", "ci"]);
    }
    arguments
}

fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

#[cfg(test)]
mod tests {
    use super::{Options, WITHOUT_PEERS, arguments};

    fn options(quick: bool, filter: Option<&str>) -> Options {
        let filter = filter.map(str::to_owned);
        Options { quick, filter }
    }

    #[test]
    fn a_quick_run_leaves_the_tests_with_peers_out() {
        let quick = options(true, None);
        assert!(arguments(&quick, true, false).contains(&WITHOUT_PEERS));
        assert!(!arguments(&quick, false, false).contains(&"--tests"));
    }

    #[test]
    fn a_filter_reaches_either_runner_in_its_own_form() {
        let some = options(false, Some("frame"));
        assert!(arguments(&some, true, false).ends_with(&["-E", "frame"]));
        assert!(arguments(&some, false, false).ends_with(&["frame"]));
    }
}
