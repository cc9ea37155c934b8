//! What is remembered of a session across a restart of the gateway.
//!
//! Calls are not in it: the journal has them. Wire id and principal belong to the gateway.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::client::{Announced, Client, Level};
use super::open::{version_of, with_known_version};
use super::port::{Output, Past, PastCall};
use super::{Handshake, Phase, Session, SessionConfig, Subscriptions};
use crate::call::Moment;
use crate::codec::{Reader, Writer};
use crate::error::Fault;
use crate::json::Pieces;
use crate::message::Message;
use crate::redelivery::StreamId;
use crate::seldom::Seldom;
use crate::upstream::Hello;
use crate::version::Version;

/// The format of [`Record::encode`]; a record of another one is not read.
const FORMAT: u8 = 1;

/// A session at rest.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record {
    /// The raw `params` of the client's `initialize`.
    pub params: Bytes,
    /// The raw `result` that it was answered with.
    pub result: Bytes,
    initialized: bool,
    level: Option<Bytes>,
    subscriptions: BTreeSet<Box<str>>,
    is_full: bool,
}

impl Record {
    /// The record as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = Writer::new(FORMAT);
        out.bytes(&self.params);
        out.bytes(&self.result);
        out.flag(self.initialized);
        out.optional(self.level.as_deref());
        out.flag(self.is_full);
        out.number(self.subscriptions.len() as u64);
        for uri in &self.subscriptions {
            out.bytes(uri.as_bytes());
        }
        out.finish()
    }

    /// Reads what [`Self::encode`] wrote; `None` for anything else.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut input = Reader::new(bytes, FORMAT)?;
        let mut record = Self {
            params: input.bytes()?,
            result: input.bytes()?,
            initialized: input.flag()?,
            level: input.optional()?,
            is_full: input.flag()?,
            subscriptions: BTreeSet::new(),
        };
        for _ in 0..input.number()? {
            record.subscriptions.insert(input.text()?.into_boxed_str());
        }
        input.is_done().then_some(record)
    }
}

impl Session {
    /// A session as it was when this record was made. Its client needs no new handshake; servers
    /// are greeted at their first use.
    ///
    /// `calls` are those that the journal holds as not finished: their streams can be resumed to
    /// hear what became of them.
    pub fn restore(
        config: SessionConfig,
        record: &Record,
        calls: Vec<PastCall>,
        now: Moment,
    ) -> Self {
        let base = config.base;
        let mut session = Self::new(config, now);
        session.faults.doubt_up_to(base);
        session.phase = Phase::Open;
        session.entries = Vec::new();
        session.was_used = true;
        session.initialized = record.initialized;
        session.version = Some(version_of(&record.result).unwrap_or(Version::ASSUMED));
        session.client = Client::of(&record.params);
        session.announced = Announced::of(&record.result);
        session.level = record.level.as_deref().and_then(Level::parse);
        if record.is_full || !record.subscriptions.is_empty() {
            session.subscriptions = Seldom::from(Subscriptions {
                uris: record.subscriptions.clone(),
                asked: BTreeSet::new(),
                is_full: record.is_full,
            });
        }
        let hello = Hello {
            params: with_known_version(&record.params),
        };
        if let Some(all) = &mut session.all {
            all.restore(hello.clone(), record.level.clone());
        }
        session.before.greeting = Some(hello);
        session.handshake = Handshake {
            params: record.params.clone(),
            result: record.result.clone(),
        };
        for call in calls {
            if session.downstream == super::Downstream::Socket {
                session.restore_frame(call);
            } else {
                session.restore_call(now, call);
            }
        }
        session.on_socket_cut(now);
        if session.redelivery.bytes() > 0 {
            session.say_held();
        }
        session
    }

    /// The last frame of the client that was taken before the restart.
    #[must_use]
    pub fn taken_up_to(mut self, frame: u64) -> Self {
        if frame > 0 {
            self.socket.set_taken(frame);
        }
        self
    }

    fn restore_call(&mut self, now: Moment, call: PastCall) {
        if let Past::Answered(body) = &call.fate {
            let message = Message::parse(body.clone()).ok();
            if let Some(fault) = message.as_ref().and_then(Fault::of_response) {
                self.faults.note(call.number, &fault);
            }
            let id = message.and_then(|message| message.id());
            let stream = StreamId::of(call.number);
            self.redelivery.open(stream, &id.unwrap_or_default());
            let data = Pieces::from(body.clone());
            self.redelivery
                .push(now, &self.settings, stream, &data, true);
        }
        self.before.calls.insert(call.number, call.fate);
    }

    /// Hands out what must outlive the process, before the client can rely on it (I10).
    pub(super) fn persist(&mut self) {
        if self.phase != Phase::Open {
            return;
        }
        let level = self.level.map(Level::raw);
        let record = Record {
            params: self.handshake.params.clone(),
            result: self.handshake.result.clone(),
            initialized: self.initialized,
            level: level.map(|raw| Bytes::from_static(raw.as_bytes())),
            subscriptions: self.subscriptions.uris.clone(),
            is_full: self.subscriptions.is_full,
        };
        self.out.push_back(Output::Persist(Box::new(record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written_and_not_when_torn() {
        let record = Record {
            params: r#"{"protocolVersion":"2025-11-25"}"#.into(),
            result: "{}".into(),
            initialized: true,
            level: Some("\"error\"".into()),
            subscriptions: BTreeSet::from(["a".into(), "é".into()]),
            is_full: false,
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Some(record));
        for len in 0..bytes.len() {
            assert_eq!(Record::decode(&bytes.slice(..len)), None, "{len}");
        }
    }
}
