//! The drivers of Springline: transports, configuration, admin. They decide nothing of the
//! protocol: they carry bytes, time and exits to the machines of `springline-proto`, and do what
//! those answer.

// Tests may start processes, spawn tasks and read the clock as they need; the build that ships is
// checked without this.
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests are free of the bans")
)]

pub mod admin;
pub mod clock;
pub mod config;
pub mod downstream;
pub mod event;
pub mod gateway;
pub mod lane;
pub mod limit;
pub mod reactor;
pub mod spawn;
mod stock;
pub mod upstream;

/// Says that a failed send is no failure: whoever listened has gone, and nobody is owed anything.
pub(crate) fn ignore_closed<T, E>(_result: Result<T, E>) {}
