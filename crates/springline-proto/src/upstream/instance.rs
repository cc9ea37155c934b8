//! One instance of the server: what it negotiated, and whether it takes requests.

use std::time::Duration;

use crate::call::{ExchangeId, Generation, Moment};
use crate::upstream::listen::{Listen, Resumption};
use crate::upstream::pending::Place;
use crate::upstream::port::{Event, Output, Route};
use crate::upstream::{SessionEvent, Transport, Upstream};

/// Where an instance stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Standing {
    /// Starting, or in service.
    Live,
    /// Takes nothing new, finishes what it has, then is ended; the reason is for the operator.
    Retired(&'static str),
    /// The server forgot the session; exchanges under way still end by themselves.
    Forgotten,
    /// A handshake that nobody waits for any more; lives only to learn what it mints, so that
    /// this can be ended.
    Abandoned,
    /// Done with, but for notifications and answers of the client that are still on their way over
    /// HTTP: it takes nothing, says nothing, and is ended when these have arrived.
    Ending {
        /// Whether its session is ended with it.
        delete: bool,
        /// For the operator.
        reason: &'static str,
    },
}

/// How long an instance that is done with waits for notifications that are on their way.
const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// The right of one request to turn a 401 or 403 on a resumed session into a new handshake. It
/// belongs to the client's request that started first, and only its success, or a recovery, spends
/// it (DESIGN.md section 5).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chance {
    pub(super) owner: Option<crate::call::CallKey>,
}

/// One instance.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) standing: Standing,
    pub(super) route: Route,
    /// Whether it took the place of one that was lost.
    pub(super) recovery: bool,
    /// Whether it ever answered a request: a loss after that is not a failed recovery.
    pub(super) answered: bool,
    pub(super) listen: Listen,
    pub(super) resumption: Resumption,
    /// What it announced; for lists, logging and subscriptions.
    pub(super) capabilities: Option<Box<[u8]>>,
    /// The raw `result` of its `initialize`, where that is kept.
    pub(super) answer: Option<Box<bytes::Bytes>>,
    /// Bound of an abandoned handshake, or of the last words.
    pub(super) deadline: Option<Moment>,
    /// The one-shot of a session that was resumed after a restart of the gateway.
    pub(super) chance: Option<Chance>,
}

impl Instance {
    pub(super) fn new(recovery: bool) -> Self {
        Self {
            standing: Standing::Live,
            route: Route::default(),
            recovery,
            answered: false,
            listen: Listen::default(),
            resumption: Resumption::default(),
            capabilities: None,
            answer: None,
            deadline: None,
            chance: None,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Whether it announced this capability.
    pub(super) fn has_capability(&self, name: &str) -> bool {
        self.capabilities.as_ref().is_some_and(|raw| {
            let whole = crate::json::Span::whole(raw);
            crate::json::member(raw, whole, name).is_some()
        })
    }
}

impl Upstream {
    /// Ends an instance: its exchanges are forgotten, and nothing that it still says is heard (I2).
    pub(super) fn end_instance(
        &mut self,
        generation: Generation,
        delete: bool,
        reason: &'static str,
    ) {
        if delete {
            self.persist_end(generation);
        }
        let Some(instance) = self.instances.remove(&generation) else {
            return;
        };
        self.forget_exchanges(generation);
        let delete = delete && instance.route.session_id.is_some();
        self.out.push_back(Output::End {
            generation,
            delete,
            route: instance.route,
        });
        let instance = self.instance_key(generation);
        self.tell(SessionEvent::InstanceGone { instance });
        self.emit(Event::Ended { generation, reason });
    }

    /// Ends an instance that is done with, but lets notifications that are on their way over HTTP
    /// arrive first, for a bounded time. Everything else of it is dropped at once.
    pub(super) fn finish_instance(
        &mut self,
        now: Moment,
        generation: Generation,
        delete: bool,
        reason: &'static str,
    ) {
        if self.config.transport == Transport::Stdio || !self.has_last_words(generation) {
            self.end_instance(generation, delete, reason);
            return;
        }
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        instance.standing = Standing::Ending { delete, reason };
        instance.deadline = Some(now.after(LAST_WORDS_MAX));
        instance.listen = Listen::Absent;
        let out = &mut self.out;
        self.exchanges.retain(|exchange, held| {
            let stays = held.generation != generation || held.aim.is_oneway();
            if !stays {
                out.push_back(Output::Abort {
                    generation,
                    exchange: *exchange,
                });
            }
            stays
        });
    }

    /// Whether something that awaits no answer is on its way to this instance.
    fn has_last_words(&self, generation: Generation) -> bool {
        self.exchanges
            .values()
            .any(|held| held.generation == generation && held.aim.is_oneway())
    }

    /// An exchange ended: perhaps it was the last one that an instance waited for.
    pub(super) fn end_if_said(&mut self, generation: Generation) {
        let standing = self.instances.get(&generation).map(|held| held.standing);
        if let Some(Standing::Ending { delete, reason }) = standing
            && !self.has_last_words(generation)
        {
            self.end_instance(generation, delete, reason);
        }
    }

    /// Whether this instance takes and says nothing any more.
    pub(super) fn is_ending(&self, generation: Generation) -> bool {
        self.instances
            .get(&generation)
            .is_some_and(|held| matches!(held.standing, Standing::Ending { .. }))
    }

    pub(super) fn forget_exchanges(&mut self, generation: Generation) {
        self.exchanges
            .retain(|_, exchange| exchange.generation != generation);
    }

    /// Whether a request is still with this instance.
    fn is_busy(&self, generation: Generation) -> bool {
        self.pending.values().any(
            |pending| matches!(pending.place, Place::Sent { generation: with, .. } if with == generation),
        )
    }

    /// Ends retired and forgotten instances that nothing is with any more.
    pub(super) fn end_retired(&mut self, now: Moment) {
        if self.instances.len() <= 1
            && self
                .instances
                .values()
                .all(|instance| instance.standing == Standing::Live)
        {
            return;
        }
        let done: Vec<(Generation, Standing)> = self
            .instances
            .iter()
            .filter(|(generation, instance)| {
                matches!(
                    instance.standing,
                    Standing::Retired(_) | Standing::Forgotten
                ) && !self.is_busy(**generation)
            })
            .map(|(generation, instance)| (*generation, instance.standing))
            .collect();
        for (generation, standing) in done {
            match standing {
                Standing::Retired(reason) => self.finish_instance(now, generation, true, reason),
                // The server does not know the session any more: nothing to DELETE.
                Standing::Live
                | Standing::Forgotten
                | Standing::Abandoned
                | Standing::Ending { .. } => {
                    self.end_instance(generation, false, "session lost");
                }
            }
        }
    }

    /// The instance ended by itself, or its session is gone: it leaves service. The pause before
    /// the next attempt grows if it was a recovery that never served.
    pub(super) fn leave_service(&mut self, now: Moment, generation: Generation) {
        if !matches!(self.phase, crate::upstream::Phase::Ready(ready) if ready == generation) {
            return;
        }
        self.phase = crate::upstream::Phase::Idle;
        let futile = self
            .instances
            .get(&generation)
            .is_some_and(|instance| instance.recovery && !instance.answered);
        if futile {
            self.backoff.failed(now, &self.config.settings);
        }
    }

    /// When a child that nobody uses is ended.
    pub(super) fn idle_deadline(&self) -> Option<Moment> {
        let crate::upstream::Phase::Ready(_) = self.phase else {
            return None;
        };
        if !self.pending.is_empty() {
            return None;
        }
        let settings = &self.config.settings;
        let idle = settings.idle_timeout.map(|span| self.last_use.after(span));
        let detached = match (self.config.transport, self.detached_at) {
            (Transport::Stdio, Some(since)) => {
                let kept = if self.used {
                    settings.detached_idle
                } else {
                    settings.unused_idle.min(settings.detached_idle)
                };
                Some(since.max(self.last_use).after(kept))
            }
            _ => None,
        };
        match (idle, detached) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(super) fn end_idle(&mut self, now: Moment) {
        let due = self.idle_deadline().is_some_and(|deadline| deadline <= now);
        if let (true, crate::upstream::Phase::Ready(generation)) = (due, &self.phase) {
            let generation = *generation;
            self.retire(generation, "idle");
            self.let_go("nobody used it for a while, so it was ended");
        }
    }

    /// Whether a message of this exchange, or of this pipe, may be heard at all (I2).
    pub(super) fn is_heard(&self, generation: Generation, exchange: Option<ExchangeId>) -> bool {
        self.instances.contains_key(&generation)
            && exchange.is_none_or(|exchange| {
                self.exchanges
                    .get(&exchange)
                    .is_some_and(|held| held.generation == generation)
            })
    }
}
