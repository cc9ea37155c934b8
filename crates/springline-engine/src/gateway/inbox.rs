//! A queue of inputs with one driver at a time.
//!
//! The driver is whoever finds the queue undriven. Others leave their input and go: the driver
//! looks again before it lets go, so nothing is left behind, and nobody waits.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Whether the caller drives now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Turn {
    /// It does, and must call [`Inbox::done`] afterwards.
    Mine,
    /// Nothing to do, or somebody else does it.
    None,
}

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
    pub(crate) fn put(&self, input: T) {
        self.0.lock().inputs.push_back(input);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().inputs.pop_front()
    }

    /// Asks for the turn to drive.
    pub(crate) fn turn(&self) -> Turn {
        let mut queue = self.0.lock();
        if queue.driven || queue.inputs.is_empty() {
            return Turn::None;
        }
        queue.driven = true;
        Turn::Mine
    }

    /// Whether nothing waits and nobody drives.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.0.lock();
        !queue.driven && queue.inputs.is_empty()
    }

    /// Takes the turn to drive before anybody can: inputs wait until [`Self::done`].
    pub(crate) fn hold(&self) {
        self.0.lock().driven = true;
    }

    /// Gives the turn back; ask for it again, since inputs may have come meanwhile.
    pub(crate) fn done(&self) {
        self.0.lock().driven = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_drives_and_nothing_is_left_behind() {
        let inbox = Inbox::default();
        assert_eq!(inbox.turn(), Turn::None);
        inbox.put(1);
        assert_eq!(inbox.turn(), Turn::Mine);
        inbox.put(2);
        assert_eq!(inbox.turn(), Turn::None);
        assert_eq!(
            (inbox.take(), inbox.take(), inbox.take()),
            (Some(1), Some(2), None)
        );
        inbox.put(3);
        inbox.done();
        assert_eq!(inbox.turn(), Turn::Mine);
    }
}
