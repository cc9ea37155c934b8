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
    /// Takes the turn to drive, unless somebody else drives, who then takes these inputs along. Inputs
    /// that are next stay where they are: they need not move through the queue. The caller must call
    /// [`Inbox::exit`] after each turn. Without inputs there is no turn if none wait either.
    pub(crate) fn enter(&self, own: &mut [Option<T>]) -> bool {
        let mut queue = self.0.lock();
        let is_driven = queue.driven;
        if is_driven || !queue.inputs.is_empty() {
            queue.inputs.extend(own.iter_mut().filter_map(Option::take));
            queue.driven = true;
            return !is_driven;
        }
        queue.driven = !own.is_empty();
        queue.driven
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

    /// Whether the turn was taken, and the inputs that are next.
    fn enter<const N: usize>(inbox: &Inbox<u8>, own: [u8; N]) -> (bool, [Option<u8>; N]) {
        let mut own = own.map(Some);
        (inbox.enter(&mut own), own)
    }

    #[test]
    fn only_one_drives_and_nothing_is_left_behind() {
        let inbox = Inbox::default();
        assert_eq!(enter(&inbox, [1]), (true, [Some(1)]), "nobody drove");
        assert_eq!(enter(&inbox, [2]), (false, [None]), "the first one drives");
        assert_eq!((inbox.take(), inbox.take()), (Some(2), None));
        assert_eq!(enter(&inbox, [3]), (false, [None]));
        assert!(!inbox.exit(), "an input came meanwhile");
        assert_eq!(inbox.take(), Some(3));
        assert!(inbox.exit());
        assert_eq!(enter(&inbox, []), (false, []), "nothing waits");
        inbox.put(4);
        assert_eq!(enter(&inbox, []), (true, []));
        assert_eq!(enter(&inbox, [5]), (false, [None]), "it drives");
        assert_eq!((inbox.take(), inbox.take()), (Some(4), Some(5)));
    }

    #[test]
    fn two_inputs_keep_their_order_behind_what_waits() {
        let inbox = Inbox::default();
        assert_eq!(enter(&inbox, [1, 2]), (true, [Some(1), Some(2)]));
        assert_eq!(enter(&inbox, [3, 4]), (false, [None, None]));
        assert_eq!((inbox.take(), inbox.take()), (Some(3), Some(4)));
        assert!(inbox.exit());
        inbox.put(5);
        assert_eq!(enter(&inbox, [6, 7]), (true, [None, None]));
        let next = [inbox.take(), inbox.take(), inbox.take()];
        assert_eq!(next, [Some(5), Some(6), Some(7)], "the oldest is first");
        assert!(inbox.exit());
    }
}
