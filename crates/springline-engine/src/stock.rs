//! Spare buffers of a thread.
//!
//! A connection, of a client or to a server, has a buffer only while there is something in it: between
//! messages it costs none, and what one has read next is read into memory that was just in use. Must
//! not know what is in them.

use std::cell::RefCell;

use bytes::BytesMut;

/// Room of a buffer: most requests, and most answers, fit.
pub(crate) const ROOM: usize = 4 * 1024;

/// Buffers that a thread keeps.
const SPARE_MAX: usize = 16;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer with [`ROOM`].
pub(crate) fn take() -> BytesMut {
    let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
    spare
        .ok()
        .flatten()
        .unwrap_or_else(|| BytesMut::with_capacity(ROOM))
}

/// Gives back a buffer of which nothing is shared. One that grew is not kept.
pub(crate) fn give(mut buffer: BytesMut) {
    buffer.clear();
    // What was taken off its front is room again.
    let is_whole = buffer.capacity() == ROOM || buffer.try_reclaim(ROOM);
    if !is_whole || buffer.capacity() != ROOM {
        return;
    }
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

#[cfg(test)]
mod tests {
    use bytes::Buf as _;

    use super::*;

    #[test]
    fn a_buffer_comes_back_whole_and_one_that_grew_or_is_shared_does_not() {
        let mut buffer = take();
        buffer.extend_from_slice(b"a head and a body");
        buffer.advance(7);
        let place = buffer.as_ptr();
        give(buffer);
        let mut again = take();
        assert_eq!((again.len(), again.capacity()), (0, ROOM));
        assert_eq!(again.as_ptr(), place.wrapping_sub(7));
        again.resize(ROOM + 1, 0);
        give(again);
        let mut other = take();
        other.extend_from_slice(b"shared");
        let shared = other.split_to(6).freeze();
        give(other);
        take().extend_from_slice(b"others");
        assert_eq!(shared, b"shared"[..]);
    }
}
