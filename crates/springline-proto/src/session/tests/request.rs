//! Requests and their answers.

use super::script::{Player, one, run, run_after};
use crate::session::{Downstream, SessionConfig};
use crate::settings::SessionSettings;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
    time started 1 {"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}
    p2 {"method":"notifications/initialized"}
"#;

const OPEN_PIPE: &str = r#"
    g1
    c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
    time started 1 {"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}
    c {"method":"notifications/initialized"}
"#;

#[test]
fn an_answer_carries_the_clients_own_id_as_it_was_sent() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":"2","method":"tools/call","params":{"name":"t","arguments":{"n":1.0}}}
        < time call 2 {"id":"2","method":"tools/call","params":{"name":"t","arguments":{"n":1.0}}}
        p4 {"id":2,"method":"tools/call"}
        < time call 3 {"id":2,"method":"tools/call"}
        time answer 3 {"result":{"b":1,"a":725653563933458433}}
        < 4 json {"id":2,"result":{"b":1,"a":725653563933458433}}
        time answer 2 {"error":{"code":-5,"message":"no"}}
        < 3 json {"id":"2","error":{"code":-5,"message":"no"}}
        "#,
    );
}

#[test]
fn a_tool_named_twice_is_refused_and_other_duplicates_pass() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call","params":{"name":"a","arguments":{},"n\u0061me":"b"}}
        < 3 json {"id":3,"error":{"code":-32602,"message":"the member \"name\" stands twice in params"}}
        p4 {"id":4,"method":"tools/call","params":{"name":"a","arguments":{"name":1,"name":2},"x":1,"x":2}}
        < time call 2 {"id":4,"method":"tools/call","params":{"name":"a","arguments":{"name":1,"name":2},"x":1,"x":2}}
        p5 {"id":5,"method":"vendor/odd","params":{"name":"a","name":"b"}}
        < time call 3 {"id":5,"method":"vendor/odd","params":{"name":"a","name":"b"}}
        "#,
    );
}

#[test]
fn ping_is_answered_at_once() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":"x","method":"ping"}
        < 3 json {"id":"x","result":{}}
        "#,
    );
}

#[test]
fn unknown_methods_and_notifications_pass() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"vendor/odd","params":{"a":[1, 2]}}
        < time call 2 {"id":3,"method":"vendor/odd","params":{"a":[1, 2]}}
        p4 {"method":"notifications/vendor"}
        < time notify {"method":"notifications/vendor"}
        < 4 202
        p5 {"method":"notifications/roots/list_changed"}
        < time notify {"method":"notifications/roots/list_changed"}
        < 5 202
        "#,
    );
}

#[test]
fn a_duplicate_id_in_flight_is_refused_and_the_first_untouched() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":7,"method":"tools/call"}
        < time call 2 {"id":7,"method":"tools/call"}
        p4 {"id":7,"method":"tools/call"}
        < 4 400 {"id":7,"error":{"code":-32600,"message":"a request with this id is pending"}}
        p5 {"id":7,"method":"ping"}
        < 5 400 {"id":7,"error":{"code":-32600,"message":"a request with this id is pending"}}
        time answer 2 {"result":{}}
        < 3 json {"id":7,"result":{}}
        p6 {"id":7,"method":"tools/call"}
        < time call 3 {"id":7,"method":"tools/call"}
        "#,
    );
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        c {"id":7,"method":"tools/call"}
        < time call 2 {"id":7,"method":"tools/call"}
        c {"id":7,"method":"tools/call"}
        < g1 event {"error":{"code":-32600,"message":"a request with this id is pending"}}
        c {"id":7,"method":1}
        < g1 event {"error":{"code":-32600,"message":"not a JSON-RPC message: \"method\" is not a string"}}
        c {"id":8,"method":1}
        < g1 event {"id":8,"error":{"code":-32600,"message":"not a JSON-RPC message: \"method\" is not a string"}}
        c {"id":8
        < g1 event {"error":{"code":-32700,"message":"not valid JSON (at byte 23)"}}
        time answer 2 {"result":{}}
        < g1 event {"id":7,"result":{}}
        "#,
    );
}

#[test]
fn more_than_may_be_pending_get_an_error() {
    let settings = SessionSettings {
        pending_max: 1,
        ..SessionSettings::default()
    };
    run_after(
        SessionConfig {
            settings: settings.into(),
            ..one(Downstream::Http)
        },
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        p4 {"id":4,"method":"tools/call"}
        < 4 json 4 TOO_MANY_PENDING not_executed
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        p5 {"id":5,"method":"tools/call"}
        < time call 3 {"id":5,"method":"tools/call"}
        "#,
    );
}

#[test]
fn a_fault_is_told_under_the_clients_id() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":"x","method":"tools/call"}
        < time call 2 {"id":"x","method":"tools/call"}
        time failed 2
        < 3 json "x" SERVER_START_FAILED not_executed
        time failed 2
        time answer 2 {"result":{}}
        "#,
    );
}

#[test]
fn a_cancelled_request_gets_no_answer() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":"x","method":"tools/call"}
        < time call 2 {"id":"x","method":"tools/call"}
        p4 {"method":"notifications/cancelled","params":{"requestId":"x","reason":"r"}}
        < 3 begin
        < 3 end
        < time cancel 2 {"method":"notifications/cancelled","params":{"requestId":"x","reason":"r"}}
        < 4 202
        time answer 2 {"result":{}}
        j5 {"id":"x","method":"tools/call"}
        < time call 3 {"id":"x","method":"tools/call"}
        p6 {"method":"notifications/cancelled","params":{"requestId":"x"}}
        < 5 202
        < time cancel 3 {"method":"notifications/cancelled","params":{"requestId":"x"}}
        < 6 202
        p7 {"method":"notifications/cancelled","params":{"requestId":"x"}}
        < 7 202
        p8 {"method":"notifications/cancelled"}
        < 8 202
        "#,
    );
}

#[test]
fn cancelling_ends_a_stream_that_has_begun_and_it_cannot_be_resumed() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time notify 2 {"method":"notifications/progress"}
        < 3 begin
        < 3 event #1 {"method":"notifications/progress"}
        p4 {"method":"notifications/cancelled","params":{"requestId":3}}
        < 3 end
        < time cancel 2 {"method":"notifications/cancelled","params":{"requestId":3}}
        < 4 202
        g1 #1
        < g1 400 {"error":{"code":-32600,"message":"Last-Event-ID names no event of this session"}}
        "#,
    );
}

#[test]
fn the_end_of_a_session_answers_all_that_is_pending() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1
        < time attached true
        < g1 begin
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        p4 {"id":4,"method":"tools/call"}
        < time call 3 {"id":4,"method":"tools/call"}
        time notify 3 {"method":"notifications/progress"}
        < 4 begin
        < 4 event #1 {"method":"notifications/progress"}
        close
        < 3 json 3 SESSION_ENDED unknown
        < 4 event #2 4 SESSION_ENDED unknown
        < 4 end
        < time close SESSION_ENDED true
        < g1 end
        < emit Closed
        < closed
        time answer 2 {"result":{}}
        close
        "#,
    );
}

#[test]
fn a_whole_list_that_passes_by_is_remembered() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/list"}
        < time call 2 {"id":3,"method":"tools/list"}
        time answer 2 {"result":{"tools":[{"name":"a"}]}}
        < remember time Tools 1
        < 3 json {"id":3,"result":{"tools":[{"name":"a"}]}}
        p4 {"id":4,"method":"tools/list"}
        < time call 3 {"id":4,"method":"tools/list"}
        time answer 3 {"result":{"tools":[{"name":"a"}],"nextCursor":""}}
        < 4 json {"id":4,"result":{"tools":[{"name":"a"}],"nextCursor":""}}
        p5 {"id":5,"method":"tools/list","params":{"cursor":""}}
        < time call 4 {"id":5,"method":"tools/list","params":{"cursor":""}}
        time answer 4 {"result":{"tools":[{"name":"b"}]}}
        < 5 json {"id":5,"result":{"tools":[{"name":"b"}]}}
        "#,
    );
}

#[test]
fn a_pipe_is_answered_in_order_and_keeps_answers_while_it_is_gone() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        c {"id":2,"method":"tools/call"}
        < time call 2 {"id":2,"method":"tools/call"}
        c {"id":3,"method":"tools/call"}
        < time call 3 {"id":3,"method":"tools/call"}
        time answer 3 {"result":{}}
        < g1 event {"id":3,"result":{}}
        z1
        < time attached false
        time answer 2 {"result":{}}
        g2
        < time attached true
        < g2 event {"id":2,"result":{}}
        "#,
    );
}

#[test]
fn what_the_client_says_of_itself_is_known() {
    let mut player = Player::new(one(Downstream::Http));
    player.play(
        r#"p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","clientInfo":{"name":"cl\u0069ent","version":"1.2"}}}"#,
    );
    assert_eq!(
        player.session.client(),
        Some(("client".to_owned(), "1.2".to_owned()))
    );
    assert_eq!(player.session.version(), None);
    assert_eq!(player.session.pending(), 1);
    assert!(player.session.attached());
    player.play(r#"time started 1 {"protocolVersion":"2025-06-18"}"#);
    assert_eq!(player.session.version().unwrap().as_str(), "2025-06-18");
    assert_eq!(player.session.pending(), 0);
    assert!(!player.session.attached());
}

#[test]
fn a_session_that_never_opened_ends_quietly() {
    run(
        one(Downstream::Http),
        "
        close
        < emit Closed
        < closed
        ",
    );
}
