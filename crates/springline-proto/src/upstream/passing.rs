//! Answers that are too large to be held: they pass in stretches, as they come.
//!
//! Owns whose a stretch is, and when such an answer counts. Must not know JSON: the driver validates
//! what passes, and says where the id stands.

use bytes::Bytes;

use crate::call::{CallKey, ExchangeId, Generation, Moment, UpstreamId};
use crate::error::{Fault, FaultKind, Outcome};
use crate::upstream::Upstream;
use crate::upstream::exchange::Aim;
use crate::upstream::inbound::parse_id;
use crate::upstream::instance::Standing;
use crate::upstream::pending::{Place, Stretches};
use crate::upstream::port::{Output, Passing, SessionEvent, Stretch};

impl Upstream {
    pub(super) fn on_stretch(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: ExchangeId,
        stretch: Stretch,
    ) {
        if !self.is_heard(generation, Some(exchange)) {
            return;
        }
        if let Stretch::Begin { id, len } = stretch {
            self.begin_passing(now, generation, exchange, id.as_ref(), len);
            return;
        }
        // What never began, or is over, is nobody's.
        let Some(key) = self.passing_on(exchange) else {
            return;
        };
        let Some(id) = self.sent_id(key) else { return };
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.heard(now);
        }
        match stretch {
            Stretch::Begin { .. } => {}
            Stretch::Bytes(bytes) => self.pass(key, Passing::Bytes(bytes)),
            Stretch::Id(raw) if parse_id(&raw) == Some(id) => self.pass(key, Passing::Id),
            Stretch::Id(_) => {
                let fault = Fault::new(FaultKind::BadAnswer)
                    .because("the answer that had begun is to another request");
                self.fail(key, fault.outcome(Outcome::Unknown));
                self.exchanges.remove(&exchange);
                self.out.push_back(Output::Abort {
                    generation,
                    exchange,
                });
            }
            Stretch::End => self.end_passing(now, generation, key),
        }
    }

    fn begin_passing(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: ExchangeId,
        id: Option<&Bytes>,
        len: Option<u64>,
    ) {
        let is_out = self
            .instances
            .get(&generation)
            .is_none_or(|instance| instance.standing == Standing::Abandoned);
        let Some(key) = self.call_on(exchange).filter(|_| !is_out) else {
            return;
        };
        // One that names another request is no answer of this exchange: it goes by unheard (I2).
        let Some(own) = self.sent_id(key) else { return };
        if self.is_ending(generation) || id.is_some_and(|id| parse_id(id) != Some(own)) {
            return;
        }
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if pending.stretches != Stretches::Allowed {
            return;
        }
        pending.stretches = Stretches::Begun;
        pending.heard(now);
        // Any other spelling of our id is none of ours.
        let own_len = own.to_string().len() as u64;
        let len = len.map(|len| len.saturating_sub(own_len));
        self.pass(key, Passing::Begin { len });
    }

    fn end_passing(&mut self, now: Moment, generation: Generation, key: CallKey) {
        self.spend_chance(now, generation, key);
        if self.give_up(key).is_none() {
            return;
        }
        self.last_use = self.last_use.max(now);
        self.note_answered(generation);
        self.drop_lingering();
        self.pass(key, Passing::End);
    }

    fn pass(&mut self, key: CallKey, passing: Passing) {
        self.tell_session(key.session, SessionEvent::Passing { key, passing });
    }

    /// The call whose answer passes on this exchange.
    pub(super) fn passing_on(&self, exchange: ExchangeId) -> Option<CallKey> {
        self.call_on(exchange).filter(|key| self.is_passing(*key))
    }

    /// Whether the answer to this call has begun to pass.
    pub(super) fn is_passing(&self, key: CallKey) -> bool {
        let pending = self.pending.get(&key);
        pending.is_some_and(crate::upstream::pending::Pending::is_passing)
    }

    /// The call that awaits its answer on this exchange.
    fn call_on(&self, exchange: ExchangeId) -> Option<CallKey> {
        let Aim::Call(key) = self.exchanges.get(&exchange)?.aim else {
            return None;
        };
        self.awaits(key, exchange).then_some(key)
    }

    fn sent_id(&self, key: CallKey) -> Option<UpstreamId> {
        match self.pending.get(&key)?.place {
            Place::Sent { id, .. } => Some(id),
            Place::Waiting | Place::Pausing(_) | Place::Unauthorized | Place::Parked => None,
        }
    }
}
