//! The rules of HTTP answers, against a scripted gateway and over real connections.

mod head;
mod refusal;
mod script;
mod socket;
mod status;
mod stream;
mod unless;
mod wire;
