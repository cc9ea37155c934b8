//! The same costs in the product's own store and journal, whose threads sync beside the writer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use springline_proto::call::Generation;
use springline_proto::method::ListKind;
use springline_proto::session::Known;
use springline_store::{
    CallEntry, CallId, CallState, EmbeddedStore, Entries, EntryMemory as _, FileJournal,
    Journal as _, Kind, Op, SessionDigest, StateFolder, Store as _,
};

use super::spread;

const SPAN: Duration = Duration::from_secs(3);

pub(super) fn print(base: &Path) -> Result<()> {
    println!("## product: journal, entries in one append");
    for count in [1, 16, 64] {
        let dir = tempfile::tempdir_in(base)?;
        let (folder, _) = StateFolder::open(&dir.path().join("state"))?;
        let (journal, ..) = FileJournal::open(&folder)?;
        let times = measure(|turn| {
            let entries: Vec<_> = (0..count).map(|at| entry(turn, at, count)).collect();
            Ok(journal.append(&entries).map(drop)?)
        })?;
        println!("{count}: {}", spread(times));
    }
    println!("## product: store, records of 1 KiB in one batch");
    for count in [1, 16, 64] {
        let dir = tempfile::tempdir_in(base)?;
        let (folder, _) = StateFolder::open(&dir.path().join("state"))?;
        let (store, _) = EmbeddedStore::open(&folder)?;
        let times = measure(|turn| {
            let key = |at: u64| (turn * 7 + at * 131) % 10_000;
            let put = |at| Op::put(Kind::Session, key(at).to_be_bytes().to_vec(), vec![7; 1024]);
            let batch: Vec<_> = (0..count).map(put).collect();
            Ok(store.apply(&batch).map(drop)?)
        })?;
        println!("{count}: {}", spread(times));
    }
    entries(base)?;
    start(base)
}

/// A large list that changes each time.
fn entries(base: &Path) -> Result<()> {
    let dir = tempfile::tempdir_in(base)?;
    let (folder, _) = StateFolder::open(&dir.path().join("state"))?;
    let (store, _) = EmbeddedStore::open(&folder)?;
    let entries = Entries::load(Arc::new(store))?;
    for len in [64 << 10, 1 << 20, 15 << 20] {
        let from = Instant::now();
        for fill in 0..5 {
            let page = vec![b'a' + fill; len].into();
            entries.remember("a", Known::List(ListKind::Tools, vec![page]));
        }
        println!(
            "a changed list of {} KiB: {:?}",
            len >> 10,
            from.elapsed() / 5
        );
    }
    Ok(())
}

/// Opening the store of a gateway that was killed with 10,000 sessions, and reading the sessions.
fn start(base: &Path) -> Result<()> {
    let dir = tempfile::tempdir_in(base)?;
    let state = dir.path().join("state");
    let (folder, _) = StateFolder::open(&state)?;
    let (store, _) = EmbeddedStore::open(&folder)?;
    for at in 0..10_000_u64 {
        // Spread like the digests that they are found by.
        let key = at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec();
        for round in 0..2 {
            let value = vec![round; 280];
            store.apply(&[Op::put(Kind::Session, key.clone(), value)])?;
        }
        store.apply(&[Op::put(Kind::Upstream, key, vec![7; 200])])?;
    }
    let mut times = Vec::new();
    for round in 0..7 {
        let path = dir.path().join(format!("killed-{round}"));
        let (killed, _) = StateFolder::open(&path)?;
        for entry in std::fs::read_dir(&state)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                std::fs::copy(entry.path(), path.join(entry.file_name()))?;
            }
        }
        let from = Instant::now();
        let (store, findings) = EmbeddedStore::open(&killed)?;
        let opened = from.elapsed();
        let loaded = store.load(Kind::Session)?;
        anyhow::ensure!(findings.is_empty() && loaded.records.len() == 10_000);
        times.push((from.elapsed(), opened));
    }
    times.sort();
    let log = std::fs::metadata(state.join("records.db-wal"))?.len() >> 20;
    let (all, opened) = times[times.len() / 2];
    println!("start after a kill with 10,000 sessions, a log of {log} MiB: {all:?}, {opened:?} of it to open");
    drop(store);
    Ok(())
}

/// A call goes through its four states, so that segments end and go.
fn entry(turn: u64, at: u64, count: u64) -> CallEntry {
    let state = match turn % 4 {
        0 => CallState::Accepted,
        1 => CallState::Sent {
            generation: Generation(1),
        },
        2 => CallState::Answered {
            answer: springline_store::Answer::Server,
        },
        _ => CallState::Settled,
    };
    CallEntry {
        call: CallId {
            session: SessionDigest([1; 16]),
            number: turn / 4 * count + at,
        },
        state,
        note: 0,
    }
}

fn measure(mut once: impl FnMut(u64) -> Result<()>) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let begin = Instant::now();
    for turn in 0.. {
        let from = Instant::now();
        once(turn)?;
        times.push(from.elapsed());
        if begin.elapsed() > SPAN {
            break;
        }
    }
    Ok(times)
}
