use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::conformance::{Model, apply_to_model, batch, check_entry_memory, check_store, content};
use crate::entry::{Entries, EntryMemory as _};

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self { dir }
    }

    fn open(&self) -> (EmbeddedStore, Vec<Finding>) {
        let (folder, mut findings) = StateFolder::open(self.dir.path()).unwrap();
        let (store, more) = EmbeddedStore::open(&folder).unwrap();
        findings.extend(more);
        (store, findings)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The folder as a kill would leave it, with the log cut to a length.
    fn crashed(&self, wal_len: Option<u64>) -> Self {
        let copy = Self::new();
        for name in ["format", FILE, WAL] {
            fs::copy(self.file(name), copy.file(name)).unwrap();
        }
        if let Some(len) = wal_len {
            let wal = File::options().write(true).open(copy.file(WAL)).unwrap();
            wal.set_len(len).unwrap();
        }
        copy
    }
}

#[test]
fn the_embedded_store_does_what_every_store_must() {
    let home = Home::new();
    let (store, findings) = home.open();
    assert_eq!(findings, []);
    check_store(&store);
    check_entry_memory(&Entries::load(Arc::new(store)).unwrap());
}

#[test]
fn records_are_there_after_an_orderly_end() {
    let home = Home::new();
    let mut model = Model::new();
    let (store, _) = home.open();
    for seed in 0..50 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
    }
    drop(store);
    let (store, findings) = home.open();
    assert_eq!(findings, []);
    assert_eq!(content(&store), model);
}

#[test]
fn a_crash_after_any_write_loses_no_acknowledged_record() {
    let home = Home::new();
    let mut model = Model::new();
    let (store, _) = home.open();
    for seed in 0..60 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
        let crashed = home.crashed(None);
        let (store, findings) = crashed.open();
        assert_eq!(findings, []);
        assert_eq!(content(&store), model, "after batch {seed}");
    }
}

#[test]
fn a_log_cut_at_any_byte_holds_whole_batches_in_their_order() {
    let home = Home::new();
    let (store, _) = home.open();
    let mut model = Model::new();
    let mut states = vec![(fs::metadata(home.file(WAL)).unwrap().len(), model.clone())];
    for seed in 0..12 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
        states.push((fs::metadata(home.file(WAL)).unwrap().len(), model.clone()));
    }
    let (first, last) = (states[0].0, states.last().unwrap().0);
    let mut cuts: Vec<u64> = (first..last).step_by(997).collect();
    for (len, _) in &states {
        cuts.extend([*len, len + 1, len + 24, len.saturating_sub(1).max(first)]);
    }
    for cut in cuts {
        let (store, _) = home.crashed(Some(cut.min(last))).open();
        let expected = states.iter().rfind(|(len, _)| *len <= cut.min(last));
        assert_eq!(content(&store), expected.unwrap().1, "cut at {cut}");
    }
}

#[test]
fn a_damaged_log_gives_whole_batches_and_never_a_torn_record() {
    let home = Home::new();
    let (store, _) = home.open();
    let mut model = Model::new();
    let mut states = vec![model.clone()];
    let start = fs::metadata(home.file(WAL)).unwrap().len();
    for seed in 0..12 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
        states.push(model.clone());
    }
    let wal = fs::read(home.file(WAL)).unwrap();
    for at in (usize::try_from(start).unwrap()..wal.len()).step_by(1009) {
        let crashed = home.crashed(None);
        let mut damaged = wal.clone();
        damaged[at] ^= 0x10;
        fs::write(crashed.file(WAL), damaged).unwrap();
        let (store, _) = crashed.open();
        let found = content(&store);
        assert!(states.contains(&found), "damaged at {at}");
    }
}

#[test]
fn the_log_is_moved_into_the_database_and_stays_short() {
    let home = Home::new();
    let (store, _) = home.open();
    let value = vec![1; 64 << 10];
    for round in 0..600u32 {
        let key = (round % 10).to_le_bytes().to_vec();
        store
            .apply(&[Op::put(Kind::Session, key, value.clone())])
            .unwrap();
        if round % 50 == 0 {
            store.sync().unwrap();
        }
    }
    store.sync().unwrap();
    store.apply(&[Op::put(Kind::Meta, "last", "x")]).unwrap();
    store.sync().unwrap();
    let len = fs::metadata(home.file(WAL)).unwrap().len();
    assert!(len < 3 * WAL_LEN, "{len}");
    let database = fs::metadata(home.file(FILE)).unwrap().len();
    assert!(database < 4 << 20, "{database}");
    assert_eq!(content(&home.crashed(None).open().0).len(), 11);
}

#[test]
fn files_are_private() {
    let home = Home::new();
    let (store, _) = home.open();
    store.apply(&batch(1)).unwrap();
    for name in FILES {
        let mode = fs::metadata(home.file(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_foreign_file_is_set_aside_and_the_store_opens_empty() {
    let home = Home::new();
    home.open();
    fs::write(
        home.file(FILE),
        "not a database, but long enough to be read as one",
    )
    .unwrap();
    let (store, findings) = home.open();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].reason, Reason::Foreign);
    assert!(home.file("records.db.set-aside-1").exists());
    check_store(&store);
}

#[test]
fn another_programs_database_is_set_aside() {
    let home = Home::new();
    home.open();
    fs::remove_file(home.file(FILE)).unwrap();
    let theirs = Connection::open(home.file(FILE)).unwrap();
    theirs.execute_batch("CREATE TABLE precious (x);").unwrap();
    drop(theirs);
    let (store, findings) = home.open();
    assert!(findings.iter().any(|found| found.reason == Reason::Foreign));
    check_store(&store);
    drop(store);
    let kept = Connection::open(home.file("records.db.set-aside-1")).unwrap();
    kept.execute_batch("SELECT x FROM precious").unwrap();
}

#[test]
fn a_database_of_a_later_version_is_set_aside() {
    let home = Home::new();
    home.open();
    let later = Connection::open(home.file(FILE)).unwrap();
    later.execute_batch("PRAGMA user_version = 9").unwrap();
    drop(later);
    let (store, findings) = home.open();
    assert_eq!(findings[0].reason, Reason::Version { found: 9 });
    check_store(&store);
}

#[test]
fn a_damaged_database_is_set_aside_or_its_damage_is_told_but_never_believed() {
    let home = Home::new();
    let (store, _) = home.open();
    let mut model = Model::new();
    for seed in 0..40 {
        store.apply(&batch(seed)).unwrap();
        apply_to_model(&mut model, &batch(seed));
    }
    drop(store);
    let whole = fs::read(home.file(FILE)).unwrap();
    for at in (0..whole.len()).step_by(1533) {
        let copy = Home::new();
        fs::copy(home.file("format"), copy.file("format")).unwrap();
        let mut damaged = whole.clone();
        let end = (at + 16).min(damaged.len());
        damaged[at..end].fill(0x5A);
        fs::write(copy.file(FILE), damaged).unwrap();
        fs::set_permissions(copy.file(FILE), fs::Permissions::from_mode(0o600)).unwrap();
        let (store, _) = copy.open();
        for kind in Kind::ALL {
            let Ok(loaded) = store.load(kind) else {
                continue;
            };
            for record in loaded.records {
                let known = model.get(&(kind, record.key));
                assert_eq!(known, Some(&record.value), "damaged at {at}");
            }
        }
    }
}

#[test]
fn a_symlink_is_not_followed() {
    let home = Home::new();
    home.open();
    let outside = tempfile::NamedTempFile::new().unwrap();
    fs::remove_file(home.file(FILE)).unwrap();
    std::os::unix::fs::symlink(outside.path(), home.file(FILE)).unwrap();
    let (store, findings) = home.open();
    assert_eq!(findings[0].reason, Reason::Symlink);
    check_store(&store);
    assert_eq!(fs::metadata(outside.path()).unwrap().len(), 0);
}

#[test]
fn a_failed_write_poisons_the_store_until_it_is_opened_again() {
    let home = Home::new();
    let (store, _) = home.open();
    store.apply(&[Op::put(Kind::Meta, "kept", "x")]).unwrap();
    store.narrow();
    let big = [
        Op::put(Kind::Session, "1", vec![1; 60_000]),
        Op::put(Kind::Session, "2", vec![1; 60_000]),
    ];
    assert!(matches!(store.apply(&big), Err(StoreError::Failed { .. })));
    let small = [Op::put(Kind::Meta, "later", "x")];
    let refused = store.apply(&small).unwrap_err();
    assert!(matches!(refused, StoreError::Poisoned { .. }), "{refused}");
    assert_eq!(store.get(Kind::Meta, b"kept").unwrap(), Some("x".into()));
    drop(store);
    let (store, findings) = home.open();
    assert_eq!(findings, []);
    assert_eq!(content(&store).len(), 1, "nothing of the failed batch");
    store.apply(&small).unwrap();
}

#[test]
fn what_was_learned_of_an_entry_survives_a_restart() {
    use springline_proto::session::Known;
    let home = Home::new();
    let entries = Entries::load(Arc::new(home.open().0)).unwrap();
    entries.remember("a", Known::Initialize("{}".into()));
    drop(entries);
    let entries = Entries::load(Arc::new(home.open().0)).unwrap();
    assert!(entries.recall("a").is_some());
}
