//! What the commands of Springline are made of.
//!
//! Owns: the programs behind the command line. It must not parse the command line.

// Tests may spawn tasks as they need; the build that ships is checked without this.
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests are free of the bans")
)]

pub mod autostart;
pub mod bridge;
pub mod connect;
pub mod stdio;
