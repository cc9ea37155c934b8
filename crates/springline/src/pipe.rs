//! The command lines of `connect` and `bridge`.
//!
//! Owns: where the socket and the state folder are, by flags, environment and configuration. It
//! must not know what is carried.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use springline::autostart::StartSpec;
use springline::{bridge, connect};
use springline_engine::config::{self, Overrides, ProcessEnvironment, Sources};
use springline_proto::settings::BODY_MAX;

use crate::cli::{BridgeArgs, ConnectArgs};
use crate::exit::Exit;

/// Runs `springline connect`.
pub(crate) async fn connect(args: ConnectArgs) -> anyhow::Result<ExitCode> {
    let files = args
        .place
        .config
        .iter()
        .map(std::path::absolute)
        .collect::<Result<Vec<_>, _>>()?;
    let overrides = Overrides {
        socket: args.place.socket,
        ..Overrides::default()
    };
    let sources = Sources::from_files(files.clone());
    let loaded = config::load(&sources, &overrides, &ProcessEnvironment);
    let (socket, state_dir, body_max) = match loaded {
        Ok(config) => {
            let settings = config.settings;
            (settings.socket, settings.state_dir, settings.body_max)
        }
        Err(error) => {
            // A gateway that runs needs none of it. One that is to be started does: it is read again
            // then, and what is wrong by that time is told to the client.
            let found = config::socket(&sources, &overrides, &ProcessEnvironment);
            let Ok(socket) = found else {
                let text = format!("configuration refused: {error}");
                return Ok(connect::refuse(&text, Exit::Config as u8).await);
            };
            (socket, PathBuf::new(), BODY_MAX)
        }
    };
    let start = if args.no_start {
        None
    } else {
        let mut start =
            StartSpec::own(&socket, &state_dir).context("the running program has no path")?;
        for file in files {
            start
                .args
                .extend(["--config".into(), file.into_os_string()]);
        }
        start.origin = Some((sources, overrides));
        Some(start)
    };
    let args = connect::ConnectArgs {
        server: args.server,
        socket,
        start,
        body_max,
    };
    Ok(connect::run(args).await)
}

/// Runs `springline bridge`.
pub(crate) async fn bridge(args: BridgeArgs) -> anyhow::Result<ExitCode> {
    let server = match (args.url, args.command.split_first()) {
        (Some(url), _) => bridge::Server::Url(url),
        (None, Some((program, rest))) => bridge::Server::Command {
            program: program.clone(),
            args: rest.to_vec(),
        },
        (None, None) => return Ok(Exit::Usage.into()),
    };
    let timeout = match args.timeout.as_deref().map(config::parse_duration) {
        None => None,
        Some(Some(timeout)) => Some(timeout),
        Some(None) => {
            crate::say("--timeout: write a time such as 30s or 10m");
            return Ok(Exit::Usage.into());
        }
    };
    let args = bridge::BridgeArgs {
        server,
        headers: args.headers,
        bearer_env: args.bearer_env,
        timeout,
        resume: args.resume,
        state_dir: args.state_dir,
    };
    Ok(bridge::run(args).await)
}
