//! What servers tell the client: notifications, and which stream each goes on.
//!
//! Owns the rules of DESIGN.md, section 6, within a session: one call in flight takes it, else the
//! GET stream, else it is held. Must not know streams.

use std::sync::Arc;

use bytes::Bytes;

use super::client::Level;
use super::table::Pending;
use super::{Endpoint, Session};
use crate::aggregate;
use crate::call::Moment;
use crate::json::{self, Pieces};
use crate::message::Message;
use crate::method::{ListKind, Method};

impl Session {
    /// A notification of a server.
    pub(super) fn on_notification(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        related: Option<u64>,
        message: &Message,
    ) {
        let method = Method::of(message);
        if self.all.is_some() && self.on_one_notification(now, server, related, method, message) {
            return;
        }
        if method == Method::Progress {
            self.on_progress(now, related, message);
            return;
        }
        if method == Method::Message && !self.passes_level(message) {
            return;
        }
        if method == Method::ResourceUpdated && !self.is_subscribed(message) {
            return;
        }
        let call = self.related_call(server, related);
        self.notify(now, call, message.into());
    }

    /// What is different on the endpoint of all servers; false if nothing is.
    fn on_one_notification(
        &mut self,
        now: Moment,
        server: &Arc<str>,
        related: Option<u64>,
        method: Method,
        message: &Message,
    ) -> bool {
        if method == Method::ResourceUpdated {
            let updated = aggregate::updated(server, message);
            if let Some(message) = updated.filter(|message| self.is_subscribed(message)) {
                let call = self.related_call(server, related);
                self.notify(now, call, (&message).into());
            }
            return true;
        }
        let mut is_list = false;
        for kind in ListKind::ALL
            .into_iter()
            .filter(|kind| kind.changed() == method)
        {
            is_list = true;
            self.on_one_list_changed(server, kind);
        }
        is_list
    }

    /// The server started afresh.
    pub(super) fn on_state_lost(&mut self, now: Moment, server: &Arc<str>, reason: &str) {
        if !self.announced.logging || self.level.is_some_and(|level| level > Level::WARNING) {
            return;
        }
        let text = format!(
            concat!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"#,
                r#""level":"warning","logger":"springline","data":{{"#,
                r#""server":{},"reason":{},"text":"its in-session state starts afresh"}}}}}}"#
            ),
            json::quote(server),
            json::quote(reason)
        );
        let call = self.only_call(server);
        self.notify(now, call, Bytes::from(text).into());
    }

    /// A list of a server is not what it was.
    pub(super) fn on_list_changed(&mut self, now: Moment, server: &Arc<str>, kind: ListKind) {
        if matches!(self.endpoint, Endpoint::All) {
            self.on_one_list_changed(server, kind);
            return;
        }
        let call = self.only_call(server);
        self.say_list_changed(now, call, kind);
    }

    /// Tells the client that a list changed, if that was announced.
    pub(super) fn say_list_changed(&mut self, now: Moment, call: Option<u64>, kind: ListKind) {
        if !self.announced.list_changed(kind) {
            return;
        }
        let method = kind.changed().as_str();
        let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        self.notify(now, call, Bytes::from(text).into());
    }

    /// The pending call that a message of this server belongs to: the one that is named, or the
    /// only one in flight.
    pub(super) fn related_call(&self, server: &Arc<str>, related: Option<u64>) -> Option<u64> {
        match related {
            Some(number) if self.is_call(number) => Some(number),
            _ => self.only_call(server),
        }
    }

    /// The one call in flight with this server, if there is exactly one.
    pub(super) fn only_call(&self, server: &Arc<str>) -> Option<u64> {
        let of_it = |pending: &Pending| {
            pending.method != Method::Initialize && pending.server.as_ref() == Some(server)
        };
        let mut calls = self.pending.iter().filter(|(_, pending)| of_it(pending));
        let (number, _) = calls.next()?;
        calls.next().is_none().then_some(*number)
    }

    fn is_call(&self, number: u64) -> bool {
        self.pending
            .get(&number)
            .is_some_and(|pending| pending.method != Method::Initialize)
    }

    /// Progress belongs to its call alone: without one nobody would know the token.
    fn on_progress(&mut self, now: Moment, related: Option<u64>, message: &Message) {
        let Some(number) = related.filter(|number| self.is_call(*number)) else {
            self.dropped("progress outside any call");
            return;
        };
        let data = Pieces::from(message);
        if !self.send_on(now, number, &data) && self.is_reachable() {
            self.send_apart(now, data);
        }
    }

    fn notify(&mut self, now: Moment, call: Option<u64>, data: Pieces) {
        let own = call.filter(|call| self.has_own_stream(*call));
        match own {
            Some(call) => {
                self.send_on(now, call, &data);
            }
            None => self.send_apart(now, data),
        }
    }

    /// Whether a log message is as grave as the client asked for.
    fn passes_level(&self, message: &Message) -> bool {
        let Some(least) = self.level else {
            return true;
        };
        message
            .param("level")
            .and_then(|raw| Level::parse(&raw))
            .is_none_or(|level| level >= least)
    }

    /// Whether the client subscribed to the resource, or to one that contains it (2025-11-25
    /// server/resources: an update may name a sub-resource).
    fn is_subscribed(&self, message: &Message) -> bool {
        if self.subscriptions.is_full {
            return true;
        }
        let Some(raw) = message.param("uri") else {
            return false;
        };
        json::string(&raw).is_some_and(|uri| {
            self.subscriptions
                .uris
                .iter()
                .any(|subscribed| uri.starts_with(&**subscribed))
        })
    }
}
