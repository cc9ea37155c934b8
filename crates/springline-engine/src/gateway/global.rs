//! An upstream that all sessions share (`scope: global`), whichever machine serves it now.
//!
//! Owns the way from sessions to the machine of the present configuration, and to those before it
//! that finish their calls. A machine never changes under an input: what sessions say is left with
//! the present machine under a lock, and one that is replaced first takes in what was left with it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use springline_proto::call::{InstanceKey, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::shared::{Parted, Shared as SharedMachine, hello as shared_hello};
use springline_proto::upstream::{Binding, Drain, Input, Upstream};

use super::claim::GLOBAL;
use super::entry::EntrySpec;
use super::home::Home;
use super::reload::{Difference, difference};
use super::session::SessionCell;
use super::shared::{Owner, Shared, fault_of};
use super::upstream::UpstreamCell;
use crate::clock;

struct State {
    current: Arc<UpstreamCell>,
    /// Those whose place was taken, until their last call is over.
    leaving: Vec<Arc<UpstreamCell>>,
}

/// One shared upstream.
pub(crate) struct GlobalCell {
    /// The name of the entry, not of its second names.
    name: Arc<str>,
    /// Held for a look-up, a change with what the machine there hands over, or to leave an input;
    /// never while a machine is driven.
    state: Mutex<State>,
    /// The sessions that use it. Held for a look-up or a change.
    sessions: Mutex<HashMap<SessionKey, Weak<SessionCell>>>,
    shared: Arc<Shared>,
}

impl GlobalCell {
    /// As it was at rest, if it was: one for all sessions (the caller holds the map of them).
    pub(super) fn new(spec: &Arc<EntrySpec>, shared: &Arc<Shared>) -> Arc<Self> {
        let name = Arc::clone(&spec.name);
        let config = shared.upstream_config(&name, Some(spec), SessionKey::SHARED);
        let rest = shared.rest.is_durable.then_some(GLOBAL);
        let machine = shared.machine(config, rest, &spec.identity);
        let result = shared.announced(&name);
        let machine = SharedMachine::new(machine, shared_hello(), result);
        Arc::new_cyclic(|this: &Weak<Self>| {
            let owner = Owner {
                session: SessionKey::SHARED,
                rest,
                home: Home::Global(this.clone()),
            };
            let current = shared.carry(&name, Some(spec), owner, machine.into());
            current.open_resumed();
            Self {
                name,
                state: Mutex::new(State {
                    current,
                    leaving: Vec::new(),
                }),
                sessions: Mutex::default(),
                shared: Arc::clone(shared),
            }
        })
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn current(&self) -> Arc<UpstreamCell> {
        Arc::clone(&self.state.lock().current)
    }

    /// The machine of the present configuration, and those whose place was taken.
    pub(super) fn cells(&self) -> (Arc<UpstreamCell>, Vec<Arc<UpstreamCell>>) {
        let state = self.state.lock();
        (Arc::clone(&state.current), state.leaving.clone())
    }

    /// The session may be told something from now on.
    pub(super) fn join(&self, key: SessionKey, session: Weak<SessionCell>) {
        self.sessions.lock().insert(key, session);
    }

    /// The session is over. Says how many are left.
    pub(super) fn forget(&self, key: SessionKey) -> usize {
        let mut sessions = self.sessions.lock();
        sessions.remove(&key);
        sessions.retain(|_, session| session.strong_count() > 0);
        sessions.len()
    }

    pub(super) fn session(&self, key: SessionKey) -> Option<Arc<SessionCell>> {
        self.sessions.lock().get(&key)?.upgrade()
    }

    /// Whether one of its machines has, or had, this instance.
    pub(super) fn has(&self, instance: InstanceKey) -> bool {
        let state = self.state.lock();
        let mut cells = state.leaving.iter().chain([&state.current]);
        cells.any(|cell| cell.has(instance))
    }

    /// Leaves what a session says; the caller then lets the machines go on that are returned.
    pub(super) fn leave(&self, binding: &Binding, input: Input) -> Vec<Arc<UpstreamCell>> {
        let of = |input: Input| Input::Of {
            binding: binding.clone(),
            input: Box::new(input),
        };
        let state = self.state.lock();
        if let Input::Reply { instance, .. } = &input
            && let Some(cell) = state.leaving.iter().find(|cell| cell.has(*instance))
        {
            cell.leave(of(input));
            return vec![Arc::clone(cell)];
        }
        let mut cells = Vec::with_capacity(1);
        // What concerns calls that are with a machine on its way out reaches that one too.
        if matches!(
            input,
            Input::Cancel { .. } | Input::Asking { .. } | Input::Close { .. }
        ) {
            for cell in &state.leaving {
                cell.leave(of(input.clone()));
                cells.push(Arc::clone(cell));
            }
        }
        state.current.leave(of(input));
        cells.push(Arc::clone(&state.current));
        cells
    }

    /// The same at once.
    pub(super) fn input(&self, binding: &Binding, input: Input) {
        for cell in self.leave(binding, input) {
            cell.go_on();
        }
    }

    /// A request of its own that the machine before this one had not sent.
    pub(super) fn take(&self, input: Input) {
        let current = {
            let state = self.state.lock();
            state.current.leave(input);
            Arc::clone(&state.current)
        };
        current.go_on();
    }

    /// Gives a session up that has another upstream from now on. Nothing more of it may be left
    /// here than what concerns its calls in flight. The caller then lets the machine go on that is
    /// returned.
    pub(super) fn part(&self, binding: &Binding) -> Option<(Arc<UpstreamCell>, Parted)> {
        let may_end = !self.shared.is_awaited(&self.name);
        let state = self.state.lock();
        let parted = state.current.part(binding, may_end)?;
        Some((Arc::clone(&state.current), parted))
    }

    /// Brings it in line with its entry, if that is there.
    pub(super) fn reconcile(self: &Arc<Self>) {
        let Some(wanted) = self.shared.global_spec(&self.name) else {
            return;
        };
        let current = self.current();
        let difference = current
            .spec()
            .map_or(Difference::Other, |held| difference(&held, &wanted));
        if difference != Difference::Other && current.revive() {
            if difference != Difference::None {
                current.adopt(wanted, difference == Difference::Rotated);
            }
            return;
        }
        self.replace(&current, &wanted);
    }

    /// If its last name is gone, or nobody uses it and nobody can come: calls in flight finish, then it
    /// is ended.
    pub(super) fn drain(&self) {
        let current = self.current();
        let is_shared = self.shared.global_spec(&self.name).is_some();
        // Calls of sessions that parted from it are still answered, if need be by another instance.
        let is_used = self.shared.is_instance(&self.name) && !current.is_unused();
        if !is_shared && !is_used {
            let fault = Fault::new(FaultKind::ServerRemoved);
            current.input(Input::Drain(Drain::Refuse(fault)));
        }
    }

    fn replace(self: &Arc<Self>, old: &Arc<UpstreamCell>, spec: &Arc<EntrySpec>) {
        let config = self
            .shared
            .upstream_config(&self.name, Some(spec), SessionKey::SHARED);
        let owner = Owner {
            session: SessionKey::SHARED,
            rest: self.shared.rest.is_durable.then_some(GLOBAL),
            home: Home::Global(Arc::downgrade(self)),
        };
        let blank = Upstream::new(config.clone(), clock::moment());
        let new = self
            .shared
            .carry(&self.name, Some(spec), owner, blank.into());
        {
            let mut state = self.state.lock();
            old.note_leaving();
            new.begin(config, old.hand_over(), fault_of(Some(spec)));
            state.current = Arc::clone(&new);
            state.leaving.push(Arc::clone(old));
        }
        new.input(Input::Timer);
        old.input(Input::Timer);
        if old.is_gone() {
            self.left(old);
        }
    }

    /// The last call of one on its way out is over.
    pub(super) fn left(&self, cell: &Arc<UpstreamCell>) {
        let was_here = {
            let mut state = self.state.lock();
            let before = state.leaving.len();
            state.leaving.retain(|held| !Arc::ptr_eq(held, cell));
            state.leaving.len() < before
        };
        if was_here {
            self.shared.retire_upstream(Arc::clone(cell));
        }
    }

    /// The gateway stops: lets go of the server, and of its session if so.
    pub(super) fn end(&self, end_session: bool) {
        let state = self.state.lock();
        let mut cells = state.leaving.clone();
        cells.push(Arc::clone(&state.current));
        drop(state);
        for cell in cells {
            let fault = Fault::new(FaultKind::ShuttingDown);
            cell.input(Input::Close { fault, end_session });
            self.shared.retire_upstream(cell);
        }
    }
}
