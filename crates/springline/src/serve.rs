//! `springline serve`: the gateway in the foreground.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use parking_lot::Mutex;
use springline_engine::admin::{Admin, AdminFacts};
use springline_engine::config::{Config, Overrides, Settings, Sources};
use springline_engine::downstream::listen::{self, BindError};
use springline_engine::downstream::route::Routes;
use springline_engine::downstream::socket::{self, PidLock, SocketError};
use springline_engine::downstream::{HttpServer, HttpSettings, Token};
use springline_engine::gateway::{Gateway, Rest};
use springline_engine::lane::Lanes;
use springline_engine::upstream::http::{HttpShared, ProxyEnv};
use springline_engine::{clock, limit, spawn};
use springline_proto::error::chain;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::cli::ServeArgs;
use crate::console::clean;
use crate::exit::Exit;
use crate::reload::{self, Origin, Reloader};

/// How long answers may take to leave after the stop of the gateway itself.
const CONNECTIONS_GRACE: Duration = Duration::from_secs(2);

/// How long a gateway that was killed may take to be gone.
const AFTERLIFE: Duration = Duration::from_secs(1);

/// The pause between two looks whether it is.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What to do about a state folder that cannot be used.
const STATE_ADVICE: &str =
    "make it writable for this user, with room on its disk, or choose another with --state-dir";

/// What to do about a gateway that runs already.
const OTHER_PLACE: &str =
    "stop that gateway with `springline stop`, or choose another --state-dir and --socket";

/// Runs until SIGTERM, SIGINT or `springline stop`.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    springline::autostart::detach_if_asked();
    limit::raise_files();
    let overrides = Overrides {
        listen: args.listen,
        socket: args.place.socket,
        state_dir: args.state_dir,
    };
    let sources = Sources::from_files(args.place.config);
    let origin = Origin { sources, overrides };
    let (mut config, prints) = match origin.read() {
        (Ok(config), prints) => (config, prints),
        (Err(error), _) => {
            crate::say(&format!("configuration refused: {error}"));
            return Ok(Exit::Config);
        }
    };
    for note in &config.notes {
        crate::say(&clean(&note.to_string()));
    }
    if let Some(fewer) = fit(&mut config.settings) {
        crate::say(&fewer);
    }
    let claims = match claim(&config).await? {
        Ok(claims) => claims,
        Err(exit) => return Ok(exit),
    };
    survive_limits()?;
    let (rest, findings) = Rest::open(&config.settings.state_dir).map_err(unusable)?;
    for finding in &findings {
        crate::say(&format!("state folder: {finding}"));
    }
    let gateway = Gateway::new(&config, shared_http(), rest);
    let mut addresses = Vec::new();
    for listener in &claims.listeners {
        addresses.push(listener.local_addr().context("the listener")?);
    }
    let admin = Admin::new(Arc::clone(&gateway), facts(&config, &addresses));
    let routes: Arc<dyn Routes> = Arc::<Admin>::clone(&admin);
    let settings = http_settings(&config.settings);
    let lanes = Lanes::start(cores()).context("the threads for connections")?;
    let server = HttpServer::on_lanes(Arc::clone(&gateway), settings, Some(routes), lanes);
    for listener in claims.listeners {
        spawn::named("listener", Arc::clone(&server).serve_tcp(listener));
    }
    let mut stops = Stops::new(&admin)?;
    let hangup = signal(SignalKind::hangup())?;
    let config = Arc::new(Mutex::new(config));
    let reloader = Reloader::new(
        origin,
        prints,
        Arc::clone(&gateway),
        Arc::clone(&server),
        Arc::clone(&config),
    );
    reload::start(reloader, admin.reloads(), hangup);
    spawn::named(
        "socket",
        Arc::clone(&server).serve_unix(claims.socket.listener),
    );
    announce(&gateway, &addresses);
    stops.next().await;
    let longest = patience(&config.lock());
    drain(&gateway, longest, &mut stops).await;
    admin.end_feeds();
    server.stop(CONNECTIONS_GRACE).await;
    drop(claims.socket.claim);
    drop(claims.state);
    Ok(Exit::Done)
}

/// What one gateway at a time may hold.
struct Claims {
    state: PidLock,
    socket: socket::BoundSocket,
    listeners: Vec<TcpListener>,
}

/// Takes the state folder, the socket and the addresses; an exit inside if another gateway has them.
/// One that was killed a moment ago still has them until the system has taken it apart.
async fn claim(config: &Config) -> anyhow::Result<Result<Claims, Exit>> {
    let until = clock::now() + AFTERLIFE;
    let folder = &config.settings.state_dir;
    let state = loop {
        match lock_state(folder).map_err(unusable)? {
            Ok(lock) => break lock,
            Err(_) if clock::now() < until => sleep(LOOK_PAUSE).await,
            Err(pid) => {
                let by = pid
                    .map(|pid| format!(" by process {pid}"))
                    .unwrap_or_default();
                let folder = folder.display();
                crate::say(&format!(
                    "the state folder {folder} is in use{by}; {OTHER_PLACE}"
                ));
                return Ok(Err(Exit::Taken));
            }
        }
    };
    let socket = loop {
        match socket::bind(&config.settings.socket).await {
            Ok(bound) => break bound,
            Err(SocketError::Live { .. }) if clock::now() < until => sleep(LOOK_PAUSE).await,
            Err(error @ SocketError::Live { .. }) => {
                crate::say(&format!("{error}; {OTHER_PLACE}"));
                return Ok(Err(Exit::Taken));
            }
            Err(error) => return Err(error).context("the socket"),
        }
    };
    let listeners = loop {
        let Some(listen) = &config.settings.listen else {
            break Vec::new();
        };
        match listen::bind(&listen.addresses, true) {
            Err(BindError::InUse { .. }) if clock::now() < until => sleep(LOOK_PAUSE).await,
            bound => break bound.context("the listener")?,
        }
    };
    Ok(Ok(Claims {
        state,
        socket,
        listeners,
    }))
}

/// One line for people and for scripts that wait for readiness.
fn announce(gateway: &Gateway, addresses: &[SocketAddr]) {
    for address in addresses {
        crate::say(&format!("listening on http://{address}/mcp"));
    }
    let servers = gateway.servers();
    let usable = servers.iter().filter(|server| server.unavailable.is_none());
    crate::say(&format!(
        "ready: {} of {} servers usable, socket {}",
        usable.count(),
        servers.len(),
        gateway.settings().socket.display()
    ));
    for server in &servers {
        if let Some(reason) = &server.unavailable {
            crate::say(&format!("{} is unavailable: {reason}", server.name));
        }
    }
}

/// What all HTTP upstreams of the process share.
pub(crate) fn shared_http() -> Arc<HttpShared> {
    let proxies = ProxyEnv::read(|name| std::env::var(name).ok());
    Arc::new(HttpShared::new(proxies, Arc::new(clock::wall)))
}

/// Lowers what the files that the process may open do not allow. Says so, if it was more.
pub(crate) fn fit(settings: &mut Settings) -> Option<String> {
    let files = limit::raise_files();
    let spare = limit::spare(files, cores());
    let connections = limit::connections_max(settings.connections_max, spare);
    let children = limit::children_max(settings.children_max, spare, connections);
    let mut fewer = Vec::new();
    if settings
        .connections_max
        .is_some_and(|wanted| wanted > connections)
    {
        fewer.push(format!("`connectionsMax` counts as {connections}"));
    }
    if settings.children_max > children {
        fewer.push(format!("`childrenMax` counts as {children}"));
    }
    settings.connections_max = Some(connections);
    settings.children_max = children;
    let fewer = fewer.join(", ");
    let text = format!("{fewer}: the process may open {files} files; raise `ulimit -n`");
    (!fewer.is_empty()).then_some(text)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Of settings that were made to fit.
pub(crate) fn http_settings(settings: &Settings) -> HttpSettings {
    let mut http = HttpSettings {
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
    };
    if let Some(max) = settings.connections_max {
        http.connections_max = max;
    }
    http
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

/// A state folder that cannot be used, with what to do about it.
fn unusable(error: impl Into<anyhow::Error>) -> anyhow::Error {
    anyhow!("{}; {STATE_ADVICE}", chain(error.into().as_ref()))
}

/// What the admin routes cannot know by themselves.
fn facts(config: &Config, addresses: &[SocketAddr]) -> AdminFacts {
    AdminFacts {
        version: env!("CARGO_PKG_VERSION"),
        listen: addresses
            .iter()
            .map(|address| format!("http://{address}/mcp"))
            .collect(),
        files: config.files.clone(),
    }
}

/// The orderly stop: calls in flight may finish, within `drain` or else within the longest that a
/// call may take at all. Whoever asks a second time does not want to wait.
async fn drain(gateway: &Gateway, longest: Duration, stops: &mut Stops) {
    let pending: usize = gateway
        .sessions()
        .iter()
        .map(|session| session.pending)
        .sum();
    if pending > 0 {
        crate::say(&format!(
            "stopping: waiting for {pending} requests in flight; a second signal ends them"
        ));
    }
    tokio::select! {
        () = gateway.shut_down(longest) => {}
        () = stops.next() => gateway.shut_down(Duration::ZERO).await,
    }
}

/// How long an orderly stop waits for calls.
fn patience(config: &Config) -> Duration {
    let longest = config
        .servers
        .values()
        .map(|entry| entry.options.call_timeout_max)
        .max();
    config.settings.drain.or(longest).unwrap_or_default()
}

/// With somebody who hears of it, a limit on the size of files is a write that fails, as on a full disk, and not
/// the end of the process. Once heard of it stays so; children have their own word on it.
fn survive_limits() -> std::io::Result<()> {
    let too_large = rustix::process::Signal::XFSZ.as_raw();
    signal(SignalKind::from_raw(too_large)).map(drop)
}

/// The ways in which the process is told to stop.
struct Stops {
    terminate: Signal,
    interrupt: Signal,
    asked: watch::Receiver<u32>,
    /// How many of those that were asked for have been told.
    told: u32,
}

impl Stops {
    fn new(admin: &Admin) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            asked: admin.stops(),
            told: 0,
        })
    }

    /// Until the next one. Cancel safe.
    async fn next(&mut self) {
        let told = self.told;
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            asked = self.asked.wait_for(|count| *count > told) => {
                if asked.is_ok() {
                    self.told += 1;
                }
            }
        }
    }
}
