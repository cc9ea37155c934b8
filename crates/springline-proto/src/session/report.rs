//! What the upstreams report.
//!
//! Owns the way of an answer back to the request that it belongs to. Must not know instances.

use std::sync::Arc;

use bytes::Bytes;

use super::Session;
use super::port::{Endpoint, Known, Output};
use super::table::Effect;
use crate::aggregate;
use crate::call::{CallKey, Moment};
use crate::error::Fault;
use crate::json::{self, Span};
use crate::message::{Kind, Message};
use crate::method::{ListKind, Method};
use crate::upstream::SessionEvent;

impl Session {
    pub(super) fn on_upstream(&mut self, now: Moment, server: &Arc<str>, event: SessionEvent) {
        match event {
            SessionEvent::Started { key, result } => {
                if let Some(number) = self.own(key) {
                    self.on_started(now, server, number, &result);
                }
            }
            SessionEvent::Answer { key, message } => {
                if let Some(number) = self.own(key) {
                    self.on_answer(now, server, number, &message);
                }
            }
            SessionEvent::Passing { key, passing } => {
                if let Some(number) = self.own(key) {
                    self.on_passing(now, server, number, passing);
                }
            }
            SessionEvent::Failed {
                key,
                fault,
                server_error,
            } => {
                if let Some(number) = self.own(key) {
                    self.on_failed(now, number, &fault, server_error.as_ref());
                }
            }
            SessionEvent::Notification { related, message } => {
                let related = related.and_then(|key| self.own(key));
                self.on_notification(now, server, related, &message);
            }
            SessionEvent::Request {
                related,
                instance,
                message,
            } => {
                let related = related.and_then(|key| self.own(key));
                self.on_ask(now, server, related, instance, message);
            }
            SessionEvent::Withdrawn {
                instance,
                id,
                message,
            } => {
                self.on_withdrawn(now, server, instance, &id, &message);
            }
            SessionEvent::InstanceGone { instance } => {
                self.on_instance_gone(now, server, instance);
            }
            SessionEvent::Renewed { result } => self.on_renewed(now, server, &result),
            SessionEvent::StateLost { reason } => self.on_state_lost(now, server, &reason),
            SessionEvent::ListChanged(kind) => self.on_list_changed(now, server, kind),
            SessionEvent::Listed { kind, pages } => {
                self.learn_list(now, server, kind, &pages);
                self.remember_list(server, kind, pages);
            }
        }
    }

    /// The number of a call of this session; another's is not ours to hear (I9).
    fn own(&self, key: CallKey) -> Option<u64> {
        (key.session == self.key).then_some(key.number)
    }

    fn on_answer(&mut self, now: Moment, server: &Arc<str>, number: u64, message: &Message) {
        let asked = self
            .pending
            .get(&number)
            .and_then(|pending| pending.server.as_ref());
        let settled = if asked == Some(server) {
            self.settle(number)
        } else {
            None
        };
        let Some(pending) = settled else {
            // Ours, or cancelled meanwhile.
            self.on_page(now, server, number, message);
            return;
        };
        if message.kind() == Kind::Result {
            self.apply(server, &pending.effect, message);
        } else {
            self.undo(&pending.effect);
        }
        let body = match self.endpoint {
            Endpoint::One(_) => message.with_id(pending.id.as_slice()),
            Endpoint::All => {
                aggregate::answer(server, pending.method, message, pending.id.as_slice())
            }
        };
        self.give(now, &pending.outlet, body);
    }

    fn on_failed(&mut self, now: Moment, number: u64, fault: &Fault, server_error: Option<&Bytes>) {
        let opens = self
            .pending
            .get(&number)
            .is_some_and(|pending| pending.method == Method::Initialize);
        if opens {
            self.on_start_failed(now, number, fault, server_error);
        } else if !self.on_one_failed(number) {
            self.on_page_failed(now, number);
            self.fail(now, number, fault);
        }
    }

    fn apply(&mut self, server: &Arc<str>, effect: &Effect, message: &Message) {
        match effect {
            Effect::None => {}
            Effect::Subscribed(uri) => {
                self.subscriptions.asked.remove(uri);
                self.subscriptions.uris.insert(uri.clone());
                self.persist();
            }
            Effect::Level(level) => {
                self.level = Some(*level);
                self.persist();
            }
            Effect::Unsubscribed(uri) => {
                if let Some(held) = self.subscriptions.held() {
                    held.uris.remove(uri);
                    held.asked.remove(uri);
                }
                self.persist();
            }
            Effect::Listed(kind) => {
                let Some(result) = message.result() else {
                    return;
                };
                if json::member(&result, Span::whole(&result), "nextCursor").is_none() {
                    // A copy, so that not the whole message is kept.
                    let page = Bytes::copy_from_slice(&result);
                    self.remember_list(server, *kind, vec![page]);
                }
            }
        }
    }

    pub(super) fn remember_list(&mut self, server: &Arc<str>, kind: ListKind, pages: Vec<Bytes>) {
        let what = Known::List(kind, pages);
        self.out.push_back(Output::Remember {
            server: Arc::clone(server),
            what,
        });
    }
}
