//! The standalone GET stream: opened in the background, reopened with a pause, never a verdict on
//! the session (2025-11-25 basic/transports, listening for messages).

use std::sync::Arc;
use std::time::Duration;

use crate::call::{ExchangeId, Generation, Moment};
use crate::upstream::exchange::{Aim, Exchange};
use crate::upstream::port::{End, Output};
use crate::upstream::{Phase, Transport, Upstream};

/// First and last pause before the stream is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The shortest pause that a server's `retry` gets.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(100);

/// The GET stream of one instance.
#[derive(Clone, Debug, Default)]
pub(super) enum Listen {
    /// Not open.
    #[default]
    Closed,
    /// Open, or being opened after its pause.
    Open(ExchangeId),
    /// Refused for its credentials; these are being read again.
    Unauthorized,
    /// The server has none.
    Absent,
}

/// What is kept from one GET stream to the next of an instance.
#[derive(Clone, Debug, Default)]
pub(super) struct Resumption {
    last_event_id: Option<Arc<str>>,
    failures: u32,
}

impl Upstream {
    /// Whether somebody could want what the server says by itself.
    fn wants_listen(&self, now: Moment) -> bool {
        self.attached
            || self.restore.has_subscriptions()
            || now < self.last_use.after(self.config.settings.listen_linger)
    }

    pub(super) fn listen_if_wanted(&mut self, now: Moment, generation: Generation) {
        let has_stream = self.config.transport == Transport::Http
            && self
                .route(generation)
                .version
                .is_some_and(crate::version::Version::has_get_stream);
        let closed = self
            .instances
            .get(&generation)
            .is_some_and(|instance| matches!(instance.listen, Listen::Closed));
        if has_stream && closed && self.wants_listen(now) {
            self.open_listen(generation, Duration::ZERO, None);
        }
    }

    fn open_listen(&mut self, generation: Generation, delay: Duration, from: Option<Arc<str>>) {
        let exchange = self.exchange_next.take();
        let route = self.route(generation);
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        instance.listen = Listen::Open(exchange);
        self.exchanges
            .insert(exchange, Exchange::new(generation, Aim::Listen));
        self.out.push_back(Output::Listen {
            generation,
            exchange,
            last_event_id: from,
            delay,
            route,
        });
    }

    pub(super) fn on_listen_ended(&mut self, now: Moment, generation: Generation, end: End) {
        let wanted = self.wants_listen(now)
            && matches!(self.phase, Phase::Ready(ready) if ready == generation);
        let Some(instance) = self.instances.get_mut(&generation) else {
            return;
        };
        instance.listen = Listen::Closed;
        let resumption = &mut instance.resumption;
        let pause = match end {
            // A 404 may mean a lost session or a server without a stream: the next POST tells.
            End::Refused(refusal) if matches!(refusal.status, 401 | 403) => {
                instance.listen = Listen::Unauthorized;
                self.refresh_credentials();
                return;
            }
            End::Refused(refusal) if refusal.status < 500 && refusal.status != 429 => {
                instance.listen = Listen::Absent;
                return;
            }
            End::StreamEnded {
                last_event_id,
                retry,
            } => {
                resumption.failures = 0;
                if last_event_id.is_some() {
                    resumption.last_event_id = last_event_id;
                }
                // A server that says 0 and closes at once would be asked without end.
                retry.map_or(PAUSE.0, |retry| retry.max(RETRY_MIN))
            }
            End::Accepted
            | End::Complete
            | End::NotSent { .. }
            | End::Broken { .. }
            | End::Unreadable { .. }
            | End::Refused(_) => {
                resumption.failures = resumption.failures.saturating_add(1);
                PAUSE
                    .0
                    .saturating_mul(1 << resumption.failures.min(16))
                    .min(PAUSE.1)
            }
        };
        let from = resumption.last_event_id.clone();
        if wanted {
            self.open_listen(generation, pause, from);
        }
    }

    /// Credentials were read again.
    pub(super) fn listen_again(&mut self, changed: bool) {
        for instance in self.instances.values_mut() {
            if matches!(instance.listen, Listen::Unauthorized) {
                instance.listen = if changed {
                    Listen::Closed
                } else {
                    Listen::Absent
                };
            }
        }
    }

    fn open_listens(&self) -> impl Iterator<Item = (Generation, ExchangeId)> {
        self.instances
            .iter()
            .filter_map(|(generation, instance)| match instance.listen {
                Listen::Open(exchange) => Some((*generation, exchange)),
                Listen::Closed | Listen::Unauthorized | Listen::Absent => None,
            })
    }

    /// When an open stream that nobody is attached to is dropped.
    pub(super) fn linger_deadline(&self) -> Option<Moment> {
        let lingers = !self.attached
            && !self.restore.has_subscriptions()
            && self.open_listens().next().is_some();
        lingers.then(|| self.last_use.after(self.config.settings.listen_linger))
    }

    pub(super) fn stop_lingering(&mut self, now: Moment) {
        if self.wants_listen(now) {
            return;
        }
        let open: Vec<(Generation, ExchangeId)> = self.open_listens().collect();
        for (generation, exchange) in open {
            self.exchanges.remove(&exchange);
            if let Some(instance) = self.instances.get_mut(&generation) {
                instance.listen = Listen::Closed;
            }
            self.out.push_back(Output::Abort {
                generation,
                exchange,
            });
        }
    }
}
