//! Records of upstreams: who may use the session that one of them names, or end it.
//!
//! Owns that each session is resumed once, ended once, or left to expire once, whatever asks for its
//! record at the same time. Must not know what else a record holds.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use springline_proto::call::Generation;
use springline_proto::error::chain;
use springline_proto::upstream::Record;
use springline_store::{Kind, Op, SessionDigest, StoreError};

use super::rest::Rest;
use crate::event::Events;

/// Begins the key of a note about a session that is about to be ended; the ordinal of the start, the
/// session, the generation and the server follow.
const LEAVING: &[u8] = b"leaving\0";

/// In place of a session's digest: the upstreams that all sessions share. No session has this one.
pub(crate) const GLOBAL: SessionDigest = SessionDigest([0; 16]);

/// What is at rest for an upstream that is about to be used.
pub(crate) enum Claim {
    /// Nothing.
    Nothing,
    /// A record, perhaps with a session to go on with.
    Taken(Record),
    /// A record without a session, of another definition.
    Other(Record),
    /// A record whose session is left to expire: its definition or credentials were others. At rest
    /// it is without that session from now on.
    Left(Record),
}

impl Rest {
    /// Claims what is stored for an upstream, to be used with this very definition.
    pub(crate) fn claim(
        &self,
        owner: SessionDigest,
        server: &str,
        identity: &[u8; 32],
        events: &Events,
    ) -> Claim {
        if !self.is_durable {
            return Claim::Nothing;
        }
        let _turn = self.claims.lock();
        let key = upstream_key(owner, server);
        let Some((held, record)) = self.stored_upstream(&key) else {
            return Claim::Nothing;
        };
        if held == *identity {
            return Claim::Taken(record);
        }
        if !record.is_resumable() {
            return Claim::Other(record);
        }
        let record = record.without_session();
        let value = upstream_value(identity, &record);
        self.write(&[Op::put(Kind::Upstream, key, value)], &[], events);
        Claim::Left(record)
    }

    fn stored_upstream(&self, key: &Bytes) -> Option<([u8; 32], Record)> {
        let value = self.store.get(Kind::Upstream, key).ok()??;
        let held = value.get(..32)?.try_into().ok()?;
        Some((held, Record::decode(&value.slice(32..))?))
    }

    /// The upstreams that are stored, by whom they belong to and the name of the entry.
    pub(crate) fn stored_upstreams(&self) -> Vec<(SessionDigest, Box<str>)> {
        if !self.is_durable {
            return Vec::new();
        }
        let loaded = self.store.load(Kind::Upstream);
        let records = loaded.map(|loaded| loaded.records).unwrap_or_default();
        let named = records
            .iter()
            .filter_map(|record| owner_and_name(&record.key));
        named
            .map(|(owner, server)| (owner, Box::from(server)))
            .collect()
    }

    /// Takes the session out of a stored record, durably: from now on nobody else goes on with it,
    /// or ends it. `heir` is the entry as it is now, if it is still there: it may want to know the
    /// rest, and what was opened with it in the meantime is its own and stays. The session comes back
    /// if it was opened with this definition; otherwise it is left to expire, which is noted.
    pub(crate) fn take_session(
        &self,
        owner: SessionDigest,
        server: &str,
        identity: &[u8; 32],
        heir: Option<&[u8; 32]>,
        events: &Events,
    ) -> Option<Record> {
        let _turn = self.claims.lock();
        let key = upstream_key(owner, server);
        let (held, record) = self.stored_upstream(&key)?;
        if heir == Some(&held) {
            return None;
        }
        let op = if heir.is_some() {
            let rest = record.clone().without_session();
            Op::put(Kind::Upstream, key, upstream_value(&held, &rest))
        } else {
            Op::remove(Kind::Upstream, key)
        };
        let before = upstream_value(&held, &record);
        if let Err(error) = self.store.apply(std::slice::from_ref(&op)) {
            report_removal(events, &op, &error);
            if let (StoreError::Pending { .. }, Op::Put { key, .. } | Op::Remove { key, .. }) =
                (error, op)
            {
                // It must not be taken out later, when nobody ends the session any more.
                self.write(&[Op::put(Kind::Upstream, key, before)], &[], events);
            }
            return None;
        }
        if !record.is_resumable() {
            return None;
        }
        if held != *identity {
            let mut facts = serde_json::Map::new();
            facts.insert("server".to_owned(), server.into());
            facts.insert(
                "reason".to_owned(),
                "its definition or credentials differ".into(),
            );
            events.record("session.left_to_expire", facts);
            return None;
        }
        Some(record)
    }

    /// The value of a credential is another one: what is stored under the old one goes on under it.
    pub(crate) fn rotate(
        &self,
        owner: SessionDigest,
        server: &str,
        from: &[u8; 32],
        to: &[u8; 32],
        events: &Events,
    ) {
        let _turn = self.claims.lock();
        let key = upstream_key(owner, server);
        if let Some((held, record)) = self.stored_upstream(&key)
            && held == *from
        {
            let value = upstream_value(to, &record);
            self.write(&[Op::put(Kind::Upstream, key, value)], &[], events);
        }
    }

    /// The place of the upstream that wrote this record is taken: from now on it writes nothing there,
    /// and the session that it is about to end does not stand there, however long its successor takes to
    /// write its own record. `has_heir` is its mark of that.
    pub(crate) fn pass_record(
        &self,
        owner: Option<SessionDigest>,
        server: &str,
        has_heir: &AtomicBool,
        events: &Events,
    ) {
        let _turn = self.claims.lock();
        has_heir.store(true, Ordering::Release);
        let Some(owner) = owner.filter(|_| self.is_durable) else {
            return;
        };
        let key = upstream_key(owner, server);
        if let Some((held, record)) = self.stored_upstream(&key)
            && record.is_resumable()
        {
            let value = upstream_value(&held, &record.without_session());
            self.write(&[Op::put(Kind::Upstream, key, value)], &[], events);
        }
    }

    /// Removes what is stored of an upstream.
    pub(crate) fn forget_upstream(&self, owner: SessionDigest, server: &str, events: &Events) {
        let op = Op::remove(Kind::Upstream, upstream_key(owner, server));
        self.write(&[op], &[], events);
    }

    /// Whether an upstream of the session is stored.
    pub(crate) fn has_upstream(&self, session: SessionDigest, server: &str) -> bool {
        self.is_durable
            && self
                .store
                .get(Kind::Upstream, &upstream_key(session, server))
                .is_ok_and(|value| value.is_some())
    }

    /// Removes what is stored of upstreams whose entry is gone, or is shared otherwise now, and of
    /// those whose session is gone: their sessions are left to expire. Nobody has the configuration to
    /// end the former with, and the latter were about to be ended when an earlier process ended.
    /// `is_configured` is asked for the name of the entry and whether all sessions shared it, `has_user`
    /// for whom it belongs to and the name. Blocks on the disk.
    pub(crate) fn sweep(
        &self,
        is_configured: impl Fn(&str, bool) -> bool,
        has_user: impl Fn(SessionDigest, &str) -> bool,
        events: &Events,
    ) {
        self.tell_left(events);
        for (owner, server) in self.stored_upstreams() {
            let reason = if !is_configured(&server, owner == GLOBAL) {
                "it is not configured any more"
            } else if Some(owner) != self.pipe && !has_user(owner, &server) {
                "the gateway ended before it was ended with the session of its client"
            } else {
                continue;
            };
            let _turn = self.claims.lock();
            let key = upstream_key(owner, &server);
            let names_session = match self.stored_upstream(&key) {
                Some((_, record)) => record.route.session_id.is_some(),
                // Its own end came first.
                None if !self.has_upstream(owner, &server) => continue,
                None => true,
            };
            let op = Op::remove(Kind::Upstream, key);
            if names_session {
                self.tell_expiring(&op, &server, reason, events);
            } else if let Err(error) = self.store.apply(std::slice::from_ref(&op)) {
                report_removal(events, &op, &error);
            }
        }
    }

    /// Notes that a session upstream is about to be ended, when its last calls are over. Should the
    /// process end before, the next start tells of it. What is given takes the note back.
    pub(crate) fn note_leaving(
        &self,
        session: SessionDigest,
        server: &str,
        generation: Generation,
        events: &Events,
    ) -> Option<Bytes> {
        if !self.is_durable {
            return None;
        }
        let mut key = BytesMut::from(LEAVING);
        key.put_u64(self.start);
        key.put_slice(&session.0);
        key.put_u64(generation.0);
        key.put_slice(server.as_bytes());
        let key = key.freeze();
        let note = Op::put(Kind::Meta, key.clone(), Bytes::new());
        self.write(&[note], &[], events);
        Some(key)
    }

    /// Takes such a note back.
    pub(crate) fn take_back(&self, note: Bytes, events: &Events) {
        self.write(&[Op::remove(Kind::Meta, note)], &[], events);
    }

    /// Tells of sessions that were about to be ended when an earlier process ended.
    fn tell_left(&self, events: &Events) {
        let Ok(loaded) = self.store.load(Kind::Meta) else {
            return;
        };
        for record in loaded.records {
            let Some((start, rest)) = record
                .key
                .strip_prefix(LEAVING)
                .and_then(|rest| rest.split_first_chunk::<8>())
            else {
                continue;
            };
            let server = rest
                .get(16 + 8..)
                .and_then(|name| std::str::from_utf8(name).ok());
            if u64::from_be_bytes(*start) < self.start
                && let Some(server) = server
            {
                let reason = "the gateway ended before its last calls did";
                let op = Op::remove(Kind::Meta, record.key.clone());
                self.tell_expiring(&op, server, reason, events);
            }
        }
    }

    /// Removes what names a session, and tells that nobody will end it.
    fn tell_expiring(&self, op: &Op, server: &str, reason: &str, events: &Events) {
        match self.store.apply(std::slice::from_ref(op)) {
            Ok(_) => {
                let mut facts = serde_json::Map::new();
                facts.insert("server".to_owned(), server.into());
                facts.insert("reason".to_owned(), reason.into());
                events.record("session.left_to_expire", facts);
            }
            Err(error) => report_removal(events, op, &error),
        }
    }
}

/// Where the record of an upstream stands.
pub(super) fn upstream_key(session: SessionDigest, server: &str) -> Bytes {
    let mut key = BytesMut::from(&session.0[..]);
    key.put_slice(server.as_bytes());
    key.freeze()
}

/// Whom a record of an upstream belongs to, and the name of its entry.
fn owner_and_name(key: &[u8]) -> Option<(SessionDigest, &str)> {
    let (owner, name) = key.split_first_chunk::<16>()?;
    Some((SessionDigest(*owner), std::str::from_utf8(name).ok()?))
}

pub(super) fn upstream_value(identity: &[u8; 32], record: &Record) -> Bytes {
    let mut value = BytesMut::with_capacity(256);
    value.put_slice(identity);
    value.put_slice(&record.encode());
    value.freeze()
}

/// A record could not be removed, and may come back at the next start.
pub(super) fn report_removal(events: &Events, op: &Op, error: &dyn std::error::Error) {
    let Op::Remove { kind, key } = op else { return };
    let mut facts = serde_json::Map::new();
    facts.insert("kind".to_owned(), kind.to_string().into());
    if *kind == Kind::Upstream
        && let Some((_, server)) = owner_and_name(key)
    {
        facts.insert("server".to_owned(), server.into());
    }
    facts.insert("cause".to_owned(), chain(error).into());
    events.record("record.removal_failed", facts);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use springline_proto::call::{CallKey, ExchangeId, Generation, Moment, SessionKey};
    use springline_proto::message::Message;
    use springline_proto::upstream::{
        End, Hello, Input, Output, Route, Transport, Upstream, UpstreamConfig,
    };
    use springline_store::{Loaded, MemoryStore, Seq, Store};

    use super::*;
    use crate::gateway::keep::RecordPlace;

    const SESSION: SessionDigest = SessionDigest([7; 16]);

    /// A store that removes nothing.
    struct Stubborn(MemoryStore);

    impl Store for Stubborn {
        fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError> {
            if batch.iter().any(|op| matches!(op, Op::Remove { .. })) {
                return Err(StoreError::Failed {
                    action: "write",
                    cause: "no space".into(),
                });
            }
            self.0.apply(batch)
        }

        fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
            self.0.get(kind, key)
        }

        fn load(&self, kind: Kind) -> Result<Loaded, StoreError> {
            self.0.load(kind)
        }

        fn sync(&self) -> Result<Seq, StoreError> {
            self.0.sync()
        }

        fn synced(&self) -> Seq {
            self.0.synced()
        }
    }

    fn rest(store: Arc<dyn Store>) -> Rest {
        let mut rest = Rest::in_memory().unwrap();
        rest.store = store;
        rest.is_durable = true;
        rest
    }

    /// A record that was made under this identity.
    fn put(rest: &Rest, identity: [u8; 32]) {
        let config = UpstreamConfig {
            server: "s".into(),
            transport: Transport::Http,
            session: SessionKey(1),
            settings: Arc::default(),
            base: 0,
            seed: 1,
        };
        let mut machine = Upstream::new(config, Moment::default());
        let mut outputs = Vec::new();
        let hello = Hello {
            params: "{}".into(),
        };
        let key = CallKey {
            session: SessionKey(1),
            number: 1,
        };
        let generation = Generation(1);
        let message = Message::parse(
            r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}"#,
        )
        .unwrap();
        for input in [
            Input::Start { key, hello },
            Input::Opened { generation },
            Input::Minted {
                generation,
                exchange: ExchangeId(1),
                session_id: "wire".into(),
            },
            Input::Message {
                generation,
                exchange: Some(ExchangeId(1)),
                message,
            },
            Input::Ended {
                generation,
                exchange: ExchangeId(2),
                end: End::Accepted,
            },
        ] {
            machine.handle(Moment::default(), input);
            outputs.extend(std::iter::from_fn(|| machine.poll()));
        }
        let persists = |output: &Output| matches!(output, Output::Persist(_));
        assert!(outputs.iter().any(persists));
        let events = Events::new(100);
        keep(rest, identity, &AtomicBool::new(false), &outputs, &events);
    }

    fn keep(
        rest: &Rest,
        identity: [u8; 32],
        has_heir: &AtomicBool,
        outputs: &[Output],
        events: &Events,
    ) {
        let place = RecordPlace {
            owner: SESSION,
            server: "s",
            identity: &|| identity,
            has_heir,
        };
        rest.keep_upstream(&place, |_| None, outputs, events)
            .unwrap();
    }

    fn names(events: &Events) -> Vec<&'static str> {
        events.counts().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn a_removal_that_fails_is_reported_and_nothing_counts_as_done() {
        let rest = rest(Arc::new(Stubborn(MemoryStore::default())));
        put(&rest, [1; 32]);
        let events = Events::new(100);
        let taken = rest.take_session(SESSION, "s", &[1; 32], None, &events);
        assert!(taken.is_none(), "nobody may end what may come back");
        assert_eq!(names(&events), ["record.removal_failed"]);
        assert!(rest.has_upstream(SESSION, "s"));
        let events = Events::new(100);
        let heirless = AtomicBool::new(false);
        keep(&rest, [1; 32], &heirless, &[Output::Forget], &events);
        assert_eq!(names(&events), ["record.removal_failed", "store.failed"]);
        let events = Events::new(100);
        rest.sweep(|_, _| false, |_, _| true, &events);
        assert_eq!(names(&events), ["record.removal_failed"]);
    }

    #[test]
    fn what_the_new_definition_opened_in_the_meantime_is_not_taken() {
        let events = Events::new(100);
        let rest = rest(Arc::new(MemoryStore::default()));
        put(&rest, [2; 32]);
        let taken = rest.take_session(SESSION, "s", &[1; 32], Some(&[2; 32]), &events);
        assert!(taken.is_none());
        assert_eq!(names(&events), [] as [&str; 0]);
        let Claim::Taken(record) = rest.claim(SESSION, "s", &[2; 32], &events) else {
            panic!("it goes on after a restart");
        };
        assert_eq!(record.route.session_id.as_deref(), Some("wire"));
    }

    #[test]
    fn a_session_is_taken_once_and_never_under_another_definition() {
        let events = Events::new(100);
        let rest = rest(Arc::new(MemoryStore::default()));
        put(&rest, [1; 32]);
        let record = rest.take_session(SESSION, "s", &[1; 32], Some(&[2; 32]), &events);
        let route = record.unwrap().route;
        assert_eq!(route.session_id.as_deref(), Some("wire"));
        assert!(
            rest.take_session(SESSION, "s", &[1; 32], Some(&[2; 32]), &events)
                .is_none()
        );
        let claim = rest.claim(SESSION, "s", &[2; 32], &events);
        assert!(matches!(claim, Claim::Other(rest) if rest.route == Route::default()));
        put(&rest, [1; 32]);
        let claim = rest.claim(SESSION, "s", &[2; 32], &events);
        assert!(matches!(claim, Claim::Left(_)));
        assert!(
            rest.take_session(SESSION, "s", &[1; 32], None, &events)
                .is_none()
        );
        assert_eq!(names(&events), [] as [&str; 0]);
        put(&rest, [1; 32]);
        assert!(
            rest.take_session(SESSION, "s", &[3; 32], None, &events)
                .is_none()
        );
        assert_eq!(names(&events), ["session.left_to_expire"]);
    }
    #[test]
    fn an_upstream_whose_place_is_taken_leaves_no_session_at_rest_and_writes_no_more() {
        let events = Events::new(100);
        let rest = rest(Arc::new(MemoryStore::default()));
        put(&rest, [1; 32]);
        let has_heir = AtomicBool::new(false);
        rest.pass_record(Some(SESSION), "s", &has_heir, &events);
        let stored = || rest.claim(SESSION, "s", &[1; 32], &events);
        assert!(
            matches!(stored(), Claim::Taken(record) if !record.is_resumable()),
            "killed now, the next start would go on with a session that is about to be ended"
        );
        let Claim::Taken(record) = stored() else {
            panic!("the successor begins with the rest of it");
        };
        let late = [Output::Persist(Box::new(record)), Output::Forget];
        keep(&rest, [1; 32], &has_heir, &late, &events);
        assert!(rest.has_upstream(SESSION, "s"), "it is the successor's");
        put(&rest, [2; 32]);
        keep(&rest, [1; 32], &has_heir, &[Output::Forget], &events);
        assert!(
            matches!(rest.claim(SESSION, "s", &[2; 32], &events), Claim::Taken(record) if record.is_resumable())
        );
    }

    #[test]
    fn a_record_whose_session_is_gone_is_swept_and_told_once() {
        let events = Events::new(100);
        let rest = rest(Arc::new(MemoryStore::default()));
        put(&rest, [1; 32]);
        rest.sweep(|_, _| true, |owner, _| owner == SESSION, &events);
        assert!(rest.has_upstream(SESSION, "s"));
        rest.sweep(|_, _| true, |_, _| false, &events);
        assert!(!rest.has_upstream(SESSION, "s"));
        assert_eq!(names(&events), ["session.left_to_expire"]);
        rest.sweep(|_, _| true, |_, _| false, &events);
        assert_eq!(events.counts(), [("session.left_to_expire", 1)]);
    }

    #[test]
    fn a_bridge_without_sessions_keeps_what_it_has_upstream() {
        let events = Events::new(100);
        let mut rest = rest(Arc::new(MemoryStore::default()));
        rest.pipe = Some(SESSION);
        put(&rest, [1; 32]);
        rest.sweep(|_, _| true, |_, _| false, &events);
        assert!(rest.has_upstream(SESSION, "s"));
    }
}
