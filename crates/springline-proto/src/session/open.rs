//! The handshake with the client.
//!
//! Owns `initialize`: on one server's endpoint it is that server's to answer, and its result passes
//! untouched. Must not know how a server is started.

use std::sync::Arc;

use bytes::Bytes;

use super::client::{Announced, Client};
use super::port::{Accept, Endpoint, Event, Known, Output};
use super::request::result_response;
use super::table::Pending;
use super::{Handshake, Phase, Session};
use crate::call::{ClientExchange, Moment};
use crate::error::{Fault, FaultKind, error_response, plain_error};
use crate::json::{self, Span, Splice};
use crate::message::Message;
use crate::method::Method;
use crate::upstream::{self, Hello};
use crate::version::Version;

impl Session {
    pub(super) fn on_initialize(
        &mut self,
        now: Moment,
        exchange: Option<ClientExchange>,
        accept: Accept,
        id: &[u8],
        message: &Message,
    ) {
        let waits = |pending: &Pending| pending.method == Method::Initialize;
        if self.pending.values().any(waits) {
            let error = plain_error(-32600, "an initialize is pending");
            self.say(exchange, error_response(Some(id), &error));
            return;
        }
        let Some(params) = message.params().filter(|params| params.starts_with(b"{")) else {
            let error = plain_error(-32602, "initialize needs params");
            self.say(exchange, error_response(Some(id), &error));
            return;
        };
        // A copy, since the message would be kept with it for as long as the session lives.
        let params = Bytes::copy_from_slice(&params);
        self.client = Client::of(&params);
        self.opening = Some(Box::new(params.clone()));
        if let Some(before) = self.before.held() {
            before.greeting = None;
        }
        let is_first = self.phase == Phase::Fresh;
        if is_first {
            self.phase = Phase::Opening;
        } else {
            // A new start: what the old one had set up is gone.
            self.initialized = false;
            self.level = None;
            self.subscriptions.clear();
        }
        if self.all.is_some() {
            self.open_all(now, exchange, accept, id, &params);
            return;
        }
        let number = self.admit(now, exchange, accept, id, Method::Initialize);
        let hello = Hello {
            params: with_known_version(&params),
        };
        if let Endpoint::One(server) = &self.endpoint {
            let server = Arc::clone(server);
            let key = self.call_key(number);
            self.tell(Arc::clone(&server), upstream::Input::Start { key, hello });
            if is_first {
                self.tell(server, upstream::Input::Attached(self.main.is_some()));
            }
        }
    }

    /// The server answered the handshake.
    pub(super) fn on_started(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        number: u64,
        result: &Bytes,
    ) {
        let what = Known::Initialize(result.clone());
        self.out.push_back(Output::Remember {
            server: Arc::clone(server),
            what,
        });
        if self.all.is_some() {
            self.on_one_started(server, number, result);
            return;
        }
        self.answer_initialize(now, number, result);
    }

    /// The server could not be started. What is remembered of it keeps the client at work: its
    /// first call tries again. A server that answered the handshake with an error meant it.
    pub(super) fn on_start_failed(
        &mut self,
        now: Moment,
        number: u64,
        fault: &Fault,
        server_error: Option<&Bytes>,
    ) {
        let is_first = self.phase == Phase::Opening;
        match (server_error, self.remembered()) {
            (None, Some(result)) if fault.kind != FaultKind::ServerRemoved => {
                self.answer_initialize(now, number, &result);
                return;
            }
            (Some(error), _) => self.reject(now, number, &String::from_utf8_lossy(error)),
            (None, _) => self.fail(now, number, fault),
        }
        if !is_first {
            return;
        }
        if self.is_pipe() {
            // The pipe is the client's own: it may try again on it.
            self.phase = Phase::Fresh;
            return;
        }
        self.close(now, fault);
    }

    /// What its one server answered to `initialize` last, as far as this session knows.
    fn remembered(&self) -> Option<Bytes> {
        if self.phase == Phase::Open {
            return Some(self.handshake.result.clone());
        }
        self.entries
            .first()?
            .remembered
            .as_ref()?
            .initialize
            .clone()
    }

    pub(super) fn answer_initialize(&mut self, now: Moment, number: u64, result: &Bytes) {
        let Some(pending) = self.settle(number) else {
            return;
        };
        self.version = Some(version_of(result).unwrap_or(Version::ASSUMED));
        self.announced = Announced::of(result);
        // Most sessions hear what others heard before, and share it.
        let known = self.remembered().filter(|known| known == result);
        self.handshake = Handshake {
            params: self
                .opening
                .take()
                .map(|params| *params)
                .unwrap_or_default(),
            result: known.unwrap_or_else(|| Bytes::copy_from_slice(result)),
        };
        self.entries = Vec::new();
        self.phase = Phase::Open;
        self.persist();
        let body = result_response(pending.id.as_slice(), result);
        self.give(now, &pending.outlet, body);
        self.out.push_back(Output::Emit(Event::Opened));
        self.flush_held(now);
    }
}

/// The revision that a raw `params` or `result` of `initialize` names, if we know it.
pub(super) fn version_of(object: &[u8]) -> Option<Version> {
    let span = json::member(object, Span::whole(object), "protocolVersion")?;
    Version::parse(&json::string(span.of(object))?)
}

/// The client's parameters, with our latest revision in place of one that we do not know.
pub(super) fn with_known_version(params: &Bytes) -> Bytes {
    if version_of(params).is_some() {
        return params.clone();
    }
    let latest = json::quote(Version::LATEST.as_str());
    let splice = Splice::new(params);
    let splice = if let Some(span) = json::member(params, Span::whole(params), "protocolVersion") {
        splice.replace(span, latest)
    } else {
        let is_empty = json::members(params, Span::whole(params)).next().is_none();
        let rest = if is_empty { "" } else { "," };
        splice.insert_at(1, format!(r#""protocolVersion":{latest}{rest}"#))
    };
    splice.finish().to_bytes()
}
