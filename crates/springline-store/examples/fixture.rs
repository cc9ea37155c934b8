//! Writes a state folder in today's format: `cargo run -p springline-store --example fixture --
//! FOLDER`. What it writes is kept in `tests/fixtures/`, one folder for each format that existed, and
//! must be read for ever. Its test is `tests/format.rs`, which knows what stands here.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use springline_proto::call::Generation;
use springline_proto::method::ListKind;
use springline_proto::session::Known;
use springline_store::{
    Answer, CallEntry, CallId, CallState, DigestKey, EmbeddedStore, Entries, EntryMemory as _,
    FileJournal, Journal as _, Kind, Op, Results, SessionDigest, StateFolder, Store,
};

const TIME: Duration = Duration::from_secs(1_790_000_000);

fn main() -> Result<(), Box<dyn Error>> {
    let to = std::env::args().nth(1).ok_or("name a folder")?;
    let home = tempfile::tempdir()?;
    let (folder, _) = StateFolder::open(&home.path().join("state"))?;
    DigestKey::open(&folder)?;
    let (store, _) = EmbeddedStore::open(&folder)?;
    let store: Arc<dyn Store> = Arc::new(store);
    store.apply(&[
        Op::put(Kind::Meta, "meta", "1"),
        Op::put(Kind::Session, "session", vec![7; 5000]),
        Op::put(Kind::Session, "gone", "x"),
    ])?;
    store.apply(&[
        Op::put(Kind::Upstream, "upstream", vec![0, 255]),
        Op::remove(Kind::Session, "gone"),
    ])?;
    let entries = Entries::load(Arc::clone(&store))?;
    entries.remember("time", Known::Initialize("{\"a\":1}".into()));
    entries.remember("time", Known::List(ListKind::Tools, vec!["{}".into()]));
    let results = Results::load(Arc::clone(&store))?;
    results.keep(call(3), b"body", TIME)?;
    let (results, _) = Results::open(&folder, Arc::clone(&store))?;
    for (number, body) in [(5, "gone"), (6, "short body")] {
        results.keep(call(number), body.as_bytes(), TIME)?;
    }
    results.forget(&[call(5)])?;
    let (journal, ..) = FileJournal::open(&folder)?;
    let generation = Generation(5);
    let answer = Answer::Server;
    journal.append(&[
        entry(1, CallState::Accepted),
        entry(2, CallState::Sent { generation }),
        entry(3, CallState::Answered { answer }),
        entry(4, CallState::Settled),
    ])?;
    // The journal ends in order, the records as a kill leaves them: both have a log to be read.
    drop(journal);
    copy(folder.path(), Path::new(&to))
}

fn copy(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let path = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            copy(&file.path(), &path)?;
        } else if file.file_name() == "results" {
            // Most of it is room.
            let bytes = fs::read(file.path())?;
            let end = bytes.iter().rposition(|byte| *byte != 0);
            fs::write(path, &bytes[..end.map_or(0, |last| last + 1)])?;
        } else if file.file_name() != "records.db-shm" {
            fs::copy(file.path(), path)?;
        }
    }
    Ok(())
}

fn call(number: u64) -> CallId {
    CallId {
        session: SessionDigest([9; 16]),
        number,
    }
}

fn entry(number: u64, state: CallState) -> CallEntry {
    CallEntry {
        call: call(number),
        state,
        note: number * 10,
    }
}
