//! The socket: what a client that was cut finds when it comes back, and what the journal is told.

use super::script::{Player, one};
use crate::call::Moment;
use crate::session::*;

const OPEN: &str = r#"
    h1 0
    f1 1 0 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
    time started 1 {"protocolVersion":"2025-11-25","capabilities":{"logging":{}}}
    f1 2 1 {"method":"notifications/initialized"}
"#;

fn lines(script: &str) -> impl Iterator<Item = &str> {
    script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
}

/// Plays a script on a session of the socket, marks shown.
fn played(before: &str) -> Player {
    let mut player = Player::new(one(Downstream::Socket));
    player.shows_marks = true;
    for line in lines(before) {
        player.play(line);
    }
    player
}

#[track_caller]
fn check(player: &mut Player, script: &str) {
    let mut transcript = Vec::new();
    let inputs = lines(script).filter(|line| !line.starts_with('<'));
    for line in inputs {
        transcript.push(line.to_owned());
        let outputs = player.play(line).into_iter();
        transcript.extend(outputs.map(|output| format!("< {output}")));
    }
    let expected: Vec<&str> = lines(script).collect();
    assert!(
        transcript == expected,
        "the transcript is:\n{}\nbut should be:\n{}",
        transcript.join("\n"),
        expected.join("\n")
    );
}

#[test]
fn an_answer_is_kept_until_its_frame_is_acknowledged() {
    check(
        &mut played(OPEN),
        r#"
        f1 3 1 {"id":2,"method":"tools/call"}
        < taken 3
        < accepted 2 in 3
        < time call 2 {"id":2,"method":"tools/call"}
        time answer 2 {"result":{}}
        < answered 2
        < g1 frame 2 {"id":2,"result":{}}
        k1 2
        < settled 2
        "#,
    );
}

#[test]
fn what_a_cut_client_missed_comes_on_its_next_connection_without_a_gap() {
    check(
        &mut played(OPEN),
        r#"
        f1 3 1 {"id":2,"method":"tools/call"}
        < taken 3
        < accepted 2 in 3
        < time call 2 {"id":2,"method":"tools/call"}
        f1 4 1 {"id":3,"method":"tools/call"}
        < taken 4
        < accepted 3 in 4
        < time call 3 {"id":3,"method":"tools/call"}
        time answer 2 {"result":{}}
        < answered 2
        < g1 frame 2 {"id":2,"result":{}}
        z1
        < time attached false
        time answer 3 {"result":{}}
        < answered 3
        h2 1 3,4
        < emit Reattached
        < time attached true
        < g2 welcome 4 []
        < g2 frame 2 {"id":2,"result":{}}
        < g2 frame 3 {"id":3,"result":{}}
        f2 5 3 {"id":4,"method":"ping"}
        < settled 2
        < settled 3
        < taken 5
        < g2 frame 4 {"id":4,"result":{}}
        "#,
    );
}

#[test]
fn a_frame_is_taken_once_and_not_from_an_older_connection() {
    check(
        &mut played(OPEN),
        r#"
        f1 3 1 {"method":"notifications/vendor"}
        < taken 3
        < time notify {"method":"notifications/vendor"}
        f1 3 1 {"method":"notifications/vendor"}
        h2 1
        < g1 end
        < g2 welcome 3 []
        f1 4 1 {"method":"notifications/vendor"}
        f2 4 1 {"method":"notifications/other"}
        < taken 4
        < time notify {"method":"notifications/other"}
        "#,
    );
}

#[test]
fn a_gap_ends_the_session() {
    let mut player = played(OPEN);
    player.play(r#"f1 4 1 {"method":"notifications/vendor"}"#);
    assert!(player.session.is_closed());
}

#[test]
fn a_cut_session_waits_a_minute_and_ends_with_what_it_has_upstream() {
    check(
        &mut played(OPEN),
        r#"
        z1
        < time attached false
        +59999
        +1
        < emit Abandoned
        < time close SESSION_ENDED true
        < emit Closed
        < closed
        "#,
    );
}

#[test]
fn a_client_that_comes_back_in_time_has_all_its_time_again() {
    let mut player = played(OPEN);
    for line in ["z1", "+59000", "h2 1", "+120000", "z2", "+59000"] {
        player.play(line);
    }
    assert!(!player.session.is_closed());
}

#[test]
fn one_that_was_cut_before_its_handshake_leaves_nothing() {
    let mut player = played("h1 0");
    player.play("z1");
    assert!(player.session.is_closed());
}

#[test]
fn a_call_that_its_client_gave_up_goes_on_and_its_id_is_free() {
    check(
        &mut played(OPEN),
        r#"
        f1 3 1 {"id":2,"method":"tools/call"}
        < taken 3
        < accepted 2 in 3
        < time call 2 {"id":2,"method":"tools/call"}
        z1
        < time attached false
        h2 1
        < settled 2
        < emit Reattached
        < time attached true
        < g2 welcome 3 []
        f2 4 1 {"id":2,"method":"tools/call"}
        < taken 4
        < accepted 3 in 4
        < time call 3 {"id":2,"method":"tools/call"}
        time answer 2 {"result":{"old":true}}
        < settled 2
        time answer 3 {"result":{"new":true}}
        < answered 3
        < g2 frame 2 {"id":2,"result":{"new":true}}
        "#,
    );
}

#[test]
fn an_answer_that_was_too_much_to_keep_is_told_as_lost() {
    let mut config = one(Downstream::Socket);
    Arc::make_mut(&mut config.settings).redelivery_bytes_max = 100;
    let mut player = Player::new(config);
    player.shows_marks = true;
    for line in lines(OPEN) {
        player.play(line);
    }
    player.play(r#"f1 3 1 {"id":2,"method":"tools/call"}"#);
    player.play("z1");
    let long = "x".repeat(200);
    player.play(&format!(r#"time answer 2 {{"result":{{"t":"{long}"}}}}"#));
    check(
        &mut player,
        r#"
        h2 1 3
        < emit Reattached
        < time attached true
        < g2 welcome 3 [(3, Lost)]
        z2
        < time attached false
        h3 1 3
        < emit Reattached
        < time attached true
        < g3 welcome 3 [(3, Lost)]
        k3 1
        < settled 2
        "#,
    );
}

#[test]
fn while_its_client_is_away_other_messages_give_way_to_answers() {
    let mut config = one(Downstream::Socket);
    Arc::make_mut(&mut config.settings).redelivery_bytes_max = 200;
    let mut player = Player::new(config);
    for line in lines(OPEN) {
        player.play(line);
    }
    player.play(r#"f1 3 1 {"id":2,"method":"tools/call"}"#);
    player.play("z1");
    player.play(r#"time answer 2 {"result":{}}"#);
    player.play(r#"f1 4 1 {"id":3,"method":"tools/call"}"#);
    for _ in 0..20 {
        player.play(r#"time notify - {"method":"notifications/vendor"}"#);
    }
    let out = player.play("h2 1 3");
    assert!(
        out.contains(&r#"g2 frame 2 {"id":2,"result":{}}"#.to_owned()),
        "{out:?}"
    );
}

/// A new process with the record and these calls of the one before.
fn restored(calls: Vec<PastCall>, taken: u64) -> Player {
    let mut before = played(OPEN);
    let record = before.record.take().expect("a record");
    let mut config = one(Downstream::Socket);
    config.base = 1 << 32;
    let session = Session::restore(config, &record, calls, Moment::default()).taken_up_to(taken);
    let mut player = Player::of(session);
    player.shows_marks = true;
    player
}

fn past(number: u64, frame: u64, fate: Past) -> PastCall {
    PastCall {
        number,
        frame,
        fate,
    }
}

#[test]
fn after_a_restart_the_journal_settles_what_was_in_flight() {
    let answer = r#"{"jsonrpc":"2.0","id":5,"result":{}}"#;
    let calls = vec![
        past(2, 3, Past::NotSent),
        past(3, 4, Past::Sent),
        past(4, 5, Past::Lost),
        past(5, 6, Past::Answered(answer.into())),
        past(6, 7, Past::Answered(answer.into())),
    ];
    check(
        &mut restored(calls, 8),
        r#"
        h1 1 3,4,5,6,8,9
        < settled 6
        < emit Reattached
        < time Greet { hello: Hello { params: b"{\"protocolVersion\":\"2025-11-25\"}" } }
        < time attached true
        < g1 welcome 8 [(3, NotSent), (4, Sent), (5, Lost), (8, Sent)]
        < g1 frame 2 {"id":5,"result":{}}
        z1
        < time attached false
        h2 1 3,4,5,6,8,9
        < emit Reattached
        < time attached true
        < g2 welcome 8 [(3, NotSent), (4, Sent), (5, Lost), (8, Sent)]
        < g2 frame 2 {"id":5,"result":{}}
        k2 1
        < settled 2
        < settled 3
        < settled 4
        f2 9 2 {"id":9,"method":"tools/call"}
        < settled 5
        < taken 9
        < accepted 4294967297 in 9
        < time call 4294967297 {"id":9,"method":"tools/call"}
        "#,
    );
}

#[test]
fn a_restored_session_that_nobody_comes_back_to_ends_after_a_minute() {
    let mut player = restored(vec![past(2, 3, Past::Sent)], 3);
    player.play("+58000");
    assert!(!player.session.is_closed());
    let out = player.play("+2000");
    assert!(player.session.is_closed());
    assert!(out.contains(&"settled 2".to_owned()), "{out:?}");
}

#[test]
fn a_question_of_before_the_restart_is_not_taken_for_a_newer_one() {
    let mut before = played(OPEN);
    let ask = |player: &mut Player| {
        let out = player.play(r#"time ask - 1 {"id":7,"method":"vendor/ask"}"#);
        let asked = out.iter().find(|line| line.contains("vendor/ask"));
        let asked = asked.unwrap_or_else(|| panic!("{out:?}"));
        asked
            .split("\"id\":")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .to_owned()
    };
    let old = ask(&mut before);
    let mut player = restored(Vec::new(), 2);
    player.play("h1 1");
    assert_ne!(ask(&mut player), old);
}
