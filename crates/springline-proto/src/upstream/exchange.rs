//! Exchanges with the server, and the verdict on a request when its exchange ends.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{CallKey, ExchangeId, Generation, Moment, UpstreamId};
use crate::error::{Fault, FaultKind, Outcome};
use crate::message::{Kind, Message};
use crate::upstream::loss;
use crate::upstream::pending::{Pending, Place, Task};
use crate::upstream::port::{End, Event, Output, Refusal};
use crate::upstream::request::pause;
use crate::upstream::start::Failure;
use crate::upstream::{Transport, Upstream};

/// What an exchange is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Aim {
    /// `initialize`.
    Initialize,
    /// `notifications/initialized`.
    Initialized,
    /// A request of the queue.
    Call(CallKey),
    /// A notification, or an answer of the client.
    Oneway,
    /// The cancellation of the request on that exchange, which is dropped afterwards.
    Cancel(ExchangeId),
    /// The standalone GET stream.
    Listen,
}

impl Aim {
    /// Whether nobody waits for an answer: a notification, an answer, a cancellation.
    pub(super) fn is_oneway(self) -> bool {
        matches!(self, Self::Oneway | Self::Cancel(_))
    }
}

/// An exchange under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub(super) generation: Generation,
    pub(super) aim: Aim,
    /// How often its stream was resumed. More than zero: the server took the request.
    resumed: u32,
}

impl Exchange {
    pub(super) fn new(generation: Generation, aim: Aim) -> Self {
        Self {
            generation,
            aim,
            resumed: 0,
        }
    }
}

/// The pause before a broken stream is resumed, if the server named none.
const RESUME_PAUSE: Duration = Duration::from_secs(1);

impl Upstream {
    pub(super) fn on_ended(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: ExchangeId,
        end: End,
    ) {
        let Some(held) = self.exchanges.get(&exchange).copied() else {
            return;
        };
        if held.generation != generation {
            return;
        }
        match held.aim {
            Aim::Initialize | Aim::Initialized => {
                if matches!(end, End::Accepted) && self.config.transport == Transport::Stdio {
                    // Written; the exchange itself is the line, the answer another one.
                    self.on_handshake_ended(now, generation, exchange, end);
                    return;
                }
                self.exchanges.remove(&exchange);
                self.end_abandoned(generation);
                self.on_handshake_ended(now, generation, exchange, end);
            }
            Aim::Call(key) => self.on_call_ended(now, held, exchange, key, end),
            Aim::Oneway => {
                self.exchanges.remove(&exchange);
                self.on_oneway_ended(now, generation, end);
                self.end_if_said(generation);
            }
            Aim::Cancel(target) => {
                self.exchanges.remove(&exchange);
                if self.exchanges.remove(&target).is_some() {
                    self.out.push_back(Output::Abort {
                        generation,
                        exchange: target,
                    });
                }
                self.end_if_said(generation);
            }
            Aim::Listen => {
                self.exchanges.remove(&exchange);
                self.on_listen_ended(now, generation, end);
            }
        }
    }

    /// An abandoned handshake ended: what it minted, if anything, is ended with it.
    fn end_abandoned(&mut self, generation: Generation) {
        let abandoned = self
            .instances
            .get(&generation)
            .is_some_and(|held| held.standing == crate::upstream::Standing::Abandoned);
        if abandoned {
            self.end_instance(generation, true, "abandoned");
        }
    }

    /// A notification or answer did not arrive. It is never sent again; a lost session is noticed.
    fn on_oneway_ended(&mut self, now: Moment, generation: Generation, end: End) {
        if let End::Refused(refusal) = end {
            if loss::is_session_gone(&refusal, &self.route(generation)) {
                self.lose_session(now, generation, &refusal);
            } else {
                self.emit(Event::Dropped {
                    generation,
                    reason: "notification refused",
                });
            }
        }
    }

    fn on_call_ended(
        &mut self,
        now: Moment,
        held: Exchange,
        exchange: ExchangeId,
        key: CallKey,
        end: End,
    ) {
        let generation = held.generation;
        let waits = self.pending.get(&key).is_some_and(
            |pending| matches!(pending.place, Place::Sent { exchange: with, .. } if with == exchange),
        );
        if !waits {
            // Answered, cancelled or timed out: only the exchange was left.
            self.exchanges.remove(&exchange);
            return;
        }
        match end {
            End::Accepted if self.config.transport == Transport::Stdio => {
                // Written; the answer is a line of its own, on no exchange.
                self.exchanges.remove(&exchange);
            }
            End::StreamEnded {
                last_event_id: Some(id),
                retry,
            } if held.resumed < self.config.settings.resume_attempts_max => {
                self.resume_stream(generation, exchange, id, retry);
            }
            other @ (End::Accepted
            | End::Complete
            | End::StreamEnded { .. }
            | End::NotSent { .. }
            | End::Broken { .. }
            | End::Refused(_)) => {
                self.exchanges.remove(&exchange);
                self.judge(now, held, key, other);
            }
        }
    }

    fn resume_stream(
        &mut self,
        generation: Generation,
        exchange: ExchangeId,
        last_event_id: Arc<str>,
        retry: Option<Duration>,
    ) {
        let route = self.route(generation);
        if let Some(held) = self.exchanges.get_mut(&exchange) {
            held.resumed = held.resumed.saturating_add(1);
        }
        let delay = retry.unwrap_or(RESUME_PAUSE);
        self.out.push_back(Output::Resume {
            generation,
            exchange,
            last_event_id,
            delay,
            route,
        });
    }

    /// The verdict: refused, never sent, or unknown (DESIGN.md section 5, replay classes).
    fn judge(&mut self, now: Moment, held: Exchange, key: CallKey, end: End) {
        let generation = held.generation;
        let taken = held.resumed > 0;
        match end {
            End::NotSent { cause } if !taken => self.judge_unsent(now, generation, key, &cause),
            End::Refused(refusal) if !taken => self.judge_refused(now, generation, key, &refusal),
            End::Refused(refusal) => {
                // The request itself was taken long ago; only its stream was refused.
                if loss::is_session_gone(&refusal, &self.route(generation)) {
                    self.lose_session(now, generation, &refusal);
                }
                self.judge_unknown(
                    generation,
                    key,
                    FaultKind::OutcomeUnknown,
                    &refusal.for_people(),
                );
            }
            End::NotSent { cause } | End::Broken { cause } => {
                self.judge_unknown(generation, key, FaultKind::OutcomeUnknown, &cause);
            }
            End::StreamEnded { .. } => {
                let cause = "the event stream ended before the answer";
                self.judge_unknown(generation, key, FaultKind::OutcomeUnknown, cause);
            }
            End::Accepted | End::Complete => {
                let cause = "the server's HTTP answer holds no answer to the request";
                self.judge_unknown(generation, key, FaultKind::BadAnswer, cause);
            }
        }
    }

    fn judge_unsent(&mut self, now: Moment, generation: Generation, key: CallKey, cause: &str) {
        if self.config.transport == Transport::Stdio {
            // The pipe is closed before the line began: the child is as good as gone.
            self.leave_service(now, generation);
            self.retire(generation, "pipe closed");
            // It did not run; but a server that closes every pipe gets it no third time (I5).
            if !self.replay(key, generation) {
                self.fail(key, Fault::new(FaultKind::ServerUnreachable).because(cause));
            }
            return;
        }
        let settings = self.config.settings.clone();
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if matches!(pending.task, Task::Ping) {
            // It found out nothing, and the next call will: nobody waits for it (I5).
            self.give_up(key);
            return;
        }
        let (since, tries) = pending.unreachable.unwrap_or((now, 0));
        let at = now.after(pause(&settings, tries));
        if at > since.after(settings.reconnect_wait) {
            self.fail(key, Fault::new(FaultKind::ServerUnreachable).because(cause));
            return;
        }
        pending.unreachable = Some((since, tries.saturating_add(1)));
        if let Place::Sent { id, .. } = pending.place {
            self.by_id.remove(&id);
        }
        pending.place = Place::Pausing(at);
    }

    /// It may have run: only what is safe to repeat goes once more.
    pub(super) fn judge_unknown(
        &mut self,
        generation: Generation,
        key: CallKey,
        kind: FaultKind,
        cause: &str,
    ) {
        let repeatable = self
            .pending
            .get(&key)
            .is_some_and(|pending| pending.is_repeatable(&self.config.settings));
        if repeatable && self.replay(key, generation) {
            if let Some(pending) = self.pending.get_mut(&key) {
                pending.may_have_run = true;
            }
            return;
        }
        self.fail(
            key,
            Fault::new(kind).because(cause).outcome(Outcome::Unknown),
        );
    }

    fn judge_refused(
        &mut self,
        now: Moment,
        generation: Generation,
        key: CallKey,
        refusal: &Refusal,
    ) {
        if loss::is_session_gone(refusal, &self.route(generation)) {
            self.lose_session(now, generation, refusal);
            self.judge_forgotten(generation, key, refusal);
            return;
        }
        let asked = self
            .pending
            .get(&key)
            .and_then(|pending| match pending.place {
                Place::Sent { id, .. } => Some(id),
                Place::Waiting | Place::Pausing(_) | Place::Unauthorized | Place::Parked => None,
            });
        if let Some(answer) = asked.and_then(|id| own_error(refusal, id)) {
            self.on_answer(now, generation, answer);
            return;
        }
        let text = refusal.for_people();
        match refusal.status {
            401 | 403 => self.judge_unauthorized(now, generation, key, &text),
            500.. => {
                self.judge_unknown(generation, key, FaultKind::OutcomeUnknown, &text);
            }
            _ => {
                let mut fault = Fault::new(FaultKind::UpstreamRefused).because(text);
                fault.retry_after = refusal.retry_after;
                self.fail(key, fault);
            }
        }
    }

    /// Refused because the session was gone: not executed, so it goes once more.
    fn judge_forgotten(&mut self, generation: Generation, key: CallKey, refusal: &Refusal) {
        let Some(pending) = self.pending.get(&key) else {
            return;
        };
        let fails = self.config.settings.on_state_loss == crate::settings::StateLossPolicy::Fail;
        if fails && matches!(pending.task, Task::Client(_)) {
            self.fail(
                key,
                Fault::new(FaultKind::StateLost).because(refusal.for_people()),
            );
        } else if !pending.survives_session_loss(&self.config.settings, &self.hints)
            || !self.replay(key, generation)
        {
            let fault = Fault::new(FaultKind::SessionRecoveryFailed).because(refusal.for_people());
            self.fail(key, fault);
        }
    }

    /// The child is gone: what was with it may have run.
    pub(super) fn on_lost(
        &mut self,
        now: Moment,
        generation: Generation,
        cause: &str,
        never_ran: bool,
    ) {
        if !self.instances.contains_key(&generation) {
            return;
        }
        if self.is_starting(generation) {
            let kind = FaultKind::ServerStartFailed;
            self.fail_attempt(now, Failure::new(kind, cause));
            return;
        }
        let served =
            matches!(self.phase, crate::upstream::Phase::Ready(ready) if ready == generation);
        self.leave_service(now, generation);
        self.emit(Event::Lost {
            generation,
            cause: cause.into(),
        });
        self.forget_exchanges(generation);
        self.instances.remove(&generation);
        self.tell(crate::upstream::SessionEvent::InstanceGone { generation });
        let with: Vec<CallKey> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_with(pending, generation))
            .map(|(key, _)| *key)
            .collect();
        for key in with {
            if never_ran && self.replay(key, generation) {
                continue;
            }
            if never_ran {
                self.fail(key, Fault::new(FaultKind::ServerStartFailed).because(cause));
            } else {
                self.judge_unknown(generation, key, FaultKind::ServerExited, cause);
            }
        }
        if served {
            self.note_state_loss(cause);
        }
    }

    /// Whether this generation is the one that is being started.
    pub fn is_starting(&self, generation: Generation) -> bool {
        matches!(&self.phase, crate::upstream::Phase::Starting(attempt) if attempt.generation == generation)
    }

    /// What the end of a handshake's exchange means for the attempt.
    pub(super) fn failure_of(end: End) -> Failure {
        match end {
            End::Refused(refusal) => {
                let kind = match refusal.status {
                    401 | 403 => FaultKind::UpstreamUnauthorized,
                    _ => FaultKind::ServerStartFailed,
                };
                let mut failure = Failure::new(kind, refusal.for_people());
                failure.retry_after = refusal.retry_after;
                failure
            }
            End::NotSent { cause } => Failure::new(FaultKind::ServerUnreachable, cause),
            End::Broken { cause } => Failure::new(FaultKind::ServerStartFailed, cause),
            End::StreamEnded { .. } | End::Accepted | End::Complete => Failure::new(
                FaultKind::ServerStartFailed,
                "the HTTP answer holds no result",
            ),
        }
    }
}

/// The server's own JSON-RPC error to the request of this id, which it sent with a status of 4xx:
/// an answer like any other. Where the status itself means something to us, that goes first.
pub(super) fn own_error(refusal: &Refusal, id: UpstreamId) -> Option<Message> {
    let answers = matches!(refusal.status, 400..=499) && !matches!(refusal.status, 401 | 403 | 429);
    let answer = refusal.answer.as_ref().filter(|_| answers)?;
    let is_ours =
        answer.kind() == Kind::Error && answer.id().as_deref() == Some(id.to_string().as_bytes());
    is_ours.then(|| answer.clone())
}

fn is_with(pending: &Pending, generation: Generation) -> bool {
    matches!(pending.place, Place::Sent { generation: with, .. } if with == generation)
}
