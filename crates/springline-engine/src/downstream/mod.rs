//! The side that faces clients: Streamable HTTP on TCP and on the unix socket, and the frames of
//! `connect`.
//!
//! Owns: listeners, the checks of an HTTP request that need no protocol state (host, origin,
//! credentials, media types, size), and the bytes of answers. It must not know the rules of
//! sessions: it hands messages to a [`port::Session`] and writes down the parts that come back.

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
