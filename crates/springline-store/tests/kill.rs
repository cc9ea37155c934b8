//! A process that writes is killed with SIGKILL, again and again, in the same state folder: nothing
//! that it acknowledged is lost, and nothing half-written is read.

#![expect(
    clippy::unwrap_used,
    reason = "a test ends at the first thing that fails"
)]

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use springline_proto::call::Generation;
use springline_store::{
    CallEntry, CallId, CallState, EmbeddedStore, FileJournal, Finding, Journal as _, Kind, Op,
    Reason, Recovered, SessionDigest, StateFolder, Store as _,
};

const NAME: &str = "a_killed_process_loses_nothing_that_it_acknowledged";
const FOLDER_VARIABLE: &str = "SPRINGLINE_TEST_KILL_FOLDER";
const ROUNDS: usize = 50;
const CROWD_NAME: &str = "a_killed_process_with_many_writers_loses_nothing_that_it_acknowledged";
const CROWD_VARIABLE: &str = "SPRINGLINE_TEST_KILL_CROWD";
const WRITERS: u8 = 4;
/// A call is settled so many turns after it was accepted.
const OPEN_TURNS: u64 = 10;

#[test]
fn a_killed_process_loses_nothing_that_it_acknowledged() {
    if let Some(folder) = env::var_os(FOLDER_VARIABLE) {
        return write_until_killed(Path::new(&folder));
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("state");
    let mut last = 0;
    for round in 0..ROUNDS {
        let lines = kill_once(NAME, FOLDER_VARIABLE, &folder, 1 + round * 37 % 90);
        last = lines.last().and_then(|turn| turn.parse().ok()).unwrap();
        check(&folder, last);
    }
    assert!(last > ROUNDS as u64);
}

#[test]
fn a_killed_process_with_many_writers_loses_nothing_that_it_acknowledged() {
    if let Some(folder) = env::var_os(CROWD_VARIABLE) {
        return crowd_until_killed(Path::new(&folder));
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("state");
    let mut last = BTreeMap::new();
    for round in 0..ROUNDS {
        let turns = 1 + round * 613 % 4000;
        for line in kill_once(CROWD_NAME, CROWD_VARIABLE, &folder, turns) {
            let (session, number) = line.split_once(' ').unwrap();
            last.insert(session.parse().unwrap(), number.parse().unwrap());
        }
        check_crowd(&folder, &last);
    }
    assert_eq!(last.len(), usize::from(WRITERS));
}

/// Starts a writer, kills it after some acknowledged turns, and returns all that it acknowledged.
fn kill_once(test: &str, variable: &str, folder: &Path, turns: usize) -> Vec<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "it is this very test, to be killed"
    )]
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut acknowledged = Vec::new();
    while acknowledged.len() < turns {
        let line = lines.next().expect("it writes until it is killed").unwrap();
        let turn = line.strip_prefix("ack ");
        let turn = turn.and_then(|turn| turn.strip_suffix('.'));
        acknowledged.push(turn.unwrap_or_else(|| panic!("{line}")).to_owned());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // A line that the kill cut short has no end.
    let rest = lines.map_while(Result::ok);
    acknowledged.extend(rest.filter_map(|line| {
        let turn = line.strip_prefix("ack ")?.strip_suffix('.')?;
        Some(turn.to_owned())
    }));
    acknowledged
}

fn check(folder: &Path, last: u64) {
    let (store, journal, recovered, findings) = open(folder);
    assert!(
        findings
            .iter()
            .all(|found| matches!(found.reason, Reason::Torn { .. })),
        "{findings:?}"
    );
    let [one, two] = ["one", "two"].map(|key| turn_of(&store, key));
    assert_eq!(one, two, "a batch is atomic");
    assert!(one == last || one == last + 1, "{one} after {last}");
    let bulk = store.load(Kind::Session).unwrap();
    assert_eq!(bulk.damaged, 0);

    assert!(!recovered.incomplete);
    let open: BTreeMap<u64, CallState> = recovered
        .open
        .iter()
        .map(|entry| (entry.call.number, entry.state))
        .collect();
    for turn in last.saturating_sub(OPEN_TURNS - 2).max(1)..=last {
        let generation = Generation(turn);
        assert_eq!(
            open.get(&turn),
            Some(&CallState::Sent { generation }),
            "turn {turn}"
        );
    }
    let settled = last.saturating_sub(OPEN_TURNS);
    assert!(
        open.keys().all(|turn| *turn > settled && *turn <= last + 1),
        "{open:?}"
    );
    drop(journal);
}

fn open(folder: &Path) -> (EmbeddedStore, FileJournal, Recovered, Vec<Finding>) {
    fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(folder)
        .unwrap();
    let (folder, mut findings) = StateFolder::open(folder).unwrap();
    let (store, more) = EmbeddedStore::open(&folder).unwrap();
    findings.extend(more);
    let (journal, recovered, more) = FileJournal::open(&folder).unwrap();
    findings.extend(more);
    (store, journal, recovered, findings)
}

fn turn_of(store: &EmbeddedStore, key: &str) -> u64 {
    let value = store.get(Kind::Session, key.as_bytes()).unwrap();
    value.map_or(0, |value| {
        let (turn, rest) = value.split_first_chunk().unwrap();
        let turn = u64::from_le_bytes(*turn);
        assert!(rest.iter().all(|byte| u64::from(*byte) == turn % 251));
        turn
    })
}

fn write_until_killed(folder: &Path) {
    let (store, journal, ..) = open(folder);
    let mut acknowledge = std::io::stderr();
    for turn in turn_of(&store, "one") + 1.. {
        let mut entries = vec![entry(turn, CallState::Accepted)];
        let generation = Generation(turn);
        entries.push(entry(turn, CallState::Sent { generation }));
        if let Some(old) = turn.checked_sub(OPEN_TURNS) {
            entries.push(entry(old, CallState::Settled));
        }
        journal.append(&entries).unwrap();
        let mut value = turn.to_le_bytes().to_vec();
        value.resize(8 + 3000, u8::try_from(turn % 251).unwrap());
        store
            .apply(&[
                Op::put(Kind::Session, "one", value.clone()),
                Op::put(Kind::Session, turn.to_le_bytes().to_vec(), "x"),
                Op::put(Kind::Session, "two", value),
            ])
            .unwrap();
        writeln!(acknowledge, "ack {turn}.").unwrap();
    }
}

/// Each writer has a session of its own, in which one call is open at a time.
fn crowd_until_killed(folder: &Path) {
    let (_store, journal, recovered, _) = open(folder);
    let write = |session: u8| {
        let of = |number, state| CallEntry {
            call: CallId {
                session: SessionDigest([session; 16]),
                number,
            },
            state,
            note: number,
        };
        let held = recovered.open.iter().map(|entry| entry.call);
        let held = held.filter(|call| call.session.0[0] == session);
        let held = held.map(|call| call.number);
        // What an earlier writer left open ends after the first call.
        let mut before: Vec<_> = held.map(|number| of(number, CallState::Settled)).collect();
        let last = before.iter().map(|entry| entry.call.number).max();
        let last = last.unwrap_or(0);
        for number in last + 1.. {
            journal.append(&[of(number, CallState::Accepted)]).unwrap();
            let generation = Generation(number);
            let sent = of(number, CallState::Sent { generation });
            journal.append(&[sent]).unwrap();
            let line = format!("ack {session} {number}.\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            journal.append(&before).unwrap();
            before = vec![of(number, CallState::Settled)];
        }
    };
    std::thread::scope(|scope| {
        for session in 1..=WRITERS {
            scope.spawn(move || write(session));
        }
    });
}

fn check_crowd(folder: &Path, last: &BTreeMap<u8, u64>) {
    let (_store, journal, recovered, findings) = open(folder);
    let torn = |found: &Finding| matches!(found.reason, Reason::Torn { .. });
    assert!(findings.iter().all(torn), "{findings:?}");
    assert!(!recovered.incomplete);
    for (session, number) in last {
        let of = recovered.open.iter();
        let of = of.filter(|entry| entry.call.session.0[0] == *session);
        let open: BTreeMap<u64, CallState> =
            of.map(|entry| (entry.call.number, entry.state)).collect();
        let generation = Generation(*number);
        // It is settled after the next one is acknowledged.
        let sent = CallState::Sent { generation };
        assert_eq!(
            open.get(number),
            Some(&sent),
            "{number} of {session}: {open:?}"
        );
    }
    drop(journal);
}

fn entry(number: u64, state: CallState) -> CallEntry {
    let session = SessionDigest([7; 16]);
    CallEntry {
        call: CallId { session, number },
        state,
        note: number,
    }
}
