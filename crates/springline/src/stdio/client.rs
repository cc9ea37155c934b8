//! A client for tests, in place of the program that started us.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use springline_engine::clock;
use springline_proto::frame::Line;
use springline_proto::json::Pieces;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};

use super::Front;
use super::line::{Answers, Lines};
use super::thread::{ANSWERS_MAX, LINES_MAX};

/// The other end of a [`Front`] that has no process around it.
pub(crate) struct Client {
    lines: Option<mpsc::Sender<Line>>,
    answers: mpsc::Receiver<Pieces>,
    broken: watch::Sender<bool>,
    due: watch::Sender<Option<Instant>>,
}

impl Client {
    pub(crate) fn new() -> (Front, Self) {
        let (to_lines, lines) = mpsc::channel(LINES_MAX);
        let (out, answers) = mpsc::channel(ANSWERS_MAX);
        let (_, flushed) = oneshot::channel();
        let (broken, is_broken) = watch::channel(false);
        let (to_due, due) = watch::channel(None);
        let pending = HashSet::new();
        let front = Front {
            name: "test",
            lines: Some(Lines::Thread(lines)),
            answers: Answers::Thread { out, flushed },
            broken: is_broken,
            due,
            pending,
            failure: None,
            had_result: false,
        };
        (
            front,
            Self {
                lines: Some(to_lines),
                answers,
                broken,
                due: to_due,
            },
        )
    }

    pub(crate) async fn send(&self, line: &str) {
        let line = Line::Message(Bytes::from(line.to_owned()));
        self.lines.as_ref().unwrap().send(line).await.unwrap();
    }

    pub(crate) async fn send_too_long(&self, id: &'static str) {
        let id = Some(Bytes::from_static(id.as_bytes()));
        let line = Line::TooLong {
            len_seen: 99,
            id,
            method: None,
        };
        self.lines.as_ref().unwrap().send(line).await.unwrap();
    }

    pub(crate) fn finish(&mut self) {
        self.lines = None;
    }

    pub(crate) fn break_stdout(&self) {
        self.broken.send_replace(true);
    }

    pub(crate) fn signal(&self, grace: Duration) {
        self.due.send_replace(Some(clock::now() + grace));
    }

    /// The next line for the client; nothing when there will be none.
    pub(crate) async fn next(&mut self) -> Option<serde_json::Value> {
        let next = timeout(Duration::from_secs(20), self.answers.recv())
            .await
            .expect("silence");
        next.map(|data| serde_json::from_slice(&data.to_bytes()).unwrap())
    }
}
