//! Exchanges with the server, and the verdict on a request when its exchange ends.

use std::sync::Arc;
use std::time::Duration;

use crate::call::{CallKey, ExchangeId, Generation, Moment, UpstreamId};
use crate::error::{Fault, FaultKind, Outcome};
use crate::message::{Kind, Message};
use crate::upstream::listen::RETRY_MIN;
use crate::upstream::loss;
use crate::upstream::pending::{Pending, Place, Task};
use crate::upstream::port::{End, Event, Output, Refusal};
use crate::upstream::request::pause;
use crate::upstream::start::Failure;
use crate::upstream::{Phase, Transport, Upstream};

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
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) generation: Generation,
    pub(super) aim: Aim,
    /// The event behind which its stream was resumed last. If there is one, the server took the
    /// request.
    from: Option<Arc<str>>,
    /// How often it was resumed there without a further event.
    resumed: u32,
}

impl Exchange {
    pub(super) fn new(generation: Generation, aim: Aim) -> Self {
        Self {
            generation,
            aim,
            from: None,
            resumed: 0,
        }
    }

    /// Whether its stream may be resumed behind this event. A server that lets its clients poll
    /// closes the stream again and again (2025-11-25 basic/transports): as long as events come, only
    /// the call's own patience ends that.
    fn may_resume(&self, id: &str, attempts_max: u32) -> bool {
        self.from.as_deref() != Some(id) || self.resumed < attempts_max
    }
}

/// The pause before a broken stream is resumed, if the server named none.
const RESUME_PAUSE: Duration = Duration::from_secs(1);

/// How long a notification, an answer or a cancellation may take to be accepted over HTTP (I7).
const DELIVERY_MAX: Duration = Duration::from_mins(1);

/// Exchanges that a server may keep open after it answered, in all; then the oldest is dropped (I8).
const LINGERING_MAX: usize = 32;

impl Upstream {
    pub(super) fn on_ended(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: ExchangeId,
        end: End,
    ) {
        let Some(held) = self.exchanges.get(&exchange).cloned() else {
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
            Aim::Call(key) => self.on_call_ended(now, &held, exchange, key, end),
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
        let reason = match end {
            End::Accepted | End::Complete | End::StreamEnded { .. } | End::Unreadable { .. } => {
                return;
            }
            End::Refused(refusal) => {
                if loss::is_session_gone(&refusal, &self.route(generation)) {
                    self.lose_session(now, generation, &refusal);
                    return;
                }
                "notification refused"
            }
            End::NotSent { .. } | End::Broken { .. } => "notification did not arrive",
        };
        self.emit(Event::Dropped { generation, reason });
    }

    /// Notes that a message which awaits no answer is on its way over HTTP.
    pub(super) fn await_delivery(&mut self, now: Moment, exchange: ExchangeId) {
        if self.config.transport == Transport::Http {
            self.deliveries
                .push_back((now.after(DELIVERY_MAX), exchange));
        }
    }

    /// When the next message that awaits no answer is given up.
    pub(super) fn delivery_deadline(&self) -> Option<Moment> {
        let mut open = self.deliveries.iter();
        open.find(|(_, exchange)| self.exchanges.contains_key(exchange))
            .map(|(at, _)| *at)
    }

    /// Gives up what the server has not accepted in time; a cancelled request is dropped with its
    /// cancellation.
    pub(super) fn expire_deliveries(&mut self, now: Moment) {
        while let Some((at, exchange)) = self.deliveries.front().copied() {
            let held = self.exchanges.get(&exchange).map(|held| held.generation);
            if held.is_some() && at > now {
                return;
            }
            self.deliveries.pop_front();
            if let Some(generation) = held {
                self.out.push_back(Output::Abort {
                    generation,
                    exchange,
                });
                let cause = "it was not accepted in time".into();
                self.on_ended(now, generation, exchange, End::Broken { cause });
            }
        }
    }

    /// Drops the oldest exchange that a server keeps open although its call is over, if there are
    /// too many of them: each holds a connection.
    pub(super) fn drop_lingering(&mut self) {
        if self.exchanges.len() <= self.pending.len().saturating_add(LINGERING_MAX) {
            return;
        }
        let oldest = self.exchanges.iter().find_map(|(exchange, held)| {
            let Aim::Call(key) = held.aim else {
                return None;
            };
            let is_over = !self.awaits(key, *exchange);
            is_over.then_some((held.generation, *exchange))
        });
        if let Some((generation, exchange)) = oldest {
            self.exchanges.remove(&exchange);
            self.out.push_back(Output::Abort {
                generation,
                exchange,
            });
        }
    }

    /// A request that was not allowed to leave. It is not tried again: what could not be written
    /// down now will hardly be a moment later, and the client knows best whether it still wants it.
    pub(super) fn on_withheld(&mut self, exchange: ExchangeId, cause: Box<str>) {
        let Some(held) = self.exchanges.remove(&exchange) else {
            return;
        };
        if let Aim::Call(key) = held.aim
            && self.awaits(key, exchange)
        {
            self.fail(key, Fault::new(FaultKind::StateUnwritable).because(cause));
        }
    }

    /// Whether the answer to this call may still come on this exchange.
    pub(super) fn awaits(&self, key: CallKey, exchange: ExchangeId) -> bool {
        self.pending.get(&key).is_some_and(
            |pending| matches!(pending.place, Place::Sent { exchange: with, .. } if with == exchange),
        )
    }

    fn on_call_ended(
        &mut self,
        now: Moment,
        held: &Exchange,
        exchange: ExchangeId,
        key: CallKey,
        end: End,
    ) {
        let generation = held.generation;
        if !self.awaits(key, exchange) {
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
            } if held.may_resume(&id, self.config.settings.resume_attempts_max)
                && !self.is_passing(key) =>
            {
                self.resume_stream(generation, exchange, id, retry);
            }
            other @ (End::Accepted
            | End::Complete
            | End::StreamEnded { .. }
            | End::NotSent { .. }
            | End::Broken { .. }
            | End::Unreadable { .. }
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
            let is_news = held.from.as_ref() != Some(&last_event_id);
            held.resumed = if is_news {
                1
            } else {
                held.resumed.saturating_add(1)
            };
            held.from = Some(Arc::clone(&last_event_id));
        }
        // A server that says 0 and closes at once would be asked without end.
        let delay = retry.unwrap_or(RESUME_PAUSE).max(RETRY_MIN);
        self.out.push_back(Output::Resume {
            generation,
            exchange,
            last_event_id,
            delay,
            route,
        });
    }

    /// The verdict: refused, never sent, or unknown (DESIGN.md section 5, replay classes).
    fn judge(&mut self, now: Moment, held: &Exchange, key: CallKey, end: End) {
        let generation = held.generation;
        // An answer that has begun is of a request that was taken, too.
        let taken = held.from.is_some() || self.is_passing(key);
        match end {
            End::NotSent { cause } if !taken => self.judge_unsent(now, generation, key, &cause),
            End::Refused(refusal) if !taken => self.judge_refused(now, generation, key, &refusal),
            End::Refused(refusal) => {
                // The request itself was taken long ago; only its stream was refused.
                if loss::is_session_gone(&refusal, &self.route(generation)) {
                    self.lose_session(now, generation, &refusal);
                }
                let fault = Fault::new(FaultKind::OutcomeUnknown).because(refusal.for_people());
                self.judge_unknown(generation, key, fault);
            }
            End::NotSent { cause } | End::Broken { cause } => {
                let fault = Fault::new(FaultKind::OutcomeUnknown).because(cause);
                self.judge_unknown(generation, key, fault);
            }
            End::StreamEnded { .. } => {
                let cause = "the event stream ended before the answer";
                let fault = Fault::new(FaultKind::OutcomeUnknown).because(cause);
                self.judge_unknown(generation, key, fault);
            }
            End::Unreadable { cause } => {
                self.emit(Event::Unreadable {
                    generation,
                    cause: cause.clone(),
                });
                let fault = Fault::new(FaultKind::BadAnswer).because(cause);
                self.judge_unknown(generation, key, fault);
            }
            End::Accepted | End::Complete => {
                let cause = "the server's HTTP answer holds no answer to the request";
                let fault = Fault::new(FaultKind::BadAnswer).because(cause);
                self.judge_unknown(generation, key, fault);
            }
        }
    }

    fn judge_unsent(&mut self, now: Moment, generation: Generation, key: CallKey, cause: &str) {
        if self.config.transport == Transport::Stdio {
            // The pipe is closed before the line began: the child is as good as gone.
            let served = matches!(self.phase, Phase::Ready(ready) if ready == generation);
            self.leave_service(now, generation);
            self.retire(generation, "pipe closed");
            if served {
                self.note_state_loss(cause);
            }
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
        pending.place = Place::Pausing(at);
    }

    /// It may have run: only what is safe to repeat goes once more.
    fn judge_unknown(&mut self, generation: Generation, key: CallKey, fault: Fault) {
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
        self.fail(key, fault.outcome(Outcome::Unknown));
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
                let mut fault = Fault::new(FaultKind::OutcomeUnknown).because(text);
                fault.retry_after = refusal.retry_after;
                self.judge_unknown(generation, key, fault);
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
        let served = matches!(self.phase, Phase::Ready(ready) if ready == generation);
        self.leave_service(now, generation);
        self.emit(Event::Lost {
            generation,
            exited: true,
            cause: cause.into(),
        });
        self.forget_exchanges(generation);
        self.instances.remove(&generation);
        let instance = self.instance_key(generation);
        self.tell(crate::upstream::SessionEvent::InstanceGone { instance });
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
                let fault = Fault::new(FaultKind::ServerExited).because(cause);
                self.judge_unknown(generation, key, fault);
            }
        }
        if served {
            self.note_state_loss(cause);
        }
    }

    /// Whether this generation is the one that is being started.
    pub fn is_starting(&self, generation: Generation) -> bool {
        matches!(&self.phase, Phase::Starting(attempt) if attempt.generation == generation)
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
            End::Broken { cause } | End::Unreadable { cause } => {
                Failure::new(FaultKind::ServerStartFailed, cause)
            }
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
