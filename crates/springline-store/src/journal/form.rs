//! The bytes of a segment: a header, then records of one length, each with its checksum.
//!
//! Owns the format (docs/state.md describes it). Must not touch a file.
//!
//! All numbers are little-endian. Header, 64 bytes: magic, format, record length, ordinal of the
//! segment, salt, boot, checksum. Record, 48 bytes: session, number, value, note, state, zeros,
//! checksum over the segment's salt and all that stands before it. The last word of either is stored
//! last, so one whose last word is zero was never finished: nobody was told of it.

use springline_proto::call::Generation;

use super::{Answer, CallEntry, CallId, CallState};
use crate::digest::SessionDigest;
use crate::folder::Reason;

pub(super) const HEADER_LEN: usize = 64;
pub(super) const RECORD_LEN: usize = 48;
pub(super) const FORMAT: u32 = 1;
/// What is stored at once, and the last of a record or a header after the rest of it.
pub(super) const WORD_LEN: usize = 8;
/// So many records in a row may be missing before a whole one: writers that a kill met on their way.
/// A page of the file that is lost takes more of them with it.
pub(super) const GAP_MAX: usize = 64;
const MAGIC: [u8; 8] = *b"SPRLCALL";

/// What stands at the head of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Header {
    /// Its place among the segments; only grows.
    pub(super) ordinal: u64,
    /// Makes records of another segment fail their checksum.
    pub(super) salt: u64,
    /// The boot of the machine in which it was written; zeros if unknown.
    pub(super) boot: [u8; 16],
}

/// What a record says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Line {
    Entry(CallEntry),
    /// All before it was synced and nothing follows: the journal was closed in order.
    Closed,
}

/// A segment taken apart.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Segment {
    pub(super) header: Header,
    /// The whole records, up to damage if there is any.
    pub(super) lines: Vec<Line>,
    /// The bytes of records that were begun and not finished.
    pub(super) torn_len: usize,
    /// Where damage begins: what stands there was acknowledged once.
    pub(super) damaged_at: Option<usize>,
}

pub(super) fn header(header: &Header) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    put(&mut out, 0, &MAGIC);
    put(&mut out, 8, &FORMAT.to_le_bytes());
    put(&mut out, 12, &48_u32.to_le_bytes());
    put(&mut out, 16, &header.ordinal.to_le_bytes());
    put(&mut out, 24, &header.salt.to_le_bytes());
    put(&mut out, 32, &header.boot);
    let sum = crc32fast::hash(&out[..HEADER_LEN - 4]);
    put(&mut out, HEADER_LEN - 4, &sum.to_le_bytes());
    out
}

pub(super) fn record(salt: u64, line: &Line) -> [u8; RECORD_LEN] {
    let (call, state, value, note) = match line {
        Line::Entry(entry) => {
            let (state, value) = encode(entry.state);
            (entry.call, state, value, entry.note)
        }
        Line::Closed => (CallId::NONE, CLOSED, 0, 0),
    };
    let mut out = [0; RECORD_LEN];
    put(&mut out, 0, &call.session.0);
    put(&mut out, 16, &call.number.to_le_bytes());
    put(&mut out, 24, &value.to_le_bytes());
    put(&mut out, 32, &note.to_le_bytes());
    out[40] = state;
    let sum = checksum(salt, &out[..RECORD_LEN - 4]);
    put(&mut out, RECORD_LEN - 4, &sum.to_le_bytes());
    out
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Takes a segment apart. `Ok(None)` if it has no whole header and nothing else, as after a crash at
/// its birth.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Segment>, Reason> {
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) && !is_blank(bytes) {
        return Err(Reason::Foreign);
    }
    let Some((head, mut rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    if is_blank(&bytes[HEADER_LEN - WORD_LEN..]) {
        return Ok(None);
    }
    let header = read_header(head)?;
    let mut segment = Segment {
        header,
        lines: Vec::new(),
        torn_len: 0,
        damaged_at: None,
    };
    let mut gap = 0;
    while let Some((record, after)) = rest.split_first_chunk::<RECORD_LEN>() {
        if is_blank(&record[RECORD_LEN - WORD_LEN..]) {
            gap += 1;
            segment.torn_len += if is_blank(record) { 0 } else { RECORD_LEN };
        } else {
            let line = read_line(header.salt, record).filter(|_| gap <= GAP_MAX);
            let Some(line) = line else {
                segment.damaged_at = Some(bytes.len() - rest.len());
                return Ok(Some(segment));
            };
            segment.lines.push(line);
            gap = 0;
        }
        rest = after;
    }
    segment.torn_len += if is_blank(rest) { 0 } else { rest.len() };
    Ok(Some(segment))
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn read_header(head: &[u8; HEADER_LEN]) -> Result<Header, Reason> {
    let (content, sum) = head.split_at(HEADER_LEN - 4);
    if crc32fast::hash(content) != u32_at(sum, 0) {
        let detail = "the checksum of its header".into();
        return Err(Reason::Damaged { detail });
    }
    let (format, record_len) = (u32_at(head, 8), u32_at(head, 12));
    if format != FORMAT || record_len as usize != RECORD_LEN {
        return Err(Reason::Version { found: format });
    }
    Ok(Header {
        ordinal: u64_at(head, 16),
        salt: u64_at(head, 24),
        boot: array_at(head, 32),
    })
}

fn read_line(salt: u64, record: &[u8; RECORD_LEN]) -> Option<Line> {
    let (content, sum) = record.split_at(RECORD_LEN - 4);
    if checksum(salt, content) != u32_at(sum, 0) {
        return None;
    }
    let value = u64_at(record, 24);
    let state = match (record[40], value) {
        (CLOSED, _) => return Some(Line::Closed),
        (ACCEPTED, _) => CallState::Accepted,
        (SENT, generation) => CallState::Sent {
            generation: Generation(generation),
        },
        (ANSWERED, code) => CallState::Answered {
            answer: answer_of(code)?,
        },
        (SETTLED, _) => CallState::Settled,
        _ => return None,
    };
    Some(Line::Entry(CallEntry {
        call: CallId {
            session: SessionDigest(array_at(record, 0)),
            number: u64_at(record, 16),
        },
        state,
        note: u64_at(record, 32),
    }))
}

const ACCEPTED: u8 = 1;
const SENT: u8 = 2;
const ANSWERED: u8 = 3;
const SETTLED: u8 = 4;
const CLOSED: u8 = 5;

impl CallId {
    const NONE: Self = Self {
        session: SessionDigest([0; 16]),
        number: 0,
    };
}

fn encode(state: CallState) -> (u8, u64) {
    match state {
        CallState::Accepted => (ACCEPTED, 0),
        CallState::Sent { generation } => (SENT, generation.0),
        CallState::Answered { answer } => {
            let code = match answer {
                Answer::Server => 0,
                Answer::NotExecuted => 1,
                Answer::Unknown => 2,
                Answer::Executed => 3,
            };
            (ANSWERED, code)
        }
        CallState::Settled => (SETTLED, 0),
    }
}

fn answer_of(code: u64) -> Option<Answer> {
    match code {
        0 => Some(Answer::Server),
        1 => Some(Answer::NotExecuted),
        2 => Some(Answer::Unknown),
        3 => Some(Answer::Executed),
        _ => None,
    }
}

fn checksum(salt: u64, content: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&salt.to_le_bytes());
    hasher.update(content);
    hasher.finalize()
}

/// Zeros where the bytes are too few; all callers pass a header or a record.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

/// Any bytes as a segment: nothing panics, and what is accepted stands there in its order, and is
/// read again as it was.
///
/// # Panics
/// If a property fails.
#[cfg(any(test, feature = "conformance"))]
pub fn fuzz_segment(bytes: &[u8]) {
    let Ok(Some(segment)) = read(bytes) else {
        return;
    };
    let salt = segment.header.salt;
    let mut again = header(&segment.header).to_vec();
    let end = segment.damaged_at.unwrap_or(bytes.len());
    let (records, _) = bytes[HEADER_LEN..end].as_chunks::<RECORD_LEN>();
    let mut records = records.iter();
    for line in &segment.lines {
        let stands = records.any(|found| read_line(salt, found) == Some(*line));
        assert!(stands, "in its order");
        again.extend(record(salt, line));
    }
    assert!(segment.torn_len <= end - HEADER_LEN);
    let reread = read(&again).ok().flatten().expect("it is whole");
    assert_eq!(reread.lines, segment.lines);
    assert_eq!(reread.header, segment.header);
    assert_eq!((reread.torn_len, reread.damaged_at), (0, None));
}
