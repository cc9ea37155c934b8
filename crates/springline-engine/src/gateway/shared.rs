//! What all sessions and upstreams of a gateway share.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use indexmap::IndexMap;
use parking_lot::{Mutex, RwLock};
use springline_proto::call::SessionKey;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::session::{Endpoint, EntryView, Known};
use springline_proto::settings::SessionSettings;
use springline_proto::shared::Serving;
use springline_proto::upstream::{Event, Input, Upstream, UpstreamConfig};
use springline_store::SessionDigest;
use tokio::sync::Semaphore;

use super::backlog::Backlog;
use super::claim::{Claim, GLOBAL};
use super::entry::{Carrier, EntrySpec, LAST_WORDS_MAX, Limits};
use super::global::GlobalCell;
use super::home::Home;
use super::rest::Rest;
use super::revive::{WireId, session_settings};
use super::room::Rooms;
use super::session::{SessionCell, Way};
use super::timer::Timer;
use super::upstream::UpstreamCell;
use crate::clock;
use crate::config::Settings;
use crate::event::Events;
use crate::spawn;

/// Shards of the map of sessions: enough that two cores do not meet often.
const SHARDS: usize = 16;

/// A session in the table by its wire id.
struct ById(Arc<SessionCell>);

impl ById {
    fn cell(&self) -> Arc<SessionCell> {
        Arc::clone(&self.0)
    }
}

impl Borrow<WireId> for ById {
    fn borrow(&self) -> &WireId {
        &self.0.id
    }
}

impl Hash for WireId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.bits());
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ById {}

impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As the borrowed id hashes.
        self.0.id.hash(state);
    }
}

/// Whose upstream it is.
pub(crate) struct Owner {
    pub(crate) session: SessionKey,
    /// What stands for the session at rest, if it outlives the process.
    pub(crate) rest: Option<SessionDigest>,
    /// Who hears of it.
    pub(crate) home: Home,
}

/// The state behind a gateway.
pub(crate) struct Shared {
    /// Replaced whole by a reload.
    settings: RwLock<Arc<Settings>>,
    /// What of them the machines of sessions go by: one for all. The same.
    session_settings: RwLock<Arc<SessionSettings>>,
    pub(crate) events: Arc<Events>,
    pub(crate) timer: Arc<Timer>,
    /// Children that may be starting at once.
    pub(crate) starts: Arc<Semaphore>,
    /// Children that may live at once.
    pub(crate) rooms: Arc<Rooms>,
    /// Events for clients that may come back.
    pub(super) backlog: Backlog,
    /// Replaced whole by a reload; upstreams that are there keep theirs.
    limits: RwLock<Limits>,
    /// Held by the reload that is under way: one after the other.
    pub(super) reload: Mutex<()>,
    /// The entries in the order of the configuration. Read for each new session and upstream.
    pub(crate) entries: RwLock<IndexMap<Arc<str>, Arc<EntrySpec>>>,
    /// What outlives the process.
    pub(crate) rest: Rest,
    /// Live sessions by wire id. A shard is held for a look-up or a change.
    shards: [Mutex<HashSet<ById>>; SHARDS],
    /// Upstreams that all sessions share, by the name of their entry. Held for a look-up, or while
    /// one is made: so none is made twice, and its record has one claimant. One whose entry went stays
    /// for its return: instances go on being told apart, and no record is claimed twice.
    globals: Mutex<BTreeMap<Arc<str>, Arc<GlobalCell>>>,
    /// Upstreams whose session is over and whose end is under way.
    retired: Mutex<Vec<Arc<UpstreamCell>>>,
    session_next: AtomicU64,
    /// Why the last start of a server failed, until one succeeds. Held for a look-up or a change.
    failures: Mutex<HashMap<Arc<str>, Box<str>>>,
    /// No new work is taken.
    stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        settings: Arc<Settings>,
        entries: IndexMap<Arc<str>, Arc<EntrySpec>>,
        limits: Limits,
        rest: Rest,
    ) -> Arc<Self> {
        Arc::new(Self {
            events: Arc::new(Events::new(settings.events_max)),
            timer: Arc::default(),
            starts: Arc::new(Semaphore::new(settings.concurrent_starts.max(1))),
            rooms: Rooms::new(settings.children_max),
            backlog: Backlog::new(settings.redelivery_total),
            session_settings: RwLock::new(Arc::new(session_settings(&settings))),
            settings: RwLock::new(settings),
            limits: RwLock::new(limits),
            reload: Mutex::default(),
            entries: RwLock::new(entries),
            session_next: AtomicU64::new(rest.base() + 1),
            rest,
            shards: std::array::from_fn(|_| Mutex::default()),
            globals: Mutex::default(),
            retired: Mutex::default(),
            failures: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    pub(super) fn session_settings(&self) -> Arc<SessionSettings> {
        Arc::clone(&self.session_settings.read())
    }

    /// Other settings for what comes from now on.
    pub(super) fn configure(&self, settings: Arc<Settings>) {
        let mut limits = self.limits.write();
        // One for all children, those of before the reload, too.
        let budget = Arc::clone(&limits.stdio.line_budget);
        self.events.keep(settings.events_max);
        *limits = Limits::new(&settings, Arc::clone(&limits.http_shared));
        limits.stdio.line_budget = budget;
        drop(limits);
        self.rooms.set_max(settings.children_max);
        self.rooms.trim(|| self.evict());
        self.backlog.set_max(settings.redelivery_total);
        *self.session_settings.write() = Arc::new(session_settings(&settings));
        *self.settings.write() = settings;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub(crate) fn session_key(&self) -> SessionKey {
        SessionKey(self.session_next.fetch_add(1, Ordering::Relaxed))
    }

    /// Remembers how the last start of a server went.
    pub(crate) fn note_start(&self, server: &Arc<str>, event: &Event) {
        match event {
            Event::StartFailed { cause, .. } => {
                self.failures
                    .lock()
                    .insert(Arc::clone(server), cause.clone());
            }
            Event::Ready { .. } => {
                self.failures.lock().remove(server);
            }
            Event::Lost { .. }
            | Event::Replayed { .. }
            | Event::Ended { .. }
            | Event::Dropped { .. }
            | Event::Unreadable { .. }
            | Event::Drained
            | Event::Resumed { .. }
            | Event::Unauthorized { .. } => {}
        }
    }

    /// Why the last start of a server failed, if it did.
    pub(crate) fn failure(&self, server: &str) -> Option<String> {
        self.failures.lock().get(server).map(ToString::to_string)
    }

    fn shard(&self, id: &WireId) -> &Mutex<HashSet<ById>> {
        // Random hex: a few bytes spread by themselves.
        let sum = id
            .bits()
            .to_le_bytes()
            .into_iter()
            .fold(0_usize, |sum, byte| {
                sum.wrapping_mul(31).wrapping_add(byte.into())
            });
        #[expect(clippy::indexing_slicing, reason = "the remainder is below the length")]
        &self.shards[sum % SHARDS]
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<SessionCell>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().iter().map(ById::cell).collect::<Vec<_>>())
            .collect()
    }

    pub(crate) fn sessions_len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// The session of this id: the live one, or what `revive` makes of a stored one. One at a time
    /// for each id, so that it is never made twice.
    pub(super) fn session_or(
        &self,
        id: &WireId,
        revive: impl FnOnce() -> Option<Arc<SessionCell>>,
    ) -> Option<Arc<SessionCell>> {
        let mut shard = self.shard(id).lock();
        if let Some(held) = shard.get(id) {
            return Some(held.cell());
        }
        let cell = revive()?;
        shard.insert(ById(Arc::clone(&cell)));
        Some(cell)
    }

    pub(crate) fn keep_session(&self, cell: Arc<SessionCell>) {
        self.shard(&cell.id).lock().insert(ById(cell));
    }

    pub(super) fn forget_session(&self, id: &WireId) {
        self.shard(id).lock().remove(id);
    }

    /// The entries as a session sees them.
    pub(crate) fn views(&self) -> Vec<EntryView> {
        self.entries
            .read()
            .values()
            .map(|spec| self.view(spec))
            .collect()
    }

    pub(crate) fn view(&self, spec: &EntrySpec) -> EntryView {
        EntryView {
            name: Arc::clone(&spec.name),
            unavailable: spec.unavailable(),
            remembered: self.rest.memory.recall(&spec.name),
        }
    }

    pub(crate) fn remember(&self, server: &Arc<str>, what: Known) {
        self.rest.memory.remember(server, what);
    }

    /// The way of a session to a server: an upstream of its own, or the one that all share. An entry
    /// that is gone or cannot be used gives one that answers each call with the reason.
    pub(super) fn way(self: &Arc<Self>, server: &Arc<str>, session: &SessionCell) -> Way {
        if let Some(global) = self
            .instance_of(server)
            .and_then(|instance| self.global(&instance))
        {
            global.join(session.key(), session.this());
            return Way::Global(global);
        }
        let spec = self.entries.read().get(server).cloned();
        let owner = session.owner();
        let config = self.upstream_config(server, spec.as_deref(), owner.session);
        let identity = spec.as_ref().map_or([0; 32], |spec| spec.identity);
        let machine = self.machine(config, owner.rest, &identity);
        let fault = fault_of(spec.as_deref());
        let made = self.carry(server, spec.as_ref(), owner, machine.into());
        made.open_resumed();
        if let Some(fault) = fault {
            made.input(Input::Close {
                fault,
                end_session: false,
            });
        }
        Way::Own(made)
    }

    /// The instance that a server of this name is, if all sessions share one.
    pub(super) fn instance_of(&self, server: &str) -> Option<Arc<str>> {
        let entries = self.entries.read();
        let spec = entries.get(server).filter(|spec| spec.is_global())?;
        Some(Arc::clone(&spec.instance))
    }

    /// Whether an entry has this instance, by its own name or a second one, whatever its scope.
    pub(super) fn is_instance(&self, instance: &str) -> bool {
        let entries = self.entries.read();
        entries.values().any(|spec| *spec.instance == *instance)
    }

    /// What the server of this instance announced last, to whichever name.
    pub(super) fn announced(&self, instance: &str) -> Option<bytes::Bytes> {
        let entries = self.entries.read();
        let mut names = entries
            .values()
            .filter(|spec| *spec.instance == *instance)
            .map(|spec| &*spec.name);
        names.find_map(|name| self.rest.memory.recall(name)?.initialize.clone())
    }

    /// The entry of a shared instance. One that cannot be used now may have shared it before.
    pub(super) fn global_spec(&self, instance: &str) -> Option<Arc<EntrySpec>> {
        let entries = self.entries.read();
        let spec = entries.values().find(|spec| {
            *spec.instance == *instance && (spec.is_global() || spec.definition.is_err())
        });
        spec.map(EntrySpec::of_instance)
    }

    /// The shared upstream of this instance, made if its entry is there.
    pub(super) fn global(self: &Arc<Self>, instance: &Arc<str>) -> Option<Arc<GlobalCell>> {
        let mut globals = self.globals.lock();
        if let Some(global) = globals.get(instance) {
            return Some(Arc::clone(global));
        }
        // Read under the lock: a reload that comes after it finds the new one.
        let spec = self.global_spec(instance)?;
        let global = GlobalCell::new(&spec, self);
        globals.insert(Arc::clone(instance), Arc::clone(&global));
        Some(global)
    }

    pub(super) fn globals(&self) -> Vec<Arc<GlobalCell>> {
        self.globals.lock().values().cloned().collect()
    }

    /// Whether a shared upstream of this name is there.
    pub(super) fn is_live(&self, instance: &str) -> bool {
        self.globals.lock().contains_key(instance)
    }

    /// The same, or at rest.
    pub(super) fn has_global(&self, instance: &str) -> bool {
        self.is_live(instance) || self.rest.has_upstream(GLOBAL, instance)
    }

    /// Whether a session that does not use this instance now may come back to it: one at rest, or
    /// one that has not called it since it came from there.
    pub(super) fn is_awaited(&self, instance: &str) -> bool {
        let is_used = |spec: &Arc<EntrySpec>| spec.is_global() && *spec.instance == *instance;
        if !self.entries.read().values().any(is_used) {
            return false;
        }
        let uses = |endpoint: Option<&str>| {
            endpoint.is_none_or(|server| self.instance_of(server).as_deref() == Some(instance))
        };
        self.rest.is_any_dormant(uses)
            || self.sessions().iter().any(|cell| {
                cell.is_kept()
                    && match &cell.endpoint {
                        Endpoint::All => true,
                        Endpoint::One(server) => uses(Some(server)),
                    }
            })
    }

    pub(super) fn upstream_config(
        &self,
        server: &Arc<str>,
        spec: Option<&EntrySpec>,
        session: SessionKey,
    ) -> UpstreamConfig {
        UpstreamConfig {
            server: Arc::clone(server),
            transport: spec.map_or(springline_proto::upstream::Transport::Http, |spec| {
                spec.transport()
            }),
            session,
            settings: spec.map(|spec| spec.settings.clone()).unwrap_or_default(),
            seed: super::random_u64(),
            base: self.rest.base(),
        }
    }

    /// A cell for this machine, with the transport of the entry.
    pub(super) fn carry(
        self: &Arc<Self>,
        server: &Arc<str>,
        spec: Option<&Arc<EntrySpec>>,
        owner: Owner,
        machine: Serving,
    ) -> Arc<UpstreamCell> {
        let limits = self.limits.read().clone();
        let shared = Arc::clone(self);
        UpstreamCell::new(
            machine,
            owner.home,
            owner.rest,
            spec.cloned(),
            shared,
            |cell| match spec {
                Some(spec) => Carrier::new(spec, cell, &limits),
                None => Carrier::nothing(Arc::clone(server)),
            },
        )
    }

    /// The machine of an upstream: as it was at rest, if it was. A session that was opened with
    /// another definition or other credentials is not used again, and not ended with these either.
    pub(super) fn machine(
        &self,
        config: UpstreamConfig,
        owner: Option<SessionDigest>,
        identity: &[u8; 32],
    ) -> Upstream {
        let now = clock::moment();
        let claim = owner.map(|owner| {
            self.rest
                .claim(owner, &config.server, identity, &self.events)
        });
        // A pipe's client is a new one: without a session to go on with, nothing was there before.
        let is_pipe = owner.is_some() && owner == self.rest.pipe;
        let record = match claim.unwrap_or(Claim::Nothing) {
            Claim::Nothing => None,
            Claim::Taken(record) => Some(record),
            Claim::Other(record) => Some(record).filter(|_| !is_pipe),
            Claim::Left(record) => {
                self.note_left(&config.server);
                Some(record).filter(|_| !is_pipe)
            }
        };
        let mut machine = match record {
            Some(record) => Upstream::resume(config, record, now),
            None => Upstream::new(config, now),
        };
        if is_pipe {
            machine.keep_answer();
        }
        machine
    }

    /// Notes that a session of a server is left to expire.
    fn note_left(&self, server: &str) {
        let mut facts = serde_json::Map::new();
        facts.insert("server".to_owned(), server.into());
        facts.insert(
            "reason".to_owned(),
            "its definition or credentials differ".into(),
        );
        self.events.record("session.left_to_expire", facts);
    }

    /// Keeps an upstream until its end, which was begun, is done.
    pub(crate) fn retire_upstream(self: &Arc<Self>, cell: Arc<UpstreamCell>) {
        self.retired.lock().push(Arc::clone(&cell));
        let shared = Arc::clone(self);
        spawn::named("upstream end", async move {
            cell.shut_down(LAST_WORDS_MAX).await;
            cell.has_left();
            shared
                .retired
                .lock()
                .retain(|held| !Arc::ptr_eq(held, &cell));
        });
    }

    pub(crate) fn retired(&self) -> Vec<Arc<UpstreamCell>> {
        self.retired.lock().clone()
    }
}

/// Why no call can enter, if so.
pub(super) fn fault_of(spec: Option<&EntrySpec>) -> Option<Fault> {
    let Some(spec) = spec else {
        return Some(Fault::new(FaultKind::ServerRemoved));
    };
    spec.unavailable()
        .map(|reason| Fault::new(FaultKind::ServerUnavailable).because(reason))
}
