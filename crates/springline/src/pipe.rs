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
    let has_socket = args.place.socket.is_some();
    let mut overrides = Overrides {
        socket: args.place.socket,
        ..Overrides::default()
    };
    let sources = Sources::from_files(files.clone());
    let mut may_start = !args.no_start;
    let mut loaded = config::load(&sources, &overrides, &ProcessEnvironment);
    if loaded.is_err() && (has_socket || !may_start) {
        // On a machine without HOME there is no state folder, and only a start needs one. Whatever
        // else is wrong shows again.
        overrides.state_dir = Some(PathBuf::from("/nonexistent"));
        may_start = false;
        loaded = config::load(&sources, &overrides, &ProcessEnvironment);
    }
    let config = match loaded {
        Ok(config) => config,
        Err(error) => {
            crate::say(&format!("configuration refused: {error}"));
            return Ok(Exit::Config.into());
        }
    };
    let settings = config.settings;
    let start = if may_start {
        let mut start = StartSpec::own(&settings.socket, &settings.state_dir)
            .context("the running program has no path")?;
        for file in files {
            start
                .args
                .extend(["--config".into(), file.into_os_string()]);
        }
        Some(start)
    } else {
        None
    };
    let args = connect::ConnectArgs {
        server: args.server,
        socket: settings.socket,
        start,
        body_max: settings.body_max,
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
