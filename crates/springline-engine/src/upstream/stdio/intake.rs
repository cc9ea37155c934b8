//! What a child writes to stdout, turned into inputs.
//!
//! Owns the line buffer and the choice between a message, a message that cannot be used, and
//! rubbish. Must not know what a message means, nor whom it is for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem;
use springline_proto::error::sanitise;
use springline_proto::frame::{Line, LineFramer};
use springline_proto::json::{self, Skim, Span};
use springline_proto::message::{Message, ParseError, ParseErrorKind};
use springline_proto::upstream::Input;
use tokio::time::Instant;

use super::budget::{LineBudget, Share};
use super::instance::Instance;
use crate::clock;

/// Bytes of a skipped line that are shown.
const EXCERPT_MAX: usize = 200;

/// Between two reports of skipped lines of one child: who logs to stdout must not flood the events.
const SKIP_PERIOD: Duration = Duration::from_mins(1);

/// The reading side of one child.
pub(super) struct Intake {
    instance: Arc<Instance>,
    framer: LineFramer,
    frame_max: usize,
    share: Share,
    /// Whether the present line was given up for the sake of the budget.
    given_up: bool,
    /// When skipped lines were reported last.
    reported: Option<Instant>,
    /// Lines skipped since then.
    unreported: u64,
}

impl Intake {
    pub(super) fn new(
        instance: &Arc<Instance>,
        frame_max: usize,
        budget: &Arc<LineBudget>,
    ) -> Self {
        Self {
            instance: Arc::clone(instance),
            framer: LineFramer::new(frame_max),
            frame_max,
            share: Share::new(budget),
            given_up: false,
            reported: None,
            unreported: 0,
        }
    }

    /// Takes bytes as they came and reports what they complete.
    pub(super) fn take(&mut self, chunk: &[u8]) {
        self.framer.push(chunk);
        while let Some(line) = self.framer.next() {
            self.line(line);
        }
        if !self.share.hold(self.framer.buffered()) {
            self.framer.give_up();
            self.given_up = true;
            self.share.hold(self.framer.buffered());
        }
    }

    /// The stream is over: a last line may lack its end.
    pub(super) fn finish(&mut self) {
        if let Some(line) = self.framer.finish() {
            self.line(line);
        }
    }

    fn line(&mut self, line: Line) {
        let given_up = std::mem::take(&mut self.given_up);
        match line {
            Line::Message(bytes) => self.message(&bytes),
            Line::TooLong {
                len_seen,
                id,
                method,
            } => {
                let cause = if given_up {
                    format!(
                        "a message of {len_seen} bytes did not fit beside those of other servers"
                    )
                } else {
                    let max = self.frame_max;
                    format!("a message of {len_seen} bytes is over the limit of {max}")
                };
                // With a method the id is the server's own, and no answer to us.
                self.garbled(id.filter(|_| method.is_none()), cause, true);
            }
        }
    }

    fn message(&mut self, bytes: &Bytes) {
        match Message::parse(bytes.clone()) {
            Ok(message) => self.deliver(message),
            Err(ParseError {
                kind: ParseErrorKind::Batch { empty: false },
                ..
            }) => self.batch(bytes),
            Err(error) => self.unusable(bytes, &error),
        }
    }

    /// An array of messages, which 2025-03-26 allows (basic, Batching): each on its own.
    fn batch(&mut self, bytes: &Bytes) {
        if let Err(error) = json::validate(bytes) {
            tracing::debug!(?error, "an array that is not JSON");
            return self.skip(bytes);
        }
        for element in json::elements(bytes, Span::whole(bytes)) {
            let element = element.slice(bytes);
            match Message::parse(element.clone()) {
                Ok(message) => self.deliver(message),
                Err(error) => self.unusable(&element, &error),
            }
        }
    }

    /// A line that is no message. If it means to be an answer, and says to what, then that call
    /// must not wait for ever; anything else is rubbish, valid JSON or not: logs are, too.
    fn unusable(&mut self, bytes: &Bytes, error: &ParseError) {
        let is_call = json::scan(bytes).is_ok_and(|envelope| envelope.method.is_some());
        let means_it = memmem::find(bytes, br#""jsonrpc""#).is_some();
        let answered = match &error.id {
            // A copy, so that the id does not keep the whole line in memory.
            Some(id) if means_it && !is_call => {
                Some((Bytes::copy_from_slice(id), error.to_string()))
            }
            Some(_) => None,
            None => broken_answer(bytes, error).map(|id| (id, explain(bytes, error))),
        };
        match answered {
            Some((id, cause)) => self.garbled(Some(id), cause, false),
            None => self.skip(bytes),
        }
    }

    /// Counts a line that is no message, and tells of the first and of one a minute.
    fn skip(&mut self, bytes: &Bytes) {
        self.instance.line_skipped();
        self.unreported += 1;
        let line = excerpt(bytes);
        tracing::debug!(server = %self.instance.server(), line, "stdout carried no message");
        let now = clock::now();
        let is_quiet = self
            .reported
            .is_some_and(|reported| now.duration_since(reported) < SKIP_PERIOD);
        if is_quiet {
            return;
        }
        self.reported = Some(now);
        let count = std::mem::take(&mut self.unreported);
        let cause = match count {
            1 => format!("stdout carried a line that is no message: {line}"),
            _ => format!("stdout carried {count} more lines that are no messages, at last: {line}"),
        };
        self.garbled(None, cause, false);
    }

    fn deliver(&self, message: Message) {
        self.instance.report(Input::Message {
            generation: self.instance.generation(),
            exchange: None,
            message,
        });
    }

    fn garbled(&self, id: Option<Bytes>, cause: String, too_large: bool) {
        self.instance.report(Input::Garbled {
            generation: self.instance.generation(),
            exchange: None,
            id,
            cause: cause.into(),
            too_large,
        });
    }
}

/// The id of an answer that is not JSON, so that its call does not wait for ever.
fn broken_answer(bytes: &[u8], error: &ParseError) -> Option<Bytes> {
    matches!(error.kind, ParseErrorKind::Syntax { .. })
        .then(|| Skim::answer_id(bytes))
        .flatten()
}

fn explain(bytes: &[u8], error: &ParseError) -> String {
    if std::str::from_utf8(bytes).is_err() {
        "invalid UTF-8".to_owned()
    } else {
        error.to_string()
    }
}

/// The beginning of a line, for people.
fn excerpt(bytes: &[u8]) -> String {
    let head = bytes
        .get(..bytes.len().min(EXCERPT_MAX))
        .unwrap_or_default();
    sanitise(&String::from_utf8_lossy(head), EXCERPT_MAX)
}
