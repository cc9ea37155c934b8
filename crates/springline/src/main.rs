//! Springline: an always-on gateway between MCP clients and MCP servers.

mod api;
mod ask;
mod cli;
mod console;
mod demo;
mod exit;
mod pipe;
mod reload;
mod serve;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use springline_proto::error::chain;
use tracing_subscriber::EnvFilter;

use self::api::Failure;
use self::cli::{Cli, Command};
use self::exit::Exit;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            say(&chain(error.as_ref()));
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
            own_runtime()?.block_on(pipe::connect(args))
        }
        Command::Bridge(args) => {
            quiet();
            own_runtime()?.block_on(pipe::bridge(args))
        }
        Command::Status(args) => asked(ask::status(args)),
        Command::Servers(args) => asked(ask::servers(args)),
        Command::Sessions(args) => asked(ask::sessions(args)),
        Command::Tools(args) => asked(ask::tools(args)),
        Command::Call(args) => asked(ask::call(args)),
        Command::Restart(args) => asked(ask::restart(args)),
        Command::Reload(args) => asked(ask::reload(args)),
        Command::Stop(args) => asked(ask::stop(args)),
        Command::Events(args) => asked(ask::events(args)),
        Command::Demo => Ok(demo::run()?.into()),
    }
}

/// Runs a command that asks the gateway, and says why if it failed.
fn asked(command: impl Future<Output = Result<Exit, Failure>>) -> anyhow::Result<ExitCode> {
    quiet();
    let exit = match runtime()?.block_on(command) {
        Ok(exit) => exit,
        Err(failure) => {
            if !failure.text.is_empty() {
                say(&failure.text);
            }
            failure.exit
        }
    };
    Ok(exit.into())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// For one client: another thread would only have to be woken for each of its messages.
fn own_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
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
