//! The clients: what they do, and what they make of what they hear.

use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{CallKey, SessionKey};
use springline_proto::error::{Fault, FaultKind};
use springline_proto::message::{Kind, Message};
use springline_proto::settings::StateLossPolicy;
use springline_proto::upstream::{Hello, Input, Passing, SessionEvent};

use crate::book::{Record, Violation, number_in, request};
use crate::plan::{Ask, Deed};
use crate::world::{Event, LATE_MAX, World};

impl World {
    pub(crate) fn act(&mut self, at: usize, deed: Deed) {
        match deed {
            Deed::Start => self.start(at),
            Deed::Call { ask, progress } => self.call(at, ask, progress),
            Deed::Cancel { back } => self.cancel(at, back),
            Deed::Notify => {
                let text = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;
                if let Ok(message) = Message::parse(text) {
                    self.feed(at, Input::Notify { message });
                }
            }
            Deed::Attach(attached) => self.feed(at, Input::Attached(attached)),
            Deed::Retire => self.feed(at, Input::Retire),
            Deed::Close { end_session } => self.close(at, end_session),
            Deed::LoseSessions => self.server.lose_sessions(),
            Deed::Down(span) => self.server.down_until = self.now.after(span),
            Deed::Rotate { known } => {
                self.server.credential += 1;
                if known {
                    self.server.source = self.server.credential;
                }
            }
            Deed::Kill => {
                let newest = self.seats[at].instances.keys().next_back().copied();
                if let Some(generation) = newest.filter(|_| !self.seats[at].http) {
                    self.exit(at, generation);
                }
            }
        }
    }

    fn record(&mut self, at: usize, ask: Option<Ask>, token: Option<String>) -> (CallKey, usize) {
        let number = self.book.len();
        let key = CallKey {
            session: SessionKey(at as u64),
            number: number as u64,
        };
        let number = self.book.open(Record {
            key,
            ask,
            accepted: self.now,
            cancelled: false,
            heard: None,
            arrivals: 0,
            moves: 0,
            executions: 0,
            token,
            asking: 0,
            asking_since: self.now,
            asked: Duration::ZERO,
        });
        self.seats[at].calls.push(number);
        (key, number)
    }

    fn start(&mut self, at: usize) {
        self.seats[at].hellos += 1;
        let version = self.seats[at].hellos;
        let params = format!(
            r#"{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"c","version":"{version}"}}}}"#
        );
        let (key, _) = self.record(at, None, None);
        let hello = Hello {
            params: Bytes::from(params),
        };
        self.feed(at, Input::Start { key, hello });
    }

    fn call(&mut self, at: usize, ask: Ask, progress: bool) {
        let id = self
            .random
            .pick(&["1", "\"1\"", "-7", "9007199254740993", "\"\\u0061\""]);
        let token = progress.then(|| self.random.pick(&["1", "\"1\"", "\"t\\/\""]));
        let (key, number) = self.record(at, Some(ask), token.map(str::to_owned));
        if let Ok(message) = Message::parse(request(number, ask, id, token)) {
            let call = Input::Call {
                key,
                message,
                stretches: true,
            };
            self.feed(at, call);
        }
    }

    fn cancel(&mut self, at: usize, back: u64) {
        let calls = &self.seats[at].calls;
        let back = usize::try_from(back).unwrap_or(0);
        let number = calls.len().checked_sub(back + 1).map(|place| calls[place]);
        let Some(number) = number else { return };
        let Some(record) = self.book.get_mut(number) else {
            return;
        };
        if record.ask.is_none() || record.heard.is_some() {
            return;
        }
        record.cancelled = true;
        let key = record.key;
        let text = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"bored"}}"#;
        let message = Message::parse(text)
            .ok()
            .filter(|_| self.random.chance(500));
        self.feed(at, Input::Cancel { key, message });
    }

    fn close(&mut self, at: usize, end_session: bool) {
        let seat = &mut self.seats[at];
        if !std::mem::replace(&mut seat.closed, true) && !end_session {
            seat.keeps_sessions = true;
            let kept: Vec<_> = seat
                .instances
                .values()
                .filter_map(|held| held.session.clone())
                .collect();
            for session in kept {
                self.server.known(&session, false);
            }
        }
        let fault = Fault::new(FaultKind::ShuttingDown);
        self.feed(at, Input::Close { fault, end_session });
    }

    /// A session hears something of its upstream.
    pub(crate) fn hear(
        &mut self,
        at: usize,
        session: SessionKey,
        event: SessionEvent,
    ) -> Result<(), Violation> {
        if session.0 != at as u64 {
            return Err(Violation::new(
                "I9",
                format!("#{at} speaks to {session:?}: {event:?}"),
            ));
        }
        let settings = &self.plan.settings;
        let bound = settings.call_timeout_max + LATE_MAX + Duration::from_millis(1);
        let now = self.now;
        match event {
            SessionEvent::Started { key, .. } => self.book.started(now, key, bound),
            SessionEvent::Answer { key, message } => self.book.answered(now, key, &message, bound),
            SessionEvent::Passing { key, passing } => self.passes(key, passing, bound),
            SessionEvent::Failed { key, fault, .. } => {
                self.passing.remove(&key);
                self.book.failed(now, key, &fault, bound)
            }
            SessionEvent::Notification { related, message } => self.notified(related, &message),
            SessionEvent::Request {
                related,
                instance,
                message,
            } => {
                self.asked(at, related, instance, &message);
                Ok(())
            }
            SessionEvent::StateLost { reason }
                if settings.on_state_loss == StateLossPolicy::Hide =>
            {
                Err(Violation::new(
                    "policy",
                    format!("state loss is told: {reason}"),
                ))
            }
            SessionEvent::StateLost { .. }
            | SessionEvent::Withdrawn { .. }
            | SessionEvent::InstanceGone { .. }
            | SessionEvent::Renewed { .. }
            | SessionEvent::ListChanged(_)
            | SessionEvent::Listed { .. } => Ok(()),
        }
    }

    /// Progress is for the call that it speaks of, under the client's own token, as it was sent.
    fn notified(&self, related: Option<CallKey>, message: &Message) -> Result<(), Violation> {
        let text = String::from_utf8_lossy(message.bytes());
        let Some(number) = number_in(&text, "n=") else {
            return Ok(());
        };
        let record = self.book.get(number);
        let token = record
            .and_then(|record| record.token.clone())
            .unwrap_or_default();
        let expected = format!(r#""progressToken":{token},"#);
        if related != record.map(|record| record.key) || !text.contains(&expected) {
            return Err(Violation::new("I9", format!("{related:?} got {text}")));
        }
        if record.is_some_and(|record| record.heard.is_some() || record.cancelled) {
            return Err(Violation::new(
                "I1",
                format!("progress after the end: {text}"),
            ));
        }
        Ok(())
    }

    /// The server asks; the client answers after a while, or says that it will not.
    fn asked(
        &mut self,
        at: usize,
        related: Option<CallKey>,
        instance: springline_proto::call::InstanceKey,
        message: &Message,
    ) {
        if message.kind() != Kind::Request {
            return;
        }
        let id = message.id().unwrap_or_default();
        let slow = self.random.chance(200);
        let span = if slow {
            self.random.millis(0, 8_000)
        } else {
            self.delay()
        };
        if let Some(key) = related {
            self.put(
                self.now,
                Event::Tell(at, Box::new(Input::Asking { key, begins: true })),
            );
        }
        let done = self.now.after(span);
        let text = r#"{"jsonrpc":"2.0","id":"ours","result":{"roots":[]}}"#;
        if let (Ok(message), true) = (Message::parse(text), self.random.chance(900)) {
            let reply = Input::Reply {
                instance,
                id,
                message,
            };
            self.put(done, Event::Tell(at, Box::new(reply)));
        }
        if let Some(key) = related {
            let done = done.after(Duration::from_nanos(1));
            self.put(
                done,
                Event::Tell(at, Box::new(Input::Asking { key, begins: false })),
            );
        }
    }

    /// A stretch of an answer: all of them together are the answer of a call that waits for it.
    fn passes(&mut self, key: CallKey, passing: Passing, bound: Duration) -> Result<(), Violation> {
        let broken = |what: &str| Err(Violation::new("I1", format!("{key}: {what}")));
        let number = self.book.number_of(key);
        let record = number.and_then(|number| self.book.get(number));
        if record.is_none_or(|record| record.cancelled || record.heard.is_some()) {
            return broken("nobody waits for what passes");
        }
        if let Passing::Begin { .. } = passing {
            return match self.passing.insert(key, Vec::new()) {
                None => Ok(()),
                Some(_) => broken("its answer begins twice"),
            };
        }
        let Some(body) = self.passing.get_mut(&key) else {
            return broken("it passes before it begins");
        };
        match passing {
            Passing::Begin { .. } => Ok(()),
            Passing::Bytes(bytes) => {
                body.extend_from_slice(&bytes);
                Ok(())
            }
            Passing::Id => {
                body.extend_from_slice(b"\"own\"");
                Ok(())
            }
            Passing::End => {
                let body = self.passing.remove(&key).unwrap_or_default();
                match Message::parse(body) {
                    Ok(message) if message.id().as_deref() == Some(b"\"own\"") => {
                        self.book.answered(self.now, key, &message, bound)
                    }
                    _ => broken("what passed is not its answer"),
                }
            }
        }
    }

    /// Keeps the clock of a call as the machine should.
    pub(crate) fn clock(&mut self, key: CallKey, begins: bool) {
        let now = self.now;
        let Some(number) = self.book.number_of(key) else {
            return;
        };
        let Some(record) = self.book.get_mut(number) else {
            return;
        };
        if begins {
            if record.asking == 0 {
                record.asking_since = now;
            }
            record.asking += 1;
        } else if record.asking > 0 {
            record.asking -= 1;
            if record.asking == 0 {
                record.asked += now.since(record.asking_since);
            }
        }
    }
}
