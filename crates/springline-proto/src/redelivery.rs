//! Redelivery: what was sent as events is kept for a while, and sent again to a client that names
//! the last event it saw (2025-11-25 basic/transports, Resumability and Redelivery).
//!
//! Owns the log of a session and its cursors. A cursor is authenticated over the session, the
//! stream and the event, so that no client can read another's stream, or one that it guessed (I9).
//! Must not know connections: who reads a stream is the session's concern.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::call::{Moment, SessionKey};
use crate::codec::{put_number, read_number};
use crate::json::Pieces;
use crate::seldom::{Seldom, Unset};
use crate::settings::SessionSettings;

/// Bytes of the authentication tag in a cursor: 96 bits cannot be guessed over a network.
const TAG_LEN: usize = 12;

/// Longer request ids do not go into cursors; a stream that aged out then ends without an error.
const ID_MAX: usize = 128;

/// The key under which a session's cursors are authenticated.
#[derive(Clone)]
pub(crate) struct Seal {
    key: [u8; 32],
    session: SessionKey,
}

impl Seal {
    pub(crate) fn new(key: [u8; 32], session: SessionKey) -> Self {
        Self { key, session }
    }

    /// The text that carries `body`; visible ASCII.
    pub(crate) fn seal(&self, body: &[u8]) -> String {
        let tag = self.mac(body).finalize().into_bytes();
        let mut bytes = body.to_vec();
        bytes.extend(tag.iter().take(TAG_LEN));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The body of a text that [`Seal::seal`] made for this session; `None` for any other.
    pub(crate) fn open(&self, text: &str) -> Option<Vec<u8>> {
        let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let tag = bytes.split_off(bytes.len().checked_sub(TAG_LEN)?);
        self.mac(&bytes).verify_truncated_left(&tag).ok()?;
        Some(bytes)
    }

    fn mac(&self, body: &[u8]) -> Hmac<Sha256> {
        // HMAC pads a key to the block of the hash with zeros; doing so here cannot fail.
        let mut block = [0; 64];
        for (to, from) in block.iter_mut().zip(self.key) {
            *to = from;
        }
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(b"springline event cursor\0");
        mac.update(&self.session.0.to_be_bytes());
        mac.update(body);
        mac
    }
}

/// One event stream of a session: the standalone GET stream, or the answer to one POST.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct StreamId(u64);

impl StreamId {
    /// The standalone GET stream; one for the whole session, whichever connection carries it.
    pub(crate) const GET: Self = Self(0);

    /// The stream of the answer to the call of this number.
    pub(crate) fn of(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// What a cursor says to the session.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Resume {
    /// Not a cursor of this session, or of a request that was cancelled.
    Unknown,
    /// Go on behind this event.
    After(StreamId, u64),
    /// The stream is complete, and the client had seen its last event.
    Complete,
    /// The stream, or the answer on it, is no longer held.
    Lost {
        /// Which.
        stream: StreamId,
        /// The raw id of its request; empty if it was too long to remember.
        id: Bytes,
    },
}

/// The log of one session. Bounded by events, bytes and age; the oldest goes first (I8).
pub(crate) struct Redelivery {
    seal: Seal,
    kept: Seldom<Kept>,
    /// Ordinals of events begin above this.
    base: u64,
}

/// What was sent as events.
#[derive(Default)]
struct Kept {
    streams: BTreeMap<StreamId, Stream>,
    log: VecDeque<Logged>,
    bytes: usize,
}

impl Kept {
    fn is_complete(&self, stream: StreamId) -> bool {
        let entry = self.streams.get(&stream);
        entry.is_some_and(|entry| entry.end.is_some())
    }

    /// An event of this stream, of so many bytes, is not in the log any more.
    fn release(&mut self, stream: StreamId, len: usize) {
        self.bytes = self.bytes.saturating_sub(len);
        if let Some(entry) = self.streams.get_mut(&stream) {
            entry.kept = entry.kept.saturating_sub(1);
            if entry.kept == 0 && entry.end.is_some() {
                self.streams.remove(&stream);
            }
        }
    }
}

impl Unset for Kept {
    fn unset() -> &'static Self {
        static NONE: Kept = Kept {
            streams: BTreeMap::new(),
            log: VecDeque::new(),
            bytes: 0,
        };
        &NONE
    }
}

struct Stream {
    /// The raw id of the request that it answers.
    id: Bytes,
    /// The ordinal of its last event; the base before the first.
    last: u64,
    /// How many of its events are in the log.
    kept: usize,
    end: Option<Ended>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Ended {
    Answered,
    Cancelled,
}

struct Logged {
    stream: StreamId,
    ordinal: u64,
    at: Moment,
    is_last: bool,
    data: Pieces,
}

impl Redelivery {
    pub(crate) fn new(seal: Seal, base: u64) -> Self {
        Self {
            seal,
            kept: Seldom::default(),
            base,
        }
    }

    /// What cursors are authenticated with.
    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.seal.key
    }

    /// Enters the stream of the answer to the request with this raw id.
    pub(crate) fn open(&mut self, stream: StreamId, id: &[u8]) {
        let id = if id.len() <= ID_MAX {
            Bytes::copy_from_slice(id)
        } else {
            Bytes::new()
        };
        self.kept.streams.insert(
            stream,
            Stream {
                id,
                last: self.base,
                kept: 0,
                end: None,
            },
        );
    }

    /// Whether the client holds a cursor of this stream, so that it can come back to it.
    pub(crate) fn has_cursor(&self, stream: StreamId) -> bool {
        self.kept
            .streams
            .get(&stream)
            .is_some_and(|stream| stream.last > self.base)
    }

    /// The cursor of an event without content, which is not kept.
    pub(crate) fn prime(&mut self, stream: StreamId) -> Arc<str> {
        let entry = self.entry(stream);
        entry.last = entry.last.saturating_add(1);
        let (ordinal, id) = (entry.last, entry.id.clone());
        self.cursor(stream, ordinal, false, &id)
    }

    /// Keeps an event and returns its cursor. `is_last`: it completes the stream.
    pub(crate) fn push(
        &mut self,
        now: Moment,
        limits: &SessionSettings,
        stream: StreamId,
        data: &Pieces,
        is_last: bool,
    ) -> Arc<str> {
        let entry = self.entry(stream);
        entry.last = entry.last.saturating_add(1);
        entry.kept += 1;
        if is_last {
            entry.end = Some(Ended::Answered);
        }
        let (ordinal, id) = (entry.last, entry.id.clone());
        self.kept.bytes = self.kept.bytes.saturating_add(data.len());
        self.kept.log.push_back(Logged {
            stream,
            ordinal,
            at: now,
            is_last,
            data: data.clone(),
        });
        self.trim(limits);
        self.cursor(stream, ordinal, is_last, &id)
    }

    /// The cursor of the answer that completes a stream and is not kept. Whoever comes back behind an
    /// earlier one hears that it is lost.
    pub(crate) fn complete(&mut self, stream: StreamId) -> Arc<str> {
        let entry = self.entry(stream);
        let (ordinal, id) = (entry.last.saturating_add(1), entry.id.clone());
        self.kept.streams.remove(&stream);
        self.cursor(stream, ordinal, true, &id)
    }

    /// The request of this stream was cancelled: nothing on it is sent again. It is remembered as
    /// long as an event would be, so that a client that resumes it is refused, not told of a loss.
    pub(crate) fn cancel(&mut self, now: Moment, limits: &SessionSettings, stream: StreamId) {
        self.push(now, limits, stream, &Pieces::new(), true);
        if let Some(entry) = self.kept.streams.get_mut(&stream) {
            entry.end = Some(Ended::Cancelled);
        }
    }

    /// Nobody can come back to this stream: no event of it was sent, and none will be.
    pub(crate) fn forget(&mut self, stream: StreamId) {
        if let Some(kept) = self.kept.held() {
            kept.streams.remove(&stream);
        }
    }

    /// Whether a stream is known.
    #[cfg(test)]
    pub(crate) fn streams_len(&self) -> usize {
        self.kept.streams.len()
    }

    /// Reads `Last-Event-ID`.
    pub(crate) fn resume(&self, cursor: &str) -> Resume {
        let Some(body) = self.seal.open(cursor) else {
            return Resume::Unknown;
        };
        let Some((stream, ordinal, is_last, id)) = parse(&body) else {
            return Resume::Unknown;
        };
        if stream == StreamId::GET {
            return Resume::After(stream, ordinal);
        }
        match self.kept.streams.get(&stream) {
            None if is_last => Resume::Complete,
            None => Resume::Lost {
                stream,
                id: Bytes::copy_from_slice(id),
            },
            Some(entry) => match entry.end {
                Some(Ended::Cancelled) => Resume::Unknown,
                Some(Ended::Answered) if is_last => Resume::Complete,
                Some(Ended::Answered) if !self.holds_answer(stream) => Resume::Lost {
                    stream,
                    id: entry.id.clone(),
                },
                Some(Ended::Answered) | None => Resume::After(stream, ordinal),
            },
        }
    }

    /// Whether nothing more will come on this stream.
    pub(crate) fn is_complete(&self, stream: StreamId) -> bool {
        self.kept.is_complete(stream)
    }

    /// The kept events of a stream behind one, with their cursors.
    pub(crate) fn after(&self, stream: StreamId, ordinal: u64) -> Vec<(Arc<str>, Pieces)> {
        let id = self
            .kept
            .streams
            .get(&stream)
            .map(|entry| entry.id.clone())
            .unwrap_or_default();
        self.kept
            .log
            .iter()
            .filter(|event| event.stream == stream && event.ordinal > ordinal)
            .map(|event| {
                let cursor = self.cursor(stream, event.ordinal, event.is_last, &id);
                (cursor, event.data.clone())
            })
            .collect()
    }

    /// Drops what is too old.
    pub(crate) fn expire(&mut self, now: Moment, limits: &SessionSettings) {
        while self.next_expiry(limits).is_some_and(|expiry| expiry <= now) {
            self.drop_oldest();
        }
    }

    /// When the oldest event is dropped.
    pub(crate) fn next_expiry(&self, limits: &SessionSettings) -> Option<Moment> {
        self.kept
            .log
            .front()
            .map(|event| event.at.after(limits.redelivery_age_max))
    }

    /// Bytes of the events that are held.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.bytes
    }

    /// Drops events until they come to no more than `most` bytes: the oldest of those on streams that
    /// are complete, and only then the oldest of the others.
    pub(crate) fn shed(&mut self, most: usize) {
        let Some(held) = self.kept.held() else {
            return;
        };
        for event in std::mem::take(&mut held.log) {
            let is_over = held.bytes > most && !event.data.is_empty();
            if is_over && held.is_complete(event.stream) {
                held.release(event.stream, event.data.len());
            } else {
                held.log.push_back(event);
            }
        }
        self.rest();
        while self.kept.bytes > most && !self.kept.log.is_empty() {
            self.drop_oldest();
        }
    }

    fn entry(&mut self, stream: StreamId) -> &mut Stream {
        let base = self.base;
        self.kept.streams.entry(stream).or_insert_with(|| Stream {
            id: Bytes::new(),
            last: base,
            kept: 0,
            end: None,
        })
    }

    fn holds_answer(&self, stream: StreamId) -> bool {
        self.kept
            .log
            .iter()
            .any(|event| event.stream == stream && event.is_last)
    }

    fn trim(&mut self, limits: &SessionSettings) {
        while self.kept.log.len() > limits.redelivery_events_max
            || self.kept.bytes > limits.redelivery_bytes_max
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(kept) = self.kept.held()
            && let Some(event) = kept.log.pop_front()
        {
            kept.release(event.stream, event.data.len());
            self.rest();
        }
    }

    /// An idle session holds no memory for what it once sent.
    fn rest(&mut self) {
        if let Some(kept) = self.kept.held()
            && kept.log.is_empty()
        {
            kept.log.shrink_to_fit();
            if kept.streams.is_empty() {
                self.kept.clear();
            }
        }
    }

    fn cursor(&self, stream: StreamId, ordinal: u64, is_last: bool, id: &[u8]) -> Arc<str> {
        let mut body = Vec::with_capacity(24 + id.len());
        body.push(u8::from(is_last));
        put_number(&mut body, stream.0);
        put_number(&mut body, ordinal);
        body.extend_from_slice(id);
        self.seal.seal(&body).into()
    }
}

/// Splits the body of a cursor: stream, ordinal, whether it is the last event, raw request id.
fn parse(body: &[u8]) -> Option<(StreamId, u64, bool, &[u8])> {
    let (is_last, rest) = body.split_first()?;
    let (stream, rest) = read_number(rest)?;
    let (ordinal, id) = read_number(rest)?;
    Some((StreamId(stream), ordinal, *is_last == 1, id))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn log() -> Redelivery {
        Redelivery::new(Seal::new([7; 32], SessionKey(1)), 0)
    }

    fn data(text: &'static str) -> Pieces {
        Pieces::from(Bytes::from_static(text.as_bytes()))
    }

    fn later(events: &[(Arc<str>, Pieces)]) -> Vec<String> {
        events
            .iter()
            .map(|(_, data)| String::from_utf8(data.to_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn a_cursor_brings_the_later_events_of_its_stream_alone() {
        let (mut log, limits, now) = (log(), SessionSettings::default(), Moment::default());
        let (one, two) = (StreamId(1), StreamId(2));
        log.open(one, b"1");
        log.open(two, b"2");
        let cursor = log.push(now, &limits, one, &data("a"), false);
        log.push(now, &limits, two, &data("b"), false);
        log.push(now, &limits, one, &data("c"), true);
        let Resume::After(stream, ordinal) = log.resume(&cursor) else {
            panic!()
        };
        assert_eq!(later(&log.after(stream, ordinal)), ["c"]);
    }

    #[test]
    fn a_forged_foreign_or_odd_cursor_is_unknown() {
        let (mut log, limits, now) = (log(), SessionSettings::default(), Moment::default());
        let stream = StreamId(1);
        log.open(stream, b"1");
        let cursor = log.push(now, &limits, stream, &data("a"), false);
        let foreign = Redelivery::new(Seal::new([7; 32], SessionKey(2)), 0);
        assert_eq!(foreign.resume(&cursor), Resume::Unknown);
        for at in 0..cursor.len() {
            let mut forged = cursor.to_string();
            let other = if forged.as_bytes()[at] == b'A' {
                "B"
            } else {
                "A"
            };
            forged.replace_range(at..=at, other);
            assert_eq!(log.resume(&forged), Resume::Unknown, "{forged}");
        }
        for odd in ["", "1", "é", "AAAA", "=", &"A".repeat(4000)] {
            assert_eq!(log.resume(odd), Resume::Unknown);
        }
    }

    #[test]
    fn an_answer_that_aged_out_is_lost_under_its_own_id() {
        let (mut log, limits) = (log(), SessionSettings::default());
        let stream = StreamId(1);
        log.open(stream, br#""x""#);
        let first = log.prime(stream);
        let last = log.push(Moment::default(), &limits, stream, &data("a"), true);
        log.expire(Moment(Duration::from_hours(1)), &limits);
        assert_eq!(
            log.resume(&first),
            Resume::Lost {
                stream,
                id: Bytes::from_static(br#""x""#)
            }
        );
        assert_eq!(log.resume(&last), Resume::Complete);
    }

    #[test]
    fn the_log_is_bounded_by_events_and_bytes() {
        let limits = SessionSettings {
            redelivery_events_max: 3,
            redelivery_bytes_max: 10,
            ..SessionSettings::default()
        };
        let mut log = log();
        let stream = StreamId(1);
        log.open(stream, b"1");
        for text in ["a", "b", "c", "d"] {
            log.push(Moment::default(), &limits, stream, &data(text), false);
        }
        assert_eq!(later(&log.after(stream, 0)), ["b", "c", "d"]);
        log.push(
            Moment::default(),
            &limits,
            stream,
            &data("123456789"),
            false,
        );
        assert_eq!(later(&log.after(stream, 0)), ["d", "123456789"]);
        log.push(
            Moment::default(),
            &limits,
            stream,
            &data("12345678901"),
            true,
        );
        assert!(matches!(
            log.resume(&log.cursor(stream, 1, false, b"1")),
            Resume::Lost { .. }
        ));
    }

    #[test]
    fn what_is_shed_are_answers_before_events_of_calls_under_way() {
        let (mut log, limits, now) = (log(), SessionSettings::default(), Moment::default());
        let [one, two, three] = [1, 2, 3].map(StreamId);
        for (stream, text, is_last) in [
            (one, "1234", false),
            (two, "1234", true),
            (StreamId::GET, "12", false),
            (three, "1234", true),
        ] {
            log.push(now, &limits, stream, &data(text), is_last);
        }
        let held = |log: &Redelivery| {
            let all = [one, two, three, StreamId::GET];
            all.map(|stream| log.after(stream, 0).len())
        };
        for (most, bytes, left) in [
            (14, 14, [1, 1, 1, 1]),
            (13, 10, [1, 0, 1, 1]),
            (10, 10, [1, 0, 1, 1]),
            (9, 6, [1, 0, 0, 1]),
            (5, 2, [0, 0, 0, 1]),
            (0, 0, [0, 0, 0, 0]),
        ] {
            log.shed(most);
            assert_eq!((log.bytes(), held(&log)), (bytes, left), "{most}");
        }
        let cursor = log.cursor(three, 0, false, b"3");
        assert!(matches!(log.resume(&cursor), Resume::Lost { .. }));
        assert_eq!(log.kept.log.capacity(), 0);
    }

    #[test]
    fn the_stream_of_a_cancelled_request_cannot_be_resumed() {
        let (mut log, limits) = (log(), SessionSettings::default());
        let stream = StreamId(1);
        log.open(stream, b"1");
        let cursor = log.prime(stream);
        log.cancel(Moment::default(), &limits, stream);
        assert_eq!(log.resume(&cursor), Resume::Unknown);
    }

    #[test]
    fn numbers_of_every_size_come_back() {
        for number in [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            assert_eq!(read_number(&bytes), Some((number, &[][..])));
        }
        assert_eq!(read_number(&[0x80; 11]), None);
    }
}
