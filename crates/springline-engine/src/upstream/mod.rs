//! Transports to MCP servers: they carry bytes, and report what happened.
//!
//! Owns the way from an instance's wire to the inputs of the upstream machine. Must not know what a
//! method means, what may be sent again, or which session asked: the machine decides all of that.

pub mod http;
pub mod stdio;

mod child;

pub(crate) use child::launcher_problem;

use springline_proto::upstream::Input;

/// Where a transport reports to: the owner of one upstream machine.
pub trait Sink: Send + Sync + 'static {
    /// Takes an input. Never blocks; may be called from inside a transport's own methods, so the
    /// owner queues it and never holds a lock of its own around a call of the transport.
    fn input(&self, input: Input);

    /// Takes two inputs, one right after the other. The same as two calls of [`Self::input`], perhaps
    /// with less work.
    fn inputs(&self, first: Input, then: Input) {
        self.input(first);
        self.input(then);
    }
}
