//! The world with clients: clients, session machines, upstream machines and the servers, and a
//! gateway that can be killed between any two outputs.
//!
//! Owns the sessions and the ways between machines. The upstreams and the servers are those of the
//! other world. It must not know why a machine says what it says.

mod act;
mod crash;
mod disk;
mod global;
mod hear;
mod plan;
mod reload;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{CallKey, ClientExchange, Connection, Generation, Moment, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::session::{
    Downstream, Endpoint, EntryView, Input, Known, Output, Remembered, Session, SessionConfig,
};
use springline_proto::shared::Serving;
use springline_proto::upstream::{Input as UpstreamInput, Record, SessionEvent, Upstream};

use self::act::Call;
use self::crash::{Held, Killed};
use self::disk::Disk;
use self::global::Global;
pub(crate) use self::plan::StackPlan;
use self::plan::{Act, Change, Named, Stand, Step};
pub(crate) use self::reload::Spec;
use crate::book::Violation;
use crate::plan::Ask;
use crate::random::Random;
use crate::world::{Due, Event, LATE_MAX, Seat, World};

/// Something that is going to happen.
pub(crate) enum Happening {
    Step(Step),
    /// A message on its way to an upstream, and the process that sent it.
    ToUpstream(u64, usize, Arc<str>, Box<UpstreamInput>),
    /// A report on its way to a session.
    ToSession(u64, usize, Arc<str>, Box<SessionEvent>),
    /// Something of a client that reaches the gateway.
    Tell(u64, usize, Box<Input>),
    /// A client answers a question.
    Answer(u64, usize, String),
    /// A session that is over has said the last that it had to say.
    Left(u64, SessionKey),
    Restart,
}

/// Definition and credentials of an entry.
type Who = (u64, u64);

/// What there is, by the session and the server entry that it is of.
type At<T> = BTreeMap<(SessionKey, Arc<str>), T>;

/// One session with its client.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
pub(crate) struct Desk {
    pub(crate) key: SessionKey,
    stand: Stand,
    /// None: the process that had it is gone, or it is closed.
    machine: Option<Session>,
    armed: Option<(Moment, Moment)>,
    /// The client has the answer to its first `initialize`.
    opened: bool,
    /// Somebody wants its end.
    closing: bool,
    /// The record at rest.
    record: Option<Bytes>,
    /// Numbers of its calls.
    calls: Vec<usize>,
    exchanges: BTreeMap<ClientExchange, Line>,
    streams: BTreeMap<Connection, Line>,
    /// The GET stream or the pipe.
    main: Option<Connection>,
    /// Cursors that were seen on the GET stream.
    cursors: Vec<Arc<str>>,
    /// Subscriptions and level that the client knows to hold, per entry.
    subscribed: BTreeSet<usize>,
    levelled: BTreeSet<usize>,
    /// The client said `notifications/initialized`, and the gateway took it.
    initialized: bool,
    next_id: u64,
    /// The last moment on the ways to and from upstreams.
    ways: BTreeMap<(bool, Arc<str>), Moment>,
    /// A failing store kept an older record than the client relies on.
    stale: bool,
}

/// One connection as its client sees it.
#[derive(Debug, Default)]
struct Line {
    /// The call whose answer it carries.
    call: Option<usize>,
    begun: bool,
    /// The cursors that its client had when it opened this, if it named the last one.
    seen: BTreeSet<Arc<str>>,
    /// The `initialized` notification that it carries.
    confirms: bool,
    /// It names a cursor that is not its own.
    foreign: bool,
    /// What has come of a large answer, and its length if that was told.
    open: Option<(Vec<u8>, Option<u64>)>,
    /// When it was opened to hear what came before.
    since: Option<Moment>,
}

/// Clients, sessions, and what is at rest.
#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
pub(crate) struct Stack {
    pub(crate) desks: Vec<Desk>,
    clients: Vec<usize>,
    entries: Vec<Entry>,
    plan: Option<StackPlan>,
    /// By number in the book.
    calls: Vec<Call>,
    /// What each cursor was given with.
    cursors: BTreeMap<Arc<str>, (usize, Bytes)>,
    journal: BTreeMap<CallKey, Held>,
    /// With the definition and the credentials of their entries.
    records: At<(Who, Bytes)>,
    /// The instances of each upstream, whichever machine opened them.
    generations: At<BTreeSet<Generation>>,
    /// Records are written no more, until the next start.
    store_fails: bool,
    /// That happened before the last start.
    store_failed: bool,
    /// What is on the disk, while that takes no writes.
    disk: Disk,
    epoch: u64,
    is_down: bool,
    /// Outputs until the gateway is killed.
    fuse: Option<u64>,
    is_crashing: bool,
    killed: Killed,
    next: u64,
    /// The call that is being handed to its session.
    sending: Option<usize>,
    /// The call whose duplicate id a pipe is about to be told of.
    duplicate: Option<usize>,
    /// Upstreams that all sessions share, in the order of their making.
    globals: Vec<Global>,
    /// Which of them a session uses by which name.
    global_ways: At<usize>,
    /// Those that a session does not use any more, but for calls in flight.
    parted: Vec<(SessionKey, Arc<str>, usize)>,
}

/// One server entry.
struct Entry {
    name: Arc<str>,
    remembered: Remembered,
    /// As it is configured; none while it is not.
    spec: Option<Spec>,
    /// As it was configured last.
    last: Spec,
    /// It is a second name for this one.
    alias: Option<usize>,
    /// How often it was removed: what clients had set up there is gone each time.
    removals: u64,
}

impl Stack {
    fn of(plan: StackPlan) -> Self {
        let entries = plan.entries.iter().enumerate();
        Self {
            entries: entries
                .map(|(at, http)| {
                    let share = plan.shares.get(at);
                    let alias = share.and_then(|share| share.alias);
                    // A second name stands for the definition of the first.
                    let (http, share) = match alias {
                        Some(of) => (&plan.entries[of], plan.shares.get(of)),
                        None => (http, share),
                    };
                    let mut spec = Spec::new(*http, plan.base.settings.clone());
                    spec.global = share.is_some_and(|share| share.global);
                    Entry {
                        alias,
                        name: format!("e{at}").into(),
                        remembered: Remembered::default(),
                        last: spec.clone(),
                        spec: Some(spec),
                        removals: 0,
                    }
                })
                .collect(),
            plan: Some(plan),
            ..Self::default()
        }
    }

    pub(crate) fn is_slow(&self) -> bool {
        let slow = self.plan.as_ref().and_then(|plan| plan.slow_store);
        slow.is_some_and(|slow| slow > 0)
    }

    /// Whether what a driver writes now takes its time.
    pub(crate) fn writes_slowly(&self, random: &mut Random) -> bool {
        let slow = self.plan.as_ref().and_then(|plan| plan.slow_store);
        slow.is_some_and(|slow| slow > 0 && random.chance(slow))
    }

    /// Whether no machine in this place has opened an instance of this name (I3).
    pub(crate) fn is_new(&mut self, seat: &Seat, generation: Generation) -> bool {
        let place = (seat.session, Arc::clone(&seat.server));
        self.is_empty()
            || self
                .generations
                .entry(place)
                .or_default()
                .insert(generation)
    }

    /// Whether this is the world without clients.
    pub(crate) fn is_empty(&self) -> bool {
        self.plan.is_none()
    }

    pub(crate) fn is_crashing(&self) -> bool {
        self.is_crashing
    }

    /// Whether the gateway is killed before the output at hand.
    pub(crate) fn crashes_now(&mut self) -> bool {
        if let Some(left) = &mut self.fuse {
            if let Some(rest) = left.checked_sub(1) {
                *left = rest;
            } else {
                self.fuse = None;
                self.is_crashing = true;
            }
        }
        self.is_crashing
    }

    pub(crate) fn timers(&self) -> impl Iterator<Item = (Moment, Due)> {
        let desks = self.desks.iter().enumerate();
        desks.filter_map(|(at, desk)| Some((desk.armed?.1, Due::Desk(at))))
    }

    fn ordinal(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The entry of a record as it is configured.
    fn spec_at(&self, session: SessionKey, server: &str) -> Option<&Spec> {
        if session == SessionKey::SHARED {
            return self.global_spec(server);
        }
        let spec = self.entries[self.entry_of(server)].spec.as_ref();
        spec.filter(|spec| !spec.global)
    }

    /// Whether a record with these marks belongs to the entry as it is configured.
    fn is_of(&self, session: SessionKey, server: &str, who: (u64, u64)) -> bool {
        let spec = self.spec_at(session, server);
        spec.is_some_and(|spec| spec.who() == who)
    }

    /// The entries as they are configured, as a client there sees them.
    fn views(&self, stand: &Stand) -> Vec<EntryView> {
        let entries = self.entries.iter().enumerate();
        let seen = entries.filter(|(at, entry)| {
            entry.spec.is_some() && stand.entry.is_none_or(|only| only == *at)
        });
        seen.map(|(_, entry)| EntryView {
            name: Arc::clone(&entry.name),
            unavailable: None,
            remembered: Some(Arc::new(entry.remembered.clone())),
        })
        .collect()
    }

    fn entry_of(&self, name: &str) -> usize {
        let found = self.entries.iter().position(|entry| &*entry.name == name);
        found.unwrap_or(0)
    }

    /// Bytes of events beyond which a session drops some, as if all together held too much: only in
    /// seeds where few events are held anyway.
    fn held_max(&self) -> usize {
        let plan = self.plan.as_ref();
        match plan.map(|plan| plan.settings.redelivery_events_max) {
            Some(events @ 0..64) => events * SHED_ABOVE,
            Some(_) | None => usize::MAX,
        }
    }

    fn config(&self, desk: usize) -> SessionConfig {
        let desk = &self.desks[desk];
        let endpoint = match desk.stand.entry {
            Some(at) => Endpoint::One(Arc::clone(&self.entries[at].name)),
            None => Endpoint::All,
        };
        let entries = self.views(&desk.stand);
        let settings = self.plan.as_ref().map(|plan| plan.settings.clone());
        SessionConfig {
            key: desk.key,
            endpoint,
            downstream: if desk.stand.pipe {
                Downstream::Pipe
            } else {
                Downstream::Http
            },
            settings: settings.unwrap_or_default().into(),
            // One for all, so that only the session tells cursors apart.
            cursor_key: [7; 32],
            base: self.epoch << 32,
            entries,
        }
    }
}

/// Bytes for each event that may be held, where sessions drop events for others.
const SHED_ABOVE: usize = 40;

/// Faults that were decided before the end have struck by then.
const SETTLE: Duration = Duration::from_secs(40);

impl World {
    /// The world with clients.
    pub(crate) fn with_clients(plan: StackPlan, trace: bool) -> Self {
        let mut world = Self::of(plan.base.clone(), Stack::default(), trace);
        for (at, step) in plan.steps.iter().enumerate() {
            let event = Event::Stack(Box::new(Happening::Step(*step)));
            world.agenda.put(Moment(step.at), at as u64, event);
        }
        let stands = plan.clients.clone();
        world.stack = Stack::of(plan);
        for stand in stands {
            let desk = world.new_desk(stand);
            world.stack.clients.push(desk);
        }
        world
    }

    fn new_desk(&mut self, stand: Stand) -> usize {
        let at = self.stack.desks.len();
        self.stack.desks.push(Desk {
            key: SessionKey(at as u64),
            stand,
            machine: None,
            armed: None,
            opened: false,
            closing: false,
            record: None,
            calls: Vec::new(),
            exchanges: BTreeMap::new(),
            streams: BTreeMap::new(),
            main: None,
            cursors: Vec::new(),
            subscribed: BTreeSet::new(),
            levelled: BTreeSet::new(),
            initialized: false,
            next_id: 0,
            ways: BTreeMap::new(),
            stale: false,
        });
        at
    }

    /// The whole run: faults and kills, healing, fresh calls, everybody comes back for answers, the
    /// end.
    pub(crate) fn run_stack(&mut self) -> Result<(), Violation> {
        let ends = self.stack.plan.as_ref().map(StackPlan::ends);
        let ends = Moment(ends.unwrap_or_default());
        self.run_until(ends)?;
        self.heal();
        self.disk_heals();
        self.stack.fuse = None;
        self.add_all();
        self.run_until(ends.after(SETTLE))?;
        self.each_client(|world, client| world.do_act(client, Act::Open))?;
        self.prove_clients()?;
        let settings = &self.plan.settings;
        let bound = settings.call_timeout_max + LATE_MAX + Duration::from_mins(1);
        self.run_until(self.now.after(bound))?;
        self.fetch_all();
        self.run_until(self.now.after(Duration::from_secs(10)))?;
        self.check_heard()?;
        self.check_settled()?;
        self.check_sizes()?;
        self.check_rest()?;
        for desk in 0..self.stack.desks.len() {
            self.tell_desk(desk, Input::Close);
        }
        self.run_until(Moment(Duration::MAX))?;
        let left = self.stack.records.keys().next();
        if let Some((key, server)) =
            left.filter(|_| !self.stack.store_failed && !self.stack.store_fails)
        {
            let what = format!("the record of {key:?} with {server} outlives its session");
            return Err(Violation::new("leak", what));
        }
        self.end_globals()?;
        self.run_until(Moment(Duration::MAX))?;
        self.check_gone()
    }

    fn each_client(&mut self, act: impl Fn(&mut Self, usize)) -> Result<(), Violation> {
        for client in 0..self.stack.clients.len() {
            act(self, client);
        }
        let settings = &self.plan.settings;
        let bound = settings.start_timeout + settings.reconnect_wait + Duration::from_secs(20);
        self.run_until(self.now.after(bound))
    }

    /// After the faults a fresh request on each session is answered (I10, liveness).
    fn prove_clients(&mut self) -> Result<(), Violation> {
        let call = |entry| Act::Call {
            ask: Ask::Tool,
            progress: false,
            json: true,
            same_id: false,
            entry,
        };
        // The first may find out about a loss, and where the operator wants no replay it fails.
        self.each_client(|world, client| world.do_act(client, call(0)))?;
        let first = self.book.len();
        self.each_client(|world, client| world.do_act(client, call(0)))?;
        for number in first..self.book.len() {
            let heard = self.book.get(number).and_then(|record| record.heard);
            if heard != Some(crate::book::Heard::Answer) {
                let what = format!("after the faults, call {number} ended in {heard:?}");
                return Err(Violation::new("liveness", what));
            }
        }
        for (at, desk) in self
            .stack
            .clients
            .iter()
            .map(|at| (*at, &self.stack.desks[*at]))
        {
            if !desk.opened {
                return Err(Violation::new("liveness", format!("desk {at} never opens")));
            }
        }
        Ok(())
    }

    pub(crate) fn happen_stack(&mut self, happening: Happening) {
        match happening {
            Happening::Step(step) => self.do_act(step.client, step.act),
            Happening::ToUpstream(epoch, desk, server, input) => {
                if epoch == self.stack.epoch {
                    self.reach_upstream(desk, &server, *input);
                }
            }
            Happening::ToSession(epoch, desk, server, event) => {
                if epoch == self.stack.epoch {
                    let event = *event;
                    self.tell_desk(desk, Input::Upstream { server, event });
                }
            }
            Happening::Tell(epoch, desk, input) => {
                if epoch == self.stack.epoch {
                    self.tell_desk(desk, *input);
                }
            }
            Happening::Answer(epoch, desk, text) => {
                if epoch == self.stack.epoch {
                    self.say_to(desk, &text);
                }
            }
            Happening::Left(epoch, session) => {
                if epoch == self.stack.epoch {
                    self.leave_globals(session);
                }
            }
            Happening::Restart => self.restart(),
        }
    }

    fn happen_at(&mut self, when: Moment, happening: Happening) {
        self.put(when, Event::Stack(Box::new(happening)));
    }

    /// Gives a session one input, does what it wants, and arms its timer.
    fn tell_desk(&mut self, at: usize, input: Input) {
        if self.stack.is_crashing || self.stack.desks[at].machine.is_none() {
            return;
        }
        let now = self.now;
        if self.trace.is_kept() {
            let line = format!("{:?} desk {at} < {input:?}", now.0);
            self.trace.note([0; 4], b"", format_args!("{line}"));
        }
        let mut outputs = VecDeque::new();
        if let Some(machine) = &mut self.stack.desks[at].machine {
            machine.handle(now, input);
            while let Some(output) = machine.poll() {
                outputs.push_back(output);
            }
        }
        for output in outputs {
            if self.stack.crashes_now() {
                return;
            }
            let taken = self.take_desk(at, output);
            self.hold(taken);
        }
        let desk = &self.stack.desks[at];
        let deadline = desk.machine.as_ref().and_then(Session::next_deadline);
        if desk.armed.map(|armed| armed.0) != deadline {
            let late = self.lateness();
            self.stack.desks[at].armed = deadline.map(|due| (due, due.max(now).after(late)));
        }
    }

    pub(crate) fn fire_desk(&mut self, at: usize) -> Result<(), Violation> {
        self.stack.desks[at].armed = None;
        self.tell_desk(at, Input::Timer);
        let machine = self.stack.desks[at].machine.as_ref();
        let next = machine.and_then(Session::next_deadline);
        if !self.stack.is_crashing && next.is_some_and(|next| next <= self.now) {
            return Err(Violation::new("I7", format!("desk {at}: a deadline stays")));
        }
        Ok(())
    }

    fn take_desk(&mut self, at: usize, output: Output) -> Result<(), Violation> {
        self.note_desk(at, &output);
        match output {
            Output::Persist(record) => {
                let bytes = record.encode();
                if springline_proto::session::Record::decode(&bytes).as_ref() != Some(&*record) {
                    return Err(Violation::new("I10", "a record does not read back"));
                }
                self.stack.desks[at].record = Some(bytes);
                Ok(())
            }
            Output::Mark { number, mark } => {
                let session = self.stack.desks[at].key;
                self.keep_mark(CallKey { session, number }, mark);
                Ok(())
            }
            Output::ToExchange { exchange, part } => self.see_exchange(at, exchange, part),
            Output::ToStream { connection, part } => self.see_stream(at, connection, part),
            Output::ToUpstream { server, input } => {
                let when = self.way(at, true, &server);
                let epoch = self.stack.epoch;
                self.happen_at(when, Happening::ToUpstream(epoch, at, server, input));
                Ok(())
            }
            Output::Remember { server, what } => {
                let entry = self.stack.entry_of(&server);
                let remembered = &mut self.stack.entries[entry].remembered;
                match what {
                    Known::Initialize(result) => remembered.initialize = Some(result),
                    Known::List(kind, pages) => {
                        remembered.lists.insert(kind, pages);
                    }
                }
                Ok(())
            }
            Output::Held(bytes) => {
                if bytes > self.stack.held_max() {
                    self.tell_desk(at, Input::Shed { most: bytes / 2 });
                }
                Ok(())
            }
            Output::Taken(_) | Output::Emit(_) => Ok(()),
            Output::Closed => {
                self.desk_closed(at);
                Ok(())
            }
        }
    }

    fn note_desk(&mut self, at: usize, output: &Output) {
        let (tag, bytes) = match output {
            Output::Persist(record) => (20, record.encode()),
            Output::Mark { number, .. } => (21 + number * 8, Bytes::new()),
            Output::ToExchange { exchange, .. } => (22 + exchange.0 * 8, Bytes::new()),
            Output::ToStream { connection, .. } => (23 + connection.0 * 8, Bytes::new()),
            Output::ToUpstream { .. } => (24, Bytes::new()),
            Output::Remember { .. } => (25, Bytes::new()),
            Output::Emit(_) => (26, Bytes::new()),
            Output::Closed => (27, Bytes::new()),
            Output::Taken(frame) => (28 + frame * 8, Bytes::new()),
            Output::Held(bytes) => (29 + *bytes as u64 * 8, Bytes::new()),
        };
        let now = u64::try_from(self.now.0.as_nanos()).unwrap_or(u64::MAX);
        let line = if self.trace.is_kept() {
            format!("{:?} desk {at} > {output:?}", self.now.0)
        } else {
            String::new()
        };
        let numbers = [tag, now, at as u64, 0];
        self.trace.note(numbers, &bytes, format_args!("{line}"));
    }

    /// When something arrives that leaves for, or comes from, an upstream now: order is kept.
    fn way(&mut self, desk: usize, there: bool, server: &Arc<str>) -> Moment {
        let lag = self.stack.plan.as_ref().map_or(0, |plan| plan.lag);
        let lag = Duration::from_micros(self.random.below(lag + 1));
        let way = self.stack.desks[desk]
            .ways
            .entry((there, Arc::clone(server)))
            .or_default();
        *way = self.now.after(lag).max(way.after(Duration::from_nanos(1)));
        *way
    }

    /// An upstream reports to its session.
    pub(crate) fn report(
        &mut self,
        at: usize,
        session: SessionKey,
        server: Arc<str>,
        event: SessionEvent,
    ) -> Result<(), Violation> {
        let seat = &self.seats[at];
        let own = if seat.is_shared() {
            self.stack.instance_name(&server) == seat.server
        } else {
            session == seat.session && server == seat.server
        };
        if !own {
            let what = format!("#{at} speaks to {session:?}/{server}: {event:?}");
            return Err(Violation::new("I9", what));
        }
        if seat.is_shared() && !self.stack.is_bound(at, session) {
            // That session is over.
            return Ok(());
        }
        if seat.is_shared() {
            self.note_granted(&event);
        }
        let desk = usize::try_from(session.0).unwrap_or(0);
        let when = self.way(desk, false, &server);
        let epoch = self.stack.epoch;
        let event = Box::new(event);
        self.happen_at(when, Happening::ToSession(epoch, desk, server, event));
        Ok(())
    }

    /// What a session tells an upstream; it is made if it does not exist.
    fn reach_upstream(&mut self, desk: usize, server: &Arc<str>, input: UpstreamInput) {
        let key = self.stack.desks[desk].key;
        if self.reach_leaving(key, server, &input) {
            return;
        }
        let is_over = self.stack.desks[desk].machine.is_none();
        if is_over && matches!(input, UpstreamInput::Take { .. }) {
            // It was passed on, and nobody waits for it any more.
            return;
        }
        let mut seats = self.seats.iter();
        let at = seats.position(|seat| seat.serves(key, server));
        let mut shared = self.stack.shared_way(key, server);
        if at.is_none() && shared.is_none() {
            let idle = matches!(
                input,
                UpstreamInput::Close { .. } | UpstreamInput::Attached(_)
            );
            if idle && !self.stack.has_to_end(key, server) {
                return;
            }
            shared = self.join_shared(key, server);
        }
        if let Some(global) = shared {
            // The end of a session is not yet that of a shared upstream.
            let input = match input {
                UpstreamInput::Close { fault, .. } => UpstreamInput::Close {
                    fault,
                    end_session: false,
                },
                other => other,
            };
            return self.tell_global(global, key, server, input);
        }
        let at = at.unwrap_or_else(|| self.new_seat(key, server));
        if matches!(
            input,
            UpstreamInput::Call { .. } | UpstreamInput::Start { .. } | UpstreamInput::Take { .. }
        ) {
            self.seats[at].calls.push(usize::MAX);
        }
        if matches!(input, UpstreamInput::Close { .. }) {
            self.seats[at].closed = true;
        }
        self.feed(at, input);
    }

    fn new_seat(&mut self, session: SessionKey, server: &Arc<str>) -> usize {
        let spec = self.stack.entries[self.stack.entry_of(server)].spec.clone();
        let removed = spec.is_none();
        let at = self.seat_at_rest(session, server, spec, Serving::from);
        if removed {
            let fault = Fault::new(FaultKind::ServerRemoved);
            let end_session = false;
            self.feed(at, UpstreamInput::Close { fault, end_session });
        }
        at
    }

    /// An upstream as it is at rest, if it is.
    fn seat_at_rest(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        spec: Option<Spec>,
        serve: impl FnOnce(Upstream) -> Serving,
    ) -> usize {
        let config = self.upstream_config(session, server, spec.as_ref());
        let http = spec.as_ref().is_none_or(|spec| spec.http);
        let at_rest = self.stack.records.get(&(session, Arc::clone(server)));
        let at_rest = at_rest.and_then(|(who, record)| Some((*who, Record::decode(record)?)));
        let at = self.seats.len();
        let mut seat = match at_rest {
            None => Seat::with(serve(Upstream::new(config, self.now)), http, session),
            Some((who, record)) => {
                let same = self.stack.is_of(session, server, who);
                let record = if same || !record.is_resumable() {
                    if let Some(id) = &record.route.session_id {
                        self.server.known(id, true);
                    }
                    record
                } else {
                    // Nobody may use it with other credentials, and nobody may end it with them.
                    if let Some(id) = &record.route.session_id {
                        self.server.known(id, false);
                    }
                    record.without_session()
                };
                self.resumed_seat(config, record, http, session, serve)
            }
        };
        seat.spec = spec;
        seat.credential = self.server.source;
        self.seats.push(seat);
        at
    }

    /// A request is in the journal as sent before it leaves.
    pub(crate) fn keep_sent(
        &mut self,
        at: usize,
        key: CallKey,
        _generation: Generation,
    ) -> Result<(), Violation> {
        if self.stack.is_empty() {
            return Ok(());
        }
        if key.session != self.seats[at].session && !self.seats[at].is_shared() {
            return Err(Violation::new("I9", format!("#{at} sends {key}")));
        }
        if self.may_leave(key)
            && let Some(held) = self.stack.journal.get_mut(&key)
        {
            held.sent();
        }
        Ok(())
    }
}
