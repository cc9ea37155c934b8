//! What is remembered of an upstream across a restart of the gateway.
//!
//! Never a credential: headers, tokens and the environment are read from the configuration again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::call::{Generation, Moment};
use crate::codec::{Reader, Writer};
use crate::json;
use crate::method::ListKind;
use crate::upstream::drain::Drain;
use crate::upstream::instance::{Chance, Instance};
use crate::upstream::port::{Hello, Output, Route};
use crate::upstream::restore::{Print, Restore, Seen};
use crate::upstream::{Phase, Transport, Upstream, UpstreamConfig};
use crate::version::Version;

/// The format of [`Record::encode`]; a record of another one is not read.
const FORMAT: u8 = 1;

/// The same with the answer to the handshake at its end.
const FORMAT_ANSWERED: u8 = 2;

/// An upstream at rest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Record {
    /// The generation that it is about.
    pub generation: Generation,
    /// How its session is reached. Without a revision nothing can be resumed, only started anew.
    pub route: Route,
    /// The raw `params` of `initialize`.
    pub hello: Bytes,
    capabilities: Option<Bytes>,
    subscriptions: BTreeSet<Bytes>,
    log_level: Option<Bytes>,
    seen: BTreeMap<ListKind, Seen>,
    /// The raw `result` of `initialize`, where it is kept ([`Upstream::keep_answer`]).
    answer: Option<Bytes>,
}

impl Record {
    /// Whether the session can be used again.
    pub fn is_resumable(&self) -> bool {
        self.route.version.is_some()
    }

    /// The record without its session: the next use starts a new one.
    #[must_use]
    pub fn without_session(mut self) -> Self {
        self.route = Route::default();
        self.answer = None;
        self
    }

    /// The record as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new(match self.answer {
            None => FORMAT,
            Some(_) => FORMAT_ANSWERED,
        });
        out.number(self.generation.0);
        out.optional(self.route.session_id.as_deref().map(str::as_bytes));
        out.optional(
            self.route
                .version
                .map(|version| version.as_str().as_bytes()),
        );
        out.bytes(&self.hello);
        out.optional(self.capabilities.as_deref());
        out.number(self.subscriptions.len() as u64);
        for uri in &self.subscriptions {
            out.bytes(uri);
        }
        out.optional(self.log_level.as_deref());
        for kind in ListKind::ALL {
            let seen = self.seen.get(&kind);
            out.flag(seen.is_some());
            if let Some(seen) = seen {
                out.number(seen.prints.len() as u64);
                for print in &seen.prints {
                    out.bytes(print);
                }
                out.optional(seen.next.as_deref());
            }
        }
        if let Some(answer) = &self.answer {
            out.bytes(answer);
        }
        out.finish()
    }

    /// Reads what [`Self::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let is_answered = bytes.first() == Some(&FORMAT_ANSWERED);
        let format = if is_answered { FORMAT_ANSWERED } else { FORMAT };
        let mut input = Reader::new(bytes, format)?;
        let generation = Generation(input.number()?);
        let session_id = match input.optional()? {
            Some(id) => Some(Arc::from(std::str::from_utf8(&id).ok()?)),
            None => None,
        };
        let version = match input.optional()? {
            Some(text) => Some(Version::parse(std::str::from_utf8(&text).ok()?)?),
            None => None,
        };
        let hello = input.bytes()?;
        let capabilities = input.optional()?;
        let mut subscriptions = BTreeSet::new();
        for _ in 0..input.number()? {
            subscriptions.insert(input.bytes()?);
        }
        let log_level = input.optional()?;
        let mut seen = BTreeMap::new();
        for kind in ListKind::ALL {
            if input.flag()? {
                seen.insert(kind, read_seen(&mut input)?);
            }
        }
        let answer = if is_answered {
            Some(input.bytes()?)
        } else {
            None
        };
        input.is_done().then_some(Self {
            generation,
            route: Route {
                session_id,
                version,
            },
            hello,
            capabilities,
            subscriptions,
            log_level,
            seen,
            answer,
        })
    }
}

fn read_seen(input: &mut Reader) -> Option<Seen> {
    let mut prints = Vec::new();
    for _ in 0..input.number()? {
        let print: Print = input.bytes()?.as_ref().try_into().ok()?;
        prints.push(print);
    }
    Some(Seen {
        prints,
        next: input.optional()?,
    })
}

impl Upstream {
    /// An upstream as it was when this record was made. Its session, if it has one, takes requests
    /// at once; the first of them is the proof that it still lives.
    pub fn resume(config: UpstreamConfig, record: Record, now: Moment) -> Self {
        let mut machine = Self::new(config, now);
        machine.hello = Some(Hello {
            params: record.hello,
        });
        machine.was_ready = true;
        // What came for it before the restart is not known.
        machine.used = true;
        machine.generation_last = record.generation;
        machine.restore = Restore::of(record.subscriptions, record.log_level, record.seen);
        if machine.config.transport == Transport::Http && record.route.version.is_some() {
            let mut instance = Instance::new(false);
            instance.route = record.route;
            instance.capabilities = record.capabilities.as_deref().map(Into::into);
            instance.chance = Some(Chance::default());
            instance.answer = record.answer.map(Box::new);
            machine.instances.insert(record.generation, instance);
            machine.phase = Phase::Ready(record.generation);
            machine.persisted = Some(record.generation);
            machine.restore_due = true;
        }
        machine
    }

    /// For a client that is started anew without knowing of the session that it had, as behind a
    /// bridge: from now on the record holds the server's answer to `initialize`. On a machine that
    /// was just resumed, a client whose parameters say the same gets that answer and goes on with the
    /// session; another one ends the session, and starts its own.
    pub fn keep_answer(&mut self) {
        self.keeps_answer = true;
        self.unclaimed = matches!(self.phase, Phase::Ready(_));
    }

    /// The answer that was kept for a client with these parameters, once, if it may go on with the
    /// session that was resumed.
    pub(super) fn claim(&mut self, hello: &Hello) -> Option<Bytes> {
        if !std::mem::take(&mut self.unclaimed) {
            return None;
        }
        // Of what the one before had set up this client knows nothing: nothing is to be told again,
        // and what it starts itself is its first start.
        self.restore_due = false;
        let was_ready = std::mem::take(&mut self.was_ready);
        let Phase::Ready(generation) = self.phase else {
            return None;
        };
        let instance = self.instances.get(&generation)?;
        let held = self.hello.as_ref()?;
        // Without an id there is no session to go on with, only an answer that may be old.
        let answer = instance.answer.as_deref().cloned();
        let answer = answer.filter(|_| {
            instance.route.session_id.is_some() && json::same(&held.params, &hello.params)
        })?;
        self.was_ready = was_ready;
        Some(answer)
    }

    /// This generation is ready: what must outlive the process is handed out before anybody can rely
    /// on it (I10).
    pub(super) fn persist(&mut self, generation: Generation) {
        self.persisted = Some(generation);
        self.put_record(generation);
    }

    /// The session goes on with another value of its credentials: the record is kept with that one, or
    /// the next start would not go on with it.
    pub(super) fn persist_again(&mut self) {
        if let Phase::Ready(generation) = self.phase
            && self.persisted == Some(generation)
        {
            self.put_record(generation);
        }
    }

    /// What a new instance must be told changed. The answer that brought it may be an older
    /// instance's, which the record must not go back to (I3).
    pub(super) fn persist_change(&mut self) {
        if let Phase::Ready(generation) = self.phase {
            self.persisted = Some(generation);
        }
        self.put_record(self.persisted.unwrap_or(self.generation_last));
    }

    /// The session of this generation is about to be ended: no restart may resume it.
    pub(super) fn persist_end(&mut self, generation: Generation) {
        if self.persisted == Some(generation) {
            self.persisted = None;
            self.put_record(generation);
        }
    }

    /// The record as it stands: with the session of the generation that can be resumed, if any. An
    /// upstream that moves to a successor leaves the record to it.
    pub(super) fn put_record(&mut self, generation: Generation) {
        let Some(hello) = &self.hello else { return };
        if matches!(self.drain.as_deref(), Some(Drain::Move)) {
            return;
        }
        let resumable = self
            .persisted
            .and_then(|generation| self.instances.get(&generation));
        let (subscriptions, log_level, seen) = self.restore.parts();
        let record = Record {
            generation,
            route: resumable
                .map(|instance| instance.route.clone())
                .unwrap_or_default(),
            hello: hello.params.clone(),
            capabilities: resumable
                .and_then(|instance| instance.capabilities.as_deref())
                .map(Bytes::copy_from_slice),
            subscriptions,
            log_level,
            seen,
            answer: resumable.and_then(|instance| instance.answer.as_deref().cloned()),
        };
        self.out.push_back(Output::Persist(Box::new(record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let seen = Seen {
            prints: vec![[7; 32], [9; 32]],
            next: Some("\"c\"".into()),
        };
        Record {
            generation: Generation(300),
            route: Route {
                session_id: Some("s-1".into()),
                version: Some(Version::V2025_06_18),
            },
            hello: "{}".into(),
            capabilities: Some(r#"{"tools":{}}"#.into()),
            subscriptions: BTreeSet::from(["\"a\"".into(), "\"b\"".into()]),
            log_level: Some("\"info\"".into()),
            seen: BTreeMap::from([(ListKind::Prompts, seen)]),
            answer: None,
        }
    }

    fn answered() -> Record {
        Record {
            answer: Some(r#"{"protocolVersion":"2025-06-18"}"#.into()),
            ..record()
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for whole in [record(), answered()] {
            assert_eq!(Record::decode(&whole.encode()), Some(whole.clone()));
            let bare = whole.without_session();
            assert!(!bare.is_resumable());
            assert_eq!(Record::decode(&bare.encode()), Some(bare));
        }
    }

    #[test]
    fn a_torn_or_foreign_record_is_not_read() {
        for bytes in [record().encode(), answered().encode()] {
            for len in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes.slice(..len)), None, "{len}");
            }
            let mut longer = bytes.to_vec();
            longer.push(0);
            assert_eq!(Record::decode(&longer.into()), None);
            for format in [0, 3, 9] {
                let mut other = bytes.to_vec();
                if let Some(version) = other.first_mut() {
                    *version = format;
                }
                assert_eq!(Record::decode(&other.into()), None);
            }
        }
    }
}
