//! The first request of a session that was resumed after a restart of the gateway.
//!
//! A 401 or 403 to it, which fresh credentials do not mend, may mean that the server forgot the
//! session: one handshake is tried. The chance belongs to the client's request that started first.
//! Its JSON-RPC answer or a recovery that was really tried spends it; a failure or a cancel of the
//! owner hands it on. Requests of our own neither own nor spend it (DESIGN.md section 5).

use crate::call::{CallKey, Generation, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::upstream::instance::Standing;
use crate::upstream::pending::Place;
use crate::upstream::port::Event;
use crate::upstream::{Phase, Upstream};

impl Upstream {
    /// A client's request starts on this instance: it owns the chance, if nobody does.
    pub(super) fn take_chance(&mut self, generation: Generation, key: CallKey) {
        if key.session == SessionKey::SHARED {
            // A request of our own.
            return;
        }
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        if let Some(chance) = &mut instance.chance
            && chance.owner.is_none()
        {
            chance.owner = Some(key);
        }
    }

    /// The request was answered: if it owned the chance, the session lives and the chance is spent.
    /// Requests that were refused meanwhile hear of their refusal.
    pub(super) fn spend_chance(&mut self, now: Moment, generation: Generation, key: CallKey) {
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        if instance
            .chance
            .is_none_or(|chance| chance.owner != Some(key))
        {
            return;
        }
        instance.chance = None;
        self.last_use = self.last_use.max(now);
        self.emit(Event::Resumed { generation });
        let text = "HTTP 401 or 403, and the credential sources hold nothing new";
        for parked in self.parked() {
            self.fail(
                parked,
                Fault::new(FaultKind::UpstreamUnauthorized).because(text),
            );
        }
    }

    /// The request is gone without an answer: if it owned the chance, the next one may.
    pub(super) fn release_chance(&mut self, key: CallKey) {
        for instance in self.instances.values_mut() {
            if let Some(chance) = &mut instance.chance
                && chance.owner == Some(key)
            {
                chance.owner = None;
            }
        }
    }

    /// A request that was refused while another owned the chance takes it over.
    pub(super) fn promote_parked(&mut self, now: Moment, generation: Generation) {
        let free = self
            .instances
            .get(&generation)
            .and_then(|instance| instance.chance)
            .is_some_and(|chance| chance.owner.is_none());
        if free && let Some(key) = self.parked().first().copied() {
            self.take_chance(generation, key);
            self.use_chance(now, generation, key);
        }
    }

    /// What becomes of a request whose refusal is final. Says whether that was settled here.
    pub(super) fn chance_decides(&mut self, now: Moment, key: CallKey) -> bool {
        let Phase::Ready(generation) = self.phase else {
            return false;
        };
        let chance = self
            .instances
            .get(&generation)
            .and_then(|instance| instance.chance);
        let is_client = self
            .pending
            .get(&key)
            .is_some_and(|pending| !pending.is_internal());
        let (Some(chance), true) = (chance, is_client) else {
            return false;
        };
        if chance.owner == Some(key) || chance.owner.is_none() {
            self.take_chance(generation, key);
            self.use_chance(now, generation, key);
        } else if let Some(pending) = self.pending.get_mut(&key) {
            pending.place = Place::Parked;
        }
        true
    }

    /// Gives the resumed session up and starts anew; whoever was refused by it goes once more.
    fn use_chance(&mut self, now: Moment, generation: Generation, key: CallKey) {
        self.leave_service(now, generation);
        if let Some(instance) = self.instances.get_mut(&generation) {
            instance.chance = None;
            instance.standing = Standing::Forgotten;
        }
        let cause = "the server refused the resumed session with 401 or 403";
        self.emit(Event::Lost {
            generation,
            exited: false,
            cause: cause.into(),
        });
        self.note_state_loss(cause);
        let mut again = self.parked();
        again.retain(|parked| *parked != key);
        again.insert(0, key);
        for key in again {
            if !self.replay(key, generation) {
                self.fail(
                    key,
                    Fault::new(FaultKind::UpstreamUnauthorized).because(cause),
                );
            }
        }
    }

    fn parked(&self) -> Vec<CallKey> {
        self.pending
            .iter()
            .filter(|(_, pending)| pending.place == Place::Parked)
            .map(|(key, _)| *key)
            .collect()
    }
}
