//! What is going to happen, by virtual time. Things of the same moment come in random order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use springline_proto::call::Moment;

struct Entry<T> {
    key: (Moment, u64, u64),
    item: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

/// The things to come.
pub(crate) struct Agenda<T> {
    heap: BinaryHeap<Reverse<Entry<T>>>,
    count: u64,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            count: 0,
        }
    }

    /// `tie` orders what happens at the same moment.
    pub(crate) fn put(&mut self, at: Moment, tie: u64, item: T) {
        self.count += 1;
        let key = (at, tie, self.count);
        self.heap.push(Reverse(Entry { key, item }));
    }

    pub(crate) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|Reverse(entry)| entry.key.0)
    }

    pub(crate) fn take(&mut self) -> Option<(Moment, T)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.key.0, entry.item))
    }
}
