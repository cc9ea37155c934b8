//! Upstreams that several sessions share: who comes to one, who goes, and what a reload makes of it.
//!
//! Does what the gateway does with the machines, in its order, and nothing else. It must not know who
//! hears what a shared server says: the machine does.

use std::collections::BTreeSet;
use std::sync::Arc;

use springline_proto::call::{CallKey, InstanceKey, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::shared::{Handover, Serving, Shared, hello};
use springline_proto::upstream::{Binding, Drain, Input, Moved, Record, SessionEvent, Upstream};

use super::{Spec, Stack};
use crate::book::Violation;
use crate::plan::Ask;
use crate::world::{Seat, World};

/// One shared upstream, whichever machine serves it.
#[derive(Debug)]
pub(super) struct Global {
    /// The name of the entry, not of its second names.
    name: Arc<str>,
    current: usize,
    /// Those whose place was taken.
    leaving: Vec<usize>,
    /// The sessions that use it.
    sessions: BTreeSet<SessionKey>,
}

impl Global {
    fn has(&self, seat: usize) -> bool {
        self.current == seat || self.leaving.contains(&seat)
    }
}

impl Seat {
    /// Whether several sessions use it.
    pub(crate) fn is_shared(&self) -> bool {
        self.session == SessionKey::SHARED
    }
}

fn binding(session: SessionKey, server: &Arc<str>) -> Binding {
    Binding {
        session,
        server: Arc::clone(server),
    }
}

impl Stack {
    /// The entry whose definition a name stands for: its own, or another's.
    pub(crate) fn instance_name(&self, server: &str) -> Arc<str> {
        let entry = &self.entries[self.entry_of(server)];
        let of = entry.alias.map_or(entry, |of| &self.entries[of]);
        Arc::clone(&of.name)
    }

    /// The instance that a name means, if all sessions share one.
    pub(super) fn instance_of(&self, server: &str) -> Option<Arc<str>> {
        let spec = self.entries[self.entry_of(server)].spec.as_ref()?;
        spec.global.then(|| self.instance_name(server))
    }

    /// The definition of a shared instance, as long as a name uses it.
    pub(super) fn global_spec(&self, instance: &str) -> Option<&Spec> {
        let mut entries = self.entries.iter();
        let used = entries.find(|entry| self.instance_of(&entry.name).as_deref() == Some(instance));
        used?.spec.as_ref()
    }

    fn global_at(&self, instance: &str) -> Option<usize> {
        let found = |global: &Global| *global.name == *instance;
        self.globals.iter().position(found)
    }

    /// Whether a shared upstream is there, or at rest.
    fn has_global(&self, instance: &Arc<str>) -> bool {
        let at_rest = (SessionKey::SHARED, Arc::clone(instance));
        self.global_at(instance).is_some() || self.records.contains_key(&at_rest)
    }

    /// Whether the end of a session concerns a server that it did not use since the start.
    pub(super) fn has_to_end(&self, session: SessionKey, server: &Arc<str>) -> bool {
        match self.instance_of(server) {
            Some(instance) => self.has_global(&instance),
            None => self.records.contains_key(&(session, Arc::clone(server))),
        }
    }

    /// Whether a session may come to it that does not use it now.
    pub(super) fn is_awaited(&self, instance: &str) -> bool {
        self.global_spec(instance).is_some()
            && self.desks.iter().any(|desk| {
                let own = desk.stand.entry.map(|at| &self.entries[at].name);
                let uses =
                    own.is_none_or(|name| self.instance_of(name).as_deref() == Some(instance));
                desk.machine.is_some() && uses
            })
    }

    /// Which shared upstream a name means for a session.
    pub(super) fn shared_way(&self, session: SessionKey, server: &Arc<str>) -> Option<usize> {
        let place = (session, Arc::clone(server));
        self.global_ways.get(&place).copied()
    }

    /// Whether a call is for this instance.
    pub(crate) fn means(&self, call: usize, instance: &Arc<str>) -> bool {
        let entry = self.calls.get(call).map(|call| &self.entries[call.entry]);
        entry.is_some_and(|entry| self.instance_name(&entry.name) == *instance)
    }

    /// Whether a client may hear of updates: it asked for that once.
    pub(super) fn wants_updates(&self, desk: usize) -> bool {
        let calls = self.desks[desk].calls.iter();
        let mut asks = calls.map(|number| self.calls[*number].ask);
        asks.any(|ask| matches!(ask, Some(Ask::Subscribe)))
    }

    /// Whether a shared upstream may still speak to this session.
    pub(super) fn is_bound(&self, seat: usize, session: SessionKey) -> bool {
        let mut globals = self.globals.iter();
        globals.any(|global| global.has(seat) && global.sessions.contains(&session))
    }
}

impl World {
    /// The shared upstream that a session's calls to this server go to, if it is shared.
    pub(super) fn join_shared(&mut self, session: SessionKey, server: &Arc<str>) -> Option<usize> {
        let instance = self.stack.instance_of(server)?;
        let global = self.global(&instance)?;
        self.stack.globals[global].sessions.insert(session);
        let place = (session, Arc::clone(server));
        self.stack.global_ways.insert(place, global);
        Some(global)
    }

    fn global(&mut self, instance: &Arc<str>) -> Option<usize> {
        if let Some(at) = self.stack.global_at(instance) {
            return Some(at);
        }
        let spec = self.stack.global_spec(instance)?.clone();
        let session = SessionKey::SHARED;
        let mut names = self.stack.entries.iter();
        let result = names.find_map(|entry| {
            let same = self.stack.instance_name(&entry.name) == *instance;
            entry.remembered.initialize.clone().filter(|_| same)
        });
        let wrap = |machine: Upstream| Serving::from(Shared::new(machine, hello(), result));
        let current = self.seat_at_rest(session, instance, Some(spec), wrap);
        self.stack.globals.push(Global {
            name: Arc::clone(instance),
            current,
            leaving: Vec::new(),
            sessions: BTreeSet::new(),
        });
        Some(self.stack.globals.len() - 1)
    }

    /// What a session says to a shared upstream.
    pub(super) fn tell_global(
        &mut self,
        global: usize,
        session: SessionKey,
        server: &Arc<str>,
        input: Input,
    ) {
        let of = |input: Input| Input::Of {
            binding: binding(session, server),
            input: Box::new(input),
        };
        let (current, leaving) = {
            let global = &self.stack.globals[global];
            (global.current, global.leaving.clone())
        };
        if let Input::Reply { instance, .. } = &input {
            let asked = |at: &&usize| self.seats[**at].machine.has(*instance);
            if let Some(at) = leaving.iter().find(asked) {
                return self.feed(*at, of(input));
            }
        }
        let concerns_all = matches!(
            input,
            Input::Cancel { .. } | Input::Asking { .. } | Input::Close { .. }
        );
        for at in leaving.into_iter().filter(|_| concerns_all) {
            self.feed(at, of(input.clone()));
        }
        if matches!(
            input,
            Input::Call { .. } | Input::Start { .. } | Input::Take { .. }
        ) {
            self.seats[current].calls.push(usize::MAX);
        }
        self.feed(current, of(input));
    }

    /// What a shared server does already for another session, it need not be asked again.
    pub(super) fn note_granted(&mut self, event: &SessionEvent) {
        let SessionEvent::Answer { key, message } = event else {
            return;
        };
        if message.result().is_none_or(|body| &body[..] != b"{}") {
            return;
        }
        let desk = usize::try_from(key.session.0).unwrap_or(0);
        let mut calls = self.stack.desks[desk].calls.iter().copied();
        let found = calls.find(|number| self.stack.calls[*number].number == Some(key.number));
        let Some(number) = found else { return };
        let call = &mut self.stack.calls[number];
        call.granted |= matches!(call.ask, Some(Ask::Subscribe | Ask::SetLevel));
    }

    /// A request of its own that a shared machine passes on to the one in its place.
    pub(super) fn pass_on_shared(&mut self, seat: usize, key: CallKey, moved: Box<Moved>) {
        let mut globals = self.stack.globals.iter();
        if let Some(current) = globals.find(|held| held.has(seat)).map(|held| held.current) {
            self.seats[current].calls.push(usize::MAX);
            self.feed(current, Input::Take { key, moved });
        }
    }

    /// What concerns calls that are with shared upstreams that this session parted from.
    pub(super) fn tell_parted(&mut self, session: SessionKey, server: &Arc<str>, input: &Input) {
        let parted = self.stack.parted.clone();
        for (of, name, global) in parted {
            if of == session && name == *server {
                self.tell_global(global, session, server, input.clone());
            }
        }
    }

    /// An answer to what a shared upstream asked that this session parted from. Says whether it is one.
    pub(super) fn answer_parted(
        &mut self,
        session: SessionKey,
        server: &Arc<str>,
        instance: InstanceKey,
        answer: &Input,
    ) -> bool {
        let seats = &self.seats;
        let asked = |global: &Global| {
            let mut all = global.leaving.iter().chain([&global.current]);
            all.any(|at| seats[*at].machine.has(instance))
        };
        let mut parted = self.stack.parted.iter();
        let found = parted.find(|(of, name, global)| {
            *of == session && name == server && asked(&self.stack.globals[*global])
        });
        let Some(global) = found.map(|(.., global)| *global) else {
            return false;
        };
        self.tell_global(global, session, server, answer.clone());
        true
    }

    /// The session is over, or nothing is left that it could have said.
    pub(super) fn leave_globals(&mut self, session: SessionKey) {
        let mut left = Vec::new();
        self.stack.parted.retain(|(of, server, global)| {
            if *of == session {
                left.push((Arc::clone(server), *global));
            }
            *of != session
        });
        self.stack.global_ways.retain(|(of, server), global| {
            if *of == session {
                left.push((Arc::clone(server), *global));
            }
            *of != session
        });
        for (server, at) in left {
            let global = &mut self.stack.globals[at];
            global.sessions.remove(&session);
            let (name, vacant) = (Arc::clone(&global.name), global.sessions.is_empty());
            let end_session = vacant && !self.stack.is_awaited(&name);
            let fault = Fault::new(FaultKind::SessionEnded);
            self.tell_global(at, session, &server, Input::Close { fault, end_session });
        }
    }

    /// Brings the shared upstreams that are there in line with their entries.
    pub(super) fn reconcile_globals(&mut self) {
        for at in 0..self.stack.globals.len() {
            let global = &self.stack.globals[at];
            let (name, current) = (Arc::clone(&global.name), global.current);
            let wanted = self.stack.global_spec(&name).cloned();
            let Some(wanted) = wanted else { continue };
            let Some(held) = self.seats[current].spec.clone() else {
                continue;
            };
            self.catch_up(current);
            if wanted.is_same_server(&held) && self.seats[current].machine.revive() {
                if wanted.version != held.version {
                    self.adopt(current, wanted, &held);
                }
                continue;
            }
            let new = self.succeed(current, wanted);
            let global = &mut self.stack.globals[at];
            global.current = new;
            global.leaving.push(current);
            self.feed(new, Input::Timer);
            self.feed(current, Input::Timer);
            self.leave_if_gone(current);
        }
    }

    /// Ends those whose last name is gone.
    pub(super) fn drain_globals(&mut self) {
        for at in 0..self.stack.globals.len() {
            let global = &self.stack.globals[at];
            let (name, current) = (Arc::clone(&global.name), global.current);
            self.catch_up(current);
            let mut entries = self.stack.entries.iter();
            let named = entries
                .any(|entry| entry.spec.is_some() && self.stack.instance_name(&entry.name) == name);
            let used = named && self.seats[current].machine.bindings_len() > 0;
            if used || self.stack.global_spec(&name).is_some() {
                continue;
            }
            let fault = Fault::new(FaultKind::ServerRemoved);
            self.drain(current, Drain::Refuse(fault));
            self.collect(current);
            self.feed(current, Input::Timer);
        }
    }

    /// What is at rest for an entry that is shared otherwise now, and that nobody uses since the start.
    pub(super) fn settle_stored(&mut self) {
        let places: Vec<_> = self.stack.records.keys().cloned().collect();
        for place in places {
            let (session, server) = &place;
            let in_use = self.seats.iter().any(|seat| seat.serves(*session, server));
            let entry = &self.stack.entries[self.stack.entry_of(server)];
            let is_other = self.stack.spec_at(*session, server).is_none()
                && (*session == SessionKey::SHARED || entry.spec.is_some());
            if in_use || !is_other {
                continue;
            }
            // One that cannot be taken out is not ended either: it could come back after that. Its
            // session is left to expire, unless its entry is as it was before the next start.
            let at_rest = if self.stack.store_fails {
                self.stack.records.get(&place).cloned()
            } else {
                self.stack.records.remove(&place)
            };
            if let Some((_, bytes)) = at_rest
                && let Some(record) = Record::decode(&bytes)
                && let Some(id) = record.route.session_id
            {
                self.server.known(&id, false);
            }
        }
    }

    /// From now on the session uses what all share in the place of `old`.
    pub(super) fn join_global(&mut self, session: SessionKey, server: &Arc<str>, old: usize) {
        let Some(global) = self.join_shared(session, server) else {
            return;
        };
        self.catch_up(old);
        if let Handover::Own(legacy) = self.hand_over(old) {
            self.tell_global(global, session, server, Input::Join(legacy));
        }
        if !self.stack.store_fails {
            let place = (session, Arc::clone(server));
            self.stack.records.remove(&place);
        }
        self.feed(old, Input::Timer);
        self.leave_if_gone(old);
    }

    /// The session has an upstream of its own from now on; what was not sent comes along.
    pub(super) fn depart(&mut self, session: SessionKey, server: &Arc<str>, old: usize) {
        let place = (session, Arc::clone(server));
        self.stack.global_ways.remove(&place);
        let parted = (session, Arc::clone(server), old);
        if !self.stack.parted.contains(&parted) {
            self.stack.parted.push(parted);
        }
        let (name, current) = {
            let global = &self.stack.globals[old];
            (Arc::clone(&global.name), global.current)
        };
        let may_end = !self.stack.is_awaited(&name);
        let bound = binding(session, server);
        self.catch_up(current);
        let parted = self.seats[current].machine.part(self.now, &bound, may_end);
        self.collect(current);
        self.feed(current, Input::Timer);
        let Some((legacy, moved)) = parted else {
            return;
        };
        let wanted = self.stack.entries[self.stack.entry_of(server)].spec.clone();
        let config = self.upstream_config(session, server, wanted.as_ref());
        let http = wanted.as_ref().is_none_or(|spec| spec.http);
        let mut machine = Serving::succeed(config, legacy.into(), self.now);
        if wanted.is_none() {
            while machine.poll().is_some() {}
            let fault = Fault::new(FaultKind::ServerRemoved);
            let end_session = false;
            machine.handle(self.now, Input::Close { fault, end_session });
        }
        let mut new = Seat::with(machine, http, session);
        new.credential = self.server.source;
        new.spec = wanted;
        new.inherits = true;
        self.seats.push(new);
        self.feed(self.seats.len() - 1, Input::Timer);
        let desk = usize::try_from(session.0).unwrap_or(0);
        for (key, moved) in moved {
            self.note_move(key);
            self.reach_upstream(desk, server, Input::Take { key, moved });
        }
    }

    /// The gateway stops: after the last session nothing of a shared upstream may be left but what is
    /// told to end now.
    pub(super) fn end_globals(&mut self) -> Result<(), Violation> {
        for at in 0..self.seats.len() {
            let seat = &self.seats[at];
            if !seat.is_shared() || seat.dead {
                continue;
            }
            if let Some((generation, _)) = seat.instances.iter().find(|(_, held)| !held.over) {
                let what = format!("#{at}: nobody uses {generation}, and it goes on");
                return Err(Violation::new("leak", what));
            }
            let (fault, end_session) = (Fault::new(FaultKind::ShuttingDown), true);
            self.feed(at, Input::Close { fault, end_session });
        }
        Ok(())
    }
}
