//! A queue of inputs with one driver at a time.
//!
//! The driver is whoever finds the queue undriven. Others leave their input and go: the driver
//! looks again before it lets go, so nothing is left behind, and nobody waits.

use std::collections::VecDeque;

use parking_lot::Mutex;

struct Queue<T> {
    inputs: VecDeque<T>,
    driven: bool,
}

/// The queue. Held for a push or a pop; never across a call of anything else.
pub(crate) struct Inbox<T>(Mutex<Queue<T>>);

impl<T> Default for Inbox<T> {
    fn default() -> Self {
        Self(Mutex::new(Queue {
            inputs: VecDeque::new(),
            driven: false,
        }))
    }
}

impl<T> Inbox<T> {
    /// Takes the turn to drive and gives the first input, which is mostly the caller's own; the
    /// caller must call [`Inbox::exit`] after each turn. Nothing if somebody else drives: they take
    /// the input along.
    pub(crate) fn enter(&self, input: T) -> Option<T> {
        let mut queue = self.0.lock();
        if std::mem::replace(&mut queue.driven, true) {
            queue.inputs.push_back(input);
            return None;
        }
        if queue.inputs.is_empty() {
            return Some(input);
        }
        queue.inputs.push_back(input);
        queue.inputs.pop_front()
    }

    /// The same for two inputs, of which the second follows at once. It comes back beside the first
    /// one only if it is next in turn.
    pub(crate) fn enter_both(&self, first: T, then: T) -> Option<(T, Option<T>)> {
        let mut queue = self.0.lock();
        let is_driven = std::mem::replace(&mut queue.driven, true);
        if !is_driven && queue.inputs.is_empty() {
            return Some((first, Some(then)));
        }
        queue.inputs.push_back(first);
        queue.inputs.push_back(then);
        if is_driven {
            return None;
        }
        queue.inputs.pop_front().map(|first| (first, None))
    }

    /// Takes the turn to drive if inputs wait and nobody drives, and gives the first.
    pub(crate) fn enter_left(&self) -> Option<T> {
        let mut queue = self.0.lock();
        if queue.driven {
            return None;
        }
        let first = queue.inputs.pop_front()?;
        queue.driven = true;
        Some(first)
    }

    /// Leaves an input.
    pub(crate) fn put(&self, input: T) {
        self.0.lock().inputs.push_back(input);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().inputs.pop_front()
    }

    /// Gives the turn back, unless inputs wait: then the caller goes on.
    pub(crate) fn exit(&self) -> bool {
        let mut queue = self.0.lock();
        let done = queue.inputs.is_empty();
        if done {
            queue.driven = false;
            if queue.inputs.capacity() > 0 {
                queue.inputs = VecDeque::new();
            }
        }
        done
    }

    /// Whether nothing waits and nobody drives.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.0.lock();
        !queue.driven && queue.inputs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_drives_and_nothing_is_left_behind() {
        let inbox = Inbox::default();
        assert_eq!(inbox.enter(1), Some(1), "nobody drove");
        assert_eq!(inbox.enter(2), None, "the first one drives");
        assert_eq!((inbox.take(), inbox.take()), (Some(2), None));
        assert_eq!(inbox.enter(3), None);
        assert!(!inbox.exit(), "an input came meanwhile");
        assert_eq!(inbox.take(), Some(3));
        assert!(inbox.exit());
        assert_eq!(inbox.enter_left(), None, "nothing waits");
        inbox.put(4);
        assert_eq!(inbox.enter_left(), Some(4));
        assert_eq!(inbox.enter(5), None, "it drives");
    }

    #[test]
    fn two_inputs_keep_their_order_behind_what_waits() {
        let inbox = Inbox::default();
        assert_eq!(inbox.enter_both(1, 2), Some((1, Some(2))), "nobody drove");
        assert_eq!(inbox.enter_both(3, 4), None, "the first one drives");
        assert_eq!((inbox.take(), inbox.take()), (Some(3), Some(4)));
        assert!(inbox.exit());
        inbox.put(5);
        assert_eq!(
            inbox.enter_both(6, 7),
            Some((5, None)),
            "the oldest is first"
        );
        assert_eq!((inbox.take(), inbox.take()), (Some(6), Some(7)));
        assert!(inbox.exit());
    }
}
