//! Named gates: a call waits at one until a test releases it.
//!
//! Owns all waiting on purpose, so that no test needs a sleep. Must not know
//! what waits.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Gate {
    arrived: u64,
    released: u64,
    open: bool,
}

/// All gates of one server, by name.
#[derive(Debug, Default)]
pub struct Gates {
    gates: Mutex<BTreeMap<String, Gate>>,
    changed: Notify,
}

impl Gates {
    /// Waits at a gate: the n-th arrival passes after the n-th release.
    ///
    /// Dropping the future keeps the arrival counted.
    pub async fn pass(&self, name: &str) {
        let ticket = {
            let mut gates = self.gates.lock();
            let gate = gates.entry(name.to_owned()).or_default();
            gate.arrived += 1;
            gate.arrived
        };
        self.changed.notify_waiters();
        self.wait(|gates| {
            gates
                .get(name)
                .is_some_and(|gate| gate.open || gate.released >= ticket)
        })
        .await;
    }

    /// Lets one arrival pass, now or when it comes.
    pub fn release(&self, name: &str) {
        self.gates
            .lock()
            .entry(name.to_owned())
            .or_default()
            .released += 1;
        self.changed.notify_waiters();
    }

    /// Lets every present and later arrival pass.
    pub fn open(&self, name: &str) {
        self.gates.lock().entry(name.to_owned()).or_default().open = true;
        self.changed.notify_waiters();
    }

    /// Waits until `count` calls have come to the gate.
    pub async fn arrived(&self, name: &str, count: u64) {
        self.wait(|gates| gates.get(name).is_some_and(|gate| gate.arrived >= count))
            .await;
    }

    async fn wait(&self, done: impl Fn(&BTreeMap<String, Gate>) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the check, so that no change falls between.
            changed.as_mut().enable();
            if done(&self.gates.lock()) {
                return;
            }
            changed.await;
        }
    }
}
