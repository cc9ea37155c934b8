//! Credentials that the server refused: sources are read again, once for all that wait.
//!
//! The call goes once more on the same session; a 401 never leads to `initialize` in mid-life
//! (DESIGN.md section 5).

use crate::call::{CallKey, Generation, Moment};
use crate::error::{Fault, FaultKind};
use crate::upstream::pending::Place;
use crate::upstream::port::{End, Event, Output};
use crate::upstream::start::Step;
use crate::upstream::{Phase, Upstream};

/// What is known of the credentials in use.
#[derive(Clone, Debug, Default)]
pub(super) struct Credential {
    /// Grows with each change, so that a late 401 about older ones is known as such.
    epoch: u64,
    /// Whether the driver is reading the sources.
    reading: bool,
}

impl Credential {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Upstream {
    pub(super) fn refresh_credentials(&mut self) {
        if !std::mem::replace(&mut self.credential.reading, true) {
            self.out.push_back(Output::RefreshCredentials);
        }
    }

    /// A request was refused for its credentials: it did not run.
    pub(super) fn judge_unauthorized(
        &mut self,
        now: Moment,
        generation: Generation,
        key: CallKey,
        text: &str,
    ) {
        let epoch = self.credential.epoch;
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if pending.reauthorized {
            if self.chance_decides(now, key) {
                return;
            }
            self.emit(Event::Unauthorized { generation });
            self.fail(
                key,
                Fault::new(FaultKind::UpstreamUnauthorized).because(text),
            );
            return;
        }
        if pending.credential_epoch < epoch {
            // Others were read while it was under way.
            pending.reauthorized = true;
            pending.place = Place::Waiting;
            self.waiting.push_back(key);
            return;
        }
        pending.place = Place::Unauthorized;
        self.refresh_credentials();
    }

    pub(super) fn on_initialize_unauthorized(
        &mut self,
        now: Moment,
        generation: Generation,
        end: End,
    ) {
        let Phase::Starting(attempt) = &mut self.phase else {
            return;
        };
        if attempt.reauthorized {
            self.emit(Event::Unauthorized { generation });
            let failure = Self::failure_of(end);
            self.fail_attempt(now, failure);
            return;
        }
        attempt.reauthorized = true;
        if attempt.credential_epoch < self.credential.epoch {
            self.send_initialize(generation);
            return;
        }
        attempt.step = Step::Unauthorized;
        self.refresh_credentials();
    }

    pub(super) fn on_credentials(&mut self, now: Moment, changed: bool) {
        self.credential.reading = false;
        if changed {
            self.credential.epoch = self.credential.epoch.saturating_add(1);
            self.persist_again();
        }
        let asked: Vec<CallKey> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.place == Place::Unauthorized)
            .map(|(key, _)| *key)
            .collect();
        for key in asked {
            if changed {
                if let Some(pending) = self.pending.get_mut(&key) {
                    pending.reauthorized = true;
                }
                self.queue_again(key);
            } else if !self.chance_decides(now, key) {
                if let Phase::Ready(generation) = self.phase {
                    self.emit(Event::Unauthorized { generation });
                }
                let text = "HTTP 401 or 403, and the credential sources hold nothing new";
                self.fail(
                    key,
                    Fault::new(FaultKind::UpstreamUnauthorized).because(text),
                );
            }
        }
        self.retry_initialize(now, changed);
        self.listen_again(changed);
    }

    fn retry_initialize(&mut self, now: Moment, changed: bool) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        let generation = attempt.generation;
        if attempt.step != Step::Unauthorized {
            return;
        }
        if changed {
            self.send_initialize(generation);
        } else {
            self.emit(Event::Unauthorized { generation });
            let text = "HTTP 401 or 403, and the credential sources hold nothing new";
            let failure =
                crate::upstream::start::Failure::new(FaultKind::UpstreamUnauthorized, text);
            self.fail_attempt(now, failure);
        }
    }
}
