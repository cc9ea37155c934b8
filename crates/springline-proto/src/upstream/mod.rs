//! The upstream machine: one server, whichever instance of it lives.
//!
//! [`Upstream`] owns the handshake, the recovery, the pending requests and the verdicts about them.
//! It knows neither sockets nor clients: a driver feeds [`Input`], drains [`Upstream::poll`] until
//! it returns `None`, then arms a timer for [`Upstream::next_deadline`].
//!
//! What holds here whatever comes in:
//! - an answer is taken only from the generation that has the request (I2), and generations only
//!   grow (I3);
//! - nothing but the handshake is sent before `notifications/initialized` was accepted, and the
//!   check and the assignment are one step (I6);
//! - a request that may have run is sent again only if its replay class allows it (I4), once (I5);
//! - every request after the handshake carries the session id that was minted (I14).

mod chance;
mod credential;
mod drain;
mod exchange;
mod hint;
mod inbound;
mod instance;
mod listen;
mod loss;
mod passing;
mod pending;
mod port;
mod record;
mod request;
mod restore;
mod room;
mod share;
mod start;

use std::collections::VecDeque;
use std::sync::Arc;

pub use self::drain::{Drain, Legacy, Moved};
pub use self::port::{
    Binding, End, Event, Hello, Input, Output, Passing, Purpose, Refusal, Route, SessionEvent,
    Stretch,
};
pub use self::record::Record;
pub(crate) use self::share::share_settings;
pub use self::start::NO_HANDSHAKE;

use self::credential::Credential;
use self::exchange::Exchange;
use self::hint::Hints;
use self::instance::{Instance, Standing};
use self::pending::Pending;
use self::restore::Restore;
use self::start::{Attempt, Backoff};
use crate::call::{
    CallKey, ExchangeId, Generation, InstanceKey, MachineKey, Moment, SessionKey, UpstreamId,
};
use crate::error::{Fault, Outcome};
use crate::map::Map;
use crate::seldom::Seldom;
use crate::settings::UpstreamSettings;

/// What carries the messages; the few rules that differ by it ask this.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// A child process.
    Stdio,
    /// Streamable HTTP.
    Http,
}

/// What an upstream is made of.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The name of the server entry.
    pub server: Arc<str>,
    /// What carries its messages.
    pub transport: Transport,
    /// The session that it serves; [`SessionKey::SHARED`] if there are several.
    pub session: SessionKey,
    /// Its spans and policies.
    pub settings: Arc<UpstreamSettings>,
    /// Request ids begin above this: on a resumed session none may come twice.
    pub base: u64,
    /// Seed of the jitter of pauses: given, so that the machine draws nothing itself (I12). It also tells
    /// the machine from all others, so none is given twice.
    pub seed: u64,
}

/// What the machine is at. What passes is boxed: a machine is ready for most of its life.
#[derive(Clone, Debug)]
enum Phase {
    /// No instance takes requests, none is starting.
    Idle,
    /// An instance is starting; requests wait.
    Starting(Box<Attempt>),
    /// This instance takes requests.
    Ready(Generation),
    /// Done with for good.
    Closed(Box<Fault>),
}

/// A summary of the machine for people.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Standby {
    /// Nothing runs; the next call starts it.
    Idle,
    /// Starting or recovering.
    Starting,
    /// Ready, in this generation.
    Ready(Generation),
    /// Waiting until the next attempt.
    Waiting,
    /// Done with.
    Closed,
}

/// How much a machine keeps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Load {
    /// Requests that are not answered yet, our own included.
    pub pending: usize,
    /// Those of them that wait for a ready instance.
    pub waiting: usize,
    /// Exchanges with the server under way.
    pub exchanges: usize,
    /// Instances that are not ended yet.
    pub instances: usize,
}

/// One upstream of one session.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
pub struct Upstream {
    config: UpstreamConfig,
    hello: Option<Hello>,
    phase: Phase,
    /// Whether an instance was ever ready: the next one is a recovery.
    was_ready: bool,
    instances: Map<Generation, Instance>,
    exchanges: Map<ExchangeId, Exchange>,
    /// Exchanges that await no answer, oldest first, and when each is given up.
    deliveries: VecDeque<(Moment, ExchangeId)>,
    pending: Map<CallKey, Pending>,
    waiting: VecDeque<CallKey>,
    backoff: Backoff,
    credential: Credential,
    restore: Seldom<Restore>,
    hints: Hints,
    /// It takes nothing new: it is on its way out.
    drain: Option<Box<Drain>>,
    /// Whether it was told that nothing is left.
    drained: bool,
    /// The resumed session was not told yet what it must know.
    restore_due: bool,
    /// The record holds the answer to the handshake.
    keeps_answer: bool,
    /// The resumed session waits for the client whose parameters it was opened with.
    unclaimed: bool,
    /// The generation that the record at rest can resume.
    persisted: Option<Generation>,
    attached: bool,
    /// Something came for the present instance that is more than a look at what it offers.
    used: bool,
    last_use: Moment,
    /// When the last client let go; the children of a detached session are ended some time after.
    detached_at: Option<Moment>,
    generation_last: Generation,
    exchange_next: ExchangeId,
    id_next: UpstreamId,
    internal_next: u64,
    out: VecDeque<Output>,
}

impl Upstream {
    /// An upstream that has started nothing yet.
    pub fn new(config: UpstreamConfig, now: Moment) -> Self {
        Self {
            backoff: Backoff::new(config.seed),
            id_next: UpstreamId(config.base.saturating_add(1)),
            config,
            hello: None,
            phase: Phase::Idle,
            was_ready: false,
            instances: Map::new(),
            exchanges: Map::new(),
            deliveries: VecDeque::new(),
            pending: Map::new(),
            waiting: VecDeque::new(),
            credential: Credential::default(),
            restore: Seldom::default(),
            hints: Hints::default(),
            drain: None,
            drained: false,
            restore_due: false,
            keeps_answer: false,
            unclaimed: false,
            persisted: None,
            attached: true,
            used: false,
            last_use: now,
            detached_at: None,
            generation_last: Generation(0),
            exchange_next: ExchangeId(1),
            internal_next: 0,
            out: VecDeque::new(),
        }
    }

    /// Takes one input. Afterwards [`Self::poll`] must be drained.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the driver's side is taken by `handle_driver`"
    )]
    pub fn handle(&mut self, now: Moment, input: Input) {
        if let Phase::Closed(fault) = &self.phase {
            let fault = Fault::clone(fault);
            self.handle_closed(now, input, fault);
            return;
        }
        match input {
            Input::Start { key, hello } => self.on_start(now, key, hello),
            Input::Call {
                key,
                message,
                stretches,
            } => self.on_call(now, key, message, stretches),
            Input::Notify { message } => self.on_notify(now, message.bytes().clone().into()),
            Input::Reply {
                instance,
                id,
                message,
            } => {
                self.on_reply(now, instance, &id, &message);
            }
            Input::Cancel { key, message } => self.on_cancel(now, key, message.as_ref()),
            Input::Asking { key, begins } => self.on_asking(now, key, begins),
            Input::Greet { hello } => {
                if self.hello.is_none() {
                    self.hello = Some(hello);
                    // The client has had an instance: the next one has lost its state.
                    self.was_ready = true;
                }
            }
            Input::Attached(attached) => self.on_attached(now, attached),
            Input::Retire => self.on_retire(),
            Input::Drain(drain) => self.on_drain(drain),
            Input::Take { key, moved } => self.on_take(now, key, *moved),
            Input::Settings(settings) => self.on_settings(*settings),
            Input::Of { input, .. } => self.handle(now, *input),
            Input::Holds {
                subscriptions,
                level,
            } => self.on_holds(subscriptions, level),
            // An upstream of one session begins with it.
            Input::Join(_) => {}
            Input::Close { fault, end_session } => {
                self.drain = None;
                self.on_close(now, &fault, end_session);
            }
            driver => self.handle_driver(now, driver),
        }
        self.advance(now);
    }

    fn handle_driver(&mut self, now: Moment, input: Input) {
        match input {
            Input::Crowded { generation, max } => self.on_crowded(now, generation, max),
            Input::Admitted { generation } => self.on_admitted(now, generation),
            Input::Opened { generation } => self.on_opened(now, generation),
            Input::Minted {
                generation,
                exchange,
                session_id,
            } => {
                self.on_minted(generation, exchange, session_id);
            }
            Input::Message {
                generation,
                exchange,
                message,
            } => {
                self.on_message(now, generation, exchange, message);
            }
            Input::Stretch {
                generation,
                exchange,
                stretch,
            } => self.on_stretch(now, generation, exchange, stretch),
            Input::Ended {
                generation,
                exchange,
                end,
            } => {
                self.on_ended(now, generation, exchange, end);
            }
            Input::Withheld { exchange, cause } => self.on_withheld(exchange, cause),
            Input::Lost {
                generation,
                cause,
                never_ran,
            } => {
                self.on_lost(now, generation, &cause, never_ran);
            }
            Input::Garbled {
                generation,
                exchange,
                id,
                cause,
                too_large,
            } => {
                self.on_garbled(generation, exchange, id.as_ref(), &cause, too_large);
            }
            Input::Credentials { changed } => self.on_credentials(now, changed),
            Input::Timer => self.on_timer(now),
            // The client's side was taken in `handle`.
            Input::Start { .. }
            | Input::Call { .. }
            | Input::Notify { .. }
            | Input::Reply { .. }
            | Input::Cancel { .. }
            | Input::Asking { .. }
            | Input::Greet { .. }
            | Input::Attached(_)
            | Input::Retire
            | Input::Drain(_)
            | Input::Take { .. }
            | Input::Settings(_)
            | Input::Of { .. }
            | Input::Holds { .. }
            | Input::Join(_)
            | Input::Close { .. } => {}
        }
    }

    /// After the end: what still asks is told so, what a late handshake mints is ended, and last
    /// words are waited for.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "nothing else matters after the end"
    )]
    fn handle_closed(&mut self, now: Moment, input: Input, fault: Fault) {
        let moves = matches!(self.drain.as_deref(), Some(Drain::Move));
        match input {
            Input::Start { key, hello } if moves => self.pass_on_start(now, key, hello),
            Input::Call { key, message, .. } if moves => self.pass_on(now, key, message),
            Input::Take { key, moved } if moves => self.pass_on_moved(key, moved),
            Input::Drain(drain) => self.drain = Some(Box::new(drain)),
            // It may have been closed without, with a record of before at rest.
            Input::Close { end_session, .. } if end_session && !moves => {
                self.out.push_back(Output::Forget);
            }
            Input::Greet { hello } => self.hello = self.hello.take().or(Some(hello)),
            Input::Take { key, moved } => {
                let outcome = moved.outcome();
                self.hello = moved.into_hello().or(self.hello.take());
                self.tell_failed(key, fault.outcome(outcome), None);
            }
            Input::Start { key, hello } => {
                // Should the server be configured again, its machine begins with this.
                self.hello = Some(hello);
                self.tell_failed(key, fault.outcome(Outcome::NotExecuted), None);
            }
            Input::Call { key, .. } => {
                self.tell_failed(key, fault.outcome(Outcome::NotExecuted), None);
            }
            Input::Minted {
                generation,
                exchange,
                session_id,
            } => {
                self.on_minted(generation, exchange, session_id);
            }
            Input::Message {
                generation,
                exchange,
                message,
            } => {
                self.on_message(now, generation, exchange, message);
            }
            Input::Ended {
                generation,
                exchange,
                end,
            } => {
                self.on_ended(now, generation, exchange, end);
            }
            Input::Timer => {
                self.expire_instances(now);
                self.expire_deliveries(now);
            }
            _ => {}
        }
        self.note_drained();
    }

    /// The next thing that the driver has to do, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        let output = self.out.pop_front();
        if output.is_none() && self.out.capacity() > 0 {
            // An idle upstream keeps no room.
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

    /// When [`Input::Timer`] is due. Read it after [`Self::poll`] was drained.
    pub fn next_deadline(&self) -> Option<Moment> {
        let mut next: Option<Moment> = None;
        let mut consider = |moment: Option<Moment>| {
            if let Some(moment) = moment {
                next = Some(next.map_or(moment, |held| held.min(moment)));
            }
        };
        match &self.phase {
            Phase::Starting(attempt) => consider(Some(attempt.next_deadline())),
            Phase::Idle if !self.waiting.is_empty() => consider(self.backoff.not_before()),
            Phase::Idle | Phase::Ready(_) | Phase::Closed(_) => {}
        }
        for pending in self.pending.values() {
            consider(pending.next_deadline(&self.config.settings));
        }
        for instance in self.instances.values() {
            consider(instance.next_deadline());
        }
        consider(self.delivery_deadline());
        consider(self.linger_deadline());
        consider(self.idle_deadline());
        next
    }

    /// What the machine is at, for people.
    pub fn standby(&self) -> Standby {
        match &self.phase {
            Phase::Idle if !self.waiting.is_empty() => Standby::Waiting,
            Phase::Idle => Standby::Idle,
            Phase::Starting(_) => Standby::Starting,
            Phase::Ready(generation) => Standby::Ready(*generation),
            Phase::Closed(_) => Standby::Closed,
        }
    }

    /// The calls that are not answered yet.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// What the machine keeps; each number has a bound (I8).
    pub fn load(&self) -> Load {
        Load {
            pending: self.pending.len(),
            waiting: self.waiting.len(),
            exchanges: self.exchanges.len(),
            instances: self.instances.len(),
        }
    }

    /// Whether nothing is left: the machine is closed and every instance is ended.
    pub fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Closed(_)) && self.instances.is_empty()
    }

    /// Whether it is on its way out and has something left to finish.
    pub fn is_draining(&self) -> bool {
        self.drain.is_some() && !self.is_gone()
    }

    /// Its name among all machines.
    pub fn key(&self) -> MachineKey {
        MachineKey(self.config.seed)
    }

    /// The name of one of its instances among those of all machines.
    pub(crate) fn instance_key(&self, generation: Generation) -> InstanceKey {
        InstanceKey {
            machine: self.key(),
            generation,
        }
    }

    /// The server entry.
    pub fn server(&self) -> &Arc<str> {
        &self.config.server
    }

    fn emit(&mut self, event: Event) {
        self.out.push_back(Output::Emit(event));
    }

    fn tell(&mut self, event: SessionEvent) {
        self.tell_session(self.config.session, event);
    }

    fn tell_failed(&mut self, key: CallKey, fault: Fault, server_error: Option<bytes::Bytes>) {
        let fault = fault.of(&self.config.server);
        let event = SessionEvent::Failed {
            key,
            fault,
            server_error,
        };
        self.tell_session(key.session, event);
    }

    fn tell_session(&mut self, session: SessionKey, event: SessionEvent) {
        let server = Arc::clone(&self.config.server);
        self.out.push_back(Output::ToSession {
            session,
            server,
            event,
        });
    }

    /// Moves what can move: starts an attempt if calls wait for one, sends what waits if an
    /// instance is ready, ends instances that are done.
    fn advance(&mut self, now: Moment) {
        if let Some(drain) = self.drain.clone() {
            if let Phase::Ready(generation) = self.phase {
                self.promote_parked(now, generation);
            }
            self.drain_on(now, &drain);
            self.end_retired(now);
            return;
        }
        match &self.phase {
            Phase::Ready(generation) => {
                let generation = *generation;
                self.flush(now, generation);
                self.restore_if_due(now, generation);
                self.promote_parked(now, generation);
                self.listen_if_wanted(now, generation);
            }
            Phase::Idle | Phase::Starting(_) | Phase::Closed(_) => {}
        }
        // A request that waited for another's verdict may just have given the session up.
        if matches!(self.phase, Phase::Idle) {
            self.start_if_wanted(now);
        }
        self.end_retired(now);
    }

    fn on_timer(&mut self, now: Moment) {
        self.expire_attempt(now);
        self.expire_calls(now);
        self.expire_instances(now);
        self.expire_deliveries(now);
        self.stop_lingering(now);
        self.end_idle(now);
    }

    fn on_attached(&mut self, now: Moment, attached: bool) {
        self.attached = attached;
        self.detached_at = (!attached).then_some(now);
        self.last_use = self.last_use.max(now);
    }

    fn on_settings(&mut self, settings: UpstreamSettings) {
        self.config.settings = Arc::new(settings);
        // With the settings may come another value of the same credential.
        self.persist_again();
    }

    fn on_retire(&mut self) {
        if let Phase::Ready(generation) = self.phase {
            self.retire(generation, "restart");
            self.note_state_loss("it was told to start afresh");
        }
    }

    /// Takes the instance out of service; it finishes what it has.
    fn retire(&mut self, generation: Generation, reason: &'static str) {
        if let Some(instance) = self.instances.get_mut(&generation) {
            instance.standing = Standing::Retired(reason);
        }
        if matches!(self.phase, Phase::Ready(ready) if ready == generation) {
            self.phase = Phase::Idle;
        }
    }

    fn on_close(&mut self, now: Moment, fault: &Fault, end_session: bool) {
        if let Phase::Starting(attempt) = &self.phase {
            let attempt = attempt.clone();
            self.abandon(&attempt, end_session);
        }
        self.phase = Phase::Closed(Box::new(fault.clone().of(&self.config.server)));
        self.waiting.clear();
        for (key, pending) in std::mem::take(&mut self.pending) {
            if pending.is_internal() {
                continue;
            }
            let outcome = pending.outcome_if_dropped();
            self.tell_failed(key, fault.clone().outcome(outcome), None);
        }
        let generations: Vec<Generation> = self
            .instances
            .iter()
            .filter(|(_, instance)| {
                // These two end by themselves, with a DELETE if one is due.
                !matches!(
                    instance.standing,
                    Standing::Abandoned | Standing::Ending { .. }
                )
            })
            .map(|(generation, _)| *generation)
            .collect();
        if end_session && !matches!(self.drain.as_deref(), Some(Drain::Move)) {
            self.persisted = None;
            self.out.push_back(Output::Forget);
        }
        for generation in generations {
            self.finish_instance(now, generation, end_session, "closed");
        }
    }
}

#[cfg(test)]
mod tests;
