//! End to end: the gateway's binary with real servers behind it and real connections in front.
//!
//! One binary, so that it is linked once. Every test starts what it needs, on free ports and in a
//! folder of its own, and ends it; none waits for time to pass.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::disallowed_methods,
    reason = "tests start processes and read the clock as they like"
)]

mod all;
mod bridge;
mod capacity;
mod child;
mod cli;
mod comeback;
mod credential;
mod disk;
mod endpoint;
mod exchange;
mod fidelity;
mod global;
mod harness;
mod large;
mod load;
mod loss;
mod outage;
mod peer;
mod pipe;
mod place;
mod reload;
mod restart;
mod room;
mod stream;
