//! The tether: the client's end of the socket protocol, which holds on to a session while gateways
//! come and go.
//!
//! Owns what `connect` owes: to its client one answer for each request, whatever became of the
//! gateway that had it (I1); to the gateway each frame once. A request that may have run is never
//! sent again, unless it only reads (I4). Must not know sockets, processes, or standard input.
//!
//! Shape: [`Tether::handle`], then [`Tether::poll`] until it is empty, then
//! [`Tether::next_deadline`].

mod answer;
mod port;
mod resume;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::call::Moment;
use crate::error::{Fault, FaultKind, error_response};
use crate::json::Pieces;
use crate::message::{Kind, Message};
use crate::session::Comeback;

pub use port::{Input, Output, Want};

/// Frames after which the gateway hears what was received, even when there is nothing to send.
const ACK_EVERY: u64 = 64;

/// Bytes after which it does; it keeps them until then.
const ACK_EVERY_BYTES: usize = 256 * 1024;

/// The longest that it waits for that: its copy of an answer is on the disk until then.
const ACK_PAUSE: Duration = Duration::from_secs(1);

/// Requests that are held while there is no gateway: as many as it takes from one session (I8).
const HELD_REQUESTS_MAX: usize = 256;

/// Bytes that are held; past it the client is not read. One message may be as large by itself.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Notifications and answers that are held; the oldest is dropped beyond it.
const HELD_OTHERS_MAX: usize = 64;

/// Questions to the client whose answers are awaited; the session has no more open at once.
const ASKED_MAX: usize = 256;

/// How long a repeated handshake may take: as long as a server may take to start, and a little.
const HANDSHAKE_MAX: Duration = Duration::from_secs(75);

/// How long a request is held back from a gateway that is stopping but does not end.
const STOPPING_MAX: Duration = Duration::from_secs(10);

/// Where the connection is at.
#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    /// There is none.
    Away,
    /// A new session is told the handshake that the client had with the one before.
    Greeting { id: Bytes, until: Moment },
    /// Messages pass.
    Attached,
}

/// A request of the client that was sent and has no answer.
#[derive(Clone, Debug)]
struct Open {
    id: Bytes,
    message: Message,
    /// It was given back once already by a gateway that was stopping.
    was_returned: bool,
}

/// Where a request of the client is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    /// In this frame of ours.
    Frame(u64),
    /// Among what is held.
    Held,
}

/// A message of the client that waits for a connection.
#[derive(Clone, Debug)]
struct Held {
    message: Message,
    /// The id under which a request of its is known; none for one with an id that is taken.
    id: Option<Bytes>,
    was_returned: bool,
}

impl Held {
    fn is_request(&self) -> bool {
        self.message.kind() == Kind::Request
    }
}

/// What a new session is told in the client's place, and what the client was promised.
#[derive(Default)]
struct Handshake {
    initialize: Option<Message>,
    initialized: Option<Message>,
    repeats: u64,
    /// The client was promised log messages, and wants warnings.
    logging: bool,
    is_quiet: bool,
}

/// The tether.
pub struct Tether {
    /// The server that the client speaks to; for its eyes only.
    server: Option<String>,
    /// How long a lost gateway is given to come back by itself.
    return_wait: Duration,
    state: State,
    /// Whether the gateway may still have the session.
    has_session: bool,
    handshake: Handshake,
    /// The last frame that was sent, and the last one that the gateway is known to have taken.
    sent: u64,
    taken: u64,
    /// Frames after the latter.
    untaken: VecDeque<(u64, Message)>,
    /// The gateway's last frame, and the last one that it was told of.
    received: u64,
    acknowledged: u64,
    /// Bytes in between, and when it is told of them.
    owed_bytes: usize,
    ack_due: Option<Moment>,
    open: BTreeMap<u64, Open>,
    places: BTreeMap<Bytes, Place>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Ids of questions that the client has not answered, oldest first.
    asked: VecDeque<Bytes>,
    /// When a gateway was lost; none if there never was one, or its session was over.
    lost_at: Option<Moment>,
    /// The gateway is stopping, and since when.
    stopping: Option<Moment>,
    out: VecDeque<Output>,
}

impl Tether {
    /// A tether without a connection. `server` is what the client speaks to, all of them without
    /// it; a lost gateway has `return_wait` to come back before another is wanted.
    pub fn new(server: Option<String>, return_wait: Duration) -> Self {
        Self {
            server,
            return_wait,
            state: State::Away,
            has_session: false,
            handshake: Handshake::default(),
            sent: 0,
            taken: 0,
            untaken: VecDeque::new(),
            received: 0,
            acknowledged: 0,
            owed_bytes: 0,
            ack_due: None,
            open: BTreeMap::new(),
            places: BTreeMap::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            asked: VecDeque::new(),
            lost_at: None,
            stopping: None,
            out: VecDeque::new(),
        }
    }

    /// Takes something that happened at `now`. Then drain [`Tether::poll`].
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Client(message) => self.on_client(now, message),
            Input::Attached {
                is_resumed,
                welcome,
            } => self.on_attached(now, is_resumed, &welcome),
            Input::Frame {
                number,
                received,
                body,
            } => self.on_frame(now, number, received, body),
            Input::Acknowledged(received) => self.on_acknowledged(received),
            Input::Stopping => self.stopping = self.stopping.or(Some(now)),
            Input::Ended => {
                self.cut(now);
                self.has_session = false;
                self.lost_at = None;
            }
            Input::Cut => self.cut(now),
            Input::Refused { error } => self.on_refused(&error),
            Input::Timer => {}
        }
        self.on_time(now);
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When to give [`Input::Timer`], or to ask [`Tether::want`] again, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Moment> {
        let greeting = match &self.state {
            State::Greeting { until, .. } => Some(*until),
            State::Away | State::Attached => None,
        };
        let start = self.lost_at.map(|at| at.after(self.return_wait));
        let start = start.filter(|_| self.state == State::Away && self.is_waiting());
        let returned = self.stopping.map(|at| at.after(STOPPING_MAX));
        let returned = returned.filter(|_| self.held.iter().any(Held::is_request));
        [greeting, start, returned, self.ack_due]
            .into_iter()
            .flatten()
            .min()
    }

    /// What is wanted of the driver, at this moment.
    pub fn want(&self, now: Moment) -> Want {
        let is_patient = self
            .lost_at
            .is_some_and(|at| now < at.after(self.return_wait));
        if self.state != State::Away {
            return Want::Nothing;
        }
        match (self.is_waiting(), is_patient) {
            (true, false) => Want::Start,
            (false, _) if !self.has_session => Want::Nothing,
            (true, true) | (false, _) => Want::Gateway,
        }
    }

    /// Whether the gateway may have a session of ours, so that a connection should name it.
    pub fn has_session(&self) -> bool {
        self.has_session
    }

    /// What the gateway has to know when the session is taken up.
    pub fn comeback(&self) -> Comeback {
        Comeback {
            received: self.received,
            pending: self.open.keys().copied().collect(),
        }
    }

    /// Whether the client waits for an answer.
    pub fn is_waiting(&self) -> bool {
        !self.places.is_empty() || self.held.iter().any(Held::is_request)
    }

    /// Whether no more can be held: the client is not read until some of it has gone.
    pub fn is_full(&self) -> bool {
        let requests = self.held.iter().filter(|held| held.is_request()).count();
        requests >= HELD_REQUESTS_MAX || self.held_bytes >= HELD_BYTES_MAX
    }

    fn on_client(&mut self, now: Moment, message: Message) {
        let mut id = None;
        match message.kind() {
            Kind::Request => {
                self.note_request(&message);
                // A second one under the same id is refused by the gateway, without the id.
                id = message
                    .id()
                    .map(|id| Bytes::copy_from_slice(&id))
                    .filter(|id| !self.places.contains_key(id));
            }
            Kind::Notification => {
                if !self.on_client_notification(&message) {
                    return;
                }
            }
            Kind::Result | Kind::Error => {
                // An answer to nothing, or to a question of a session that is gone.
                let at = message
                    .id()
                    .and_then(|id| self.asked.iter().position(|asked| *asked == id));
                if at.and_then(|at| self.asked.remove(at)).is_none() {
                    return;
                }
            }
        }
        let is_request = message.kind() == Kind::Request;
        let held = Held {
            message,
            id,
            was_returned: false,
        };
        let waits = self.stopping.is_some() && is_request;
        if self.state == State::Attached && !waits {
            self.send(held);
        } else if is_request || self.has_session || self.is_waiting() {
            self.hold(held);
        }
        // Else nothing but a request is worth a gateway.
        self.leave_if_stopping(now);
    }

    fn note_request(&mut self, message: &Message) {
        match message.method().as_deref() {
            Some("initialize") => {
                self.handshake.initialize = Some(message.clone());
                self.handshake.initialized = None;
            }
            Some("logging/setLevel") => {
                let level = message.param("level").unwrap_or_default();
                let above = ["\"error\"", "\"critical\"", "\"alert\"", "\"emergency\""];
                self.handshake.is_quiet = above.iter().any(|name| name.as_bytes() == level);
            }
            _ => {}
        }
    }

    /// False if it need not be passed on.
    fn on_client_notification(&mut self, message: &Message) -> bool {
        match message.method().as_deref() {
            Some("notifications/initialized") => {
                self.handshake.initialized = Some(message.clone());
                true
            }
            Some("notifications/cancelled") => {
                let id = message.param("requestId").unwrap_or_default();
                self.on_cancelled(&id)
            }
            _ => true,
        }
    }

    /// The client takes a request back, and hears no more of it. `initialize` cannot be taken back
    /// (2025-11-25 basic/utilities/cancellation).
    fn on_cancelled(&mut self, id: &Bytes) -> bool {
        let is_initialize = |message: &Message| message.method().as_deref() == Some("initialize");
        match self.places.get(id).copied() {
            None => true,
            Some(Place::Frame(number)) => {
                if self
                    .open
                    .get(&number)
                    .is_some_and(|open| !is_initialize(&open.message))
                {
                    self.open.remove(&number);
                    self.places.remove(id);
                }
                true
            }
            Some(Place::Held) => {
                let at = self
                    .held
                    .iter()
                    .position(|held| held.id.as_ref() == Some(id));
                let at = at.filter(|at| {
                    self.held
                        .get(*at)
                        .is_some_and(|held| !is_initialize(&held.message))
                });
                if let Some(held) = at.and_then(|at| self.held.remove(at)) {
                    self.held_bytes = self.held_bytes.saturating_sub(held.message.bytes().len());
                    self.places.remove(id);
                }
                // It never left.
                at.is_none()
            }
        }
    }

    /// Sends a message as the next frame.
    fn send(&mut self, held: Held) {
        self.sent = self.sent.saturating_add(1);
        let number = self.sent;
        let body = Pieces::from(&held.message);
        if let Some(id) = held.id {
            self.places.insert(id.clone(), Place::Frame(number));
            let open = Open {
                id,
                message: held.message.clone(),
                was_returned: held.was_returned,
            };
            self.open.insert(number, open);
        }
        self.untaken.push_back((number, held.message));
        let received = self.received;
        self.note_acknowledged();
        self.out.push_back(Output::ToGateway {
            number,
            received,
            body,
        });
    }

    fn hold(&mut self, held: Held) {
        if let Some(id) = &held.id {
            self.places.insert(id.clone(), Place::Held);
        }
        self.held_bytes = self.held_bytes.saturating_add(held.message.bytes().len());
        self.held.push_back(held);
        let others = |held: &&Held| !held.is_request();
        if self.held.iter().filter(others).count() > HELD_OTHERS_MAX
            && let Some(at) = self.held.iter().position(|held| !held.is_request())
            && let Some(held) = self.held.remove(at)
        {
            self.held_bytes = self.held_bytes.saturating_sub(held.message.bytes().len());
        }
    }

    /// Sends what was held.
    fn flush(&mut self) {
        self.held_bytes = 0;
        for held in std::mem::take(&mut self.held) {
            self.send(held);
        }
    }

    fn cut(&mut self, now: Moment) {
        if self.state == State::Away {
            return;
        }
        if self.state != State::Attached {
            // Its handshake is not done: nothing is lost with it.
            self.has_session = false;
        }
        self.state = State::Away;
        self.stopping = None;
        self.ack_due = None;
        self.lost_at = Some(now);
    }

    fn on_refused(&mut self, error: &str) {
        for open in std::mem::take(&mut self.open).into_values() {
            self.fail(&open.id, FaultKind::OutcomeUnknown);
        }
        self.answer_held(error);
    }

    /// Answers the requests that never left with this error.
    fn answer_held(&mut self, error: &str) {
        for held in std::mem::take(&mut self.held) {
            if let (true, Some(id)) = (held.is_request(), held.message.id()) {
                self.places.remove(&id);
                self.out
                    .push_back(Output::ToClient(error_response(Some(&id), error).into()));
            } else {
                self.held.push_back(held);
            }
        }
        self.held_bytes = self
            .held
            .iter()
            .map(|held| held.message.bytes().len())
            .sum();
    }

    /// An error about the server that the client speaks to, if it is one.
    fn placed(&self, fault: Fault) -> Fault {
        match &self.server {
            Some(server) => fault.of(&server.as_str().into()),
            None => fault,
        }
    }

    /// Answers a request in the gateway's place.
    fn fail(&mut self, id: &Bytes, kind: FaultKind) {
        self.places.remove(id);
        let fault = self.placed(Fault::new(kind));
        let fault = if kind == FaultKind::OutcomeUnknown {
            fault.because("the gateway went away before it answered")
        } else {
            fault
        };
        self.out
            .push_back(Output::ToClient(fault.response(id).into()));
    }

    /// A gateway that is stopping is left when it owes nothing: the next one goes on.
    fn leave_if_stopping(&mut self, now: Moment) {
        if self.stopping.is_some() && self.state == State::Attached && self.open.is_empty() {
            self.out.push_back(Output::Leave);
            self.cut(now);
        }
    }

    fn on_time(&mut self, now: Moment) {
        if self.ack_due.is_some_and(|at| at <= now) {
            self.acknowledge();
        }
        if let State::Greeting { until, .. } = &self.state
            && *until <= now
        {
            self.abandon(now, "the gateway did not answer in time");
        }
        if self
            .stopping
            .is_some_and(|at| at.after(STOPPING_MAX) <= now)
        {
            // It takes longer than a client should wait.
            let fault = self.placed(Fault::new(FaultKind::ShuttingDown));
            self.answer_held(&fault.to_json());
        }
        self.leave_if_stopping(now);
    }

    fn acknowledge(&mut self) {
        self.note_acknowledged();
        self.out.push_back(Output::Acknowledge(self.received));
    }

    fn note_acknowledged(&mut self) {
        self.acknowledged = self.received;
        self.owed_bytes = 0;
        self.ack_due = None;
    }

    fn abandon(&mut self, now: Moment, why: impl Into<String>) {
        self.out.push_back(Output::Abandon(why.into()));
        self.cut(now);
        self.lost_at = None;
    }
}

#[cfg(test)]
mod tests;
