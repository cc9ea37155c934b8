//! Sessions that come to a shared upstream, speak to it, and leave it.

use std::sync::Arc;

use bytes::Bytes;

use super::wish::{Change, changes_something};
use super::{Bound, Parted, Shared};
use crate::call::{CallKey, InstanceKey, Moment};
use crate::json;
use crate::message::Message;
use crate::method::Method;
use crate::session::Level;
use crate::upstream::{Binding, Input, Legacy, SessionEvent};

impl Shared {
    /// A session says something.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the rest is not a session's to say"
    )]
    pub(super) fn on_binding(&mut self, now: Moment, binding: &Binding, input: Input) {
        match input {
            Input::Start { key, hello } => {
                let bound = self.bind(binding);
                if bound.hello.replace(hello).is_some() {
                    // Its client starts over: what it had set up is gone.
                    self.drop_wishes(now, binding);
                }
                self.note_call(key, binding);
                self.start(now, key);
            }
            Input::Greet { hello } => {
                self.bind(binding).hello = Some(hello);
                let hello = self.hello.clone();
                self.machine.handle(now, Input::Greet { hello });
            }
            Input::Holds {
                subscriptions,
                level,
            } => {
                self.bind(binding).level = level.as_deref().and_then(Level::parse);
                for uri in subscriptions {
                    self.hold_again(now, binding, uri);
                }
                self.adjust_level(now);
            }
            Input::Join(legacy) => self.on_join(now, binding, &legacy),
            Input::Call {
                key,
                message,
                stretches,
            } => {
                self.bind(binding);
                self.machine.introduce(&self.hello);
                self.note_call(key, binding);
                self.on_call(now, binding, key, message.into(), stretches);
            }
            Input::Take { key, moved } => {
                self.bind(binding);
                self.machine.introduce(&self.hello);
                self.note_call(key, binding);
                match moved.message().cloned() {
                    Some(message)
                        if changes_something(&message) && !self.wishes.contains_key(&key) =>
                    {
                        self.on_call(now, binding, key, Change::moved(message, moved), false);
                    }
                    Some(_) | None => self.on_take(now, key, moved),
                }
            }
            Input::Cancel { key, message } => self.on_cancel(now, key, message),
            Input::Asking { key, begins } => {
                self.machine.handle(now, Input::Asking { key, begins });
            }
            Input::Notify { message } => self.on_notify(now, binding, message),
            Input::Reply {
                instance,
                id,
                message,
            } => self.on_reply(now, binding, instance, id, message),
            Input::Attached(attached) => {
                if let Some(bound) = self.bindings.get_mut(binding) {
                    bound.attached = attached;
                    self.tell_attached(now);
                }
            }
            Input::Close { end_session, .. } => self.leave(now, binding, end_session),
            _ => {}
        }
    }

    fn bind(&mut self, binding: &Binding) -> &mut Bound {
        self.vacant_since = None;
        self.ends_unused = false;
        let bound = self.bindings.entry(binding.clone()).or_default();
        bound.parting = false;
        bound
    }

    fn note_call(&mut self, key: CallKey, binding: &Binding) {
        self.calls.insert(key, Arc::clone(&binding.server));
    }

    /// Somebody wants the instance to be ready: it is, or a start is joined or begun.
    pub(super) fn start(&mut self, now: Moment, key: CallKey) {
        if self.machine.takes_calls() {
            if let Some(result) = self.result.clone() {
                self.tell_caller(key, SessionEvent::Started { key, result });
                return;
            }
            // A session of before the restart of which nothing is remembered.
            self.machine.handle(now, Input::Retire);
        }
        let hello = self.hello.clone();
        self.machine.handle(now, Input::Start { key, hello });
    }

    /// A session that had an upstream of its own until now.
    fn on_join(&mut self, now: Moment, binding: &Binding, legacy: &Legacy) {
        self.machine.begin_above(legacy.generation());
        let (uris, level) = legacy.wishes();
        let bound = self.bind(binding);
        bound.hello = legacy.hello().cloned();
        bound.attached = legacy.attached();
        bound.level = level.and_then(|raw| Level::parse(raw));
        for uri in uris.iter().filter_map(|raw| json::string(raw)) {
            self.hold_again(now, binding, uri.into());
        }
        self.adjust_level(now);
        self.tell_attached(now);
        let hello = self.hello.clone();
        self.machine.handle(now, Input::Greet { hello });
    }

    fn on_cancel(&mut self, now: Moment, key: CallKey, message: Option<Message>) {
        let Some(server) = self.calls.remove(&key) else {
            return;
        };
        if self.take_waiting(key).is_none() {
            self.machine.handle(now, Input::Cancel { key, message });
            self.doubt_wish(now, key);
        }
        self.forget_parted(&Binding {
            session: key.session,
            server,
        });
    }

    fn on_notify(&mut self, now: Moment, binding: &Binding, message: Message) {
        let method = Method::of(&message);
        if method == Method::RootsChanged {
            // A shared server was not told of roots: they would be those of all its clients.
            return;
        }
        if method == Method::Progress {
            let token = message.param("progressToken");
            let is_asked = token.is_some()
                && self
                    .asks
                    .values()
                    .any(|asked| asked.binding == *binding && asked.token == token);
            if !is_asked {
                self.dropped("progress of a client that was not asked");
                return;
            }
        }
        self.machine.handle(now, Input::Notify { message });
    }

    fn on_reply(
        &mut self,
        now: Moment,
        binding: &Binding,
        instance: InstanceKey,
        id: Bytes,
        message: Message,
    ) {
        let place = (instance, id);
        let is_asked = self
            .asks
            .get(&place)
            .is_some_and(|asked| asked.binding == *binding);
        if !is_asked {
            self.dropped("answer of a client that was not asked");
            return;
        }
        self.asks.remove(&place);
        let (instance, id) = place;
        self.machine.handle(
            now,
            Input::Reply {
                instance,
                id,
                message,
            },
        );
    }

    fn tell_attached(&mut self, now: Moment) {
        let any = self.bindings.values().any(|bound| bound.attached);
        if self.machine.attached() != any {
            self.machine.handle(now, Input::Attached(any));
        }
    }

    /// A session is over. Only what is its own ends with it; the last one lets the upstream end, if
    /// no session that is at rest may come back to it.
    fn leave(&mut self, now: Moment, binding: &Binding, may_end: bool) {
        self.bindings.remove(binding);
        self.drop_calls(now, binding);
        if self.bindings.is_empty() && may_end {
            self.vacant_since = Some(now);
            if self.idle.is_none() {
                return;
            }
        }
        self.drop_wishes(now, binding);
        self.tell_attached(now);
    }

    fn drop_calls(&mut self, now: Moment, binding: &Binding) {
        let own = |key: &CallKey, server: &Arc<str>| {
            key.session == binding.session && *server == binding.server
        };
        let keys: Vec<CallKey> = self
            .calls
            .iter()
            .filter(|(key, server)| own(key, server))
            .map(|(key, _)| *key)
            .collect();
        // What waits first: nothing of it may have its turn when something before it is cancelled.
        let (waiting, others): (Vec<_>, Vec<_>) = keys
            .into_iter()
            .partition(|key| self.take_waiting(*key).is_some());
        for key in waiting {
            self.calls.remove(&key);
        }
        for key in others {
            self.on_cancel(now, key, None);
        }
        self.answer_asks_of(now, binding);
    }

    /// Gives one session up to an upstream of its own: what that one must know, and the requests
    /// that need not end here. `may_end` says that it may be ended if nobody else uses it.
    pub fn part(&mut self, now: Moment, binding: &Binding, may_end: bool) -> Parted {
        let bound = self.bindings.get(binding).cloned().unwrap_or_default();
        let held = self
            .holders
            .iter()
            .filter(|(_, holders)| holders.contains(binding));
        let legacy = self.machine.legacy_of(
            bound.hello.clone(),
            bound.attached,
            held.map(|(uri, _)| uri.clone()),
            bound
                .level
                .map(|level| Bytes::from_static(level.raw().as_bytes())),
        );
        let keys: Vec<CallKey> = self
            .calls
            .iter()
            .filter(|(key, server)| key.session == binding.session && **server == binding.server)
            .map(|(key, _)| *key)
            .collect();
        let mut moved = Vec::new();
        for key in keys {
            let taken = match self.take_waiting(key) {
                Some(change) => Some(change.into_moved(now)),
                None => self.machine.extract(key, bound.hello.as_ref()),
            };
            if let Some(taken) = taken {
                self.calls.remove(&key);
                self.end_wish(now, key, false);
                moved.push((key, taken));
            }
        }
        if let Some(bound) = self.bindings.get_mut(binding) {
            bound.parting = true;
            bound.attached = false;
        }
        self.drop_wishes(now, binding);
        self.tell_attached(now);
        self.forget_parted(binding);
        self.ends_unused = may_end;
        // What this brought about comes before whatever happens next.
        self.route(now);
        (legacy, moved)
    }

    /// One that has an upstream of its own is gone with its last call here.
    pub(super) fn forget_parted(&mut self, binding: &Binding) {
        let parts = self
            .bindings
            .get(binding)
            .is_some_and(|bound| bound.parting);
        let is_busy = || {
            self.calls
                .iter()
                .any(|(key, server)| key.session == binding.session && *server == binding.server)
        };
        if parts && !is_busy() {
            self.bindings.remove(binding);
        }
    }
}
