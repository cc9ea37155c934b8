//! Writes fail at every point, go well again, and the process crashes: what is read then.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use springline_proto::call::Generation;

use super::journal::State;
use super::store::told;
use super::{Noted, SteadyJournal, SteadyStore, Turn};
use crate::conformance::{Model, apply_to_model, batch, check_entry_memory, check_store, content};
use crate::crash::{CrashJournal, CrashStore};
use crate::digest::SessionDigest;
use crate::embedded::EmbeddedStore;
use crate::entry::Entries;
use crate::folder::StateFolder;
use crate::journal::{
    Answer, CallEntry, CallId, CallState, FileJournal, Journal, JournalError, MemoryJournal, boot,
    on_full_disk,
};
use crate::record::{Kind, Op, Store, StoreError};
use crate::result::Results;

/// Nothing is attempted but by the test.
const NEVER: Duration = Duration::from_hours(24);

/// A disk, and the store that is on it.
#[derive(Clone, Default)]
struct Disk {
    present: Arc<Mutex<Arc<CrashStore>>>,
    /// Whether it can be opened.
    is_well: Arc<AtomicBool>,
    /// Whether a write that fails reaches it all the same.
    keeps: bool,
    /// Writes that go well after it was opened again.
    writes: Arc<AtomicU64>,
}

impl Disk {
    fn of(keeps: bool) -> Self {
        let writes = Arc::new(AtomicU64::new(u64::MAX));
        Self {
            keeps,
            writes,
            ..Self::default()
        }
    }

    fn steady(&self) -> SteadyStore {
        let disk = self.clone();
        let open = move || {
            if !disk.is_well.load(Ordering::SeqCst) {
                return Err("no space".into());
            }
            let store = Arc::new(disk.crashed());
            store.fail_after(disk.writes.load(Ordering::SeqCst));
            *disk.present.lock() = Arc::clone(&store);
            let store: Arc<dyn Store> = store;
            Ok((store, Vec::new()))
        };
        let store: Arc<dyn Store> = self.present.lock().clone();
        SteadyStore::over(store, Box::new(open), NEVER)
    }

    fn fail(&self) {
        self.is_well.store(false, Ordering::SeqCst);
        self.present.lock().fail_after(0);
    }

    fn crashed(&self) -> CrashStore {
        self.present.lock().killed(self.keeps)
    }
}

#[test]
fn a_steady_store_does_what_every_store_must() {
    check_store(&Disk::default().steady());
    let entries = Entries::load(Arc::new(Disk::default().steady())).unwrap();
    check_entry_memory(&entries);
}

#[test]
fn a_write_that_fails_anywhere_is_read_at_once_and_is_durable_after_the_recovery() {
    for keeps in [false, true] {
        for failing in 0..40 {
            let disk = Disk::of(keeps);
            let store = disk.steady();
            let (mut model, mut acknowledged) = (Model::new(), Model::new());
            for seed in 0..60 {
                if seed == failing {
                    disk.fail();
                }
                let result = store.apply(&batch(seed));
                apply_to_model(&mut model, &batch(seed));
                match result {
                    Ok(_) => acknowledged.clone_from(&model),
                    Err(StoreError::Pending { .. }) => assert!(seed >= failing),
                    Err(other) => panic!("{other}"),
                }
                assert_eq!(content(&store), model, "read while it is down");
                for (kind, key) in model.keys() {
                    let value = store.get(*kind, key).unwrap();
                    assert_eq!(value.as_ref(), model.get(&(*kind, key.clone())));
                }
                assert!(!store.reopen() || seed < failing);
            }
            let crashed = content(&disk.crashed());
            let mut interrupted = acknowledged.clone();
            apply_to_model(&mut interrupted, &batch(failing));
            assert!(crashed == acknowledged || keeps && crashed == interrupted);

            disk.is_well.store(true, Ordering::SeqCst);
            assert!(store.reopen());
            assert!(store.failure().is_none());
            assert_eq!(content(&disk.crashed()), model, "nothing waits any more");
            store.apply(&batch(60)).unwrap();
            apply_to_model(&mut model, &batch(60));
            assert_eq!(content(&disk.crashed()), model);
        }
    }
}

#[test]
fn a_recovery_that_fails_half_way_is_tried_again_and_loses_nothing() {
    for keeps in [false, true] {
        for writes in 0..4 {
            let disk = Disk::of(keeps);
            let store = disk.steady();
            let mut model = Model::new();
            disk.fail();
            // More than one chunk, so that it can fail between two of them.
            for ordinal in 0..700_u32 {
                let op = [Op::put(Kind::Session, ordinal.to_be_bytes().to_vec(), "x")];
                assert!(store.apply(&op).is_err());
                apply_to_model(&mut model, &op);
            }
            disk.is_well.store(true, Ordering::SeqCst);
            disk.writes.store(writes, Ordering::SeqCst);
            let is_back = store.reopen();
            assert_eq!(is_back, writes >= 3, "it takes three writes");
            if !is_back {
                // Removed while it is not known what the disk has.
                let op = [Op::remove(Kind::Session, 3_u32.to_be_bytes().to_vec())];
                assert!(store.apply(&op).is_err());
                apply_to_model(&mut model, &op);
                disk.writes.store(u64::MAX, Ordering::SeqCst);
                assert!(store.reopen());
            }
            assert_eq!(content(&store), model);
            assert_eq!(content(&disk.crashed()), model);
        }
    }
}

#[test]
fn records_that_come_and_go_while_it_is_down_leave_nothing_behind() {
    let disk = Disk::of(false);
    let store = disk.steady();
    disk.fail();
    for ordinal in 0..1000_u32 {
        let key = ordinal.to_be_bytes().to_vec();
        assert!(
            store
                .apply(&[Op::put(Kind::Session, key.clone(), "x")])
                .is_err()
        );
        assert!(store.apply(&[Op::remove(Kind::Session, key)]).is_err());
    }
    assert_eq!(content(&store), Model::new());
    disk.is_well.store(true, Ordering::SeqCst);
    assert!(store.reopen());
    // The one that met the failure is removed again, for nobody knows; no other is written.
    assert_eq!(disk.present.lock().unsynced(), 1);
}

#[test]
fn turns_are_told_once_each() {
    let disk = Disk::of(false);
    let store = disk.steady();
    let heard: Arc<Mutex<Vec<bool>>> = Arc::default();
    let ear = Arc::clone(&heard);
    store.listen(move |turn| ear.lock().push(matches!(turn, Turn::Recovered { .. })));
    disk.fail();
    for seed in 0..3 {
        assert!(store.apply(&batch(seed)).is_err());
        assert!(store.sync().is_err());
    }
    assert_eq!(*heard.lock(), [false]);
    disk.is_well.store(true, Ordering::SeqCst);
    assert!(store.reopen() && store.reopen());
    assert_eq!(*heard.lock(), [false, true]);
    disk.fail();
    assert!(store.apply(&batch(9)).is_err());
    assert_eq!(*heard.lock(), [false, true, false]);
}

#[test]
fn it_opens_again_by_itself() {
    let disk = Disk::of(false);
    let opener = disk.clone();
    let open = move || {
        let store: Arc<dyn Store> = Arc::new(opener.crashed());
        Ok((store, Vec::new()))
    };
    let store: Arc<dyn Store> = disk.present.lock().clone();
    let store = SteadyStore::over(store, Box::new(open), Duration::from_millis(1));
    let (sender, receiver) = std::sync::mpsc::sync_channel(2);
    store.listen(move |turn| sender.send(turn).unwrap());
    disk.fail();
    assert!(store.apply(&batch(1)).is_err());
    assert!(matches!(receiver.recv().unwrap(), Turn::Failed { .. }));
    assert!(matches!(receiver.recv().unwrap(), Turn::Recovered { .. }));
    store.apply(&batch(2)).unwrap();
}

#[test]
fn results_that_were_kept_while_it_was_down_are_found_and_go() {
    let disk = Disk::of(false);
    let store = Arc::new(disk.steady());
    let results = Results::load(store.clone()).unwrap();
    let now = Duration::from_secs(1_790_000_000);
    results.keep(id(1), b"before", now).unwrap();
    disk.fail();
    results.keep(id(2), b"while down", now).unwrap();
    results.forget(&[id(1)]).unwrap();
    assert_eq!(results.body(id(2)).unwrap(), Some("while down".into()));
    disk.is_well.store(true, Ordering::SeqCst);
    assert!(store.reopen());
    let after = Results::load(Arc::new(disk.crashed())).unwrap();
    assert_eq!(after.body(id(1)).unwrap(), None);
    assert_eq!(after.body(id(2)).unwrap(), Some("while down".into()));
    results.forget_session(id(2).session).unwrap();
    assert!(content(&disk.crashed()).is_empty());
}

/// Over the database of a folder, opened again when the test wants it: a thread that does so at the same
/// time would be in its way.
fn steady(folder: &StateFolder, store: EmbeddedStore) -> SteadyStore {
    let folder = folder.clone();
    let open = move || {
        let (store, findings) = EmbeddedStore::open(&folder).map_err(|error| told(&error))?;
        let store: Arc<dyn Store> = Arc::new(store);
        Ok((store, findings))
    };
    SteadyStore::over(Arc::new(store), Box::new(open), NEVER)
}

#[test]
fn a_database_is_opened_again_beside_the_one_that_failed() {
    let home = tempfile::tempdir().unwrap();
    let (folder, _) = StateFolder::open(home.path()).unwrap();
    let (store, _) = EmbeddedStore::open(&folder).unwrap();
    store.narrow();
    let store = steady(&folder, store);
    let mut model = Model::new();
    let mut has_failed = false;
    for seed in 0..50 {
        has_failed |= store.apply(&batch(seed)).is_err();
        apply_to_model(&mut model, &batch(seed));
        assert_eq!(content(&store), model);
    }
    assert!(has_failed && store.reopen());
    store.apply(&batch(50)).unwrap();
    apply_to_model(&mut model, &batch(50));
    store.sync().unwrap();
    assert_eq!(content(&store), model);
    drop(store);
    let (store, findings) = EmbeddedStore::open(&folder).unwrap();
    assert_eq!((content(&store), findings), (model, Vec::new()));
}

#[test]
fn where_another_database_has_taken_the_place_nothing_is_lost_either() {
    let home = tempfile::tempdir().unwrap();
    let (folder, _) = StateFolder::open(home.path()).unwrap();
    let (store, _) = EmbeddedStore::open(&folder).unwrap();
    let store = steady(&folder, store);
    let mut model = Model::new();
    for seed in 0..50 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
    }
    for name in ["records.db", "records.db-wal", "records.db-shm"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    store.fail_now();
    assert!(store.reopen());
    drop(store);
    let (store, _) = EmbeddedStore::open(&folder).unwrap();
    assert_eq!(content(&store), model);
}

fn id(number: u64) -> CallId {
    let session = SessionDigest([7; 16]);
    CallId { session, number }
}

fn entry(number: u64, state: CallState) -> CallEntry {
    let call = id(number);
    let note = number + 100;
    CallEntry { call, state, note }
}

const SENT: CallState = CallState::Sent {
    generation: Generation(1),
};
const ANSWERED: CallState = CallState::Answered {
    answer: Answer::NotExecuted,
};

/// A journal on disk whose writes fail when the test wants it.
struct Paper {
    _home: tempfile::TempDir,
    folder: StateFolder,
    /// Owned by the journal over it alone: it is closed before another one is opened.
    present: Arc<Mutex<Weak<CrashJournal>>>,
    is_well: Arc<AtomicBool>,
    /// Appends that go well after it was opened again, and what the disk has of the one that does not.
    appends: Arc<Mutex<(u64, usize)>>,
    journal: SteadyJournal,
}

impl Paper {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(home.path()).unwrap();
        let (journal, _) = CrashJournal::open(&folder).unwrap();
        let journal = Arc::new(journal);
        Self::in_folder(home, folder, |present| {
            *present = Arc::downgrade(&journal);
            State::of(journal)
        })
    }

    fn in_folder(
        home: tempfile::TempDir,
        folder: StateFolder,
        state: impl FnOnce(&mut Weak<CrashJournal>) -> State,
    ) -> Self {
        let mut present = Weak::new();
        let state = state(&mut present);
        let present = Arc::new(Mutex::new(present));
        let is_well = Arc::new(AtomicBool::new(true));
        let appends = Arc::new(Mutex::new((u64::MAX, 0)));
        let parts = (
            folder.clone(),
            Arc::clone(&present),
            Arc::clone(&is_well),
            Arc::clone(&appends),
        );
        let open = move || {
            let (folder, present, is_well, appends) = &parts;
            if !is_well.load(Ordering::SeqCst) {
                return Err("no space".into());
            }
            let (journal, recovered) = CrashJournal::open(folder).unwrap();
            let (count, kept) = *appends.lock();
            journal.fail_after(count, kept);
            let journal = Arc::new(journal);
            *present.lock() = Arc::downgrade(&journal);
            let journal: Arc<dyn Journal> = journal;
            Ok((journal, recovered, Vec::new()))
        };
        let journal = SteadyJournal::in_state(state, Box::new(open), NEVER);
        Self {
            _home: home,
            folder,
            present,
            is_well,
            appends,
            journal,
        }
    }

    fn fail(&self, kept: usize) {
        self.is_well.store(false, Ordering::SeqCst);
        self.fail_after(0, kept);
    }

    fn fail_after(&self, appends: u64, kept: usize) {
        let present = self.present.lock().upgrade();
        present.expect("it is open").fail_after(appends, kept);
    }

    fn heal(&self, appends: u64, kept: usize) -> bool {
        self.is_well.store(true, Ordering::SeqCst);
        *self.appends.lock() = (appends, kept);
        self.journal.reopen()
    }

    /// What the next process reads after a kill.
    fn crashed(&self) -> BTreeMap<CallId, CallEntry> {
        crashed(&self.folder)
    }

    /// The next process after a kill, which finds no room for a file of its own.
    fn again_without_room(&self) -> Self {
        let (home, folder) = killed(&self.folder);
        let (_, recovered, _) =
            on_full_disk(|| FileJournal::open_or_read(&folder, boot())).unwrap();
        let state = State::without("no space".into(), &recovered);
        Self::in_folder(home, folder, |_| state)
    }
}

/// What a kill leaves of a journal's folder.
fn killed(folder: &StateFolder) -> (tempfile::TempDir, StateFolder) {
    // Meanwhile the thread of the journal removes old files, the oldest one first, and changes nothing
    // else. So with all that were listed a copy is the folder as it was then; with one of them gone it
    // is that of no moment, and is made anew.
    let copy = loop {
        let copy = tempfile::tempdir().unwrap();
        match copy_files(folder.path(), copy.path()) {
            Ok(()) => break copy,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    };
    let (folder, _) = StateFolder::open(copy.path()).unwrap();
    (copy, folder)
}

fn crashed(folder: &StateFolder) -> BTreeMap<CallId, CallEntry> {
    let (_home, folder) = killed(folder);
    let (_, recovered, _) = FileJournal::open(&folder).unwrap();
    assert!(!recovered.incomplete);
    let open = recovered.open.into_iter();
    open.map(|entry| (entry.call, entry)).collect()
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for file in fs::read_dir(from)? {
        let file = file?;
        let to = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            fs::create_dir(&to)?;
            copy_files(&file.path(), &to)?;
        } else {
            fs::copy(file.path(), to)?;
        }
    }
    Ok(())
}

#[test]
fn a_call_that_the_disk_may_hold_as_accepted_does_not_leave_and_others_do() {
    for kept in 0..3 {
        let paper = Paper::new();
        let journal = &paper.journal;
        journal.note(&[entry(1, CallState::Accepted)]).unwrap();
        paper.fail(kept);
        let accepted = [entry(2, CallState::Accepted), entry(3, CallState::Accepted)];
        assert!(matches!(journal.note(&accepted), Ok(Noted::Pending { .. })));
        for number in 1..=3 {
            let refused = journal.note(&[entry(number, SENT)]);
            assert!(
                matches!(refused, Err(JournalError::Poisoned { .. })),
                "{number}"
            );
            journal.note(&[entry(number, ANSWERED)]).unwrap();
        }
        // Of this one the disk has nothing: after a crash its outcome is unknown.
        journal.note(&[entry(4, CallState::Accepted)]).unwrap();
        assert!(matches!(
            journal.note(&[entry(4, SENT)]),
            Ok(Noted::Pending { .. })
        ));
        assert!(!paper.crashed().contains_key(&id(4)));

        // Half of a recovery: now the disk has it, or may have it, as accepted.
        journal.note(&[entry(5, CallState::Accepted)]).unwrap();
        assert!(!paper.heal(0, 9));
        assert!(journal.note(&[entry(5, SENT)]).is_err());
        assert!(paper.heal(u64::MAX, 0));
        let expected = [(1, ANSWERED), (2, ANSWERED), (3, ANSWERED), (4, SENT)];
        let mut expected: BTreeMap<_, _> = expected
            .into_iter()
            .map(|(number, state)| (id(number), entry(number, state)))
            .collect();
        expected.insert(id(5), entry(5, CallState::Accepted));
        assert_eq!(paper.crashed(), expected);
        assert!(matches!(journal.note(&[entry(5, SENT)]), Ok(Noted::Kept)));
        assert_eq!(paper.crashed()[&id(5)].state, SENT);
    }
}

#[test]
fn a_start_on_a_full_disk_knows_the_calls_of_before_and_notes_their_ends_when_there_is_room() {
    let home = tempfile::tempdir().unwrap();
    let (folder, _) = StateFolder::open(home.path()).unwrap();
    let (journal, ..) = SteadyJournal::open_every(NEVER, &folder).unwrap();
    let accepted = (1..=4).map(|number| entry(number, CallState::Accepted));
    journal.note(&accepted.collect::<Vec<_>>()).unwrap();
    journal.note(&[entry(2, SENT), entry(3, ANSWERED)]).unwrap();
    journal.note(&[entry(4, CallState::Settled)]).unwrap();
    let before = [
        entry(1, CallState::Accepted),
        entry(2, SENT),
        entry(3, ANSWERED),
    ];
    let held = |entries: &[CallEntry]| -> BTreeMap<_, _> {
        entries.iter().map(|entry| (entry.call, *entry)).collect()
    };

    let (_home, folder) = killed(&folder);
    drop(journal);
    let files = || fs::read_dir(folder.join("journal")).unwrap().count();
    let start = || SteadyJournal::open_every(NEVER, &folder);
    // A start like that leaves nothing behind, and the one after a kill knows no less.
    drop(on_full_disk(start).unwrap());
    let (journal, recovered, _) = on_full_disk(start).unwrap();
    assert!(!recovered.incomplete);
    assert_eq!(recovered.open, before);
    assert_eq!(files(), 1);
    let cause = journal.failure().unwrap();
    assert!(cause.contains("No space"), "{cause}");
    assert!(!on_full_disk(|| journal.reopen()));

    let refused = journal.note(&[entry(1, SENT)]);
    assert!(matches!(refused, Err(JournalError::Poisoned { .. })));
    let unknown = CallState::Answered {
        answer: Answer::Unknown,
    };
    let later = [
        entry(1, ANSWERED),
        entry(2, unknown),
        entry(3, CallState::Settled),
        entry(5, CallState::Accepted),
        entry(5, SENT),
    ];
    for entry in later {
        let noted = journal.note(&[entry]).unwrap();
        assert!(matches!(noted, Noted::Pending { .. }));
        assert_eq!(crashed(&folder), held(&before), "as before the start");
    }
    assert!(journal.reopen() && journal.failure().is_none());
    let after = [entry(1, ANSWERED), entry(2, unknown), entry(5, SENT)];
    assert_eq!(crashed(&folder), held(&after));
}

/// What is true of a call, whatever the disk says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Truth {
    Waits,
    Left,
    Done,
}

fn truth_of(entry: &CallEntry) -> (u64, Truth) {
    let truth = match entry.state {
        CallState::Accepted => Truth::Waits,
        CallState::Sent { .. } => Truth::Left,
        CallState::Answered { .. } | CallState::Settled => Truth::Done,
    };
    (entry.call.number, truth)
}

#[test]
fn after_a_crash_at_any_time_no_call_that_left_counts_as_not_sent() {
    for seed in 0..6_u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut paper = Paper::new();
        let (mut truth, mut wanted) = (BTreeMap::new(), BTreeMap::new());
        let mut is_down = false;
        for turn in 1..=60 {
            if draw(20) == 0 {
                // Of what was not written nobody asks again: no number comes twice in a gateway.
                paper = paper.again_without_room();
                is_down = true;
                wanted = paper.crashed();
                truth = wanted.values().map(truth_of).collect();
            } else if draw(12) == 0 && !is_down {
                paper.fail(usize::try_from(draw(3)).unwrap());
                is_down = true;
            } else if draw(8) == 0 && is_down {
                is_down = !paper.heal(draw(3), usize::try_from(draw(4)).unwrap());
                if !is_down {
                    // It fails again when its writes are used up; from here on it goes well.
                    paper.fail_after(u64::MAX, 0);
                }
            }
            let number = turn - draw(turn.min(6));
            let next = match truth.get(&number) {
                None => CallState::Accepted,
                Some(Truth::Waits) => SENT,
                Some(Truth::Left) => ANSWERED,
                Some(Truth::Done) => CallState::Settled,
            };
            let journal = &paper.journal;
            if journal.note(&[entry(number, next)]).is_ok() {
                truth.extend([truth_of(&entry(number, next))]);
                wanted.insert(id(number), entry(number, next));
            } else {
                // Withheld: its client hears that it did not run.
                assert!(is_down && next == SENT);
                journal.note(&[entry(number, ANSWERED)]).unwrap();
                truth.insert(number, Truth::Done);
                wanted.insert(id(number), entry(number, ANSWERED));
            }
            if next == CallState::Settled {
                wanted.remove(&id(number));
            }
            let crashed = paper.crashed();
            for (call, held) in &crashed {
                let left = truth.get(&call.number) == Some(&Truth::Left);
                let says_unsent = held.state == CallState::Accepted;
                assert!(!(left && says_unsent), "seed {seed}, turn {turn}: {call:?}");
            }
            if journal.failure().is_none() {
                assert_eq!(crashed, wanted, "seed {seed}, turn {turn}");
            }
        }
    }
}

#[test]
fn a_journal_that_is_full_says_so_and_does_not_fail() {
    let journal = SteadyJournal::once(Arc::new(MemoryJournal::default()));
    let many: Vec<CallEntry> = (0..5000).map(|n| entry(n, CallState::Accepted)).collect();
    let refused = journal.note(&many);
    assert!(matches!(refused, Err(JournalError::TooMany { .. })));
    assert!(journal.failure().is_none());
}
