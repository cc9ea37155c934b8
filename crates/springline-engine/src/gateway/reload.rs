//! A new configuration for a gateway that runs.
//!
//! Owns what becomes of every upstream whose entry changed, went or came back. What is the same
//! stays untouched: its process, its session, its calls in flight. Must not know files.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::json;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::session::Input as SessionInput;
use springline_proto::upstream::{Drain, Input, Upstream};

use super::Gateway;
use super::entry::EntrySpec;
use super::session::SessionCell;
use super::shared::fault_of;
use super::upstream::UpstreamCell;
use crate::clock;
use crate::config::{Config, Definition};

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
enum Difference {
    /// Not at all.
    None,
    /// The same server, with other knobs or written otherwise.
    Knobs,
    /// The same text and address, with other values of its credentials.
    Rotated,
    /// Another server.
    Other,
}

fn difference(old: &EntrySpec, new: &EntrySpec) -> Difference {
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
        *shared.entries.write() = entries;
        if is_other || are_lists_other {
            for session in shared.sessions() {
                session.reconfigure(are_lists_other);
            }
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

    /// Brings one upstream in line with its entry. May run on several threads at once.
    pub(super) fn reconcile(&self, server: &Arc<str>) {
        loop {
            let Some(cell) = self.upstreams.lock().get(server).cloned() else {
                return;
            };
            let wanted = self.shared.entries.read().get(server).cloned();
            let wanted = match (cell.spec(), wanted) {
                (None, None) => return,
                (Some(_), None) => {
                    let fault = Fault::new(FaultKind::ServerRemoved);
                    cell.input(Input::Drain(Drain::Refuse(fault)));
                    return;
                }
                (Some(held), Some(wanted)) if Arc::ptr_eq(&held, &wanted) => return,
                (Some(held), Some(wanted)) => {
                    let difference = difference(&held, &wanted);
                    if difference != Difference::Other && cell.revive() {
                        cell.adopt(wanted, difference == Difference::Rotated);
                        return;
                    }
                    wanted
                }
                (None, Some(wanted)) => wanted,
            };
            if self.replace(server, &cell, &wanted) {
                return;
            }
        }
    }

    /// Puts a new upstream in the place of `old`, unless that is not in its place any more. What was
    /// sent to `old` finishes there.
    fn replace(&self, server: &Arc<str>, old: &Arc<UpstreamCell>, spec: &Arc<EntrySpec>) -> bool {
        let owner = self.owner();
        let config = self
            .shared
            .upstream_config(server, Some(spec), owner.session);
        let fault = fault_of(Some(spec));
        let blank = Upstream::new(config.clone(), clock::moment());
        let new = self.shared.carry(server, Some(spec), owner, blank);
        // Calls that come before it knows what `old` leaves wait in its inbox.
        new.hold();
        {
            let mut upstreams = self.upstreams.lock();
            match upstreams.get_mut(server) {
                Some(held) if Arc::ptr_eq(held, old) => *held = Arc::clone(&new),
                _ => return false,
            }
            // Before the lock goes: what the client says to `old` must find it.
            self.leaving.lock().push(Arc::clone(old));
        }
        let legacy = old.hand_over();
        new.begin(config, legacy, fault);
        old.input(Input::Timer);
        if old.is_gone() {
            self.left(old);
        }
        let is_kept = self
            .upstreams
            .lock()
            .get(server)
            .is_some_and(|held| Arc::ptr_eq(held, &new));
        if !is_kept {
            // The session ended meanwhile, or another reload took this one's place.
            self.end(new);
        }
        true
    }

    /// What concerns calls that are with an upstream on its way out reaches that one too. Says
    /// whether it concerns nothing else.
    pub(super) fn to_leaving(&self, server: &str, input: &Input) -> bool {
        let (Input::Cancel { .. } | Input::Asking { .. } | Input::Reply { .. }) = input else {
            return false;
        };
        let leaving = self.leaving.lock().clone();
        for cell in leaving {
            if **cell.carrier().server() != *server {
                continue;
            }
            if let Input::Reply { generation, .. } = input {
                if cell.has(*generation) {
                    cell.input(input.clone());
                    return true;
                }
            } else {
                cell.input(input.clone());
            }
        }
        false
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

    fn end(&self, cell: Arc<UpstreamCell>) {
        let fault = Fault::new(FaultKind::SessionEnded);
        cell.input(Input::Close {
            fault,
            end_session: true,
        });
        self.shared.retire_upstream(cell);
    }
}
