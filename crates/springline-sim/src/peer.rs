//! What any server does with a request, whatever carries it.

use springline_proto::call::Generation;
use springline_proto::message::Message;

use crate::book::{Violation, number_in, result};
use crate::plan::Fault;
use crate::world::World;

/// One thing that a server says.
pub(crate) enum Said {
    Text(String),
    /// Something that cannot be read.
    Noise {
        id: Option<String>,
        too_large: bool,
    },
}

impl World {
    /// Does what a request asks, once, and says what the server would.
    pub(crate) fn execute(
        &mut self,
        at: usize,
        generation: Generation,
        message: &Message,
    ) -> Vec<Said> {
        let text = String::from_utf8_lossy(message.bytes()).into_owned();
        let id = message.id().unwrap_or_default();
        let id = String::from_utf8_lossy(&id).into_owned();
        let number = number_in(&text, "\"n\":");
        if let Some(number) = number {
            let session = self.caller(at, number);
            let arrived = self.book.arrived(number, session, &id, &text);
            let done = arrived.and_then(|()| self.book.executed(number));
            self.hold(done);
        }
        let mut said = Vec::new();
        if let (Some(number), Some(token)) = (number, number_in(&text, "\"progressToken\":")) {
            for step in 0..self.random.below(3) {
                said.push(Said::Text(format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{step}.0,"message":"n={number}."}}}}"#
                )));
            }
        }
        if self.strikes(Fault::Asks) {
            said.push(Said::Text(self.question(at, generation, number)));
        }
        self.push_answer(&mut said, &id, number, &text);
        said
    }

    fn push_answer(
        &mut self,
        said: &mut Vec<Said>,
        id: &str,
        number: Option<usize>,
        request: &str,
    ) {
        let shown = number.map_or(String::new(), |number| format!("n={number}."));
        if self.strikes(Fault::Garbage) {
            let id = self.random.chance(500).then(|| id.to_owned());
            let instead = self.random.chance(500);
            said.push(Said::Noise {
                id: id.filter(|_| instead),
                too_large: false,
            });
            if instead {
                return;
            }
        }
        if self.strikes(Fault::TooLarge) {
            said.push(Said::Noise {
                id: Some(id.to_owned()),
                too_large: true,
            });
            return;
        }
        if self.strikes(Fault::WrongId) {
            let wrong = self.random.pick(&["0", "\"1\"", "999999", "null"]);
            said.push(Said::Text(format!(
                r#"{{"jsonrpc":"2.0","id":{wrong},"error":{{"code":1,"message":"?"}}}}"#
            )));
        }
        let error = if self.strikes(Fault::LiesOfLoss) {
            Some(format!(
                r#"{{"code":-32001,"message":"Session not found {shown}"}}"#
            ))
        } else if self.strikes(Fault::AnswersError) {
            Some(format!(r#"{{"code":-32050,"message":"{shown}"}}"#))
        } else {
            None
        };
        let text = if let Some(error) = error {
            format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)
        } else {
            let body = match number {
                Some(number) => result(number),
                None => "{\"m\":1".to_owned(),
            };
            let list = if request.contains("\"tools/list\"") {
                self.list()
            } else {
                String::new()
            };
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{body}{list}}}}}"#)
        };
        if self.strikes(Fault::Twice) {
            said.push(Said::Text(text.clone()));
        }
        said.push(Said::Text(text));
    }

    fn list(&mut self) -> String {
        let more = if self.strikes(Fault::ListsDiffer) {
            r#",{"name":"new"}"#
        } else {
            ""
        };
        format!(
            r#","tools":[{{"name":"unsafe"}},{{"name":"hinted","annotations":{{"readOnlyHint":true}}}}{more}]"#
        )
    }

    /// The session whose call this is: where several share the server, any of those that mean it.
    fn caller(&self, at: usize, number: usize) -> u64 {
        let seat = &self.seats[at];
        let own = self.book.get(number).map(|record| record.key.session.0);
        match own {
            Some(session) if seat.is_shared() && self.stack.means(number, &seat.server) => session,
            _ => seat.session.0,
        }
    }

    /// A question of the server, of which it remembers the id; and about which call, where the stream
    /// on which it comes says so.
    fn question(&mut self, at: usize, generation: Generation, about: Option<usize>) -> String {
        self.server.questions += 1;
        let id = format!("\"q{}\"", self.server.questions);
        let ping = self.random.chance(300);
        if let Some(running) = self.seats[at].instances.get_mut(&generation) {
            running.questions.insert(id.clone());
        }
        let method = if ping { "ping" } else { "roots/list" };
        let seat = &self.seats[at];
        let about = about.filter(|_| seat.is_shared() && seat.http);
        let params = about.map_or(String::new(), |number| {
            let desk = self.caller(at, number);
            format!(r#","params":{{"_meta":{{"desk":{desk}}}}}"#)
        });
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"{params}}}"#)
    }

    /// An answer of the client came: it must be to a question of this very instance (I9).
    pub(crate) fn take_reply(&mut self, at: usize, generation: Generation, message: &Message) {
        let id = message.id().unwrap_or_default();
        let id = String::from_utf8_lossy(&id).into_owned();
        let asked = self.seats[at]
            .instances
            .get_mut(&generation)
            .is_some_and(|running| running.questions.remove(&id));
        if !asked {
            self.hold(Err(Violation::new(
                "I9",
                format!("answer {id} to nothing that {generation} asked"),
            )));
        }
    }

    /// Keeps the first broken promise.
    pub(crate) fn hold(&mut self, checked: Result<(), Violation>) {
        if let Err(violation) = checked {
            self.broken.get_or_insert(violation);
        }
    }

    /// The answer to `initialize`, and whether it can be used.
    pub(crate) fn greet(&mut self, id: &str) -> String {
        if self.strikes(Fault::InitializeError) {
            return format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32602,"message":"no"}}}}"#
            );
        }
        let version = if self.strikes(Fault::InitializeUseless) {
            self.random.pick(&[
                r#""protocolVersion":"1999-01-01","#,
                r#""protocolVersion":7,"#,
                "",
            ])
        } else {
            self.random.pick(&[
                r#""protocolVersion":"2024-11-05","#,
                r#""protocolVersion":"2025-03-26","#,
                r#""protocolVersion":"2025-06-18","#,
                r#""protocolVersion":"2025-11-25","#,
            ])
        };
        let tools = if self.random.chance(900) {
            r#""tools":{}"#
        } else {
            ""
        };
        let more = match (self.stack.is_empty(), tools.is_empty()) {
            (true, _) => "",
            (false, true) => r#""logging":{},"resources":{"subscribe":true}"#,
            (false, false) => r#","logging":{},"resources":{"subscribe":true}"#,
        };
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{{version}"capabilities":{{{tools}{more}}},"serverInfo":{{"name":"s","version":"1"}}}}}}"#
        )
    }
}
