//! A store and a journal that are opened again by themselves after a write failed.
//!
//! Owns what is to be written while nothing can be: kept in memory, told apart from what is on the disk,
//! and written once the folder takes writes again. Until then nobody is told that it is durable. Must not
//! know what fails, nor what a record or an entry means.

mod journal;
mod store;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::folder::Finding;

pub use self::journal::{Noted, SteadyJournal};
pub use self::store::SteadyStore;

/// Between two attempts to open what failed again.
pub(crate) const MEND_PAUSE: Duration = Duration::from_secs(1);

/// What became of a store or a journal.
#[derive(Clone, Debug)]
pub enum Turn {
    /// A write failed. Nothing is durable from now on.
    Failed {
        /// What failed.
        cause: Arc<str>,
    },
    /// It was opened again, and holds all that was to be written meanwhile.
    Recovered {
        /// What was found amiss on the disk.
        findings: Vec<Finding>,
    },
}

type Listener = Box<dyn Fn(Turn) + Send + Sync>;

/// Who hears of turns; at most one.
#[derive(Default)]
struct Ear(Mutex<Option<Arc<Listener>>>);

impl Ear {
    fn set(&self, listener: Listener) {
        *self.0.lock() = Some(Arc::new(listener));
    }

    /// The lock of what is listened to must not be held for writing.
    fn tell(&self, turn: Turn) {
        let listener = self.0.lock().clone();
        if let Some(listener) = listener {
            listener(turn);
        }
    }
}

/// How an attempt went.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Attempt {
    /// There is no more to do.
    Over,
    Again,
}

/// Attempts something every `pause` until it is over, on a thread of its own.
fn attempt_until_over(
    name: &str,
    pause: Duration,
    mut attempt: impl FnMut() -> Attempt + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        loop {
            // Woken early it only attempts early.
            thread::park_timeout(pause);
            if attempt() == Attempt::Over {
                return;
            }
        }
    };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map(drop)
}
