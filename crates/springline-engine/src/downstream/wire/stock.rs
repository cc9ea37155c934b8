//! Spare buffers of a thread.
//!
//! A connection has a buffer only while there is something in it; between requests it costs none.
//! Must not know what is in them.

use std::cell::RefCell;

use bytes::BytesMut;

/// Room of a buffer: most requests, and most answers, fit.
pub(super) const ROOM: usize = 4 * 1024;

/// Buffers that a thread keeps.
const SPARE_MAX: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with [`ROOM`].
pub(super) fn take() -> BytesMut {
    let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
    spare
        .ok()
        .flatten()
        .unwrap_or_else(|| BytesMut::with_capacity(ROOM))
}

/// Gives back a buffer of which nothing is shared. One that grew is not kept.
pub(super) fn give(mut buffer: BytesMut) {
    if buffer.capacity() != ROOM {
        return;
    }
    buffer.clear();
    // A thread on its way out keeps nothing.
    SPARE
        .try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        })
        .unwrap_or_default();
}
