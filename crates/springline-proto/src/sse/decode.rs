//! Reading events.
//!
//! Owns the parser's state between chunks. Lines end in CR, LF or CRLF, wherever chunks are cut.

use std::{fmt, sync::Arc, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};

use crate::json::Skim;

/// The longest value of a field other than `data`, in bytes: a longer id or retry is ignored, a
/// longer event type is cut. Ids travel in the header `Last-Event-ID`, which servers bound likewise.
pub const FIELD_MAX: usize = 4096;

/// Data up to this length is copied out of the buffer; longer data shares it.
const COPY_MAX: usize = 16 * 1024;

/// An empty buffer larger than this is given back, so that idle streams cost nothing.
const IDLE_MAX: usize = 1024;

/// Longer than any field name that we know, with its colon and space.
const NAME_MAX: usize = 16;

/// What a stream carries.
#[derive(Clone, Eq, PartialEq)]
pub enum SseItem {
    /// An event. One without data is handed out only if it carried an id.
    Event {
        /// The event type; `None` means "message".
        event: Option<String>,
        /// The last event id that the stream has set, on this event or before it.
        id: Option<Arc<str>>,
        /// The data, its lines joined by LF. Not checked to be UTF-8.
        data: Bytes,
    },
    /// An event whose data is over the bound. It was not kept; its id counts as received.
    TooLong {
        /// The length of its data in bytes.
        len_seen: u64,
        /// The last event id that the stream has set, on this event or before it.
        event_id: Option<Arc<str>>,
        /// The JSON text of the top-level `id` of the message in it, if it has one that stands once.
        id: Option<Bytes>,
        /// The top-level `method` of the message in it.
        method: Option<String>,
    },
    /// The next bytes of the data of an event that passes ([`SseDecoder::pass`]).
    Bytes(Bytes),
    /// The event that passes is complete; its id counts as received.
    Passed,
}

/// Shows no content: events may carry secrets.
impl fmt::Debug for SseItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event { event, id, data } => {
                write!(f, "Event({event:?}, id {id:?}, {} bytes)", data.len())
            }
            Self::TooLong {
                len_seen, event_id, ..
            } => write!(f, "TooLong(id {event_id:?}, {len_seen} bytes)"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Passed => f.write_str("Passed"),
        }
    }
}

/// Decodes one stream. A reconnected stream needs a new decoder.
///
/// After each [`push`](Self::push), call [`next`](Self::next) until it returns `None`. An event that
/// is unfinished when the stream ends was never sent, by the standard: drop the decoder.
pub struct SseDecoder {
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    event_max: usize,
    /// Whether the place for a byte order mark is past.
    started: bool,
    /// Whether the last line ended in CR, so that a LF belongs to that end.
    after_cr: bool,
    /// What becomes of the rest of a line whose start was let go.
    rest: Rest,
    pending: Pending,
    last_id: Option<Arc<str>>,
    retry: Option<Duration>,
}

/// The event in progress.
#[derive(Default)]
struct Pending {
    event: Option<String>,
    /// The standard's "last event ID buffer": it outlives events.
    id: Option<Arc<str>>,
    id_seen: bool,
    data: Data,
    over: Option<Box<Skim>>,
    passing: bool,
    /// Whether a line of what passes is over, so that another one is joined by LF.
    joins: bool,
}

#[derive(Default)]
enum Data {
    #[default]
    None,
    One(Bytes),
    Lines(BytesMut),
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Rest {
    None,
    /// Data of an event over the bound.
    Skim,
    /// Data of an event that passes.
    Pass,
    Drop,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Field {
    Data,
    Event,
    Id,
    Retry,
    Other,
}

impl SseDecoder {
    /// A decoder that keeps events of up to `event_max` bytes of data.
    pub fn new(event_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            event_max,
            started: false,
            after_cr: false,
            rest: Rest::None,
            pending: Pending::default(),
            last_id: None,
            retry: None,
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    /// Takes the next bytes of the stream, but for those of the line at hand of an event that passes:
    /// they are given back, and are never copied.
    pub fn push_passing(&mut self, chunk: &Bytes) -> Option<Bytes> {
        if self.rest != Rest::Pass || !self.buffer.is_empty() {
            self.push(chunk);
            return None;
        }
        let end = memchr::memchr2(b'\n', b'\r', chunk).unwrap_or(chunk.len());
        self.push(chunk.get(end..).unwrap_or_default());
        Some(chunk.slice(..end)).filter(|bytes| !bytes.is_empty())
    }

    /// The data so far of the event at hand, a copy, if it is more than `held_max` bytes of a
    /// message.
    pub fn begun(&self, held_max: usize) -> Option<Bytes> {
        let pending = &self.pending;
        let is_message = pending
            .event
            .as_deref()
            .is_none_or(|event| event == "message");
        let line = self.line_at_hand();
        let joint = usize::from(!matches!(pending.data, Data::None));
        let len = pending.data_len() + line.map_or(0, |line| joint + line.len());
        if pending.passing || pending.over.is_some() || !is_message || len <= held_max {
            return None;
        }
        let mut begun = BytesMut::with_capacity(len);
        match &pending.data {
            Data::None => {}
            Data::One(bytes) => begun.extend_from_slice(bytes),
            Data::Lines(bytes) => begun.extend_from_slice(bytes),
        }
        if let Some(line) = line {
            begun.extend_from_slice(b"\n".get(..joint).unwrap_or_default());
            begun.extend_from_slice(line);
        }
        Some(begun.freeze())
    }

    /// Lets go of what [`Self::begun`] gave: the rest of the event passes, as [`SseItem::Bytes`] and
    /// then [`SseItem::Passed`].
    pub fn pass(&mut self) {
        let has_line = self.line_at_hand().is_some();
        let pending = &mut self.pending;
        pending.passing = true;
        pending.joins = !has_line;
        pending.data = Data::None;
        if has_line {
            self.buffer = BytesMut::new();
            self.searched = 0;
            self.rest = Rest::Pass;
        }
    }

    /// The value so far of a data line whose end has not come; only between [`Self::next`]'s `None`
    /// and the next push.
    fn line_at_hand(&self) -> Option<&[u8]> {
        let value = self
            .buffer
            .strip_prefix(b"data:")
            .filter(|_| self.rest == Rest::None)?;
        // The byte behind the colon decides whether a space is cut off.
        let value = value.strip_prefix(b" ").unwrap_or(value);
        (!value.is_empty()).then_some(value)
    }

    /// The next complete event, if there is one. Not an iterator: after `None` more may come.
    #[expect(
        clippy::should_implement_trait,
        reason = "None means not yet, which an iterator may not say"
    )]
    pub fn next(&mut self) -> Option<SseItem> {
        loop {
            self.skip_joints();
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr2(b'\n', b'\r', unsearched) else {
                return self.no_end_yet();
            };
            self.after_cr = unsearched.get(at) == Some(&b'\r');
            self.started = true;
            let len = self.searched + at;
            self.searched = 0;
            let item = self.line(len);
            self.buffer.advance(1);
            if item.is_some() {
                return item;
            }
        }
    }

    /// The id to resume behind: that of the last complete event that had one, or that inherited one.
    /// `None` also when the server has set it to nothing.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The reconnection time that the server asked for last.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// The bytes held now.
    pub fn buffered(&self) -> usize {
        self.buffer.len() + self.pending.data_len()
    }

    /// Drops the LF of a CRLF that was cut between chunks, and a byte order mark.
    fn skip_joints(&mut self) {
        if self.after_cr && !self.buffer.is_empty() {
            self.after_cr = false;
            if self.buffer.first() == Some(&b'\n') {
                self.buffer.advance(1);
            }
        }
        if !self.started && self.buffer.starts_with(b"\xEF\xBB\xBF") {
            self.buffer.advance(3);
            self.searched = 0;
            self.started = true;
        }
    }

    /// Lets go of what need not be kept of an unfinished line.
    fn no_end_yet(&mut self) -> Option<SseItem> {
        let mut passing = None;
        let len = self.buffer.len();
        self.started |= len >= 3;
        match self.rest {
            Rest::None if self.pending.passing => {
                // Up to the byte behind the colon, which decides whether a space is cut off.
                if self.buffer.starts_with(b"data:") && len > b"data: ".len() {
                    passing = self.pass_data(len);
                    self.rest = Rest::Pass;
                } else if !self.buffer.starts_with(b"data:") && len > FIELD_MAX + NAME_MAX {
                    self.field(len);
                    self.rest = Rest::Drop;
                    self.buffer.clear();
                }
            }
            Rest::None => {
                if let Some(value) = self.buffer.strip_prefix(b"data:") {
                    let len = value.strip_prefix(b" ").unwrap_or(value).len();
                    let over = self.pending.over.is_some() || !self.fits(len);
                    // The byte behind the colon decides whether a space is cut off.
                    if over && !value.is_empty() {
                        self.data(self.buffer.len());
                        self.rest = Rest::Skim;
                    }
                } else if len > FIELD_MAX + NAME_MAX {
                    self.field(len);
                    self.rest = Rest::Drop;
                    self.buffer.clear();
                }
            }
            Rest::Skim => {
                self.skim(len);
            }
            Rest::Pass => passing = self.pass_bytes(len),
            Rest::Drop => self.buffer.clear(),
        }
        self.searched = self.buffer.len();
        if self.buffer.is_empty() && self.buffer.capacity() > IDLE_MAX {
            self.buffer = BytesMut::new();
        }
        passing
    }

    /// Takes a data line of `len` bytes of an event that passes off the buffer, or the start of one.
    fn pass_data(&mut self, len: usize) -> Option<SseItem> {
        let (_, start) = self.field_at(len);
        let joins = std::mem::replace(&mut self.pending.joins, false);
        if !joins {
            self.buffer.advance(start);
            return self.pass_bytes(len - start);
        }
        let mut joined = BytesMut::with_capacity(1 + len - start);
        joined.extend_from_slice(b"\n");
        joined.extend_from_slice(self.buffer.get(start..len).unwrap_or_default());
        self.buffer.advance(len);
        Some(SseItem::Bytes(joined.freeze()))
    }

    /// Takes `len` bytes of what passes off the buffer.
    fn pass_bytes(&mut self, len: usize) -> Option<SseItem> {
        (len > 0).then(|| SseItem::Bytes(self.buffer.split_to(len).freeze()))
    }

    /// Takes a line of `len` bytes off the buffer, its end not included.
    fn line(&mut self, len: usize) -> Option<SseItem> {
        match std::mem::replace(&mut self.rest, Rest::None) {
            Rest::None if len == 0 => return self.dispatch(),
            Rest::None if self.pending.passing && self.field_at(len).0 == Field::Data => {
                let item = self.pass_data(len);
                self.pending.joins = true;
                return item;
            }
            Rest::Pass => {
                self.pending.joins = true;
                return self.pass_bytes(len);
            }
            Rest::None if self.field_at(len).0 == Field::Data => self.data(len),
            Rest::None => {
                self.field(len);
                self.buffer.advance(len);
            }
            Rest::Skim => self.skim(len),
            Rest::Drop => self.buffer.advance(len),
        }
        None
    }

    /// The field of the line of `len` bytes, and where its value starts.
    fn field_at(&self, len: usize) -> (Field, usize) {
        let line = self.buffer.get(..len).unwrap_or_default();
        // No name that we know is longer, so a long line without a colon is not searched through.
        let head = line.get(..NAME_MAX).unwrap_or(line);
        let colon = head.iter().position(|byte| *byte == b':');
        let name = line.get(..colon.unwrap_or(len)).unwrap_or_default();
        let field = match name {
            b"data" => Field::Data,
            b"event" => Field::Event,
            b"id" => Field::Id,
            b"retry" => Field::Retry,
            _ => Field::Other,
        };
        let value = colon.map_or(len, |colon| colon + 1);
        let space = usize::from(line.get(value) == Some(&b' '));
        (field, value + space)
    }

    /// Handles a line that is not data; leaves it in the buffer.
    fn field(&mut self, len: usize) {
        let (field, start) = self.field_at(len);
        let value = self.buffer.get(start..len).unwrap_or_default();
        match field {
            Field::Event => {
                let kept = value.get(..FIELD_MAX).unwrap_or(value);
                let event = String::from_utf8_lossy(kept);
                self.pending.event = (!event.is_empty()).then(|| event.into_owned());
            }
            Field::Id if !value.contains(&b'\0') && value.len() <= FIELD_MAX => {
                let id = String::from_utf8_lossy(value);
                self.pending.id = (!id.is_empty()).then(|| Arc::from(id));
                self.pending.id_seen = true;
            }
            Field::Retry if value.len() <= FIELD_MAX && value.iter().all(u8::is_ascii_digit) => {
                let digits = std::str::from_utf8(value).unwrap_or_default();
                // Nothing to read, or more than 64 bits: ignored.
                if let Ok(millis) = digits.parse() {
                    self.retry = Some(Duration::from_millis(millis));
                }
            }
            Field::Id | Field::Retry | Field::Data | Field::Other => {}
        }
    }

    /// Whether `len` more bytes of data, as a line of their own, stay within the bound.
    fn fits(&self, len: usize) -> bool {
        let joint = usize::from(!matches!(self.pending.data, Data::None));
        self.pending.data_len() + joint + len <= self.event_max
    }

    /// Takes a data line of `len` bytes off the buffer.
    fn data(&mut self, len: usize) {
        let (_, start) = self.field_at(len);
        if self.pending.over.is_none() && self.fits(len - start) {
            let value = if len - start <= COPY_MAX {
                let copy = Bytes::copy_from_slice(self.buffer.get(start..len).unwrap_or_default());
                self.buffer.advance(len);
                copy
            } else {
                self.buffer.advance(start);
                self.buffer.split_to(len - start).freeze()
            };
            self.pending.append(value);
        } else {
            self.pending.go_over();
            self.buffer.advance(start);
            self.skim(len - start);
        }
    }

    /// Takes `len` bytes of an event over the bound off the buffer.
    fn skim(&mut self, len: usize) {
        if let Some(skim) = &mut self.pending.over {
            skim.push(self.buffer.get(..len).unwrap_or_default());
        }
        self.buffer.advance(len);
    }

    /// Ends the event at a blank line.
    fn dispatch(&mut self) -> Option<SseItem> {
        let pending = &mut self.pending;
        let event = pending.event.take();
        let id_seen = std::mem::replace(&mut pending.id_seen, false);
        self.last_id.clone_from(&pending.id);
        let id = pending.id.clone();
        pending.joins = false;
        if std::mem::take(&mut pending.passing) {
            return Some(SseItem::Passed);
        }
        if let Some(skim) = pending.over.take() {
            return Some(SseItem::TooLong {
                len_seen: skim.seen(),
                event_id: id,
                id: skim.id().cloned(),
                method: skim.method().map(str::to_owned),
            });
        }
        let data = match std::mem::take(&mut pending.data) {
            Data::None if !id_seen => return None,
            Data::None => Bytes::new(),
            Data::One(bytes) => bytes,
            Data::Lines(bytes) => bytes.freeze(),
        };
        Some(SseItem::Event { event, id, data })
    }
}

impl Pending {
    fn data_len(&self) -> usize {
        match &self.data {
            Data::None => 0,
            Data::One(bytes) => bytes.len(),
            Data::Lines(bytes) => bytes.len(),
        }
    }

    fn append(&mut self, value: Bytes) {
        self.data = match std::mem::take(&mut self.data) {
            Data::None => Data::One(value),
            Data::One(first) => {
                let mut lines = BytesMut::with_capacity(first.len() + 1 + value.len());
                lines.extend_from_slice(&first);
                Data::Lines(join(lines, &value))
            }
            Data::Lines(lines) => Data::Lines(join(lines, &value)),
        };
    }

    /// Lets go of the data so far; before another line of it when there is any.
    fn go_over(&mut self) {
        let skim = self.over.get_or_insert_default();
        match std::mem::take(&mut self.data) {
            Data::None if skim.seen() == 0 => return,
            Data::None => {}
            Data::One(bytes) => skim.push(&bytes),
            Data::Lines(bytes) => skim.push(&bytes),
        }
        skim.push(b"\n");
    }
}

fn join(mut lines: BytesMut, value: &[u8]) -> BytesMut {
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(value);
    lines
}
