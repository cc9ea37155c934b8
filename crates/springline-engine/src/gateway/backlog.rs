//! What all sessions together hold for clients that may come back (`redeliveryTotalBytes`).
//!
//! Owns the sum, and which session drops events when it is too large: the one that holds most, until
//! all fits again with some room to spare. A session that holds none is unknown here, so that calls
//! without events cost nothing. It must not know which events go: that is its machine's to say.

use std::collections::{BTreeSet, HashMap};
use std::sync::Weak;

use parking_lot::Mutex;
use springline_proto::call::SessionKey;
use springline_proto::session::Input;

use super::session::SessionCell;

/// This part of the bound is made free beside what is needed, so that not each event that comes has
/// another dropped.
const SPARE_PART: usize = 16;

/// A session that can be told to drop events.
pub(crate) trait Holder {
    /// It shall hold no more than `most` bytes of events.
    fn shed(&self, most: usize);
}

impl Holder for SessionCell {
    fn shed(&self, most: usize) {
        self.input(Input::Shed { most });
    }
}

/// The events of all sessions.
pub(crate) struct Backlog<H = SessionCell> {
    /// Held for a look-up or a change; never while a session is told.
    sums: Mutex<Sums<H>>,
}

struct Sums<H> {
    max: usize,
    /// Bytes of all.
    total: usize,
    holders: HashMap<SessionKey, (usize, Weak<H>)>,
    by_size: BTreeSet<(usize, SessionKey)>,
    /// Somebody tells sessions to drop events, and goes on until all fits.
    is_shedding: bool,
}

impl<H: Holder> Backlog<H> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            sums: Mutex::new(Sums {
                max,
                total: 0,
                holders: HashMap::new(),
                by_size: BTreeSet::new(),
                is_shedding: false,
            }),
        }
    }

    /// Another bound from now on.
    pub(crate) fn set_max(&self, max: usize) {
        self.sums.lock().max = max;
        self.shed();
    }

    /// Bytes that are held, as far as sessions have said.
    pub(crate) fn bytes(&self) -> usize {
        self.sums.lock().total
    }

    /// A session holds so many bytes now.
    pub(crate) fn note(&self, session: SessionKey, holder: &Weak<H>, bytes: usize) {
        let mut sums = self.sums.lock();
        sums.set(session, holder, bytes);
        if sums.total > sums.max {
            drop(sums);
            self.shed();
        }
    }

    /// Has sessions drop events until all fits. What a session drops meanwhile ends up in
    /// [`Self::note`] on this thread, or on the one that drives it.
    fn shed(&self) {
        let first = self.sums.lock().begin();
        let mut next = first;
        while let Some((holder, most)) = next {
            if let Some(holder) = holder.upgrade() {
                holder.shed(most);
            }
            next = self.sums.lock().next();
        }
    }
}

impl<H> Sums<H> {
    fn set(&mut self, session: SessionKey, holder: &Weak<H>, bytes: usize) {
        let before = if bytes == 0 {
            self.holders.remove(&session)
        } else {
            self.holders.insert(session, (bytes, Weak::clone(holder)))
        };
        let before = before.map_or(0, |(before, _)| before);
        self.by_size.remove(&(before, session));
        if bytes > 0 {
            self.by_size.insert((bytes, session));
        }
        self.total = self.total - before + bytes;
    }

    /// The first session to drop events; none if all fits, or somebody is at it already.
    fn begin(&mut self) -> Option<(Weak<H>, usize)> {
        if self.is_shedding {
            return None;
        }
        self.is_shedding = true;
        self.next()
    }

    /// The next one, and how much it may hold. It counts with that from now on, and says itself if it
    /// becomes another number.
    fn next(&mut self) -> Option<(Weak<H>, usize)> {
        let excess = self.total.saturating_sub(self.max);
        let largest = self.by_size.last().copied().filter(|_| excess > 0);
        let Some((bytes, session)) = largest else {
            self.is_shedding = false;
            return None;
        };
        let (_, holder) = self.holders.get(&session)?;
        let holder = Weak::clone(holder);
        let most = bytes.saturating_sub(excess + self.max / SPARE_PART);
        self.set(session, &holder, most);
        Some((holder, most))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A session that drops what it is told to, and notes what that was.
    struct Fake {
        key: SessionKey,
        backlog: Arc<Backlog<Fake>>,
        told: Mutex<Vec<usize>>,
        this: Weak<Fake>,
    }

    impl Holder for Fake {
        fn shed(&self, most: usize) {
            self.told.lock().push(most);
            // An event is dropped whole.
            self.backlog.note(self.key, &self.this, most / 10 * 10);
        }
    }

    impl Fake {
        fn new(key: u64, backlog: &Arc<Backlog<Fake>>) -> Arc<Self> {
            Arc::new_cyclic(|this| Self {
                key: SessionKey(key),
                backlog: Arc::clone(backlog),
                told: Mutex::default(),
                this: this.clone(),
            })
        }

        fn holds(&self, bytes: usize) {
            self.backlog.note(self.key, &self.this, bytes);
        }

        fn told(&self) -> Vec<usize> {
            std::mem::take(&mut *self.told.lock())
        }
    }

    #[test]
    fn the_session_that_holds_most_drops_what_is_too_much_and_some_more() {
        let backlog = Arc::new(Backlog::new(160));
        let [one, two, three] = [1, 2, 3].map(|key| Fake::new(key, &backlog));
        one.holds(60);
        two.holds(90);
        three.holds(10);
        assert_eq!(backlog.bytes(), 160);
        assert_eq!(one.told().len() + two.told().len(), 0);
        three.holds(15);
        assert_eq!(
            (one.told(), two.told(), three.told()),
            (vec![], vec![75], vec![])
        );
        assert_eq!(backlog.bytes(), 60 + 70 + 15);
        // Its own event is the one that is too much.
        two.holds(200);
        assert_eq!(two.told(), [200 - 115 - 10]);
        // Several have to, if one does not hold enough.
        backlog.set_max(32);
        assert!(backlog.bytes() <= 32, "{}", backlog.bytes());
        assert_eq!(one.told().len(), 1);
        assert_eq!(two.told().len(), 1);
        assert!(three.told().is_empty());
    }

    #[test]
    fn a_session_that_is_over_or_holds_nothing_is_forgotten() {
        let backlog = Arc::new(Backlog::new(100));
        let one = Fake::new(1, &backlog);
        let two = Fake::new(2, &backlog);
        one.holds(50);
        two.holds(50);
        one.holds(0);
        assert_eq!(backlog.bytes(), 50);
        // One that went without a word is no reason to go on for ever.
        drop(two);
        one.holds(60);
        assert!(one.told().is_empty() || backlog.bytes() <= 100);
        one.holds(0);
        assert!(backlog.bytes() <= 50);
        assert!(!backlog.sums.lock().is_shedding);
    }
}
