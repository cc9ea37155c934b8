//! What the client sends: requests, notifications and answers.
//!
//! Owns the table of pending requests (I1, I9): a request enters it once and leaves it with its one
//! answer. Must not know how an upstream answers.

use std::sync::Arc;

use bytes::Bytes;

use super::client::Level;
use super::passing::Passing;
use super::port::{Accept, Downstream, Endpoint, Mark};
use super::stream::{Outlet, Reader};
use super::table::{Effect, Pending};
use super::{Phase, Session};
use crate::call::{ClientExchange, Moment};
use crate::error::{Fault, FaultKind, error_response, plain_error};
use crate::json::{self, Pieces, Snippet};
use crate::message::{Kind, Message, ParseError};
use crate::method::{ListKind, Method};
use crate::settings::{SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX};
use crate::upstream;

impl Session {
    pub(super) fn on_message(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        message: Message,
    ) {
        match message.kind() {
            Kind::Request => self.on_request(now, exchange, accept, message),
            Kind::Notification => {
                self.on_client_notification(now, message);
                self.accept(exchange);
            }
            Kind::Result | Kind::Error => {
                self.on_client_answer(message);
                self.accept(exchange);
            }
        }
    }

    /// A line that is no message. An error under the id of a pending request would be taken for
    /// its answer, so there it goes without.
    pub(super) fn on_malformed(&mut self, _now: Moment, error: &ParseError) {
        let id = error.id.as_ref();
        let id = id.filter(|id| self.pending.by_id(id).is_none());
        let body = plain_error(error.code(), &error.to_string());
        self.say(None, error_response(id.map(Bytes::as_ref), &body));
    }

    fn on_request(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        message: Message,
    ) {
        let Some(id) = message.raw_id() else {
            return;
        };
        if self.pending.by_id(id).is_some() {
            self.refuse_duplicate(exchange, id);
            return;
        }
        let method = Method::of(&message);
        if method == Method::Ping {
            self.say(exchange, result_response(id, b"{}"));
            return;
        }
        if method != Method::Initialize && self.phase == Phase::Fresh {
            let error = plain_error(-32600, "the session is not open: send initialize first");
            self.say(exchange, error_response(Some(id), &error));
            return;
        }
        if method == Method::ToolsCall && message.envelope().name_twice {
            // The replay class would be that of one tool, and the server might run the other (I4).
            let error = plain_error(-32602, "the member \"name\" stands twice in params");
            self.say(exchange, error_response(Some(id), &error));
            return;
        }
        self.was_used |= method != Method::Initialize;
        if self.pending.len() >= self.settings.pending_max {
            let fault = self.placed(Fault::new(FaultKind::TooManyPending));
            self.say(exchange, fault.response(id));
            return;
        }
        if method == Method::Initialize {
            self.on_initialize(now, exchange, accept, id, &message);
            return;
        }
        let Endpoint::One(server) = &self.endpoint else {
            self.on_request_all(now, exchange, accept, id, method, &message);
            return;
        };
        let server = Arc::clone(server);
        let effect = self.effect_of(method, &message);
        let number = self.admit(now, exchange, accept, id, method);
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.server = Some(Arc::clone(&server));
            pending.effect = effect;
        }
        let stretches = self.may_pass(number);
        let key = self.call_key(number);
        let call = upstream::Input::Call {
            key,
            message,
            stretches,
        };
        self.tell(server, call);
    }

    /// Enters a request in the table.
    pub(super) fn admit(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        id: &[u8],
        method: Method,
    ) -> u64 {
        let number = self.next_number();
        let is_call = method != Method::Initialize;
        let frame = self.socket.taken();
        let outlet = match exchange {
            Some(exchange) => Outlet::Post(exchange, accept),
            None if self.downstream == Downstream::Socket => Outlet::Socket {
                call: is_call.then_some(number),
                frame,
            },
            None => Outlet::Pipe,
        };
        // The answer to `initialize` never carries an event id.
        let may_stream = exchange.is_some() && accept == Accept::Both && is_call;
        let pending = Pending {
            id: Snippet::of(id),
            holds_id: true,
            method,
            server: None,
            outlet,
            passing: Passing::No,
            decide_at: may_stream.then(|| now.after(self.settings.stream_after)),
            effect: Effect::None,
        };
        self.pending.insert(number, pending);
        if is_call {
            self.mark(number, Mark::Accepted { frame });
        }
        number
    }

    /// Takes a request out of the table; whoever calls this gives the answer.
    pub(super) fn settle(&mut self, number: u64) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        if let Outlet::Stream(_, Some(Reader::Get(connection))) = pending.outlet {
            self.resumed.remove(&connection);
        }
        // What goes on a stream or the socket is marked with its answer.
        let is_kept = matches!(pending.outlet, Outlet::Stream(..) | Outlet::Socket { .. });
        if !is_kept && pending.method != Method::Initialize {
            self.mark(number, Mark::Settled);
        }
        Some(pending)
    }

    /// An error on the endpoint of one server is about that one, unless it says another.
    pub(super) fn placed(&self, fault: Fault) -> Fault {
        let server = self.endpoint.server().filter(|_| fault.server.is_none());
        let server = server.cloned();
        fault.at(server.as_ref())
    }

    /// Answers a pending request with an error of ours.
    pub(super) fn fail(&mut self, now: Moment, number: u64, fault: &Fault) {
        if let Some(pending) = self.settle(number) {
            self.undo(&pending.effect);
            let outlet = self.cut(&pending);
            let fault = match &fault.server {
                Some(_) => fault.clone(),
                None => self.placed(fault.clone().at(pending.server.as_ref())),
            };
            if matches!(outlet, Outlet::Stream(..)) {
                self.faults.note(number, &fault);
            }
            let body = fault.response(pending.id.as_slice());
            self.give(now, &outlet, body.into());
        }
    }

    /// Answers a pending request with a JSON-RPC error of the protocol's own.
    pub(super) fn reject(&mut self, now: Moment, number: u64, error: &str) {
        if let Some(pending) = self.settle(number) {
            let body = error_response(Some(pending.id.as_slice()), error);
            self.give(now, &pending.outlet, body.into());
        }
    }

    fn refuse_duplicate(&mut self, exchange: Option<ClientExchange>, id: &[u8]) {
        let error = plain_error(-32600, "a request with this id is pending");
        match exchange {
            Some(exchange) => {
                let body = error_response(Some(id), &error);
                self.put_exchange(exchange, super::Part::Refuse { status: 400, body });
            }
            // With the id it would be an answer to the first.
            None => self.say(None, error_response(None, &error)),
        }
    }

    /// What a success of this request would change; a subscription counts from now.
    pub(super) fn effect_of(&mut self, method: Method, message: &Message) -> Effect {
        let uri = || {
            let raw = message.param("uri")?;
            Some(json::string(&raw)?.into_owned().into_boxed_str())
        };
        if let Some(kind) = ListKind::of(method) {
            return if message.param("cursor").is_none() {
                Effect::Listed(kind)
            } else {
                Effect::None
            };
        }
        if method == Method::SetLevel {
            let level = message.param("level").and_then(|raw| Level::parse(&raw));
            return level.map_or(Effect::None, Effect::Level);
        }
        if method == Method::Unsubscribe {
            return uri().map_or(Effect::None, Effect::Unsubscribed);
        }
        if method == Method::Subscribe {
            return uri().map_or(Effect::None, |uri| self.subscribe(uri));
        }
        Effect::None
    }

    fn subscribe(&mut self, uri: Box<str>) -> Effect {
        let known = &mut self.subscriptions;
        if known.uris.contains(&uri) && !known.asked.contains(&uri) {
            // A failure must not end the subscription that is there.
            return Effect::None;
        }
        let held: usize = known.uris.iter().map(|uri| uri.len()).sum();
        if known.uris.len() >= SUBSCRIPTIONS_MAX
            || held.saturating_add(uri.len()) > SUBSCRIPTION_BYTES_MAX
        {
            known.is_full = true;
            return Effect::None;
        }
        known.uris.insert(uri.clone());
        known.asked.insert(uri.clone());
        Effect::Subscribed(uri)
    }

    /// The request failed.
    pub(super) fn undo(&mut self, effect: &Effect) {
        // Another request for the same may have succeeded meanwhile.
        if let Effect::Subscribed(uri) = effect
            && let Some(held) = self.subscriptions.held()
            && held.asked.remove(uri)
        {
            held.uris.remove(uri);
        }
    }

    fn on_client_notification(&mut self, now: Moment, message: Message) {
        let method = Method::of(&message);
        if method == Method::Cancelled {
            self.on_cancelled(now, message);
            return;
        }
        if method == Method::Initialized {
            // The upstream machine sends one of its own.
            self.initialized = self.phase != Phase::Fresh;
            self.persist();
            self.go_on();
            self.flush_held(now);
            return;
        }
        if self.phase == Phase::Fresh {
            return;
        }
        if let Endpoint::One(server) = &self.endpoint {
            let server = Arc::clone(server);
            self.tell(server, upstream::Input::Notify { message });
        } else {
            self.notify_all(method, &message);
        }
    }

    /// The client takes a request back. The answer, should it still come, is dropped; `initialize`
    /// cannot be cancelled (2025-11-25 basic/utilities/cancellation).
    fn on_cancelled(&mut self, now: Moment, message: Message) {
        let number = message
            .param("requestId")
            .and_then(|id| self.pending.by_id(&id));
        let Some(number) = number else {
            return;
        };
        let opens = |pending: &Pending| pending.method == Method::Initialize;
        if self.pending.get(&number).is_none_or(opens) {
            return;
        }
        let Some(pending) = self.settle(number) else {
            return;
        };
        self.drop_asks_of(number);
        let outlet = self.cut(&pending);
        self.end_quietly(now, &outlet);
        if let Some(server) = pending.server {
            let key = self.call_key(number);
            self.tell(
                server,
                upstream::Input::Cancel {
                    key,
                    message: Some(message),
                },
            );
        }
    }

    pub(super) fn is_pipe(&self) -> bool {
        self.downstream != Downstream::Http
    }
}

/// A whole JSON-RPC answer with a ready `result`.
pub(super) fn result_response(id: &[u8], result: &[u8]) -> Pieces {
    let mut head = Vec::with_capacity(id.len() + 40);
    head.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    head.extend_from_slice(id);
    head.extend_from_slice(br#","result":"#);
    let mut pieces = Pieces::from(Bytes::from(head));
    pieces.push(Bytes::copy_from_slice(result));
    pieces.push(Bytes::from_static(b"}"));
    pieces
}
