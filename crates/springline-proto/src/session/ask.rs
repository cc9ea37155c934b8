//! What servers ask of the client: roots, sampling, elicitation and the like.
//!
//! Owns the ids under which the client is asked: they are ours, so that an answer can only go to
//! who asked (I9). Must not know the clocks of calls: it only says when a question begins and ends.

use std::sync::Arc;

use bytes::Bytes;

use super::{Endpoint, Session};
use crate::aggregate;
use crate::call::{InstanceKey, Moment};
use crate::error::{Fault, FaultKind, Outcome, error_response, plain_error};
use crate::json::Pieces;
use crate::message::Message;
use crate::method::Method;
use crate::upstream;

/// A request of a server that the client has not answered.
pub(super) struct Ask {
    server: Arc<str>,
    instance: InstanceKey,
    /// The server's own id, raw.
    id: Bytes,
    /// The progress token that the server gave, raw.
    token: Option<Bytes>,
    /// The call that it belongs to.
    call: Option<u64>,
    state: State,
}

enum State {
    /// No way to the client yet.
    Waiting { until: Moment, message: Message },
    /// The client has it, or will find it on the stream that it comes back to.
    Asked { until: Moment },
}

impl Ask {
    /// When waiting ends: for a way to the client, or for its answer (I7).
    pub(super) fn deadline(&self) -> Moment {
        match &self.state {
            State::Waiting { until, .. } | State::Asked { until } => *until,
        }
    }
}

impl Session {
    /// A server asks something.
    pub(super) fn on_ask(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        related: Option<u64>,
        instance: InstanceKey,
        message: Message,
    ) {
        let (Some(id), Some(name)) = (message.id(), message.method()) else {
            return;
        };
        let method = Method::parse(&name);
        if method == Method::Ping {
            self.reply(server, instance, id.clone(), &ok(&id));
            return;
        }
        if !self.client.takes(method, &name, message.params().as_ref()) {
            let text = format!("the client does not support {name}");
            let body = error_response(Some(&id), &plain_error(-32601, &text));
            self.reply(server, instance, id, &body);
            return;
        }
        if self.asks.len() >= self.settings.pending_max {
            let fault =
                Fault::new(FaultKind::ClientUnreachable).because("too many questions are open");
            self.reply(server, instance, id.clone(), &fault.response(&id));
            return;
        }
        let call = self.related_call(server, related);
        self.last_ask = self.last_ask.saturating_add(1);
        let until = now.after(self.settings.ask_wait);
        let ask = Ask {
            server: Arc::clone(server),
            instance,
            id: Bytes::copy_from_slice(&id),
            token: message
                .progress_token()
                .map(|token| Bytes::copy_from_slice(&token)),
            call,
            state: State::Waiting { until, message },
        };
        self.asks.insert(self.last_ask, ask);
        self.try_ask(now, self.last_ask);
    }

    /// The client answered one of our ids.
    pub(super) fn on_client_answer(&mut self, message: Message) {
        let number = message
            .id()
            .and_then(|id| std::str::from_utf8(&id).ok()?.parse().ok());
        let Some(ask) = number.and_then(|number: u64| self.asks.remove(&number)) else {
            return;
        };
        self.end_asking(&ask);
        let Ask {
            server,
            instance,
            id,
            ..
        } = ask;
        self.tell(
            server,
            upstream::Input::Reply {
                instance,
                id,
                message,
            },
        );
    }

    /// The server took its request back.
    pub(super) fn on_withdrawn(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        instance: InstanceKey,
        id: &Bytes,
        message: &Message,
    ) {
        let found = self
            .asks
            .iter()
            .find(|(_, ask)| ask.server == *server && ask.instance == instance && ask.id == *id);
        if let Some(number) = found.map(|(number, _)| *number) {
            self.take_back(now, number, Some(message));
        }
    }

    /// Who asked is gone: the client need not answer any more.
    pub(super) fn on_instance_gone(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        instance: InstanceKey,
    ) {
        let of_it = |ask: &Ask| ask.server == *server && ask.instance == instance;
        let gone: Vec<u64> = self
            .asks
            .iter()
            .filter(|(_, ask)| of_it(ask))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.take_back(now, number, None);
        }
    }

    /// The call was cancelled by the client: it will not answer questions about it.
    pub(super) fn drop_asks_of(&mut self, call: u64) {
        self.asks.retain(|_, ask| ask.call != Some(call));
    }

    /// Tries again to reach the client, and gives up on questions that waited long enough.
    pub(super) fn retry_asks(&mut self, now: Moment) {
        let open: Vec<u64> = self.asks.keys().copied().collect();
        for number in open {
            self.try_ask(now, number);
            let is_due = |ask: &Ask| ask.deadline() <= now;
            if self.asks.get(&number).is_some_and(is_due) {
                self.give_up_ask(now, number);
            }
        }
    }

    /// Nobody answers: the server hears so, and the clock of the call goes on (I7). An answer that
    /// still comes is dropped.
    fn give_up_ask(&mut self, now: Moment, number: u64) {
        let Some(ask) = self.asks.get(&number) else {
            return;
        };
        let (server, instance, id) = (Arc::clone(&ask.server), ask.instance, ask.id.clone());
        let mut fault = Fault::new(FaultKind::ClientUnreachable);
        if matches!(ask.state, State::Asked { .. }) {
            // It may have done what it was asked.
            fault = fault
                .because("the client did not answer in time")
                .outcome(Outcome::Unknown);
        }
        self.take_back(now, number, None);
        self.reply(&server, instance, id.clone(), &fault.response(&id));
    }

    /// Asks the client if there is a way to it: the stream of the call that caused the question
    /// comes first (2025-11-25 basic/transports), the GET stream after it.
    fn try_ask(&mut self, now: Moment, number: u64) {
        let Some(ask) = self.asks.get(&number) else {
            return;
        };
        let State::Waiting { message, .. } = &ask.state else {
            return;
        };
        let call = match ask.call.filter(|call| self.pending.contains_key(call)) {
            None => self.only_call(&ask.server),
            call => call,
        };
        let own = call.filter(|call| self.has_own_stream(*call));
        let own_is_better = own.is_some_and(|call| self.is_read(call) || !self.is_reachable());
        if !own_is_better && !self.is_reachable() {
            return;
        }
        let body = self.question(&ask.server, message, number);
        match own.filter(|_| own_is_better) {
            Some(call) => {
                self.send_on(now, call, &body);
            }
            None => self.send_apart(now, body),
        }
        let until = now.after(self.settings.ask_timeout);
        if let Some(ask) = self.asks.get_mut(&number) {
            ask.state = State::Asked { until };
            ask.call = call;
        }
        if let Some(call) = call {
            self.tell_asking(call, true);
        }
    }

    /// The question as the client reads it.
    fn question(&self, server: &Arc<str>, message: &Message, number: u64) -> Pieces {
        let id = number.to_string();
        match self.endpoint {
            Endpoint::One(_) => message.with_id(id.as_bytes()),
            Endpoint::All => aggregate::question(server, message, id.as_bytes()),
        }
    }

    /// The server whose open question named this progress token.
    pub(super) fn asker_of(&self, token: Option<Bytes>) -> Option<Arc<str>> {
        let token = token?;
        let mut open = self.asks.values();
        open.find(|ask| ask.token.as_ref() == Some(&token))
            .map(|ask| Arc::clone(&ask.server))
    }

    /// Ends a question; the client hears of it if it was asked.
    fn take_back(&mut self, now: Moment, number: u64, message: Option<&Message>) {
        let Some(ask) = self.asks.remove(&number) else {
            return;
        };
        if matches!(ask.state, State::Waiting { .. }) {
            return;
        }
        self.end_asking(&ask);
        let ours = number.to_string();
        let spliced = message.and_then(|message| {
            let span = message.param_span("requestId")?;
            Some(message.splice().replace(span, ours.clone()).finish())
        });
        let body = spliced.unwrap_or_else(|| {
            let text = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{ours}}}}}"#
            );
            Pieces::from(Bytes::from(text))
        });
        let call = ask.call.filter(|call| self.has_own_stream(*call));
        match call {
            Some(call) => {
                self.send_on(now, call, &body);
            }
            None => self.send_apart(now, body),
        }
    }

    fn end_asking(&mut self, ask: &Ask) {
        if let Some(call) = ask.call {
            self.tell_asking(call, false);
        }
    }

    fn tell_asking(&mut self, call: u64, begins: bool) {
        let Some(server) = self
            .pending
            .get(&call)
            .and_then(|pending| pending.server.clone())
        else {
            return;
        };
        let key = self.call_key(call);
        self.tell(server, upstream::Input::Asking { key, begins });
    }

    /// Answers a server in the client's place.
    fn reply(&mut self, server: &Arc<str>, instance: InstanceKey, id: Bytes, body: &Bytes) {
        if let Ok(message) = Message::parse(body.clone()) {
            self.tell(
                Arc::clone(server),
                upstream::Input::Reply {
                    instance,
                    id,
                    message,
                },
            );
        }
    }
}

fn ok(id: &[u8]) -> Bytes {
    super::request::result_response(id, b"{}").to_bytes()
}
