//! The way of the parts of answers from a session to the connections that wait for them.
//!
//! Owns which mailbox is whose, and when one is given up. Must not know what a part says.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use smallvec::SmallVec;
use springline_proto::call::{ClientExchange, Connection};
use springline_proto::session::{Input, Part};

use super::mailbox::{Mailbox, Put, ends};
use super::session::SessionCell;
use crate::downstream::seat::{self, Busy};
use crate::spawn::Work;

/// Which connection of the session this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Source {
    Exchange(ClientExchange),
    Connection(Connection),
}

/// Where answers go: mostly one mailbox, and few where there are more. Held for a look-up or a change;
/// never while anything else is called.
#[derive(Default)]
pub(super) struct Routes(Mutex<SmallVec<[Route; 1]>>);

type Route = (Source, Arc<Mailbox>);

impl Routes {
    fn insert(&self, source: Source, mailbox: Arc<Mailbox>) {
        self.0.lock().push((source, mailbox));
    }

    fn get(&self, source: Source) -> Option<Arc<Mailbox>> {
        let routes = self.0.lock();
        let found = routes.iter().find(|(held, _)| *held == source);
        found.map(|(_, mailbox)| Arc::clone(mailbox))
    }

    fn remove(&self, source: Source) -> Option<Arc<Mailbox>> {
        let mut routes = self.0.lock();
        let at = routes.iter().position(|(held, _)| *held == source)?;
        let (_, mailbox) = routes.swap_remove(at);
        if routes.is_empty() {
            // Keeps no room.
            routes.shrink_to_fit();
        }
        Some(mailbox)
    }

    /// Gives a part to whoever waits for it. After the last one, and where it is not taken, nothing more
    /// goes there.
    pub(super) fn put(&self, source: Source, part: Part) -> Put {
        let mailbox = if ends(&part) {
            self.remove(source)
        } else {
            self.get(source)
        };
        let Some(mailbox) = mailbox else {
            return Put::Astray;
        };
        let put = mailbox.put(part);
        if put == Put::Cut {
            self.remove(source);
        }
        put
    }

    /// Gives a part to the one connection that there is, if there is one.
    pub(super) fn put_pipe(&self, part: Part) -> Put {
        let is_one = |source: &Source| matches!(source, Source::Connection(_));
        let found = {
            let routes = self.0.lock();
            let found = routes.iter().find(|(source, _)| is_one(source));
            found.map(|(_, mailbox)| Arc::clone(mailbox))
        };
        found.map_or(Put::Astray, |mailbox| mailbox.put(part))
    }

    /// Nothing more comes, to nobody.
    pub(super) fn close(&self) {
        let routes = std::mem::take(&mut *self.0.lock());
        for (_, mailbox) in routes {
            mailbox.close();
        }
    }
}

/// The parts of one answer. Dropping it tells the session that the connection is gone.
pub struct PartStream {
    cell: Arc<SessionCell>,
    mailbox: Arc<Mailbox>,
    source: Source,
    /// The exchange with the server, until the first part is there: what comes after it must not
    /// wait for a client that reads slowly.
    work: Option<Work>,
    /// While it lives, its connection gives way to no other.
    _busy: Busy,
}

impl PartStream {
    /// What goes to `source` from now on.
    pub(super) fn new(cell: Arc<SessionCell>, source: Source) -> Self {
        let mailbox = Mailbox::new();
        cell.routes.insert(source, Arc::clone(&mailbox));
        Self {
            cell,
            mailbox,
            source,
            work: None,
            _busy: seat::busy(),
        }
    }

    /// Goes on with this work while it waits.
    pub(super) fn take_along(&mut self, work: Option<Work>) {
        self.work = work;
    }

    /// The next part; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<Part> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        if let Some(work) = &mut self.work {
            self.mailbox.unwatch();
            if work.poll(cx) {
                self.work = None;
            }
        }
        let part = self.mailbox.poll_take(cx);
        if part.is_ready() {
            // Unfinished, it goes on by itself.
            self.work = None;
        }
        part
    }

    /// Whether it ended early, because nobody took its parts.
    pub fn is_cut(&self) -> bool {
        self.mailbox.is_cut()
    }
}

impl Drop for PartStream {
    fn drop(&mut self) {
        if self.mailbox.close() {
            // The session holds nothing more for it.
            return;
        }
        self.cell.routes.remove(self.source);
        self.cell.input(match self.source {
            Source::Exchange(exchange) => Input::ExchangeGone(exchange),
            Source::Connection(connection) => Input::StreamClosed(connection),
        });
    }
}
