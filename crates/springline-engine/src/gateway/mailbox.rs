//! The parts of one answer on their way to a client.
//!
//! A mailbox stands between a machine, which never waits, and a connection, which may be slow. Its
//! bound is in bytes; past it the connection is cut, and the client resumes or asks again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use springline_proto::session::Part;

/// Bytes that may wait for one connection, besides one part that is larger by itself. As large as
/// the default cap on bodies: a client that is further behind does not read.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Parts that may wait for one connection.
const WAITING_PARTS_MAX: usize = 10_000;

/// What is queued for one connection.
#[derive(Debug, Default)]
struct Queue {
    /// The oldest part: most answers have one, and need no room elsewhere.
    first: Option<Part>,
    /// What comes after it; empty if there is none.
    later: VecDeque<Part>,
    bytes: usize,
    /// Nothing comes after what is queued.
    closed: bool,
    /// Who waits for a part.
    waiting: Option<Waker>,
    /// It ended early: what was queued found no reader.
    cut: bool,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Put {
    /// It waits for the connection.
    Taken,
    /// It found no room: the connection does not read, and ends here.
    Cut,
    /// The connection had ended before.
    Closed,
    /// No connection waits for it.
    Astray,
}

/// The machine's end and the connection's end of one answer.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Held by the machine's driver while it puts, and by the connection while it takes; never
    /// across an await.
    queue: Mutex<Queue>,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Queues a part. Says whether the connection can go on; if not, it is closed.
    pub(crate) fn put(&self, part: Part) -> Put {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Put::Closed;
        }
        let bytes = size_of_part(&part);
        let full = queue.first.is_some()
            && (queue.bytes.saturating_add(bytes) > WAITING_BYTES_MAX
                || queue.later.len() >= WAITING_PARTS_MAX);
        if full {
            queue.first = None;
            queue.later.clear();
            queue.closed = true;
            queue.cut = true;
        } else {
            queue.bytes += bytes;
            queue.closed = ends(&part);
            if queue.first.is_none() {
                queue.first = Some(part);
            } else {
                queue.later.push_back(part);
            }
        }
        let waiting = queue.waiting.take();
        drop(queue);
        wake(waiting);
        if full { Put::Cut } else { Put::Taken }
    }

    /// Nothing more comes. Says whether that was so before: the machine holds nothing for this
    /// connection.
    pub(crate) fn close(&self) -> bool {
        let (was_closed, waiting) = {
            let mut queue = self.queue.lock();
            let was_closed = std::mem::replace(&mut queue.closed, true);
            (was_closed, queue.waiting.take())
        };
        wake(waiting);
        was_closed
    }

    /// Wakes nobody until the next [`Self::poll_take`]: for the one who puts and takes in one go.
    pub(crate) fn unwatch(&self) {
        self.queue.lock().waiting = None;
    }

    /// The next part; `None` after the last. A part is taken only as it is returned.
    pub(crate) fn poll_take(&self, cx: &Context<'_>) -> Poll<Option<Part>> {
        let mut queue = self.queue.lock();
        if let Some(part) = queue.first.take() {
            queue.first = queue.later.pop_front();
            queue.bytes = queue.bytes.saturating_sub(size_of_part(&part));
            return Poll::Ready(Some(part));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the connection was cut because it did not read.
    pub(crate) fn is_cut(&self) -> bool {
        self.queue.lock().cut
    }
}

fn wake(waiting: Option<Waker>) {
    if let Some(waiting) = waiting {
        waiting.wake();
    }
}

/// Whether nothing comes after this part.
pub(crate) fn ends(part: &Part) -> bool {
    match part {
        Part::Accepted | Part::Json(_) | Part::Refuse { .. } | Part::Cut | Part::End => true,
        Part::Open { .. }
        | Part::Begin
        | Part::Event { .. }
        | Part::OpenEvent
        | Part::Bytes(_)
        | Part::Close { .. }
        | Part::Welcome(_)
        | Part::Frame { .. } => false,
    }
}

fn size_of_part(part: &Part) -> usize {
    match part {
        Part::Json(body) => body.len(),
        Part::Event { data, .. } | Part::Frame { data, .. } => data.len(),
        Part::Refuse { body, .. } => body.len(),
        Part::Bytes(bytes) => bytes.len(),
        Part::Accepted
        | Part::Open { .. }
        | Part::Begin
        | Part::OpenEvent
        | Part::Close { .. }
        | Part::Cut
        | Part::Welcome(_)
        | Part::End => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;

    use super::*;

    async fn take(mailbox: &Mailbox) -> Option<Part> {
        poll_fn(|cx| mailbox.poll_take(cx)).await
    }

    fn event(bytes: usize) -> Part {
        let data = Bytes::from(vec![b' '; bytes]).into();
        Part::Event {
            id: None,
            retry: None,
            data,
        }
    }

    #[tokio::test]
    async fn parts_come_in_order_and_end_after_the_last() {
        let mailbox = Mailbox::new();
        assert_eq!(mailbox.put(Part::Begin), Put::Taken);
        assert_eq!(mailbox.put(event(3)), Put::Taken);
        assert_eq!(mailbox.put(Part::End), Put::Taken);
        assert!(matches!(take(&mailbox).await, Some(Part::Begin)));
        assert!(matches!(take(&mailbox).await, Some(Part::Event { .. })));
        assert!(matches!(take(&mailbox).await, Some(Part::End)));
        assert!(take(&mailbox).await.is_none());
    }

    #[tokio::test]
    async fn a_connection_that_does_not_read_is_cut_at_the_bound() {
        let mailbox = Mailbox::new();
        assert_eq!(mailbox.put(event(WAITING_BYTES_MAX)), Put::Taken);
        assert_eq!(mailbox.put(event(1)), Put::Cut);
        assert_eq!(mailbox.put(event(1)), Put::Closed, "it is cut once");
        assert!(take(&mailbox).await.is_none());
        assert!(mailbox.is_cut());
    }

    #[tokio::test]
    async fn one_part_larger_than_the_bound_still_passes() {
        let mailbox = Mailbox::new();
        assert_eq!(mailbox.put(event(WAITING_BYTES_MAX + 1)), Put::Taken);
        assert!(take(&mailbox).await.is_some());
    }
}
