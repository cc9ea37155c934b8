//! Every format that ever was on a disk is still read. `examples/fixture.rs` wrote the files.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that fails"
)]

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use springline_proto::call::Generation;
use springline_proto::method::ListKind;
use springline_store::{
    Answer, CallId, CallState, DigestKey, EmbeddedStore, Entries, EntryMemory as _, FileJournal,
    Kind, Results, SessionDigest, StateFolder, Store,
};

/// A copy with the modes that a checkout does not keep.
fn copy(from: &Path, to: &Path) {
    fs::DirBuilder::new().mode(0o700).create(to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let path = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            copy(&file.path(), &path);
        } else {
            fs::copy(file.path(), &path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

#[test]
fn the_first_format_is_read_whole() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("state");
    copy(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1"),
        &path,
    );
    let (folder, findings) = StateFolder::open(&path).unwrap();
    assert_eq!(findings, []);
    let (key, findings) = DigestKey::open(&folder).unwrap();
    assert_eq!(findings, []);
    let digest = u128::from_be_bytes(key.session("a").0);
    let known = 0x71b7_fe3c_693a_334e_9425_155b_4ac9_482e;
    assert_eq!(digest, known, "the digests of older records match");

    let (store, findings) = EmbeddedStore::open(&folder).unwrap();
    assert_eq!(findings, []);
    let store: Arc<dyn Store> = Arc::new(store);
    let value = |kind, key: &str| store.get(kind, key.as_bytes()).unwrap();
    assert_eq!(value(Kind::Meta, "meta"), Some("1".into()));
    assert_eq!(value(Kind::Session, "session"), Some(vec![7; 5000].into()));
    assert_eq!(value(Kind::Session, "gone"), None);
    assert_eq!(value(Kind::Upstream, "upstream"), Some(vec![0, 255].into()));
    let known = Entries::load(Arc::clone(&store))
        .unwrap()
        .recall("time")
        .unwrap();
    assert_eq!(known.initialize.as_deref(), Some(&b"{\"a\":1}"[..]));
    assert_eq!(known.lists[&ListKind::Tools], ["{}"]);
    let call = |number| CallId {
        session: SessionDigest([9; 16]),
        number,
    };
    let (results, findings) = Results::open(&folder, Arc::clone(&store)).unwrap();
    assert_eq!(findings, []);
    assert_eq!(results.body(call(3)).unwrap(), Some("body".into()));
    assert_eq!(results.body(call(5)).unwrap(), None);
    assert_eq!(results.body(call(6)).unwrap(), Some("short body".into()));

    let (_journal, recovered, findings) = FileJournal::open(&folder).unwrap();
    assert_eq!(findings, []);
    assert!(!recovered.incomplete);
    let found: Vec<_> = recovered
        .open
        .iter()
        .map(|entry| (entry.call.number, entry.state, entry.note))
        .collect();
    let generation = Generation(5);
    let answer = Answer::Server;
    let expected = [
        (1, CallState::Accepted, 10),
        (2, CallState::Sent { generation }, 20),
        (3, CallState::Answered { answer }, 30),
    ];
    assert_eq!(found, expected);
}
