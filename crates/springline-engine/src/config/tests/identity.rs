//! What makes two entries the same server, and what is only a rotated credential.

use super::{Machine, entry, http};
use crate::config::{Entry, Identity};

const KEY: &[u8] = b"key";

fn with(text: &str) -> Entry {
    entry(text, &Machine::new())
}

fn values(text: &str) -> Option<Identity> {
    let identity = with(text).identity(KEY);
    assert!(identity.is_some(), "{text}");
    identity
}

fn texts(text: &str) -> Identity {
    with(text).text_identity(KEY)
}

#[test]
fn order_and_live_knobs_do_not_matter() {
    for (left, right) in [
        (
            r#"{ "url": "http://h/", "headers": { "A": "1", "B": "2" } }"#,
            r#"{ "headers": { "B": "2", "A": "1" }, "url": "http://h/" }"#,
        ),
        (
            r#"{ "command": "x", "env": { "A": "1", "B": "2" } }"#,
            r#"{ "env": { "B": "2", "A": "1" }, "command": "x" }"#,
        ),
        (
            r#"{ "command": "x" }"#,
            r#"{ "command": "x", "disabled": false, "note": "mine", "springline":
                 { "callTimeout": "1s", "idleTimeout": "1s", "replay": "never", "safeTools": ["t"] } }"#,
        ),
    ] {
        assert_eq!(values(left), values(right), "{right}");
    }
    let plain = texts(r#"{ "command": "x", "springline": {} }"#);
    let knobs = texts(r#"{ "springline": { "startTimeout": "1s" }, "command": "x", "note": 1 }"#);
    assert_eq!(plain, knobs);
}

#[test]
fn whatever_reaches_the_server_matters() {
    let all = [
        r#"{ "command": "x" }"#,
        r#"{ "command": "y" }"#,
        r#"{ "command": "x", "args": ["ab", "c"] }"#,
        r#"{ "command": "x", "args": ["a", "bc"] }"#,
        r#"{ "command": "x", "args": ["c", "ab"] }"#,
        r#"{ "command": "x", "env": { "A": "1" } }"#,
        r#"{ "command": "x", "env": { "A": "2" } }"#,
        r#"{ "command": "x", "cwd": "/d" }"#,
        r#"{ "url": "http://h/" }"#,
        r#"{ "url": "http://h/?k=1" }"#,
        r#"{ "url": "http://h/", "headers": { "A": "1" } }"#,
        r#"{ "url": "http://h/", "headers": { "A": "2" } }"#,
        r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer", "token": "a" } } }"#,
        r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer", "token": "b" } } }"#,
    ];
    for (at, left) in all.iter().enumerate() {
        for right in &all[at + 1..] {
            assert_ne!(values(left), values(right), "{left} {right}");
            assert_ne!(texts(left), texts(right), "{left} {right}");
        }
    }
}

#[test]
fn the_key_matters() {
    let entry = with(r#"{ "command": "x" }"#);
    assert_ne!(entry.identity(b"one"), entry.identity(b"two"));
    assert_ne!(entry.text_identity(b"one"), entry.text_identity(b"two"));
}

#[test]
fn a_rotated_credential_changes_the_values_and_not_the_text() {
    let text = r#"{ "url": "http://h/", "headers": { "Authorization": "Bearer ${file:/token}" } }"#;
    let before = Machine::new().file("/token", "old\n");
    let after = Machine::new().file("/token", "new\n");
    let old = entry(text, &before);
    let new = entry(text, &after);
    assert_eq!(old.text_identity(KEY), new.text_identity(KEY));
    assert_ne!(old.identity(KEY), new.identity(KEY));
    // The same entry reads the new value without a reload.
    let again = old.re_expand(&after).expect("still good");
    assert_eq!(again, *new.definition.as_ref().expect("good"));
    assert_ne!(again, *old.definition.as_ref().expect("good"));
    assert_eq!(old.re_expand(&before).as_ref(), old.definition.as_ref());
    assert_eq!(
        http(&new).headers["authorization"].as_bytes(),
        b"Bearer new"
    );
}

#[test]
fn a_credential_that_went_away_is_an_error_of_that_entry() {
    let text = r#"{ "url": "http://h/", "headers": { "A": "${file:/token}" } }"#;
    let entry = entry(text, &Machine::new().file("/token", "t"));
    let error = entry.re_expand(&Machine::new()).expect_err("no file");
    assert!(
        error.to_string().contains("file /token cannot be read"),
        "{error}"
    );
}
