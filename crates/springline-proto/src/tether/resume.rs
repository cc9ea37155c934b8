//! How a session is taken up, or another one opened in its place.
//!
//! Owns the verdict on each request that was in flight: sent again if it never ran or only reads,
//! else answered with what is known. Must not know what the gateway keeps.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::port::Output;
use super::{HANDSHAKE_MAX, Held, Open, Place, State, Tether};
use crate::call::Moment;
use crate::error::FaultKind;
use crate::json;
use crate::message::{Kind, Message};
use crate::method::{Method, ReplayClass};
use crate::session::{Fate, Welcome};

impl Tether {
    pub(super) fn on_attached(&mut self, now: Moment, is_resumed: bool, welcome: &Welcome) {
        self.lost_at = None;
        self.stopping = None;
        if is_resumed && self.has_session {
            self.take_up(welcome);
        } else {
            self.begin(now, welcome.taken);
        }
    }

    /// The session is the one of before.
    fn take_up(&mut self, welcome: &Welcome) {
        self.state = State::Attached;
        let taken = welcome.taken;
        let mut fates: BTreeMap<u64, Fate> = welcome.fates.iter().copied().collect();
        for number in self.open.keys() {
            // It had these, and its journal does not: it must have failed to write.
            if *number > taken && *number <= self.taken {
                fates.insert(*number, Fate::Sent);
            }
        }
        let mut queue = VecDeque::new();
        for (number, fate) in fates {
            let Some(open) = self.open.remove(&number) else {
                continue;
            };
            match fate {
                Fate::NotSent => queue.push_back(held(open)),
                Fate::Sent if may_repeat(&open.message) => queue.push_back(held(open)),
                Fate::Sent => self.fail(&open.id, FaultKind::OutcomeUnknown),
                Fate::Lost => self.fail(&open.id, FaultKind::ResultLost),
            }
        }
        for (number, message) in std::mem::take(&mut self.untaken) {
            if number <= taken {
                continue;
            }
            match self.open.remove(&number) {
                Some(open) => queue.push_back(held(open)),
                // A request that is not open any more was answered or taken back.
                None if message.kind() == Kind::Request => {}
                None => queue.push_back(Held {
                    message,
                    id: None,
                    was_returned: false,
                }),
            }
        }
        self.sent = taken;
        self.taken = taken;
        self.acknowledge();
        for held in queue {
            self.send(held);
        }
        self.flush();
    }

    /// A new session: it is told what the client told the one before.
    fn begin(&mut self, now: Moment, taken: u64) {
        let is_anew = self.handshake.is_done();
        self.has_session = true;
        self.sent = taken;
        self.taken = taken;
        self.received = 0;
        self.note_acknowledged();
        self.untaken.clear();
        self.asked.clear();
        let mut again = VecDeque::new();
        for open in std::mem::take(&mut self.open).into_values() {
            if may_repeat(&open.message) {
                again.push_back(held(open));
            } else {
                self.fail(&open.id, FaultKind::OutcomeUnknown);
            }
        }
        for held in &again {
            if let Some(id) = &held.id {
                self.places.insert(id.clone(), Place::Held);
            }
        }
        again.append(&mut self.held);
        self.held = again;
        self.held_bytes = self
            .held
            .iter()
            .map(|held| held.message.bytes().len())
            .sum();
        if is_anew {
            self.say_state_lost();
        }
        let is_pending = self.held.iter().any(|held| is_initialize(&held.message));
        let initialize = self.handshake.initialize.clone().filter(|_| !is_pending);
        let Some(initialize) = initialize else {
            self.state = State::Attached;
            self.flush();
            return;
        };
        self.handshake.repeats += 1;
        let id = json::quote(&format!("springline-connect-{}", self.handshake.repeats));
        let id = Bytes::from(id);
        let until = now.after(HANDSHAKE_MAX);
        self.state = State::Greeting {
            id: id.clone(),
            until,
        };
        self.sent = self.sent.saturating_add(1);
        // Not sent again: a session that is cut before it answers is given up.
        self.out.push_back(Output::ToGateway {
            number: self.sent,
            received: self.received,
            body: initialize.with_id(&id),
        });
    }

    /// The new session answered the handshake.
    pub(super) fn on_greeted(&mut self, now: Moment, answer: &Message) {
        if answer.kind() != Kind::Result {
            let error = answer.error().unwrap_or_default();
            let why = format!(
                "the new session's handshake failed: {}",
                String::from_utf8_lossy(&error)
            );
            self.has_session = false;
            self.abandon(now, why);
            return;
        }
        self.note_promise(answer);
        self.state = State::Attached;
        if let Some(initialized) = self.handshake.initialized.clone() {
            let method = "notifications/initialized";
            self.held
                .retain(|held| held.message.method().as_deref() != Some(method));
            self.send(Held {
                message: initialized,
                id: None,
                was_returned: false,
            });
        }
        self.flush();
    }

    /// Tells the client, if it was promised log messages.
    fn say_state_lost(&mut self) {
        if !self.handshake.logging || self.handshake.is_quiet {
            return;
        }
        let server = self.server.as_ref().map_or(String::new(), |server| {
            format!(r#""server":{},"#, json::quote(server))
        });
        let text = format!(
            concat!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"#,
                r#""level":"warning","logger":"springline","data":{{{}"#,
                r#""reason":"the gateway does not know the session any more","#,
                r#""text":"its in-session state starts afresh"}}}}}}"#
            ),
            server
        );
        self.out
            .push_back(Output::ToClient(Bytes::from(text).into()));
    }
}

impl super::Handshake {
    fn is_done(&self) -> bool {
        self.initialize.is_some() && self.initialized.is_some()
    }
}

fn held(open: Open) -> Held {
    Held {
        message: open.message,
        id: Some(open.id),
        was_returned: open.was_returned,
    }
}

/// Whether a request may run twice: it only reads, or is the client's own handshake, whose latest
/// one counts.
fn may_repeat(message: &Message) -> bool {
    let method = Method::of(message);
    method == Method::Initialize || method.replay_class() == ReplayClass::Safe
}

fn is_initialize(message: &Message) -> bool {
    message.kind() == Kind::Request && message.method().as_deref() == Some("initialize")
}
