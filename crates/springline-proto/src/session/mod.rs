//! The session machine: one client's durable record, whatever happens upstream.

mod port;

pub use port::{
    Accept, Downstream, Endpoint, EntryView, Event, Input, Known, Output, Part, Remembered,
};
