//! Upstreams that are at rest while the configuration changes.
//!
//! Owns what becomes of sessions with servers that nobody used since the start of the gateway: they
//! are ended with the configuration under which they were opened, like those in use. Runs beside the
//! reload, which waits for none of it. Must not know what a record holds.

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::upstream::{Input, Record, Upstream};
use springline_store::SessionDigest;
use tokio::sync::Semaphore;

use super::claim::GLOBAL;
use super::entry::{EntrySpec, LAST_WORDS_MAX};
use super::home::Home;
use super::reload::{Difference, difference};
use super::shared::{Owner, Shared};
use crate::{clock, spawn};

type Entries = IndexMap<Arc<str>, Arc<EntrySpec>>;

/// DELETEs of stored sessions that are under way at once.
const ENDS_MAX: usize = 16;

/// What a reload did to one kind of records.
struct Change {
    old: Arc<EntrySpec>,
    /// Under which definition they go on, if they do.
    goes_on: Option<Arc<EntrySpec>>,
}

impl Shared {
    /// Ends the stored sessions whose entry is gone or changed, and moves those whose credentials
    /// were rotated. Returns at once.
    pub(super) fn settle_stored(self: &Arc<Self>, old: &Entries, new: &Entries) {
        if !self.rest.is_durable {
            return;
        }
        let (old, new) = (by_record(old), by_record(new));
        let changes: Vec<Change> = old
            .into_iter()
            .filter_map(|(place, old)| {
                let new = new.get(&place);
                let difference = new.map_or(Difference::Other, |new| difference(&old, new));
                let goes_on = match difference {
                    Difference::None | Difference::Knobs => return None,
                    Difference::Rotated => new.cloned(),
                    Difference::Other => None,
                };
                Some(Change { old, goes_on })
            })
            .collect();
        if changes.is_empty() {
            return;
        }
        let in_use = self.in_use();
        let shared = Arc::clone(self);
        // Blocks on the disk, and nobody waits for it.
        spawn::blocking(move || {
            let room = Arc::new(Semaphore::new(ENDS_MAX));
            for (owner, server) in shared.rest.stored_upstreams() {
                let change = changes
                    .iter()
                    .find(|change| place_of(&change.old) == (owner == GLOBAL, Arc::from(&*server)));
                if let Some(change) = change
                    && !in_use.contains(&(owner, Arc::from(&*server)))
                {
                    shared.settle_one(owner, change, &room);
                }
            }
        });
    }

    /// The records whose upstreams are live: what becomes of them is theirs.
    fn in_use(&self) -> HashSet<(SessionDigest, Arc<str>)> {
        let mut in_use: HashSet<_> = self
            .globals()
            .iter()
            .map(|global| (GLOBAL, Arc::clone(global.name())))
            .collect();
        for session in self.sessions() {
            for cell in session.upstreams() {
                in_use.insert((session.rest, Arc::clone(cell.carrier().server())));
            }
        }
        in_use
    }

    fn settle_one(self: &Arc<Self>, owner: SessionDigest, change: &Change, room: &Arc<Semaphore>) {
        let old = &change.old;
        let (rest, events) = (&self.rest, &self.events);
        let record = {
            // No other reload meanwhile: the entry cannot come back between look and deed.
            let _turn = self.reload.lock();
            if let Some(new) = &change.goes_on {
                rest.rotate(owner, &old.name, &old.identity, &new.identity, events);
                return;
            }
            let present = self.present(owner == GLOBAL, &old.name);
            let is_same = |present: &EntrySpec| difference(old, present) != Difference::Other;
            if present.as_deref().is_some_and(is_same) {
                return;
            }
            let heir = present.as_ref().map(|present| &present.identity);
            rest.take_session(owner, &old.name, &old.identity, heir, events)
        };
        if let Some(record) = record {
            self.end_stored(old, record, room);
        }
    }

    /// The entry of such records as it is now.
    fn present(&self, is_global: bool, name: &str) -> Option<Arc<EntrySpec>> {
        if is_global {
            return self.global_spec(name).filter(|spec| spec.is_global());
        }
        let spec = self.entries.read().get(name).cloned();
        spec.filter(|spec| !spec.is_global())
    }

    /// One DELETE, with the configuration that opened the session.
    fn end_stored(self: &Arc<Self>, spec: &Arc<EntrySpec>, record: Record, room: &Arc<Semaphore>) {
        let owner = Owner {
            session: springline_proto::call::SessionKey::NONE,
            rest: None,
            home: Home::Nobody,
        };
        let config = self.upstream_config(&spec.name, Some(spec), owner.session);
        let machine = Upstream::resume(config, record, clock::moment());
        let cell = self.carry(&spec.name, Some(spec), owner, machine.into());
        let room = Arc::clone(room);
        spawn::named("stored session", async move {
            // Never closed.
            let Ok(_room) = room.acquire_owned().await else {
                return;
            };
            cell.open_resumed();
            cell.input(Input::Close {
                fault: Fault::new(FaultKind::ServerRemoved),
                end_session: true,
            });
            cell.shut_down(LAST_WORDS_MAX).await;
        });
    }
}

/// Whether all sessions share it, and the name under which its records stand.
fn place_of(spec: &EntrySpec) -> (bool, Arc<str>) {
    (spec.is_global(), Arc::clone(&spec.name))
}

/// The entries by where their records stand.
fn by_record(entries: &Entries) -> IndexMap<(bool, Arc<str>), Arc<EntrySpec>> {
    entries
        .values()
        .filter(|spec| spec.definition.is_ok())
        .map(|spec| {
            let spec = if spec.is_global() {
                spec.of_instance()
            } else {
                Arc::clone(spec)
            };
            (place_of(&spec), spec)
        })
        .collect()
}
