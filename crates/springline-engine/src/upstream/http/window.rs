//! How much of an answer that passes may be on its way to the client.
//!
//! Owns the bound (I8), by the life of the buffers: one counts until whoever holds a share of it last
//! has let go, which is when the client's connection took it. So a client that reads slowly slows its
//! server down. Must not know who holds what.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use parking_lot::Mutex;

/// Bytes of one answer on their way. Some reads' worth, so that reading and writing overlap; small
/// beside what a thousand clients may have under way.
const WINDOW_MAX: usize = 192 * 1024;

/// The bytes of one answer that are on their way.
#[derive(Clone, Default)]
pub(super) struct Window(Arc<Mutex<Open>>);

/// Held for a change; wakes nobody while it is.
#[derive(Default)]
struct Open {
    bytes: usize,
    waiting: Option<Waker>,
}

/// A buffer that counts.
struct Counted {
    bytes: Bytes,
    window: Window,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let waiting = {
            let mut open = self.window.0.lock();
            open.bytes = open.bytes.saturating_sub(self.bytes.len());
            open.waiting.take()
        };
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

impl Window {
    /// The same bytes, which count until the last share of them is dropped.
    pub(super) fn count(&self, bytes: Bytes) -> Bytes {
        self.0.lock().bytes += bytes.len();
        Bytes::from_owner(Counted {
            bytes,
            window: self.clone(),
        })
    }

    /// Waits until there is room. One may wait at a time. Cancel safe.
    pub(super) async fn room(&self) {
        poll_fn(|cx| {
            let mut open = self.0.lock();
            if open.bytes < WINDOW_MAX {
                return Poll::Ready(());
            }
            open.waiting = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn has_room(window: &Window) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        pin!(window.room()).poll(&mut cx).is_ready()
    }

    #[test]
    fn there_is_room_again_once_the_last_share_is_dropped() {
        let window = Window::default();
        assert!(has_room(&window));
        let whole = window.count(vec![b'x'; WINDOW_MAX].into());
        let share = whole.slice(1..2);
        drop(whole);
        assert!(!has_room(&window));
        drop(share);
        assert!(has_room(&window));
    }
}
