use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::form::{HEADER_LEN, Header, Line, RECORD_LEN};
use super::*;
use crate::folder::{Finding, Reason, StateFolder};

const BOOT: [u8; 16] = [1; 16];

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self { dir }
    }

    fn open_in(&self, boot: [u8; 16]) -> (FileJournal, Recovered, Vec<Finding>) {
        let (folder, _) = StateFolder::open(self.dir.path()).unwrap();
        FileJournal::open_in_boot(&folder, boot).unwrap()
    }

    fn open(&self) -> (FileJournal, Recovered, Vec<Finding>) {
        self.open_in(BOOT)
    }

    /// As a start reads it, without what a start writes.
    fn read(&self) -> (Recovered, Vec<Finding>) {
        let (folder, _) = StateFolder::open(self.dir.path()).unwrap();
        let folder = folder.inner("journal", &mut Vec::new()).unwrap();
        let mut scan = scan::scan(&folder, BOOT).unwrap();
        let mut findings = std::mem::take(&mut scan.findings);
        for (name, reason) in &scan.aside {
            findings.push(folder.set_aside(&[name], reason.clone()).unwrap());
        }
        (file::recover(&scan), findings)
    }

    fn segments(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.dir.path().join("journal")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.retain(|path| path.extension().is_none());
        files.sort();
        files
    }

    /// The folder as a kill would leave it, its last segment changed.
    fn crashed(&self, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let copy = Self::new();
        let (folder, _) = StateFolder::open(copy.dir.path()).unwrap();
        let to = folder.inner("journal", &mut Vec::new()).unwrap();
        // The journal removes old segments by itself. Segments of which one was gone before it was read are
        // those of no moment, and are read anew.
        let mut segments = loop {
            let read = self.segments().into_iter().map(|path| {
                let bytes = fs::read(&path)?;
                Ok((path, bytes))
            });
            match read.collect::<io::Result<Vec<_>>>() {
                Ok(segments) => break segments,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
            }
        };
        let (last, mut bytes) = segments.pop().unwrap();
        let create = |from: &Path| to.create(from.file_name().unwrap().to_str().unwrap());
        for (from, bytes) in segments {
            create(&from).unwrap().write_all(&bytes).unwrap();
        }
        // Of the zeros at its end some do.
        let end = bytes.iter().rposition(|byte| *byte != 0);
        bytes.truncate(end.map_or(0, |end| end + 1) + 4 * RECORD_LEN);
        change(&mut bytes);
        create(&last).unwrap().write_all(&bytes).unwrap();
        copy
    }
}

fn call(number: u64) -> CallId {
    CallId {
        // None is all zeros, as what is not written.
        session: SessionDigest([1 + u8::try_from(number % 7).unwrap(); 16]),
        number,
    }
}

fn accepted(number: u64) -> CallEntry {
    entry(number, CallState::Accepted)
}

fn sent(number: u64) -> CallEntry {
    entry(number, sent_to(number + 100))
}

fn sent_to(generation: u64) -> CallState {
    CallState::Sent {
        generation: Generation(generation),
    }
}

fn answered(number: u64) -> CallEntry {
    let answer = Answer::Server;
    entry(number, CallState::Answered { answer })
}

fn settled(number: u64) -> CallEntry {
    entry(number, CallState::Settled)
}

fn entry(number: u64, state: CallState) -> CallEntry {
    CallEntry {
        call: call(number),
        state,
        note: number * 3,
    }
}

/// The calls that a list of entries leaves open.
fn model<'a>(entries: impl IntoIterator<Item = &'a CallEntry>) -> Vec<CallEntry> {
    let mut open = BTreeMap::new();
    for entry in entries {
        place(&mut open, *entry);
    }
    open.into_values().collect()
}

/// Turns, as a busy gateway would append them.
fn turns(count: u64) -> Vec<Vec<CallEntry>> {
    let turn = |n: u64| match n % 5 {
        0 => vec![accepted(n)],
        1 => vec![sent(n - 1), accepted(n), accepted(n + 1000)],
        2 => vec![answered(n - 2), sent(n - 1)],
        3 => vec![settled(n - 3), answered(n - 2)],
        _ => vec![settled(n + 997)],
    };
    (0..count).map(turn).collect()
}

fn check_journal(journal: &dyn Journal) {
    let first = journal
        .append(&[accepted(1), accepted(2), sent(1)])
        .unwrap();
    assert_eq!(journal.open_calls(), 2);
    assert_eq!(journal.last(call(1)), Some(sent(1)));
    assert_eq!(journal.last(call(2)), Some(accepted(2)));
    assert_eq!(model(&journal.entries()), [sent(1), accepted(2)]);
    let second = journal.append(&[settled(1), answered(2)]).unwrap();
    assert!(second > first);
    assert_eq!(journal.open_calls(), 1);
    assert_eq!(journal.last(call(1)), None);
    assert!(journal.sync().unwrap() >= second && journal.synced() >= second);
    let many = vec![accepted(3); APPEND_MAX + 1];
    let refused = journal.append(&many);
    assert!(matches!(refused, Err(JournalError::TooMany { .. })));
    journal.append(&[settled(2), settled(9)]).unwrap();
    assert_eq!(journal.open_calls(), 0);
    let mut number = 0;
    let refusal = loop {
        let batch: Vec<_> = (number..number + APPEND_MAX as u64).map(accepted).collect();
        number += APPEND_MAX as u64;
        if let Err(error) = journal.append(&batch) {
            break error;
        }
    };
    assert!(matches!(refusal, JournalError::Full));
    assert!(journal.open_calls() <= OPEN_CALLS_MAX);
    journal.append(&[sent(0), settled(0)]).unwrap();
}

#[test]
fn the_memory_journal_does_what_every_journal_must() {
    check_journal(&MemoryJournal::default());
}

#[test]
fn the_file_journal_does_what_every_journal_must() {
    let home = Home::new();
    let (journal, recovered, findings) = home.open();
    assert!(recovered.open.is_empty() && !recovered.incomplete);
    assert_eq!(findings, []);
    check_journal(&journal);
}

#[test]
fn open_calls_come_back_after_an_orderly_end_even_in_another_boot() {
    let home = Home::new();
    let (journal, ..) = home.open();
    let all: Vec<_> = turns(50).concat();
    journal.append(&all).unwrap();
    drop(journal);
    let (journal, recovered, findings) = home.open_in([2; 16]);
    assert_eq!(recovered.open, model(&all));
    assert!(!recovered.incomplete);
    assert_eq!(findings, []);
    drop(journal);
    assert_eq!(home.open().1.open, model(&all), "and once more");
    assert_eq!(home.segments().len(), 1);
}

#[test]
fn a_crash_after_any_append_loses_no_acknowledged_entry() {
    let home = Home::new();
    let (journal, ..) = home.open();
    let mut all = Vec::new();
    for turn in turns(60) {
        journal.append(&turn).unwrap();
        all.extend(turn);
        let (_, recovered, findings) = home.crashed(|_| ()).open();
        assert_eq!(recovered.open, model(&all));
        assert!(!recovered.incomplete);
        assert_eq!(findings, []);
    }
}

/// What the records of a segment hold, when all of them are in it.
fn filled(home: &Home) -> (FileJournal, Vec<CallEntry>) {
    let (journal, ..) = home.open();
    let all: Vec<_> = turns(12).concat();
    journal.append(&all).unwrap();
    (journal, all)
}

#[test]
fn a_segment_cut_at_any_byte_gives_the_entries_before_it() {
    let home = Home::new();
    let (_journal, all) = filled(&home);
    let len = HEADER_LEN + all.len() * RECORD_LEN;
    for cut in 0..=len {
        let (recovered, findings) = home.crashed(|bytes| bytes.truncate(cut)).read();
        let whole = cut.saturating_sub(HEADER_LEN) / RECORD_LEN;
        assert_eq!(recovered.open, model(&all[..whole]), "cut at {cut}");
        assert!(!recovered.incomplete, "cut at {cut}");
        let torn = cut != 0 && (cut < HEADER_LEN || !(cut - HEADER_LEN).is_multiple_of(RECORD_LEN));
        assert_eq!(findings.len(), usize::from(torn), "cut at {cut}");
    }
}

#[test]
fn a_kill_between_any_two_stores_gives_the_entries_before_it() {
    let home = Home::new();
    let (_journal, all) = filled(&home);
    let len = HEADER_LEN + all.len() * RECORD_LEN;
    for stored in (0..=len).step_by(form::WORD_LEN) {
        let (recovered, findings) = home.crashed(|bytes| bytes[stored..].fill(0)).read();
        let whole = stored.saturating_sub(HEADER_LEN) / RECORD_LEN;
        assert_eq!(recovered.open, model(&all[..whole]), "at {stored}");
        assert!(!recovered.incomplete, "at {stored}");
        let torn = findings.iter().map(|found| &found.reason);
        assert!(
            torn.clone()
                .all(|reason| matches!(reason, Reason::Torn { .. }))
        );
        assert!(torn.count() <= 1);
    }
}

#[test]
fn a_kill_of_one_writer_among_many_hides_no_entry_of_the_others() {
    let home = Home::new();
    let (_journal, all) = filled(&home);
    for missing in 0..all.len() {
        let begin = HEADER_LEN + missing * RECORD_LEN;
        let (before, after) = (&all[..missing], &all[missing + 1..]);
        for stored in (0..RECORD_LEN).step_by(form::WORD_LEN) {
            let gap = begin + stored..begin + RECORD_LEN;
            let (recovered, findings) = home.crashed(|bytes| bytes[gap].fill(0)).read();
            assert_eq!(recovered.open, model(before.iter().chain(after)));
            assert!(!recovered.incomplete);
            assert_eq!(findings.len(), usize::from(stored > 0), "at {stored}");
        }
    }
}

#[test]
fn a_page_that_is_lost_among_whole_records_is_damage() {
    let home = Home::new();
    let (journal, ..) = home.open();
    let all: Vec<_> = (0..400).map(accepted).collect();
    journal.append(&all).unwrap();
    let (recovered, findings) = home.crashed(|bytes| bytes[4096..8192].fill(0)).read();
    assert!(recovered.incomplete);
    let damaged = |found: &Finding| matches!(found.reason, Reason::Damaged { .. });
    assert!(findings.iter().any(damaged), "{findings:?}");
    let whole = (4096 - HEADER_LEN) / RECORD_LEN;
    assert_eq!(recovered.open.len(), whole);
    let (recovered, _) = home.crashed(|bytes| bytes[..4096].fill(0)).read();
    assert!(recovered.incomplete && recovered.open.is_empty());
}

#[test]
fn appends_beside_each_other_lose_and_mix_nothing() {
    const CALLS: u64 = 6000;
    let home = Home::new();
    let (journal, ..) = home.open();
    // Six records for each call: segments end while others write.
    let journal = &journal;
    let write = move |session: u8| {
        let of = |number, state| CallEntry {
            call: CallId {
                session: SessionDigest([session; 16]),
                number,
            },
            state,
            note: number + u64::from(session),
        };
        for number in 1..=CALLS {
            journal.append(&[of(number, CallState::Accepted)]).unwrap();
            let generation = Generation(number);
            let sent = of(number, CallState::Sent { generation });
            journal.append(&[sent]).unwrap();
            assert_eq!(journal.last(sent.call), Some(sent));
            let many = vec![sent; usize::from(session)];
            journal.append(&many).unwrap();
            if number % 100 > 0 {
                journal.append(&[of(number, CallState::Settled)]).unwrap();
                assert_eq!(journal.last(sent.call), None);
            }
        }
    };
    std::thread::scope(|scope| {
        for session in [1, 2, 3, 17, 18] {
            scope.spawn(move || write(session));
        }
    });
    assert_eq!(journal.open_calls() as u64, 5 * CALLS / 100);
    let (_, recovered, findings) = home.crashed(|_| ()).open();
    assert_eq!(findings, []);
    assert!(!recovered.incomplete);
    assert_eq!(recovered.open.len() as u64, 5 * CALLS / 100);
    for entry in recovered.open {
        let number = entry.call.number;
        let generation = Generation(number);
        assert_eq!(entry.state, CallState::Sent { generation });
        assert_eq!(entry.note, number + u64::from(entry.call.session.0[0]));
    }
}

#[test]
fn a_damaged_byte_is_never_read_as_an_entry() {
    let home = Home::new();
    let (_journal, all) = filled(&home);
    let len = HEADER_LEN + all.len() * RECORD_LEN;
    for at in 0..len {
        let (recovered, findings) = home.crashed(|bytes| bytes[at] ^= 0x40).read();
        if at < HEADER_LEN {
            assert!(recovered.open.is_empty() && recovered.incomplete);
            assert!(findings[0].kept.is_some(), "a bad header at {at}");
            continue;
        }
        let whole = (at - HEADER_LEN) / RECORD_LEN;
        let expected = model(&all[..whole]);
        assert_eq!(recovered.open.len(), expected.len(), "damaged at {at}");
        for (found, known) in recovered.open.iter().zip(&expected) {
            assert_eq!((found.call, found.note), (known.call, known.note));
        }
        assert!(recovered.incomplete, "damaged at {at}");
        assert_eq!(findings.len(), 1);
    }
}

#[test]
fn after_a_power_cut_an_accepted_call_counts_as_sent_and_stays_so() {
    let home = Home::new();
    let (journal, ..) = home.open();
    journal
        .append(&[accepted(1), accepted(2), sent(2)])
        .unwrap();
    let crashed = home.crashed(|_| ());
    let (journal, recovered, _) = crashed.open_in([2; 16]);
    assert!(recovered.incomplete);
    let generation = Generation(0);
    let doubtful = entry(1, CallState::Sent { generation });
    assert_eq!(recovered.open, [doubtful, sent(2)]);
    // Killed at once: the doubt is not forgotten.
    let again = crashed.crashed(|_| ());
    drop(journal);
    let (_, recovered, _) = again.open_in([2; 16]);
    assert!(!recovered.incomplete);
    assert_eq!(recovered.open, [doubtful, sent(2)]);
}

#[test]
fn segments_without_open_calls_are_removed_and_the_journal_stays_bounded() {
    let home = Home::new();
    let (journal, ..) = home.open();
    journal.append(&[accepted(1), sent(1)]).unwrap();
    let mut most = 0;
    for round in 0..400_u64 {
        let numbers = round * 500 + 10..round * 500 + 510;
        let turn: Vec<_> = numbers
            .flat_map(|n| [accepted(n), sent(n), answered(n), settled(n)])
            .collect();
        journal.append(&turn).unwrap();
        if round % 20 == 0 {
            journal.sync().unwrap();
            most = most.max(home.segments().len());
        }
    }
    journal.append(&[accepted(2)]).unwrap();
    journal.sync().unwrap();
    journal.append(&[sent(2)]).unwrap();
    journal.sync().unwrap();
    assert!(most <= file::SEGMENTS_MAX + 1, "{most}");
    let first = home.segments()[0].clone();
    assert!(!first.ends_with("calls-0000000000000001"), "{first:?}");
    let (_, recovered, _) = home.crashed(|_| ()).open();
    assert_eq!(recovered.open, [sent(1), sent(2)]);
}

#[test]
fn foreign_files_and_symlinks_are_set_aside_and_the_rest_is_read() {
    let home = Home::new();
    let (journal, ..) = home.open();
    journal.append(&[accepted(1)]).unwrap();
    drop(journal);
    let folder = home.dir.path().join("journal");
    fs::write(
        folder.join("calls-0000000000000007"),
        "not ours, whatever it is",
    )
    .unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("calls-0000000000000008")).unwrap();
    fs::write(folder.join("readme"), "not a segment").unwrap();
    let (_, recovered, findings) = home.open();
    assert_eq!(recovered.open.len(), 1);
    assert!(recovered.incomplete);
    let reasons: Vec<_> = findings.into_iter().map(|found| found.reason).collect();
    assert!(reasons.contains(&Reason::Foreign) && reasons.contains(&Reason::Symlink));
    assert!(folder.join("calls-0000000000000007.set-aside-1").exists());
    assert!(folder.join("readme").exists());
}

#[test]
fn what_a_start_without_room_doubts_the_next_one_doubts_too() {
    let home = Home::new();
    let (journal, ..) = home.open();
    journal.append(&[accepted(1), accepted(2)]).unwrap();
    journal.append(&[sent(1)]).unwrap();
    // Who knows what it said of them.
    let strange = home.dir.path().join("journal/calls-0000000000000007");
    fs::write(&strange, "not ours, whatever it is").unwrap();
    let doubted = [sent(1), entry(2, sent_to(0))];
    let (folder, _) = StateFolder::open(home.dir.path()).unwrap();
    for _ in 0..2 {
        let before = home.segments();
        let (journal, recovered, _) =
            on_full_disk(|| FileJournal::open_or_read(&folder, BOOT)).unwrap();
        assert!(matches!(journal.unwrap_err(), JournalError::Open(_)));
        assert!(recovered.incomplete);
        assert_eq!(recovered.open, doubted);
        assert_eq!(home.segments(), before, "all as it was");
    }
    let (journal, recovered, findings) = home.open();
    assert_eq!(recovered.open, doubted);
    assert_eq!(findings.last().unwrap().reason, Reason::Foreign);
    assert!(!strange.exists());
    drop(journal);
    let (_, recovered, _) = home.open();
    assert!(!recovered.incomplete);
    assert_eq!(recovered.open, doubted);
}

#[test]
fn a_segment_of_another_format_is_set_aside() {
    let home = Home::new();
    home.open();
    let crashed = home.crashed(|bytes| {
        bytes[8] = 9;
        let sum = crc32fast::hash(&bytes[..HEADER_LEN - 4]).to_le_bytes();
        bytes[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&sum);
    });
    let (_, _, findings) = crashed.open();
    assert_eq!(findings[0].reason, Reason::Version { found: 9 });
}

#[test]
fn a_failed_write_poisons_the_journal_until_it_is_opened_again() {
    let home = Home::new();
    let (journal, ..) = home.open();
    journal.append(&[accepted(1)]).unwrap();
    let path = home.segments().pop().unwrap();
    // Its space cannot grow any more; what it has is used first.
    journal.shared.ground.write().tail.stop_growing(&path);
    let error = loop {
        if let Err(error) = journal.append(&[accepted(1)]) {
            break error;
        }
    };
    assert!(matches!(error, JournalError::Failed { .. }), "{error}");
    let error = journal.append(&[sent(1)]).unwrap_err();
    assert!(matches!(error, JournalError::Poisoned { .. }), "{error}");
    drop(journal);
    let (journal, recovered, _) = home.open();
    assert_eq!(recovered.open, [accepted(1)]);
    journal.append(&[sent(1)]).unwrap();
}

#[test]
fn any_bytes_are_read_without_harm() {
    let mut bytes = Vec::new();
    let header = Header {
        ordinal: 1,
        salt: 7,
        boot: BOOT,
    };
    bytes.extend(form::header(&header));
    for entry in turns(8).concat() {
        bytes.extend(form::record(7, &Line::Entry(entry)));
    }
    bytes.extend(form::record(7, &Line::Closed));
    bytes.extend([0; 3 * RECORD_LEN]);
    for cut in 0..=bytes.len() {
        fuzz_segment(&bytes[..cut]);
        let mut damaged = bytes.clone();
        if let Some(byte) = damaged.get_mut(cut) {
            *byte ^= 0x21;
        }
        fuzz_segment(&damaged);
    }
}

#[test]
fn segments_of_the_corpus_hold_their_properties() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/journal");
    let mut files = 0;
    for file in fs::read_dir(corpus).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        files += 1;
        fuzz_segment(&bytes);
        for at in 0..bytes.len() {
            fuzz_segment(&bytes[..at]);
            for damage in [1, 0x20, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= damage;
                fuzz_segment(&damaged);
            }
        }
    }
    assert!(files >= 3, "{corpus} has {files} files");
}
