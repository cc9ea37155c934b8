//! What a new instance must be told again: subscriptions, log level; and whether its lists are
//! what the client knows.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::call::{CallKey, Generation, Moment, SessionKey};
use crate::json;
use crate::message::{Kind, Message};
use crate::method::{ListKind, Method};
use crate::seldom::{Seldom, Unset};
use crate::settings::{SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX};
use crate::upstream::Upstream;
use crate::upstream::pending::{Pending, Place, Task};
use crate::upstream::port::SessionEvent;

pub(super) type Print = [u8; 32];

/// The pages of a list as the client saw them, by fingerprint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Seen {
    pub(super) prints: Vec<Print>,
    /// The raw cursor of the next page.
    pub(super) next: Option<Bytes>,
}

/// A list that is being read again.
#[derive(Clone, Debug, Default)]
struct Reading {
    prints: Vec<Print>,
    pages: Vec<Bytes>,
}

/// What a new instance must be told again.
#[derive(Clone, Debug, Default)]
pub(super) struct Restore {
    subscriptions: BTreeSet<Bytes>,
    log_level: Option<Bytes>,
    seen: BTreeMap<ListKind, Seen>,
    reading: BTreeMap<ListKind, Reading>,
}

impl Restore {
    const NONE: Self = Self {
        subscriptions: BTreeSet::new(),
        log_level: None,
        seen: BTreeMap::new(),
        reading: BTreeMap::new(),
    };

    pub(super) fn of(
        subscriptions: BTreeSet<Bytes>,
        log_level: Option<Bytes>,
        seen: BTreeMap<ListKind, Seen>,
    ) -> Seldom<Self> {
        if subscriptions.is_empty() && log_level.is_none() && seen.is_empty() {
            return Seldom::default();
        }
        Seldom::from(Self {
            subscriptions,
            log_level,
            seen,
            ..Self::NONE
        })
    }

    /// What a record holds of it.
    pub(super) fn parts(&self) -> (BTreeSet<Bytes>, Option<Bytes>, BTreeMap<ListKind, Seen>) {
        (
            self.subscriptions.clone(),
            self.log_level.clone(),
            self.seen.clone(),
        )
    }

    /// Notes a subscription; says whether that is new. Beyond the bounds it is not made again after a
    /// recovery (I8).
    fn subscribe(&mut self, uri: Bytes) -> bool {
        let held: usize = self.subscriptions.iter().map(Bytes::len).sum();
        let fits = self.subscriptions.len() < SUBSCRIPTIONS_MAX
            && held.saturating_add(uri.len()) <= SUBSCRIPTION_BYTES_MAX;
        fits && self.subscriptions.insert(uri)
    }

    pub(super) fn log_level(&self) -> Option<&Bytes> {
        self.log_level.as_ref()
    }

    pub(super) fn set_log_level(&mut self, raw: Bytes) {
        self.log_level = Some(raw);
    }

    /// Whether a new instance is told of a subscription to this URI, however it is written.
    pub(super) fn is_subscribed(&self, uri: &str) -> bool {
        self.subscriptions.iter().any(|raw| names(raw, uri))
    }

    pub(super) fn keep_subscription(&mut self, uri: &str) {
        if !self.is_subscribed(uri) {
            self.subscribe(json::quote(uri).into());
        }
    }

    pub(super) fn unsubscribe(&mut self, uri: &str) {
        self.subscriptions.retain(|raw| !names(raw, uri));
    }

    pub(super) fn has_subscriptions(&self) -> bool {
        !self.subscriptions.is_empty()
    }
}

impl Unset for Restore {
    fn unset() -> &'static Self {
        static NONE: Restore = Restore::NONE;
        &NONE
    }
}

impl Upstream {
    /// What the session had set up before a restart. An upstream that was there then remembers it
    /// itself; where the session shared one, nobody else does.
    pub(super) fn on_holds(&mut self, subscriptions: Vec<Box<str>>, level: Option<Bytes>) {
        if self.generation_last > Generation(0) {
            return;
        }
        for uri in subscriptions {
            self.restore.keep_subscription(&uri);
        }
        if let Some(level) = level {
            self.restore.set_log_level(level);
        }
    }

    /// The server itself says that the list changed, or has it no more: what was seen counts no
    /// more.
    pub(super) fn forget_list(&mut self, kind: ListKind) {
        if let Some(restore) = self.restore.held() {
            restore.seen.remove(&kind);
        }
    }

    fn end_reading(&mut self, kind: ListKind) -> Option<Reading> {
        self.restore.held()?.reading.remove(&kind)
    }

    pub(super) fn internal_key(&mut self) -> CallKey {
        self.internal_next = self.internal_next.saturating_add(1);
        CallKey {
            session: SessionKey::NONE,
            number: self.internal_next,
        }
    }

    /// Learns from an answer what would have to be restored. Says whether that is new.
    pub(super) fn observe(&mut self, now: Moment, pending: &Pending, message: &Message) -> bool {
        if message.kind() != Kind::Result {
            if let Task::Reread(kind, _) = pending.task {
                self.end_reading(kind);
            }
            return false;
        }
        match &pending.task {
            Task::Client(request) => self.observe_client(pending.method, request, message),
            Task::Reread(kind, _) => self.on_reread(now, *kind, message),
            Task::Start | Task::Ping | Task::Remake(_) => false,
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other method leaves anything to restore"
    )]
    fn observe_client(&mut self, method: Method, request: &Message, answer: &Message) -> bool {
        // Copies, so that not the whole request is kept.
        let param = |name: &str| request.param(name).map(|raw| Bytes::copy_from_slice(&raw));
        match method {
            Method::Subscribe => param("uri").is_some_and(|uri| self.restore.subscribe(uri)),
            Method::Unsubscribe => {
                let held = self.restore.held();
                held.is_some_and(|held| {
                    param("uri").is_some_and(|uri| held.subscriptions.remove(&uri))
                })
            }
            Method::SetLevel => {
                self.restore.log_level = param("level");
                true
            }
            _ => ListKind::of(method).is_some_and(|kind| self.observe_page(kind, request, answer)),
        }
    }

    fn observe_page(&mut self, kind: ListKind, request: &Message, answer: &Message) -> bool {
        let (Some((print, next)), cursor) = (read_page(kind, answer), request.param("cursor"))
        else {
            return false;
        };
        if kind == ListKind::Tools {
            let first = cursor.is_none();
            self.hints.observe(&self.config.settings, first, answer);
        }
        let before = self.restore.seen.get(&kind).cloned();
        let seen = self.restore.seen.entry(kind).or_default();
        match cursor {
            None => seen.prints.clear(),
            Some(cursor) if seen.next.as_ref() == Some(&cursor) => {}
            // A page out of turn says nothing of the whole.
            Some(_) => return false,
        }
        if seen.prints.len() < self.config.settings.list_pages_max as usize {
            seen.prints.push(print);
            seen.next = next;
        }
        before.as_ref() != Some(seen)
    }

    /// A resumed session is in use: it is told again what the lost gateway may not have finished
    /// telling. After the client's own first request, which is the one that proves the session.
    pub(super) fn restore_if_due(&mut self, now: Moment, generation: Generation) {
        if std::mem::take(&mut self.restore_due) {
            self.restore_state(now, generation);
            self.flush(now, generation);
        }
    }

    /// A recovered instance is ready: it is told what the lost one knew, before anything new.
    pub(super) fn restore_state(&mut self, now: Moment, generation: Generation) {
        if let Some(restore) = self.restore.held() {
            restore.reading.clear();
        }
        self.drop_restores(generation);
        let mut remakes: Vec<(Method, &str, Bytes)> = Vec::new();
        if let Some(level) = &self.restore.log_level {
            remakes.push((Method::SetLevel, "level", level.clone()));
        }
        for uri in &self.restore.subscriptions {
            remakes.push((Method::Subscribe, "uri", uri.clone()));
        }
        for (method, member, value) in remakes {
            let mut raw =
                format!(r#""method":"{}","params":{{"{member}":"#, method.as_str()).into_bytes();
            raw.extend_from_slice(&value);
            raw.push(b'}');
            let key = self.internal_key();
            self.accept_first(now, key, Task::Remake(raw.into()), method);
        }
        let kinds: Vec<ListKind> = self.restore.seen.keys().copied().collect();
        for kind in kinds {
            let has = self
                .instances
                .get(&generation)
                .is_some_and(|instance| instance.has_capability(kind.capability()));
            if has {
                self.reread(now, kind, None);
            } else {
                self.forget_list(kind);
                self.tell(SessionEvent::ListChanged(kind));
            }
        }
    }

    /// What an instance before this one was to be told is not told to this one too: something of it
    /// may have been taken back meanwhile.
    fn drop_restores(&mut self, generation: Generation) {
        let stale: Vec<CallKey> = self
            .pending
            .iter()
            .filter(|(_, pending)| {
                matches!(pending.task, Task::Remake(_) | Task::Reread(..))
                    && !matches!(pending.place, Place::Sent { generation: with, .. } if with == generation)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in stale {
            self.give_up(key);
        }
    }

    /// Queues ahead of the clients' calls.
    fn accept_first(&mut self, now: Moment, key: CallKey, task: Task, method: Method) {
        self.pending.insert(key, Pending::new(now, task, method));
        self.waiting.push_front(key);
    }

    fn reread(&mut self, now: Moment, kind: ListKind, cursor: Option<Bytes>) {
        self.restore.reading.entry(kind).or_default();
        let key = self.internal_key();
        self.accept(now, key, Task::Reread(kind, cursor), kind.method());
    }

    fn on_reread(&mut self, now: Moment, kind: ListKind, answer: &Message) -> bool {
        let Some((print, next)) = read_page(kind, answer) else {
            self.end_reading(kind);
            return false;
        };
        if kind == ListKind::Tools {
            let reading = self.restore.reading.get(&kind);
            let first = reading.is_none_or(|reading| reading.prints.is_empty());
            self.hints.observe(&self.config.settings, first, answer);
        }
        let pages_max = self.config.settings.list_pages_max as usize;
        let restore = self.restore.held();
        let Some(reading) = restore.and_then(|restore| restore.reading.get_mut(&kind)) else {
            return false;
        };
        reading.prints.push(print);
        reading.pages.extend(answer.result());
        if let Some(next) = next
            && reading.prints.len() < pages_max
        {
            self.reread(now, kind, Some(next));
            return false;
        }
        let Some(reading) = self.end_reading(kind) else {
            return false;
        };
        let differs = self.restore.seen.get(&kind).is_some_and(|seen| {
            let partial = seen.next.is_some();
            let known = reading.prints.get(..seen.prints.len());
            known != Some(&seen.prints[..])
                || (!partial && reading.prints.len() != seen.prints.len())
        });
        self.tell(SessionEvent::Listed {
            kind,
            pages: reading.pages,
        });
        if differs {
            let seen = Seen {
                prints: reading.prints,
                next: None,
            };
            self.restore.seen.insert(kind, seen);
            self.tell(SessionEvent::ListChanged(kind));
        }
        differs
    }
}

/// Whether this raw JSON string is this URI.
fn names(raw: &[u8], uri: &str) -> bool {
    json::string(raw).is_some_and(|text| text == uri)
}

/// Fingerprint of the items of a page, and the raw cursor of the next.
fn read_page(kind: ListKind, answer: &Message) -> Option<(Print, Option<Bytes>)> {
    let bytes = answer.bytes();
    let result = answer.envelope().result?;
    let items = json::member(bytes, result, kind.items())?;
    let next = json::member(bytes, result, "nextCursor")
        .map(|span| Bytes::copy_from_slice(span.of(bytes)))
        .filter(|raw| raw.as_ref() != b"null");
    Some((Sha256::digest(items.of(bytes)).into(), next))
}
