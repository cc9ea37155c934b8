//! The rules of HTTP answers, against a scripted gateway and over real connections.

mod head;
mod script;
mod socket;
mod status;
mod stream;
mod wire;
