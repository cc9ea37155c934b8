//! What the server says, and which session hears it.

use std::sync::Arc;

use bytes::Bytes;

use super::Shared;
use crate::call::{CallKey, InstanceKey, Moment, SessionKey};
use crate::error::{Fault, FaultKind};
use crate::json;
use crate::message::{Kind, Message};
use crate::method::{ListKind, Method};
use crate::upstream::{Binding, Input, Passing, SessionEvent};

/// Who is asked something.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) binding: Binding,
    /// The progress token that the server gave, raw.
    pub(super) token: Option<Bytes>,
}

impl Shared {
    /// The machine tells a session, or all that share it.
    pub(super) fn on_event(&mut self, now: Moment, _session: SessionKey, event: SessionEvent) {
        match event {
            SessionEvent::Started { key, result } => {
                self.result = Some(result.clone());
                self.tell_caller(key, SessionEvent::Started { key, result });
            }
            SessionEvent::Answer { key, message } => {
                let success = message.kind() == Kind::Result;
                self.tell_caller(key, SessionEvent::Answer { key, message });
                self.end_wish(now, key, success);
            }
            SessionEvent::Passing { key, passing } => self.on_passing(key, passing),
            SessionEvent::Failed {
                key,
                mut fault,
                server_error,
            } => {
                if let Some(name) = self.calls.get(&key) {
                    fault = fault.of(name);
                }
                self.tell_caller(
                    key,
                    SessionEvent::Failed {
                        key,
                        fault,
                        server_error,
                    },
                );
                self.end_wish(now, key, false);
            }
            SessionEvent::Notification { related, message } => {
                self.on_notification(related, message);
            }
            SessionEvent::Request {
                related,
                instance,
                message,
            } => self.on_question(now, related, instance, message),
            SessionEvent::Withdrawn {
                instance,
                id,
                message,
            } => {
                if let Some(asked) = self.asks.remove(&(instance, id.clone())) {
                    self.tell(
                        &asked.binding,
                        SessionEvent::Withdrawn {
                            instance,
                            id,
                            message,
                        },
                    );
                }
            }
            SessionEvent::InstanceGone { instance } => self.on_instance_gone(instance),
            common @ (SessionEvent::Renewed { .. }
            | SessionEvent::StateLost { .. }
            | SessionEvent::ListChanged(_)
            | SessionEvent::Listed { .. }) => {
                if let SessionEvent::Renewed { result } = &common {
                    self.result = Some(result.clone());
                }
                self.tell_all(None, |_| common.clone());
            }
        }
    }

    /// Only calls that change nothing here have answers that pass.
    fn on_passing(&mut self, key: CallKey, passing: Passing) {
        let ends = matches!(passing, Passing::End);
        let event = SessionEvent::Passing { key, passing };
        if ends {
            self.tell_caller(key, event);
        } else if let Some(binding) = self.caller(key) {
            self.tell(&binding, event);
        }
    }

    fn tell_all(
        &mut self,
        related: Option<CallKey>,
        event: impl Fn(Option<CallKey>) -> SessionEvent,
    ) {
        let of_call = related.and_then(|key| self.caller(key));
        let all: Vec<Binding> = self
            .bindings
            .iter()
            .filter(|(_, bound)| !bound.parting)
            .map(|(binding, _)| binding.clone())
            .collect();
        for binding in all {
            let own = related.filter(|_| of_call.as_ref() == Some(&binding));
            self.tell(&binding, event(own));
        }
    }

    /// Whose call this is; a request of our own is nobody's.
    fn caller(&self, key: CallKey) -> Option<Binding> {
        let server = Arc::clone(self.calls.get(&key)?);
        Some(Binding {
            session: key.session,
            server,
        })
    }

    /// The one that has calls in flight, if there is exactly one. What came on the exchange of a
    /// request that is no client's any more is not about its calls (I9).
    fn only_caller(&self) -> Option<Binding> {
        if self.is_ownerless {
            return None;
        }
        let mut callers = self.machine.in_flight().filter_map(|key| self.caller(key));
        let first = callers.next()?;
        callers.all(|other| other == first).then_some(first)
    }

    fn on_notification(&mut self, related: Option<CallKey>, message: Message) {
        let method = Method::of(&message);
        let related = related.filter(|key| key.session != SessionKey::SHARED);
        let is_list = ListKind::ALL
            .into_iter()
            .any(|kind| kind.changed() == method);
        if is_list {
            self.tell_all(related, |related| SessionEvent::Notification {
                related,
                message: message.clone(),
            });
        } else if method == Method::ResourceUpdated {
            self.on_updated(related, &message);
        } else {
            let caller = match related {
                Some(key) => self.caller(key),
                None => self.only_caller(),
            };
            match caller {
                Some(binding) => {
                    self.tell(&binding, SessionEvent::Notification { related, message });
                }
                None => self.dropped("a shared server's notification that is nobody's"),
            }
        }
    }

    /// To those that subscribed to the resource, or to one that contains it (2025-11-25
    /// server/resources: an update may name a sub-resource).
    fn on_updated(&mut self, related: Option<CallKey>, message: &Message) {
        let raw = message.param("uri").unwrap_or_default();
        let Some(uri) = json::string(&raw) else {
            return;
        };
        let of_call = related.and_then(|key| self.caller(key));
        let mut all: Vec<Binding> = self
            .holders
            .iter()
            .filter(|(held, _)| uri.starts_with(&***held))
            .flat_map(|(_, holders)| holders.iter().cloned())
            .collect();
        all.sort_unstable();
        all.dedup();
        for binding in all {
            let related = related.filter(|_| of_call.as_ref() == Some(&binding));
            let message = message.clone();
            self.tell(&binding, SessionEvent::Notification { related, message });
        }
    }

    fn on_question(
        &mut self,
        now: Moment,
        related: Option<CallKey>,
        instance: InstanceKey,
        message: Message,
    ) {
        let Some(id) = message.id() else { return };
        let related = related.filter(|key| key.session != SessionKey::SHARED);
        let caller = match related {
            Some(key) => self.caller(key),
            None => self.only_caller(),
        };
        let Some(binding) = caller else {
            self.dropped("a shared server's question that is nobody's");
            self.refuse(now, instance, id, "it belongs to no single session");
            return;
        };
        // Copies, so that not the whole question is kept.
        let asked = Asked {
            binding: binding.clone(),
            token: message
                .progress_token()
                .map(|token| Bytes::copy_from_slice(&token)),
        };
        self.asks
            .insert((instance, Bytes::copy_from_slice(&id)), asked);
        self.tell(
            &binding,
            SessionEvent::Request {
                related,
                instance,
                message,
            },
        );
    }

    fn refuse(&mut self, now: Moment, instance: InstanceKey, id: Bytes, why: &str) {
        let body = Fault::new(FaultKind::ClientUnreachable)
            .because(why)
            .response(&id);
        if let Ok(message) = Message::parse(body) {
            self.machine.handle(
                now,
                Input::Reply {
                    instance,
                    id,
                    message,
                },
            );
        }
    }

    fn on_instance_gone(&mut self, instance: InstanceKey) {
        let mut asked = Vec::new();
        self.asks.retain(|(of, _), held| {
            let stays = *of != instance;
            if !stays {
                asked.push(held.binding.clone());
            }
            stays
        });
        asked.sort_unstable();
        asked.dedup();
        for binding in asked {
            self.tell(&binding, SessionEvent::InstanceGone { instance });
        }
    }

    /// The session will not answer what it was asked.
    pub(super) fn answer_asks_of(&mut self, now: Moment, binding: &Binding) {
        let open: Vec<(InstanceKey, Bytes)> = self
            .asks
            .iter()
            .filter(|(_, asked)| asked.binding == *binding)
            .map(|(place, _)| place.clone())
            .collect();
        for place in open {
            self.asks.remove(&place);
            let (instance, id) = place;
            self.refuse(now, instance, id, "its session is over");
        }
    }
}
