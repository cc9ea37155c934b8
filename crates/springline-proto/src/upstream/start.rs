//! Starting an instance and recovering from its loss: the handshake, one attempt at a time.
//!
//! An attempt belongs to the machine and has a deadline of its own; the call at the head of the
//! queue owns it and hears of its failure, all others go on waiting (I7).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{CallKey, ExchangeId, Generation, Moment, UpstreamId};
use crate::error::{Fault, FaultKind};
use crate::json;
use crate::message::{Kind, Message};
use crate::method::Method;
use crate::settings::UpstreamSettings;
use crate::upstream::exchange::{Aim, Exchange, own_error};
use crate::upstream::instance::{Instance, Standing};
use crate::upstream::pending::{Pending, Task};
use crate::upstream::port::{End, Event, Hello, Output, Purpose, SessionEvent};
use crate::upstream::{Phase, Transport, Upstream};
use crate::version::Version;

/// Start timeouts that a child waits for its turn in the start budget.
const TURNS_MAX: u32 = 10;

/// Why a request fails that nobody's handshake came ahead of. Whoever drives the machine has it come
/// first, so that nobody hears this.
pub const NO_HANDSHAKE: &str = "no handshake yet";

/// How far an attempt has come.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// The driver makes the instance.
    Opening,
    /// As many children run as may, which are so many: the driver waits for room.
    Crowded(usize),
    /// The connection was refused; `initialize` goes out again at this moment.
    Pausing(Moment),
    /// `initialize` was refused for its credentials; these are read again.
    Unauthorized,
    /// `initialize` is out.
    Initializing(ExchangeId, UpstreamId),
    /// `notifications/initialized` is out.
    Confirming(ExchangeId),
}

/// One attempt to make an instance ready.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) generation: Generation,
    /// The call that hears of a failure, as long as it waits.
    pub(super) owner: Option<CallKey>,
    pub(super) step: Step,
    began: Moment,
    pub(super) deadline: Moment,
    unreachable: Option<(Moment, u32)>,
    pub(super) reauthorized: bool,
    pub(super) credential_epoch: u64,
    result: Option<Bytes>,
}

impl Attempt {
    pub(super) fn next_deadline(&self) -> Moment {
        match self.step {
            Step::Pausing(at) => at.min(self.deadline),
            Step::Opening
            | Step::Crowded(_)
            | Step::Unauthorized
            | Step::Initializing(..)
            | Step::Confirming(_) => self.deadline,
        }
    }

    fn phase_name(&self) -> &'static str {
        match self.step {
            Step::Opening | Step::Crowded(_) => "start",
            Step::Pausing(_) | Step::Unauthorized | Step::Initializing(..) => "initialize",
            Step::Confirming(_) => "notifications/initialized",
        }
    }
}

/// The pause between failed attempts. It grows with each, and is waited out, never refused.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    failures: u32,
    not_before: Option<Moment>,
    seed: u64,
}

impl Backoff {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            not_before: None,
            seed: seed | 1,
        }
    }

    pub(super) fn not_before(&self) -> Option<Moment> {
        self.not_before
    }

    /// Notes a failure and returns the pause: doubling from the first to the last, of which the
    /// upper half is jitter.
    pub(super) fn failed(&mut self, now: Moment, settings: &UpstreamSettings) -> Duration {
        let (first, last) = settings.recovery_backoff;
        let whole = first.saturating_mul(1 << self.failures.min(16)).min(last);
        self.failures = self.failures.saturating_add(1);
        // xorshift64: enough to keep instances from marching in step.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        let jitter = u32::try_from(self.seed % 1024).unwrap_or(0);
        let pause = whole / 2 + (whole / 2).saturating_mul(jitter) / 1024;
        self.not_before = Some(now.after(pause));
        pause
    }

    /// An instance served: the next pause is the first one again.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }
}

/// Why an attempt failed.
pub(super) struct Failure {
    pub(super) kind: FaultKind,
    pub(super) cause: Box<str>,
    pub(super) server_error: Option<Bytes>,
    pub(super) retry_after: Option<Duration>,
}

impl Failure {
    pub(super) fn new(kind: FaultKind, cause: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            cause: cause.into(),
            server_error: None,
            retry_after: None,
        }
    }
}

impl Upstream {
    pub(super) fn on_start(&mut self, now: Moment, key: CallKey, hello: Hello) {
        if let Some(result) = self.claim(&hello) {
            self.last_use = self.last_use.max(now);
            self.tell_started(key, result);
            return;
        }
        let again = self.hello.replace(hello).is_some() && !self.is_shared();
        let pending = Pending::new(now, Task::Start, Method::Initialize);
        self.pending.insert(key, pending);
        self.waiting.push_front(key);
        if !again {
            return;
        }
        // The client started over: what the old parameters began ends, nobody hears of it, and
        // the calls that wait get the new instance.
        match &self.phase {
            Phase::Ready(generation) => {
                let generation = *generation;
                self.retire(generation, "initialized again");
            }
            Phase::Starting(attempt) => {
                let attempt = attempt.clone();
                self.abandon(&attempt, true);
                self.phase = Phase::Idle;
            }
            Phase::Idle | Phase::Closed(_) => {}
        }
        self.restore.clear();
    }

    /// Begins an attempt if calls wait and the pause is over.
    pub(super) fn start_if_wanted(&mut self, now: Moment) {
        let Some(owner) = self.waiting.front().copied() else {
            return;
        };
        if self.backoff.not_before().is_some_and(|moment| now < moment) {
            return;
        }
        if self.hello.is_none() {
            self.fail_waiting(&Fault::new(FaultKind::ServerStartFailed).because(NO_HANDSHAKE));
            return;
        }
        let generation = self.generation_last.next();
        self.generation_last = generation;
        self.instances
            .insert(generation, Instance::new(self.was_ready));
        let attempt = Attempt {
            generation,
            owner: Some(owner),
            step: Step::Opening,
            began: now,
            deadline: now.after(self.start_patience()),
            unreachable: None,
            reauthorized: false,
            credential_epoch: self.credential.epoch(),
            result: None,
        };
        self.phase = Phase::Starting(Box::new(attempt));
        self.out.push_back(match self.config.transport {
            // A hundred servers must not start at once.
            Transport::Stdio => Output::Reserve { generation },
            Transport::Http => Output::Open { generation },
        });
    }

    /// A child may have to wait for its turn in the start budget before its own time counts.
    fn start_patience(&self) -> std::time::Duration {
        let own = self.config.settings.start_timeout;
        match self.config.transport {
            Transport::Stdio => own.saturating_mul(TURNS_MAX),
            Transport::Http => own,
        }
    }

    pub(super) fn on_admitted(&mut self, now: Moment, generation: Generation) {
        let deadline = now.after(self.config.settings.start_timeout);
        if let Phase::Starting(attempt) = &mut self.phase
            && attempt.generation == generation
            && matches!(attempt.step, Step::Opening | Step::Crowded(_))
        {
            attempt.step = Step::Opening;
            attempt.began = now;
            attempt.deadline = deadline;
            self.out.push_back(Output::Open { generation });
        }
    }

    pub(super) fn on_opened(&mut self, _now: Moment, generation: Generation) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        if attempt.generation == generation && attempt.step == Step::Opening {
            self.send_initialize(generation);
        }
    }

    /// `initialize` never carries a session id (I14).
    pub(super) fn send_initialize(&mut self, generation: Generation) {
        let Some(hello) = self.hello.clone() else {
            return;
        };
        let id = self.id_next.take();
        let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":"#);
        let mut body = json::Pieces::from(Bytes::from(head));
        body.push(hello.params);
        body.push(Bytes::from_static(b"}"));
        let exchange = self.send(generation, body, Purpose::Initialize, false);
        self.exchanges
            .insert(exchange, Exchange::new(generation, Aim::Initialize));
        let epoch = self.credential.epoch();
        if let Phase::Starting(attempt) = &mut self.phase {
            attempt.step = Step::Initializing(exchange, id);
            attempt.credential_epoch = epoch;
        }
    }

    pub(super) fn on_minted(
        &mut self,
        generation: Generation,
        exchange: ExchangeId,
        session_id: Arc<str>,
    ) {
        let aimed = self
            .exchanges
            .get(&exchange)
            .is_some_and(|held| held.aim == Aim::Initialize && held.generation == generation);
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        if !aimed {
            return;
        }
        instance.route.session_id = Some(session_id);
        if instance.standing == Standing::Abandoned {
            self.end_instance(generation, true, "abandoned");
        }
    }

    /// The answer to `initialize`, if this message is one.
    pub(super) fn on_initialize_answer(
        &mut self,
        now: Moment,
        generation: Generation,
        message: &Message,
    ) -> bool {
        let Phase::Starting(attempt) = &self.phase else {
            return false;
        };
        let Step::Initializing(_, id) = attempt.step else {
            return false;
        };
        if attempt.generation != generation
            || message.id().as_deref() != Some(id.to_string().as_bytes())
        {
            return false;
        }
        if message.kind() == Kind::Error {
            let error = message.error().unwrap_or_default();
            let mut failure = Failure::new(FaultKind::ServerStartFailed, error_text(&error));
            failure.server_error = Some(error);
            self.fail_attempt(now, failure);
            return true;
        }
        let result = message.result().unwrap_or_default();
        match negotiated(&result) {
            Ok(version) => self.send_initialized(generation, version, result),
            Err(cause) => {
                self.fail_attempt(now, Failure::new(FaultKind::ServerStartFailed, cause));
            }
        }
        true
    }

    fn send_initialized(&mut self, generation: Generation, version: Version, result: Bytes) {
        if let Some(instance) = self.instances.get_mut(&generation) {
            instance.route.version = Some(version);
            let whole = json::Span::whole(&result);
            // A copy, since the message would be kept with it for as long as the instance lives.
            instance.capabilities =
                json::member(&result, whole, "capabilities").map(|span| span.of(&result).into());
        }
        let body = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
        let exchange = self.send(generation, body.into(), Purpose::Initialized, false);
        self.exchanges
            .insert(exchange, Exchange::new(generation, Aim::Initialized));
        if let Phase::Starting(attempt) = &mut self.phase {
            attempt.step = Step::Confirming(exchange);
            attempt.result = Some(result);
        }
    }

    /// An exchange of the handshake is over.
    pub(super) fn on_handshake_ended(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: ExchangeId,
        end: End,
    ) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        if attempt.generation != generation {
            return;
        }
        match attempt.step {
            Step::Initializing(out, _) if out == exchange => {
                self.on_initialize_ended(now, generation, end);
            }
            Step::Confirming(out) if out == exchange => match end {
                End::Accepted | End::Complete | End::StreamEnded { .. } => {
                    self.publish(now, generation);
                }
                other @ (End::NotSent { .. }
                | End::Broken { .. }
                | End::Unreadable { .. }
                | End::Refused(_)) => {
                    let failure = Self::failure_of(other);
                    self.fail_attempt(now, failure);
                }
            },
            Step::Opening
            | Step::Crowded(_)
            | Step::Pausing(_)
            | Step::Unauthorized
            | Step::Initializing(..)
            | Step::Confirming(_) => {}
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "every other end fails the attempt alike"
    )]
    fn on_initialize_ended(&mut self, now: Moment, generation: Generation, end: End) {
        match end {
            // stdio: written; the answer comes as a line of its own.
            End::Accepted if self.config.transport == Transport::Stdio => {}
            End::NotSent { cause } if self.config.transport == Transport::Http => {
                self.on_initialize_unsent(now, &cause);
            }
            End::Refused(refusal) if matches!(refusal.status, 401 | 403) => {
                self.on_initialize_unauthorized(now, generation, End::Refused(refusal));
            }
            other => {
                if let Some(answer) = self.own_initialize_error(&other) {
                    self.on_initialize_answer(now, generation, &answer);
                    return;
                }
                // Where there was an endpoint once, it is only out of order.
                let is_elsewhere = !self.was_ready
                    && matches!(&other, End::Refused(refusal) if refusal.is_no_endpoint());
                let mut failure = Self::failure_of(other);
                if is_elsewhere {
                    failure.kind = FaultKind::NotEndpoint;
                }
                self.fail_attempt(now, failure);
            }
        }
    }

    /// The server's own error to `initialize`, if that is what the refusal holds.
    fn own_initialize_error(&self, end: &End) -> Option<Message> {
        let (End::Refused(refusal), Phase::Starting(attempt)) = (end, &self.phase) else {
            return None;
        };
        let Step::Initializing(_, id) = attempt.step else {
            return None;
        };
        own_error(refusal, id)
    }

    fn on_initialize_unsent(&mut self, now: Moment, cause: &str) {
        let settings = self.config.settings.clone();
        let Phase::Starting(attempt) = &mut self.phase else {
            return;
        };
        let (since, tries) = attempt.unreachable.unwrap_or((now, 0));
        let at = now.after(crate::upstream::request::pause(&settings, tries));
        if at > since.after(settings.reconnect_wait) || at >= attempt.deadline {
            self.fail_attempt(now, Failure::new(FaultKind::ServerUnreachable, cause));
            return;
        }
        attempt.unreachable = Some((since, tries.saturating_add(1)));
        attempt.step = Step::Pausing(at);
    }

    /// The instance serves from here on (I6).
    fn publish(&mut self, now: Moment, generation: Generation) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        let took = now.since(attempt.began);
        let result = attempt.result.clone().unwrap_or_default();
        let recovery = self.was_ready;
        self.was_ready = true;
        self.phase = Phase::Ready(generation);
        self.last_use = self.last_use.max(now);
        self.restore_due = false;
        if self.keeps_answer
            && let Some(instance) = self.instances.get_mut(&generation)
        {
            instance.answer = Some(Box::new(result.clone()));
        }
        self.persist(generation);
        self.emit(Event::Ready {
            generation,
            took,
            recovery,
        });
        let waiting = std::mem::take(&mut self.waiting);
        for key in waiting {
            if self
                .pending
                .get(&key)
                .is_some_and(|held| matches!(held.task, Task::Start))
            {
                self.pending.remove(&key);
                self.tell_started(key, result.clone());
            } else {
                self.waiting.push_back(key);
            }
        }
        if recovery {
            self.tell(SessionEvent::Renewed { result });
        }
        if recovery || self.is_shared() {
            self.restore_state(now, generation);
        }
    }

    fn tell_started(&mut self, key: CallKey, result: Bytes) {
        self.tell_session(key.session, SessionEvent::Started { key, result });
    }

    /// The attempt failed: its owner hears of it, what it minted is ended, the next one waits.
    pub(super) fn fail_attempt(&mut self, now: Moment, failure: Failure) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        let attempt = attempt.clone();
        self.phase = Phase::Idle;
        let retry_in = if failure.kind == FaultKind::TooManyChildren {
            // The server did not fail; who waits next waits for room.
            Duration::ZERO
        } else {
            self.backoff.failed(now, &self.config.settings)
        };
        let cause = format!("{}: {}", attempt.phase_name(), failure.cause);
        let told = if failure.kind == FaultKind::NotEndpoint {
            &format!("{}: {cause}", failure.kind.text())
        } else {
            &cause
        };
        self.emit(Event::StartFailed {
            generation: attempt.generation,
            cause: crate::error::sanitise(told, crate::error::CAUSE_MAX).into(),
            retry_in,
        });
        self.end_instance(attempt.generation, true, "handshake failed");
        let Some(owner) = attempt.owner else { return };
        let pending = self.give_up(owner);
        let Some(pending) = pending.filter(|pending| !pending.is_internal()) else {
            return;
        };
        let kind = if self.was_ready && failure.kind == FaultKind::ServerStartFailed {
            FaultKind::SessionRecoveryFailed
        } else {
            failure.kind
        };
        let mut fault = Fault::new(kind)
            .because(cause)
            .outcome(pending.outcome_of(crate::error::Outcome::NotExecuted));
        fault.retry_after = failure.retry_after;
        self.tell_failed(owner, fault, failure.server_error);
    }

    /// Nobody waits for this attempt any more. Over HTTP its `initialize` may still mint a session,
    /// which must be ended then, so the exchange is left to finish.
    pub(super) fn abandon(&mut self, attempt: &Attempt, delete: bool) {
        let generation = attempt.generation;
        let may_mint = delete
            && self.config.transport == Transport::Http
            && matches!(attempt.step, Step::Initializing(..))
            && self
                .instances
                .get(&generation)
                .is_some_and(|instance| instance.route.session_id.is_none());
        if !may_mint {
            self.end_instance(generation, delete, "abandoned");
            return;
        }
        if let Some(instance) = self.instances.get_mut(&generation) {
            instance.standing = Standing::Abandoned;
            instance.deadline = Some(attempt.deadline);
        }
    }

    /// Ends what waited for a handshake's answer, or for last words, for long enough.
    pub(super) fn expire_instances(&mut self, now: Moment) {
        let due: Vec<(Generation, Standing)> = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.deadline.is_some_and(|deadline| deadline <= now))
            .map(|(generation, instance)| (*generation, instance.standing))
            .collect();
        for (generation, standing) in due {
            let (delete, reason) = match standing {
                Standing::Ending { delete, reason } => (delete, reason),
                Standing::Live
                | Standing::Retired(_)
                | Standing::Forgotten
                | Standing::Abandoned => (true, "abandoned"),
            };
            self.end_instance(generation, delete, reason);
        }
    }

    pub(super) fn expire_attempt(&mut self, now: Moment) {
        let Phase::Starting(attempt) = &self.phase else {
            return;
        };
        let generation = attempt.generation;
        if now >= attempt.deadline {
            if let Step::Crowded(max) = attempt.step {
                self.fail_crowded(now, max);
                return;
            }
            let failure = Failure::new(
                FaultKind::ServerStartFailed,
                "no answer within startTimeout",
            );
            self.fail_attempt(now, failure);
        } else if matches!(attempt.step, Step::Pausing(at) if at <= now) {
            self.send_initialize(generation);
        }
    }
}

/// The revision that the result of `initialize` names, or why it cannot be used.
fn negotiated(result: &Bytes) -> Result<Version, String> {
    let whole = json::Span::whole(result);
    let text = json::member(result, whole, "protocolVersion")
        .and_then(|span| json::string(span.of(result)));
    match text {
        Some(text) => Version::parse(&text).ok_or_else(|| {
            format!("the server chose protocol version \"{text}\", which is unknown")
        }),
        None => Err("the result names no protocolVersion".into()),
    }
}

/// Code and message of a JSON-RPC error, for people.
pub(super) fn error_text(error: &Bytes) -> String {
    let whole = json::Span::whole(error);
    let code = json::member(error, whole, "code").map_or(&b""[..], |span| span.of(error));
    let message =
        json::member(error, whole, "message").and_then(|span| json::string(span.of(error)));
    format!(
        "the server answered error {}: {}",
        String::from_utf8_lossy(code),
        message.unwrap_or_default()
    )
}
