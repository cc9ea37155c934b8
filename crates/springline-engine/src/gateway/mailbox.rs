//! The parts of one answer on their way to a client.
//!
//! A mailbox stands between a machine, which never waits, and a connection, which may be slow. Its
//! bound is in bytes; past it the connection is cut, and the client resumes or asks again.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use springline_proto::session::Part;
use tokio::sync::Notify;

/// Bytes that may wait for one connection, besides one part that is larger by itself. As large as
/// the default cap on bodies: a client that is further behind does not read.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Parts that may wait for one connection.
const WAITING_PARTS_MAX: usize = 10_000;

/// What is queued for one connection.
#[derive(Debug, Default)]
struct Queue {
    parts: VecDeque<Part>,
    bytes: usize,
    /// Nothing comes after what is queued.
    closed: bool,
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
}

/// The machine's end and the connection's end of one answer.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Held by the machine's driver while it puts, and by the connection while it takes; never
    /// across an await.
    queue: Mutex<Queue>,
    ready: Notify,
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
        let full = !queue.parts.is_empty()
            && (queue.bytes.saturating_add(bytes) > WAITING_BYTES_MAX
                || queue.parts.len() >= WAITING_PARTS_MAX);
        if full {
            queue.parts.clear();
            queue.closed = true;
        } else {
            queue.bytes += bytes;
            queue.closed = ends(&part);
            queue.parts.push_back(part);
        }
        drop(queue);
        self.ready.notify_one();
        if full { Put::Cut } else { Put::Taken }
    }

    /// Nothing more comes.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_one();
    }

    /// The next part; `None` after the last. Cancel safe: a part is taken only as it is returned.
    pub(crate) async fn take(&self) -> Option<Part> {
        loop {
            {
                let mut queue = self.queue.lock();
                if let Some(part) = queue.parts.pop_front() {
                    queue.bytes = queue.bytes.saturating_sub(size_of_part(&part));
                    return Some(part);
                }
                if queue.closed {
                    return None;
                }
            }
            // `notify_one` stores a permit, so a part put in between is not missed.
            self.ready.notified().await;
        }
    }

    /// Whether the last part was put: the machine holds nothing more for this connection.
    pub(crate) fn is_complete(&self) -> bool {
        self.queue.lock().closed
    }
}

fn ends(part: &Part) -> bool {
    match part {
        Part::Accepted | Part::Json(_) | Part::Refuse { .. } | Part::End => true,
        Part::Begin | Part::Event { .. } => false,
    }
}

fn size_of_part(part: &Part) -> usize {
    match part {
        Part::Json(body) => body.len(),
        Part::Event { data, .. } => data.len(),
        Part::Refuse { body, .. } => body.len(),
        Part::Accepted | Part::Begin | Part::End => 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

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
        assert!(matches!(mailbox.take().await, Some(Part::Begin)));
        assert!(matches!(mailbox.take().await, Some(Part::Event { .. })));
        assert!(matches!(mailbox.take().await, Some(Part::End)));
        assert!(mailbox.take().await.is_none());
    }

    #[tokio::test]
    async fn a_connection_that_does_not_read_is_cut_at_the_bound() {
        let mailbox = Mailbox::new();
        assert_eq!(mailbox.put(event(WAITING_BYTES_MAX)), Put::Taken);
        assert_eq!(mailbox.put(event(1)), Put::Cut);
        assert_eq!(mailbox.put(event(1)), Put::Closed, "it is cut once");
        assert!(mailbox.take().await.is_none());
    }

    #[tokio::test]
    async fn one_part_larger_than_the_bound_still_passes() {
        let mailbox = Mailbox::new();
        assert_eq!(mailbox.put(event(WAITING_BYTES_MAX + 1)), Put::Taken);
        assert!(mailbox.take().await.is_some());
    }
}
