//! Springline: an always-on gateway between MCP clients and MCP servers.

mod cli;
mod demo;
mod exit;
mod serve;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::EnvFilter;

use self::cli::{Cli, Command};
use self::exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(exit) => exit.into(),
        Err(error) => {
            say(&format!("{error:#}"));
            Exit::Failed.into()
        }
    }
}

fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(args) => {
            log(args.log_json);
            runtime()?.block_on(serve::run(args))
        }
        Command::Demo => demo::run(),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// Logs go to stderr; `SPRINGLINE_LOG` chooses what (`tracing` directives, default `warn`).
fn log(as_json: bool) {
    let filter =
        EnvFilter::try_from_env("SPRINGLINE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if as_json {
        builder.json().init();
    } else {
        builder.with_ansi(false).init();
    }
}

/// One line for the person who started the command. Nobody is left to tell if stderr is gone.
pub(crate) fn say(line: &str) {
    let written = writeln!(std::io::stderr().lock(), "springline: {line}");
    drop(written);
}
