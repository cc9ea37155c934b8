//! Sessions: how a new one is told from all others, and how a stored one is made anew.

use std::fmt::Write as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use springline_proto::call::SessionKey;
use springline_proto::session::{
    Downstream, Endpoint, EntryView, Input, Record as SessionRecord, Session, SessionConfig,
};
use springline_proto::settings::SessionSettings;
use springline_store::SessionDigest;

use super::session::{Identity, SessionCell};
use super::shared::Shared;
use super::stored::Stored;
use crate::clock;
use crate::config::Settings;
use crate::downstream::Principal;

impl Shared {
    pub(super) fn identity(
        &self,
        id: WireId,
        principal: Principal,
        endpoint: Endpoint,
    ) -> Identity {
        Identity {
            rest: self.rest.digest(id.as_str()),
            id,
            key: self.session_key(),
            cursor_key: [0; 32],
            is_kept: false,
            keeps_upstream: false,
            kind: Downstream::Http,
            principal,
            endpoint,
        }
    }

    pub(super) fn session_config(
        &self,
        own: &Identity,
        kind: Downstream,
        entries: Vec<EntryView>,
    ) -> SessionConfig {
        SessionConfig {
            key: own.key,
            endpoint: own.endpoint.clone(),
            downstream: kind,
            settings: self.session_settings(),
            cursor_key: own.cursor_key,
            base: self.rest.base(),
            entries,
        }
    }

    /// The entries as a session on this endpoint sees them; none if its one server is not
    /// configured.
    pub(super) fn entries_of(&self, endpoint: &Endpoint) -> Option<Vec<EntryView>> {
        match endpoint {
            Endpoint::All => Some(self.views()),
            Endpoint::One(server) => {
                let entries = self.entries.read();
                entries.get(server).map(|spec| vec![self.view(spec)])
            }
        }
    }

    /// A session of before the start of this gateway, if this is one: made anew from its record.
    pub(super) fn revive(
        self: &Arc<Self>,
        id: &str,
        rest: SessionDigest,
        stored: &Stored,
    ) -> Option<Arc<SessionCell>> {
        let record = SessionRecord::decode(&stored.record)?;
        let endpoint = match &stored.endpoint {
            Some(server) => Endpoint::One(Arc::from(server.as_str())),
            None => Endpoint::All,
        };
        let principal = Principal::parse(&stored.principal)?;
        let mut own = self.identity(WireId::of(id)?, principal, endpoint);
        own.rest = rest;
        own.key = SessionKey(stored.key);
        own.cursor_key = stored.cursor_key;
        own.is_kept = true;
        own.kind = stored.kind.downstream();
        let (past, taken) = self.rest.past_calls(own.rest);
        let entries = self.entries_of(&own.endpoint).unwrap_or_default();
        let config = self.session_config(&own, own.kind, entries);
        let machine = Session::restore(config, &record, past, clock::moment()).taken_up_to(taken);
        let mut facts = serde_json::Map::new();
        facts.insert("session".to_owned(), own.id.short_digest().into());
        self.events.record("session.restored", facts);
        Some(SessionCell::new(own, machine, Arc::clone(self)))
    }

    /// Ends a stored session that nobody used for too long: with what it has upstream.
    pub(super) fn end_dormant(self: &Arc<Self>, rest: SessionDigest, stored: &Stored) {
        // Its id is not known, and need not be: nobody will ask for it.
        let id = hex(&rest.0);
        if let Some(cell) = self.revive(&id, rest, stored) {
            cell.input(Input::Close);
        }
    }
}

pub(super) fn session_settings(settings: &Settings) -> SessionSettings {
    SessionSettings {
        stream_after: settings.stream_after,
        pending_max: settings.pending_max,
        list_wait: settings.list_wait,
        ask_timeout: settings.ask_timeout,
        redelivery_events_max: settings.redelivery_events,
        redelivery_bytes_max: settings.redelivery_bytes,
        redelivery_age_max: settings.redelivery_age,
        ..SessionSettings::default()
    }
}

/// The id of a session on the wire: 16 random bytes in hex digits. A secret.
#[derive(Eq, PartialEq)]
pub(super) struct WireId([u8; 32]);

impl WireId {
    /// What can be such an id.
    pub(super) fn of(text: &str) -> Option<Self> {
        text.as_bytes().try_into().ok().map(Self)
    }

    pub(super) fn as_str(&self) -> &str {
        // It was text when it was made.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Random bits of it, to look it up by: as many as a table of sessions needs.
    pub(super) fn bits(&self) -> u64 {
        self.0
            .first_chunk()
            .map_or(0, |digits| u64::from_le_bytes(*digits))
    }

    /// What people and logs see of it.
    pub(super) fn short_digest(&self) -> String {
        hex(Sha256::digest(self.0).get(..4).unwrap_or_default())
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            write!(text, "{byte:02x}").unwrap_or_default();
            text
        })
}
