//! The stdio test server misbehaves as its flags say.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

const HANDSHAKE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
);

/// Runs the server on the input, which then ends once it has answered.
fn run(flags: &[&str], call: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_springline-fixture"))
        .args(["faulty", "stdio"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = format!("{HANDSHAKE}{call}\n");
    input.write_all(text.as_bytes()).unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut byte = [0];
    // The input stays open until the call was answered or the process ended.
    while !seen.ends_with(b"\"id\":2,") && stdout.read(&mut byte).unwrap() == 1 {
        seen.push(byte[0]);
    }
    drop(input);
    stdout.read_to_end(&mut seen).unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stdout = seen;
    output
}

fn call(tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"{tool}","arguments":{{"id":"é"}}}}}}"#
    )
}

#[test]
fn a_crash_after_execution_leaves_a_ledger_entry_and_no_answer() {
    let folder = std::env::temp_dir().join(format!("fixture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("ledger");
    let ledger = path.to_str().unwrap();
    let after = run(&["--ledger", ledger], &call("crash_after"));
    let before = run(&["--ledger", ledger], &call("crash_before"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    for output in [after, before] {
        assert_eq!(output.status.code(), Some(70));
        assert!(!String::from_utf8_lossy(&output.stdout).contains(r#""id":2"#));
    }
    assert_eq!(text.matches(r#""event":"execute""#).count(), 1);
    assert_eq!(text.matches(r#""event":"start""#).count(), 2);
}

#[test]
fn bytes_written_one_by_one_and_rubbish_still_hold_the_answer() {
    let output = run(&["--one-byte", "--rubbish", "--banner"], &call("echo"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text.starts_with("Welcome"));
    assert!(text.contains(r#""structuredContent":{"id":"é"}"#));
    assert_eq!(text.matches("DEBUG {not json").count(), 2);
}

#[test]
fn an_end_during_initialize_answers_nothing() {
    let output = run(&["--exit-in-initialize", "3", "--half-line"], "");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, br#"{"jsonrpc":"2.0","id":1,"res"#);
}
