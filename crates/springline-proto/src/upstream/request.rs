//! Requests of clients: taken in, assigned, sent, given up.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::call::{CallKey, ExchangeId, Generation, InstanceKey, Moment};
use crate::error::{Fault, FaultKind, Outcome};
use crate::json::Pieces;
use crate::message::Message;
use crate::method::Method;
use crate::settings::UpstreamSettings;
use crate::upstream::exchange::{Aim, Exchange};
use crate::upstream::pending::{Pending, Place, Stretches, Task};
use crate::upstream::port::{Event, Output, Purpose};
use crate::upstream::{Phase, Transport, Upstream};

/// Calls for which an idle upstream keeps room: one at a time is what most clients have.
const WAITING_KEPT: usize = 1;

/// The pause before the next try on a refused connection.
pub(super) fn pause(settings: &UpstreamSettings, tries: u32) -> Duration {
    let (first, last) = settings.reconnect_pause;
    first.saturating_mul(1 << tries.min(16)).min(last)
}

impl Upstream {
    pub(super) fn on_call(&mut self, now: Moment, key: CallKey, message: Message, stretches: bool) {
        self.last_use = self.last_use.max(now);
        if self.waiting.len() >= self.config.settings.waiting_max {
            self.tell_failed(key, Fault::new(FaultKind::TooManyPending), None);
            return;
        }
        let method = Method::of(&message);
        self.used |= method.is_use();
        self.accept(now, key, Task::Client(message), method);
        if stretches && let Some(pending) = self.pending.get_mut(&key) {
            pending.stretches = Stretches::Allowed;
        }
    }

    /// Takes a request in; `advance` sends it when an instance is ready.
    pub(super) fn accept(&mut self, now: Moment, key: CallKey, task: Task, method: Method) {
        self.pending.insert(key, Pending::new(now, task, method));
        if self.waiting.capacity() == 0 {
            self.waiting.reserve_exact(WAITING_KEPT);
        }
        self.waiting.push_back(key);
    }

    /// Sends all that waits, in order. Readiness and generation were checked by the caller in the
    /// same step (I6).
    pub(super) fn flush(&mut self, now: Moment, generation: Generation) {
        while let Some(key) = self.waiting.pop_front() {
            self.assign(now, key, generation);
        }
        if self.waiting.capacity() > WAITING_KEPT && self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    fn assign(&mut self, now: Moment, key: CallKey, generation: Generation) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        if matches!(pending.task, Task::Start) {
            // Only a handshake settles it; `publish` has taken all that waited.
            return;
        }
        // A replay, too, takes an id that was never used on any instance.
        let id = self.id_next.take();
        let exchange = self.exchange_next.take();
        pending.place = Place::Sent {
            generation,
            id,
            exchange,
        };
        pending.credential_epoch = self.credential.epoch();
        pending.heard(now);
        let repeatable = pending.is_repeatable(&self.config.settings);
        let is_client = !pending.is_internal();
        let stretches = pending.stretches == Stretches::Allowed;
        let body = render(&pending.task, id.0);
        self.exchanges
            .insert(exchange, Exchange::new(generation, Aim::Call(key)));
        if is_client {
            self.take_chance(generation, key);
            self.out.push_back(Output::Sent { key, generation });
        }
        let route = self.route(generation);
        self.out.push_back(Output::Send {
            generation,
            exchange,
            body,
            purpose: Purpose::Request,
            route,
            repeatable,
            stretches,
        });
    }

    /// Writes a message that is no request of the queue.
    pub(super) fn send(
        &mut self,
        generation: Generation,
        body: Pieces,
        purpose: Purpose,
        repeatable: bool,
    ) -> ExchangeId {
        let exchange = self.exchange_next.take();
        let route = match purpose {
            Purpose::Initialize => crate::upstream::Route::default(),
            Purpose::Initialized | Purpose::Request | Purpose::Oneway => self.route(generation),
        };
        self.out.push_back(Output::Send {
            generation,
            exchange,
            body,
            purpose,
            route,
            repeatable,
            stretches: false,
        });
        exchange
    }

    pub(super) fn route(&self, generation: Generation) -> crate::upstream::Route {
        self.instances
            .get(&generation)
            .map(|instance| instance.route.clone())
            .unwrap_or_default()
    }

    pub(super) fn on_notify(&mut self, now: Moment, body: Pieces) {
        self.last_use = self.last_use.max(now);
        let Phase::Ready(generation) = self.phase else {
            // It belongs to a state that is gone (DESIGN.md section 5, replay classes).
            let generation = self.generation_last;
            self.emit(Event::Dropped {
                generation,
                reason: "notification without an instance",
            });
            return;
        };
        self.send_oneway(now, generation, body, Aim::Oneway);
    }

    pub(super) fn send_oneway(
        &mut self,
        now: Moment,
        generation: Generation,
        body: Pieces,
        aim: Aim,
    ) {
        let exchange = self.send(generation, body, Purpose::Oneway, false);
        self.exchanges
            .insert(exchange, Exchange::new(generation, aim));
        self.await_delivery(now, exchange);
    }

    /// The client's answer to a question of the server, under the server's own id.
    pub(super) fn on_reply(
        &mut self,
        now: Moment,
        instance: InstanceKey,
        id: &Bytes,
        message: &Message,
    ) {
        self.last_use = self.last_use.max(now);
        let generation = instance.generation;
        let is_there = self.has(instance) && self.instances.contains_key(&generation);
        if is_there && !self.is_ending(generation) {
            self.send_oneway(now, generation, message.with_id(id), Aim::Oneway);
        } else {
            self.emit(Event::Dropped {
                generation,
                reason: "answer to an instance that is gone",
            });
        }
    }

    pub(super) fn on_asking(&mut self, now: Moment, key: CallKey, begins: bool) {
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.asking(now, begins);
        }
    }

    pub(super) fn on_cancel(&mut self, now: Moment, key: CallKey, message: Option<&Message>) {
        if let Some(pending) = self.give_up(key) {
            self.cancel_upstream(now, &pending, message, "cancelled by the client");
        }
    }

    /// Takes a request out of the machine without telling anybody.
    pub(super) fn give_up(&mut self, key: CallKey) -> Option<Pending> {
        let pending = self.pending.remove(&key)?;
        match pending.place {
            Place::Waiting => {
                self.waiting.retain(|held| *held != key);
                if let Phase::Starting(attempt) = &mut self.phase
                    && attempt.owner == Some(key)
                {
                    // Others wait for the same attempt: it goes on (I7).
                    attempt.owner = None;
                }
            }
            Place::Sent { .. } | Place::Pausing(_) | Place::Unauthorized | Place::Parked => {}
        }
        self.release_chance(key);
        Some(pending)
    }

    /// Tells the server that nobody waits for this request any more.
    fn cancel_upstream(
        &mut self,
        now: Moment,
        pending: &Pending,
        message: Option<&Message>,
        reason: &str,
    ) {
        let Place::Sent {
            generation,
            id,
            exchange,
        } = pending.place
        else {
            return;
        };
        if !self.instances.contains_key(&generation) {
            return;
        }
        let ours = id.to_string();
        let body = message.and_then(|message| {
            let params = message.envelope().params?;
            let target = crate::json::member(message.bytes(), params, "requestId")?;
            Some(message.splice().replace(target, ours.clone()).finish())
        });
        let body = body.unwrap_or_else(|| {
            Pieces::from(Bytes::from(format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{ours},"reason":"{reason}"}}}}"#
            )))
        });
        let aim = match self.config.transport {
            // The server owes no answer now: its exchange is dropped when it has heard.
            Transport::Http => Aim::Cancel(exchange),
            Transport::Stdio => Aim::Oneway,
        };
        self.send_oneway(now, generation, body, aim);
    }

    /// Ends calls whose patience is over, and tries refused connections again.
    pub(super) fn expire_calls(&mut self, now: Moment) {
        let settings = &self.config.settings;
        let mut expired = Vec::new();
        let mut again = Vec::new();
        for (key, pending) in self.pending.iter() {
            if pending
                .expires(settings)
                .is_some_and(|moment| moment <= now)
            {
                expired.push(*key);
            } else if matches!(pending.place, Place::Pausing(at) if at <= now) {
                again.push(*key);
            }
        }
        for key in expired {
            self.expire(now, key);
        }
        for key in again {
            self.queue_again(key);
        }
    }

    fn expire(&mut self, now: Moment, key: CallKey) {
        let Some(pending) = self.give_up(key) else {
            return;
        };
        self.cancel_upstream(now, &pending, None, "timed out");
        if !pending.is_internal() {
            let fault = Fault::new(FaultKind::CallTimeout).outcome(pending.outcome_if_dropped());
            self.tell_failed(key, fault, None);
        }
    }

    /// Puts a request back into the queue.
    pub(super) fn queue_again(&mut self, key: CallKey) {
        if let Some(pending) = self.pending.get_mut(&key) {
            pending.place = Place::Waiting;
            self.waiting.push_back(key);
        }
    }

    /// Sends a request once more, if its budget allows it; says whether.
    pub(super) fn replay(&mut self, key: CallKey, generation: Generation) -> bool {
        let Some(pending) = self.pending.get_mut(&key) else {
            return false;
        };
        if pending.replayed || pending.is_passing() {
            return false;
        }
        pending.replayed = true;
        if !pending.is_internal() {
            self.emit(Event::Replayed { key, generation });
        }
        self.queue_again(key);
        true
    }

    /// Ends a request in an error.
    pub(super) fn fail(&mut self, key: CallKey, fault: Fault) {
        if let Some(pending) = self.give_up(key)
            && !pending.is_internal()
        {
            let outcome = pending.outcome_of(fault.outcome);
            self.tell_failed(key, fault.outcome(outcome), None);
        }
    }

    pub(super) fn fail_waiting(&mut self, fault: &Fault) {
        for key in std::mem::take(&mut self.waiting) {
            self.fail(key, fault.clone().outcome(Outcome::NotExecuted));
        }
    }
}

/// The request as it goes on the wire: the client's bytes with an id and a progress token of ours.
/// The token is the id: unique among all requests of the instance, whatever the client chose (I9).
fn render(task: &Task, id: u64) -> Pieces {
    match task {
        Task::Client(message) => {
            let mut room = [0; DIGITS_MAX];
            let ours = digits(id, &mut room);
            let mut splice = message.splice();
            if let Some(span) = message.envelope().id {
                splice = splice.replace_copied(span, ours);
            }
            if let Some(span) = message.envelope().progress_token {
                splice = splice.replace_copied(span, ours);
            }
            splice.finish()
        }
        Task::Ping | Task::Start => ours(id, Method::Ping, None),
        Task::Remake(raw) => {
            let head = format!(r#"{{"jsonrpc":"2.0","id":{id},"#);
            let mut body = Pieces::from(Bytes::from(head));
            body.push(raw.clone());
            body.push(Bytes::from_static(b"}"));
            body
        }
        Task::Reread(kind, cursor) => ours(id, kind.method(), cursor.as_ref()),
    }
}

/// Digits of the largest id.
const DIGITS_MAX: usize = 20;

/// An id as it is written.
fn digits(mut id: u64, room: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = DIGITS_MAX;
    for digit in room.iter_mut().rev() {
        *digit = b'0' + u8::try_from(id % 10).unwrap_or_default();
        at -= 1;
        id /= 10;
        if id == 0 {
            break;
        }
    }
    room.get(at..).unwrap_or_default()
}

/// A request of our own.
fn ours(id: u64, method: Method, cursor: Option<&Bytes>) -> Pieces {
    let method = method.as_str();
    let mut text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}""#).into_bytes();
    if let Some(cursor) = cursor {
        text.extend_from_slice(br#","params":{"cursor":"#);
        text.extend_from_slice(cursor);
        text.push(b'}');
    }
    text.push(b'}');
    Pieces::from(Bytes::from(text))
}
