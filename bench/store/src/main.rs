//! Compares two embedded engines for small records: SQLite with a write-ahead log, and redb.
//!
//! `cargo run --release --manifest-path bench/store/Cargo.toml -- [FOLDER]` prints the tables of
//! docs/decisions/0001-embedded-store.md. Owns the comparison alone: the product has its own store.
//! With one of `--no-default-features --features sqlite|redb` it tells what each engine adds to a
//! binary.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

#[cfg(feature = "product")]
mod product;
#[cfg(feature = "redb")]
mod redb_engine;
#[cfg(feature = "sqlite")]
mod sqlite_engine;

const VALUE_LEN: usize = 1024;
const SESSIONS: u64 = 10_000;
const KILLS: u32 = 30;

/// One engine in one of its modes.
trait Engine {
    /// Writes records as one atomic batch.
    fn apply(&mut self, batch: &[(u64, Vec<u8>)]) -> Result<()>;
    /// Reads all records.
    fn load(&mut self) -> Result<BTreeMap<u64, Vec<u8>>>;
    /// What a background thread would do from time to time.
    fn sync(&mut self) -> Result<()>;
}

type Open = fn(&Path) -> Result<Box<dyn Engine>>;

fn engines() -> Vec<(&'static str, Open)> {
    vec![
        #[cfg(feature = "sqlite")]
        ("sqlite, WAL, synchronous=NORMAL", sqlite_engine::normal),
        #[cfg(feature = "sqlite")]
        ("sqlite, WAL, synchronous=FULL", sqlite_engine::full),
        #[cfg(feature = "redb")]
        ("redb, Immediate", redb_engine::immediate),
        #[cfg(feature = "redb")]
        (
            "redb, Immediate, syncs of the file left out",
            redb_engine::unsynced,
        ),
        #[cfg(feature = "redb")]
        ("redb, None", redb_engine::none),
    ]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, engine, folder] = arguments.as_slice()
        && flag == "--write"
    {
        return write_until_killed(engine.parse()?, Path::new(folder));
    }
    let base = arguments
        .first()
        .map_or_else(std::env::temp_dir, PathBuf::from);
    #[cfg(feature = "product")]
    product::print(&base)?;
    for (index, (name, open)) in engines().into_iter().enumerate() {
        println!("## {name}");
        for batch_len in [1, 16, 64] {
            cost(&base, open, batch_len)?;
        }
        start(&base, open)?;
        kill(&base, index, open)?;
    }
    Ok(())
}

fn value(number: u64) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    seed.to_le_bytes().repeat(VALUE_LEN / 8)
}

/// Overwrites records among 10,000 for three seconds, syncing every 25 ms.
fn cost(base: &Path, open: Open, batch_len: u64) -> Result<()> {
    let dir = tempfile::tempdir_in(base)?;
    let mut engine = open(dir.path())?;
    fill(engine.as_mut())?;
    let mut times = Vec::new();
    let begin = Instant::now();
    let mut last_sync = begin;
    let mut draw = 1_u64;
    while begin.elapsed() < Duration::from_secs(3) {
        let batch: Vec<_> = (0..batch_len)
            .map(|_| {
                draw = draw
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99);
                ((draw >> 33) % SESSIONS, value(draw))
            })
            .collect();
        let from = Instant::now();
        engine.apply(&batch)?;
        times.push(from.elapsed());
        if last_sync.elapsed() > Duration::from_millis(25) {
            engine.sync()?;
            last_sync = Instant::now();
        }
    }
    let len = size(dir.path())? >> 10;
    println!("batch of {batch_len}: {}; {len} KiB on disk", spread(times));
    Ok(())
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!(
        "p50 {:?}, p99 {:?}, p99.9 {:?}, most {:?} ({} times)",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        times.len()
    )
}

fn fill(engine: &mut dyn Engine) -> Result<()> {
    for first in (0..SESSIONS).step_by(100) {
        let batch: Vec<_> = (first..first + 100).map(|key| (key, value(key))).collect();
        engine.apply(&batch)?;
    }
    engine.sync()
}

fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}

/// Opening and loading 10,000 records, after an orderly end and after a kill (a copy of the files).
fn start(base: &Path, open: Open) -> Result<()> {
    let dir = tempfile::tempdir_in(base)?;
    let crashed = tempfile::tempdir_in(base)?;
    let mut engine = open(dir.path())?;
    fill(engine.as_mut())?;
    for entry in std::fs::read_dir(dir.path())? {
        let entry = entry?;
        std::fs::copy(entry.path(), crashed.path().join(entry.file_name()))?;
    }
    drop(engine);
    let len = size(dir.path())? >> 10;
    println!("10,000 records: {len} KiB after an orderly end");
    for (name, dir) in [("an orderly end", &dir), ("a kill", &crashed)] {
        let mut times = Vec::new();
        let mut count = 0;
        for _ in 0..5 {
            let from = Instant::now();
            count = open(dir.path())?.load()?.len();
            times.push(from.elapsed());
        }
        println!(
            "start after {name}: first {:?}, then {:?}, {count} records",
            times[0], times[4]
        );
    }
    Ok(())
}

/// Kills a writing process at random moments and counts acknowledged batches that are gone.
fn kill(base: &Path, index: usize, open: Open) -> Result<()> {
    let (mut lost, mut torn, mut refused, mut acknowledged) = (0, 0, 0, 0);
    for round in 0..KILLS {
        let dir = tempfile::tempdir_in(base)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--write")
            .arg(index.to_string())
            .arg(dir.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().context("piped")?;
        let mut lines = BufReader::new(out).lines();
        let mut last = 0;
        for _ in 0..=round * 7 {
            last = lines.next().context("it writes")??.parse::<u64>()?;
        }
        child.kill()?;
        child.wait()?;
        for line in lines {
            last = line?.parse().unwrap_or(last);
        }
        acknowledged += last;
        match open(dir.path()).and_then(|mut engine| engine.load()) {
            Ok(found) => check(&found, last, &mut lost, &mut torn),
            Err(_) => refused += 1,
        }
    }
    println!(
        "{KILLS} kills, {acknowledged} acknowledged batches: {lost} lost, {torn} torn, \
         {refused} files that did not open"
    );
    Ok(())
}

/// Batch N writes its number to two records.
fn check(found: &BTreeMap<u64, Vec<u8>>, last: u64, lost: &mut u64, torn: &mut u64) {
    for batch in 1..=last {
        let halves = [found.get(&(batch * 2)), found.get(&(batch * 2 + 1))];
        match halves {
            [Some(one), Some(two)] if *one == value(batch) && one == two => {}
            [None, None] => *lost += 1,
            _ => *torn += 1,
        }
    }
}

fn write_until_killed(index: usize, folder: &Path) -> Result<()> {
    let Some((_, open)) = engines().into_iter().nth(index) else {
        bail!("no such engine");
    };
    let mut engine = open(folder)?;
    let mut out = std::io::stdout();
    for batch in 1_u64.. {
        engine.apply(&[(batch * 2, value(batch)), (batch * 2 + 1, value(batch))])?;
        writeln!(out, "{batch}")?;
        out.flush()?;
        ensure!(batch < 100_000, "nobody killed me");
    }
    Ok(())
}
