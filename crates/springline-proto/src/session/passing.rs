//! Answers that are too large to be held: they pass to the client as they come.
//!
//! Owns who reads such an answer, and what is said when it cannot be completed: never a well-formed
//! end (I1). Must not know what passes.

use std::sync::Arc;

use super::Session;
use super::port::{Downstream, Endpoint, Mark, Part};
use super::stream::{Outlet, Reader};
use super::table::Pending;
use crate::call::Moment;
use crate::error::{Fault, FaultKind};
use crate::json::Pieces;
use crate::method::{ListKind, Method};
use crate::upstream;

/// Whether the answer to a request passes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Passing {
    No,
    /// It has begun, and this one reads it from the start; nobody, if that one has gone.
    Begun(Option<Reader>),
}

impl Passing {
    pub(super) fn has_begun(self) -> bool {
        self != Self::No
    }

    fn reader(self) -> Option<Reader> {
        match self {
            Self::Begun(reader) => reader,
            Self::No => None,
        }
    }

    /// This one reads no more; says whether it did.
    pub(super) fn leave(&mut self, reader: Reader) -> bool {
        let reads = *self == Self::Begun(Some(reader));
        if reads {
            *self = Self::Begun(None);
        }
        reads
    }

    /// Nobody reads any more.
    pub(super) fn leave_all(&mut self) {
        if self.has_begun() {
            *self = Self::Begun(None);
        }
    }
}

impl Session {
    /// Whether a large answer may pass: nothing in it is read here, and the client takes bytes as
    /// they come. On the socket a frame is whole, and on `/mcp` URIs are rewritten.
    pub(super) fn may_pass(&self, number: u64) -> bool {
        let is_read = |method: Method| {
            ListKind::of(method).is_some()
                || matches!(
                    method,
                    Method::Initialize | Method::SetLevel | Method::Subscribe | Method::Unsubscribe
                )
        };
        let pending = self.pending.get(&number);
        self.downstream == Downstream::Http
            && matches!(self.endpoint, Endpoint::One(_))
            && pending.is_some_and(|pending| !is_read(pending.method))
    }

    pub(super) fn on_passing(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        number: u64,
        passing: upstream::Passing,
    ) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        if pending.server.as_ref() != Some(server) {
            return;
        }
        let reader = pending.passing.reader();
        match passing {
            upstream::Passing::Begin { len } => self.begin_passing(number, len),
            upstream::Passing::Bytes(bytes) => {
                if let Some(reader) = reader {
                    self.put_reader(reader, Part::Bytes(bytes));
                }
            }
            upstream::Passing::Id => {
                let id = pending.id.to_bytes();
                if let Some(reader) = reader {
                    self.put_reader(reader, Part::Bytes(id));
                }
            }
            upstream::Passing::End => self.end_passing(now, number),
        }
    }

    fn begin_passing(&mut self, number: u64, len: Option<u64>) {
        let Some(pending) = self.pending.get_mut(&number) else {
            return;
        };
        // From here on it stays what it is.
        pending.decide_at = None;
        let id_len = pending.id.as_slice().len() as u64;
        let (reader, part) = match pending.outlet {
            Outlet::Post(exchange, _) => {
                let len = len.map(|len| len.saturating_add(id_len));
                (Some(Reader::Post(exchange)), Part::Open { len })
            }
            Outlet::Stream(_, reader) => (reader, Part::OpenEvent),
            Outlet::Pipe | Outlet::Socket { .. } | Outlet::Gone => (None, Part::OpenEvent),
        };
        pending.passing = Passing::Begun(reader);
        if let Some(reader) = reader {
            self.put_reader(reader, part);
        }
    }

    /// The whole answer has passed. Whoever was not there from its start hears that it is lost.
    fn end_passing(&mut self, now: Moment, number: u64) {
        let reader = self
            .pending
            .get(&number)
            .and_then(|pending| pending.passing.reader());
        let Some(reader) = reader else {
            self.fail(now, number, &Fault::new(FaultKind::ResultLost));
            return;
        };
        let Some(pending) = self.settle(number) else {
            return;
        };
        if let Outlet::Stream(stream, _) = pending.outlet {
            // Before its cursor is seen (I10).
            self.mark(number, Mark::Answered(Pieces::new()));
            let id = self.redelivery.complete(stream);
            self.put_reader(reader, Part::Close { id });
        }
        self.put_reader(reader, Part::End);
    }

    /// Cuts off whoever reads an answer that cannot be completed. Says where the error goes that
    /// takes its place.
    pub(super) fn cut(&mut self, pending: &Pending) -> Outlet {
        let Some(cut) = pending.passing.reader() else {
            return pending.outlet;
        };
        self.put_reader(cut, Part::Cut);
        match pending.outlet {
            // The connection that breaks is the client's answer (I1).
            Outlet::Post(..) => Outlet::Gone,
            Outlet::Stream(stream, reader) => {
                Outlet::Stream(stream, reader.filter(|reader| *reader != cut))
            }
            other @ (Outlet::Pipe | Outlet::Socket { .. } | Outlet::Gone) => other,
        }
    }
}
