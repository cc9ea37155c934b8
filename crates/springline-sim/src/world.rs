//! The world of one run: time, the upstream machines with their drivers, and the loop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{CallKey, ExchangeId, Generation, Moment, SessionKey};
use springline_proto::settings::{ReplayPolicy, StateLossPolicy, UpstreamSettings};
use springline_proto::shared::Serving;
use springline_proto::upstream::{Input, Output, Standby, Transport, Upstream, UpstreamConfig};

use crate::agenda::Agenda;
use crate::book::{Book, Violation};
use crate::plan::{Ask, Deed, Fault, Plan};
use crate::random::Random;
use crate::server::Server;
use crate::stack::{Happening, Spec, Stack};
use crate::trace::Trace;

/// What is going to happen.
pub(crate) enum Event {
    Deed(usize, Deed),
    /// An input reaches a machine, unless its exchange or instance is over by then.
    Input(usize, Box<Input>),
    /// An input of a client, or of an unruly driver.
    Tell(usize, Box<Input>),
    /// An HTTP request reaches the server.
    Arrive(usize, Box<crate::server::Request>),
    /// A line reaches a child.
    Line(usize, Generation, Bytes),
    /// A child exits.
    Exit(usize, Generation),
    /// The sources of credentials are read.
    Read(usize),
    Delete(Arc<str>),
    /// What an upstream had to write is written.
    Written(usize),
    /// Something of the world with clients and sessions.
    Stack(Box<Happening>),
}

/// One instance, as its driver knows it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other"
)]
pub(crate) struct Running {
    pub(crate) opened: Moment,
    /// The driver ended it, or told that it is lost.
    pub(crate) over: bool,
    /// The session id that the machine was told.
    pub(crate) session: Option<Arc<str>>,
    /// The machine was told that `notifications/initialized` was accepted.
    pub(crate) accepted: bool,
    pub(crate) confirming: Option<ExchangeId>,
    /// The attempt ended, well or not.
    pub(crate) judged: bool,
    /// stdio: it runs.
    pub(crate) alive: bool,
    /// stdio: the child itself has seen `notifications/initialized`.
    pub(crate) initialized: bool,
    /// stdio: it has closed its standard input.
    pub(crate) deaf: bool,
    /// stdio: order of both pipes.
    pub(crate) pipe_in: Moment,
    pub(crate) pipe_out: Moment,
    /// Questions of the server that are open, by raw id.
    pub(crate) questions: BTreeSet<String>,
}

impl Running {
    /// The instance of a session that is resumed.
    pub(crate) fn resumed(now: Moment, session: Option<Arc<str>>) -> Self {
        Self {
            opened: now,
            over: false,
            session,
            accepted: true,
            confirming: None,
            judged: true,
            alive: false,
            initialized: true,
            deaf: false,
            pipe_in: now,
            pipe_out: now,
            questions: BTreeSet::new(),
        }
    }
}

/// One upstream with its driver and its client.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
pub(crate) struct Seat {
    pub(crate) machine: Serving,
    /// The session that it serves, and the name of its server entry.
    pub(crate) session: SessionKey,
    pub(crate) server: Arc<str>,
    /// The process that drove it is gone; what it sent may still arrive.
    pub(crate) dead: bool,
    /// What allows it to open instances.
    pub(crate) licence: Licence,
    pub(crate) http: bool,
    pub(crate) instances: BTreeMap<Generation, Running>,
    pub(crate) live: BTreeMap<ExchangeId, Generation>,
    /// Generations that wait, or waited, for their turn in the start budget.
    pub(crate) reserved: BTreeSet<Generation>,
    pub(crate) calls: Vec<usize>,
    pub(crate) credential: u64,
    pub(crate) closed: bool,
    pub(crate) keeps_sessions: bool,
    pub(crate) hellos: u64,
    /// Instances that were opened, and requests that no client made.
    pub(crate) opens: usize,
    pub(crate) own_requests: usize,
    /// Those of them of which no byte left.
    pub(crate) own_unsent: usize,
    pub(crate) armed: Option<(Moment, Moment)>,
    /// The entry that it serves, as it was configured; none if it is not, or in a world without.
    pub(crate) spec: Option<Spec>,
    pub(crate) post: Post,
    /// It began with what another knew, and tells its first instance of it.
    pub(crate) inherits: bool,
    /// What waits until a write is done: outputs behind it, and inputs.
    pub(crate) writing: Option<VecDeque<Output>>,
    pub(crate) inbox: VecDeque<Input>,
    /// The machine takes in what waits, though the write is not done: what comes out waits instead.
    pub(crate) catches_up: bool,
}

/// Where an upstream stands in the configuration that is in force.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Post {
    /// Calls come to it.
    Serves,
    /// Another has its place; it finishes what it has.
    Leaves,
    /// It has finished.
    Left,
}

/// Whose timer is due.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Due {
    Seat(usize),
    Desk(usize),
}

/// What an upstream that speaks HTTP may open instances for: a session that it does not need, or
/// that a later 401 made, is a broken promise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Licence {
    /// It began with the session of a process before it.
    pub(crate) resumed: bool,
    /// That session was proved by an answer, or given up: the one chance is spent.
    pub(crate) spent: bool,
    /// The server said that a session is gone, so often.
    pub(crate) losses: u32,
    /// Instances that the machine may open yet.
    pub(crate) opens: u32,
    /// Handshakes that were released with the last session: each gave its right back at once, and not
    /// when its late answer ends it.
    pub(crate) released: u32,
}

/// The world of one run.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) now: Moment,
    pub(crate) agenda: Agenda<Event>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) server: Server,
    /// What has passed of answers that are too large to be held.
    pub(crate) passing: BTreeMap<CallKey, Vec<u8>>,
    pub(crate) book: Book,
    pub(crate) trace: Trace,
    pub(crate) broken: Option<Violation>,
    /// Clients and sessions in front of the upstreams, in the world that has them.
    pub(crate) stack: Stack,
    steps: u64,
}

/// Timers are late by at most this, if that fault is on.
pub(crate) const LATE_MAX: Duration = Duration::from_millis(300);
/// A write takes at most this, if the store is slow.
const WRITE_MAX: Duration = Duration::from_millis(400);
/// No run needs as many steps; one that takes more is a loop (I5).
const STEPS_MAX: u64 = 50_000;
/// Faults that were decided before the end have struck by then.
const SETTLE: Duration = Duration::from_secs(30);

impl World {
    pub(crate) fn new(seed: u64, trace: bool) -> Self {
        Self::of(Plan::draw(seed), Stack::default(), trace)
    }

    pub(crate) fn of(plan: Plan, stack: Stack, trace: bool) -> Self {
        let mut random = plan.random.clone();
        let now = Moment::default();
        let seats = plan
            .seats
            .iter()
            .enumerate()
            .map(|(at, http)| Seat::new(at, *http, &plan, random.next(), now))
            .collect();
        let mut agenda = Agenda::new();
        for (at, step) in plan.steps.iter().enumerate() {
            agenda.put(
                Moment(step.at),
                at as u64,
                Event::Deed(step.seat, step.deed),
            );
        }
        Self {
            server: Server::new(random.fork()),
            plan,
            random,
            now,
            agenda,
            seats,
            book: Book::default(),
            trace: Trace::new(trace),
            broken: None,
            stack,
            passing: BTreeMap::new(),
            steps: 0,
        }
    }

    /// The whole run: faults, healing, one fresh call each, the end.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let ends = Moment(self.plan.ends());
        self.run_until(ends)?;
        self.heal();
        self.run_until(ends.after(SETTLE))?;
        self.prove_alive()?;
        let settings = &self.plan.settings;
        let bound = settings.call_timeout_max + LATE_MAX + Duration::from_mins(1);
        self.run_until(self.now.after(bound))?;
        self.book.close()?;
        self.check_settled()?;
        self.check_sizes()?;
        for seat in 0..self.seats.len() {
            self.act(seat, Deed::Close { end_session: true });
        }
        self.run_until(Moment(Duration::MAX))?;
        self.check_gone()
    }

    pub(crate) fn heal(&mut self) {
        self.trace.note(
            [1, 0, 0, 0],
            b"",
            format_args!("{:?} the faults stop", self.now.0),
        );
        self.plan.rates.heal();
        self.plan.large.heal();
        self.server.heal();
    }

    /// After the faults a fresh call is answered within a bound.
    fn prove_alive(&mut self) -> Result<(), Violation> {
        // Where the operator wants no replay, the first call may only find out about a loss; one
        // with less patience than the longest pause between recoveries may only begin to wait.
        let settings = &self.plan.settings;
        let strict = settings.replay != ReplayPolicy::AfterSessionLoss
            || settings.on_state_loss == StateLossPolicy::Fail
            || settings.call_timeout < settings.recovery_backoff.1 + Duration::from_secs(2);
        if strict {
            self.call_each()?;
        }
        let first = self.call_each()?;
        for number in first..self.book.len() {
            let Some(record) = self.book.get(number) else {
                continue;
            };
            let seat = usize::try_from(record.key.session.0).unwrap_or(0);
            let open = !self.seats[seat].closed;
            if open && record.heard != Some(crate::book::Heard::Answer) {
                let what = format!(
                    "after the faults, call {number} ended in {:?}",
                    record.heard
                );
                return Err(Violation::new("liveness", what));
            }
        }
        Ok(())
    }

    /// One call for each upstream, and the time that it may take; returns the first one's number.
    fn call_each(&mut self) -> Result<usize, Violation> {
        let first = self.book.len();
        for seat in 0..self.seats.len() {
            let (ask, progress) = (Ask::Tool, false);
            self.act(seat, Deed::Call { ask, progress });
        }
        let settings = &self.plan.settings;
        let bound = settings.start_timeout + settings.reconnect_wait + Duration::from_secs(10);
        self.run_until(self.now.after(bound))?;
        Ok(first)
    }

    pub(crate) fn run_until(&mut self, end: Moment) -> Result<(), Violation> {
        loop {
            let timer = self.next_timer();
            let next = self.agenda.next_at();
            let timer_first = match (timer, next) {
                (None, None) => break,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some((at, _)), Some(next)) => at < next || (at == next && self.random.chance(500)),
            };
            let at = if timer_first {
                timer.map(|timer| timer.0)
            } else {
                next
            };
            if at.is_none_or(|at| at > end) {
                break;
            }
            match timer {
                Some((at, due)) if timer_first => {
                    self.now = self.now.max(at);
                    match due {
                        Due::Seat(seat) => self.fire(seat)?,
                        Due::Desk(desk) => self.fire_desk(desk)?,
                    }
                }
                _ => {
                    let Some((at, event)) = self.agenda.take() else {
                        break;
                    };
                    self.now = self.now.max(at);
                    self.happen(event);
                }
            }
            if let Some(violation) = self.broken.take() {
                return Err(violation);
            }
            if self.stack.is_crashing() {
                self.crash()?;
            }
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(Violation::new("I5", "the run does not come to rest"));
            }
        }
        if end < Moment(Duration::MAX) {
            self.now = self.now.max(end);
        }
        Ok(())
    }

    fn next_timer(&self) -> Option<(Moment, Due)> {
        let seats = self.seats.iter().enumerate();
        let seats = seats.filter_map(|(at, seat)| Some((seat.armed?.1, Due::Seat(at))));
        seats.chain(self.stack.timers()).min()
    }

    fn fire(&mut self, seat: usize) -> Result<(), Violation> {
        self.seats[seat].armed = None;
        self.feed(seat, Input::Timer);
        let next = self.seats[seat].machine.next_deadline();
        if next.is_some_and(|next| next <= self.now) {
            self.feed(seat, Input::Timer);
            let next = self.seats[seat].machine.next_deadline();
            if next.is_some_and(|next| next <= self.now) {
                return Err(Violation::new("I7", "a deadline stays in the past"));
            }
        }
        Ok(())
    }

    /// Gives a machine one input, does what it wants, and arms its timer.
    pub(crate) fn feed(&mut self, at: usize, input: Input) {
        if self.seats[at].dead || self.stack.is_crashing() {
            return;
        }
        if self.seats[at].writing.is_some() && !self.seats[at].catches_up {
            self.seats[at].inbox.push_back(input);
            return;
        }
        if matches!(input, Input::Withheld { .. }) {
            self.told_withheld(at);
        }
        if self.trace.is_kept() {
            let line = format!("{:?} #{at} < {input:?}", self.now.0);
            self.trace
                .note([2, at as u64, 0, 0], b"", format_args!("{line}"));
        }
        let now = self.now;
        if may_open(&input) {
            self.seats[at].licence.opens += 1;
        }
        let may_idle = matches!(input, Input::Timer)
            && matches!(self.seats[at].machine.standby(), Standby::Ready(_));
        let may_release =
            self.seats[at].is_shared() && self.seats[at].machine.standby() == Standby::Starting;
        self.seats[at].machine.handle(now, input);
        if may_idle && self.seats[at].machine.standby() == Standby::Idle {
            // Nobody used it: the next call may open another.
            self.seats[at].licence.opens += 1;
        }
        let machine = &mut self.seats[at].machine;
        let outputs: VecDeque<Output> = std::iter::from_fn(|| machine.poll()).collect();
        let seat = &mut self.seats[at];
        if may_release
            && seat.machine.standby() == Standby::Idle
            && outputs
                .iter()
                .any(|output| matches!(output, Output::Forget))
        {
            seat.licence.opens += 1;
            seat.licence.released += 1;
        }
        if let Some(writing) = seat.writing.as_mut().filter(|_| seat.catches_up) {
            writing.extend(outputs);
            return;
        }
        if outputs.iter().any(is_written) && self.stack.writes_slowly(&mut self.random) {
            let when = now.after(self.random.millis(1, 400).min(WRITE_MAX));
            let seat = &mut self.seats[at];
            seat.armed = None;
            seat.writing = Some(outputs);
            self.put(when, Event::Written(at));
            return;
        }
        self.perform(at, outputs);
    }

    /// The machine of one that writes takes in what waits for that: before a change that must not come
    /// ahead of it.
    pub(crate) fn catch_up(&mut self, at: usize) {
        if self.seats[at].writing.is_none() {
            return;
        }
        self.seats[at].catches_up = true;
        // What transports report comes from elsewhere, in its own order.
        let inbox = std::mem::take(&mut self.seats[at].inbox);
        let (said, rest): (VecDeque<Input>, VecDeque<Input>) = inbox.into_iter().partition(is_said);
        self.seats[at].inbox = rest;
        for input in said {
            self.feed(at, input);
        }
        self.seats[at].catches_up = false;
    }

    /// What a change brought out waits behind the write that is under way, if one is.
    pub(crate) fn collect(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if let Some(writing) = &mut seat.writing {
            writing.extend(std::iter::from_fn(|| seat.machine.poll()));
        }
    }

    /// Does what a machine wants, and arms its timer.
    fn perform(&mut self, at: usize, outputs: VecDeque<Output>) {
        let now = self.now;
        for output in outputs {
            if self.stack.crashes_now() {
                return;
            }
            if let Err(violation) = self.take_output(at, output) {
                self.broken.get_or_insert(violation);
            }
        }
        self.check_step(at);
        let deadline = self.seats[at].machine.next_deadline();
        let armed = self.seats[at].armed;
        if armed.map(|armed| armed.0) != deadline {
            let late = self.lateness();
            self.seats[at].armed = deadline.map(|due| (due, due.max(now).after(late)));
        }
    }

    /// A slow write is done: what waited for it goes on, in order.
    fn written(&mut self, at: usize) {
        if self.seats[at].dead {
            return;
        }
        if let Some(outputs) = self.seats[at].writing.take() {
            self.perform(at, outputs);
        }
        while self.seats[at].writing.is_none()
            && let Some(input) = self.seats[at].inbox.pop_front()
        {
            self.deliver(at, input);
        }
    }

    pub(crate) fn lateness(&mut self) -> Duration {
        if self.strikes(Fault::LateTimer) {
            self.random.millis(0, 300).min(LATE_MAX)
        } else {
            Duration::ZERO
        }
    }

    pub(crate) fn strikes(&mut self, fault: Fault) -> bool {
        self.plan.rates.strikes(&mut self.random, fault)
    }

    /// A network's or pipe's delay: mostly short, at times long.
    pub(crate) fn delay(&mut self) -> Duration {
        if self.strikes(Fault::Slow) {
            self.random.millis(0, 3_000)
        } else {
            Duration::from_micros(self.random.below(20_000))
        }
    }

    pub(crate) fn put(&mut self, at: Moment, event: Event) {
        let tie = self.random.next();
        self.agenda.put(at, tie, event);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deed(seat, deed) => self.act(seat, deed),
            Event::Input(seat, input) => self.deliver(seat, *input),
            Event::Tell(seat, input) => {
                if let Input::Asking { key, begins } = &*input {
                    self.clock(*key, *begins);
                }
                self.feed(seat, *input);
            }
            Event::Arrive(seat, request) => self.arrive(seat, *request),
            Event::Line(seat, generation, line) => self.read_line(seat, generation, &line),
            Event::Exit(seat, generation) => self.exit(seat, generation),
            Event::Read(seat) => {
                let changed = self.seats[seat].credential != self.server.source;
                self.seats[seat].credential = self.server.source;
                self.feed(seat, Input::Credentials { changed });
            }
            Event::Delete(session) => self.server.delete(&session),
            Event::Written(seat) => self.written(seat),
            Event::Stack(happening) => self.happen_stack(*happening),
        }
    }

    /// What an attempt may take since it was opened, with a late timer and behind slow writes.
    pub(crate) fn start_patience(&self) -> Duration {
        let writes = if self.stack.is_slow() {
            8 * WRITE_MAX
        } else {
            Duration::ZERO
        };
        self.plan.settings.start_timeout + LATE_MAX + writes
    }

    /// Bounds that hold after each step (I7, I8).
    fn check_step(&mut self, at: usize) {
        let seat = &self.seats[at];
        let load = seat.machine.upstream().load();
        let spare = 2 * load.instances;
        // What a new or resumed instance is told again does not count.
        let waiting_max = self.plan.settings.waiting_max + seat.calls.len() + 8;
        // What is put into other hands beside all inputs comes out with one that waits.
        let is_behind = seat.is_shared() && !seat.inbox.is_empty();
        let broken =
            if load.exchanges > seat.live.len() + spare + self.withheld_len(at) && !is_behind {
                Some(format!(
                    "{} exchanges are kept, {} are under way",
                    load.exchanges,
                    seat.live.len()
                ))
            } else if load.waiting > waiting_max || load.pending > seat.calls.len() + 16 {
                Some(format!("{load:?}"))
            } else {
                None
            };
        let broken = broken.map(|what| Violation::new("I8", what));
        let broken = broken.or_else(|| seat.spent(&self.plan.settings));
        let patience = self.start_patience();
        let stuck = seat.instances.iter().find(|(_, running)| {
            !running.judged && !running.over && self.now.since(running.opened) > patience
        });
        let stuck = stuck.map(|(generation, _)| {
            Violation::new("I7", format!("the attempt of {generation} does not end"))
        });
        if let Some(violation) = broken.or(stuck) {
            self.broken.get_or_insert(violation);
        }
    }

    /// Once the faults have stopped and the last call is over, nothing is between two states.
    pub(crate) fn check_settled(&self) -> Result<(), Violation> {
        let live = self.seats.iter().enumerate().filter(|(_, seat)| !seat.dead);
        for (at, seat) in live {
            match seat.machine.standby() {
                Standby::Idle | Standby::Ready(_) | Standby::Closed => {}
                other @ (Standby::Starting | Standby::Waiting) => {
                    return Err(Violation::new("liveness", format!("#{at} is {other:?}")));
                }
            }
            if seat.post == Post::Leaves {
                return Err(Violation::new("liveness", format!("#{at} never leaves")));
            }
        }
        Ok(())
    }

    /// At rest nothing is kept but what serves (I8).
    pub(crate) fn check_sizes(&self) -> Result<(), Violation> {
        let live = self.seats.iter().enumerate().filter(|(_, seat)| !seat.dead);
        for (at, seat) in live {
            let load = seat.machine.upstream().load();
            let rests = load.pending == 0 && load.waiting == 0;
            let small = load.instances <= 2;
            if !rests || !small {
                return Err(Violation::new("I8", format!("#{at} at rest: {load:?}")));
            }
        }
        Ok(())
    }

    /// After the end nothing is left: no instance, no session at the server.
    pub(crate) fn check_gone(&self) -> Result<(), Violation> {
        let live = self.seats.iter().enumerate().filter(|(_, seat)| !seat.dead);
        for (at, seat) in live {
            if !seat.machine.is_gone() || seat.machine.standby() != Standby::Closed {
                return Err(Violation::new("leak", format!("#{at} is not gone")));
            }
            if let Some((generation, _)) = seat.instances.iter().find(|held| !held.1.over) {
                return Err(Violation::new(
                    "leak",
                    format!("#{at}: {generation} was never ended"),
                ));
            }
        }
        if self.stack.is_empty() {
            self.book.close()?;
        }
        self.server.check_gone()
    }
}

impl Seat {
    /// Attempts and requests of the gateway's own have a budget, by what clients asked (I5): a call
    /// owns one recovery and is sent again once; an instance is told what the lost one knew, and
    /// an answer that speaks of a lost session costs one ping. A request that never left is sent
    /// again at the pace of refused connections, for as long as these are tried.
    fn spent(&self, settings: &UpstreamSettings) -> Option<Violation> {
        let left = self.own_requests.saturating_sub(self.own_unsent);
        let opens_max = 2 * self.calls.len() + 2 * left + 2;
        // Sessions ask for themselves too, and a resumed one is told again what it knew.
        let calls = self.calls.iter();
        let asked = 12 * calls.filter(|call| **call == usize::MAX).count();
        let knows = self.licence.resumed || self.inherits;
        let told = if knows { 8 } else { 0 };
        let own_max = 6 * self.opens + 2 * self.calls.len() + told + asked;
        // 50, 100, 200, 400, 800 ms, then each second.
        let seconds = usize::try_from(settings.reconnect_wait.as_secs()).unwrap_or(usize::MAX);
        let unsent_max = own_max * (7 + seconds);
        (self.opens > opens_max || left > own_max || self.own_unsent > unsent_max).then(|| {
            let (opens, unsent, calls) = (self.opens, self.own_unsent, self.calls.len());
            let what = format!(
                "{opens} instances, {left} own requests and {unsent} that did not leave, {calls} calls"
            );
            Violation::new("I5", what)
        })
    }

    /// The server that it speaks to, as the configuration tells it from others.
    pub(crate) fn identity(&self) -> u64 {
        self.spec.as_ref().map_or(0, |spec| spec.identity)
    }

    fn new(at: usize, http: bool, plan: &Plan, seed: u64, now: Moment) -> Self {
        let config = UpstreamConfig {
            base: 0,
            server: Arc::from("sim"),
            transport: if http {
                Transport::Http
            } else {
                Transport::Stdio
            },
            session: SessionKey(at as u64),
            settings: plan.settings.clone().into(),
            seed,
        };
        Self::with(
            Upstream::new(config, now).into(),
            http,
            SessionKey(at as u64),
        )
    }

    pub(crate) fn with(machine: Serving, http: bool, session: SessionKey) -> Self {
        Self {
            server: Arc::clone(machine.upstream().server()),
            machine,
            session,
            dead: false,
            licence: Licence {
                opens: 1,
                ..Licence::default()
            },
            http,
            instances: BTreeMap::new(),
            live: BTreeMap::new(),
            reserved: BTreeSet::new(),
            calls: Vec::new(),
            credential: 0,
            closed: false,
            keeps_sessions: false,
            hellos: 0,
            opens: 0,
            own_requests: 0,
            own_unsent: 0,
            armed: None,
            spec: None,
            post: Post::Serves,
            inherits: false,
            writing: None,
            inbox: VecDeque::new(),
            catches_up: false,
        }
    }
}

/// Whether a session says this, or the gateway itself.
fn is_said(input: &Input) -> bool {
    matches!(
        input,
        Input::Of { .. }
            | Input::Start { .. }
            | Input::Call { .. }
            | Input::Notify { .. }
            | Input::Reply { .. }
            | Input::Cancel { .. }
            | Input::Asking { .. }
            | Input::Greet { .. }
            | Input::Attached(_)
            | Input::Drain(_)
            | Input::Take { .. }
            | Input::Settings(_)
            | Input::Close { .. }
    )
}

/// Whether the machine may need an instance for this that it would not need for a call.
fn may_open(input: &Input) -> bool {
    match input {
        Input::Start { .. } | Input::Retire => true,
        Input::Take { moved, .. } => moved.is_start(),
        Input::Of { input, .. } => may_open(input),
        _ => false,
    }
}

/// Whether a driver writes this down before it goes on.
fn is_written(output: &Output) -> bool {
    matches!(
        output,
        Output::Persist(_) | Output::Forget | Output::Sent { .. }
    )
}
