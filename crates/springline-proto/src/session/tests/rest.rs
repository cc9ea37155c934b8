//! What a session has at rest, and what its client hears after a restart of the gateway.

use bytes::Bytes;

use super::script::{KEY, Player, one};
use crate::call::Moment;
use crate::session::*;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
    time started 1 {"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}
    p2 {"method":"notifications/initialized"}
"#;

fn lines(script: &str) -> impl Iterator<Item = &str> {
    script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
}

/// Plays a script and returns the player, with what went to rest last.
fn played(script: &str) -> Player {
    let mut player = Player::new(one(Downstream::Http));
    player.shows_rest = true;
    for line in lines(script) {
        player.play(line);
    }
    player
}

/// A new process with the record and the calls of the one before.
fn restored(before: &Player, calls: Vec<PastCall>) -> Player {
    let bytes = before.record.as_ref().expect("a record").encode();
    let record = Record::decode(&bytes).expect("a record that reads back");
    let mut config = one(Downstream::Http);
    config.base = 1 << 32;
    let now = Moment::default();
    let mut player = Player::of(Session::restore(config, &record, calls, now));
    player.cursors = before.cursors.clone();
    player
}

fn past(number: u64, fate: Past) -> Vec<PastCall> {
    vec![PastCall {
        number,
        frame: 0,
        fate,
    }]
}

#[test]
fn the_record_is_at_rest_before_the_answer_to_initialize() {
    let mut player =
        played(r#"p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#);
    let out = player.play(r#"time started 1 {"protocolVersion":"2025-11-25"}"#);
    assert_eq!(
        out,
        [
            "remember time initialize",
            "persist",
            r#"1 json {"id":1,"result":{"protocolVersion":"2025-11-25"}}"#,
            "emit Opened",
        ]
    );
}

#[test]
fn every_promise_is_at_rest_before_the_client_has_it() {
    let mut player = played(OPEN);
    for (method, params) in [
        ("logging/setLevel", r#"{"level":"error"}"#),
        ("resources/subscribe", r#"{"uri":"a"}"#),
        ("resources/unsubscribe", r#"{"uri":"a"}"#),
    ] {
        let number = player.session.last_number + 1;
        player.play(&format!(
            r#"p9 {{"id":9,"method":"{method}","params":{params}}}"#
        ));
        let out = player.play(&format!(r#"time answer {number} {{"result":{{}}}}"#));
        let rests = out.iter().position(|line| line == "persist");
        let told = out.iter().position(|line| line.starts_with("9 json"));
        assert!(rests.is_some() && rests < told, "{method}: {out:?}");
    }
    let out = player.play(r#"p3 {"method":"notifications/initialized"}"#);
    assert_eq!(out, ["persist", "3 202"]);
}

#[test]
fn a_second_request_for_a_subscription_keeps_it_though_the_first_fails() {
    let mut player = played(OPEN);
    player.play(r#"p3 {"id":3,"method":"resources/subscribe","params":{"uri":"a"}}"#);
    player.play(r#"p4 {"id":4,"method":"resources/subscribe","params":{"uri":"a"}}"#);
    let out = player.play(r#"time answer 3 {"result":{}}"#);
    assert_eq!(out[0], "persist");
    player.play(r#"time answer 2 {"error":{"code":-1,"message":"no"}}"#);
    let mut after = restored(&player, Vec::new());
    after.play("g1");
    for player in [&mut player, &mut after] {
        player.play("g2");
        let out = player.play(
            r#"time notify - {"method":"notifications/resources/updated","params":{"uri":"a"}}"#,
        );
        assert!(out.iter().any(|line| line.contains("updated")), "{out:?}");
    }
}

#[test]
fn a_restored_session_knows_its_client_and_what_it_set_up() {
    let mut player = played(OPEN);
    player.play(r#"p3 {"id":3,"method":"logging/setLevel","params":{"level":"error"}}"#);
    player.play(r#"time answer 2 {"result":{}}"#);
    let mut player = restored(&player, Vec::new());
    player.play("g1");
    let log = |level: &str| {
        format!(
            r#"time notify - {{"method":"notifications/message","params":{{"level":"{level}"}}}}"#
        )
    };
    assert!(player.play(&log("info")).is_empty());
    assert_eq!(player.play(&log("alert")).len(), 1);
}

#[test]
fn numbers_of_before_never_come_again() {
    let mut player = restored(&played(OPEN), Vec::new());
    player.play(r#"p3 {"id":3,"method":"tools/call"}"#);
    let first = player.session.last_number;
    assert_eq!(first, (1 << 32) + 1, "{KEY}");
}

#[test]
fn a_server_is_greeted_once_before_its_first_call() {
    let mut player = restored(&played(OPEN), Vec::new());
    let out = player.play(r#"p3 {"id":3,"method":"tools/call"}"#);
    assert_eq!(out.len(), 3, "{out:?}");
    assert!(out[0].contains("Greet") && out[2].starts_with("time call"));
    // Nobody has a stream open: what is started for it now is not kept for ever.
    assert_eq!(out[1], "time attached false");
    let out = player.play(r#"p4 {"id":4,"method":"tools/call"}"#);
    assert_eq!(out.len(), 1, "{out:?}");
}

/// A call whose stream has an event id when the gateway ends.
fn in_flight() -> Player {
    played(&format!(
        "{OPEN}\n p3 {{\"id\":3,\"method\":\"tools/call\"}}\n +500"
    ))
}

/// What a client hears that comes back for that call; twice, to the same end.
fn comes_back(fate: Past) -> String {
    let before = in_flight();
    let mut player = restored(&before, past(2, fate));
    let first = player.play("g1 #1");
    assert_eq!(first.first().map(String::as_str), Some("g1 begin"));
    assert_eq!(first.last().map(String::as_str), Some("g1 end"));
    assert_eq!(first.len(), 3, "{first:?}");
    let again = player.play("g2 #1");
    assert_eq!(again.len(), 3, "{again:?}");
    first[1].clone()
}

#[test]
fn a_call_that_was_never_sent_did_not_run() {
    let heard = comes_back(Past::NotSent);
    assert_eq!(heard, "g1 event 3 GATEWAY_RESTARTED not_executed");
}

#[test]
fn the_outcome_of_a_call_that_was_sent_is_unknown() {
    let heard = comes_back(Past::Sent);
    assert_eq!(heard, "g1 event 3 OUTCOME_UNKNOWN unknown");
}

#[test]
fn a_call_whose_answer_is_lost_was_executed() {
    let heard = comes_back(Past::Lost);
    assert_eq!(heard, "g1 event 3 RESULT_LOST executed");
}

#[test]
fn an_answer_that_was_kept_is_given() {
    let body = Bytes::from_static(br#"{"jsonrpc":"2.0","id":3,"result":{}}"#);
    let heard = comes_back(Past::Answered(body));
    assert_eq!(heard, r#"g1 event #2 {"id":3,"result":{}}"#);
}

#[test]
fn an_error_of_ours_that_aged_out_is_no_lost_result() {
    let mut player = in_flight();
    player.play("x3");
    player.play("time failed 2");
    player.play("+3600000");
    let out = player.play("g1 #1");
    assert_eq!(out[1], "g1 event 3 SERVER_START_FAILED not_executed");
    // The same in a process that had it from the one before.
    let fault = crate::error::Fault::new(crate::error::FaultKind::ServerStartFailed);
    let fate = Past::Answered(fault.response(b"3"));
    let mut player = restored(&in_flight(), past(2, fate));
    player.play("+3600000");
    let out = player.play("g1 #1");
    assert_eq!(out[1], "g1 event 3 SERVER_START_FAILED not_executed");
}

#[test]
fn progress_that_a_pipe_could_not_take_comes_before_the_answer_to_its_call() {
    let mut player = Player::new(one(Downstream::Pipe));
    let script = r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
        time started 1 {"protocolVersion":"2025-11-25"}
        c {"id":2,"method":"tools/call"}
        z1
        time notify 2 {"method":"notifications/progress"}
        time answer 2 {"result":{}}
    "#;
    for line in lines(script) {
        player.play(line);
    }
    assert_eq!(
        player.play("g2"),
        [
            "time attached true",
            r#"g2 event {"method":"notifications/progress"}"#,
            r#"g2 event {"id":2,"result":{}}"#,
        ]
    );
}

#[test]
fn a_call_of_before_that_the_journal_does_not_know_is_of_unknown_outcome() {
    let mut player = played(OPEN);
    player.play(r#"p3 {"id":3,"method":"tools/call"}"#);
    player.play("+500");
    let mut after = restored(&player, Vec::new());
    let out = after.play("g9 #1");
    assert_eq!(
        out,
        ["g9 begin", "g9 event 3 OUTCOME_UNKNOWN unknown", "g9 end"]
    );
}

#[test]
fn what_is_at_rest_is_written_again_when_asked_for_and_never_after_the_end() {
    let mut player = played("");
    assert!(player.play("keep").is_empty(), "nothing is open yet");
    let mut player = played(OPEN);
    assert_eq!(player.play("keep"), ["persist"]);
    player.play("close");
    assert!(player.play("keep").is_empty());
}
