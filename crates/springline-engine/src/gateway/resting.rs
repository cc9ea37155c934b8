//! Sessions at rest that were not used since the start.
//!
//! Owns which of them are used next, end, or give way. Must not know what a machine's record holds.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::json::{self, Span};
use springline_proto::session::{Endpoint, Record};
use springline_store::{Kind, SessionDigest};

use super::rest::{Rest, since_epoch};
use super::stored::{SessionKind, Stored, key_of, open_session};
use crate::downstream::Principal;

/// So many sessions at rest are shown, those that were used last: each is read for it.
const SHOWN_MAX: usize = 500;

/// What a session at rest looks like from outside. Nobody knows its id.
#[derive(Clone, Debug)]
pub struct RestingView {
    /// Who it belongs to.
    pub principal: Option<Principal>,
    /// What it speaks to.
    pub endpoint: Endpoint,
    /// Name and version that the client gave itself; unverified.
    pub client: Option<(String, String)>,
    /// The revision that was agreed.
    pub version: Option<String>,
    /// Since its last use, as far as that is at rest.
    pub idle: Duration,
}

/// A session at rest that was not used since the start.
pub(super) struct Dormant {
    pub(super) kind: SessionKind,
    pub(super) used: Duration,
    /// The one server that it speaks to; none for all.
    pub(super) endpoint: Option<Box<str>>,
}

impl Rest {
    /// The stored session of this wire id, if it was not used since the start. It is dormant no
    /// longer.
    pub(crate) fn wake(&self, id: &str) -> Option<Stored> {
        let digest = self.digest(id);
        self.dormant.lock().remove(&digest)?;
        let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
        open_session(&value)
    }

    /// Whether a session is at rest that speaks to an endpoint like this.
    pub(crate) fn is_any_dormant(&self, speaks_to: impl Fn(Option<&str>) -> bool) -> bool {
        let dormant = self.dormant.lock();
        dormant
            .values()
            .any(|held| speaks_to(held.endpoint.as_deref()))
    }

    /// The stored sessions that were not used since the start.
    pub(crate) fn dormant(&self) -> HashSet<SessionDigest> {
        self.dormant.lock().keys().copied().collect()
    }

    /// How many stored sessions were not used since the start.
    pub(crate) fn dormant_len(&self) -> usize {
        self.dormant.lock().len()
    }

    /// Sessions that were not used for longer than `idle`: with the values from which to end them.
    pub(crate) fn expired(&self, idle: Duration) -> Vec<(SessionDigest, Stored)> {
        let before = since_epoch().saturating_sub(idle);
        self.take_dormant(|found| found.used < before)
    }

    /// Sessions of the socket whose clients did not come back since the start, in the same way.
    pub(crate) fn abandoned(&self) -> Vec<(SessionDigest, Stored)> {
        self.take_dormant(|found| found.kind == SessionKind::Socket)
    }

    fn take_dormant(&self, is_due: impl Fn(&Dormant) -> bool) -> Vec<(SessionDigest, Stored)> {
        let mut dormant = self.dormant.lock();
        let old: Vec<SessionDigest> = dormant
            .iter()
            .filter(|(_, found)| is_due(found))
            .map(|(digest, _)| *digest)
            .collect();
        old.into_iter()
            .filter_map(|digest| {
                dormant.remove(&digest);
                let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
                Some((digest, open_session(&value)?))
            })
            .collect()
    }

    /// For how long the dormant session was not used that [`Self::oldest`] is.
    pub(crate) fn oldest_idle(&self) -> Option<Duration> {
        let used = self.dormant.lock().values().map(|found| found.used).min()?;
        Some(since_epoch().saturating_sub(used))
    }

    /// The dormant session that was not used for longest, taken out.
    pub(crate) fn oldest(&self) -> Option<(SessionDigest, Stored)> {
        let mut dormant = self.dormant.lock();
        let digest = dormant
            .iter()
            .min_by_key(|(_, found)| found.used)
            .map(|(digest, _)| *digest)?;
        dormant.remove(&digest);
        let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
        Some((digest, open_session(&value)?))
    }

    /// Those that were used last. Reads each of them.
    pub(crate) fn resting(&self) -> Vec<RestingView> {
        let mut last: Vec<(Duration, SessionDigest)> = {
            let dormant = self.dormant.lock();
            let held = dormant.iter();
            held.map(|(digest, found)| (found.used, *digest)).collect()
        };
        last.sort_unstable_by(|left, right| right.cmp(left));
        last.truncate(SHOWN_MAX);
        let now = since_epoch();
        let shown = last.into_iter().filter_map(|(used, digest)| {
            let value = self.store.get(Kind::Session, &key_of(digest)).ok()??;
            Some(view_of(&open_session(&value)?, now.saturating_sub(used)))
        });
        shown.collect()
    }
}

fn view_of(stored: &Stored, idle: Duration) -> RestingView {
    let record = Record::decode(&stored.record);
    let endpoint = match &stored.endpoint {
        Some(server) => Endpoint::One(server.as_str().into()),
        None => Endpoint::All,
    };
    RestingView {
        principal: Principal::parse(&stored.principal),
        endpoint,
        client: record.as_ref().and_then(|record| client_of(&record.params)),
        version: record.and_then(|record| text(&record.result, "protocolVersion")),
        idle,
    }
}

fn client_of(params: &Bytes) -> Option<(String, String)> {
    let info = json::member(params, Span::whole(params), "clientInfo")?.slice(params);
    let version = text(&info, "version").unwrap_or_default();
    Some((text(&info, "name")?, version))
}

fn text(object: &Bytes, name: &str) -> Option<String> {
    let raw = json::member(object, Span::whole(object), name)?.slice(object);
    json::string(&raw).map(std::borrow::Cow::into_owned)
}
