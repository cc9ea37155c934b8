//! A configuration that changes under a running gateway: read again when it is asked for, on SIGHUP,
//! and when one of its files changes.
//!
//! Owns what is read, when, and what of it can count while the gateway runs. What becomes of the
//! servers is the gateway's own.

mod watch;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use springline_engine::admin::{ReloadRefused, Reloaded, Reloads};
use springline_engine::config::{
    self, Config, ConfigError, Environment, Listen, Overrides, ProcessEnvironment, ReadError,
    Settings, Sources,
};
use springline_engine::downstream::HttpServer;
use springline_engine::gateway::Gateway;
use springline_engine::spawn;
use tokio::signal::unix::Signal;

use self::watch::{Prints, Watch, print_of};

/// What the configuration is read from, now and again.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) sources: Sources,
    pub(crate) overrides: Overrides,
}

impl Origin {
    /// Reads it, and says what every file that was looked at held. Blocks on the disk.
    pub(crate) fn read(&self) -> (Result<Config, ConfigError>, Prints) {
        let recorder = Recorder::default();
        let config = config::load(&self.sources, &self.overrides, &recorder);
        (config, recorder.prints.into_inner())
    }
}

/// The process's environment, with a note of each file that is read.
#[derive(Default)]
struct Recorder {
    /// Held for a change.
    prints: Mutex<Prints>,
}

impl Environment for Recorder {
    fn var(&self, name: &str) -> Option<std::ffi::OsString> {
        ProcessEnvironment.var(name)
    }

    fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
        let read = ProcessEnvironment.read(path, max);
        let print = read.as_ref().ok().map(|bytes| print_of(bytes));
        self.prints.lock().insert(path.to_owned(), (max, print));
        read
    }

    fn uid(&self) -> u32 {
        ProcessEnvironment.uid()
    }
}

/// Carries out reloads, one at a time.
pub(crate) struct Reloader {
    origin: Origin,
    gateway: Arc<Gateway>,
    server: Arc<HttpServer<Arc<Gateway>>>,
    /// The configuration in force. Held for a look or a change.
    current: Arc<Mutex<Config>>,
    watch: Watch,
}

impl Reloader {
    /// For this gateway, whose configuration was read from `origin` with these `prints`.
    pub(crate) fn new(
        origin: Origin,
        prints: Prints,
        gateway: Arc<Gateway>,
        server: Arc<HttpServer<Arc<Gateway>>>,
        current: Arc<Mutex<Config>>,
    ) -> Self {
        Self {
            origin,
            gateway,
            server,
            current,
            watch: Watch::new(prints),
        }
    }

    /// Runs until the gateway asks for nothing more. One task runs this.
    pub(crate) async fn run(mut self, mut asked: Reloads, mut hangup: Signal) {
        loop {
            tokio::select! {
                reply = asked.recv() => {
                    let Some(reply) = reply else { return };
                    let outcome = self.reload().await;
                    if reply.send(outcome).is_err() {
                        tracing::debug!("whoever asked for a reload is gone");
                    }
                }
                // The terminal that the gateway was started on may go, too: that harms nothing.
                _ = hangup.recv() => drop(self.reload().await),
                () = self.watch.changed() => drop(self.reload().await),
            }
        }
    }

    async fn reload(&mut self) -> Result<Reloaded, ReloadRefused> {
        if self.gateway.is_stopping() {
            return Err(ReloadRefused("the gateway is stopping".to_owned()));
        }
        let origin = self.origin.clone();
        let read = tokio::task::spawn_blocking(move || origin.read()).await;
        let outcome = match read {
            Ok((Ok(config), prints)) => {
                self.watch.replace(prints);
                self.admit(config)
            }
            Ok((Err(error), prints)) => {
                self.watch.add(prints);
                Err(error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(config) => Ok(self.take(config)),
            Err(reason) => {
                crate::say(&format!("reload refused, nothing changed: {reason}"));
                self.gateway.reload_refused(&reason);
                Err(ReloadRefused(reason))
            }
        }
    }

    /// A file that was read and is gone takes no server away: whoever wants none can write so. And a
    /// listener that the network reaches is never left without a guard: it stays open until the end
    /// of the process, whatever the new text says of its address.
    fn admit(&self, config: Config) -> Result<Config, String> {
        let current = self.current.lock();
        let gone = current
            .files
            .iter()
            .find(|file| !config.files.contains(file));
        if let Some(file) = gone {
            return Err(format!(
                "{}: the configuration file is gone; put it back, or write `{{}}` into it if there \
                 shall be no servers",
                file.display()
            ));
        }
        let is_open =
            |listen: &Option<Listen>| listen.as_ref().is_some_and(|listen| !listen.is_loopback());
        if is_open(&current.settings.listen) && config.settings.tokens.is_empty() {
            return Err(
                "`auth.tokens` is empty, and the listener of this process is open to the network; \
                 keep a token, or start anew"
                    .to_owned(),
            );
        }
        Ok(config)
    }

    fn take(&self, mut config: Config) -> Reloaded {
        let mut notes = {
            let current = self.current.lock();
            keep_fixed(&current.settings, &mut config.settings)
        };
        for note in &config.notes {
            tracing::info!("{note}");
        }
        notes.extend(crate::serve::fit(&mut config.settings));
        self.server
            .configure(crate::serve::http_settings(&config.settings));
        let changes = self.gateway.reload(&config);
        for (name, entry) in &config.servers {
            if let (Err(error), false) = (&entry.definition, entry.disabled) {
                notes.push(format!("{name} is unavailable: {error}"));
            }
        }
        *self.current.lock() = config;
        crate::say(&format!(
            "configuration reloaded: {} added, {} removed, {} changed, {} kept",
            changes.added.len(),
            changes.removed.len(),
            changes.changed.len(),
            changes.kept.len()
        ));
        for note in &notes {
            crate::say(note);
        }
        Reloaded { changes, notes }
    }
}

/// Keeps what cannot change while the process runs, and says so of each that differs.
fn keep_fixed(old: &Settings, new: &mut Settings) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |name: &str| {
        notes.push(format!(
            "`{name}` counts from the next start of the gateway"
        ));
    };
    if old.listen != new.listen {
        note("listen");
        new.listen.clone_from(&old.listen);
    }
    if old.socket != new.socket {
        note("socket");
        new.socket.clone_from(&old.socket);
    }
    if old.state_dir != new.state_dir {
        note("stateDir");
        new.state_dir.clone_from(&old.state_dir);
    }
    if old.concurrent_starts != new.concurrent_starts {
        note("concurrentStarts");
    }
    if old.line_buffers != new.line_buffers {
        note("lineBuffers");
    }
    notes
}

/// Starts to carry out reloads.
pub(crate) fn start(reloader: Reloader, asked: Option<Reloads>, hangup: Signal) {
    if let Some(asked) = asked {
        spawn::named("reload", reloader.run(asked, hangup));
    }
}
