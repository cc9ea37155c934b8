//! Whether what must outlive the process can be written.
//!
//! Owns since when it cannot, and that the operator hears of it, once when it begins and once when it is
//! over. Must not know what is written.

use std::time::SystemTime;

use parking_lot::Mutex;
use serde_json::Map;
use springline_store::{Reason, Turn};

use crate::clock;
use crate::event::Events;

/// Something that cannot be written to the state folder.
#[derive(Clone, Debug)]
pub struct Unwritable {
    /// `records` or `journal`.
    pub what: &'static str,
    /// Since when.
    pub since: SystemTime,
    /// What failed then.
    pub cause: String,
}

/// What cannot be written now.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Held for a look or a change.
    held: Mutex<Vec<Unwritable>>,
}

impl Health {
    pub(super) fn now(&self) -> Vec<Unwritable> {
        self.held.lock().clone()
    }

    pub(super) fn turn(&self, what: &'static str, turn: Turn, events: &Events) {
        let mut facts = Map::new();
        facts.insert("what".to_owned(), what.into());
        match turn {
            Turn::Failed { cause } => {
                let (since, cause) = (clock::wall(), cause.to_string());
                // Nothing outlives the process from now on: the operator must hear of it where logs are
                // read.
                tracing::error!(
                    what,
                    cause,
                    "what must outlive the gateway cannot be written; tried again each second"
                );
                facts.insert("cause".to_owned(), cause.as_str().into());
                self.held.lock().push(Unwritable { what, since, cause });
                events.record("store.failed", facts);
            }
            Turn::Recovered { findings } => {
                let is_it = |held: &Unwritable| held.what == what;
                let since = self
                    .held
                    .lock()
                    .iter()
                    .find(|held| is_it(held))
                    .map(|held| held.since);
                let down = since.and_then(|since| clock::wall().duration_since(since).ok());
                let down_ms = down.and_then(|down| u64::try_from(down.as_millis()).ok());
                // The write that failed may have been cut short.
                let is_torn = |reason: &Reason| matches!(reason, Reason::Torn { .. });
                for finding in findings.iter().filter(|found| !is_torn(&found.reason)) {
                    tracing::warn!("state folder: {finding}");
                }
                tracing::warn!(
                    what,
                    down_ms,
                    "what must outlive the gateway is written again"
                );
                facts.insert("downMs".to_owned(), down_ms.into());
                events.record("store.recovered", facts);
                // Last of all: who finds that it is well again finds the event too. It may have failed anew by
                // now, which comes after this one.
                let mut held = self.held.lock();
                if let Some(at) = held.iter().position(is_it) {
                    held.remove(at);
                }
            }
        }
    }
}
