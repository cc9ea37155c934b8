//! Descriptors on the reactor of this task.
//!
//! Owns: when the reactor is asked for room. The kernel tells of room on a unix socket with each message
//! that the peer takes; whoever hears of that wakes up once more for each message, for nothing. So it is
//! asked only while a write found none. It must not know what is written.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Puts something that owns a descriptor on the reactor.
///
/// # Errors
/// The reactor does not take it.
///
/// # Panics
/// Outside a tokio runtime.
#[expect(unsafe_code, reason = "the safe constructor is deprecated")]
pub fn register<T: AsFd + AsRawFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: what lends its descriptor as `AsFd` keeps it open for as long as it lives, and none of
    // those that come here replaces it.
    let registered = unsafe { AsyncFd::register_with_interest(owner, interest) };
    registered.map_err(io::Error::from)
}

/// The wait for room in a stream that never waits by itself.
#[derive(Debug, Default)]
pub struct Room {
    /// While a write waits.
    blocked: Option<AsyncFd<OwnedFd>>,
}

impl Room {
    /// Writes by `write` to `stream`, as soon as there is room.
    ///
    /// # Errors
    /// Those of `write`, but for `WouldBlock` and `Interrupted`, and those of the reactor.
    ///
    /// # Panics
    /// Outside a tokio runtime, if there is no room.
    pub fn poll_write<T: AsFd>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &T,
        write: impl Fn(&T) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut room = match &self.blocked {
                Some(blocked) => Some(ready!(blocked.poll_write_ready(cx))?),
                None => None,
            };
            match write(stream) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(room) = &mut room {
                        room.clear_ready();
                    } else {
                        let again = stream.as_fd().try_clone_to_owned()?;
                        self.blocked = Some(register(again, Interest::WRITABLE)?);
                    }
                }
                result => {
                    self.blocked = None;
                    return Poll::Ready(result);
                }
            }
        }
    }

    /// Whether a write waits.
    pub fn is_awaited(&self) -> bool {
        self.blocked.is_some()
    }
}
