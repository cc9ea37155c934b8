//! Streams: what begins one, and how a client comes back to it.

use super::script::{Player, compare, one, run_after};
use crate::session::{Downstream, SessionConfig};
use crate::settings::SessionSettings;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
    time started 1 {"protocolVersion":"2025-11-25"}
    p2 {"method":"notifications/initialized"}
"#;

const OPEN_OLDER: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
    time started 1 {"protocolVersion":"2025-06-18"}
    p2 {"method":"notifications/initialized"}
"#;

#[test]
fn a_post_is_answered_as_a_stream_after_half_a_second() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +499
        +1
        < 3 begin
        < 3 event #1 retry 1000
        time answer 2 {"result":{}}
        < 3 event #2 {"id":3,"result":{}}
        < 3 end
        "#,
    );
}

#[test]
fn older_revisions_have_no_priming_event_but_ids() {
    run_after(
        one(Downstream::Http),
        OPEN_OLDER,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +500
        < 3 begin
        time notify 2 {"method":"notifications/progress"}
        < 3 event #1 {"method":"notifications/progress"}
        time answer 2 {"result":{}}
        < 3 event #2 {"id":3,"result":{}}
        < 3 end
        "#,
    );
}

#[test]
fn a_client_that_takes_json_alone_gets_json_always() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        j3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +5000
        time notify 2 {"method":"notifications/progress"}
        time notify 2 {"method":"notifications/message"}
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        g1
        < time attached true
        < g1 begin
        < g1 event #1 retry 1000
        < g1 event #2 {"method":"notifications/message"}
        "#,
    );
}

#[test]
fn a_message_for_a_call_begins_its_stream_at_once() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1
        < time attached true
        < g1 begin
        < g1 event #1 retry 1000
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        p4 {"id":4,"method":"tools/call"}
        < time call 3 {"id":4,"method":"tools/call"}
        time notify 3 {"method":"notifications/progress"}
        < 4 begin
        < 4 event #2 retry 1000
        < 4 event #3 {"method":"notifications/progress"}
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        time answer 3 {"result":{}}
        < 4 event #4 {"id":4,"result":{}}
        < 4 end
        "#,
    );
}

#[test]
fn a_connection_that_breaks_undecided_takes_its_answer_along() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        x3
        +500
        time answer 2 {"result":{}}
        p4 {"id":3,"method":"tools/call"}
        < time call 3 {"id":3,"method":"tools/call"}
        time answer 3 {"result":{}}
        < 4 json {"id":3,"result":{}}
        "#,
    );
}

#[test]
fn the_answer_of_a_broken_stream_is_redelivered_once_resumed() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +500
        < 3 begin
        < 3 event #1 retry 1000
        time notify 2 {"method":"notifications/a"}
        < 3 event #2 {"method":"notifications/a"}
        x3
        time notify 2 {"method":"notifications/b"}
        g1 #2
        < g1 begin
        < g1 event #3 {"method":"notifications/b"}
        time notify 2 {"method":"notifications/c"}
        < g1 event #4 {"method":"notifications/c"}
        z1
        time answer 2 {"result":{}}
        g2 #3
        < g2 begin
        < g2 event #4 {"method":"notifications/c"}
        < g2 event #5 {"id":3,"result":{}}
        < g2 end
        g3 #5
        < g3 begin
        < g3 end
        g4 #1
        < g4 begin
        < g4 event #2 {"method":"notifications/a"}
        < g4 event #3 {"method":"notifications/b"}
        < g4 event #4 {"method":"notifications/c"}
        < g4 event #5 {"id":3,"result":{}}
        < g4 end
        "#,
    );
}

#[test]
fn a_stream_that_is_resumed_while_open_goes_on_at_the_newer_place() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +500
        < 3 begin
        < 3 event #1 retry 1000
        g1 #1
        < g1 begin
        < 3 end
        x3
        g2 #1
        < g2 begin
        < g1 end
        z1
        time answer 2 {"result":{}}
        < g2 event #2 {"id":3,"result":{}}
        < g2 end
        z2
        "#,
    );
}

#[test]
fn without_an_event_id_a_stream_cannot_be_resumed_and_its_answer_is_dropped() {
    run_after(
        one(Downstream::Http),
        OPEN_OLDER,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +500
        < 3 begin
        x3
        time answer 2 {"result":{}}
        "#,
    );
}

#[test]
fn a_cursor_that_is_not_of_this_session_is_refused() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1 nonsense
        < g1 400 {"error":{"code":-32600,"message":"Last-Event-ID names no event of this session"}}
        g2
        < time attached true
        < g2 begin
        < g2 event #1 retry 1000
        "#,
    );
}

#[test]
fn an_answer_that_aged_out_is_lost() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":"three","method":"tools/call"}
        < time call 2 {"id":"three","method":"tools/call"}
        +500
        < 3 begin
        < 3 event #1 retry 1000
        x3
        time answer 2 {"result":{}}
        +3600000
        g1 #1
        < g1 begin
        < g1 event "three" RESULT_LOST executed
        < g1 end
        "#,
    );
}

#[test]
fn what_is_shed_for_all_sessions_is_lost_for_a_client_that_comes_back() {
    let script = r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        +500
        < 3 begin
        < 3 event #1 retry 1000
        x3
        time answer 2 {"result":{"text":"one"}}
        < held 48
        p4 {"id":4,"method":"tools/call"}
        < time call 3 {"id":4,"method":"tools/call"}
        time notify 3 {"method":"notifications/progress"}
        < 4 begin
        < 4 event #2 retry 1000
        < 4 event #3 {"method":"notifications/progress"}
        < held 99
        shed 1000
        shed 96
        < held 51
        g1 #1
        < g1 begin
        < g1 event 3 RESULT_LOST executed
        < g1 end
        g2 #2
        < g2 begin
        < g2 event #3 {"method":"notifications/progress"}
        < 4 end
        shed 0
        < held 0
        time answer 3 {"result":{}}
        < g2 event #4 {"id":4,"result":{}}
        < g2 end
        < held 36
        +3600000
        < held 0
        close
        < time close SESSION_ENDED true
        < emit Closed
        < closed
        "#;
    let mut player = Player::new(one(Downstream::Http));
    for line in OPEN.lines().map(str::trim).filter(|line| !line.is_empty()) {
        player.play(line);
    }
    player.shows_held = true;
    compare(&mut player, script);
}

#[test]
fn a_newer_get_stream_replaces_the_older() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1
        < time attached true
        < g1 begin
        < g1 event #1 retry 1000
        g2
        < g1 end
        < g2 begin
        < g2 event #2 retry 1000
        z1
        time notify - {"method":"notifications/a"}
        < g2 event #3 {"method":"notifications/a"}
        z2
        < time attached false
        time notify - {"method":"notifications/b"}
        g3
        < time attached true
        < g3 begin
        < g3 event #4 retry 1000
        < g3 event #5 {"method":"notifications/b"}
        "#,
    );
}

#[test]
fn a_get_stream_goes_on_behind_its_cursor_and_shows_nothing_of_others() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1
        < time attached true
        < g1 begin
        < g1 event #1 retry 1000
        time notify - {"method":"notifications/a"}
        < g1 event #2 {"method":"notifications/a"}
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time notify 2 {"method":"notifications/b"}
        < 3 begin
        < 3 event #3 retry 1000
        < 3 event #4 {"method":"notifications/b"}
        time answer 2 {"result":{}}
        < 3 event #5 {"id":3,"result":{}}
        < 3 end
        time notify - {"method":"notifications/c"}
        < g1 event #6 {"method":"notifications/c"}
        z1
        < time attached false
        time notify - {"method":"notifications/d"}
        g2 #2
        < time attached true
        < g2 begin
        < g2 event #6 {"method":"notifications/c"}
        < g2 event #7 {"method":"notifications/d"}
        "#,
    );
}

#[test]
fn what_has_no_stream_is_held_and_the_oldest_dropped() {
    let settings = SessionSettings {
        held_max: 2,
        ..SessionSettings::default()
    };
    run_after(
        SessionConfig {
            settings: settings.into(),
            ..one(Downstream::Http)
        },
        OPEN,
        r#"
        time notify - {"method":"notifications/a"}
        time notify - {"method":"notifications/b"}
        time notify - {"method":"notifications/c"}
        < emit Dropped { reason: "no stream was open" }
        g1
        < time attached true
        < g1 begin
        < g1 event #1 retry 1000
        < g1 event #2 {"method":"notifications/b"}
        < g1 event #3 {"method":"notifications/c"}
        "#,
    );
}

#[test]
fn a_stream_that_nobody_can_come_back_to_leaves_nothing_behind() {
    let mut player = Player::new(one(Downstream::Http));
    let calls = (3..20).flat_map(|number| {
        [
            format!(r#"p{number} {{"id":{number},"method":"tools/call"}}"#),
            "+500".to_owned(),
            format!("x{number}"),
            format!(r#"time answer {} {{"result":{{}}}}"#, number - 1),
        ]
    });
    let opened = OPEN_OLDER.lines().map(|line| line.trim().to_owned());
    for line in opened.filter(|line| !line.is_empty()).chain(calls) {
        player.play(&line);
    }
    assert_eq!(player.session.redelivery.streams_len(), 0);
}
