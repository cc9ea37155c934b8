//! What every store must do, as functions that the tests of each one call.
//!
//! Owns the contract in executable form. Each function panics when the store breaks it. Must not
//! know which store it is given.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::entry::EntryMemory;
use crate::record::{KEY_MAX, Kind, Op, Store, StoreError};

/// What a store should hold.
pub type Model = BTreeMap<(Kind, Bytes), Bytes>;

/// Does to the model what a store does with a batch.
pub fn apply_to_model(model: &mut Model, batch: &[Op]) {
    for op in batch {
        match op.clone() {
            Op::Put { kind, key, value } => {
                model.insert((kind, key), value);
            }
            Op::Remove { kind, key } => {
                model.remove(&(kind, key));
            }
        }
    }
}

/// All that a store holds.
///
/// # Panics
/// If it cannot be read, or holds a damaged record.
pub fn content(store: &dyn Store) -> Model {
    let mut model = Model::new();
    for kind in Kind::ALL {
        let loaded = store.load(kind).expect("the store can be read");
        assert_eq!(loaded.damaged, 0, "a torn record");
        for record in loaded.records {
            let twice = model.insert((kind, record.key), record.value);
            assert!(twice.is_none(), "a key twice");
        }
    }
    model
}

/// A batch of pseudo-random changes, among few keys so that they meet; the same for the same seed.
pub fn batch(seed: u64) -> Vec<Op> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let count = draw(6) + 1;
    (0..count)
        .map(|_| {
            let kind = Kind::ALL[usize::try_from(draw(5)).unwrap_or_default()];
            let key = format!("key-{}", draw(12)).into_bytes();
            if draw(4) == 0 {
                return Op::remove(kind, key);
            }
            let len = usize::try_from(draw(6000)).unwrap_or_default();
            let fill = u8::try_from(draw(256)).unwrap_or_default();
            Op::put(kind, key, vec![fill; len])
        })
        .collect()
}

/// All of the contract that needs no restart.
///
/// # Panics
/// If the store breaks it.
pub fn check_store(store: &dyn Store) {
    check_reads(store);
    check_bounds(store);
    check_batches(store);
    for (kind, key) in content(store).into_keys() {
        store.apply(&[Op::remove(kind, key)]).expect("it is empty");
    }
}

fn check_reads(store: &dyn Store) {
    assert_eq!(content(store), Model::new(), "a new store is empty");
    let first = store
        .apply(&[
            Op::put(Kind::Session, "b", "1"),
            Op::put(Kind::Session, "a", ""),
            Op::put(Kind::Upstream, "a", vec![0, 255, 0]),
        ])
        .expect("a batch is taken");
    assert_eq!(read(store, Kind::Session, b"b"), Some("1".into()));
    assert_eq!(read(store, Kind::Session, b"a"), Some(Bytes::new()));
    assert_eq!(read(store, Kind::Meta, b"a"), None);
    let keys: Vec<_> = store.load(Kind::Session).expect("it can be read").records;
    let keys: Vec<_> = keys.into_iter().map(|record| record.key).collect();
    assert_eq!(keys, ["a", "b"], "the order is that of the keys");

    let second = store
        .apply(&[
            Op::put(Kind::Session, "b", "2"),
            Op::remove(Kind::Session, "b"),
            Op::put(Kind::Session, "b", "3"),
            Op::remove(Kind::Session, "never there"),
        ])
        .expect("a batch is taken");
    assert!(second > first, "ordinals grow");
    assert_eq!(read(store, Kind::Session, b"b"), Some("3".into()));
    let synced = store.sync().expect("it can be synced");
    assert!(synced >= second && store.synced() >= second);
    assert!(store.apply(&[]).expect("an empty batch is taken") > second);
}

fn read(store: &dyn Store, kind: Kind, key: &[u8]) -> Option<Bytes> {
    store.get(kind, key).expect("the store can be read")
}

fn check_bounds(store: &dyn Store) {
    let before = content(store);
    let long = vec![b'k'; KEY_MAX + 1];
    let mixed = [
        Op::put(Kind::Meta, "good", "x"),
        Op::put(Kind::Meta, long, "x"),
    ];
    let refused = store.apply(&mixed);
    assert!(matches!(refused, Err(StoreError::KeyTooLong { .. })));
    for kind in Kind::ALL {
        let most = vec![7; kind.value_max()];
        let more = vec![7; kind.value_max() + 1];
        let refused = store.apply(&[Op::put(Kind::Meta, "good", "x"), Op::put(kind, "k", more)]);
        assert!(matches!(refused, Err(StoreError::ValueTooLong { .. })));
        assert_eq!(content(store), before, "a refused batch changes nothing");
        store
            .apply(&[Op::put(kind, "k", most.clone())])
            .expect("the longest value is taken, also after a refusal");
        assert_eq!(read(store, kind, b"k"), Some(most.into()));
        store.apply(&[Op::remove(kind, "k")]).expect("and removed");
    }
    let key = vec![0; KEY_MAX];
    store
        .apply(&[Op::put(Kind::Meta, key.clone(), "x")])
        .expect("the longest key is taken");
    assert_eq!(read(store, Kind::Meta, &key), Some("x".into()));
}

fn check_batches(store: &dyn Store) {
    let mut model = content(store);
    for seed in 0..200 {
        let batch = batch(seed);
        store.apply(&batch).expect("a batch is taken");
        apply_to_model(&mut model, &batch);
    }
    assert_eq!(content(store), model);
}

/// What every [`EntryMemory`] must do; run by the tests of each.
///
/// # Panics
/// If the store does not.
pub fn check_entry_memory(store: &dyn EntryMemory) {
    use springline_proto::method::ListKind;
    use springline_proto::session::Known;

    assert!(store.recall("a").is_none());
    store.remember("a", Known::Initialize("{}".into()));
    store.remember(
        "a",
        Known::List(ListKind::Tools, vec!["{\"tools\":[]}".into()]),
    );
    store.remember("b", Known::Initialize("{\"b\":1}".into()));
    let held = store.recall("a").expect("it was remembered");
    assert_eq!(held.initialize.as_deref(), Some(&b"{}"[..]));
    assert_eq!(held.lists.get(&ListKind::Tools).map(Vec::len), Some(1));
    store.remember("a", Known::List(ListKind::Tools, Vec::new()));
    assert_eq!(
        held.lists.get(&ListKind::Tools).map(Vec::len),
        Some(1),
        "a reader keeps its view"
    );
    store.forget("a");
    assert!(store.recall("a").is_none());
    assert!(store.recall("b").is_some());
}
