//! `springline serve`: the gateway in the foreground.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use springline_engine::config::{self, Config, Overrides, ProcessEnvironment, Settings, Sources};
use springline_engine::downstream::socket::{self, PidLock, SocketError};
use springline_engine::downstream::{HttpServer, HttpSettings, Token, listen};
use springline_engine::gateway::Gateway;
use springline_engine::upstream::http::{HttpShared, ProxyEnv};
use springline_engine::{clock, spawn};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::ServeArgs;
use crate::exit::Exit;

/// How long answers may take to leave after the stop of the gateway itself.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(2);

/// Runs until SIGTERM, SIGINT or `springline stop`.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    springline::autostart::detach_if_asked();
    let overrides = Overrides {
        listen: args.listen,
        socket: args.place.socket,
        state_dir: args.state_dir,
    };
    let sources = Sources::from_files(args.place.config);
    let config = match config::load(&sources, &overrides, &ProcessEnvironment) {
        Ok(config) => config,
        Err(error) => {
            crate::say(&format!("configuration refused: {error}"));
            return Ok(Exit::Config);
        }
    };
    for note in &config.notes {
        tracing::info!("{note}");
    }
    let _state = match lock_state(&config.settings.state_dir)? {
        Ok(lock) => lock,
        Err(pid) => {
            let by = pid
                .map(|pid| format!(" by process {pid}"))
                .unwrap_or_default();
            let folder = config.settings.state_dir.display();
            crate::say(&format!("the state folder {folder} is in use{by}"));
            return Ok(Exit::Taken);
        }
    };
    let bound = match socket::bind(&config.settings.socket).await {
        Ok(bound) => bound,
        Err(error @ SocketError::Live { .. }) => {
            crate::say(&error.to_string());
            return Ok(Exit::Taken);
        }
        Err(error) => return Err(error).context("the socket"),
    };
    let listeners = match &config.settings.listen {
        Some(listen) => listen::bind(&listen.addresses, true)
            .await
            .context("the listener")?,
        None => Vec::new(),
    };
    let gateway = Gateway::new(&config, shared_http());
    let server = HttpServer::new(Arc::clone(&gateway), http_settings(&config.settings), None);
    let mut addresses = Vec::new();
    for listener in listeners {
        addresses.push(listener.local_addr().context("the listener")?);
        spawn::named("listener", Arc::clone(&server).serve_tcp(listener));
    }
    spawn::named("socket", Arc::clone(&server).serve_unix(bound.listener));
    announce(&config, &addresses);
    until_stopped().await?;
    tracing::info!("stopping");
    gateway
        .shut_down(config.settings.drain.unwrap_or(Duration::ZERO))
        .await;
    server.stop(CONNECTIONS_GRACE).await;
    drop(bound.claim);
    Ok(Exit::Done)
}

/// One line for people and for scripts that wait for readiness.
fn announce(config: &Config, addresses: &[std::net::SocketAddr]) {
    for address in addresses {
        crate::say(&format!("listening on http://{address}/mcp"));
    }
    let usable = config
        .servers
        .values()
        .filter(|entry| !entry.disabled && entry.definition.is_ok());
    crate::say(&format!(
        "ready: {} of {} servers usable, socket {}",
        usable.count(),
        config
            .servers
            .values()
            .filter(|entry| !entry.disabled)
            .count(),
        config.settings.socket.display()
    ));
    for entry in config.servers.values().filter(|entry| !entry.disabled) {
        if let Err(error) = &entry.definition {
            crate::say(&format!("{} is unavailable: {error}", entry.name));
        }
    }
}

/// What all HTTP upstreams of the process share.
pub(crate) fn shared_http() -> Arc<HttpShared> {
    let proxies = ProxyEnv::read(|name| std::env::var(name).ok());
    Arc::new(HttpShared::new(proxies, Arc::new(clock::wall)))
}

fn http_settings(settings: &Settings) -> HttpSettings {
    HttpSettings {
        allowed_hosts: settings.allowed_hosts.clone(),
        allowed_origins: settings.allowed_origins.clone(),
        cors: settings.cors,
        tokens: settings
            .tokens
            .iter()
            .map(|(name, secret)| Token::new(name.as_str(), secret.expose()))
            .collect(),
        body_max: settings.body_max,
        heartbeat: settings.heartbeat,
        ..HttpSettings::default()
    }
}

/// Takes the state folder: made 0700, checked, and locked; an error inside is the holder's pid.
fn lock_state(folder: &Path) -> anyhow::Result<Result<PidLock, Option<u32>>> {
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(folder)
        .with_context(|| format!("the state folder {}", folder.display()))?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != socket::own_uid() {
        bail!(
            "the state folder {} is not a folder of this user",
            folder.display()
        );
    }
    PidLock::acquire(&folder.join("lock"))
        .with_context(|| format!("the lock in the state folder {}", folder.display()))
}

/// Until the process is told to stop.
async fn until_stopped() -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}
