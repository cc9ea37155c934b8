//! A server that is a child process: two ordered pipes and an end that can come at any moment.

use std::time::Duration;

use bytes::Bytes;
use springline_proto::call::Generation;
use springline_proto::message::{Kind, Message};
use springline_proto::upstream::Input;

use crate::book::Violation;
use crate::peer::Said;
use crate::plan::Fault;
use crate::world::World;

impl World {
    /// A line reaches a child. One that is being ended still reads.
    pub(crate) fn read_line(&mut self, at: usize, generation: Generation, line: &Bytes) {
        let running = self.seats[at].instances.get(&generation);
        let Some(running) = running.filter(|running| running.alive) else {
            return;
        };
        let initialized = running.initialized;
        let Ok(message) = Message::parse(line.clone()) else {
            self.hold(Err(Violation::new("I13", format!("no message: {line:?}"))));
            return;
        };
        let method = message.method().map(std::borrow::Cow::into_owned);
        let method = method.as_deref();
        match (message.kind(), method) {
            (Kind::Request, Some("initialize")) => self.child_greets(at, generation, &message),
            (Kind::Notification, Some("notifications/initialized")) => {
                if self.strikes(Fault::InitializedRefused) {
                    self.exit(at, generation);
                } else if let Some(running) = self.seats[at].instances.get_mut(&generation) {
                    running.initialized = true;
                }
            }
            (Kind::Request | Kind::Notification, _) if !initialized => {
                self.hold(Err(Violation::new(
                    "I6",
                    format!("into an unready child: {line:?}"),
                )));
            }
            (Kind::Request, _) => self.child_works(at, generation, &message),
            (Kind::Notification, _) => {}
            (Kind::Result | Kind::Error, _) => self.take_reply(at, generation, &message),
        }
    }

    fn child_greets(&mut self, at: usize, generation: Generation, message: &Message) {
        if self.strikes(Fault::Hang) {
            return;
        }
        if self.strikes(Fault::InitializeCut) {
            self.exit(at, generation);
            return;
        }
        let id = message.id().unwrap_or_default();
        let text = self.greet(&String::from_utf8_lossy(&id));
        self.child_says(at, generation, Said::Text(text));
    }

    fn child_works(&mut self, at: usize, generation: Generation, message: &Message) {
        let exits = self.strikes(Fault::Exits);
        if exits && self.random.chance(300) {
            self.exit(at, generation);
            return;
        }
        let said = self.execute(at, generation, message);
        if self.strikes(Fault::Hang) {
            return;
        }
        // It may go between two lines.
        let count = if exits {
            self.random.below(said.len() as u64 + 1)
        } else {
            u64::MAX
        };
        for (place, said) in said.into_iter().enumerate() {
            if (place as u64) < count {
                self.child_says(at, generation, said);
            }
        }
        if exits {
            self.exit(at, generation);
        }
    }

    fn child_says(&mut self, at: usize, generation: Generation, said: Said) {
        let input = match said {
            Said::Text(text) => match Message::parse(text) {
                Ok(message) => Input::Message {
                    generation,
                    exchange: None,
                    message,
                },
                Err(_) => return,
            },
            Said::Noise { id, too_large } => Input::Garbled {
                generation,
                exchange: None,
                id: id.map(Bytes::from),
                cause: "noise".into(),
                too_large,
            },
        };
        self.pipe(at, generation, input);
    }

    /// What comes out of a child keeps its order, its end included.
    fn pipe(&mut self, at: usize, generation: Generation, input: Input) {
        let when = self.now.after(self.delay());
        let Some(running) = self.seats[at].instances.get_mut(&generation) else {
            return;
        };
        let when = when.max(running.pipe_out.after(Duration::from_nanos(1)));
        running.pipe_out = when;
        self.say(at, when, input);
    }

    pub(crate) fn exit(&mut self, at: usize, generation: Generation) {
        let Some(running) = self.seats[at].instances.get_mut(&generation) else {
            return;
        };
        if std::mem::replace(&mut running.alive, false) {
            let cause = "exit status 1".into();
            self.pipe(
                at,
                generation,
                Input::Lost {
                    generation,
                    cause,
                    never_ran: false,
                },
            );
        }
    }
}
