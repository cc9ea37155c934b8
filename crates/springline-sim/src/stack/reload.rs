//! Another configuration for the gateway that runs: what becomes of the upstreams of each session.
//!
//! Does what the gateway's own reload does with the machines, in its order, and nothing else. It must
//! not know how a machine goes out of service.

use std::sync::Arc;

use springline_proto::call::{CallKey, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::session::Input;
use springline_proto::settings::UpstreamSettings;
use springline_proto::shared::{Handover, Serving};
use springline_proto::upstream::{
    Drain, Input as UpstreamInput, Moved, Standby, Transport, UpstreamConfig,
};

use super::Change;
use crate::world::{Event, Post, Seat, World};

/// How a server entry is configured.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// Which text it is; another one with each reload that touches the entry.
    pub(super) version: u64,
    /// Which server.
    pub(crate) identity: u64,
    /// Which values its credentials have.
    rotation: u64,
    pub(super) http: bool,
    /// All sessions share it.
    pub(super) global: bool,
    settings: UpstreamSettings,
}

impl Spec {
    pub(super) fn new(http: bool, settings: UpstreamSettings) -> Self {
        Self {
            version: 0,
            identity: 0,
            rotation: 0,
            http,
            global: false,
            settings,
        }
    }

    /// What a record at rest is told from others by.
    pub(super) fn who(&self) -> (u64, u64) {
        (self.identity, self.rotation)
    }

    /// Whether the machine that served the other can serve this one.
    pub(super) fn is_same_server(&self, other: &Self) -> bool {
        let same = self.identity == other.identity && self.http == other.http;
        let same = same && self.global == other.global;
        // Credentials of a child are in its environment.
        same && (self.http || self.rotation == other.rotation)
    }
}

impl Seat {
    /// Whether it is where calls of this session to this server go.
    pub(super) fn serves(&self, session: SessionKey, server: &Arc<str>) -> bool {
        let is_place = self.session == session && self.server == *server;
        is_place && !self.dead && self.post == Post::Serves
    }
}

impl World {
    pub(super) fn upstream_config(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        spec: Option<&Spec>,
    ) -> UpstreamConfig {
        let settings = spec.map_or(&self.plan.settings, |spec| &spec.settings);
        UpstreamConfig {
            server: Arc::clone(server),
            transport: if spec.is_none_or(|spec| spec.http) {
                Transport::Http
            } else {
                Transport::Stdio
            },
            session,
            settings: settings.clone().into(),
            base: self.stack.epoch << 32,
            seed: self.random.next(),
        }
    }

    /// One entry is another from now on, also for sessions that have it.
    pub(super) fn reload(&mut self, entry: usize, change: Change) {
        let version = self.stack.ordinal();
        let held = &mut self.stack.entries[entry];
        let is_there = held.spec.is_some();
        let alone = matches!(change, Change::Removed | Change::Added { other: false });
        if held.alias.is_some() && !alone {
            // It has no definition of its own.
            return;
        }
        let mut spec = held.last.clone();
        spec.version = version;
        match change {
            Change::Knobs if is_there => {
                let idle = spec.settings.idle_timeout;
                let other = std::time::Duration::from_secs(5);
                spec.settings.idle_timeout = idle.is_none().then_some(other);
            }
            Change::Rotated if is_there => spec.rotation = version,
            Change::Other { carried } if is_there => {
                spec.identity = version;
                spec.http ^= carried;
            }
            Change::Removed if is_there => {
                held.spec = None;
                held.removals += 1;
                for desk in &mut self.stack.desks {
                    desk.subscribed.remove(&entry);
                }
                return self.reconfigure(entry, true);
            }
            Change::Added { other } if !is_there => {
                if other {
                    spec.identity = version;
                }
            }
            Change::Scope if is_there => spec.global ^= true,
            Change::Knobs
            | Change::Scope
            | Change::Rotated
            | Change::Other { .. }
            | Change::Removed
            | Change::Added { .. } => return,
        }
        held.last = spec.clone();
        held.spec = Some(spec.clone());
        for other in &mut self.stack.entries {
            if other.alias == Some(entry) {
                other.last = spec.clone();
                other.spec = other.spec.is_some().then(|| spec.clone());
            }
        }
        let lists = matches!(
            change,
            Change::Other { .. } | Change::Added { .. } | Change::Scope
        );
        self.reconfigure(entry, lists);
    }

    /// Every entry that was removed comes back.
    pub(super) fn add_all(&mut self) {
        for entry in 0..self.stack.entries.len() {
            let other = false;
            self.reload(entry, Change::Added { other });
        }
    }

    /// Brings the sessions in line with an entry.
    fn reconfigure(&mut self, entry: usize, lists: bool) {
        let what = self.stack.entries[entry].spec.as_ref();
        let line = format!(
            "{:?} RELOAD e{entry}: {:?}",
            self.now.0,
            what.map(Spec::who)
        );
        self.trace
            .note([4, entry as u64, 0, 0], b"", format_args!("{line}"));
        let entries = self.stack.entries.iter().enumerate();
        let named = entries.filter(|(at, held)| *at == entry || held.alias == Some(entry));
        let servers: Vec<Arc<str>> = named.map(|(_, held)| Arc::clone(&held.name)).collect();
        // Those that are there first: sessions that come to them meet the new definition.
        self.reconcile_globals();
        for at in 0..self.stack.desks.len() {
            let desk = &self.stack.desks[at];
            if desk.machine.is_none() {
                continue;
            }
            let key = desk.key;
            let views = self.stack.views(&desk.stand);
            let concerns = desk.stand.entry.is_none() || !views.is_empty();
            for server in &servers {
                self.reconcile(key, server);
            }
            if lists && concerns {
                self.tell_desk(at, Input::Entries(views));
            }
        }
        // Those that are gone last: their sessions have taken along what need not end there.
        self.drain_globals();
        self.settle_stored();
    }

    fn reconcile(&mut self, key: SessionKey, server: &Arc<str>) {
        let is_global = self.stack.instance_of(server).is_some();
        if let Some(global) = self.stack.shared_way(key, server) {
            if !is_global {
                self.depart(key, server, global);
            }
            return;
        }
        let Some(at) = self.seats.iter().position(|seat| seat.serves(key, server)) else {
            return;
        };
        if is_global {
            return self.join_global(key, server, at);
        }
        let wanted = self.stack.entries[self.stack.entry_of(server)].spec.clone();
        match (self.seats[at].spec.clone(), wanted) {
            (None, None) => {}
            (Some(_), None) => {
                let fault = Fault::new(FaultKind::ServerRemoved);
                self.drain(at, Drain::Refuse(fault));
                self.feed(at, UpstreamInput::Timer);
            }
            (Some(held), Some(wanted)) if held.version == wanted.version => {}
            (Some(held), Some(wanted)) => {
                if wanted.is_same_server(&held) && self.seats[at].machine.revive() {
                    self.adopt(at, wanted, &held);
                } else {
                    self.replace(at, wanted);
                }
            }
            (None, Some(wanted)) => self.replace(at, wanted),
        }
    }

    /// At once, and not behind what waits for a slow write: the next reload may put it back into
    /// service. What comes out is taken with the next input.
    pub(super) fn drain(&mut self, at: usize, drain: Drain) {
        self.grant_restart(at);
        let seat = &mut self.seats[at];
        seat.machine.handle(self.now, UpstreamInput::Drain(drain));
    }

    /// One that is starting gives that instance up, and may need another.
    fn grant_restart(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if seat.machine.standby() == Standby::Starting {
            seat.licence.opens += 1;
        }
    }

    /// Out of service for another, and the record at rest is that one's.
    pub(super) fn hand_over(&mut self, at: usize) -> Handover {
        self.grant_restart(at);
        let legacy = self.seats[at].machine.hand_over(self.now);
        if self.seats[at].is_shared() {
            self.collect(at);
        }
        self.seats[at].post = Post::Leaves;
        let (session, server) = (self.seats[at].session, Arc::clone(&self.seats[at].server));
        self.pass_record(session, &server);
        legacy
    }

    pub(super) fn leave_if_gone(&mut self, at: usize) {
        let old = &mut self.seats[at];
        if old.machine.is_gone() {
            old.post = Post::Left;
        }
    }

    /// The same server under an entry that is written otherwise.
    pub(super) fn adopt(&mut self, at: usize, spec: Spec, held: &Spec) {
        let rotated = spec.rotation != held.rotation;
        let settings = Box::new(spec.settings.clone());
        self.seats[at].spec = Some(spec);
        self.feed(at, UpstreamInput::Settings(settings));
        if rotated {
            let when = self.now.after(self.delay());
            self.put(when, Event::Read(at));
        }
    }

    /// A new upstream in the place of another, which finishes what was sent to it.
    fn replace(&mut self, at: usize, spec: Spec) {
        let successor = self.succeed(at, spec);
        self.feed(successor, UpstreamInput::Timer);
        self.feed(at, UpstreamInput::Timer);
        self.leave_if_gone(at);
    }

    /// The machine in the place of another; neither is driven yet.
    pub(super) fn succeed(&mut self, at: usize, spec: Spec) -> usize {
        let (session, server) = (self.seats[at].session, Arc::clone(&self.seats[at].server));
        let config = self.upstream_config(session, &server, Some(&spec));
        let legacy = self.hand_over(at);
        let machine = Serving::succeed(config, legacy, self.now);
        let mut new = Seat::with(machine, spec.http, session);
        new.credential = self.server.source;
        new.spec = Some(spec);
        new.inherits = true;
        self.seats.push(new);
        self.seats.len() - 1
    }

    /// A request goes to the machine that took the place of the one that had it.
    pub(crate) fn moved(&mut self, at: usize, key: CallKey, server: &Arc<str>, moved: Box<Moved>) {
        self.note_move(key);
        if key.session == SessionKey::SHARED {
            return self.pass_on_shared(at, key, moved);
        }
        if self.seats[at].is_shared() && !self.stack.is_bound(at, key.session) {
            // That session is over.
            return;
        }
        let desk = usize::try_from(key.session.0).unwrap_or(0);
        self.reach_upstream(desk, server, UpstreamInput::Take { key, moved });
    }

    pub(super) fn note_move(&mut self, key: CallKey) {
        let desk = usize::try_from(key.session.0).unwrap_or(0);
        let Some(desk) = self.stack.desks.get(desk) else {
            return;
        };
        let calls = desk.calls.iter();
        let number = calls
            .copied()
            .find(|number| self.stack.calls[*number].number == Some(key.number));
        if let Some(record) = number.and_then(|number| self.book.get_mut(number)) {
            record.moves += 1;
        }
    }

    /// What concerns calls that are with an upstream on its way out reaches that one too. Says
    /// whether it concerns nothing else.
    pub(super) fn reach_leaving(
        &mut self,
        key: SessionKey,
        server: &Arc<str>,
        input: &UpstreamInput,
    ) -> bool {
        let of_it = |world: &Self, at: &usize| world.seats[*at].server == *server;
        if let UpstreamInput::Reply { instance, .. } = input {
            if self.answer_parted(key, server, *instance, input) {
                return true;
            }
            let leaving = self.leaving(key);
            let mut leaving = leaving.into_iter().filter(|at| of_it(self, at));
            let asker = leaving.find(|at| self.seats[*at].machine.has(*instance));
            if let Some(at) = asker {
                self.feed(at, input.clone());
            }
            return asker.is_some();
        }
        let concerns = matches!(
            input,
            UpstreamInput::Cancel { .. } | UpstreamInput::Asking { .. }
        );
        if !concerns {
            return false;
        }
        self.tell_parted(key, server, input);
        for at in self.leaving(key) {
            if of_it(self, &at) {
                self.feed(at, input.clone());
            }
        }
        false
    }

    /// The session is over: so is what was on its way out.
    pub(super) fn end_leaving(&mut self, key: SessionKey) {
        for at in self.leaving(key) {
            self.seats[at].post = Post::Left;
            let fault = Fault::new(FaultKind::SessionEnded);
            let end_session = true;
            self.feed(at, UpstreamInput::Close { fault, end_session });
        }
    }

    fn leaving(&self, key: SessionKey) -> Vec<usize> {
        let seats = self.seats.iter().enumerate();
        seats
            .filter(|(_, seat)| seat.session == key && !seat.dead && seat.post == Post::Leaves)
            .map(|(at, _)| at)
            .collect()
    }
}
