//! The Streamable HTTP transport of the test servers.

pub mod auth;
mod body;
mod control;
mod request;
pub mod server;
