//! The gateway: sessions by id, their machines, and the entries that they use.
//!
//! Owns every session and upstream of the process. Downstream drivers know only [`Gateway`],
//! [`SessionHandle`] and [`PartStream`]; it must not know HTTP.

mod answered;
mod backlog;
mod claim;
mod credential;
mod dormant;
mod driver;
mod entry;
mod global;
mod health;
mod home;
mod inbox;
mod inventory;
mod keep;
mod last_use;
mod mailbox;
mod part;
mod reload;
mod rest;
mod resting;
mod revive;
mod room;
mod session;
mod shared;
mod stored;
mod timer;
mod upstream;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use springline_proto::call::Connection;
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Comeback, Downstream, Endpoint, Part, Session};
use springline_proto::settings::COMEBACK_MAX;
use springline_proto::upstream::Input as UpstreamInput;
use springline_proto::version::Version;

pub use self::health::Unwritable;
pub use self::inventory::{InstanceView, ServerView};
pub use self::part::PartStream;
pub use self::reload::Changes;
pub use self::rest::{Rest, RestError};
pub use self::resting::RestingView;
pub use self::session::{SessionHandle, SessionView};

use self::claim::GLOBAL;
use self::entry::{EntrySpec, LAST_WORDS_MAX, Limits, SHUT_DOWN_MAX};
use self::revive::{WireId, hex};
use self::session::SessionCell;
use self::shared::Shared;
use crate::config::{Config, Settings};
use crate::downstream::{Gate, OpenError, Parts, Principal, Session as GateSession};
use crate::event::Events;
use crate::upstream::http::HttpShared;
use crate::{clock, spawn};

/// The gateway.
pub struct Gateway {
    shared: Arc<Shared>,
    /// Whether the stop ends all sessions.
    ends_sessions: AtomicBool,
}

impl Gateway {
    /// A gateway over this configuration. Starts nothing but its own timers.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(config: &Config, http: Arc<HttpShared>, rest: Rest) -> Arc<Self> {
        let settings = Arc::new(config.settings.clone());
        let entries = config
            .servers
            .values()
            .filter(|entry| !entry.disabled)
            .map(|entry| {
                let spec = EntrySpec::new(entry, &settings, &rest);
                (Arc::clone(&spec.name), Arc::new(spec))
            })
            .collect();
        let limits = Limits::new(&settings, http);
        let shared = Shared::new(settings, entries, limits, rest);
        shared.rest.listen(&shared.events);
        let sweeper = Arc::clone(&shared);
        // Now, before any of them is used.
        let stored = shared.rest.dormant();
        // Blocks on the disk, and nobody waits for it.
        spawn::blocking(move || {
            let entries = sweeper.entries.read().clone();
            let is_configured = |name: &str, is_global: bool| {
                if is_global {
                    sweeper.global_spec(name).is_some()
                } else {
                    entries.get(name).is_some_and(|spec| !spec.is_global())
                }
            };
            let has_user = |owner, server: &str| {
                if owner == GLOBAL {
                    return sweeper.is_live(server) || sweeper.is_awaited(server);
                }
                let live = || sweeper.sessions().iter().any(|cell| cell.rest == owner);
                stored.contains(&owner) || live()
            };
            sweeper.rest.sweep(is_configured, has_user, &sweeper.events);
        });
        spawn::named("timer", Arc::clone(&shared.timer).run());
        spawn::named("session expiry", expire_sessions(Arc::downgrade(&shared)));
        spawn::named("comebacks", end_abandoned(Arc::downgrade(&shared)));
        Arc::new(Self {
            shared,
            ends_sessions: AtomicBool::new(false),
        })
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.shared.settings()
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
    ) -> Result<SessionHandle, OpenError> {
        if self.shared.is_stopping() {
            return Err(OpenError::Stopping);
        }
        let entries = self
            .shared
            .entries_of(&endpoint)
            .ok_or(OpenError::UnknownServer)?;
        self.make_room()?;
        let mut secret = [0_u8; 48];
        getrandom::fill(&mut secret).map_err(|_| OpenError::NoRandom)?;
        let (wire, cursor_key) = secret.split_at(16);
        let id = WireId::of(&hex(wire)).ok_or(OpenError::NoRandom)?;
        let mut own = self.shared.identity(id, principal.clone(), endpoint);
        own.cursor_key.copy_from_slice(cursor_key);
        own.kind = kind;
        own.is_kept = self.shared.rest.is_durable && kind != Downstream::Pipe;
        if let (Downstream::Pipe, Some(pipe)) = (kind, self.shared.rest.pipe) {
            own.rest = pipe;
            own.keeps_upstream = true;
        }
        let config = self.shared.session_config(&own, kind, entries);
        let machine = Session::new(config, clock::moment());
        let cell = SessionCell::new(own, machine, Arc::clone(&self.shared));
        self.shared.keep_session(Arc::clone(&cell));
        Ok(SessionHandle::new(cell))
    }

    /// Whether a session may be opened now. It may be another's turn by the time that one is.
    pub fn admits(&self, endpoint: &Endpoint) -> Result<(), OpenError> {
        if self.shared.is_stopping() {
            return Err(OpenError::Stopping);
        }
        let is_known = match endpoint {
            Endpoint::All => true,
            Endpoint::One(server) => self.shared.entries.read().contains_key(server),
        };
        is_known.then_some(()).ok_or(OpenError::UnknownServer)
    }

    /// The session of this id, if it belongs to this principal, speaks to this endpoint and has a
    /// client of this kind. Another's session is answered like an unknown one.
    pub fn find(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
        kind: Downstream,
    ) -> Option<SessionHandle> {
        let wire = WireId::of(id)?;
        let cell = self.shared.session_or(&wire, || {
            let stored = self.shared.rest.wake(id)?;
            self.shared.revive(id, self.shared.rest.digest(id), &stored)
        })?;
        (cell.principal == *principal && cell.endpoint == *endpoint && cell.kind == kind)
            .then(|| SessionHandle::new(cell))
    }

    /// Makes room for one more session. At the cap one gives way whose client is not attached and
    /// waits for nothing: of those that never asked for anything the oldest, so that who only opens
    /// sessions pushes out nobody else's; else the one that was not used for longest, at work or at
    /// rest.
    fn make_room(&self) -> Result<(), OpenError> {
        let open = self.shared.sessions_len() + self.shared.rest.dormant_len();
        if open < self.shared.settings().sessions_max {
            return Ok(());
        }
        let oldest = self
            .shared
            .sessions()
            .into_iter()
            .filter_map(|cell| Some((cell.idle()?, cell)))
            .max_by_key(|((was_used, idle), _)| (!*was_used, *idle));
        let at_rest = self.shared.rest.oldest_idle();
        match oldest {
            Some(((was_used, idle), cell)) if !was_used || at_rest.is_none_or(|at| at <= idle) => {
                cell.input(springline_proto::session::Input::Close);
            }
            Some(_) | None => {
                let oldest = self.shared.rest.oldest();
                let (digest, stored) = oldest.ok_or(OpenError::TooManySessions)?;
                self.shared.end_dormant(digest, &stored);
            }
        }
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

    /// How many sessions are at rest and were not used since the start.
    pub fn at_rest(&self) -> usize {
        self.shared.rest.dormant_len()
    }

    /// Bytes of events that all sessions together hold for clients that may come back.
    pub fn redelivery_bytes(&self) -> usize {
        self.shared.backlog.bytes()
    }

    /// Those of them that were used last, for people: some hundreds. Reads each of them.
    pub fn resting(&self) -> Vec<RestingView> {
        self.shared.rest.resting()
    }

    /// What cannot be written to the state folder now; nothing if all is well.
    pub fn unwritable(&self) -> Vec<Unwritable> {
        self.shared.rest.unwritable()
    }

    /// Takes every instance of a server out of service: it finishes what it has, and the next call
    /// starts a new one. Says how many there were; `None` if there is no such server.
    pub fn restart(&self, server: &str) -> Option<usize> {
        let spec = self.shared.entries.read().get(server).cloned()?;
        let mut count = 0;
        for global in self.shared.globals() {
            if spec.is_global() && *global.name() == spec.instance {
                global.current().input(UpstreamInput::Retire);
                count += 1;
            }
        }
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

    /// The stop that comes ends all sessions, those that are stored too, and theirs upstream.
    pub fn end_sessions(&self) {
        self.ends_sessions.store(true, Ordering::Release);
    }

    /// Whether [`Self::shut_down`] was begun.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Takes nothing new, lets calls in flight finish within `drain`, lets go of all servers and
    /// waits for the end of children and DELETEs, which is bounded. Sessions that are kept stay for
    /// the next start, upstream as well, unless [`Self::end_sessions`] was called. Cancel safe in
    /// that it may be called again.
    pub async fn shut_down(&self, drain: Duration) {
        self.shared.stop();
        let end_sessions = self.ends_sessions.load(Ordering::Acquire);
        let until = clock::now() + drain;
        let is_busy = || {
            self.shared
                .sessions()
                .iter()
                .any(|cell| cell.view().pending > 0)
        };
        while clock::now() < until && is_busy() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if end_sessions {
            for (digest, stored) in self.shared.rest.expired(Duration::ZERO) {
                self.shared.end_dormant(digest, &stored);
            }
        }
        let is_ended = |cell: &Arc<SessionCell>| end_sessions || !cell.is_kept();
        for cell in self.shared.sessions() {
            if is_ended(&cell) {
                cell.input(springline_proto::session::Input::Close);
            } else {
                cell.suspend();
            }
        }
        let ends = async {
            // A session may be closing on another thread; its upstreams are retired before it goes.
            while self.shared.sessions().iter().any(is_ended) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            for global in self.shared.globals() {
                global.end(end_sessions);
            }
            for cell in self.shared.retired() {
                cell.shut_down(LAST_WORDS_MAX).await;
            }
        };
        // Past the bound the parent-death signal and the servers' own expiry do the rest.
        if tokio::time::timeout(SHUT_DOWN_MAX, ends).await.is_err() {
            tracing::warn!("some servers did not end in time");
        }
        self.shared.rest.sync();
    }
}

impl Gate for Arc<Gateway> {
    type Session = SessionHandle;

    fn open(
        &self,
        principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<SessionHandle, OpenError> {
        Gateway::open(self, principal, endpoint, kind)
    }

    fn find(&self, id: &str, principal: &Principal, endpoint: &Endpoint) -> Option<SessionHandle> {
        Gateway::find(self, id, principal, endpoint, Downstream::Http)
    }

    fn admits(&self, endpoint: &Endpoint) -> Result<(), OpenError> {
        Gateway::admits(self, endpoint)
    }

    fn take_up(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<SessionHandle> {
        Gateway::find(self, id, principal, endpoint, Downstream::Socket)
    }

    fn names(&self) -> Vec<String> {
        self.server_names()
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

    fn post(&self, message: Message, accept: Accept) -> PartStream {
        SessionHandle::post(self, message, accept)
    }

    fn listen(&self, cursor: Option<Box<str>>) -> PartStream {
        SessionHandle::listen(self, cursor)
    }

    fn pipe(&self) -> PartStream {
        SessionHandle::pipe(self)
    }

    fn line(&self, message: Result<Message, ParseError>) {
        SessionHandle::line(self, message);
    }

    fn attach(&self, comeback: Comeback) -> (Connection, PartStream) {
        SessionHandle::attach(self, comeback)
    }

    fn frame(
        &self,
        connection: Connection,
        number: u64,
        received: u64,
        line: Result<Message, ParseError>,
    ) {
        SessionHandle::frame(self, connection, number, received, line);
    }

    fn acknowledged(&self, connection: Connection, received: u64) {
        SessionHandle::acknowledged(self, connection, received);
    }

    fn taken(&self) -> u64 {
        SessionHandle::taken(self)
    }

    fn close(&self) {
        SessionHandle::close(self);
    }
}

impl Parts for PartStream {
    fn next(&mut self) -> impl Future<Output = Option<Part>> + Send {
        PartStream::next(self)
    }

    fn is_cut(&self) -> bool {
        PartStream::is_cut(self)
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
        let settings = shared.settings();
        for cell in shared.sessions() {
            let view = cell.view();
            if !view.attached && view.pending == 0 && view.idle > settings.session_idle {
                cell.input(springline_proto::session::Input::Close);
            } else {
                cell.keep_in_use(&view, last_use::lag(settings.session_idle));
            }
        }
        for (digest, stored) in shared.rest.expired(settings.session_idle) {
            shared.end_dormant(digest, &stored);
        }
        shared.rest.age(clock::moment().0, &shared.events);
    }
}

/// Ends the sessions of the socket whose clients did not come back after this start.
async fn end_abandoned(shared: std::sync::Weak<Shared>) {
    tokio::time::sleep(COMEBACK_MAX).await;
    let Some(shared) = shared.upgrade() else {
        return;
    };
    // What is stopping keeps its sessions for the next start.
    if shared.is_stopping() {
        return;
    }
    for (digest, stored) in shared.rest.abandoned() {
        shared.end_dormant(digest, &stored);
    }
}

/// Eight random bytes for jitter; zero if the system has none, which only loses the jitter.
fn random_u64() -> u64 {
    getrandom::u64().unwrap_or_default()
}
