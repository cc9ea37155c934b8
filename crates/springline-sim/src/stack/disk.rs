//! A disk that takes no writes for a while.
//!
//! Owns what is on it meanwhile: what the gateway would have written is with the process alone, until the
//! disk is well again and has it all, or the process is gone. Must not know who reads what is at rest.

use std::collections::BTreeMap;

use bytes::Bytes;
use springline_proto::call::{CallKey, ExchangeId};
use springline_proto::upstream::Input;

use super::crash::Held;
use super::{At, Who};
use crate::world::{Event, World};

/// What is on a disk that takes no writes; the rest of the world knows what should be.
#[derive(Debug, Default)]
pub(super) struct Disk {
    journal: Option<BTreeMap<CallKey, Held>>,
    records: Option<Records>,
    /// The call that may not leave, whose request comes next.
    withheld: bool,
    /// Requests that were withheld of which the machine has not heard yet, by seat.
    untold: BTreeMap<usize, usize>,
}

#[derive(Debug)]
struct Records {
    upstreams: At<(Who, Bytes)>,
    /// By desk.
    sessions: Vec<Option<Bytes>>,
}

impl World {
    /// From now on nothing goes to rest of these.
    pub(super) fn disk_fails(&mut self, journal: bool, records: bool) {
        if self.stack.is_down {
            return;
        }
        let stack = &mut self.stack;
        if journal && stack.disk.journal.is_none() {
            stack.disk.journal = Some(stack.journal.clone());
        }
        if records && stack.disk.records.is_none() {
            stack.disk.records = Some(Records {
                upstreams: stack.records.clone(),
                sessions: stack.desks.iter().map(|desk| desk.record.clone()).collect(),
            });
        }
    }

    /// All that waited is written.
    pub(super) fn disk_heals(&mut self) {
        self.stack.disk.journal = None;
        self.stack.disk.records = None;
    }

    /// Whether a call may leave that is to be noted as sent: after a crash it must not count as never sent.
    pub(super) fn may_leave(&mut self, key: CallKey) -> bool {
        let disk = &mut self.stack.disk;
        let journal = disk.journal.as_ref();
        let is_unsent = matches!(
            journal.and_then(|held| held.get(&key)),
            Some(Held::Accepted)
        );
        disk.withheld = is_unsent;
        !is_unsent
    }

    /// Whether this request is withheld; the machine hears of it.
    pub(crate) fn withholds(&mut self, at: usize, exchange: ExchangeId) -> bool {
        let is_withheld = std::mem::take(&mut self.stack.disk.withheld);
        if is_withheld {
            *self.stack.disk.untold.entry(at).or_default() += 1;
            let cause = "no space".into();
            let input = Box::new(Input::Withheld { exchange, cause });
            self.put(self.now, Event::Input(at, input));
        }
        is_withheld
    }

    /// The machine hears of one of them.
    pub(crate) fn told_withheld(&mut self, at: usize) {
        if let Some(count) = self.stack.disk.untold.get_mut(&at) {
            *count = count.saturating_sub(1);
        }
    }

    /// How many it has not heard of.
    pub(crate) fn withheld_len(&self, at: usize) -> usize {
        self.stack.disk.untold.get(&at).copied().unwrap_or(0)
    }

    /// The process is gone, and with it all that waited.
    pub(super) fn lose_waiting(&mut self) {
        let stack = &mut self.stack;
        stack.disk.withheld = false;
        if let Some(journal) = stack.disk.journal.take() {
            for call in &mut stack.calls {
                let session = stack.desks[call.desk].key;
                let key = call.number.map(|number| CallKey { session, number });
                // It may hear less than it heard once.
                call.doubted |= key.is_some_and(|key| {
                    let kind = |held: Option<&Held>| held.map(std::mem::discriminant);
                    kind(journal.get(&key)) != kind(stack.journal.get(&key))
                });
            }
            stack.journal = journal;
        }
        let Some(records) = stack.disk.records.take() else {
            return;
        };
        stack.store_failed = true;
        stack.records = records.upstreams;
        for (at, desk) in stack.desks.iter_mut().enumerate() {
            desk.record = records.sessions.get(at).cloned().flatten();
            // Its upstreams may be as they were, too.
            desk.stale = true;
        }
    }
}
