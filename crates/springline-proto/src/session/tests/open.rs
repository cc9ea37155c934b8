//! The handshake.

use super::script::{one, run, run_after};
use crate::session::{Downstream, EntryView, Remembered, SessionConfig};

const HELLO: &str =
    r#"p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}"#;

fn remembering() -> SessionConfig {
    let initialize = br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#;
    let remembered = Remembered {
        initialize: Some(initialize[..].into()),
        ..Remembered::default()
    };
    let entry = EntryView {
        name: "time".into(),
        unavailable: None,
        remembered: Some(remembered.into()),
    };
    SessionConfig {
        entries: vec![entry],
        ..one(Downstream::Http)
    }
}

#[test]
fn the_servers_own_result_answers_initialize_untouched() {
    run(
        one(Downstream::Http),
        r#"
        p1 {"id":"a","method":"initialize","params":{"protocolVersion":"2025-06-18","x":1.0}}
        < time start 1 {"protocolVersion":"2025-06-18","x":1.0}
        < time attached false
        time started 1 {"protocolVersion":"2025-06-18","capabilities":{}, "y" : 1e3}
        < remember time initialize
        < 1 json {"id":"a","result":{"protocolVersion":"2025-06-18","capabilities":{}, "y" : 1e3}}
        < emit Opened
        "#,
    );
}

#[test]
fn a_revision_that_is_not_known_becomes_the_latest_and_the_rest_stays() {
    run(
        one(Downstream::Http),
        r#"
        p1 {"id":1,"method":"initialize","params":{"a": 1,"protocolVersion":"2099-01-01","b":2}}
        < time start 1 {"a": 1,"protocolVersion":"2025-11-25","b":2}
        < time attached false
        "#,
    );
    run(
        one(Downstream::Http),
        r#"
        p1 {"id":1,"method":"initialize","params":{}}
        < time start 1 {"protocolVersion":"2025-11-25"}
        < time attached false
        "#,
    );
}

#[test]
fn initialize_without_params_is_refused() {
    run(
        one(Downstream::Http),
        r#"
        p1 {"id":1,"method":"initialize"}
        < 1 json {"id":1,"error":{"code":-32602,"message":"initialize needs params"}}
        "#,
    );
}

#[test]
fn a_servers_own_refusal_answers_initialize_and_there_is_no_session() {
    run_after(
        one(Downstream::Http),
        HELLO,
        r#"
        time failed 1 {"code":-32602,"message":"no","data":{"a":1}}
        < 1 json {"id":1,"error":{"code":-32602,"message":"no","data":{"a":1}}}
        < time close SERVER_START_FAILED true
        < emit Closed
        < closed
        "#,
    );
}

#[test]
fn a_server_that_does_not_start_fails_initialize_and_there_is_no_session() {
    run_after(
        one(Downstream::Http),
        HELLO,
        r#"
        time failed 1
        < 1 json 1 SERVER_START_FAILED not_executed
        < time close SERVER_START_FAILED true
        < emit Closed
        < closed
        p2 {"id":2,"method":"tools/list"}
        < 2 404 {"error":{"code":-32001,"message":"Session not found"}}
        "#,
    );
}

#[test]
fn what_is_remembered_answers_for_a_server_that_does_not_start() {
    run_after(
        remembering(),
        HELLO,
        r#"
        time failed 1
        < 1 json {"id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}}
        < emit Opened
        p2 {"id":2,"method":"tools/list"}
        < time call 2 {"id":2,"method":"tools/list"}
        "#,
    );
}

#[test]
fn on_a_pipe_the_client_may_try_again() {
    run(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        < time start 1 {"protocolVersion":"2025-06-18"}
        < time attached true
        time failed 1
        < g1 event 1 SERVER_START_FAILED not_executed
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        < time start 2 {"protocolVersion":"2025-06-18"}
        < time attached true
        time started 2 {"protocolVersion":"2025-06-18"}
        < remember time initialize
        < g1 event {"id":1,"result":{"protocolVersion":"2025-06-18"}}
        < emit Opened
        "#,
    );
}

#[test]
fn a_pipe_is_answered_before_the_handshake_with_ping_alone() {
    run(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"ping"}
        < g1 event {"id":1,"result":{}}
        c {"id":2,"method":"tools/list"}
        < g1 event {"id":2,"error":{"code":-32600,"message":"the session is not open: send initialize first"}}
        c {"method":"notifications/initialized"}
        c {"method":"notifications/roots/list_changed"}
        "#,
    );
}

#[test]
fn lines_may_follow_initialize_without_waiting_for_its_answer() {
    run(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        < time start 1 {"protocolVersion":"2025-06-18"}
        < time attached true
        c {"method":"notifications/initialized"}
        c {"id":2,"method":"tools/list"}
        < time call 2 {"id":2,"method":"tools/list"}
        time started 1 {"protocolVersion":"2025-06-18"}
        < remember time initialize
        < g1 event {"id":1,"result":{"protocolVersion":"2025-06-18"}}
        < emit Opened
        time notify - {"method":"notifications/vendor"}
        < g1 event {"method":"notifications/vendor"}
        time answer 2 {"result":{"tools":[]}}
        < remember time Tools 1
        < g1 event {"id":2,"result":{"tools":[]}}
        "#,
    );
}

#[test]
fn initialize_while_one_is_pending_is_refused() {
    run_after(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        "#,
        r#"
        c {"id":2,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        < g1 event {"id":2,"error":{"code":-32600,"message":"an initialize is pending"}}
        "#,
    );
}

#[test]
fn initialize_again_starts_the_server_with_the_new_parameters() {
    run_after(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        time started 1 {"protocolVersion":"2025-06-18"}
        c {"method":"notifications/initialized"}
        "#,
        r#"
        c {"id":2,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}
        < time start 2 {"protocolVersion":"2025-03-26"}
        time notify - {"method":"notifications/vendor"}
        time started 2 {"protocolVersion":"2025-03-26"}
        < remember time initialize
        < g1 event {"id":2,"result":{"protocolVersion":"2025-03-26"}}
        < emit Opened
        c {"method":"notifications/initialized"}
        < g1 event {"method":"notifications/vendor"}
        "#,
    );
}

#[test]
fn a_session_whose_id_nobody_heard_is_ended() {
    run_after(
        one(Downstream::Http),
        HELLO,
        r#"
        x1
        < time close SESSION_ENDED true
        < emit Closed
        < closed
        "#,
    );
}

#[test]
fn initialize_is_answered_as_json_however_long_it_takes() {
    run_after(
        one(Downstream::Http),
        HELLO,
        r#"
        +30000
        time started 1 {"protocolVersion":"2025-11-25"}
        < remember time initialize
        < 1 json {"id":1,"result":{"protocolVersion":"2025-11-25"}}
        < emit Opened
        "#,
    );
}

#[test]
fn initialize_cannot_be_cancelled() {
    run_after(
        one(Downstream::Http),
        HELLO,
        r#"
        p2 {"method":"notifications/cancelled","params":{"requestId":1}}
        < 2 202
        time started 1 {"protocolVersion":"2025-11-25"}
        < remember time initialize
        < 1 json {"id":1,"result":{"protocolVersion":"2025-11-25"}}
        < emit Opened
        "#,
    );
}
