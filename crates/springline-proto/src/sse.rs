//! Server-sent events: the event-stream grammar of the HTML standard, both ways.
//!
//! Owns decoding of a stream in chunks with a bound for each event (I8), and encoding. Must not know
//! what an event carries, beyond finding whom an event over the bound concerned.

mod decode;
mod encode;

pub use decode::{FIELD_MAX, SseDecoder, SseItem};
pub use encode::{encode_comment, encode_event, encode_retry};

#[cfg(test)]
mod tests;
