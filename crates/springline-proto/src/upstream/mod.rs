//! The upstream machine: one server, whichever instance of it lives.

mod port;

pub use port::{
    End, Event, Hello, Input, Output, Purpose, Refusal, Route, SessionEvent,
};
