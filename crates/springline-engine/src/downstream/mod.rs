//! The side that faces clients: Streamable HTTP on TCP and on the unix socket, and the frames of
//! `connect`.
//!
//! Owns: listeners, the checks of an HTTP request that need no protocol state (host, origin,
//! credentials, media types, size), and the bytes of answers. It must not know the rules of
//! sessions: it hands messages to a [`port::Session`] and writes down the parts that come back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tokio::task::coop;

pub mod answer;
pub mod attach;
pub mod body;
mod call;
pub mod field;
pub mod frame;
pub mod guard;
pub mod hello;
pub mod listen;
pub mod local;
pub mod outgoing;
pub mod port;
pub mod route;
pub(crate) mod seat;
pub mod server;
pub mod setting;
pub mod socket;
mod stream;
mod wire;

#[cfg(test)]
mod tests;

pub use port::{Gate, OpenError, Parts, Principal, Session};
pub use server::HttpServer;
pub use setting::{HttpSettings, Token};
#[cfg(any(test, fuzzing))]
pub use wire::fuzz::fuzz_head;

/// Until a flag is true; also when nobody can raise it any more. Cancel safe.
pub(crate) async fn raised(flag: &mut tokio::sync::watch::Receiver<bool>) {
    // The guard that comes back would keep a task from moving between threads.
    drop(flag.wait_for(|is_raised| *is_raised).await);
}

/// Runs `work` until it is done, or until `end` is: then there is nothing. `end` is asked at the first
/// turn, and wakes this task; from then on only when `is_due` says so, not at each turn of `work`.
/// So `is_due` has to be true before `end` wakes. Cancel safe as far as both are; one task has to
/// drive it from its first turn to its last.
pub(crate) async fn unless<T>(
    mut work: Pin<&mut impl Future<Output = T>>,
    mut end: Pin<&mut impl Future<Output = ()>>,
    is_due: impl Fn() -> bool,
) -> Option<T> {
    let mut is_watched = false;
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if is_watched && !is_due() {
            return Poll::Pending;
        }
        // A turn that has used up its budget has it answer without a look: it watches nothing yet.
        is_watched = coop::has_budget_remaining();
        end.as_mut().poll(cx).map(|()| None)
    })
    .await
}
