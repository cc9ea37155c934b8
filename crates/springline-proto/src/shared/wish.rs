//! What sessions want of the server: subscriptions and the log level.
//!
//! The server is subscribed to a resource from the first session that wants it to the last, and logs
//! what the most curious one wants. Changes of the same thing go one after the other: two requests on
//! two connections may overtake each other.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Shared;
use crate::call::{CallKey, Moment, SessionKey};
use crate::error::{Fault, FaultKind, Outcome};
use crate::json;
use crate::message::Message;
use crate::method::Method;
use crate::session::Level;
use crate::settings::SUBSCRIPTIONS_MAX;
use crate::upstream::{Binding, Input, Moved, SessionEvent};

/// Something that is changed by one request at a time.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Topic {
    /// The subscription to this resource.
    Uri(Box<str>),
    /// The log level.
    Level,
}

/// What a request is to change.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    Subscribe(Binding, Box<str>),
    Unsubscribe(Binding, Box<str>),
    /// The level that the session wants, the one that it wanted before, and what the server is asked.
    Level {
        binding: Binding,
        level: Level,
        before: Option<Level>,
        sent: Option<Level>,
    },
    /// Our own: as many subscriptions, or as much in the log, as is wanted now.
    Adjust(Topic),
}

impl Wish {
    fn topic(&self) -> Topic {
        match self {
            Self::Subscribe(_, uri) | Self::Unsubscribe(_, uri) => Topic::Uri(uri.clone()),
            Self::Level { .. } => Topic::Level,
            Self::Adjust(topic) => topic.clone(),
        }
    }
}

/// The changes of one thing.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// The one that the server has.
    current: Option<CallKey>,
    /// Those that come after it. Bounded by the pending requests of all sessions.
    pub(super) queue: VecDeque<(CallKey, Change, Wish)>,
}

/// A request that changes something.
#[derive(Debug)]
pub(super) struct Change {
    message: Message,
    /// What is known of it, if another machine had it before: it may have run there, and its deadline
    /// goes on.
    moved: Option<Box<Moved>>,
}

impl Change {
    pub(super) fn moved(message: Message, moved: Box<Moved>) -> Self {
        let moved = Some(moved);
        Self { message, moved }
    }

    /// As the upstream machine takes it.
    pub(super) fn into_input(self, key: CallKey, stretches: bool) -> Input {
        let message = self.message;
        match self.moved {
            Some(moved) => Input::Take {
                key,
                moved: moved.saying(message),
            },
            None => Input::Call {
                key,
                message,
                stretches,
            },
        }
    }

    /// As another machine takes it.
    pub(super) fn into_moved(self, now: Moment) -> Box<Moved> {
        let message = self.message;
        self.moved
            .unwrap_or_else(|| Box::new(Moved::fresh(now, message)))
    }

    fn outcome(&self) -> Outcome {
        let moved = self.moved.as_ref();
        moved.map_or(Outcome::NotExecuted, |moved| moved.outcome())
    }
}

impl From<Message> for Change {
    fn from(message: Message) -> Self {
        let moved = None;
        Self { message, moved }
    }
}

impl Line {
    pub(super) fn waiting(&self) -> impl Iterator<Item = (CallKey, &Wish)> {
        self.queue.iter().map(|(key, _, wish)| (*key, wish))
    }

    pub(super) fn into_waiting(self) -> impl Iterator<Item = (CallKey, Change)> {
        self.queue.into_iter().map(|(key, change, _)| (key, change))
    }
}

impl Shared {
    /// A request of a session.
    pub(super) fn on_call(
        &mut self,
        now: Moment,
        binding: &Binding,
        key: CallKey,
        change: Change,
        stretches: bool,
    ) {
        match Self::wish_of(binding, &change.message) {
            Some(Wish::Subscribe(..)) if self.holds_enough(binding) => {
                let fault = Fault::new(FaultKind::TooManyPending)
                    .outcome(change.outcome())
                    .because("too many subscriptions with a shared server")
                    .of(&binding.server);
                let server_error = None;
                self.tell_caller(
                    key,
                    SessionEvent::Failed {
                        key,
                        fault,
                        server_error,
                    },
                );
            }
            Some(wish) => self.begin(now, key, change, wish),
            None => self.machine.handle(now, change.into_input(key, stretches)),
        }
    }

    fn wish_of(binding: &Binding, message: &Message) -> Option<Wish> {
        if !changes_something(message) {
            return None;
        }
        let method = Method::parse(&message.method()?);
        if method == Method::SetLevel {
            let level = Level::parse(&message.param("level")?)?;
            return Some(Wish::Level {
                binding: binding.clone(),
                level,
                before: None,
                sent: None,
            });
        }
        let uri = Box::from(&*json::string(&message.param("uri")?)?);
        Some(if method == Method::Subscribe {
            Wish::Subscribe(binding.clone(), uri)
        } else {
            Wish::Unsubscribe(binding.clone(), uri)
        })
    }

    fn holds_enough(&self, binding: &Binding) -> bool {
        self.bindings
            .get(binding)
            .is_some_and(|bound| bound.held >= SUBSCRIPTIONS_MAX)
    }

    /// Takes a change in: now, or after those of the same thing that came before.
    pub(super) fn begin(&mut self, now: Moment, key: CallKey, change: Change, wish: Wish) {
        let topic = wish.topic();
        self.lines
            .entry(topic.clone())
            .or_default()
            .queue
            .push_back((key, change, wish));
        self.go_on(now, &topic);
    }

    /// Does what waits for its turn, until the server is asked.
    fn go_on(&mut self, now: Moment, topic: &Topic) {
        loop {
            let Some(line) = self.lines.get_mut(topic) else {
                return;
            };
            if line.current.is_some() {
                return;
            }
            let Some((key, mut change, mut wish)) = line.queue.pop_front() else {
                self.lines.remove(topic);
                return;
            };
            match self.message_for(&change.message, &mut wish) {
                Some(message) => {
                    change.message = message;
                    if let Some(line) = self.lines.get_mut(topic) {
                        line.current = Some(key);
                    }
                    self.wishes.insert(key, wish);
                    self.machine.handle(now, change.into_input(key, false));
                }
                None => self.answer(key),
            }
        }
    }

    /// What the server is asked for this change; nothing if it is so already.
    fn message_for(&mut self, message: &Message, wish: &mut Wish) -> Option<Message> {
        match wish {
            Wish::Subscribe(binding, uri) => {
                if self.is_held(uri) {
                    self.hold(binding, uri);
                    return None;
                }
                Some(message.clone())
            }
            Wish::Unsubscribe(binding, uri) => {
                self.unhold(binding, uri);
                (!self.is_held(uri)).then(|| message.clone())
            }
            Wish::Level {
                binding,
                level,
                before,
                sent,
            } => {
                let held = &mut self.bindings.get_mut(binding)?.level;
                if *held != Some(*level) {
                    *before = held.replace(*level);
                }
                *sent = self.wanted_level();
                self.level_message(message)
            }
            Wish::Adjust(Topic::Level) => {
                if self.machine.takes_calls() {
                    return self.level_message(message);
                }
                // The next instance is told.
                if let Some(wanted) = self.wanted_level() {
                    let raw = Bytes::from_static(wanted.raw().as_bytes());
                    self.machine.set_log_level(raw);
                }
                None
            }
            Wish::Adjust(Topic::Uri(uri)) => self.adjust_message(uri),
        }
    }

    /// The request with the level that all of them together want.
    fn level_message(&self, message: &Message) -> Option<Message> {
        let wanted = self.wanted_level()?;
        if self.machine.log_level().and_then(|raw| Level::parse(raw)) == Some(wanted) {
            return None;
        }
        let span = message.param_span("level")?;
        let body = message.splice().replace(span, wanted.raw()).finish();
        Message::parse(body.to_bytes()).ok()
    }

    fn adjust_message(&mut self, uri: &str) -> Option<Message> {
        let wanted = self.is_held(uri);
        if wanted == self.machine.is_subscribed(uri) {
            return None;
        }
        if !self.machine.takes_calls() {
            // The next instance is told, or not told.
            if wanted {
                self.machine.keep_subscription(uri);
            } else {
                self.machine.drop_subscription(uri);
            }
            return None;
        }
        let method = if wanted {
            Method::Subscribe
        } else {
            Method::Unsubscribe
        };
        let params = format!(r#"{{"uri":{}}}"#, json::quote(uri));
        own_request(method, &params)
    }

    fn wanted_level(&self) -> Option<Level> {
        self.bindings
            .values()
            .filter(|bound| !bound.parting)
            .filter_map(|bound| bound.level)
            .min()
    }

    /// Nothing had to change at the server.
    fn answer(&mut self, key: CallKey) {
        if key.session == SessionKey::SHARED {
            return;
        }
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":0,"result":{}}"#);
        if let Ok(message) = Message::parse(body) {
            self.tell_caller(key, SessionEvent::Answer { key, message });
        }
    }

    /// The server has answered a change, or it is unknown what became of it.
    pub(super) fn end_wish(&mut self, now: Moment, key: CallKey, success: bool) {
        let Some(wish) = self.wishes.remove(&key) else {
            return;
        };
        match (&wish, success) {
            (Wish::Subscribe(binding, uri), true) => {
                if self.bindings.contains_key(binding) {
                    self.hold(binding, uri);
                }
            }
            (Wish::Unsubscribe(binding, uri), false) => {
                if self.bindings.contains_key(binding) && self.machine.is_subscribed(uri) {
                    self.hold(binding, uri);
                }
            }
            (
                Wish::Level {
                    binding, before, ..
                },
                false,
            ) => {
                if let Some(bound) = self.bindings.get_mut(binding) {
                    bound.level = *before;
                }
            }
            (Wish::Adjust(Topic::Uri(uri)), false) => {
                // The next instance is told what is wanted.
                if self.is_held(uri) {
                    self.machine.keep_subscription(uri);
                } else {
                    self.machine.drop_subscription(uri);
                }
            }
            (Wish::Subscribe(..) | Wish::Adjust(Topic::Level), false)
            | (Wish::Unsubscribe(..) | Wish::Level { .. } | Wish::Adjust(_), true) => {}
        }
        let topic = wish.topic();
        if let Some(line) = self.lines.get_mut(&topic)
            && line.current == Some(key)
        {
            line.current = None;
        }
        self.go_on(now, &topic);
    }

    /// A change was cancelled that the server was asked for: it may have been made, and is taken back
    /// if nobody wants it.
    pub(super) fn doubt_wish(&mut self, now: Moment, key: CallKey) {
        let Some(wish) = self.wishes.get(&key) else {
            return;
        };
        let topic = wish.topic();
        match wish {
            Wish::Subscribe(_, uri) => self.machine.keep_subscription(uri),
            Wish::Level {
                sent: Some(sent), ..
            } => {
                let raw = Bytes::from_static(sent.raw().as_bytes());
                self.machine.set_log_level(raw);
            }
            Wish::Unsubscribe(..) | Wish::Level { .. } | Wish::Adjust(_) => {}
        }
        self.end_wish(now, key, false);
        self.adjust(now, topic);
    }

    /// Takes a change out that the server was not asked for yet.
    pub(super) fn take_waiting(&mut self, key: CallKey) -> Option<Change> {
        self.lines.values_mut().find_map(|line| {
            let at = line.queue.iter().position(|(held, ..)| *held == key)?;
            line.queue.remove(at).map(|(_, change, _)| change)
        })
    }

    pub(super) fn is_held(&self, uri: &str) -> bool {
        self.holders
            .get(uri)
            .is_some_and(|holders| !holders.is_empty())
    }

    fn hold(&mut self, binding: &Binding, uri: &str) {
        let holders = self.holders.entry(Box::from(uri)).or_default();
        if holders.insert(binding.clone())
            && let Some(bound) = self.bindings.get_mut(binding)
        {
            bound.held = bound.held.saturating_add(1);
        }
    }

    fn unhold(&mut self, binding: &Binding, uri: &str) {
        let Some(holders) = self.holders.get_mut(uri) else {
            return;
        };
        let was_held = holders.remove(binding);
        if holders.is_empty() {
            self.holders.remove(uri);
        }
        if was_held && let Some(bound) = self.bindings.get_mut(binding) {
            bound.held = bound.held.saturating_sub(1);
        }
    }

    /// A subscription that a session had before it came here.
    pub(super) fn hold_again(&mut self, now: Moment, binding: &Binding, uri: Box<str>) {
        if !self.holds_enough(binding) {
            self.hold(binding, &uri);
            self.adjust(now, Topic::Uri(uri));
        }
    }

    /// Nothing is wanted for this session any more.
    pub(super) fn drop_wishes(&mut self, now: Moment, binding: &Binding) {
        let held: Vec<Box<str>> = self
            .holders
            .iter()
            .filter(|(_, holders)| holders.contains(binding))
            .map(|(uri, _)| uri.clone())
            .collect();
        if let Some(bound) = self.bindings.get_mut(binding) {
            bound.level = None;
        }
        for uri in held {
            self.unhold(binding, &uri);
            if !self.is_held(&uri) {
                self.adjust(now, Topic::Uri(uri));
            }
        }
        self.adjust_level(now);
    }

    /// Brings the log level in line with what is wanted.
    pub(super) fn adjust_level(&mut self, now: Moment) {
        if self.wanted_level().is_some() {
            self.adjust(now, Topic::Level);
        }
    }

    fn adjust(&mut self, now: Moment, topic: Topic) {
        // The level stands where the wanted one goes.
        let Some(message) = own_request(Method::SetLevel, r#"{"level":"info"}"#) else {
            return;
        };
        let key = self.own_key();
        self.begin(now, key, message.into(), Wish::Adjust(topic));
    }
}

/// Whether a request is about what the server shall do for a session from then on.
pub(super) fn changes_something(message: &Message) -> bool {
    let method = Method::of(message);
    matches!(
        method,
        Method::Subscribe | Method::Unsubscribe | Method::SetLevel
    )
}

fn own_request(method: Method, params: &str) -> Option<Message> {
    let method = method.as_str();
    let text = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"{method}","params":{params}}}"#);
    Message::parse(text).ok()
}
