//! Test peers of Springline: MCP servers (and one client) that share no code
//! with the gateway that they judge.
//!
//! [`FaultServer`] is a legacy-era Streamable HTTP server on 127.0.0.1 with
//! scripted faults and exact accounting; the same server speaks stdio in
//! [`stdio`]. This crate owns the truth about what an upstream saw and did. It
//! must not know anything of the gateway.

pub mod account;
pub mod client;
pub mod conformance;
pub mod fault;
pub mod faulty;
pub mod gate;
pub mod http;
pub mod peer;
pub mod rpc;
pub mod session;
pub mod stdio;
pub mod world;

pub use account::{Execution, Log, Seen};
pub use fault::{Action, Answers, Faults, Gone, Hmac, Reply, Rule, Settings};
pub use http::server::{FaultServer, Options};
pub use world::Face;
