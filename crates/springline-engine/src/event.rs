//! The one list of events: what happened, for the operator.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use springline_proto::{session, upstream};
use tokio::sync::broadcast;

use crate::clock;

/// Events that are kept for `springline events` unless the operator says otherwise; older ones are
/// dropped.
pub const KEPT_MAX: usize = 10_000;

/// Events that a follower may be behind before it loses some.
const FOLLOW_MAX: usize = 1024;

/// One event, ready to be shown: an object with `event`, `time` and what else is known.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its ordinal since the gateway started.
    pub number: u64,
    /// The object, as JSON: there are many, and a tree would take five times the room.
    pub body: Arc<str>,
}

/// The log of events.
#[derive(Debug)]
pub struct Events {
    /// Held for a push or a copy; never across an await.
    kept: Mutex<Kept>,
    follow: broadcast::Sender<Record>,
}

#[derive(Debug)]
struct Kept {
    next: u64,
    /// How many are kept for `springline events`; older ones are dropped.
    max: usize,
    records: VecDeque<Record>,
    /// How often each name was recorded since the start.
    counts: BTreeMap<&'static str, u64>,
}

impl Events {
    /// A log of the last `max` events (`eventsMax`), at least one.
    pub fn new(max: usize) -> Self {
        Self {
            kept: Mutex::new(Kept {
                next: 0,
                max: max.max(1),
                records: VecDeque::new(),
                counts: BTreeMap::new(),
            }),
            follow: broadcast::channel(FOLLOW_MAX).0,
        }
    }

    /// Keeps so many from now on; those that are too many leave at once, the oldest first.
    pub fn keep(&self, max: usize) {
        let mut kept = self.kept.lock();
        kept.max = max.max(1);
        let over = kept.records.len().saturating_sub(kept.max);
        kept.records.drain(..over);
    }

    /// Records an event under one of the names of the list below.
    pub fn record(&self, name: &'static str, mut facts: Map<String, Value>) {
        let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut body = Map::new();
        body.insert("event".to_owned(), name.into());
        body.insert("time".to_owned(), rfc3339(since.as_millis()).into());
        body.append(&mut facts);
        let body = Value::Object(body);
        tracing::info!(target: "springline::event", event = name, facts = %body);
        let mut kept = self.kept.lock();
        let number = kept.next;
        kept.next += 1;
        *kept.counts.entry(name).or_default() += 1;
        if kept.records.len() >= kept.max {
            kept.records.pop_front();
        }
        let record = Record {
            number,
            body: body.to_string().into(),
        };
        kept.records.push_back(record.clone());
        drop(kept);
        // Nobody follows: that is no failure.
        crate::ignore_closed(self.follow.send(record));
    }

    /// All that is kept, oldest first.
    pub fn kept(&self) -> Vec<Record> {
        self.kept.lock().records.iter().cloned().collect()
    }

    /// How often each event happened since the start, by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let kept = self.kept.lock();
        kept.counts
            .iter()
            .map(|(name, count)| (*name, *count))
            .collect()
    }

    /// All that is kept, and what comes from now on.
    pub fn follow(&self) -> (Vec<Record>, broadcast::Receiver<Record>) {
        let kept = self.kept.lock();
        (
            kept.records.iter().cloned().collect(),
            self.follow.subscribe(),
        )
    }
}

/// Name and facts of an event of an upstream.
pub(crate) fn of_upstream(
    server: &str,
    event: &upstream::Event,
) -> (&'static str, Map<String, Value>) {
    use upstream::Event;
    let (name, facts) = match event {
        Event::Ready {
            generation,
            took,
            recovery,
        } => (
            if *recovery {
                "session.recovered"
            } else {
                "server.ready"
            },
            json!({ "generation": generation.0, "tookMs": millis(*took) }),
        ),
        Event::Lost {
            generation,
            exited,
            cause,
        } => (
            if *exited {
                "server.exited"
            } else {
                "session.lost"
            },
            json!({ "generation": generation.0, "cause": cause }),
        ),
        Event::StartFailed {
            generation,
            cause,
            retry_in,
        } => (
            "server.start_failed",
            json!({ "generation": generation.0, "cause": cause, "retryInMs": millis(*retry_in) }),
        ),
        Event::Replayed { key, generation } => (
            "request.replayed",
            json!({ "call": key.number, "generation": generation.0 }),
        ),
        Event::Ended { generation, reason } => (
            "server.ended",
            json!({ "generation": generation.0, "reason": reason }),
        ),
        Event::Dropped { generation, reason } => (
            "message.dropped",
            json!({ "generation": generation.0, "reason": reason }),
        ),
        Event::Unreadable { generation, cause } => (
            "message.dropped",
            json!({
                "generation": generation.0,
                "reason": "it could not be read",
                "detail": cause,
            }),
        ),
        Event::Resumed { generation } => ("session.resumed", json!({ "generation": generation.0 })),
        Event::Drained => ("server.drained", json!({})),
        Event::Unauthorized { generation } => {
            ("server.unauthorized", json!({ "generation": generation.0 }))
        }
    };
    (name, with(facts, "server", server))
}

/// Name and facts of an event of a session.
pub(crate) fn of_session(
    digest: &str,
    event: &session::Event,
) -> (&'static str, Map<String, Value>) {
    let (name, facts) = match event {
        session::Event::Opened => ("session.opened", json!({})),
        session::Event::Closed => ("session.closed", json!({})),
        session::Event::Reattached => ("session.reattached", json!({})),
        session::Event::Abandoned => ("session.abandoned", json!({})),
        session::Event::Dropped { reason } => ("message.dropped", json!({ "reason": reason })),
    };
    (name, with(facts, "session", digest))
}

fn with(facts: Value, key: &str, value: &str) -> Map<String, Value> {
    let Value::Object(mut map) = facts else {
        return Map::new();
    };
    map.insert(key.to_owned(), value.into());
    map
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 as RFC 3339 in UTC (civil-from-days by era of 400 years).
pub(crate) fn rfc3339(millis: u128) -> String {
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    let (days, in_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 {
        month_shifted + 3
    } else {
        month_shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let seconds = in_day / 1000;
    let mut text = String::with_capacity(24);
    // Writing to a String cannot fail.
    write!(
        text,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        in_day % 1000
    )
    .unwrap_or_default();
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_795_999_999_123), "2026-11-30T00:53:19.123Z");
    }

    #[test]
    fn the_oldest_events_leave_first() {
        let events = Events::new(3);
        for _ in 0..5 {
            events.record("session.opened", Map::new());
        }
        let numbers = || -> Vec<u64> {
            let kept = events.kept();
            kept.iter().map(|record| record.number).collect()
        };
        assert_eq!(numbers(), [2, 3, 4]);
        events.keep(1);
        assert_eq!(numbers(), [4]);
        events.keep(2);
        events.record("session.opened", Map::new());
        events.record("session.opened", Map::new());
        assert_eq!(numbers(), [5, 6]);
        assert_eq!(events.counts(), [("session.opened", 7)]);
    }
}
