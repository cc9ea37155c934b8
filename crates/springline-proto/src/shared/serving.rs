//! An upstream machine of either kind, behind one face: drivers need not ask which it is.

use std::collections::VecDeque;

use super::{Legacy, Shared};
use crate::call::{CallKey, Generation, InstanceKey, Moment};
use crate::upstream::{
    self, Binding, Drain, Input, Moved, Output, Standby, Upstream, UpstreamConfig,
};

/// An upstream of one session, or one that several use.
#[derive(Debug)]
pub enum Serving {
    /// Of one session.
    Own(Box<Upstream>),
    /// Of several.
    Shared(Box<Shared>),
}

/// What a machine leaves to the one that takes its place.
#[derive(Clone, Debug)]
pub enum Handover {
    /// Of one session.
    Own(Box<upstream::Legacy>),
    /// Of several.
    Shared(Box<Legacy>),
}

/// What one session of several takes along: what its own upstream must know, and the requests that
/// need not end here.
pub type Parted = (upstream::Legacy, Vec<(CallKey, Box<Moved>)>);

impl From<Upstream> for Serving {
    fn from(machine: Upstream) -> Self {
        Self::Own(Box::new(machine))
    }
}

impl From<Shared> for Serving {
    fn from(machine: Shared) -> Self {
        Self::Shared(Box::new(machine))
    }
}

impl From<upstream::Legacy> for Handover {
    fn from(legacy: upstream::Legacy) -> Self {
        Self::Own(Box::new(legacy))
    }
}

impl Serving {
    /// Takes one input. Afterwards [`Self::poll`] must be drained.
    pub fn handle(&mut self, now: Moment, input: Input) {
        match self {
            Self::Own(machine) => machine.handle(now, input),
            Self::Shared(machine) => machine.handle(now, input),
        }
    }

    /// The next thing that the driver has to do, until `None`.
    pub fn poll(&mut self) -> Option<Output> {
        match self {
            Self::Own(machine) => machine.poll(),
            Self::Shared(machine) => machine.poll(),
        }
    }

    /// Lends room for outputs ([`Upstream::lend_room`]).
    pub fn lend_room(&mut self, room: VecDeque<Output>) {
        match self {
            Self::Own(machine) => machine.lend_room(room),
            Self::Shared(machine) => machine.lend_room(room),
        }
    }

    /// All that the driver has to do, in order ([`Upstream::take_outputs`]).
    pub fn take_outputs(&mut self) -> VecDeque<Output> {
        match self {
            Self::Own(machine) => machine.take_outputs(),
            Self::Shared(machine) => machine.take_outputs(),
        }
    }

    /// The generation whose session the record at rest can resume ([`Upstream::kept`]).
    pub fn kept(&self) -> Option<Generation> {
        match self {
            Self::Own(machine) => machine.kept(),
            Self::Shared(machine) => machine.machine().kept(),
        }
    }

    /// When [`Input::Timer`] is due. Read it after [`Self::poll`] was drained.
    pub fn next_deadline(&self) -> Option<Moment> {
        match self {
            Self::Own(machine) => machine.next_deadline(),
            Self::Shared(machine) => machine.next_deadline(),
        }
    }

    /// The upstream machine, whoever uses it.
    pub fn upstream(&self) -> &Upstream {
        match self {
            Self::Own(machine) => machine,
            Self::Shared(machine) => machine.machine(),
        }
    }

    /// What it is at, for people.
    pub fn standby(&self) -> Standby {
        self.upstream().standby()
    }

    /// The calls that are not answered yet.
    pub fn pending_len(&self) -> usize {
        self.upstream().pending_len()
    }

    /// Whether nothing is left of it.
    pub fn is_gone(&self) -> bool {
        self.upstream().is_gone()
    }

    /// Whether this generation is being started.
    pub fn is_starting(&self, generation: Generation) -> bool {
        self.upstream().is_starting(generation)
    }

    /// Whether this instance is, or was, one of this machine's.
    pub fn has(&self, instance: InstanceKey) -> bool {
        self.upstream().has(instance)
    }

    /// How many sessions use it, by how many names.
    pub fn bindings_len(&self) -> usize {
        match self {
            Self::Own(_) => 1,
            Self::Shared(machine) => machine.bindings_len(),
        }
    }

    /// When it was last used, if its child may give way ([`Upstream::gives_way`]).
    pub fn gives_way(&self) -> Option<Moment> {
        self.upstream().gives_way()
    }

    /// Lets its child give way to another ([`Upstream::give_way`]).
    pub fn give_way(&mut self, now: Moment) -> Option<Generation> {
        match self {
            Self::Own(machine) => machine.give_way(now),
            Self::Shared(machine) => machine.give_way(now),
        }
    }

    /// Back into service, if its end was not begun. Says whether it could.
    pub fn revive(&mut self) -> bool {
        match self {
            Self::Own(machine) => machine.revive(),
            Self::Shared(machine) => machine.revive(),
        }
    }

    /// Goes out of service for one that takes its place, with what that one must know.
    pub fn hand_over(&mut self, now: Moment) -> Handover {
        let legacy = match self {
            Self::Own(machine) => Handover::Own(Box::new(machine.legacy())),
            Self::Shared(machine) => Handover::Shared(Box::new(machine.legacy())),
        };
        self.handle(now, Input::Drain(Drain::Move));
        legacy
    }

    /// The machine that takes the place of another.
    pub fn succeed(config: UpstreamConfig, legacy: Handover, now: Moment) -> Self {
        match legacy {
            Handover::Own(legacy) => Upstream::succeed(config, *legacy, now).into(),
            Handover::Shared(legacy) => Shared::succeed(config, *legacy, now).into(),
        }
    }

    /// Gives one session of several up; nothing if it has only one.
    pub fn part(&mut self, now: Moment, binding: &Binding, may_end: bool) -> Option<Parted> {
        match self {
            Self::Own(_) => None,
            Self::Shared(machine) => Some(machine.part(now, binding, may_end)),
        }
    }
}
