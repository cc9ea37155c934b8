//! What is different where several sessions use one upstream.
//!
//! The machine itself serves calls whoever they are from: a call is known by a key that names its
//! session. Who hears what, and what is wanted of the server, [`crate::shared`] decides; this is what
//! it needs of the machine.

use std::time::Duration;

use crate::call::{CallKey, Generation, Moment, SessionKey};
use crate::message::Message;
use crate::settings::UpstreamSettings;
use crate::upstream::drain::{Legacy, Moved};
use crate::upstream::pending::{Place, Task};
use crate::upstream::port::{Hello, Output};
use crate::upstream::{Phase, Upstream};

impl Upstream {
    /// Whether several sessions use it: then a start joins what is there.
    pub(super) fn is_shared(&self) -> bool {
        self.config.session == SessionKey::SHARED
    }

    /// Whether an instance takes requests, and new ones may enter.
    pub(crate) fn takes_calls(&self) -> bool {
        matches!(self.phase, Phase::Ready(_)) && self.drain.is_none()
    }

    /// Whether a client is attached.
    pub(crate) fn attached(&self) -> bool {
        self.attached
    }

    /// Whether this request can only end here: it is with an instance, and not safe to send to
    /// another.
    pub(crate) fn stays(&self, key: CallKey) -> bool {
        self.pending.get(&key).is_some_and(|pending| {
            matches!(pending.place, Place::Sent { .. }) && !pending.sets_up()
        })
    }

    /// Makes the settings those of an upstream that several sessions use, and says after which time
    /// without any of them it is ended. What waits is bounded by each session, so that none takes
    /// the place of another.
    pub(crate) fn share(&mut self) -> Option<Duration> {
        self.config.session = SessionKey::SHARED;
        share_settings(std::sync::Arc::make_mut(&mut self.config.settings))
    }

    /// A request may come ahead of every handshake of a session: the server is told of us all the
    /// same.
    pub(crate) fn introduce(&mut self, hello: &Hello) {
        if self.hello.is_none() {
            self.hello = Some(hello.clone());
        }
    }

    /// Instances get names above this one: a session that comes here has heard of it (I3).
    pub(crate) fn begin_above(&mut self, generation: Generation) {
        self.generation_last = self.generation_last.max(generation);
    }

    /// The last generation, or zero.
    pub(crate) fn generation(&self) -> Generation {
        self.generation_last
    }

    /// The requests of sessions that are with an instance.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = CallKey> {
        self.pending
            .iter()
            .filter(|(key, pending)| {
                key.session != SessionKey::SHARED
                    && matches!(pending.task, Task::Client(_))
                    && matches!(pending.place, Place::Sent { .. })
            })
            .map(|(key, _)| *key)
    }

    /// The raw log level that a new instance is told.
    pub(crate) fn log_level(&self) -> Option<&bytes::Bytes> {
        self.restore.log_level()
    }

    /// A new instance is told this level.
    pub(crate) fn set_log_level(&mut self, raw: bytes::Bytes) {
        self.restore.set_log_level(raw);
    }

    /// Whether a new instance is told of a subscription to this URI.
    pub(crate) fn is_subscribed(&self, uri: &str) -> bool {
        self.restore.is_subscribed(uri)
    }

    /// A new instance is told of a subscription to this URI.
    pub(crate) fn keep_subscription(&mut self, uri: &str) {
        self.restore.keep_subscription(uri);
    }

    /// A new instance is not told of a subscription to this URI any more.
    pub(crate) fn drop_subscription(&mut self, uri: &str) {
        if let Some(restore) = self.restore.held() {
            restore.unsubscribe(uri);
        }
    }

    /// Nobody uses the upstream any more: its record goes, its instance is ended, and the next start
    /// begins from nothing. Generations go on growing.
    pub(crate) fn release(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Closed(_)) || self.drain.is_some() {
            return;
        }
        // What is left are requests of our own, of which nobody hears.
        for key in self.pending.keys().copied().collect::<Vec<_>>() {
            self.give_up(key);
        }
        self.persisted = None;
        self.out.push_back(Output::Forget);
        match &self.phase {
            Phase::Starting(attempt) => {
                let attempt = attempt.clone();
                self.phase = Phase::Idle;
                self.abandon(&attempt, true);
            }
            Phase::Ready(generation) => {
                let generation = *generation;
                self.retire(generation, "no session uses it");
            }
            Phase::Idle | Phase::Closed(_) => {}
        }
        self.restore.clear();
        self.restore_due = false;
        self.was_ready = false;
        self.end_retired(now);
    }

    /// Takes a request out that need not finish here: it was not sent, or is safe to send again.
    pub(crate) fn extract(&mut self, key: CallKey, hello: Option<&Hello>) -> Option<Box<Moved>> {
        let pending = self.pending.get(&key)?;
        if matches!(pending.place, Place::Sent { .. }) && !pending.sets_up() {
            return None;
        }
        let was_sent = matches!(pending.place, Place::Sent { .. });
        let mut pending = self.give_up(key)?;
        // Nobody hears what comes of it here: it may have run (I4).
        pending.may_have_run |= was_sent;
        Some(Box::new(Moved::of(pending, hello.cloned())))
    }

    /// What an upstream of one session must know that takes the place of this one for that session.
    pub(crate) fn legacy_of(
        &self,
        hello: Option<Hello>,
        attached: bool,
        subscriptions: impl Iterator<Item = Box<str>>,
        level: Option<bytes::Bytes>,
    ) -> Legacy {
        let mut legacy = self.legacy();
        legacy.was_ready = hello.is_some();
        legacy.hello = hello;
        legacy.attached = attached;
        legacy.restore.0 = subscriptions
            .map(|uri| crate::json::quote(&uri).into())
            .collect();
        legacy.restore.1 = level;
        legacy
    }
}

/// The same for settings that come later.
pub(crate) fn share_settings(settings: &mut UpstreamSettings) -> Option<Duration> {
    settings.waiting_max = usize::MAX;
    settings.idle_timeout.take()
}

impl Moved {
    /// The same request in other words.
    #[must_use]
    pub(crate) fn saying(mut self: Box<Self>, message: Message) -> Box<Self> {
        self.pending.task = Task::Client(message);
        self
    }

    /// The request, unless it is a start.
    pub(crate) fn message(&self) -> Option<&Message> {
        match &self.pending.task {
            Task::Client(message) => Some(message),
            Task::Start | Task::Ping | Task::Remake(_) | Task::Reread(..) => None,
        }
    }
}
