//! A new configuration for a gateway that runs.
//!
//! Owns what becomes of every upstream whose entry changed, went or came back, or is shared otherwise.
//! What is the same stays untouched: its process, its session, its calls in flight. Must not know
//! files.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::json;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::session::Input as SessionInput;
use springline_proto::shared::Handover;
use springline_proto::upstream::{Binding, Drain, Input, Legacy, Upstream, UpstreamConfig};

use super::Gateway;
use super::entry::EntrySpec;
use super::global::GlobalCell;
use super::session::{SessionCell, Way};
use super::shared::{Shared, fault_of};
use super::upstream::UpstreamCell;
use crate::clock;
use crate::config::{Config, Definition};
use crate::spawn::Errand;

/// Any key does for texts that are compared within one process.
const TEXT_KEY: &[u8] = b"reload";

/// What a reload did, by the names of entries. Those that are switched off count as not there.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Changes {
    /// New.
    pub added: Vec<String>,
    /// Gone.
    pub removed: Vec<String>,
    /// Another server from now on.
    pub changed: Vec<String>,
    /// The same server; knobs and values of credentials may differ.
    pub kept: Vec<String>,
}

/// How two entries of the same name differ.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Difference {
    /// Not at all.
    None,
    /// The same server, with other knobs or written otherwise.
    Knobs,
    /// The same text and address, with other values of its credentials.
    Rotated,
    /// Another server.
    Other,
}

pub(super) fn difference(old: &EntrySpec, new: &EntrySpec) -> Difference {
    let is_usable = old.definition.is_ok() && new.definition.is_ok();
    if is_usable && (old.scope != new.scope || old.instance != new.instance) {
        return Difference::Other;
    }
    let is_same_text = old.entry.text_identity(TEXT_KEY) == new.entry.text_identity(TEXT_KEY);
    match (&old.definition, &new.definition) {
        (Ok(_), Ok(_)) if old.identity == new.identity => {
            if is_same_text && old.settings == new.settings {
                Difference::None
            } else {
                Difference::Knobs
            }
        }
        (Ok(Definition::Http(old)), Ok(Definition::Http(new)))
            if is_same_text
                && old.url == new.url
                && old.ca.as_ref().map(|ca| &ca.pem) == new.ca.as_ref().map(|ca| &ca.pem) =>
        {
            Difference::Rotated
        }
        (Err(old), Err(new)) if old == new => Difference::None,
        _ => Difference::Other,
    }
}

/// Upstreams of a session on their way out.
#[derive(Default)]
pub(super) struct Leaving {
    parted: Vec<Arc<GlobalCell>>,
    own: Vec<Arc<UpstreamCell>>,
    /// What concerns them concerns nothing else.
    pub(super) is_all: bool,
}

impl Leaving {
    /// Tells all of them.
    pub(super) fn tell(self, binding: &Binding, input: &Input) {
        for global in self.parted {
            global.input(binding, input.clone());
        }
        for cell in self.own {
            cell.input(input.clone());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parted.is_empty() && self.own.is_empty()
    }
}

impl Gateway {
    /// Takes a configuration in place of the present one. Returns when new calls meet it: what
    /// drains and what is ended goes on behind. One reload at a time; the others wait.
    ///
    /// The listener, the socket and the state folder of the settings are not looked at: they are
    /// those of the start.
    pub fn reload(&self, config: &Config) -> Changes {
        let shared = &self.shared;
        let _turn = shared.reload.lock();
        let settings = Arc::new(config.settings.clone());
        let old = shared.entries.read().clone();
        let mut changes = Changes::default();
        let mut entries: IndexMap<Arc<str>, Arc<EntrySpec>> = IndexMap::new();
        let mut is_other = false;
        for entry in config.servers.values().filter(|entry| !entry.disabled) {
            let mut spec = Arc::new(EntrySpec::new(entry, &settings, &shared.rest));
            let name = spec.name.to_string();
            match old.get(&spec.name) {
                None => changes.added.push(name),
                Some(held) => match difference(held, &spec) {
                    Difference::None => {
                        spec = Arc::clone(held);
                        changes.kept.push(name);
                    }
                    Difference::Knobs | Difference::Rotated => {
                        is_other = true;
                        changes.kept.push(name);
                    }
                    Difference::Other => changes.changed.push(name),
                },
            }
            entries.insert(Arc::clone(&spec.name), spec);
        }
        for name in old.keys().filter(|name| !entries.contains_key(*name)) {
            changes.removed.push(name.to_string());
        }
        let are_lists_other = !changes.added.is_empty()
            || !changes.removed.is_empty()
            || !changes.changed.is_empty()
            || !old.keys().eq(entries.keys());
        shared.configure(settings);
        let entries = {
            let mut held = shared.entries.write();
            *held = entries;
            held.clone()
        };
        if is_other || are_lists_other {
            shared.reconcile(are_lists_other);
            shared.settle_stored(&old, &entries);
        }
        let facts = json!({
            "added": changes.added,
            "removed": changes.removed,
            "changed": changes.changed,
            "kept": changes.kept,
        });
        if let serde_json::Value::Object(facts) = facts {
            shared.events.record("reload.done", facts);
        }
        changes
    }

    /// Notes that a configuration was refused, and that nothing changed.
    pub fn reload_refused(&self, reason: &str) {
        let mut facts = serde_json::Map::new();
        facts.insert("reason".to_owned(), reason.into());
        self.shared.events.record("reload.refused", facts);
    }
}

impl Shared {
    /// Brings everything in line with the entries as they are now. Called by the one reload that is
    /// under way.
    fn reconcile(self: &Arc<Self>, are_lists_other: bool) {
        // Those that are there first: sessions that come to them meet the new definition.
        for global in self.globals() {
            global.reconcile();
        }
        for session in self.sessions() {
            session.reconfigure(are_lists_other);
        }
        // Those that are gone last: their sessions have taken along what need not end there.
        for global in self.globals() {
            global.drain();
        }
    }
}

impl SessionCell {
    /// Brings everything in line with the entries as they are now.
    fn reconfigure(&self, are_lists_other: bool) {
        let servers: Vec<Arc<str>> = self.upstreams.lock().keys().cloned().collect();
        for server in servers {
            self.reconcile(&server);
        }
        if are_lists_other && let Some(views) = self.shared.entries_of(&self.endpoint) {
            self.input(SessionInput::Entries(views));
        }
    }

    /// Brings the way to one server in line with its entry. May run on several threads at once.
    pub(super) fn reconcile(&self, server: &Arc<str>) {
        loop {
            let Some(way) = self.upstreams.lock().get(server).cloned() else {
                return;
            };
            let wanted = self.shared.entries.read().get(server).cloned();
            let is_done = match (way, wanted) {
                (Way::Own(cell), wanted) => self.reconcile_own(server, &cell, wanted),
                // One that cannot be used is the shared one's to say.
                (Way::Global(global), Some(wanted))
                    if wanted.instance == *global.name()
                        && (wanted.is_global() || wanted.definition.is_err()) =>
                {
                    true
                }
                (Way::Global(global), wanted) => self.depart(server, &global, wanted.as_ref()),
            };
            if is_done {
                return;
            }
        }
    }

    /// Says whether it is done; if not, something else was quicker.
    fn reconcile_own(
        &self,
        server: &Arc<str>,
        cell: &Arc<UpstreamCell>,
        wanted: Option<Arc<EntrySpec>>,
    ) -> bool {
        if wanted.as_ref().is_some_and(|wanted| wanted.is_global()) {
            return self.join_global(server, cell);
        }
        match (cell.spec(), wanted) {
            (None, None) => true,
            (Some(_), None) => {
                let fault = Fault::new(FaultKind::ServerRemoved);
                cell.input(Input::Drain(Drain::Refuse(fault)));
                true
            }
            (Some(held), Some(wanted)) if Arc::ptr_eq(&held, &wanted) => true,
            (Some(held), Some(wanted)) => {
                let difference = difference(&held, &wanted);
                if difference != Difference::Other && cell.revive() {
                    cell.adopt(wanted, difference == Difference::Rotated);
                    return true;
                }
                self.replace(server, cell, &wanted)
            }
            (None, Some(wanted)) => self.replace(server, cell, &wanted),
        }
    }

    /// From now on the session uses what all share in the place of `old`. What was sent to `old`
    /// finishes there.
    fn join_global(&self, server: &Arc<str>, old: &Arc<UpstreamCell>) -> bool {
        let instance = self.shared.instance_of(server);
        let Some(global) = instance.and_then(|instance| self.shared.global(&instance)) else {
            return false;
        };
        let brought = {
            let mut upstreams = self.upstreams.lock();
            let way = upstreams.get_mut(server);
            let Some(way) = way.filter(|way| way.is_own(old)) else {
                return false;
            };
            *way = Way::Global(Arc::clone(&global));
            self.leaving.lock().push(Arc::clone(old));
            old.note_leaving();
            match old.hand_over() {
                Handover::Own(legacy) => self.bring(server, &global, legacy),
                Handover::Shared(_) => Vec::new(),
            }
        };
        for cell in brought {
            cell.go_on();
        }
        if let Some(rest) = self.at_rest_key() {
            // Nobody goes on with its session: it ends with its last call.
            self.shared
                .rest
                .forget_upstream(rest, server, &self.shared.events);
        }
        self.let_go(old);
        true
    }

    /// The session does not use a shared upstream any more: its entry is gone, is not shared, or is
    /// another. Calls in flight finish there, what was not sent comes along.
    fn depart(
        &self,
        server: &Arc<str>,
        old: &Arc<GlobalCell>,
        wanted: Option<&Arc<EntrySpec>>,
    ) -> bool {
        let other = wanted
            .filter(|wanted| wanted.is_global())
            .and_then(|wanted| self.shared.global(&wanted.instance));
        let own = other.is_none().then(|| self.blank(server, wanted));
        let (mut cells, moved) = {
            let mut upstreams = self.upstreams.lock();
            let way = upstreams.get_mut(server);
            let Some(way) = way.filter(|way| way.is_global(old)) else {
                return false;
            };
            let Some((left, (legacy, moved))) = old.part(&self.binding(server)) else {
                return true;
            };
            self.note_parted(server, old);
            let mut cells = vec![left];
            if let Some(global) = &other {
                *way = Way::Global(Arc::clone(global));
                cells.extend(self.bring(server, global, Box::new(legacy)));
            } else if let Some((new, config)) = own {
                new.begin(config, legacy.into(), fault_of(wanted.map(Arc::as_ref)));
                *way = Way::Own(Arc::clone(&new));
                cells.push(new);
            }
            (cells, moved)
        };
        for cell in cells.drain(..) {
            cell.input(Input::Timer);
        }
        for (key, moved) in moved {
            let take = Input::Take { key, moved };
            self.to_upstream(server, take, &mut Errand::none());
        }
        true
    }

    /// Calls of this session may be in flight with a shared upstream that is not its own any more.
    fn note_parted(&self, server: &Arc<str>, old: &Arc<GlobalCell>) {
        let mut parted = self.parted.lock();
        let is_known =
            |(name, held): &(Arc<str>, Arc<GlobalCell>)| name == server && Arc::ptr_eq(held, old);
        if !parted.iter().any(is_known) {
            parted.push((Arc::clone(server), Arc::clone(old)));
        }
    }

    /// Tells a shared upstream what the session had set up before it came: ahead of whatever the
    /// session says there, so in one step with the change of its way. What is returned is to go on.
    fn bring(
        &self,
        server: &Arc<str>,
        global: &Arc<GlobalCell>,
        legacy: Box<Legacy>,
    ) -> Vec<Arc<UpstreamCell>> {
        global.join(self.key(), self.this());
        global.leave(&self.binding(server), Input::Join(legacy))
    }

    /// Drives one whose place was taken.
    fn let_go(&self, old: &Arc<UpstreamCell>) {
        old.input(Input::Timer);
        if old.is_gone() {
            self.left(old);
        }
    }

    /// An upstream of the session's own that is still to begin.
    fn blank(
        &self,
        server: &Arc<str>,
        spec: Option<&Arc<EntrySpec>>,
    ) -> (Arc<UpstreamCell>, UpstreamConfig) {
        let owner = self.owner();
        let config = self
            .shared
            .upstream_config(server, spec.map(Arc::as_ref), owner.session);
        let machine = Upstream::new(config.clone(), clock::moment());
        let new = self.shared.carry(server, spec, owner, machine.into());
        (new, config)
    }

    /// Puts a new upstream in the place of `old`, unless that is not in its place any more. What was
    /// sent to `old` finishes there.
    fn replace(&self, server: &Arc<str>, old: &Arc<UpstreamCell>, spec: &Arc<EntrySpec>) -> bool {
        let (new, config) = self.blank(server, Some(spec));
        {
            let mut upstreams = self.upstreams.lock();
            let way = upstreams.get_mut(server);
            let Some(way) = way.filter(|way| way.is_own(old)) else {
                return false;
            };
            self.leaving.lock().push(Arc::clone(old));
            old.note_leaving();
            new.begin(config, old.hand_over(), fault_of(Some(spec)));
            *way = Way::Own(Arc::clone(&new));
        }
        new.input(Input::Timer);
        self.let_go(old);
        true
    }

    /// The upstreams on their way out whose calls this input may concern. Looked up in one step with
    /// the way of the session: none may leave in between.
    pub(super) fn leaving_for(&self, server: &Arc<str>, input: &Input) -> Leaving {
        let (Input::Cancel { .. } | Input::Asking { .. } | Input::Reply { .. }) = input else {
            return Leaving::default();
        };
        let of_it = |cell: &&Arc<UpstreamCell>| cell.carrier().server() == server;
        let leaving = self.leaving.lock();
        let mut own: Vec<_> = leaving.iter().filter(of_it).cloned().collect();
        drop(leaving);
        let mut parted = self.parted_from(server);
        let mut is_all = false;
        if let Input::Reply { instance, .. } = input {
            // An answer goes to who asked, and to nobody else (I2, I9).
            own.retain(|cell| cell.has(*instance));
            parted.retain(|global| global.has(*instance));
            is_all = !own.is_empty() || !parted.is_empty();
        }
        Leaving {
            parted,
            own,
            is_all,
        }
    }

    /// The shared upstreams that this session used by this name.
    fn parted_from(&self, server: &str) -> Vec<Arc<GlobalCell>> {
        let parted = self.parted.lock();
        let of_it = parted.iter().filter(|(name, _)| **name == *server);
        of_it.map(|(_, global)| Arc::clone(global)).collect()
    }

    /// The last call of an upstream on its way out is over.
    pub(super) fn left(&self, cell: &Arc<UpstreamCell>) {
        let was_here = {
            let mut leaving = self.leaving.lock();
            let before = leaving.len();
            leaving.retain(|held| !Arc::ptr_eq(held, cell));
            leaving.len() < before
        };
        if was_here {
            self.shared.retire_upstream(Arc::clone(cell));
        }
    }

    /// The session is over: so is what was on its way out.
    pub(super) fn end_leaving(&self) {
        for cell in std::mem::take(&mut *self.leaving.lock()) {
            self.end(cell);
        }
    }

    pub(super) fn end(&self, cell: Arc<UpstreamCell>) {
        let fault = Fault::new(FaultKind::SessionEnded);
        cell.input(Input::Close {
            fault,
            end_session: true,
        });
        self.shared.retire_upstream(cell);
    }
}
