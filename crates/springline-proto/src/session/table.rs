//! The requests that a session has accepted and not answered.
//!
//! Owns how one is found: by our number, by the client's id, by the POST that waits for it, by the
//! moment at which its answer becomes a stream. Only the number has an order of its own. The others are
//! looked for: mostly one request is pending, and an index would cost each of them more than it saves.
//! Must not know what a request asks for.

use std::sync::Arc;

use super::client::Level;
use super::passing::Passing;
use super::stream::{Outlet, Reader};
use crate::call::{ClientExchange, Moment};
use crate::json::Snippet;
use crate::map::Map;
use crate::method::{ListKind, Method};

/// A request that was accepted and is not answered.
pub(super) struct Pending {
    /// The client's id, raw: type and text as sent. A copy, which keeps no message alive.
    pub(super) id: Snippet,
    /// Whether no other request may have that id. One that the client has given up on leaves it.
    pub(super) holds_id: bool,
    pub(super) method: Method,
    /// The server that was asked; none while the session itself gathers the answer.
    pub(super) server: Option<Arc<str>>,
    pub(super) outlet: Outlet,
    /// Whether its answer passes, and to whom.
    pub(super) passing: Passing,
    /// When the answer to its POST becomes a stream, if it is not decided that it does or does not.
    pub(super) decide_at: Option<Moment>,
    pub(super) effect: Effect,
}

/// What a success changes in the session.
pub(super) enum Effect {
    None,
    /// The client set its log level.
    Level(Level),
    /// The client subscribed to this URI; noted when it asked, so that no update is missed.
    Subscribed(Box<str>),
    /// The client took a subscription back.
    Unsubscribed(Box<str>),
    /// A whole list passed by.
    Listed(ListKind),
}

impl Pending {
    /// The POST that waits for its answer, or takes it as a stream.
    fn exchange(&self) -> Option<ClientExchange> {
        match self.outlet {
            Outlet::Post(exchange, _) | Outlet::Stream(_, Some(Reader::Post(exchange))) => {
                Some(exchange)
            }
            Outlet::Pipe | Outlet::Socket { .. } | Outlet::Stream(..) | Outlet::Gone => None,
        }
    }
}

/// The table, by number. Bounded by `pending_max` (I8).
pub(super) type Table = Map<u64, Pending>;

impl Table {
    /// The number of the request that holds this id.
    pub(super) fn by_id(&self, id: &[u8]) -> Option<u64> {
        self.number_of(|pending| pending.holds_id && pending.id.as_slice() == id)
    }

    /// The number of the request whose answer this POST waits for or takes.
    pub(super) fn by_exchange(&self, exchange: ClientExchange) -> Option<u64> {
        self.number_of(|pending| pending.exchange() == Some(exchange))
    }

    /// Whether a POST waits for an answer, or takes one.
    pub(super) fn has_exchange(&self) -> bool {
        self.values().any(|pending| pending.exchange().is_some())
    }

    /// The request whose answer becomes a stream next. All wait equally long for that, so it is the
    /// oldest that does.
    pub(super) fn next_undecided(&self) -> Option<(Moment, u64)> {
        self.iter()
            .find_map(|(number, pending)| Some((pending.decide_at?, *number)))
    }

    fn number_of(&self, is_it: impl Fn(&Pending) -> bool) -> Option<u64> {
        self.iter()
            .find_map(|(number, pending)| is_it(pending).then_some(*number))
    }
}
