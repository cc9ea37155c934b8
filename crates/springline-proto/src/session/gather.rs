//! Lists of all servers.
//!
//! Owns the reading of the servers' lists, page by page, and when a merged list is answered: known
//! ones at once, never listed ones within a bound. Must not know what an item is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::Session;
use super::request::result_response;
use crate::aggregate;
use crate::call::Moment;
use crate::error::plain_error;
use crate::json::{self, Span};
use crate::message::{Kind, Message};
use crate::method::ListKind;
use crate::names::Cursor;

/// Pages that are read of one list of a server.
const PAGES_MAX: usize = 100;

/// Changes within this span are told once.
const SETTLE: Duration = Duration::from_millis(200);

/// What is known of one list of one server.
pub(super) struct List {
    pages: Option<Vec<Bytes>>,
    standing: Standing,
    /// What is known is out of date: the server said so.
    is_stale: bool,
    /// It changed again while it was being read.
    again: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Standing {
    /// From an earlier session, or never read.
    Unread,
    Reading,
    /// Being read again after a failure, or for longer than a list waits; nobody waits for it.
    Retrying,
    /// Read in this session.
    Read,
    /// The last attempt failed.
    Failed,
}

impl Standing {
    fn is_reading(self) -> bool {
        matches!(self, Self::Reading | Self::Retrying)
    }
}

impl List {
    pub(super) fn remembered(pages: Vec<Bytes>) -> Self {
        Self {
            pages: Some(pages),
            standing: Standing::Unread,
            is_stale: false,
            again: false,
        }
    }

    pub(super) fn pages(&self) -> &[Bytes] {
        self.pages.as_deref().unwrap_or_default()
    }

    /// Whether what others remember is newer than this and different.
    pub(super) fn gives_way_to(&self, kind: ListKind, other: &Self) -> bool {
        matches!(self.standing, Standing::Unread | Standing::Failed)
            && !same_items(kind, self.pages.as_deref(), other.pages())
    }

    /// Whether a request for the list waits for this one.
    fn is_awaited(&self) -> bool {
        self.standing == Standing::Reading && (self.pages.is_none() || self.is_stale)
    }
}

/// A list that is being read.
pub(super) struct Walk {
    server: Arc<str>,
    kind: ListKind,
    pages: Vec<Bytes>,
    /// Raw cursors that were followed: one that comes again ends the walk.
    cursors: BTreeSet<Bytes>,
}

/// A request for a list that waits for servers.
pub(super) struct Gather {
    number: u64,
    kind: ListKind,
    until: Moment,
}

impl Gather {
    pub(super) fn until(&self) -> Moment {
        self.until
    }
}

impl Session {
    /// The client asks for a list.
    pub(super) fn on_list(&mut self, now: Moment, number: u64, kind: ListKind, message: &Message) {
        let Some(offset) = self.offset_of(kind, message) else {
            self.reject(now, number, &plain_error(-32602, "Invalid cursor"));
            return;
        };
        if offset > 0 {
            self.answer_list(now, number, kind, offset);
            return;
        }
        for server in self.unread(kind) {
            self.read_list(&server, kind);
        }
        if self.waits_for(kind) {
            let until = now.after(self.settings.list_wait);
            if let Some(all) = &mut self.all {
                all.gathers.push(Gather {
                    number,
                    kind,
                    until,
                });
            }
            return;
        }
        self.answer_list(now, number, kind, 0);
    }

    /// A server says that its list changed: it is read anew, and the client hears of it if it did.
    pub(super) fn on_one_list_changed(&mut self, server: &Arc<str>, kind: ListKind) {
        let entry = self.all.as_mut().and_then(|all| all.entry_mut(server));
        let Some(list) = entry.map(|entry| {
            let empty = List {
                pages: None,
                standing: Standing::Unread,
                is_stale: false,
                again: false,
            };
            entry.lists.entry(kind).or_insert(empty)
        }) else {
            return;
        };
        list.is_stale = true;
        if list.standing.is_reading() {
            list.again = true;
        } else {
            self.read_list(server, kind);
        }
    }

    /// An answer to a request of our own; false if it was none.
    pub(super) fn on_page(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        number: u64,
        message: &Message,
    ) {
        let Some(mut walk) = self.all.as_mut().and_then(|all| all.walks.remove(&number)) else {
            return;
        };
        if *server != walk.server {
            return;
        }
        let Some(result) = message.result().filter(|_| message.kind() == Kind::Result) else {
            if error_code(message) == Some(-32601) {
                // It has no such list.
                self.end_walk(now, &walk);
            } else {
                self.fail_walk(now, &walk);
            }
            return;
        };
        let next = json::member(&result, Span::whole(&result), "nextCursor")
            .map(|span| Bytes::copy_from_slice(span.of(&result)))
            .filter(|raw| raw.first() == Some(&b'"'));
        // A copy, so that not the whole message is kept.
        walk.pages.push(Bytes::copy_from_slice(&result));
        match next {
            Some(cursor) if walk.pages.len() < PAGES_MAX && walk.cursors.insert(cursor.clone()) => {
                self.next_page(walk, Some(&cursor));
            }
            _ => self.end_walk(now, &walk),
        }
    }

    /// A request of our own failed.
    pub(super) fn on_page_failed(&mut self, now: Moment, number: u64) {
        if let Some(walk) = self.all.as_mut().and_then(|all| all.walks.remove(&number)) {
            self.fail_walk(now, &walk);
        }
    }

    /// What is known of a list now.
    pub(super) fn learn_list(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        kind: ListKind,
        pages: &[Bytes],
    ) {
        let entry = self.all.as_mut().and_then(|all| all.entry_mut(server));
        let Some(entry) = entry else {
            return;
        };
        let list = List {
            pages: Some(pages.to_vec()),
            standing: Standing::Read,
            is_stale: false,
            again: false,
        };
        let old = entry.lists.insert(kind, list);
        let is_same = same_items(
            kind,
            old.as_ref().and_then(|old| old.pages.as_deref()),
            pages,
        );
        if !is_same {
            self.note_changed(now, kind);
        }
        if old.is_some_and(|old| old.standing.is_reading() && old.again) {
            self.read_list(server, kind);
        }
        self.try_gathers(now);
    }

    /// The client will hear that this list changed, if it has seen it.
    pub(super) fn note_changed(&mut self, now: Moment, kind: ListKind) {
        if let Some(all) = &mut self.all
            && all.answered.contains(&kind)
        {
            // Templates are announced as resources.
            let kind = if kind == ListKind::Templates {
                ListKind::Resources
            } else {
                kind
            };
            all.changed.entry(kind).or_insert(now.after(SETTLE));
        }
    }

    /// Answers the lists that need wait no longer.
    pub(super) fn try_gathers(&mut self, now: Moment) {
        let Some(all) = &mut self.all else {
            return;
        };
        for gather in std::mem::take(&mut all.gathers) {
            if !self.pending.contains_key(&gather.number) {
                continue;
            }
            if gather.until <= now {
                self.stop_waiting(gather.kind);
            }
            if !self.waits_for(gather.kind) {
                self.answer_list(now, gather.number, gather.kind, 0);
            } else if let Some(all) = &mut self.all {
                all.gathers.push(gather);
            }
        }
    }

    /// Tells the client of the lists whose changes have settled.
    pub(super) fn tell_changed(&mut self, now: Moment) {
        let Some(all) = &mut self.all else {
            return;
        };
        let due: Vec<ListKind> = all
            .changed
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(kind, _)| *kind)
            .collect();
        for kind in due {
            if let Some(all) = &mut self.all {
                all.changed.remove(&kind);
            }
            self.say_list_changed(now, None, kind);
        }
    }

    /// Where a page begins; none if the cursor is not ours.
    fn offset_of(&self, kind: ListKind, message: &Message) -> Option<usize> {
        let Some(raw) = message.param("cursor") else {
            return Some(0);
        };
        let all = self.all.as_ref()?;
        let text = json::string(&raw)?;
        let owner = self.key.0.to_be_bytes();
        let cursor = Cursor::decode(&text, kind, &all.cursor_key, &owner).ok()?;
        usize::try_from(cursor.offset).ok()
    }

    /// Servers whose list was not read in this session.
    fn unread(&self, kind: ListKind) -> Vec<Arc<str>> {
        let Some(all) = &self.all else {
            return Vec::new();
        };
        let entries = all.entries.iter().filter(|entry| {
            let standing = entry
                .lists
                .get(&kind)
                .map_or(Standing::Unread, |list| list.standing);
            let is_read = standing == Standing::Read || standing.is_reading();
            entry.is_available() && entry.may_have(kind) && !is_read
        });
        entries.map(|entry| Arc::clone(&entry.name)).collect()
    }

    fn waits_for(&self, kind: ListKind) -> bool {
        self.all.as_ref().is_some_and(|all| {
            let lists = all
                .entries
                .iter()
                .filter_map(|entry| entry.lists.get(&kind));
            lists.into_iter().any(List::is_awaited)
        })
    }

    /// Servers that let one request wait for the whole time do so to no other: their lists come with
    /// `list_changed`.
    fn stop_waiting(&mut self, kind: ListKind) {
        let entries = self.all.as_mut().map(|all| all.entries.iter_mut());
        for entry in entries.into_iter().flatten() {
            if let Some(list) = entry.lists.get_mut(&kind)
                && list.is_awaited()
            {
                list.standing = Standing::Retrying;
            }
        }
    }

    fn read_list(&mut self, server: &Arc<str>, kind: ListKind) {
        let Some(entry) = self.all.as_mut().and_then(|all| all.entry_mut(server)) else {
            return;
        };
        let empty = List {
            pages: None,
            standing: Standing::Unread,
            is_stale: false,
            again: false,
        };
        let list = entry.lists.entry(kind).or_insert(empty);
        list.standing = match list.standing {
            Standing::Failed | Standing::Retrying => Standing::Retrying,
            Standing::Unread | Standing::Reading | Standing::Read => Standing::Reading,
        };
        let walk = Walk {
            server: Arc::clone(server),
            kind,
            pages: Vec::new(),
            cursors: BTreeSet::new(),
        };
        self.next_page(walk, None);
    }

    fn next_page(&mut self, walk: Walk, cursor: Option<&Bytes>) {
        let params = match cursor {
            Some(cursor) => [br#"{"cursor":"#, &cursor[..], b"}"].concat(),
            None => b"{}".to_vec(),
        };
        let server = Arc::clone(&walk.server);
        let number = self.ask_server(&server, walk.kind.method(), &params);
        if let Some(all) = &mut self.all {
            all.walks.insert(number, walk);
        }
    }

    fn end_walk(&mut self, now: Moment, walk: &Walk) {
        self.remember_list(&walk.server, walk.kind, walk.pages.clone());
        self.learn_list(now, &walk.server, walk.kind, &walk.pages);
    }

    fn fail_walk(&mut self, now: Moment, walk: &Walk) {
        let entry = self
            .all
            .as_mut()
            .and_then(|all| all.entry_mut(&walk.server));
        if let Some(list) = entry.and_then(|entry| entry.lists.get_mut(&walk.kind)) {
            list.standing = Standing::Failed;
            list.again = false;
        }
        self.try_gathers(now);
    }

    fn answer_list(&mut self, now: Moment, number: u64, kind: ListKind, offset: usize) {
        let Some(pending) = self.settle(number) else {
            return;
        };
        let Some(all) = &mut self.all else {
            return;
        };
        all.answered.insert(kind);
        let parts: Vec<(&str, &[Bytes])> = all
            .entries
            .iter()
            .filter_map(|entry| Some((&*entry.name, entry.lists.get(&kind)?.pages())))
            .collect();
        let owner = self.key.0.to_be_bytes();
        let result = aggregate::list_result(kind, &parts, offset, |offset| {
            let offset = u32::try_from(offset).unwrap_or(u32::MAX);
            Cursor { kind, offset }.encode(&all.cursor_key, &owner)
        });
        self.give(
            now,
            &pending.outlet,
            result_response(pending.id.as_slice(), &result),
        );
    }
}

fn same_items(kind: ListKind, old: Option<&[Bytes]>, new: &[Bytes]) -> bool {
    old.is_some_and(|old| aggregate::items(kind, old) == aggregate::items(kind, new))
}

fn error_code(message: &Message) -> Option<i64> {
    let error = message.error()?;
    let span = json::member(&error, Span::whole(&error), "code")?;
    std::str::from_utf8(span.of(&error)).ok()?.parse().ok()
}
