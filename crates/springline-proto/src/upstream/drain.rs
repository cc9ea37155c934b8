//! Going out of service with calls under way, and handing the rest over.
//!
//! A reload takes an upstream out of service. What was sent to its instances may finish there, within
//! its own deadlines; nothing new enters them, and no new instance is started. What was not sent yet
//! is refused, or goes to the machine that takes the place of this one. When the last call is
//! answered the instances are ended, sessions by DELETE.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::call::{CallKey, Generation, InstanceKey, Moment};
use crate::error::{Fault, FaultKind, Outcome};
use crate::message::Message;
use crate::method::{ListKind, Method};
use crate::upstream::pending::{Pending, Place, Task};
use crate::upstream::port::{Event, Hello, Output};
use crate::upstream::restore::{Restore, Seen};
use crate::upstream::{Phase, Upstream, UpstreamConfig};

/// What becomes of requests that a draining upstream has not sent.
#[derive(Clone, Debug)]
pub enum Drain {
    /// They fail with this fault.
    Refuse(Fault),
    /// They go to the machine that took its place ([`Output::Moved`]). What is at rest belongs to
    /// that machine too: this one persists nothing more.
    Move,
}

/// A request on its way from one machine to the next, with its deadlines and its spent budgets.
#[derive(Clone, Debug)]
pub struct Moved {
    pub(super) pending: Pending,
    /// With a handshake: its parameters.
    hello: Option<Hello>,
}

impl Moved {
    /// The request as the next machine takes it; `hello` counts for a start only.
    pub(super) fn of(mut pending: Pending, hello: Option<Hello>) -> Self {
        let starts = matches!(pending.task, Task::Start);
        pending.place = Place::Waiting;
        pending.credential_epoch = 0;
        pending.reauthorized = false;
        pending.unreachable = None;
        // Questions belong to the instance that it leaves; their end would not find it.
        pending.asked_no_more();
        Self {
            pending,
            hello: hello.filter(|_| starts),
        }
    }

    /// A request that no machine has seen yet.
    pub(crate) fn fresh(now: Moment, message: Message) -> Self {
        let method = Method::of(&message);
        let pending = Pending::new(now, Task::Client(message), method);
        Self {
            pending,
            hello: None,
        }
    }

    /// What is known of its execution if it goes no further.
    pub(crate) fn outcome(&self) -> Outcome {
        self.pending.outcome_if_dropped()
    }

    pub(super) fn into_hello(self) -> Option<Hello> {
        self.hello
    }

    /// Whether it asks for a handshake.
    pub fn is_start(&self) -> bool {
        self.hello.is_some()
    }
}

/// What one machine leaves to the one that takes its place.
#[derive(Clone, Debug)]
pub struct Legacy {
    pub(super) hello: Option<Hello>,
    generation: Generation,
    pub(super) was_ready: bool,
    pub(super) attached: bool,
    detached_at: Option<Moment>,
    pub(super) restore: (BTreeSet<Bytes>, Option<Bytes>, BTreeMap<ListKind, Seen>),
}

impl Legacy {
    /// The handshake of the session.
    pub(crate) fn hello(&self) -> Option<&Hello> {
        self.hello.as_ref()
    }

    /// No client is left: what takes the place begins from nothing, but for the names of instances.
    pub(crate) fn forget(&mut self) {
        self.hello = None;
        self.was_ready = false;
    }

    /// The last generation that its client heard of.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether its client is attached.
    pub(crate) fn attached(&self) -> bool {
        self.attached
    }

    /// The raw URIs and the raw log level that a new instance is told.
    pub(crate) fn wishes(&self) -> (&BTreeSet<Bytes>, Option<&Bytes>) {
        (&self.restore.0, self.restore.1.as_ref())
    }
}

impl Upstream {
    /// What the machine that takes the place of this one must know. Drain this one
    /// ([`Drain::Move`]) before anything else happens to it.
    pub fn legacy(&self) -> Legacy {
        Legacy {
            hello: self.hello.clone(),
            generation: self.generation_last,
            was_ready: self.was_ready,
            attached: self.attached,
            detached_at: self.detached_at,
            restore: self.restore.parts(),
        }
    }

    /// The machine that takes the place of another, whose server is configured otherwise now. Its
    /// generations follow on those before (I3), and its first instance is told what the last one
    /// knew. If a client is attached, it starts at the next input, so that changed lists are told.
    pub fn succeed(config: UpstreamConfig, legacy: Legacy, now: Moment) -> Self {
        let mut machine = Self::new(config, now);
        machine.hello = legacy.hello;
        machine.generation_last = legacy.generation;
        machine.was_ready = legacy.was_ready;
        machine.attached = legacy.attached;
        machine.detached_at = legacy.detached_at;
        let (subscriptions, log_level, seen) = legacy.restore;
        machine.restore = Restore::of(subscriptions, log_level, seen);
        // No restart may resume the session of the one before: that is about to be ended.
        machine.put_record(legacy.generation);
        if machine.was_ready {
            machine.note_state_loss("its configuration changed");
            if machine.attached {
                let key = machine.internal_key();
                machine.accept(now, key, Task::Ping, Method::Ping);
            }
        }
        machine
    }

    /// Puts a machine that refuses new calls back into service, with the instance and the session
    /// that it still has. Says whether it could; one whose end was begun cannot.
    pub fn revive(&mut self) -> bool {
        let can = !matches!(self.phase, Phase::Closed(_));
        if can {
            self.drain = None;
        }
        can
    }

    /// The generation whose session the record at rest can resume, if the server gave it an id.
    pub fn kept(&self) -> Option<Generation> {
        self.persisted.filter(|generation| {
            let instance = self.instances.get(generation);
            instance.is_some_and(|instance| instance.route.session_id.is_some())
        })
    }

    /// Whether this instance is, or was, one of this machine's.
    pub fn has(&self, instance: InstanceKey) -> bool {
        instance.machine == self.key()
    }

    pub(super) fn on_drain(&mut self, drain: Drain) {
        self.drain = Some(Box::new(drain));
        if let Phase::Starting(attempt) = &self.phase {
            let attempt = attempt.clone();
            self.phase = Phase::Idle;
            self.abandon(&attempt, true);
        }
        let (mut own, mut unsent) = (Vec::new(), Vec::new());
        for (key, pending) in self.pending.iter() {
            if pending.is_internal() {
                own.push(*key);
            } else if matches!(pending.place, Place::Pausing(_))
                || (pending.sets_up() && matches!(pending.place, Place::Sent { .. }))
            {
                unsent.push(*key);
            }
        }
        for key in own {
            self.give_up(key);
        }
        for key in unsent {
            if let Some(pending) = self.pending.get_mut(&key)
                && matches!(pending.place, Place::Sent { .. })
            {
                // Where it goes from here, nobody hears its answer: it may have run (I4).
                pending.may_have_run = true;
            }
            self.queue_again(key);
        }
    }

    /// One step on the way out: nothing waits here, and after the last answer comes the end.
    pub(super) fn drain_on(&mut self, now: Moment, drain: &Drain) {
        for key in std::mem::take(&mut self.waiting) {
            if let Some(pending) = self.give_up(key) {
                self.turn_away(key, pending, drain);
            }
        }
        if self.pending.is_empty() {
            let fault = match drain {
                Drain::Refuse(fault) => fault.clone(),
                Drain::Move => Fault::new(FaultKind::ServerRemoved),
            };
            self.on_close(now, &fault, true);
            self.note_drained();
        }
    }

    /// Tells once that nothing is left; a handshake that was given up may take its time.
    pub(super) fn note_drained(&mut self) {
        if self.drain.is_some() && self.is_gone() && !std::mem::replace(&mut self.drained, true) {
            self.emit(Event::Drained);
        }
    }

    fn turn_away(&mut self, key: CallKey, pending: Pending, drain: &Drain) {
        if pending.is_internal() {
            return;
        }
        match drain {
            Drain::Refuse(fault) => {
                let outcome = pending.outcome_if_dropped();
                self.tell_failed(key, fault.clone().outcome(outcome), None);
            }
            Drain::Move => {
                let moved = Box::new(Moved::of(pending, self.hello.clone()));
                self.pass_on_moved(key, moved);
            }
        }
    }

    /// A request that came after the end of a machine whose place is taken.
    pub(super) fn pass_on(&mut self, now: Moment, key: CallKey, message: Message) {
        let method = Method::of(&message);
        let pending = Pending::new(now, Task::Client(message), method);
        self.turn_away(key, pending, &Drain::Move);
    }

    /// The same of a handshake.
    pub(super) fn pass_on_start(&mut self, now: Moment, key: CallKey, hello: Hello) {
        let pending = Pending::new(now, Task::Start, Method::Initialize);
        self.hello = Some(hello);
        self.turn_away(key, pending, &Drain::Move);
    }

    pub(super) fn pass_on_moved(&mut self, key: CallKey, moved: Box<Moved>) {
        let server = Arc::clone(&self.config.server);
        self.out.push_back(Output::Moved { key, server, moved });
    }

    pub(super) fn on_take(&mut self, now: Moment, key: CallKey, moved: Moved) {
        self.last_use = self.last_use.max(now);
        self.used |= moved.pending.method.is_use();
        let is_ready = matches!(self.phase, Phase::Ready(_));
        match moved.hello {
            // The handshake of the one before, which this one begins with: it waits for that.
            Some(hello) if self.hello.as_ref() == Some(&hello) && !is_ready => {
                self.pending.insert(key, moved.pending);
                self.waiting.push_front(key);
            }
            Some(hello) => self.on_start(now, key, hello),
            None => {
                self.pending.insert(key, moved.pending);
                self.waiting.push_back(key);
            }
        }
    }
}
