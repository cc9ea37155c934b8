//! What a journal folder holds at the start.
//!
//! Owns the reading of segments, in their order, into the calls that are open. Must not write anything,
//! nor set a file aside: what it says of the others must stand until they need it no more.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use super::form::{self, Line, Segment};
use super::{CallEntry, CallId, place};
use crate::folder::{Finding, FolderError, Look, Reason, StateFolder, failure};

/// Longer than any segment that we write: a full one, one append, and all open calls carried over, in
/// whole steps of its growth.
const SEGMENT_LEN_MAX: u64 = 16 << 20;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) open: BTreeMap<CallId, CallEntry>,
    /// The ordinals of the segments that were read.
    pub(super) read: Vec<u64>,
    /// The ordinal after all that exist or existed.
    pub(super) next: u64,
    /// See [`super::Recovered::incomplete`].
    pub(super) incomplete: bool,
    pub(super) findings: Vec<Finding>,
    /// Files that do not count, to be set aside once the open calls are written elsewhere: a start that
    /// fails before that must leave the next one to doubt what this one does (I4).
    pub(super) aside: Vec<(String, Reason)>,
}

impl Scan {
    fn pass_over(&mut self, name: String, reason: Reason) {
        self.aside.push((name, reason));
        self.incomplete = true;
    }
}

pub(super) fn name(ordinal: u64) -> String {
    format!("calls-{ordinal:016}")
}

fn ordinal_of(name: &str) -> Option<u64> {
    let ordinal = name.strip_prefix("calls-")?.parse().ok()?;
    // None comes after the last one of all, so it is never given.
    (self::name(ordinal) == name && ordinal < u64::MAX).then_some(ordinal)
}

pub(super) fn scan(folder: &StateFolder, boot: [u8; 16]) -> Result<Scan, FolderError> {
    let failed = failure("read", folder.path());
    let mut ordinals = Vec::new();
    for file in fs::read_dir(folder.path()).map_err(&failed)? {
        let file = file.map_err(&failed)?.file_name();
        ordinals.extend(file.to_str().and_then(ordinal_of));
    }
    ordinals.sort_unstable();
    let mut scan = Scan {
        next: ordinals.last().map_or(1, |last| last.saturating_add(1)),
        ..Scan::default()
    };
    let mut doubtful = false;
    for ordinal in ordinals {
        match read_one(folder, ordinal, boot, &mut scan)? {
            Some(Trust::Closed) => doubtful = false,
            Some(Trust::OtherBoot) => doubtful = true,
            Some(Trust::SameBoot) | None => {}
        }
    }
    scan.incomplete |= doubtful;
    Ok(scan)
}

/// Whether acknowledged entries can be missing at the end of a segment. A kill loses nothing; a
/// power cut loses what was not synced, and ends the boot.
enum Trust {
    /// Nothing is missing here or before: the journal was closed in order.
    Closed,
    SameBoot,
    OtherBoot,
}

/// Reads one segment; `None` if it does not count.
fn read_one(
    folder: &StateFolder,
    ordinal: u64,
    boot: [u8; 16],
    scan: &mut Scan,
) -> Result<Option<Trust>, FolderError> {
    let name = name(ordinal);
    let bytes = match folder.look(&name, SEGMENT_LEN_MAX, &mut scan.findings)? {
        Look::Content(bytes) => bytes,
        Look::Absent => return Ok(None),
        Look::Breach(reason) => {
            scan.pass_over(name, reason);
            return Ok(None);
        }
    };
    let segment = match form::read(&bytes) {
        Ok(Some(segment)) if segment.header.ordinal == ordinal => segment,
        Ok(None) => {
            // Cut at its birth, before its first entries: none of them was acknowledged.
            let torn = bytes.iter().rposition(|byte| *byte != 0);
            let torn = torn.map_or(0, |last| last + 1);
            scan.read.push(ordinal);
            scan.findings.extend(torn_finding(folder, &name, torn));
            return Ok(None);
        }
        Ok(Some(_)) => {
            scan.pass_over(name, Reason::Foreign);
            return Ok(None);
        }
        Err(reason) => {
            scan.pass_over(name, reason);
            return Ok(None);
        }
    };
    scan.read.push(ordinal);
    let mut closed = false;
    for line in &segment.lines {
        closed = *line == Line::Closed;
        if let Line::Entry(entry) = line {
            place(&mut scan.open, *entry);
        }
    }
    judge(folder, &name, &segment, scan);
    Ok(Some(if closed {
        Trust::Closed
    } else if segment.header.boot == boot && boot != [0; 16] {
        Trust::SameBoot
    } else {
        Trust::OtherBoot
    }))
}

/// A kill leaves records that were begun and not finished, of which nobody was told; a whole one that
/// fails its checksum was acknowledged once, and so was a page that is missing.
fn judge(folder: &StateFolder, name: &str, segment: &Segment, scan: &mut Scan) {
    scan.findings
        .extend(torn_finding(folder, name, segment.torn_len));
    let Some(at) = segment.damaged_at else {
        return;
    };
    scan.incomplete = true;
    let detail: Arc<str> = format!("a bad record at byte {at}").into();
    scan.findings.push(Finding {
        file: folder.join(name),
        kept: None,
        reason: Reason::Damaged { detail },
    });
}

fn torn_finding(folder: &StateFolder, name: &str, len: usize) -> Option<Finding> {
    (len > 0).then(|| Finding {
        file: folder.join(name),
        kept: None,
        reason: Reason::Torn { len: len as u64 },
    })
}
