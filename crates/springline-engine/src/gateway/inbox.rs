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

/// Past this many inputs at once the memory of the queue is given back when it is empty.
const KEPT: usize = 4;

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
    /// Leaves an input and takes the turn to drive. Says whether the caller drives now, and must
    /// call [`Inbox::exit`] after each turn; if not, somebody else takes the input along.
    pub(crate) fn enter(&self, input: T) -> bool {
        let mut queue = self.0.lock();
        queue.inputs.push_back(input);
        !std::mem::replace(&mut queue.driven, true)
    }

    /// Takes the turn to drive if inputs wait and nobody drives.
    pub(crate) fn enter_left(&self) -> bool {
        let mut queue = self.0.lock();
        !queue.inputs.is_empty() && !std::mem::replace(&mut queue.driven, true)
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
            if queue.inputs.capacity() > KEPT {
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

    /// Takes the turn to drive before anybody can: inputs wait until [`Self::release`] and the next
    /// input.
    pub(crate) fn hold(&self) {
        self.0.lock().driven = true;
    }

    /// Ends [`Self::hold`].
    pub(crate) fn release(&self) {
        self.0.lock().driven = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_drives_and_nothing_is_left_behind() {
        let inbox = Inbox::default();
        assert!(inbox.enter(1), "nobody drove");
        assert!(!inbox.enter(2), "the first one drives");
        assert_eq!(
            (inbox.take(), inbox.take(), inbox.take()),
            (Some(1), Some(2), None)
        );
        assert!(!inbox.enter(3));
        assert!(!inbox.exit(), "an input came meanwhile");
        assert_eq!(inbox.take(), Some(3));
        assert!(inbox.exit());
        assert!(!inbox.enter_left(), "nothing waits");
        inbox.put(4);
        assert!(inbox.enter_left());
        assert!(!inbox.enter(5), "it drives");
    }

    #[test]
    fn inputs_wait_while_it_is_held() {
        let inbox = Inbox::default();
        inbox.hold();
        assert!(!inbox.enter(1));
        inbox.release();
        assert!(inbox.enter(2));
        assert_eq!((inbox.take(), inbox.take()), (Some(1), Some(2)));
    }
}
