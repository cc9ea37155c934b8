//! Springline: an always-on gateway between MCP clients and MCP servers.

mod cli;
mod demo;
mod exit;
mod pipe;
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
        Ok(code) => code,
        Err(error) => {
            say(&format!("{error:#}"));
            Exit::Failed.into()
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => {
            log(args.log_json);
            Ok(runtime()?.block_on(serve::run(args))?.into())
        }
        Command::Connect(args) => {
            quiet();
            runtime()?.block_on(pipe::connect(args))
        }
        Command::Bridge(args) => {
            quiet();
            runtime()?.block_on(pipe::bridge(args))
        }
        Command::Demo => Ok(demo::run()?.into()),
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

/// For commands that promise one line on stderr for each failure: logs only when they are asked for.
fn quiet() {
    if std::env::var_os("SPRINGLINE_LOG").is_some() {
        log(false);
    }
}

/// One line for the person who started the command. Nobody is left to tell if stderr is gone.
pub(crate) fn say(line: &str) {
    let written = writeln!(std::io::stderr().lock(), "springline: {line}");
    drop(written);
}
