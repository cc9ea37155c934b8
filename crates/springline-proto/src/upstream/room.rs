//! Room for children: a gateway runs no more of them than it may.
//!
//! Owns how long the start of a child waits for room and what its callers hear then, and whether a
//! child may give way to that of another upstream. Must not know how many run: the driver counts.

use crate::call::{CallKey, Generation, Moment};
use crate::error::{Fault, FaultKind};
use crate::upstream::start::{Failure, Step};
use crate::upstream::{Phase, Transport, Upstream};

impl Upstream {
    /// There is no room yet. A call waits for it no longer than for a start, counted from when it
    /// came.
    pub(super) fn on_crowded(&mut self, now: Moment, generation: Generation, max: usize) {
        let patience = self.config.settings.start_timeout;
        let Phase::Starting(attempt) = &mut self.phase else {
            return;
        };
        if attempt.generation != generation || attempt.step != Step::Opening {
            return;
        }
        let owner = attempt.owner.and_then(|owner| self.pending.get(&owner));
        let since = owner.map_or(now, |owner| owner.accepted);
        attempt.step = Step::Crowded(max);
        attempt.deadline = since.after(patience);
    }

    /// Nothing gave way in time: whoever waited for long enough hears of it, the others go on.
    pub(super) fn fail_crowded(&mut self, now: Moment, max: usize) {
        let patience = self.config.settings.start_timeout;
        let cause = format!("childrenMax is {max}; waited for startTimeout");
        let failure = Failure::new(FaultKind::TooManyChildren, cause.as_str());
        self.fail_attempt(now, failure);
        let is_over = |key: &CallKey| {
            let pending = self.pending.get(key);
            pending.is_some_and(|pending| pending.accepted.after(patience) <= now)
        };
        let over: Vec<CallKey> = self.waiting.iter().copied().filter(is_over).collect();
        for key in over {
            let fault = Fault::new(FaultKind::TooManyChildren).because(&cause);
            self.fail(key, fault);
        }
    }

    /// When it was last used, if its child may give way to another's: no client is attached, and
    /// nothing is under way.
    pub fn gives_way(&self) -> Option<Moment> {
        let is_free = matches!(self.phase, Phase::Ready(_))
            && self.config.transport == Transport::Stdio
            && !self.attached
            && self.pending.is_empty()
            && self.drain.is_none();
        is_free.then_some(self.last_use)
    }

    /// Lets its child give way, if it still may: it is ended in good order, and the next call starts
    /// a new one. Says which it was. Afterwards [`Self::poll`] must be drained.
    pub fn give_way(&mut self, now: Moment) -> Option<Generation> {
        self.gives_way()?;
        let Phase::Ready(generation) = self.phase else {
            return None;
        };
        self.retire(generation, "gave way to another");
        self.let_go("another server needed its place (childrenMax)");
        self.end_retired(now);
        Some(generation)
    }

    /// An instance that nobody needs is given up, with what it knows: of a mere look at what it
    /// offers that is nothing.
    pub(super) fn let_go(&mut self, reason: &str) {
        if std::mem::take(&mut self.used) {
            self.note_state_loss(reason);
        }
    }
}
