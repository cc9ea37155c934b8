//! The gateway: sessions by id, their machines, and the entries that they use.
//!
//! Owns every session and upstream of the process. Downstream drivers know only [`Gateway`],
//! [`SessionHandle`] and [`PartStream`]; it must not know HTTP.

mod credential;
mod entry;
mod inbox;
mod mailbox;
mod session;
mod shared;
mod timer;
mod upstream;

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Downstream, Endpoint, Part, Session, SessionConfig};
use springline_proto::settings::SessionSettings;
use springline_proto::upstream::{Input as UpstreamInput, Standby};
use springline_proto::version::Version;
use springline_store::{Entries, EntryMemory};

pub use self::session::{PartStream, SessionHandle, SessionView};

use self::entry::{EntrySpec, LAST_WORDS_MAX, Limits, SHUT_DOWN_MAX};
use self::session::SessionCell;
use self::shared::Shared;
use crate::config::{Config, Settings};
use crate::downstream::{Gate, OpenError, Parts, Principal, Session as GateSession};
use crate::event::Events;
use crate::upstream::http::HttpShared;
use crate::{clock, spawn};

/// What a server entry looks like from outside.
#[derive(Clone, Debug)]
pub struct ServerView {
    /// Its name.
    pub name: String,
    /// Whether it is a child process.
    pub is_child: bool,
    /// Why it cannot be used, if so.
    pub unavailable: Option<String>,
    /// Its upstreams.
    pub instances: Vec<InstanceView>,
}

/// One upstream of one session.
#[derive(Clone, Debug)]
pub struct InstanceView {
    /// The digest of the session's id.
    pub session: String,
    /// What it is at.
    pub standby: Standby,
    /// Calls that are not answered.
    pub pending: usize,
    /// Its processes.
    pub pids: Vec<u32>,
}

/// The gateway.
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// A gateway over this configuration. Starts nothing but its own timers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(config: &Config, http: Arc<HttpShared>) -> Arc<Self> {
        let settings = Arc::new(config.settings.clone());
        let entries = config
            .servers
            .values()
            .filter(|entry| !entry.disabled)
            .map(|entry| {
                let spec = EntrySpec::new(entry, &settings);
                (Arc::clone(&spec.name), Arc::new(spec))
            })
            .collect();
        let limits = Limits::new(&settings, http);
        let memory: Arc<dyn EntryMemory> = Arc::new(Entries::in_memory());
        let shared = Shared::new(settings, entries, limits, memory);
        spawn::named("timer", Arc::clone(&shared.timer).run());
        spawn::named("session expiry", expire_sessions(Arc::downgrade(&shared)));
        Arc::new(Self { shared })
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.shared.settings)
    }

    /// The log of events.
    pub fn events(&self) -> Arc<Events> {
        Arc::clone(&self.shared.events)
    }

    /// Opens a session for its client's `initialize`.
    pub fn open(
        &self,
        principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<Arc<SessionHandle>, OpenError> {
        if self.shared.is_stopping() {
            return Err(OpenError::Stopping);
        }
        let entries = match &endpoint {
            Endpoint::All => self.shared.views(),
            Endpoint::One(server) => {
                let entries = self.shared.entries.read();
                let spec = entries.get(server).ok_or(OpenError::UnknownServer)?;
                vec![self.shared.view(spec)]
            }
        };
        self.make_room()?;
        let mut secret = [0_u8; 48];
        getrandom::fill(&mut secret).map_err(|_| OpenError::NoRandom)?;
        let (wire, cursor_key) = secret.split_at(16);
        let id = hex(wire);
        let digest = hex(Sha256::digest(id.as_bytes()).get(..4).unwrap_or_default());
        let mut key = [0_u8; 32];
        key.copy_from_slice(cursor_key);
        let session_key = self.shared.session_key();
        let config = SessionConfig {
            key: session_key,
            endpoint: endpoint.clone(),
            downstream: kind,
            settings: session_settings(&self.shared.settings),
            cursor_key: key,
            base: 0,
            entries,
        };
        let machine = Session::new(config, clock::moment());
        let cell = SessionCell::new(
            id.into(),
            digest.into(),
            principal.clone(),
            endpoint,
            session_key,
            machine,
            Arc::clone(&self.shared),
        );
        self.shared.keep_session(Arc::clone(&cell));
        Ok(SessionHandle::new(cell))
    }

    /// The session of this id, if it belongs to this principal and speaks to this endpoint.
    /// Another's session is answered like an unknown one.
    pub fn find(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<SessionHandle>> {
        let cell = self.shared.session(id)?;
        (cell.principal == *principal && cell.endpoint == *endpoint)
            .then(|| SessionHandle::new(cell))
    }

    /// Makes room for one more session: at the cap, the one that was idle longest and has no
    /// client attached gives way.
    fn make_room(&self) -> Result<(), OpenError> {
        if self.shared.sessions_len() < self.shared.settings.sessions_max {
            return Ok(());
        }
        let oldest = self
            .shared
            .sessions()
            .into_iter()
            .map(|cell| (cell.view(), cell))
            .filter(|(view, _)| !view.attached && view.pending == 0)
            .max_by_key(|(view, _)| view.idle);
        let Some((_, cell)) = oldest else {
            return Err(OpenError::TooManySessions);
        };
        cell.input(springline_proto::session::Input::Close);
        Ok(())
    }

    /// All sessions, for people.
    pub fn sessions(&self) -> Vec<SessionView> {
        self.shared
            .sessions()
            .iter()
            .map(|cell| cell.view())
            .collect()
    }

    /// All server entries, for people, in the order of the configuration. Looks for launchers on
    /// the disk.
    pub fn servers(&self) -> Vec<ServerView> {
        let mut instances: std::collections::HashMap<Arc<str>, Vec<InstanceView>> =
            std::collections::HashMap::new();
        for session in self.shared.sessions() {
            for cell in session.upstreams() {
                let (standby, pending) = cell.standby();
                let view = InstanceView {
                    session: session.digest.to_string(),
                    standby,
                    pending,
                    pids: cell
                        .carrier()
                        .children()
                        .iter()
                        .filter_map(|child| child.pid)
                        .collect(),
                };
                instances
                    .entry(Arc::clone(cell.carrier().server()))
                    .or_default()
                    .push(view);
            }
        }
        let entries = self.shared.entries.read();
        entries
            .values()
            .map(|spec| ServerView {
                name: spec.name.to_string(),
                is_child: spec.transport() == springline_proto::upstream::Transport::Stdio
                    && spec.definition.is_ok(),
                unavailable: spec.problem(),
                instances: instances.remove(&spec.name).unwrap_or_default(),
            })
            .collect()
    }

    /// Takes every instance of a server out of service: it finishes what it has, and the next call
    /// starts a new one. Says how many there were; `None` if there is no such server.
    pub fn restart(&self, server: &str) -> Option<usize> {
        if !self.shared.entries.read().contains_key(server) {
            return None;
        }
        let mut count = 0;
        for session in self.shared.sessions() {
            for cell in session.upstreams() {
                if &**cell.carrier().server() == server {
                    cell.input(UpstreamInput::Retire);
                    count += 1;
                }
            }
        }
        Some(count)
    }

    /// Whether [`Self::shut_down`] was begun.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Takes nothing new, lets calls in flight finish within `drain`, ends every session and waits
    /// for the end of children and DELETEs, which is bounded. Cancel safe in that it may be called
    /// again.
    pub async fn shut_down(&self, drain: Duration) {
        self.shared.stop();
        let until = clock::now() + drain;
        while clock::now() < until
            && self
                .shared
                .sessions()
                .iter()
                .any(|cell| cell.view().pending > 0)
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for cell in self.shared.sessions() {
            cell.input(springline_proto::session::Input::Close);
        }
        let ends = async {
            // A session may be closing on another thread; its upstreams are retired before it goes.
            while !self.shared.sessions().is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            for cell in self.shared.retired() {
                cell.shut_down(LAST_WORDS_MAX).await;
            }
        };
        // Past the bound the parent-death signal and the servers' own expiry do the rest.
        if tokio::time::timeout(SHUT_DOWN_MAX, ends).await.is_err() {
            tracing::warn!("some servers did not end in time");
        }
    }
}

impl Gate for Arc<Gateway> {
    type Session = SessionHandle;

    fn open(
        &self,
        principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<Arc<SessionHandle>, OpenError> {
        Gateway::open(self, principal, endpoint, kind)
    }

    fn find(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Arc<SessionHandle>> {
        Gateway::find(self, id, principal, endpoint)
    }
}

impl GateSession for SessionHandle {
    type Parts = PartStream;

    fn id(&self) -> &str {
        SessionHandle::id(self)
    }

    fn version(&self) -> Option<Version> {
        SessionHandle::version(self)
    }

    fn post(self: &Arc<Self>, message: Message, accept: Accept) -> PartStream {
        SessionHandle::post(self, message, accept)
    }

    fn listen(self: &Arc<Self>, cursor: Option<Box<str>>) -> PartStream {
        SessionHandle::listen(self, cursor)
    }

    fn pipe(self: &Arc<Self>) -> PartStream {
        SessionHandle::pipe(self)
    }

    fn line(&self, message: Result<Message, ParseError>) {
        SessionHandle::line(self, message);
    }

    fn close(&self) {
        SessionHandle::close(self);
    }
}

impl Parts for PartStream {
    fn next(&mut self) -> impl Future<Output = Option<Part>> + Send {
        PartStream::next(self)
    }
}

fn session_settings(settings: &Settings) -> SessionSettings {
    SessionSettings {
        stream_after: settings.stream_after,
        pending_max: settings.pending_max,
        list_wait: settings.list_wait,
        redelivery_events_max: settings.redelivery_events,
        redelivery_bytes_max: settings.redelivery_bytes,
        redelivery_age_max: settings.redelivery_age,
        ..SessionSettings::default()
    }
}

/// How often idle sessions are looked for; their idle time is days.
const EXPIRY_PERIOD: Duration = Duration::from_mins(1);

async fn expire_sessions(shared: std::sync::Weak<Shared>) {
    loop {
        tokio::time::sleep(EXPIRY_PERIOD).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        for cell in shared.sessions() {
            let view = cell.view();
            if !view.attached && view.pending == 0 && view.idle > shared.settings.session_idle {
                cell.input(springline_proto::session::Input::Close);
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            write!(text, "{byte:02x}").unwrap_or_default();
            text
        })
}

/// Eight random bytes for jitter; zero if the system has none, which only loses the jitter.
fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_default()
}
