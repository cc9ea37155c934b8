//! What the gateway says.
//!
//! Owns that each request of the client gets one answer: a second one, or one to nothing, is
//! dropped. Must not know how the session is taken up.

use bytes::Bytes;

use super::port::Output;
use super::{ACK_EVERY, ACK_EVERY_BYTES, ACK_PAUSE, ASKED_MAX, Held, Place, State, Tether};
use crate::call::Moment;
use crate::error::{Fault, FaultKind, Outcome};
use crate::json::{self, Span};
use crate::message::{Kind, Message};

impl Tether {
    pub(super) fn on_frame(&mut self, now: Moment, number: u64, received: u64, body: Bytes) {
        if self.state == State::Away {
            return;
        }
        if number != self.received.saturating_add(1) {
            // Something is lost on the way: the gateway sends it again to who comes back.
            self.out.push_back(Output::Leave);
            self.cut(now);
            return;
        }
        self.received = number;
        self.owed_bytes = self.owed_bytes.saturating_add(body.len());
        let owed = number.saturating_sub(self.acknowledged);
        if owed >= ACK_EVERY || self.owed_bytes >= ACK_EVERY_BYTES {
            self.acknowledge();
        } else {
            self.ack_due = self.ack_due.or(Some(now.after(ACK_PAUSE)));
        }
        self.on_acknowledged(received);
        let Ok(message) = Message::parse(body.clone()) else {
            self.out.push_back(Output::ToClient(body.into()));
            return;
        };
        match message.kind() {
            Kind::Notification => {}
            Kind::Request => {
                if let Some(id) = message.id() {
                    self.asked.push_back(Bytes::copy_from_slice(&id));
                    if self.asked.len() > ASKED_MAX {
                        self.asked.pop_front();
                    }
                }
            }
            Kind::Result | Kind::Error => {
                if !self.on_answer(now, &message) {
                    return;
                }
            }
        }
        self.out.push_back(Output::ToClient(body.into()));
    }

    pub(super) fn on_acknowledged(&mut self, received: u64) {
        self.taken = self.taken.max(received.min(self.sent));
        while self
            .untaken
            .front()
            .is_some_and(|(number, _)| *number <= self.taken)
        {
            self.untaken.pop_front();
        }
    }

    /// Whether the client gets this answer.
    fn on_answer(&mut self, now: Moment, message: &Message) -> bool {
        let Some(id) = message.id() else {
            // To a line that nobody could read.
            return true;
        };
        if matches!(&self.state, State::Greeting { id: own, .. } if *own == id) {
            self.on_greeted(now, message);
            return false;
        }
        let Some(Place::Frame(number)) = self.places.get(&id).copied() else {
            return false;
        };
        let Some(open) = self.open.remove(&number) else {
            return false;
        };
        self.places.remove(&id);
        if is_returned(message) && !open.was_returned {
            // The next gateway takes it.
            self.stopping = self.stopping.or(Some(now));
            self.places.insert(open.id.clone(), Place::Held);
            self.held_bytes = self.held_bytes.saturating_add(open.message.bytes().len());
            self.held.push_back(Held {
                message: open.message,
                id: Some(open.id),
                was_returned: true,
            });
            return false;
        }
        if open.message.method().as_deref() == Some("initialize") {
            self.note_promise(message);
        }
        true
    }

    /// What the answer to `initialize` promised.
    pub(super) fn note_promise(&mut self, answer: &Message) {
        if let Some(result) = answer.result() {
            let names = ["capabilities", "logging"];
            let logging = json::path(&result, Span::whole(&result), &names);
            self.handshake.logging = logging.is_some();
        }
    }
}

/// Whether the gateway gave a request back because it is stopping.
fn is_returned(message: &Message) -> bool {
    message.kind() == Kind::Error
        && Fault::of_response(message).is_some_and(|fault| {
            fault.kind == FaultKind::ShuttingDown && fault.outcome == Outcome::NotExecuted
        })
}
