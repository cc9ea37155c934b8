//! The session machine: one client's durable record, whatever happens upstream.
//!
//! Owns the client's pending requests, the questions that servers ask it, its streams and what is
//! held for it. It decides where each message to the client goes, exactly once (I1). Must not know
//! instances: what becomes of a request upstream is the upstream machine's concern.
//!
//! Shape: [`Session::handle`], then [`Session::poll`] until it is empty, then
//! [`Session::next_deadline`].

mod all;
mod ask;
mod attach;
mod client;
mod gather;
mod notice;
mod open;
mod passing;
mod port;
mod record;
mod report;
mod request;
mod route;
mod socket;
mod stream;
mod table;
mod unnoted;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use self::all::All;
use self::ask::Ask;
use self::attach::Faults;
use self::client::{Announced, Client};
use self::socket::Frames;
use self::stream::Holding;
use self::table::Table;
use crate::call::{CallKey, Connection, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::map::Map;
use crate::names;
use crate::redelivery::{Redelivery, Seal};
use crate::seldom::{Seldom, Unset};
use crate::settings::SessionSettings;
use crate::upstream::{self, Hello};
use crate::version::Version;

pub(crate) use client::Level;
pub use port::{
    Accept, ClientFrame, Comeback, Downstream, Endpoint, EntryView, Event, Fate, Input, Known,
    Mark, Output, Part, Past, PastCall, Remembered, Welcome,
};
pub use record::Record;
pub use unnoted::unnoted;

/// What a session is made from.
#[derive(Clone)]
pub struct SessionConfig {
    /// Its name in this process.
    pub key: SessionKey,
    /// What the client speaks to.
    pub endpoint: Endpoint,
    /// How the client is attached.
    pub downstream: Downstream,
    /// Limits and spans.
    pub settings: Arc<SessionSettings>,
    /// Authenticates cursors. Random, and the same for as long as the session lives.
    pub cursor_key: [u8; 32],
    /// Numbers of calls and events begin above this. A restored session takes a higher one than
    /// before, so that no number comes twice.
    pub base: u64,
    /// The server entries in the order of the configuration. On [`Endpoint::One`] the one entry,
    /// for what is remembered of it; may be empty there.
    pub entries: Vec<EntryView>,
}

/// How far the session has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// No `initialize` came.
    Fresh,
    /// The first `initialize` waits for its server.
    Opening,
    /// The client has its answer.
    Open,
    /// Nothing is taken and nothing is said any more.
    Closed,
}

/// The session machine.
pub struct Session {
    key: SessionKey,
    endpoint: Endpoint,
    downstream: Downstream,
    settings: Arc<SessionSettings>,
    /// On [`Endpoint::One`], until the session is open: what is remembered of it.
    entries: Vec<EntryView>,
    /// On [`Endpoint::All`].
    all: Option<Box<All>>,
    phase: Phase,
    /// Whether `notifications/initialized` came: only then may servers speak outside calls.
    initialized: bool,
    /// Whether the client ever asked for anything but its handshake.
    was_used: bool,
    version: Option<Version>,
    client: Client,
    announced: Announced,
    level: Option<Level>,
    subscriptions: Seldom<Subscriptions>,
    last_number: u64,
    /// The raw `params` of an `initialize` that is not answered yet.
    opening: Option<Box<Bytes>>,
    /// The raw `params` of the last `initialize` that was answered, and the raw `result`.
    handshake: Handshake,
    /// What is known of the time before a restart.
    before: Seldom<Before>,
    /// Answers of ours on streams, for when they are held no longer.
    faults: Seldom<Faults>,
    /// Accepted and not answered.
    pending: Table,
    /// The standalone GET stream, the pipe, or the socket.
    main: Option<Connection>,
    /// GET streams that resumed the answer to a pending request.
    resumed: Map<Connection, u64>,
    held: Seldom<Holding>,
    /// On [`Downstream::Socket`].
    socket: Seldom<Frames>,
    last_ask: u64,
    asks: Map<u64, Ask>,
    redelivery: Redelivery,
    last_activity: Moment,
    out: VecDeque<Output>,
}

/// A handshake that was answered.
#[derive(Default)]
struct Handshake {
    params: Bytes,
    result: Bytes,
}

/// What a session of before a restart knows of that time.
#[derive(Default)]
struct Before {
    /// The handshake that servers are told before their first call.
    greeting: Option<Hello>,
    greeted: BTreeSet<Arc<str>>,
    /// Calls of that time, by number.
    calls: Map<u64, Past>,
}

impl Unset for Before {
    fn unset() -> &'static Self {
        static NONE: Before = Before {
            greeting: None,
            greeted: BTreeSet::new(),
            calls: Map::new(),
        };
        &NONE
    }
}

/// URIs that the client subscribed to.
#[derive(Default)]
struct Subscriptions {
    uris: BTreeSet<Box<str>>,
    /// Those of them that no server has confirmed yet.
    asked: BTreeSet<Box<str>>,
    /// Too many to keep: from then on every update passes.
    is_full: bool,
}

impl Unset for Subscriptions {
    fn unset() -> &'static Self {
        static NONE: Subscriptions = Subscriptions {
            uris: BTreeSet::new(),
            asked: BTreeSet::new(),
            is_full: false,
        };
        &NONE
    }
}

impl Session {
    /// A session that awaits `initialize`.
    pub fn new(config: SessionConfig, now: Moment) -> Self {
        let (entries, all) = match config.endpoint {
            Endpoint::One(_) => (config.entries, None),
            Endpoint::All => (
                Vec::new(),
                Some(Box::new(All::new(config.entries, config.cursor_key))),
            ),
        };
        Self {
            redelivery: Redelivery::new(Seal::new(config.cursor_key, config.key), config.base),
            key: config.key,
            endpoint: config.endpoint,
            downstream: config.downstream,
            settings: config.settings,
            entries,
            all,
            phase: Phase::Fresh,
            initialized: false,
            was_used: false,
            version: None,
            client: Client::default(),
            announced: Announced::default(),
            level: None,
            subscriptions: Seldom::default(),
            last_number: config.base,
            opening: None,
            handshake: Handshake::default(),
            before: Seldom::default(),
            faults: Seldom::default(),
            pending: Table::default(),
            main: None,
            resumed: Map::new(),
            held: Seldom::default(),
            socket: Seldom::default(),
            // A question of before a restart is never taken for a newer one.
            last_ask: config.base,
            asks: Map::new(),
            last_activity: now,
            out: VecDeque::new(),
        }
    }

    /// Takes something that happened at `now`. Then drain [`Session::poll`].
    pub fn handle(&mut self, now: Moment, input: Input) {
        if self.phase == Phase::Closed {
            self.on_late(&input);
            return;
        }
        let held = self.redelivery.bytes();
        self.redelivery.expire(now, &self.settings);
        match input {
            Input::Message {
                exchange,
                accept,
                message,
            } => {
                self.last_activity = now;
                self.on_message(now, exchange, accept, message);
            }
            Input::Malformed(error) => self.on_malformed(now, &error),
            Input::ExchangeGone(exchange) => self.on_exchange_gone(now, exchange),
            Input::StreamOpened { connection, cursor } => {
                self.last_activity = now;
                self.on_stream_opened(now, connection, cursor.as_deref());
            }
            Input::StreamClosed(connection) => self.on_stream_closed(now, connection),
            Input::Attached {
                connection,
                comeback,
            } => {
                self.last_activity = now;
                self.on_attached(now, connection, &comeback);
            }
            Input::Frame(frame) => self.on_frame(now, *frame),
            Input::Acknowledged {
                connection,
                received,
            } => self.on_acknowledged(connection, received),
            Input::Upstream { server, event } => self.on_upstream(now, &server, event),
            Input::Entries(entries) => self.on_entries(now, entries),
            Input::Keep => self.persist(),
            Input::Shed { most } => self.redelivery.shed(most),
            Input::Timer => {}
            Input::Close => self.close(now, &Fault::new(FaultKind::SessionEnded)),
        }
        self.on_time(now);
        if self.redelivery.bytes() != held && self.phase != Phase::Closed {
            self.say_held();
        }
    }

    /// Says how much is held for redelivery.
    fn say_held(&mut self) {
        self.out.push_back(Output::Held(self.redelivery.bytes()));
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.out.pop_front();
        if output.is_none() && self.out.capacity() > 0 {
            // An idle session keeps no room.
            self.out = VecDeque::new();
        }
        output
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

    /// When to give [`Input::Timer`], if nothing happens before.
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.phase == Phase::Closed {
            return None;
        }
        let undecided = self.pending.next_undecided().map(|(at, _)| at);
        let asks = self.asks.values().map(Ask::deadline).min();
        let log = self.redelivery.next_expiry(&self.settings);
        let all = self.all.as_ref().and_then(|all| all.deadline());
        let socket = self.socket.deadline();
        [undecided, asks, log, all, socket]
            .into_iter()
            .flatten()
            .min()
    }

    /// The last frame of the client that was taken (socket).
    pub fn taken(&self) -> u64 {
        self.socket.taken()
    }

    /// The revision that was agreed with the client.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Name and version that the client gave itself; unverified text.
    pub fn client(&self) -> Option<(String, String)> {
        let answered = &self.handshake.params;
        client::name_of(self.opening.as_deref().unwrap_or(answered))
    }

    /// What its cursors are authenticated with.
    pub fn cursor_key(&self) -> &[u8; 32] {
        self.redelivery.key()
    }

    /// How many requests of the client are not answered.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// When the client was last heard of.
    pub fn last_activity(&self) -> Moment {
        self.last_activity
    }

    /// Whether the client has its GET stream or its pipe open, or waits for an answer.
    pub fn attached(&self) -> bool {
        self.main.is_some() || !self.resumed.is_empty() || self.pending.has_exchange()
    }

    /// Whether the client ever asked for anything but its handshake. One that came back after a
    /// restart counts as one that did.
    pub fn was_used(&self) -> bool {
        self.was_used
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Does what is due. Runs after every input, so that a late timer changes nothing.
    fn on_time(&mut self, now: Moment) {
        while let Some((at, number)) = self.pending.next_undecided() {
            if at > now {
                break;
            }
            self.begin_stream(number);
        }
        self.retry_asks(now);
        self.expire_socket(now);
        if self.all.is_some() {
            self.try_gathers(now);
            self.tell_changed(now);
        }
    }

    /// Ends everything. Each pending request hears `fault`.
    fn close(&mut self, now: Moment, fault: &Fault) {
        for number in self.pending.keys().copied().collect::<Vec<_>>() {
            self.fail(now, number, fault);
        }
        self.asks.clear();
        if self.phase != Phase::Fresh {
            // What is at rest of a server that was removed goes with the session too.
            let removed = self.all.as_ref().map(|all| all.removed_started());
            for server in self
                .servers()
                .into_iter()
                .chain(removed.into_iter().flatten())
            {
                let fault = fault.clone().of(&server);
                self.tell(
                    server,
                    upstream::Input::Close {
                        fault,
                        end_session: true,
                    },
                );
            }
        }
        if self.downstream == Downstream::Http {
            for connection in self.resumed.keys().copied().chain(self.main) {
                self.out.push_back(Output::ToStream {
                    connection,
                    part: Part::End,
                });
            }
        }
        self.clear_socket();
        self.resumed.clear();
        self.main = None;
        self.held.clear();
        self.phase = Phase::Closed;
        self.out.push_back(Output::Emit(Event::Closed));
        self.out.push_back(Output::Closed);
    }

    /// The servers that this session has started.
    fn servers(&self) -> Vec<Arc<str>> {
        match &self.endpoint {
            Endpoint::One(server) => vec![Arc::clone(server)],
            Endpoint::All => self
                .all
                .as_ref()
                .map(|all| all.started())
                .unwrap_or_default(),
        }
    }

    fn tell(&mut self, server: Arc<str>, input: upstream::Input) {
        if let Some(hello) = self.before.greeting.clone()
            && self.before.greeted.insert(Arc::clone(&server))
        {
            self.put_upstream(Arc::clone(&server), upstream::Input::Greet { hello });
            if let Some(holds) = self.holds(&server) {
                self.put_upstream(Arc::clone(&server), holds);
            }
            if !matches!(input, upstream::Input::Attached(_)) {
                let attached = upstream::Input::Attached(self.main.is_some());
                self.put_upstream(Arc::clone(&server), attached);
            }
        }
        self.put_upstream(server, input);
    }

    fn put_upstream(&mut self, server: Arc<str>, input: upstream::Input) {
        let input = Box::new(input);
        self.out.push_back(Output::ToUpstream { server, input });
    }

    /// What the client had set up with this server before the restart, if anything.
    fn holds(&self, server: &str) -> Option<upstream::Input> {
        let own = |uri: &str| match self.endpoint {
            Endpoint::One(_) => Some(Box::from(uri)),
            Endpoint::All => names::split_resource_uri(uri)
                .filter(|(of, _)| *of == server)
                .map(|(_, uri)| Box::from(uri)),
        };
        let uris = self.subscriptions.uris.iter();
        let subscriptions: Vec<Box<str>> = uris.filter_map(|uri| own(uri)).collect();
        let level = self
            .level
            .map(|level| Bytes::from_static(level.raw().as_bytes()));
        (!subscriptions.is_empty() || level.is_some()).then_some(upstream::Input::Holds {
            subscriptions,
            level,
        })
    }

    fn call_key(&self, number: u64) -> CallKey {
        CallKey {
            session: self.key,
            number,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number = self.last_number.saturating_add(1);
        self.last_number
    }

    fn dropped(&mut self, reason: &'static str) {
        self.out.push_back(Output::Emit(Event::Dropped { reason }));
    }
}

#[cfg(test)]
mod tests;
