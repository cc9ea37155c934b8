//! What clients see, and what they make of it: the checks of I1, I4 and I9 at the outermost edge.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::{ClientExchange, Connection};
use springline_proto::message::{Kind, Message};
use springline_proto::session::Part;

use super::crash::{Fate, outcome_of};
use super::{Happening, Line};
use crate::book::{Heard, Violation, number_in, result};
use crate::plan::Ask;
use crate::world::World;

/// Which connection.
#[derive(Clone, Copy, Debug)]
enum Way {
    Post(ClientExchange),
    Get(Connection),
}

/// Whether a second answer says what the first one said in short, to one who came back with an older
/// cursor, or that nobody wrote the first one down.
fn is_told_again(before: &Bytes, message: &Message, doubted: bool, local: bool) -> bool {
    let own = outcome_of(message);
    let before_own = Message::parse(before.clone()).ok();
    let told = before_own.as_ref().and_then(outcome_of);
    let short = told.is_some() && told == own;
    // A list that the session gathered is never noted as sent.
    let is_doubt = own == Some(Heard::Unknown) || local && own == Some(Heard::NotExecuted);
    short || doubted && is_doubt
}

/// Whether an answer, or the outcome that it tells, is what this fate of the call allows.
fn is_fated(fate: &Fate, own: Option<Heard>, data: &Bytes) -> bool {
    let heard = own.unwrap_or(Heard::Answer);
    match fate {
        Fate::NotSent => heard == Heard::NotExecuted,
        Fate::Sent => heard == Heard::Unknown,
        Fate::Lost => heard == Heard::Executed,
        // In full, or what is still known of it.
        Fate::Answered(body) => {
            let held = Message::parse(body.clone()).ok();
            let told = held
                .as_ref()
                .and_then(outcome_of)
                .unwrap_or(Heard::Executed);
            body == data || own == Some(told)
        }
    }
}

/// Whether this may come between the bytes of a large answer, or behind them.
fn may_follow(part: &Part) -> bool {
    matches!(
        part,
        Part::Bytes(_) | Part::Close { .. } | Part::End | Part::Cut
    )
}

fn broken(rule: &'static str, what: String) -> Result<(), Violation> {
    Err(Violation::new(rule, what))
}

impl World {
    pub(super) fn see_exchange(
        &mut self,
        at: usize,
        exchange: ClientExchange,
        part: Part,
    ) -> Result<(), Violation> {
        self.see(at, Way::Post(exchange), part)
    }

    pub(super) fn see_stream(
        &mut self,
        at: usize,
        connection: Connection,
        part: Part,
    ) -> Result<(), Violation> {
        self.see(at, Way::Get(connection), part)
    }

    fn line(&mut self, at: usize, way: Way) -> Option<&mut Line> {
        let desk = &mut self.stack.desks[at];
        match way {
            Way::Post(exchange) => desk.exchanges.get_mut(&exchange),
            Way::Get(connection) => desk.streams.get_mut(&connection),
        }
    }

    fn forget_line(&mut self, at: usize, way: Way) {
        let desk = &mut self.stack.desks[at];
        match way {
            Way::Post(exchange) => desk.exchanges.remove(&exchange),
            Way::Get(connection) => {
                if desk.main == Some(connection) {
                    desk.main = None;
                }
                desk.streams.remove(&connection)
            }
        };
    }

    fn see(&mut self, at: usize, way: Way, part: Part) -> Result<(), Violation> {
        let pipe = self.stack.desks[at].stand.pipe;
        let Some(line) = self.line(at, way) else {
            // Its client is gone.
            return Ok(());
        };
        let (call, foreign) = (line.call, line.foreign);
        if line.open.is_some() && !may_follow(&part) {
            return broken("I1", format!("{part:?} in the midst of an answer"));
        }
        match part {
            Part::Accepted => {
                let confirms = line.confirms;
                self.stack.desks[at].initialized |= confirms;
                self.forget_line(at, way);
                match call {
                    Some(number) if !self.is_cancelled(number) => {
                        broken("I1", format!("202 to call {number}"))
                    }
                    _ => Ok(()),
                }
            }
            Part::Json(body) => {
                self.forget_line(at, way);
                let Some(number) = call else {
                    return broken("I1", format!("{body:?} answers no request"));
                };
                self.see_answer(number, body.to_bytes())
            }
            Part::Refuse { status, .. } => {
                self.forget_line(at, way);
                if foreign && status == 400 {
                    return Ok(());
                }
                match (way, call) {
                    (Way::Post(_), Some(number)) => self.see_refusal(at, number),
                    (Way::Get(_), _) if !foreign && status == 400 => {
                        broken("I1", format!("desk {at}: its own cursor is refused"))
                    }
                    _ => Ok(()),
                }
            }
            Part::Begin if line.begun || foreign => broken(
                "I9",
                format!("desk {at}: {way:?} begins, foreign {foreign}"),
            ),
            Part::Begin => {
                line.begun = true;
                Ok(())
            }
            Part::Event { id, data, .. } => {
                if !line.begun && !pipe {
                    return broken("I1", format!("an event before {way:?} began"));
                }
                self.see_event(at, way, call, id, data.to_bytes())
            }
            Part::Open { .. }
            | Part::OpenEvent
            | Part::Bytes(_)
            | Part::Close { .. }
            | Part::Cut => self.see_passing(at, way, call, part),
            // No client of this scene speaks in frames.
            Part::Welcome(_) | Part::Frame { .. } => broken("I1", "a frame".to_owned()),
            Part::End => self.see_last(at, way),
        }
    }

    /// A stream is over, or a large answer.
    fn see_last(&mut self, at: usize, way: Way) -> Result<(), Violation> {
        let Some(line) = self.line(at, way) else {
            return Ok(());
        };
        let (open, is_event, call) = (line.open.take(), line.begun, line.call);
        self.forget_line(at, way);
        match (open, way, call) {
            (Some((body, len)), _, Some(number)) => {
                let is_whole = len.is_none_or(|len| len == body.len() as u64);
                if is_event || !is_whole {
                    let what = format!("call {number}: an end in the midst of its answer");
                    return broken("I1", what);
                }
                self.see_answer(number, body.into())
            }
            (None, Way::Post(_), Some(number)) => self.see_end(number),
            _ => Ok(()),
        }
    }

    /// A large answer comes as it comes.
    fn see_passing(
        &mut self,
        at: usize,
        way: Way,
        call: Option<usize>,
        part: Part,
    ) -> Result<(), Violation> {
        let Some((number, line)) = call.zip(self.line(at, way)) else {
            return broken("I1", format!("{part:?} for no call"));
        };
        match (part, &mut line.open) {
            (Part::Open { len }, None) if !line.begun => line.open = Some((Vec::new(), len)),
            (Part::OpenEvent, None) if line.begun => line.open = Some((Vec::new(), None)),
            (Part::Bytes(bytes), Some((body, _))) => body.extend_from_slice(&bytes),
            (Part::Close { id }, Some((body, _))) if line.begun => {
                let data = Bytes::from(std::mem::take(body));
                line.open = None;
                return self.see_event(at, way, call, Some(id), data);
            }
            (Part::Cut, Some(_)) => {
                self.forget_line(at, way);
                self.stack.calls[number].broken = true;
            }
            (part, _) => return broken("I1", format!("call {number}: {part:?} out of place")),
        }
        Ok(())
    }

    fn is_cancelled(&self, number: usize) -> bool {
        self.book.get(number).is_some_and(|held| held.cancelled)
    }

    /// A stream that ends without an answer can be taken up again, or its call was taken back.
    fn see_end(&mut self, number: usize) -> Result<(), Violation> {
        let call = &mut self.stack.calls[number];
        call.broken = true;
        let lost = call.answer.is_none() && call.cursors.is_empty();
        if lost && !self.is_cancelled(number) {
            return broken("I1", format!("the stream of call {number} just ends"));
        }
        Ok(())
    }

    /// 400 for an id that is in flight: it was not accepted.
    fn see_refusal(&mut self, at: usize, number: usize) -> Result<(), Violation> {
        let id = self.stack.calls[number].id.clone();
        let closing = self.stack.desks[at].closing;
        let twin = self.stack.desks[at].calls.iter().any(|other| {
            let call = &self.stack.calls[*other];
            *other != number && call.id == id && !call.refused
        });
        self.stack.calls[number].refused = true;
        if let Some(record) = self.book.get_mut(number) {
            record.heard = Some(Heard::NotExecuted);
        }
        if twin || closing {
            return Ok(());
        }
        broken("I1", format!("call {number} is refused without reason"))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the caller has no further use for it"
    )]
    fn see_event(
        &mut self,
        at: usize,
        way: Way,
        call: Option<usize>,
        id: Option<Arc<str>>,
        data: Bytes,
    ) -> Result<(), Violation> {
        if let Some(id) = &id {
            let seen = self
                .line(at, way)
                .is_some_and(|line| line.seen.contains(id));
            if seen {
                return broken("I1", format!("desk {at}: an event comes at its own cursor"));
            }
            let entry = (at, data.clone());
            let before = self.stack.cursors.insert(Arc::clone(id), entry.clone());
            if before.as_ref().is_some_and(|before| *before != entry) {
                let what = format!("desk {at}: one cursor for {before:?} and {data:?}");
                return broken("I1", what);
            }
            if before.is_none() {
                match call {
                    Some(number) => self.stack.calls[number].cursors.push(Arc::clone(id)),
                    None => self.stack.desks[at].cursors.push(Arc::clone(id)),
                }
            }
        }
        if data.is_empty() {
            return Ok(());
        }
        let Ok(message) = Message::parse(data.clone()) else {
            return broken("I13", format!("no message: {data:?}"));
        };
        let pipe = self.stack.desks[at].stand.pipe;
        match message.kind() {
            Kind::Result | Kind::Error => match call {
                Some(number) => self.see_answer(number, data),
                None if pipe => self.see_line(at, &message, data),
                None => broken(
                    "I1",
                    format!("desk {at}: an answer outside its stream: {data:?}"),
                ),
            },
            Kind::Request => {
                self.see_question(at, &message);
                Ok(())
            }
            Kind::Notification => {
                let now = self.now;
                let line = self.line(at, way);
                let again = line.is_some_and(|line| line.since == Some(now));
                self.see_notice(at, call, &message, again)
            }
        }
    }

    /// An answer on a pipe finds its request by the id.
    fn see_line(&mut self, at: usize, message: &Message, data: Bytes) -> Result<(), Violation> {
        let Some(id) = message.id() else {
            let Some(number) = self.stack.duplicate.take() else {
                return broken("I1", format!("desk {at}: an error without an id: {data:?}"));
            };
            return self.see_refusal(at, number);
        };
        let open = |number: &&usize| {
            let call = &self.stack.calls[**number];
            call.id.as_bytes() == &id[..]
                && call.answer.is_none()
                && !call.refused
                && !self.is_cancelled(**number)
                && call.epoch == self.stack.epoch
        };
        let found = self.stack.desks[at].calls.iter().find(open).copied();
        match found {
            Some(number) => self.see_answer(number, data),
            None => broken("I1", format!("desk {at}: nobody asked for {data:?}")),
        }
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "the caller has no further use for it"
    )]
    fn see_answer(&mut self, number: usize, data: Bytes) -> Result<(), Violation> {
        let Ok(message) = Message::parse(data.clone()) else {
            return broken("I13", format!("no message: {data:?}"));
        };
        let call = &mut self.stack.calls[number];
        let id = message.id().unwrap_or_default();
        if call.id.as_bytes() != &id[..] {
            return broken(
                "I9",
                format!("call {number} with id {} got {data:?}", call.id),
            );
        }
        let text = String::from_utf8_lossy(&data).into_owned();
        if let Some(before) = &call.answer {
            let again = *before == data || text.contains("RESULT_LOST");
            if again || is_told_again(before, &message, call.doubted, call.local) {
                return Ok(());
            }
            return broken("I1", format!("call {number}: {before:?}, then {data:?}"));
        }
        call.answer = Some(data.clone());
        let call = &self.stack.calls[number];
        let empty = message.result().is_some_and(|body| &body[..] == b"{}");
        let is_grant = empty || text.contains("RESULT_LOST");
        let local = call.local || call.granted && is_grant;
        let (fate, desk) = (call.fate.clone(), call.desk);
        if self.is_cancelled(number) {
            return broken("I1", format!("call {number} was taken back, then {data:?}"));
        }
        let own = outcome_of(&message);
        let heard = own.unwrap_or(Heard::Answer);
        if let Some(fate) = fate
            && !is_fated(&fate, own, &data)
        {
            return broken("I1", format!("call {number}: {fate:?}, but {data:?}"));
        }
        let Some(record) = self.book.get_mut(number) else {
            return Ok(());
        };
        record.heard = Some(heard);
        let ran = record.executions > 0 || local;
        if heard == Heard::NotExecuted && record.executions > 0 {
            return broken("I4", format!("call {number} ran, but {data:?}"));
        }
        if matches!(heard, Heard::Executed | Heard::Answer) && !ran {
            return broken("I4", format!("call {number} never ran, but {data:?}"));
        }
        if own.is_none() && !local {
            let right = match message.kind() {
                Kind::Result => {
                    let body = message.result().unwrap_or_default();
                    String::from_utf8_lossy(&body).starts_with(&result(number))
                }
                _ => text.contains(&format!("n={number}.")),
            };
            if !right {
                return broken("I9", format!("call {number} got {data:?}"));
            }
        }
        if message.kind() == Kind::Result {
            self.succeeded(number, desk);
        }
        Ok(())
    }

    /// What the client relies on from here on (I10).
    fn succeeded(&mut self, number: usize, desk: usize) {
        let call = &self.stack.calls[number];
        let (entry, ask, epoch) = (call.entry, call.ask, call.epoch);
        // The answer to what was sent before a kill, another handshake or a removal says nothing of
        // the session as it is now.
        let fresh = epoch == self.stack.epoch
            && call.removals == self.stack.entries[entry].removals
            && call.hello == self.hello_of(desk);
        let desk_state = &mut self.stack.desks[desk];
        match ask {
            None => {
                desk_state.opened = true;
                let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
                let when = self.now.after(self.random.millis(0, 3));
                let answer = Happening::Answer(epoch, desk, text.to_owned());
                self.happen_at(when, answer);
            }
            Some(Ask::Subscribe) if fresh => {
                desk_state.subscribed.insert(entry);
            }
            Some(Ask::SetLevel) if fresh => {
                desk_state.levelled.insert(entry);
            }
            _ => {}
        }
    }

    fn see_question(&mut self, at: usize, message: &Message) {
        let id = message.id().unwrap_or_default();
        let id = String::from_utf8_lossy(&id).into_owned();
        let text = String::from_utf8_lossy(message.bytes());
        let for_another =
            number_in(&text, "\"desk\":").filter(|desk| *desk as u64 != self.stack.desks[at].key.0);
        if for_another.is_some() {
            self.hold(broken("I9", format!("desk {at} is asked {text}")));
        }
        let slow = self.random.chance(200);
        let span = if slow {
            self.random.millis(0, 8_000)
        } else {
            Duration::from_micros(self.random.below(20_000))
        };
        let text = if self.random.chance(900) {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"roots":[]}}}}"#)
        } else {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-1,"message":"no"}}}}"#)
        };
        let when = self.now.after(span);
        let epoch = self.stack.epoch;
        self.happen_at(when, Happening::Answer(epoch, at, text));
    }

    /// Progress is for its call, under the client's own token; nothing is another session's. What is
    /// said `again` to one who came back may be older than the end of its call.
    fn see_notice(
        &mut self,
        at: usize,
        line: Option<usize>,
        message: &Message,
        again: bool,
    ) -> Result<(), Violation> {
        let text = String::from_utf8_lossy(message.bytes()).into_owned();
        if let Some(session) = number_in(&text, "\"session\":")
            && session as u64 != self.stack.desks[at].key.0
        {
            return broken("I9", format!("desk {at} hears {text}"));
        }
        if text.contains("resources/updated") && !self.stack.wants_updates(at) {
            return broken("I9", format!("desk {at} hears {text}"));
        }
        let Some(number) = number_in(&text, "n=") else {
            return Ok(());
        };
        let token = self.book.get(number).and_then(|held| held.token.clone());
        let token = format!(r#""progressToken":{},"#, token.unwrap_or_default());
        let own = self
            .stack
            .calls
            .get(number)
            .is_some_and(|call| call.desk == at);
        let astray = line.is_some_and(|line| line != number);
        if !own || astray || !text.contains(&token) {
            return broken("I9", format!("desk {at}, line of {line:?}: {text}"));
        }
        // A GET stream may bring again what came before the answer.
        let pipe = self.stack.desks[at].stand.pipe;
        let ended = self.stack.calls[number].answer.is_some() && pipe;
        if ended || self.is_cancelled(number) && !again {
            return broken("I1", format!("progress after the end: {text}"));
        }
        Ok(())
    }

    /// The session is over: everybody must have had an answer.
    pub(super) fn desk_closed(&mut self, at: usize) {
        let desk = &mut self.stack.desks[at];
        desk.machine = None;
        desk.armed = None;
        if !self.stack.store_fails {
            desk.record = None;
        }
        desk.closing = true;
        desk.main = None;
        desk.streams.clear();
        let key = desk.key;
        let open = std::mem::take(&mut desk.exchanges);
        let left = open.values().filter_map(|line| line.call);
        let left: Vec<usize> = left.collect();
        for number in left {
            let call = &self.stack.calls[number];
            if call.answer.is_none() && !self.is_cancelled(number) {
                let what = format!("the session ends, and call {number} hears nothing");
                self.hold(broken("I1", what));
            }
        }
        self.end_leaving(key);
        // Behind what it said itself.
        let desk = &self.stack.desks[at];
        let there = desk.ways.iter().filter(|((there, _), _)| *there);
        let last = there.map(|(_, when)| *when).max().unwrap_or(self.now);
        let when = last.max(self.now).after(Duration::from_nanos(1));
        let left = Happening::Left(self.stack.epoch, key);
        self.happen_at(when, left);
    }

    /// Everything has ended for everybody (I1, I7).
    pub(super) fn check_heard(&self) -> Result<(), Violation> {
        for (number, call) in self.stack.calls.iter().enumerate() {
            let desk = &self.stack.desks[call.desk];
            let settled = call.answer.is_some() || call.refused || self.is_cancelled(number);
            // The broken connection, or the end of the pipe's process, was the answer.
            let excused = call.broken && call.cursors.is_empty() || desk.machine.is_none();
            if !settled && !excused {
                return broken("I1", format!("call {number} never ended: {call:?}"));
            }
        }
        Ok(())
    }

    /// At rest nothing is kept (I8).
    pub(super) fn check_rest(&self) -> Result<(), Violation> {
        for (at, desk) in self.stack.desks.iter().enumerate() {
            let pending = desk
                .machine
                .as_ref()
                .map_or(0, springline_proto::session::Session::pending);
            if pending > 0 {
                return broken("I8", format!("desk {at}: {pending} requests stay pending"));
            }
        }
        self.check_journal()
    }
}
