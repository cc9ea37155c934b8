//! Messages of the server: whose they are, and whether they may be heard.

use bytes::Bytes;

use crate::call::{CallKey, ExchangeId, Generation, Moment, UpstreamId};
use crate::error::{FaultKind, Outcome};
use crate::json::{self, Pieces};
use crate::message::{Kind, Message};
use crate::method::{ListKind, Method};
use crate::upstream::Upstream;
use crate::upstream::exchange::Aim;
use crate::upstream::instance::Standing;
use crate::upstream::loss;
use crate::upstream::pending::{Pending, Place, Task};
use crate::upstream::port::{Event, SessionEvent};

impl Upstream {
    pub(super) fn on_message(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: Option<ExchangeId>,
        message: Message,
    ) {
        if !self.is_heard(generation, exchange) {
            return;
        }
        let abandoned = self
            .instances
            .get(&generation)
            .is_some_and(|instance| instance.standing == Standing::Abandoned);
        if abandoned || self.is_ending(generation) {
            return;
        }
        match message.kind() {
            Kind::Result | Kind::Error => self.on_answer(now, generation, message),
            Kind::Request => self.on_question(now, generation, exchange, message),
            Kind::Notification => self.on_notification(now, generation, exchange, message),
        }
    }

    pub(super) fn on_answer(&mut self, now: Moment, generation: Generation, message: Message) {
        if self.on_initialize_answer(now, generation, &message) {
            return;
        }
        let id = message.raw_id().and_then(parse_id);
        let Some(key) = id.and_then(|id| self.sent_as(id, generation)) else {
            self.emit(Event::Dropped {
                generation,
                reason: "answer to nothing that is pending",
            });
            return;
        };
        self.spend_chance(now, generation, key);
        let Some(pending) = self.give_up(key) else {
            return;
        };
        self.last_use = self.last_use.max(now);
        self.note_answered(generation);
        self.drop_lingering();
        if self.observe(now, &pending, &message) {
            self.persist_change();
        }
        // A ping of ours that is answered like that has found out nothing, and asks no other.
        if message.kind() == Kind::Error && !pending.is_internal() {
            self.suspect_loss(now, generation, &message);
        }
        if matches!(pending.task, Task::Client(_)) {
            self.tell_session(key.session, SessionEvent::Answer { key, message });
        }
    }

    /// The request that this instance has under this id. All are looked at: mostly one is pending, an
    /// index would cost each of them more than it saves, and the next deadline looks at all anyway.
    fn sent_as(&self, id: UpstreamId, generation: Generation) -> Option<CallKey> {
        self.pending.iter().find_map(|(key, pending)| {
            let is_it = matches!(pending.place, Place::Sent { generation: with, id: held, .. }
                if with == generation && held == id);
            is_it.then_some(*key)
        })
    }

    pub(super) fn note_answered(&mut self, generation: Generation) {
        if let Some(instance) = self.instances.get_mut(&generation)
            && !std::mem::replace(&mut instance.answered, true)
        {
            self.backoff.succeeded();
        }
    }

    /// HTTP 200 with an error that speaks of a lost session: the client gets it, and a ping finds
    /// out whether it is true.
    fn suspect_loss(&mut self, now: Moment, generation: Generation, message: &Message) {
        if self.route(generation).session_id.is_none() {
            return;
        }
        let Some(error) = message.error() else { return };
        let whole = json::Span::whole(&error);
        let code = json::member(&error, whole, "code")
            .and_then(|span| std::str::from_utf8(span.of(&error)).ok()?.parse().ok());
        let text = json::member(&error, whole, "message")
            .and_then(|span| json::string(span.of(&error)))
            .unwrap_or_default();
        if loss::is_gone_error(code, &text) && !self.is_pinging(generation) {
            let key = self.internal_key();
            self.accept(now, key, Task::Ping, Method::Ping);
        }
    }

    /// Whether a ping is about to find out, or under way: one is enough for all that suspect (I5).
    fn is_pinging(&self, generation: Generation) -> bool {
        self.pending.values().any(|pending| {
            matches!(pending.task, Task::Ping)
                && match pending.place {
                    Place::Sent {
                        generation: with, ..
                    } => with == generation,
                    Place::Waiting | Place::Pausing(_) | Place::Unauthorized | Place::Parked => {
                        true
                    }
                }
        })
    }

    fn on_question(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: Option<ExchangeId>,
        message: Message,
    ) {
        let method = Method::of(&message);
        if method == Method::Ping {
            // Each hop answers its own pings (2025-11-25 basic/utilities/ping).
            let id = message.id().unwrap_or_default();
            let mut body = Pieces::from(Bytes::from_static(br#"{"jsonrpc":"2.0","id":"#));
            body.push(id);
            body.push(Bytes::from_static(br#","result":{}}"#));
            self.send_oneway(now, generation, body, Aim::Oneway);
            return;
        }
        let related = self.related(now, exchange);
        let instance = self.instance_key(generation);
        self.tell_of(
            related,
            SessionEvent::Request {
                related,
                instance,
                message,
            },
        );
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "all other notifications just pass"
    )]
    fn on_notification(
        &mut self,
        now: Moment,
        generation: Generation,
        exchange: Option<ExchangeId>,
        message: Message,
    ) {
        let method = Method::of(&message);
        match method {
            Method::Progress => {
                self.on_progress(now, generation, &message);
                return;
            }
            Method::Cancelled => {
                if let Some(id) = message.param("requestId") {
                    let instance = self.instance_key(generation);
                    self.tell(SessionEvent::Withdrawn {
                        instance,
                        id,
                        message,
                    });
                }
                return;
            }
            Method::ToolsChanged => self.forget_list(ListKind::Tools),
            Method::PromptsChanged => self.forget_list(ListKind::Prompts),
            Method::ResourcesChanged => {
                self.forget_list(ListKind::Resources);
                self.forget_list(ListKind::Templates);
            }
            _ => {}
        }
        let related = self.related(now, exchange);
        self.tell_of(related, SessionEvent::Notification { related, message });
    }

    /// Progress is for the request whose token it names, and only while that is pending.
    fn on_progress(&mut self, now: Moment, generation: Generation, message: &Message) {
        let token = message
            .envelope()
            .params
            .and_then(|params| json::member(message.bytes(), params, "progressToken"));
        let id = token.and_then(|span| parse_id(span.of(message.bytes())));
        let key = id.and_then(|id| self.sent_as(id, generation));
        let original = key.and_then(|key| {
            let pending = self.pending.get_mut(&key)?;
            if pending.is_passing() {
                return None;
            }
            let Task::Client(request) = &pending.task else {
                return None;
            };
            let original = request.progress_token()?;
            pending.heard(now);
            Some((key, original))
        });
        let (Some(span), Some((key, original))) = (token, original) else {
            self.emit(Event::Dropped {
                generation,
                reason: "progress for nothing that is pending",
            });
            return;
        };
        let body = message.splice().replace(span, original).finish().to_bytes();
        if let Ok(message) = Message::parse(body) {
            let related = Some(key);
            self.tell_of(related, SessionEvent::Notification { related, message });
        }
    }

    /// Whether what comes on this exchange is about a request that is no client's: answered, given
    /// up, passed on to another machine, or our own.
    pub(crate) fn is_ownerless(&self, exchange: ExchangeId) -> bool {
        let aim = self.exchanges.get(&exchange).map(|exchange| exchange.aim);
        if let Some(Aim::Call(key)) = aim {
            self.pending.get(&key).is_none_or(Pending::is_internal)
        } else {
            false
        }
    }

    /// The request on whose exchange a message came, if it is still pending.
    fn related(&mut self, now: Moment, exchange: Option<ExchangeId>) -> Option<CallKey> {
        let Aim::Call(key) = self.exchanges.get(&exchange?)?.aim else {
            return None;
        };
        let pending = self.pending.get_mut(&key)?;
        pending.heard(now);
        (!pending.is_internal()).then_some(key)
    }

    fn tell_of(&mut self, related: Option<CallKey>, event: SessionEvent) {
        let session = related.map_or(self.config.session, |key| key.session);
        self.tell_session(session, event);
    }

    /// Something of the server could not be read. If it was the answer to a request, that request
    /// ran, and its result is lost.
    pub(super) fn on_garbled(
        &mut self,
        generation: Generation,
        exchange: Option<ExchangeId>,
        id: Option<&Bytes>,
        cause: &str,
        too_large: bool,
    ) {
        if !self.is_heard(generation, exchange) {
            return;
        }
        let passing = exchange
            .and_then(|exchange| self.passing_on(exchange))
            .filter(|key| {
                let pending = self.pending.get(key);
                pending.is_some_and(|pending| is_sent_to(pending, generation))
            });
        let by_id = || self.sent_as(parse_id(id?)?, generation);
        let key = passing.or_else(by_id);
        self.emit(Event::Unreadable {
            generation,
            cause: cause.into(),
        });
        let Some(key) = key else { return };
        let (kind, outcome) = if too_large {
            (FaultKind::AnswerTooLarge, Outcome::Executed)
        } else {
            (FaultKind::BadAnswer, Outcome::Unknown)
        };
        self.fail(
            key,
            crate::error::Fault::new(kind)
                .because(cause)
                .outcome(outcome),
        );
    }
}

fn is_sent_to(pending: &Pending, generation: Generation) -> bool {
    matches!(pending.place, Place::Sent { generation: with, .. } if with == generation)
}

/// Our own ids are plain integers; anything else was never ours.
pub(super) fn parse_id(raw: &[u8]) -> Option<UpstreamId> {
    std::str::from_utf8(raw).ok()?.parse().ok().map(UpstreamId)
}
