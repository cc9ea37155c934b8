//! What clients do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{CallKey, ClientExchange, Connection};
use springline_proto::message::Message;
use springline_proto::session::{Accept, Input, Session};

use super::crash::{Fate, Killed};
use super::{Act, Happening, Line, Named};
use crate::book::{Record, request};
use crate::plan::{Ask, Deed};
use crate::world::World;

/// A request as its client knows it; the book has the rest.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts, each true or not on its own"
)]
pub(super) struct Call {
    pub(super) desk: usize,
    pub(super) entry: usize,
    pub(super) ask: Option<Ask>,
    /// The raw id.
    pub(super) id: String,
    /// The process that took it.
    pub(super) epoch: u64,
    /// The session's number for it.
    pub(super) number: Option<u64>,
    /// Cursors that its client saw, in order.
    pub(super) cursors: Vec<Arc<str>>,
    pub(super) answer: Option<Bytes>,
    /// The connection that carried it is gone.
    pub(super) broken: bool,
    /// It was never accepted.
    pub(super) refused: bool,
    /// The gateway was killed meanwhile; what it must say now.
    pub(super) fate: Option<Fate>,
    /// It was killed before it could write down how far the call had come.
    pub(super) doubted: bool,
    /// The session itself answers.
    pub(super) local: bool,
    /// A shared upstream granted it: its server did so already for another session.
    pub(super) granted: bool,
    /// How often its entry had been removed when it was sent.
    pub(super) removals: u64,
    /// The last `initialize` of its client before it.
    pub(super) hello: usize,
}

impl World {
    pub(super) fn do_act(&mut self, client: usize, act: Act) {
        if self.trace.is_kept() {
            let line = format!("{:?} {client} {act:?}", self.now.0);
            self.trace.note([0; 4], b"", format_args!("{line}"));
        }
        let at = self.stack.clients[client];
        match act {
            Act::LoseSessions => return self.server.lose_sessions(),
            Act::Down(span) => {
                self.server.down_until = self.now.after(span);
                return;
            }
            Act::Rotate { known } => {
                let deed = Deed::Rotate { known };
                return self.act(usize::MAX, deed);
            }
            Act::Kill => return self.kill_child(),
            Act::Reload { entry, change } => return self.reload(entry, change),
            Act::DiskFails { journal, records } => return self.disk_fails(journal, records),
            Act::DiskHeals => return self.disk_heals(),
            Act::StoreFails => {
                self.stack.store_fails |= !self.stack.is_down;
                return;
            }
            Act::Crash {
                outputs,
                shut,
                lose_answers,
            } => {
                if !self.stack.is_down && self.stack.fuse.is_none() {
                    self.stack.fuse = Some(outputs);
                    self.stack.killed = Killed { shut, lose_answers };
                }
                return;
            }
            _ => {}
        }
        if self.stack.is_down {
            // Nobody listens.
            return;
        }
        match act {
            Act::Open => self.open_session(client),
            Act::Again if self.stack.desks[at].stand.pipe => self.initialize_again(at),
            Act::Call {
                ask,
                progress,
                json,
                same_id,
                entry,
            } => self.call_server(at, ask, progress, json, same_id, entry),
            Act::Cancel { back } => self.take_back(at, back),
            Act::Notify => {
                self.say_to(
                    at,
                    r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
                );
            }
            Act::Break { back } => self.break_post(at, back),
            Act::Listen(named) => self.listen_to(at, named),
            Act::Leave => self.leave(at),
            Act::Resume { back, named } => self.resume_call(at, back, named),
            Act::Close if self.stack.desks[at].opened => {
                self.stack.desks[at].closing = true;
                self.tell_desk(at, Input::Close);
            }
            _ => {}
        }
    }

    fn kill_child(&mut self) {
        let alive = |seat: &crate::world::Seat| !seat.dead && !seat.http;
        let Some(at) = self.seats.iter().position(alive) else {
            return;
        };
        let newest = self.seats[at].instances.keys().next_back().copied();
        if let Some(generation) = newest {
            self.exit(at, generation);
        }
    }

    fn open_session(&mut self, client: usize) {
        let mut at = self.stack.clients[client];
        let desk = &self.stack.desks[at];
        let pipe = desk.stand.pipe;
        if desk.machine.is_some() && !desk.closing {
            if pipe && desk.main.is_none() {
                self.attach_pipe(at);
            }
            let desk = &self.stack.desks[at];
            if pipe && !desk.opened && !self.opens(at) {
                self.initialize(at);
            }
            return;
        }
        if !desk.calls.is_empty() {
            at = self.new_desk(desk.stand);
            self.stack.clients[client] = at;
        }
        let config = self.stack.config(at);
        if self.stack.desks[at].stand.entry.is_some() && config.entries.is_empty() {
            // There is no such endpoint.
            return;
        }
        self.stack.desks[at].machine = Some(Session::new(config, self.now));
        if pipe {
            self.attach_pipe(at);
        }
        self.initialize(at);
    }

    /// Whether an `initialize` of this client waits for its answer.
    fn opens(&self, at: usize) -> bool {
        self.stack.desks[at].calls.iter().any(|number| {
            let call = &self.stack.calls[*number];
            call.ask.is_none() && call.answer.is_none() && call.epoch == self.stack.epoch
        })
    }

    pub(super) fn attach_pipe(&mut self, at: usize) {
        let connection = Connection(self.stack.ordinal());
        let desk = &mut self.stack.desks[at];
        desk.main = Some(connection);
        desk.streams.insert(connection, Line::default());
        let cursor = None;
        self.tell_desk(at, Input::StreamOpened { connection, cursor });
    }

    fn initialize_again(&mut self, at: usize) {
        let desk = &self.stack.desks[at];
        if !desk.opened || desk.main.is_none() || self.opens(at) {
            return;
        }
        let desk = &mut self.stack.desks[at];
        desk.subscribed.clear();
        desk.levelled.clear();
        desk.initialized = false;
        self.initialize(at);
    }

    fn initialize(&mut self, at: usize) {
        let version = self
            .random
            .pick(&["2025-11-25", "2025-11-25", "2025-06-18", "2025-03-26"]);
        let roots = self.random.pick(&["", r#""roots":{}"#, r#""roots":{}"#]);
        let id = self.fresh_id(at);
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{{roots}}},"clientInfo":{{"name":"c","version":"{id}"}}}}}}"#
        );
        let call = Call {
            desk: at,
            id,
            local: true,
            ..Call::default()
        };
        self.ask(at, call, None, &text, Accept::Both);
    }

    fn fresh_id(&mut self, at: usize) -> String {
        let desk = &mut self.stack.desks[at];
        desk.next_id += 1;
        (1000 + desk.next_id).to_string()
    }

    fn call_server(
        &mut self,
        at: usize,
        ask: Ask,
        progress: bool,
        json: bool,
        same_id: bool,
        entry: usize,
    ) {
        let desk = &self.stack.desks[at];
        if !desk.opened || desk.closing || desk.stand.pipe && desk.main.is_none() {
            return;
        }
        let own = desk.stand.entry;
        let all = own.is_none();
        let entry = own.unwrap_or(entry);
        let id = if same_id {
            let id = self
                .random
                .pick(&["1", "\"1\"", "-7", "9007199254740993", "\"\\u0061\""]);
            id.to_owned()
        } else {
            self.fresh_id(at)
        };
        let local = all && matches!(ask, Ask::List | Ask::SetLevel | Ask::Other);
        // Nobody else says that there is no such thing.
        let absent = all && self.stack.entries[entry].spec.is_none();
        let token = progress.then(|| self.random.pick(&["1", "\"1\"", "\"t\\/\""]));
        let number = self.book.len();
        let mut text = request(number, ask, &id, token);
        if all && !local {
            let name = &self.stack.entries[entry].name;
            text = text
                .replace("\"name\":\"", &format!("\"name\":\"{name}__"))
                .replace("\"uri\":\"", &format!("\"uri\":\"springline://{name}/"));
        }
        let call = Call {
            desk: at,
            entry,
            ask: Some(ask),
            id,
            local: local || absent,
            ..Call::default()
        };
        let accept = if json { Accept::Json } else { Accept::Both };
        self.ask(at, call, token, &text, accept);
    }

    /// How often this client sent `initialize` on its session.
    pub(super) fn hello_of(&self, at: usize) -> usize {
        let calls = self.stack.desks[at].calls.iter();
        calls
            .filter(|number| self.stack.calls[**number].ask.is_none())
            .count()
    }

    /// Sends a request and remembers it.
    fn ask(&mut self, at: usize, mut call: Call, token: Option<&str>, text: &str, accept: Accept) {
        let Ok(message) = Message::parse(text.to_owned()) else {
            return;
        };
        call.epoch = self.stack.epoch;
        call.hello = self.hello_of(at);
        call.removals = self.stack.entries[call.entry].removals;
        let twin = self.stack.desks[at].calls.iter().any(|number| {
            let other = &self.stack.calls[*number];
            other.id == call.id && other.answer.is_none() && !other.refused
        });
        let number = self.book.len();
        let session = self.stack.desks[at].key;
        self.book.open(Record {
            key: CallKey {
                session,
                number: number as u64,
            },
            ask: call.ask,
            accepted: self.now,
            cancelled: false,
            heard: None,
            arrivals: 0,
            moves: 0,
            executions: 0,
            token: token.map(str::to_owned),
            asking: 0,
            asking_since: self.now,
            asked: Duration::ZERO,
        });
        self.stack.calls.push(call);
        self.stack.desks[at].calls.push(number);
        let pipe = self.stack.desks[at].stand.pipe;
        let exchange = (!pipe).then(|| ClientExchange(self.stack.ordinal()));
        if let Some(exchange) = exchange {
            let line = Line {
                call: Some(number),
                ..Line::default()
            };
            self.stack.desks[at].exchanges.insert(exchange, line);
        }
        self.stack.duplicate = (pipe && twin).then_some(number);
        self.stack.sending = Some(number);
        self.tell_desk(
            at,
            Input::Message {
                exchange,
                accept,
                message,
            },
        );
        self.stack.sending = None;
        self.stack.duplicate = None;
    }

    /// Sends a notification or an answer.
    pub(super) fn say_to(&mut self, at: usize, text: &str) {
        let desk = &self.stack.desks[at];
        let mute = desk.stand.pipe && desk.main.is_none();
        let Ok(message) = Message::parse(text.to_owned()) else {
            return;
        };
        if mute || !desk.opened {
            return;
        }
        let pipe = desk.stand.pipe;
        let confirms = text.contains("notifications/initialized");
        let exchange = (!pipe).then(|| ClientExchange(self.stack.ordinal()));
        if let Some(exchange) = exchange {
            let line = Line {
                confirms,
                ..Line::default()
            };
            self.stack.desks[at].exchanges.insert(exchange, line);
        }
        let accept = Accept::Both;
        self.tell_desk(
            at,
            Input::Message {
                exchange,
                accept,
                message,
            },
        );
    }

    fn take_back(&mut self, at: usize, back: u64) {
        let epoch = self.stack.epoch;
        let open = |number: &&usize| {
            let call = &self.stack.calls[**number];
            call.ask.is_some() && call.answer.is_none() && !call.refused && call.epoch == epoch
        };
        let back = usize::try_from(back).unwrap_or(0);
        let calls = &self.stack.desks[at].calls;
        let Some(number) = calls.iter().rev().filter(open).nth(back).copied() else {
            return;
        };
        let id = self.stack.calls[number].id.clone();
        let last = calls.iter().rev().find(|n| self.stack.calls[**n].id == id);
        let desk = &self.stack.desks[at];
        let mute = !desk.opened || desk.stand.pipe && desk.main.is_none();
        if last != Some(&number) || mute {
            return;
        }
        if let Some(record) = self.book.get_mut(number) {
            if record.cancelled {
                return;
            }
            record.cancelled = true;
        }
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"bored"}}}}"#
        );
        self.say_to(at, &text);
    }

    fn break_post(&mut self, at: usize, back: u64) {
        let back = usize::try_from(back).unwrap_or(0);
        let desk = &mut self.stack.desks[at];
        let mut open = desk.exchanges.iter().rev();
        let open = open.by_ref().filter(|(_, line)| line.call.is_some());
        let Some(exchange) = open.map(|(exchange, _)| *exchange).nth(back) else {
            return;
        };
        let line = desk.exchanges.remove(&exchange);
        if let Some(number) = line.and_then(|line| line.call) {
            let call = &mut self.stack.calls[number];
            call.broken = true;
            // The session's id was in that answer.
            desk.closing |= call.ask.is_none();
        }
        let when = self.now.after(self.random.millis(0, 5));
        let input = Box::new(Input::ExchangeGone(exchange));
        let epoch = self.stack.epoch;
        self.happen_at(when, Happening::Tell(epoch, at, input));
    }

    /// The cursor that a client names, of its own `seen` or another's.
    fn cursor(&mut self, at: usize, named: Named, seen: &[Arc<str>]) -> Option<Arc<str>> {
        match named {
            Named::None => None,
            Named::Last => seen.last().cloned(),
            Named::Older => {
                let place = self.random.below(seen.len() as u64);
                seen.get(usize::try_from(place).unwrap_or(0)).cloned()
            }
            Named::Foreign => {
                let others = self.stack.cursors.iter();
                let mut others = others.filter(|(_, (desk, _))| *desk != at);
                others.next().map(|(cursor, _)| Arc::clone(cursor))
            }
            Named::Forged => {
                let mut text = seen.last()?.to_string();
                let place = usize::try_from(self.random.below(text.len() as u64)).unwrap_or(0);
                let other = if text.as_bytes()[place] == b'A' {
                    "B"
                } else {
                    "A"
                };
                text.replace_range(place..=place, other);
                Some(text.into())
            }
        }
    }

    fn listen_to(&mut self, at: usize, named: Named) {
        let desk = &self.stack.desks[at];
        if desk.stand.pipe {
            if desk.main.is_none() && desk.machine.is_some() {
                self.attach_pipe(at);
            }
            return;
        }
        if !desk.opened || desk.closing {
            return;
        }
        let seen = desk.cursors.clone();
        let cursor = self.cursor(at, named, &seen);
        if cursor.is_none() && !matches!(named, Named::None) {
            return;
        }
        let foreign = matches!(named, Named::Foreign | Named::Forged);
        let connection = Connection(self.stack.ordinal());
        let line = Line {
            foreign,
            since: Some(self.now),
            seen: if matches!(named, Named::Last) {
                seen.into_iter().collect()
            } else {
                std::collections::BTreeSet::default()
            },
            ..Line::default()
        };
        let desk = &mut self.stack.desks[at];
        desk.streams.insert(connection, line);
        if !foreign {
            desk.main = Some(connection);
        }
        let cursor = cursor.map(|cursor| Box::from(&*cursor));
        self.tell_desk(at, Input::StreamOpened { connection, cursor });
    }

    fn leave(&mut self, at: usize) {
        let desk = &mut self.stack.desks[at];
        let Some(connection) = desk.main.take() else {
            return;
        };
        desk.streams.remove(&connection);
        let pipe = desk.stand.pipe;
        let input = Input::StreamClosed(connection);
        if pipe {
            self.tell_desk(at, input);
            return;
        }
        let when = self.now.after(self.random.millis(0, 5));
        let epoch = self.stack.epoch;
        self.happen_at(when, Happening::Tell(epoch, at, Box::new(input)));
    }

    fn resume_call(&mut self, at: usize, back: u64, named: Named) {
        let back = usize::try_from(back).unwrap_or(0);
        let held = |number: &&usize| {
            let cancelled = self.book.get(**number).is_none_or(|held| held.cancelled);
            !self.stack.calls[**number].cursors.is_empty() && !cancelled
        };
        let mut calls = self.stack.desks[at].calls.iter().rev().filter(held);
        if let Some(number) = calls.nth(back).copied() {
            self.resume_stream(at, number, named);
        }
    }

    fn resume_stream(&mut self, at: usize, number: usize, named: Named) {
        if self.stack.desks[at].machine.is_none() || !self.stack.desks[at].opened {
            return;
        }
        let seen = self.stack.calls[number].cursors.clone();
        let Some(cursor) = self.cursor(at, named, &seen) else {
            return;
        };
        let foreign = matches!(named, Named::Foreign | Named::Forged);
        let connection = Connection(self.stack.ordinal());
        let line = Line {
            call: (!foreign).then_some(number),
            foreign,
            since: Some(self.now),
            seen: if matches!(named, Named::Last) {
                seen.into_iter().collect()
            } else {
                std::collections::BTreeSet::default()
            },
            ..Line::default()
        };
        self.stack.desks[at].streams.insert(connection, line);
        let cursor = Some(Box::from(&*cursor));
        self.tell_desk(at, Input::StreamOpened { connection, cursor });
    }

    /// Everybody comes back for the answers that are owed.
    pub(super) fn fetch_all(&mut self) {
        for number in 0..self.stack.calls.len() {
            let call = &self.stack.calls[number];
            let owed = call.answer.is_none() && !call.refused && !call.cursors.is_empty();
            let cancelled = self.book.get(number).is_none_or(|held| held.cancelled);
            if owed && !cancelled {
                self.resume_stream(call.desk, number, Named::Last);
            }
        }
    }
}
