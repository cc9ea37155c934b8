//! Ordinals: the names by which machines and drivers speak of calls, generations and exchanges.
//!
//! Every id is a type of its own, so that a client's id can never stand where an upstream id
//! belongs (I9). Ordinals only grow within the value that mints them.

use std::fmt;

macro_rules! ordinal {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(pub u64);

        impl $name {
            /// The ordinal after this one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }

            /// Returns this ordinal and moves on to the next one.
            #[must_use]
            pub fn take(&mut self) -> Self {
                let taken = *self;
                *self = self.next();
                taken
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

ordinal! {
    /// One session in this process. Not the wire's session id, which is a secret.
    SessionKey
}
ordinal! {
    /// One instance of an upstream; only grows (I3).
    Generation
}
ordinal! {
    /// One exchange with an upstream: an HTTP request and its answer, or one line written to a
    /// child.
    ExchangeId
}
ordinal! {
    /// The JSON-RPC id of a request that we sent upstream; never used again on an instance.
    UpstreamId
}
ordinal! {
    /// One HTTP exchange with a client, or one line read from it.
    ClientExchange
}
ordinal! {
    /// One long-lived connection to a client: its GET stream, or its pipe.
    Connection
}

/// One upstream machine of this process, among all that there ever were.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MachineKey(pub u64);

/// One instance, among all that a session may hear of by the name of one server. Generations tell
/// apart what one machine opens, and those that take its place. But a session goes on to a machine that
/// counts by itself when its server is shared from now on, or is not any more.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct InstanceKey {
    /// Whose instance it is.
    pub machine: MachineKey,
    /// Which of its instances.
    pub generation: Generation,
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.generation.fmt(f)
    }
}

impl SessionKey {
    /// In place of a session: nobody. Sessions count from zero and never come this far.
    pub const NONE: Self = Self(u64::MAX);
    /// In place of a session: all that share an upstream.
    pub const SHARED: Self = Self(u64::MAX - 1);
}

/// A request that a session accepted and that an upstream shall answer: unique in the process.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CallKey {
    /// The session that accepted it.
    pub session: SessionKey,
    /// Its number within the session; never used again.
    pub number: u64,
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.session, self.number)
    }
}

/// A moment, as time since an origin that the driver chose. The core never reads a clock (I12).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Moment(pub std::time::Duration);

impl Moment {
    /// This moment and a span later; stays at the end of time rather than wrap.
    #[must_use]
    pub fn after(self, span: std::time::Duration) -> Self {
        Self(self.0.saturating_add(span))
    }

    /// The span since an earlier moment; zero if it was not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        self.0.saturating_sub(earlier.0)
    }
}
