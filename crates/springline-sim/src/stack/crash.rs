//! The death of the gateway between two outputs, what outlives it, and its return.
//!
//! Owns the journal and the records at rest. What was made durable before the kill is there; what
//! came behind it never happened. The probes ask a copy of each restored machine what it still
//! knows (I10).

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use springline_proto::call::{CallKey, Connection, SessionKey};
use springline_proto::error::{Fault, Outcome};
use springline_proto::message::Message;
use springline_proto::session::{
    Input, Mark, Output, Part, Past, PastCall, Record as SessionRecord, Session,
};
use springline_proto::shared::Serving;
use springline_proto::upstream::{
    Input as UpstreamInput, Output as UpstreamOutput, Record, SessionEvent, Upstream,
    UpstreamConfig,
};

use super::{Happening, Spec};
use crate::book::{Heard, Violation};
use crate::world::{Event, Licence, Post, Running, Seat, World};

/// What a kill brings with it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Killed {
    pub(super) shut: bool,
    pub(super) lose_answers: bool,
}

/// A call in the journal.
#[derive(Clone, Debug)]
pub(super) enum Held {
    Accepted,
    Sent,
    Answered(Bytes),
}

impl Held {
    pub(super) fn sent(&mut self) {
        if matches!(self, Self::Accepted) {
            *self = Self::Sent;
        }
    }
}

/// What a client must be told of a call that was open when the gateway was killed.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    NotSent,
    Sent,
    Lost,
    Answered(Bytes),
}

/// The outcome that an error of the gateway's own names; none for any other answer.
pub(super) fn outcome_of(message: &Message) -> Option<Heard> {
    Some(match Fault::of_response(message)?.outcome {
        Outcome::NotExecuted => Heard::NotExecuted,
        Outcome::Unknown => Heard::Unknown,
        Outcome::Executed => Heard::Executed,
    })
}

impl World {
    pub(super) fn keep_mark(&mut self, key: CallKey, mark: Mark) {
        match mark {
            Mark::Accepted { .. } => {
                if let Some(number) = self.stack.sending.take() {
                    self.stack.calls[number].number = Some(key.number);
                }
                if self.stack.journal.insert(key, Held::Accepted).is_some() {
                    self.hold(Err(Violation::new("I10", format!("{key} comes twice"))));
                }
            }
            Mark::Answered(body) => {
                let held = Held::Answered(body.to_bytes());
                self.stack.journal.insert(key, held);
            }
            Mark::Settled => {
                self.stack.journal.remove(&key);
            }
        }
    }

    /// The record of an upstream goes to rest, or goes.
    pub(crate) fn keep_upstream(
        &mut self,
        at: usize,
        record: Option<&Record>,
    ) -> Result<(), Violation> {
        if self.stack.is_empty() {
            return Ok(());
        }
        // The record of one that leaves is another's now, even if it began to write before: to look and
        // to write is one step.
        if self.stack.store_fails || self.seats[at].post != Post::Serves {
            return Ok(());
        }
        let seat = &self.seats[at];
        let place = (seat.session, Arc::clone(&seat.server));
        let Some(record) = record else {
            self.stack.records.remove(&place);
            return Ok(());
        };
        let bytes = record.encode();
        if Record::decode(&bytes).as_ref() != Some(record) {
            return Err(Violation::new("I10", "a record does not read back"));
        }
        // A kill must find the session that serves, not one that was left.
        let route = &record.route;
        let serving = seat.instances.get(&record.generation);
        let over = serving.is_none_or(|running| running.over);
        if seat.http && record.is_resumable() && over {
            let what = format!("#{at} keeps {route:?}, which is over");
            return Err(Violation::new("I10", what));
        }
        let who = seat.spec.as_ref().map(Spec::who).unwrap_or_default();
        self.stack.records.insert(place, (who, bytes));
        Ok(())
    }

    /// The upstream that wrote this record has a successor: the session that it is about to end does
    /// not stand there any more.
    pub(super) fn pass_record(&mut self, session: SessionKey, server: &Arc<str>) {
        if self.stack.store_fails {
            return;
        }
        let place = (session, Arc::clone(server));
        if let Some((_, bytes)) = self.stack.records.get_mut(&place)
            && let Some(record) = Record::decode(bytes)
        {
            *bytes = record.without_session().encode();
        }
    }

    /// The gateway is gone, with everything that was not at rest.
    pub(crate) fn crash(&mut self) -> Result<(), Violation> {
        let now = self.now;
        self.trace
            .note([3, 0, 0, 0], b"", format_args!("{:?} KILLED", now.0));
        self.stack.is_crashing = false;
        self.stack.fuse = None;
        self.stack.is_down = true;
        self.stack.epoch += 1;
        self.stack.generations.clear();
        self.stack.globals.clear();
        self.stack.global_ways.clear();
        self.stack.parted.clear();
        for at in 0..self.seats.len() {
            self.bury(at);
        }
        // Whatever is not at rest is forgotten, and left to expire.
        self.server.know_none();
        self.lose_waiting();
        for at in 0..self.stack.desks.len() {
            self.cut_off(at)?;
        }
        if self.stack.killed.shut {
            self.server.shut_sessions();
        }
        if self.stack.killed.lose_answers {
            self.lose_answers();
        }
        self.set_fates();
        let when = now.after(self.random.millis(0, 3_000));
        self.happen_at(when, Happening::Restart);
        Ok(())
    }

    fn bury(&mut self, at: usize) {
        if std::mem::replace(&mut self.seats[at].dead, true) {
            return;
        }
        self.seats[at].armed = None;
        let instances = &self.seats[at].instances;
        let alive: Vec<_> = instances
            .iter()
            .filter(|(_, running)| running.alive)
            .map(|(generation, _)| *generation)
            .collect();
        for generation in alive {
            // The child reads on for a while.
            let when = self.now.after(self.random.millis(0, 2_000));
            self.put(when, Event::Exit(at, generation));
        }
    }

    fn cut_off(&mut self, at: usize) -> Result<(), Violation> {
        let desk = &mut self.stack.desks[at];
        desk.stale |= self.stack.store_fails;
        if desk.machine.take().is_none() {
            return Ok(());
        }
        desk.armed = None;
        desk.main = None;
        desk.ways.clear();
        desk.exchanges.clear();
        desk.streams.clear();
        // Without a record the client will find out that it has no session any more.
        desk.closing |= desk.stale && desk.record.is_none();
        if desk.opened && desk.record.is_none() && !desk.stale {
            let what = format!("desk {at} has its answer, and no record is at rest");
            return Err(Violation::new("I10", what));
        }
        for number in desk.calls.clone() {
            self.stack.calls[number].broken = true;
        }
        Ok(())
    }

    /// The bodies of answers are gone; what kind they were is not.
    fn lose_answers(&mut self) {
        for held in self.stack.journal.values_mut() {
            let Held::Answered(body) = held else { continue };
            let message = Message::parse(body.clone()).ok();
            match message.as_ref().and_then(outcome_of) {
                Some(Heard::NotExecuted) => *held = Held::Accepted,
                Some(Heard::Unknown) => *held = Held::Sent,
                _ => *held = Held::Answered(Bytes::new()),
            }
        }
    }

    fn set_fates(&mut self) {
        for call in &mut self.stack.calls {
            let Some(number) = call.number.filter(|_| call.answer.is_none()) else {
                continue;
            };
            let session = self.stack.desks[call.desk].key;
            call.fate = match self.stack.journal.get(&CallKey { session, number }) {
                None => continue,
                Some(Held::Accepted) => Some(Fate::NotSent),
                Some(Held::Sent) => Some(Fate::Sent),
                Some(Held::Answered(body)) if body.is_empty() => Some(Fate::Lost),
                Some(Held::Answered(body)) => Some(Fate::Answered(body.clone())),
            };
        }
    }

    /// A new process: sessions come back, upstreams when they are needed.
    pub(super) fn restart(&mut self) {
        self.stack.is_down = false;
        self.stack.store_failed |= std::mem::take(&mut self.stack.store_fails);
        let at_rest: BTreeMap<SessionKey, usize> = self
            .stack
            .desks
            .iter()
            .enumerate()
            .filter(|(_, desk)| desk.record.is_some())
            .map(|(at, desk)| (desk.key, at))
            .collect();
        // What belongs to no session, or to no entry, is removed and left to expire.
        let mut records = std::mem::take(&mut self.stack.records);
        records.retain(|(session, server), _| {
            let used = if *session == SessionKey::SHARED {
                at_rest.values().any(|at| {
                    let own = self.stack.desks[*at].stand.entry;
                    let own = own.map(|entry| &self.stack.entries[entry].name);
                    own.is_none_or(|name| self.stack.instance_of(name).as_ref() == Some(server))
                })
            } else {
                at_rest.contains_key(session)
            };
            used && self.stack.spec_at(*session, server).is_some()
        });
        self.stack.records = records;
        self.stack
            .journal
            .retain(|key, _| at_rest.contains_key(&key.session));
        let records = self.stack.records.iter();
        let records: Vec<(bool, Bytes)> = records
            .map(|((session, server), (who, record))| {
                (self.stack.is_of(*session, server, *who), record.clone())
            })
            .collect();
        for (resumes, record) in records {
            // One of another definition is not used again.
            let Some(record) = Record::decode(&record).filter(|_| resumes) else {
                continue;
            };
            let Some(id) = record.route.session_id else {
                continue;
            };
            if self.stack.store_failed {
                self.server.is_known_again(&id);
                continue;
            }
            if self.server.is_ending(&id) {
                let what = format!("the record of {id} outlives its end");
                self.hold(Err(Violation::new("I10", what)));
            }
            self.server.known(&id, true);
        }
        for at in at_rest.into_values() {
            if let Err(violation) = self.restore(at) {
                self.hold(Err(violation));
            }
        }
    }

    fn restore(&mut self, at: usize) -> Result<(), Violation> {
        let desk = &self.stack.desks[at];
        let (key, pipe, opened, closing) = (desk.key, desk.stand.pipe, desk.opened, desk.closing);
        let record = desk.record.as_ref().and_then(SessionRecord::decode);
        let Some(record) = record else {
            return Err(Violation::new("I10", format!("desk {at} cannot be read")));
        };
        self.probe(at, &record)?;
        let open = self.stack.journal.iter();
        let calls = open
            .filter(|(call, _)| call.session == key)
            .map(|(call, held)| PastCall {
                number: call.number,
                frame: 0,
                fate: match held {
                    Held::Accepted => Past::NotSent,
                    Held::Sent => Past::Sent,
                    Held::Answered(body) if body.is_empty() => Past::Lost,
                    Held::Answered(body) => Past::Answered(body.clone()),
                },
            })
            .collect();
        let config = self.stack.config(at);
        let session = Session::restore(config, &record, calls, self.now);
        self.stack.desks[at].machine = Some(session);
        if closing || !opened {
            // Nobody knows it: it expires.
            self.stack.desks[at].closing = true;
            self.tell_desk(at, Input::Close);
        } else if pipe {
            self.attach_pipe(at);
        }
        Ok(())
    }

    /// Asks a copy of the restored session what it still knows.
    fn probe(&self, at: usize, record: &SessionRecord) -> Result<(), Violation> {
        let desk = &self.stack.desks[at];
        if !desk.opened || desk.closing || !desk.initialized || desk.stale {
            return Ok(());
        }
        let config = self.stack.config(at);
        let mut copy = Session::restore(config, record, Vec::new(), self.now);
        let connection = Connection(u64::MAX);
        let cursor = None;
        copy.handle(self.now, Input::StreamOpened { connection, cursor });
        while copy.poll().is_some() {}
        let own = desk.stand.entry.unwrap_or(0);
        let mut hears = |entry: usize, text: &str| {
            let Ok(message) = Message::parse(text.to_owned()) else {
                return false;
            };
            let server = Arc::clone(&self.stack.entries[entry].name);
            let related = None;
            let event = SessionEvent::Notification { related, message };
            copy.handle(self.now, Input::Upstream { server, event });
            let mut heard = false;
            while let Some(output) = copy.poll() {
                let part = matches!(
                    output,
                    Output::ToStream {
                        part: Part::Event { .. },
                        ..
                    }
                );
                heard |= part;
            }
            heard
        };
        let log = |level: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"{level}"}}}}"#
            )
        };
        if !hears(own, &log("emergency")) {
            let what = format!("desk {at}: `initialized` is forgotten");
            return Err(Violation::new("I10", what));
        }
        if !desk.levelled.is_empty() && hears(own, &log("debug")) {
            let what = format!("desk {at}: its log level is forgotten");
            return Err(Violation::new("I10", what));
        }
        let updated = r#"{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"sim://a"}}"#;
        for entry in &desk.subscribed {
            if !hears(*entry, updated) {
                let what = format!("desk {at}: a subscription is forgotten");
                return Err(Violation::new("I10", what));
            }
        }
        Ok(())
    }

    /// An upstream that goes on with what is at rest.
    pub(super) fn resumed_seat(
        &mut self,
        config: UpstreamConfig,
        record: Record,
        http: bool,
        session: SessionKey,
        serve: impl FnOnce(Upstream) -> Serving,
    ) -> Seat {
        let resumes = http && record.is_resumable();
        // Sessions tell a shared one themselves what they had set up.
        if resumes && session != SessionKey::SHARED {
            let held = self.probe_upstream(&config, &record, session);
            self.hold(held);
        }
        let (generation, route) = (record.generation, record.route.clone());
        let machine = Upstream::resume(config, record, self.now);
        let mut seat = Seat::with(serve(machine), http, session);
        seat.licence = Licence {
            resumed: resumes,
            opens: u32::from(!resumes),
            ..Licence::default()
        };
        seat.opens = 1;
        if resumes {
            let running = Running::resumed(self.now, route.session_id);
            seat.instances.insert(generation, running);
        }
        seat
    }

    /// Asks a copy of the resumed upstream whether it makes the client's subscription again.
    fn probe_upstream(
        &self,
        config: &UpstreamConfig,
        record: &Record,
        session: SessionKey,
    ) -> Result<(), Violation> {
        let desk = &self.stack.desks[usize::try_from(session.0).unwrap_or(0)];
        let entry = self.stack.entry_of(&config.server);
        if !desk.subscribed.contains(&entry) || desk.stale {
            return Ok(());
        }
        let mut copy = Upstream::resume(config.clone(), record.clone(), self.now);
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#;
        let Ok(message) = Message::parse(text) else {
            return Ok(());
        };
        let number = u64::MAX;
        let key = CallKey { session, number };
        let stretches = false;
        let call = UpstreamInput::Call {
            key,
            message,
            stretches,
        };
        copy.handle(self.now, call);
        let mut subscribes = false;
        while let Some(output) = copy.poll() {
            if let UpstreamOutput::Send { body, .. } = output {
                let body = body.to_bytes();
                subscribes |= String::from_utf8_lossy(&body).contains("resources/subscribe");
            }
        }
        if subscribes {
            return Ok(());
        }
        let what = format!("{session:?}: a subscription with {entry} is forgotten");
        Err(Violation::new("I10", what))
    }

    /// At rest the journal holds answers that may be fetched, and what was open at a kill.
    pub(super) fn check_journal(&self) -> Result<(), Violation> {
        let epoch = self.stack.epoch;
        let left =
            self.stack.journal.iter().find(|(key, held)| {
                key.number >> 32 == epoch && !matches!(held, Held::Answered(_))
            });
        left.map_or(Ok(()), |(key, held)| {
            let what = format!("the journal keeps {key}: {held:?}");
            Err(Violation::new("I8", what))
        })
    }
}
