//! The sans-IO core of Springline.
//!
//! Nothing here reads a clock, a file or a random source, and nothing here knows of sockets: time
//! arrives as an argument, randomness as a key, and the outside as values (I12).

#![forbid(unsafe_code)]
#![deny(
    missing_docs,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm
)]

mod aggregate;
pub mod call;
mod codec;
pub mod error;
pub mod frame;
#[doc(hidden)]
pub mod fuzz;
pub mod json;
pub mod map;
pub mod message;
pub mod method;
pub mod names;
mod redelivery;
mod seldom;
pub mod session;
pub mod settings;
pub mod shared;
pub mod sse;
pub mod tether;
pub mod upstream;
pub mod version;

#[cfg(test)]
mod random;
