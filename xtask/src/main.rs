//! Chores of the workspace: the one test command, the rules of the house, the generated pages.
//!
//! Owns: what `cargo xtask` offers. It must not know how the gateway works: it builds it, judges
//! its text and runs its tests.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod docs;
mod peers;
mod say;
mod step;
mod test;
mod tidy;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the Springline workspace")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Runs every check and every test; installs what they need under target/
    Test(test::Options),
    /// Checks the rules of the house: dependency direction, lengths, words, tables
    Tidy,
    /// Writes the generated pages
    Docs {
        /// Only says which pages are out of date
        #[arg(long)]
        check: bool,
    },
    /// Measures the gateway beside a direct connection (docs/performance.md)
    Bench(bench::Options),
    /// Installs the pinned test peers under target/peers/ and nothing else
    Peers,
}

fn main() -> ExitCode {
    let outcome = run(Arguments::parse().chore);
    match outcome.map_err(|error| say::error(&error)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(()) => ExitCode::FAILURE,
    }
}

fn run(chore: Chore) -> anyhow::Result<()> {
    let root = tidy::tree::root();
    match chore {
        Chore::Test(options) => test::run(&root, &options),
        Chore::Tidy => tidy::run(&root),
        Chore::Docs { check } => docs::run(&root, check),
        Chore::Bench(options) => bench::run(&root, &options),
        Chore::Peers => peers::install(&root).map(drop),
    }
}
