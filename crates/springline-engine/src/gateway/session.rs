//! Drives one session machine and carries its answers to the connections that wait for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use springline_proto::call::{ClientExchange, Connection, Moment, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::map::Map;
use springline_proto::message::{Kind, Message, ParseError};
use springline_proto::session::{
    Accept, ClientFrame, Comeback, Downstream, Endpoint, Event, Input, Output, Part, Session,
    unnoted,
};
use springline_proto::upstream::{Binding, Input as UpstreamInput};
use springline_proto::version::Version;
use springline_store::SessionDigest;

use super::driver::{Driver, Machine as _};
use super::global::GlobalCell;
use super::home::Home;
use super::last_use::LastUse;
use super::mailbox::Put;
use super::part::{PartStream, Routes, Source};
use super::revive::WireId;
use super::shared::{Owner, Shared};
use super::stored::{SessionKind, session_value};
use super::timer::Wake;
use super::upstream::UpstreamCell;
use crate::downstream::Principal;
use crate::spawn::Errand;
use crate::{clock, event};

/// The way to one session.
#[derive(Clone)]
pub struct SessionHandle {
    cell: Arc<SessionCell>,
}

/// One session with its machine, its upstreams and its connections.
pub(crate) struct SessionCell {
    pub(super) id: WireId,
    /// A keyed digest of the id: what stands for it at rest.
    pub(super) rest: SessionDigest,
    key: SessionKey,
    /// Whether it outlives the process. A pipe does not: who holds it opens another.
    is_kept: bool,
    /// Whether what it has upstream does, though it does not itself: behind a bridge.
    keeps_upstream: bool,
    last_use: LastUse,
    /// How its client is attached.
    pub(super) kind: Downstream,
    pub(super) principal: Principal,
    pub(super) endpoint: Endpoint,
    driver: Driver<Session>,
    pub(super) routes: Routes,
    /// Held for a look-up, or a change with what the upstream before hands over, so that nothing
    /// comes ahead of that; never while a machine is driven.
    pub(super) upstreams: Mutex<Map<Arc<str>, Way>>,
    /// Upstreams whose place is taken, until their last call is over. Held for a look-up or a change.
    pub(super) leaving: Mutex<Vec<Arc<UpstreamCell>>>,
    /// Shared upstreams that this session does not use any more, but for calls in flight. Each at
    /// most once by each name. The same.
    pub(super) parted: Mutex<Vec<(Arc<str>, Arc<GlobalCell>)>>,
    next: AtomicU64,
    /// The last frame of a socket's client that was taken and is noted in the journal.
    taken: AtomicU64,
    /// It has ended: it comes to no upstream any more. Set before they are let go of.
    is_over: AtomicBool,
    pub(super) shared: Arc<Shared>,
    this: Weak<SessionCell>,
}

/// The way to a server.
#[derive(Clone)]
pub(super) enum Way {
    /// An upstream of this session alone.
    Own(Arc<UpstreamCell>),
    /// One that others use too.
    Global(Arc<GlobalCell>),
}

impl Way {
    pub(super) fn is_own(&self, cell: &Arc<UpstreamCell>) -> bool {
        matches!(self, Self::Own(held) if Arc::ptr_eq(held, cell))
    }

    pub(super) fn is_global(&self, global: &Arc<GlobalCell>) -> bool {
        matches!(self, Self::Global(held) if Arc::ptr_eq(held, global))
    }
}

/// What tells a session from all others.
pub(super) struct Identity {
    pub(super) id: WireId,
    pub(super) rest: SessionDigest,
    pub(super) key: SessionKey,
    pub(super) cursor_key: [u8; 32],
    pub(super) is_kept: bool,
    pub(super) keeps_upstream: bool,
    pub(super) kind: Downstream,
    pub(super) principal: Principal,
    pub(super) endpoint: Endpoint,
}

/// What a session looks like from outside.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// A short digest of its id.
    pub digest: String,
    /// Who it belongs to.
    pub principal: Principal,
    /// What it speaks to.
    pub endpoint: Endpoint,
    /// Name and version that the client gave itself; unverified.
    pub client: Option<(String, String)>,
    /// The revision that was agreed.
    pub version: Option<Version>,
    /// Requests that are not answered.
    pub pending: usize,
    /// Whether a stream or pipe of its client is open.
    pub attached: bool,
    /// Since its last message.
    pub idle: std::time::Duration,
}

impl SessionCell {
    pub(super) fn new(own: Identity, machine: Session, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            id: own.id,
            rest: own.rest,
            key: own.key,
            is_kept: own.is_kept,
            keeps_upstream: own.keeps_upstream,
            last_use: LastUse::default(),
            kind: own.kind,
            principal: own.principal,
            endpoint: own.endpoint,
            taken: AtomicU64::new(machine.taken()),
            driver: Driver::new(machine),
            routes: Routes::default(),
            upstreams: Mutex::default(),
            leaving: Mutex::default(),
            parted: Mutex::default(),
            next: AtomicU64::new(1),
            is_over: AtomicBool::new(false),
            shared,
            this: this.clone(),
        })
    }

    /// Takes an input and drives the machine, unless somebody does already.
    pub(crate) fn input(&self, input: Input) {
        self.input_with(input, &mut Errand::none());
    }

    /// The same; work that this causes may be taken along.
    fn input_with(&self, input: Input, errand: &mut Errand) {
        let whom = || self.this.clone() as Weak<dyn Wake>;
        self.driver
            .drive(&mut [Some(input)], &self.shared.timer, &whom, |outputs| {
                let mut told = Vec::new();
                if self.is_kept {
                    // Earlier than each of them needs, so that one write serves the whole turn.
                    let noted = self.shared.rest.keep_session(
                        self.rest,
                        |record| self.at_rest(record),
                        outputs.make_contiguous(),
                        &self.shared.events,
                    );
                    if let Err(cause) = noted {
                        told = unnoted(outputs, &cause);
                    }
                }
                for output in outputs.drain(..) {
                    self.perform(output, errand);
                }
                for input in told {
                    self.driver.leave(input);
                }
            });
    }

    /// The value under which this session is stored.
    fn at_rest(&self, record: &[u8]) -> Bytes {
        self.last_use.written(clock::moment());
        let endpoint = match &self.endpoint {
            Endpoint::One(server) => Some(&**server),
            Endpoint::All => None,
        };
        let principal = self.principal.to_string();
        let kind = SessionKind::of(self.kind);
        session_value(
            kind,
            &principal,
            endpoint,
            self.key.0,
            self.driver.machine().cursor_key(),
            record,
        )
    }

    /// Has its record written again if its last use there lags behind too far. A client that is
    /// attached, or waits, uses its session.
    pub(super) fn keep_in_use(&self, view: &SessionView, lag: Duration) {
        let now = clock::moment();
        let used = if view.attached || view.pending > 0 {
            now
        } else {
            Moment(now.0.saturating_sub(view.idle))
        };
        if self.is_kept && self.last_use.is_old(used, lag) {
            self.input(Input::Keep);
        }
    }

    /// A short digest of the id: what people and logs see.
    pub(super) fn digest(&self) -> String {
        self.id.short_digest()
    }

    /// Whether it outlives the process, itself or upstream.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept || self.keeps_upstream
    }

    /// Lets go of the servers without ending their sessions: the next start goes on with them.
    pub(super) fn suspend(&self) {
        // First: without a way no other upstream begins to leave.
        let upstreams = std::mem::take(&mut *self.upstreams.lock());
        self.end_leaving();
        for way in upstreams.into_values() {
            // A shared one is let go of when all sessions are.
            let Way::Own(cell) = way else { continue };
            self.shared.retire_upstream(Arc::clone(&cell));
            cell.input(UpstreamInput::Close {
                fault: Fault::new(FaultKind::ShuttingDown),
                end_session: false,
            });
        }
    }

    fn perform(&self, output: Output, errand: &mut Errand) {
        match output {
            // Kept before, all of the turn in one write.
            Output::Persist(_) | Output::Mark { .. } => {}
            Output::Taken(frame) => self.taken.store(frame, Ordering::Release),
            Output::ToExchange { exchange, part } => self.to_exchange(exchange, part),
            Output::ToStream { connection, part } => self.to_stream(connection, part),
            Output::ToUpstream { server, input } => self.to_upstream(&server, *input, errand),
            Output::Remember { server, what } => self.shared.remember(&server, what),
            Output::Held(bytes) => self.shared.backlog.note(self.key, &self.this, bytes),
            Output::Emit(what) => {
                let (name, facts) = event::of_session(&self.digest(), &what);
                self.shared.events.record(name, facts);
            }
            Output::Closed => self.forget(),
        }
    }

    pub(super) fn to_exchange(&self, exchange: ClientExchange, part: Part) {
        if !self.put(Source::Exchange(exchange), part) {
            self.driver.leave(Input::ExchangeGone(exchange));
        }
    }

    fn to_stream(&self, connection: Connection, part: Part) {
        if !self.put(Source::Connection(connection), part) {
            self.driver.leave(Input::StreamClosed(connection));
        }
    }

    /// False if the connection is gone, or ends here because nobody took its parts.
    fn put(&self, source: Source, part: Part) -> bool {
        let put = self.routes.put(source, part);
        self.tell_cut(put);
        matches!(put, Put::Taken | Put::Astray)
    }

    /// Tells the operator of a connection that was cut with this part.
    fn tell_cut(&self, put: Put) {
        if put == Put::Cut {
            let reason = "the client does not read";
            let (name, facts) = event::of_session(&self.digest(), &Event::Dropped { reason });
            self.shared.events.record(name, facts);
        }
    }

    /// The answer to a request that comes after the stop was begun. What is pending may finish, and
    /// needs answers and notifications of the client for that; a new call would hold up the end.
    fn refusal(&self, message: &Message) -> Option<Bytes> {
        if !self.shared.is_stopping()
            || message.kind() != Kind::Request
            || message.method().as_deref() == Some("ping")
        {
            return None;
        }
        let id = message.id()?;
        let server = self.endpoint.server();
        Some(Fault::new(FaultKind::ShuttingDown).at(server).response(&id))
    }

    /// One line on the pipe, beside what the machine says.
    fn say_line(&self, text: Bytes) {
        let part = Part::Event {
            id: None,
            retry: None,
            data: text.into(),
        };
        // A pipe that cannot take it is noticed at the next part of the machine's.
        self.tell_cut(self.routes.put_pipe(part));
    }

    pub(super) fn to_upstream(&self, server: &Arc<str>, input: UpstreamInput, errand: &mut Errand) {
        let Some(input) = self.to_held(server, input, errand) else {
            return;
        };
        match input {
            // What is told to an upstream that never was needs no upstream.
            UpstreamInput::Attached(_)
            | UpstreamInput::Reply { .. }
            | UpstreamInput::Cancel { .. }
            | UpstreamInput::Asking { .. } => return,
            UpstreamInput::Close { .. } if !self.has_to_end(server) => return,
            // A request that an upstream passed on, and nobody waits for any more.
            _ if self.is_over.load(Ordering::Acquire) => return,
            _ => {}
        }
        let way = self.shared.way(server, self);
        let late = {
            let mut upstreams = self.upstreams.lock();
            if self.is_over.load(Ordering::Acquire) {
                Some(way)
            } else {
                if !upstreams.contains_key(server) {
                    upstreams.insert(Arc::clone(server), way);
                }
                None
            }
        };
        match late {
            Some(Way::Own(cell)) => return self.end(cell),
            Some(Way::Global(global)) => return self.leave_global(server, &global),
            None => {}
        }
        // The entry may have changed since it was read for this one.
        self.reconcile(server);
        if self.to_held(server, input, errand).is_some() {
            tracing::debug!(%server, "the session ended meanwhile");
        }
    }

    /// Whether the end of the session concerns a server that it did not use since the start.
    fn has_to_end(&self, server: &Arc<str>) -> bool {
        match self.shared.instance_of(server) {
            Some(instance) => self.shared.has_global(&instance),
            None => self.is_kept && self.shared.rest.has_upstream(self.rest, server),
        }
    }

    /// Gives an input to the upstream that is there; it comes back if there is none. What concerns
    /// calls that are with one on its way out reaches that one too.
    fn to_held(
        &self,
        server: &Arc<str>,
        input: UpstreamInput,
        errand: &mut Errand,
    ) -> Option<UpstreamInput> {
        let upstreams = self.upstreams.lock();
        let leaving = self.leaving_for(server, &input);
        if !leaving.is_empty() {
            let way = upstreams.get(server).cloned().filter(|_| !leaving.is_all);
            drop(upstreams);
            let binding = self.binding(server);
            leaving.tell(&binding, &input);
            // It concerns requests that are known there, and nothing that may come: order is no matter.
            match way {
                Some(Way::Own(cell)) => cell.input_with(input, errand),
                Some(Way::Global(global)) => global.input(&binding, input),
                None => {}
            }
            return None;
        }
        match upstreams.get(server) {
            None => Some(input),
            Some(Way::Own(cell)) => {
                let cell = Arc::clone(cell);
                drop(upstreams);
                cell.input_with(input, errand);
                None
            }
            Some(Way::Global(global)) => {
                // Left before the lock goes: nothing comes to one that the session has parted from.
                let cells = global.leave(&self.binding(server), for_global(input));
                drop(upstreams);
                for cell in cells {
                    cell.go_on_with(errand);
                }
                None
            }
        }
    }

    pub(super) fn binding(&self, server: &Arc<str>) -> Binding {
        Binding {
            session: self.key,
            server: Arc::clone(server),
        }
    }

    /// What stands for it at rest, if it outlives the process.
    pub(super) fn at_rest_key(&self) -> Option<SessionDigest> {
        self.is_kept().then_some(self.rest)
    }

    pub(super) fn this(&self) -> Weak<Self> {
        self.this.clone()
    }

    pub(super) fn key(&self) -> SessionKey {
        self.key
    }

    pub(super) fn owner(&self) -> Owner {
        Owner {
            session: self.key,
            rest: self.at_rest_key(),
            home: Home::Session(self.this.clone()),
        }
    }

    /// The machine is done: connections end, and the gateway forgets the session.
    fn forget(&self) {
        self.routes.close();
        self.is_over.store(true, Ordering::Release);
        self.shared.backlog.note(self.key, &self.this, 0);
        // First: without a way no other upstream begins to leave.
        let upstreams = std::mem::take(&mut *self.upstreams.lock());
        self.end_leaving();
        let mut globals = std::mem::take(&mut *self.parted.lock());
        for (server, way) in upstreams {
            match way {
                Way::Own(cell) => self.shared.retire_upstream(cell),
                Way::Global(global) => globals.push((server, global)),
            }
        }
        if self.is_kept {
            self.shared.rest.forget(self.rest, &self.shared.events);
        }
        // Late: who waits for the end of all sessions then finds their upstreams.
        self.shared.forget_session(&self.id);
        for (server, global) in globals {
            self.leave_global(&server, &global);
        }
    }

    /// The session does not use a shared upstream any more. That ends with the last one, unless one
    /// may come back to it.
    pub(super) fn leave_global(&self, server: &Arc<str>, global: &Arc<GlobalCell>) {
        let end_session = global.forget(self.key) == 0 && !self.shared.is_awaited(global.name());
        let fault = Fault::new(FaultKind::SessionEnded);
        global.input(
            &self.binding(server),
            UpstreamInput::Close { fault, end_session },
        );
    }

    /// How long its client was silent, and whether it ever asked for anything; nothing while it is
    /// attached or waits, for then it gives way to no other.
    pub(super) fn idle(&self) -> Option<(bool, Duration)> {
        let machine = self.driver.machine();
        (!machine.attached() && machine.pending() == 0).then(|| {
            let idle = clock::moment().since(machine.last_activity());
            (machine.was_used(), idle)
        })
    }

    pub(super) fn view(&self) -> SessionView {
        let machine = self.driver.machine();
        SessionView {
            digest: self.digest(),
            principal: self.principal.clone(),
            endpoint: self.endpoint.clone(),
            client: machine.client(),
            version: machine.version(),
            pending: machine.pending(),
            attached: machine.attached(),
            idle: clock::moment().since(machine.last_activity()),
        }
    }

    /// Its own upstreams.
    pub(super) fn upstreams(&self) -> Vec<Arc<UpstreamCell>> {
        let upstreams = self.upstreams.lock();
        let own = upstreams.values().filter_map(|way| match way {
            Way::Own(cell) => Some(Arc::clone(cell)),
            Way::Global(_) => None,
        });
        own.collect()
    }

    fn ordinal(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

/// The end of a session is not yet that of a shared upstream: [`SessionCell::forget`] decides.
fn for_global(input: UpstreamInput) -> UpstreamInput {
    match input {
        UpstreamInput::Close { fault, .. } => UpstreamInput::Close {
            fault,
            end_session: false,
        },
        other => other,
    }
}

impl Wake for SessionCell {
    fn wake(&self, now: Moment) {
        let whom = || self.this.clone() as Weak<dyn Wake>;
        if self.driver.is_due(now, &self.shared.timer, &whom) {
            self.input(Session::TIMER);
        }
    }
}

impl SessionHandle {
    pub(super) fn new(cell: Arc<SessionCell>) -> Self {
        Self { cell }
    }

    /// The session's id on the wire: 32 hex digits from the system's random source. A secret.
    pub fn id(&self) -> &str {
        self.cell.id.as_str()
    }

    /// The revision agreed with the client; none before `initialize` was answered.
    pub fn version(&self) -> Option<Version> {
        self.cell.driver.machine().version()
    }

    /// Takes the message of a POST. The parts of its answer come from the stream.
    pub fn post(&self, message: Message, accept: Accept) -> PartStream {
        let exchange = ClientExchange(self.cell.ordinal());
        let mut stream = self.stream(Source::Exchange(exchange));
        if let Some(refusal) = self.cell.refusal(&message) {
            self.cell.to_exchange(exchange, Part::Json(refusal.into()));
            return stream;
        }
        let mut errand = Errand::one();
        let input = Input::Message {
            exchange: Some(exchange),
            accept,
            message,
        };
        self.cell.input_with(input, &mut errand);
        stream.take_along(errand.into_work());
        stream
    }

    /// Opens the GET stream, perhaps from a cursor.
    pub fn listen(&self, cursor: Option<Box<str>>) -> PartStream {
        let (connection, stream) = self.connection();
        self.cell.input(Input::StreamOpened { connection, cursor });
        stream
    }

    /// Attaches the socket of `connect`, in place of an older connection.
    pub fn attach(&self, comeback: Comeback) -> (Connection, PartStream) {
        let (connection, stream) = self.connection();
        self.cell.input(Input::Attached {
            connection,
            comeback,
        });
        (connection, stream)
    }

    fn connection(&self) -> (Connection, PartStream) {
        let connection = Connection(self.cell.ordinal());
        (connection, self.stream(Source::Connection(connection)))
    }

    fn stream(&self, source: Source) -> PartStream {
        PartStream::new(Arc::clone(&self.cell), source)
    }

    /// Takes one frame of the socket.
    pub fn frame(
        &self,
        connection: Connection,
        number: u64,
        received: u64,
        line: Result<Message, ParseError>,
    ) {
        let refusal = line.as_ref().ok().and_then(|line| self.cell.refusal(line));
        self.cell.input(Input::Frame(Box::new(ClientFrame {
            connection,
            number,
            received,
            line,
            refusal,
        })));
    }

    /// The socket's client has the frames up to this one.
    pub fn acknowledged(&self, connection: Connection, received: u64) {
        self.cell.input(Input::Acknowledged {
            connection,
            received,
        });
    }

    /// The last frame of the socket's client that was taken, crash-durable.
    pub fn taken(&self) -> u64 {
        self.cell.taken.load(Ordering::Acquire)
    }

    /// Attaches the pipe of `bridge`.
    pub fn pipe(&self) -> PartStream {
        self.listen(None)
    }

    /// Takes one line of the pipe.
    pub fn line(&self, message: Result<Message, ParseError>) {
        if let Ok(message) = &message
            && let Some(refusal) = self.cell.refusal(message)
        {
            self.cell.say_line(refusal);
            return;
        }
        self.cell.input(match message {
            Ok(message) => Input::Message {
                exchange: None,
                accept: Accept::Both,
                message,
            },
            Err(error) => Input::Malformed(error),
        });
    }

    /// The requests that are not answered yet.
    pub fn pending(&self) -> usize {
        self.cell.driver.machine().pending()
    }

    /// Ends the session and what it has upstream.
    pub fn close(&self) {
        self.cell.input(Input::Close);
    }
}
