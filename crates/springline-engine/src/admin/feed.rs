//! `/api/events`: what happened, one JSON object a line, oldest first.
//!
//! Owns: the hand-over from what is kept to what comes. It must not know what events mean.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};

use crate::downstream::answer::{self, Answer, AnswerBody, EventBody};
use crate::event::{Events, Record};

/// Bytes of lines that are joined before they are written.
const JOIN_BYTES: usize = 16 * 1024;

/// The kept events, and with `follow` those that come until the gateway ends.
pub(super) fn answer(events: &Events, follow: bool, over: watch::Receiver<bool>) -> Answer {
    let body = if follow {
        let (kept, coming) = events.follow();
        AnswerBody::Stream(EventBody::driven(|sender| send(kept, coming, over, sender)))
    } else {
        let mut text = Vec::new();
        for record in events.kept() {
            put(&mut text, &record);
        }
        Bytes::from(text).into()
    };
    answer::with_body(StatusCode::OK, Some("application/x-ndjson"), body)
}

fn put(text: &mut Vec<u8>, record: &Record) {
    text.extend_from_slice(record.body.as_bytes());
    text.push(b'\n');
}

async fn send(
    kept: Vec<Record>,
    mut coming: broadcast::Receiver<Record>,
    mut over: watch::Receiver<bool>,
    sender: mpsc::Sender<Bytes>,
) {
    let last = kept.last().map(|record| record.number);
    let mut text = Vec::new();
    for record in kept {
        put(&mut text, &record);
        if text.len() >= JOIN_BYTES && sender.send(std::mem::take(&mut text).into()).await.is_err()
        {
            return;
        }
    }
    loop {
        if !text.is_empty() && sender.send(std::mem::take(&mut text).into()).await.is_err() {
            return;
        }
        let next = tokio::select! {
            biased;
            next = coming.recv() => next,
            () = crate::downstream::raised(&mut over) => return,
        };
        match next {
            // It was kept and sent between the two looks.
            Ok(record) if last.is_some_and(|last| record.number <= last) => {}
            Ok(record) => put(&mut text, &record),
            Err(RecvError::Lagged(count)) => {
                let line = json!({ "event": "events.missed", "count": count });
                text.extend_from_slice(line.to_string().as_bytes());
                text.push(b'\n');
            }
            Err(RecvError::Closed) => return,
        }
    }
}
