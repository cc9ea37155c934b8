//! One exchange: an HTTP request, its answer, and the report of both.
//!
//! Owns: that an exchange ends in exactly one report, or in none once it was dropped. It must not
//! know why a request is sent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use springline_proto::call::{ExchangeId, Generation};
use springline_proto::json::Pieces;
use springline_proto::message::Message;
use springline_proto::upstream::{End, Input, Purpose, Route, Stretch};

use super::answer::{Ending, at_hand, read_get, read_post, report_at_hand};
use super::body::drain;
use super::request::{Answer, Ask, request};
use super::{DeleteOutcome, Instance, Post, Wire};

/// An exchange under way.
pub(super) struct Exchange {
    pub(super) wire: Arc<Wire>,
    pub(super) instance: Arc<Instance>,
    pub(super) generation: Generation,
    pub(super) id: ExchangeId,
}

impl Exchange {
    /// Sends a message and reads its answer.
    ///
    /// One is made for each call: so that it is small, what it is made of is held once, and whatever
    /// is more than a short answer that comes in one piece is boxed.
    pub(super) fn post(self, post: Post) -> impl Future<Output = ()> {
        let (purpose, stretches) = (post.purpose, post.stretches);
        let ask = Ask {
            method: Method::POST,
            body: post.body,
            route: post.route,
            last_event_id: None,
            repeatable: post.repeatable,
            alone: false,
        };
        async move {
            // Nothing of the answer is held over a pause: the future would have room for it.
            let sent = request(&self.wire, &self.instance, &ask).await;
            let end = match at_once(&self, purpose, sent) {
                Ok(end) => end,
                Err(answer) => {
                    // The answer may be a stream of hours; the message is not kept for it.
                    drop(ask);
                    Box::pin(read_post(&self, purpose, stretches, answer)).await
                }
            };
            self.ended(end);
        }
    }

    /// Opens an event stream by GET after `delay`, from an event id if there is one.
    pub(super) async fn stream(self, from: Option<Arc<str>>, delay: Duration, route: Route) {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let ask = Ask {
            method: Method::GET,
            body: Pieces::new(),
            route,
            last_event_id: from.clone(),
            repeatable: true,
            alone: true,
        };
        let end = match request(&self.wire, &self.instance, &ask).await {
            Ok(answer) => read_get(&self, answer, from).await,
            Err(end) => end,
        };
        self.ended(end.into());
    }

    pub(super) fn minted(&self, session_id: Arc<str>) {
        self.wire.report(Input::Minted {
            generation: self.generation,
            exchange: self.id,
            session_id,
        });
    }

    pub(super) fn message(&self, message: Message) {
        self.wire.report(self.heard(message));
    }

    fn heard(&self, message: Message) -> Input {
        Input::Message {
            generation: self.generation,
            exchange: Some(self.id),
            message,
        }
    }

    pub(super) fn stretch(&self, stretch: Stretch) {
        self.wire.report(Input::Stretch {
            generation: self.generation,
            exchange: self.id,
            stretch,
        });
    }

    pub(super) fn garbled(&self, id: Option<Bytes>, cause: String, too_large: bool) {
        self.wire.report(Input::Garbled {
            generation: self.generation,
            exchange: Some(self.id),
            id,
            cause: cause.into_boxed_str(),
            too_large,
        });
    }

    /// Reports the end, unless the exchange was dropped. Its name is free before the report, since
    /// the machine may use it at once for a resumption.
    fn ended(self, Ending { end, last }: Ending) {
        let is_listed = self.instance.remove(self.id).is_some();
        let Some(sink) = self.wire.sink.upgrade() else {
            return;
        };
        let ended = Input::Ended {
            generation: self.generation,
            exchange: self.id,
            end,
        };
        match (last, is_listed) {
            (Some(message), true) => sink.inputs(self.heard(message), ended),
            (Some(message), false) => sink.input(self.heard(message)),
            (None, true) => sink.input(ended),
            (None, false) => {}
        }
    }
}

/// What came of a request, if nothing more is to be read; else its answer.
fn at_once(
    exchange: &Exchange,
    purpose: Purpose,
    sent: Result<Answer, End>,
) -> Result<Ending, Box<Answer>> {
    match sent {
        Ok(mut answer) => match at_hand(exchange, purpose, &mut answer) {
            Some(body) => Ok(report_at_hand(exchange, answer, body)),
            None => Err(Box::new(answer)),
        },
        Err(end) => Ok(end.into()),
    }
}

/// Ends the session of `route` with the server: one attempt, within the limit (2025-11-25
/// basic/transports, session management). The outcome is told, never waited for by a caller.
pub(super) async fn delete(
    wire: Arc<Wire>,
    instance: Arc<Instance>,
    generation: Generation,
    route: Route,
) {
    let ask = Ask {
        method: Method::DELETE,
        body: Pieces::new(),
        route,
        last_event_id: None,
        // A second DELETE of the same session changes nothing.
        repeatable: true,
        alone: false,
    };
    let sent = tokio::time::timeout(wire.limits.delete_timeout, request(&wire, &instance, &ask));
    let outcome = match sent.await {
        Err(_) => DeleteOutcome::TimedOut,
        Ok(Err(End::Refused(refusal))) => DeleteOutcome::Refused(refusal.status),
        Ok(Err(End::NotSent { cause } | End::Broken { cause })) => DeleteOutcome::Failed(cause),
        Ok(Err(other)) => DeleteOutcome::Failed(format!("{other:?}").into_boxed_str()),
        Ok(Ok(mut answer)) => {
            let status = answer.status;
            if drain(&mut answer.body).await {
                answer.after.give_back(&wire, answer.body);
            }
            if status.is_success() {
                DeleteOutcome::Done
            } else {
                DeleteOutcome::Refused(status.as_u16())
            }
        }
    };
    tracing::info!(server = %wire.server, %generation, %outcome, "ended a session of a server");
    if let Some(sink) = wire.sink.upgrade() {
        sink.deleted(generation, outcome);
    }
}
