//! One task that wakes the machines at their deadlines.
//!
//! A machine is armed only for a deadline that is earlier than the one it is armed for already, so
//! that a call, which moves its deadline back, costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use springline_proto::call::Moment;
use tokio::sync::Notify;

use crate::clock;

/// Something that wants to be woken.
pub(crate) trait Wake: Send + Sync + 'static {
    /// The time has come. Must not block.
    fn wake(&self, now: Moment);
}

struct Entry {
    at: Moment,
    whom: Weak<dyn Wake>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// The armed deadlines. Bounded by the machines: each is in here at most once, plus entries that
/// an earlier deadline overtook, which leave at their time.
#[derive(Default)]
pub(crate) struct Timer {
    /// Held for a push or a pop; never across an await.
    heap: Mutex<BinaryHeap<Reverse<Entry>>>,
    earlier: Notify,
}

impl Timer {
    pub(crate) fn arm(&self, at: Moment, whom: Weak<dyn Wake>) {
        let mut heap = self.heap.lock();
        let first = heap.peek().is_none_or(|Reverse(entry)| at < entry.at);
        heap.push(Reverse(Entry { at, whom }));
        drop(heap);
        if first {
            self.earlier.notify_one();
        }
    }

    fn due(&self, now: Moment) -> Result<Weak<dyn Wake>, Option<Moment>> {
        let mut heap = self.heap.lock();
        let Some(Reverse(first)) = heap.peek() else {
            return Err(None);
        };
        if first.at > now {
            return Err(Some(first.at));
        }
        heap.pop().map(|Reverse(entry)| entry.whom).ok_or(None)
    }

    /// Wakes until the runtime stops. One task runs this.
    pub(crate) async fn run(self: Arc<Self>) {
        loop {
            let now = clock::moment();
            match self.due(now) {
                Ok(whom) => {
                    if let Some(whom) = whom.upgrade() {
                        whom.wake(now);
                    }
                }
                Err(Some(at)) => {
                    let pause = tokio::time::sleep(at.since(now));
                    tokio::select! {
                        () = pause => {}
                        () = self.earlier.notified() => {}
                    }
                }
                Err(None) => self.earlier.notified().await,
            }
        }
    }
}
