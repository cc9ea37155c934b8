//! One upstream for several sessions (`scope: global`, DESIGN.md section 6).
//!
//! Owns who uses the upstream, who hears what its server says, and what the server is told for all of
//! them: it is subscribed to what anybody wants, and logs as much as anybody wants. Calls are the
//! upstream machine's, whoever they are from. Must not know what a call asks for, nor instances.
//!
//! Nothing of one session reaches another (I9): answers and progress go by the key of the call,
//! updates by subscription, and what could be for several goes to none.
//!
//! Shape: [`Shared::handle`], then [`Shared::poll`] until it is empty, then
//! [`Shared::next_deadline`].

mod inbound;
mod member;
mod serving;
mod wish;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::serving::{Handover, Parted, Serving};

use self::inbound::Asked;
use self::wish::{Change, Line, Topic, Wish};
use crate::call::{CallKey, Generation, InstanceKey, Moment, SessionKey};
use crate::session::Level;
use crate::upstream::{
    self, Binding, Drain, Event, Hello, Input, Moved, Output, SessionEvent, Upstream,
    UpstreamConfig, share_settings,
};

/// What a server that several clients share is told of its client. No roots: they would be those of
/// all clients. What else it asks goes to the one client that has a call in flight.
const PARAMS: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{"form":{},"url":{}}},"#,
    r#""clientInfo":{"name":"springline","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#
);

/// The handshake with a server that several clients share.
pub fn hello() -> Hello {
    Hello {
        params: PARAMS.into(),
    }
}

/// What is known of one session's use of the upstream.
#[derive(Clone, Debug, Default)]
struct Bound {
    /// The handshake of its client, should it get an upstream of its own.
    hello: Option<Hello>,
    attached: bool,
    /// The log level that it wants.
    level: Option<Level>,
    /// How many subscriptions it holds.
    held: usize,
    /// It has an upstream of its own already, and only waits for its last calls here.
    parting: bool,
}

/// An upstream that several sessions use.
#[derive(Debug)]
pub struct Shared {
    machine: Upstream,
    /// What the server is told of its client: us.
    hello: Hello,
    /// The raw `result` of the last handshake, if it is known.
    result: Option<Bytes>,
    bindings: BTreeMap<Binding, Bound>,
    /// By which name the session of a call knows the server. Until the call is answered.
    calls: BTreeMap<CallKey, Arc<str>>,
    /// Who is asked something by the server.
    asks: BTreeMap<(InstanceKey, Bytes), Asked>,
    /// Who is subscribed to what.
    holders: BTreeMap<Box<str>, BTreeSet<Binding>>,
    /// What is being changed at the server, one change of a kind at a time.
    lines: BTreeMap<Topic, Line>,
    /// What the requests that change something mean.
    wishes: BTreeMap<CallKey, Wish>,
    /// Numbers of requests of our own.
    own_last: u64,
    /// After the last session is gone, the upstream is kept for so long.
    idle: Option<Duration>,
    /// Since when nobody uses it and it may be ended.
    vacant_since: Option<Moment>,
    /// It may be ended when the last calls of sessions that parted from it are over.
    ends_unused: bool,
    /// The message that is looked at came on the exchange of a request that is no client's.
    is_ownerless: bool,
    out: VecDeque<Output>,
}

/// What one shared upstream leaves to the one that takes its place.
#[derive(Clone, Debug)]
pub struct Legacy {
    machine: upstream::Legacy,
    hello: Hello,
    bindings: BTreeMap<Binding, Bound>,
    calls: BTreeMap<CallKey, Arc<str>>,
    holders: BTreeMap<Box<str>, BTreeSet<Binding>>,
    wishes: BTreeMap<CallKey, Wish>,
    own_last: u64,
}

impl Shared {
    /// Makes an upstream machine one that several sessions use. `hello` is what its servers are told;
    /// `result` what the server answered to it last, for one that goes on with an older session.
    pub fn new(mut machine: Upstream, hello: Hello, result: Option<Bytes>) -> Self {
        let idle = machine.share();
        Self {
            machine,
            hello,
            result,
            bindings: BTreeMap::new(),
            calls: BTreeMap::new(),
            asks: BTreeMap::new(),
            holders: BTreeMap::new(),
            lines: BTreeMap::new(),
            wishes: BTreeMap::new(),
            own_last: 0,
            idle,
            vacant_since: None,
            ends_unused: false,
            is_ownerless: false,
            out: VecDeque::new(),
        }
    }

    /// The one that takes the place of another, whose server is configured otherwise now.
    pub fn succeed(config: UpstreamConfig, legacy: Legacy, now: Moment) -> Self {
        let machine = Upstream::succeed(config, legacy.machine, now);
        Self {
            bindings: legacy.bindings,
            calls: legacy.calls,
            holders: legacy.holders,
            wishes: legacy.wishes,
            own_last: legacy.own_last,
            ..Self::new(machine, legacy.hello, None)
        }
    }

    /// What the one that takes the place of this must know. Drain this one ([`Drain::Move`]) before
    /// anything else happens to it.
    pub fn legacy(&self) -> Legacy {
        let mut wishes = self.wishes.clone();
        for line in self.lines.values() {
            wishes.extend(line.waiting().map(|(key, wish)| (key, wish.clone())));
        }
        let mut calls = self.calls.clone();
        calls.retain(|key, _| !self.machine.stays(*key));
        let mut bindings = self.bindings.clone();
        bindings.retain(|_, bound| !bound.parting);
        let mut machine = self.machine.legacy();
        if bindings.is_empty() {
            // Nobody wants an instance, nor a record of none.
            machine.forget();
        }
        Legacy {
            machine,
            hello: self.hello.clone(),
            bindings,
            calls,
            holders: self.holders.clone(),
            wishes,
            own_last: self.own_last,
        }
    }

    /// Takes one input. What sessions say comes as [`Input::Of`]; everything else is the driver's.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "everything else is the machine's"
    )]
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Of { binding, input } => self.on_binding(now, &binding, *input),
            Input::Take { key, moved } => self.on_take(now, key, moved),
            Input::Drain(drain) => self.on_drain(now, drain),
            Input::Settings(mut settings) => {
                self.idle = share_settings(&mut settings);
                self.machine.handle(now, Input::Settings(settings));
            }
            Input::Timer => self.on_timer(now),
            driver => {
                if let Input::Message { exchange, .. } = &driver {
                    let machine = &self.machine;
                    self.is_ownerless = exchange.is_some_and(|at| machine.is_ownerless(at));
                }
                self.machine.handle(now, driver);
            }
        }
        self.route(now);
        self.is_ownerless = false;
        self.end_vacant(now);
    }

    /// What waits here for its turn may be late at the very moment in which it is passed on (I7).
    fn on_timer(&mut self, now: Moment) {
        let waiting = self.lines.values().map(|line| line.queue.len());
        for _ in 0..=waiting.sum() {
            self.machine.handle(now, Input::Timer);
            self.route(now);
            let next = self.machine.next_deadline();
            if next.is_none_or(|next| next > now) {
                return;
            }
        }
    }

    /// The next thing that the driver has to do, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// Lends room for outputs, so that a turn need not make its own: before [`Self::handle`], and
    /// taken back with [`Self::take_outputs`]. Outputs that still wait keep their place.
    pub fn lend_room(&mut self, room: VecDeque<Output>) {
        if self.out.is_empty() {
            self.out = room;
        }
    }

    /// All that the driver has to do, in order: [`Self::poll`] in one go.
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        std::mem::take(&mut self.out)
    }

    /// When [`Input::Timer`] is due. Read it after [`Self::poll`] was drained.
    pub fn next_deadline(&self) -> Option<Moment> {
        let vacant = self.vacant_since.zip(self.idle);
        let vacant = vacant.map(|(since, idle)| since.after(idle));
        let own = self.machine.next_deadline();
        [vacant, own].into_iter().flatten().min()
    }

    /// The machine that serves all of them.
    pub fn machine(&self) -> &Upstream {
        &self.machine
    }

    /// Puts one that refuses new calls back into service, if its end was not begun.
    pub fn revive(&mut self) -> bool {
        self.machine.revive()
    }

    /// Lets its child give way to another ([`Upstream::give_way`]).
    pub fn give_way(&mut self, now: Moment) -> Option<Generation> {
        let generation = self.machine.give_way(now);
        self.route(now);
        generation
    }

    /// How many sessions use it, by how many names.
    pub fn bindings_len(&self) -> usize {
        self.bindings.len()
    }

    /// Does what the machine says: what is for a session finds its session.
    fn route(&mut self, now: Moment) {
        while let Some(output) = self.machine.poll() {
            if let Output::ToSession { session, event, .. } = output {
                self.on_event(now, session, event);
            } else if let Output::Moved { key, server, moved } = output {
                self.pass_on(key, server, moved);
            } else {
                self.out.push_back(output);
            }
        }
    }

    /// What goes to nobody is an event.
    fn dropped(&mut self, reason: &'static str) {
        let generation = self.machine.generation();
        self.out
            .push_back(Output::Emit(Event::Dropped { generation, reason }));
    }

    fn tell(&mut self, binding: &Binding, event: SessionEvent) {
        self.out.push_back(Output::ToSession {
            session: binding.session,
            server: Arc::clone(&binding.server),
            event,
        });
    }

    /// Tells whose call it is what became of it.
    fn tell_caller(&mut self, key: CallKey, event: SessionEvent) {
        if let Some(server) = self.calls.remove(&key) {
            let binding = Binding {
                session: key.session,
                server,
            };
            self.tell(&binding, event);
            self.forget_parted(&binding);
        }
    }

    /// A request goes on wherever its session goes now, and is none of this one's any more.
    fn pass_on(&mut self, key: CallKey, server: Arc<str>, moved: Box<Moved>) {
        let name = self.calls.remove(&key);
        let server = name.unwrap_or(server);
        let binding = Binding {
            session: key.session,
            server: Arc::clone(&server),
        };
        self.out.push_back(Output::Moved { key, server, moved });
        self.forget_parted(&binding);
    }

    fn own_key(&mut self) -> CallKey {
        self.own_last = self.own_last.saturating_add(1);
        CallKey {
            session: SessionKey::SHARED,
            number: self.own_last,
        }
    }

    /// The upstream goes out of service; what waits here goes the way of what waits there.
    fn on_drain(&mut self, now: Moment, drain: Drain) {
        self.machine.handle(now, Input::Drain(drain));
        for (_, line) in std::mem::take(&mut self.lines) {
            for (key, change) in line.into_waiting() {
                self.machine.handle(now, change.into_input(key, false));
            }
        }
    }

    /// A request that another machine had not sent.
    fn on_take(&mut self, now: Moment, key: CallKey, moved: Box<Moved>) {
        if moved.message().is_none() {
            self.start(now, key);
            return;
        }
        let wish = self.wishes.remove(&key);
        let message = moved.message().cloned();
        match wish.zip(message) {
            Some((wish, message)) => self.begin(now, key, Change::moved(message, moved), wish),
            None => self.machine.handle(now, Input::Take { key, moved }),
        }
    }

    /// Ends what nobody uses for long enough.
    fn end_vacant(&mut self, now: Moment) {
        if self.bindings.is_empty() && std::mem::take(&mut self.ends_unused) {
            self.vacant_since = Some(now);
        }
        let due = self.vacant_since.is_some_and(|since| {
            let until = self.idle.map_or(since, |idle| since.after(idle));
            until <= now
        });
        if !due {
            return;
        }
        self.vacant_since = None;
        self.machine.release(now);
        self.result = None;
        self.holders.clear();
        self.lines.clear();
        self.wishes.clear();
        // Who is asked hears that the instance is gone.
        self.route(now);
    }
}

#[cfg(test)]
mod tests;
