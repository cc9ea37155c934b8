//! The bytes of a segment: a header, then records of one length, each with its checksum.
//!
//! Owns the format (docs/state.md describes it). Must not touch a file.
//!
//! All numbers are little-endian. Header, 64 bytes: magic, format, record length, ordinal of the
//! segment, salt, boot, checksum. Record, 48 bytes: session, number, value, note, state, zeros,
//! checksum over the segment's salt and all that stands before it.

use springline_proto::call::Generation;

use super::{Answer, CallEntry, CallId, CallState};
use crate::digest::SessionDigest;
use crate::folder::Reason;

pub(super) const HEADER_LEN: usize = 64;
pub(super) const RECORD_LEN: usize = 48;
pub(super) const FORMAT: u32 = 1;
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
    /// Up to the first one that is not whole.
    pub(super) lines: Vec<Line>,
    /// The bytes from there on.
    pub(super) torn_len: usize,
}

pub(super) fn write_header(header: &Header, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&48_u32.to_le_bytes());
    out.extend_from_slice(&header.ordinal.to_le_bytes());
    out.extend_from_slice(&header.salt.to_le_bytes());
    out.extend_from_slice(&header.boot);
    out.extend_from_slice(&[0; 12]);
    let sum = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

pub(super) fn write_line(salt: u64, line: &Line, out: &mut Vec<u8>) {
    let (call, state, value, note) = match line {
        Line::Entry(entry) => {
            let (state, value) = encode(entry.state);
            (entry.call, state, value, entry.note)
        }
        Line::Closed => (CallId::NONE, CLOSED, 0, 0),
    };
    let start = out.len();
    out.extend_from_slice(&call.session.0);
    out.extend_from_slice(&call.number.to_le_bytes());
    out.extend_from_slice(&value.to_le_bytes());
    out.extend_from_slice(&note.to_le_bytes());
    out.extend_from_slice(&[state, 0, 0, 0]);
    let sum = checksum(salt, &out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Takes a segment apart. `Ok(None)` if it is too short for a header, as after a crash at its birth.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Segment>, Reason> {
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        return Err(Reason::Foreign);
    }
    let Some((head, mut rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = read_header(head)?;
    let mut lines = Vec::with_capacity(rest.len() / RECORD_LEN);
    while let Some((record, after)) = rest.split_first_chunk::<RECORD_LEN>() {
        let Some(line) = read_line(header.salt, record) else {
            break;
        };
        lines.push(line);
        rest = after;
    }
    Ok(Some(Segment {
        header,
        lines,
        torn_len: rest.len(),
    }))
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

/// Any bytes as a segment: nothing panics, and what is accepted is written again byte for byte.
///
/// # Panics
/// If a property fails.
#[cfg(any(test, feature = "conformance"))]
pub fn fuzz_segment(bytes: &[u8]) {
    let Ok(Some(segment)) = read(bytes) else {
        return;
    };
    let mut again = Vec::new();
    write_header(&segment.header, &mut again);
    for line in &segment.lines {
        write_line(segment.header.salt, line, &mut again);
    }
    assert_eq!(again.len() + segment.torn_len, bytes.len());
    let reread = read(&again).ok().flatten().expect("it is whole");
    assert_eq!(reread.lines, segment.lines);
    assert_eq!(reread.header, segment.header);
    assert_eq!(reread.torn_len, 0);
}
