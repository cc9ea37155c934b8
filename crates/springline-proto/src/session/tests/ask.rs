//! Questions of servers to the client.

use super::script::{one, run_after};
use crate::session::{Downstream, SessionConfig};
use crate::settings::SessionSettings;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{},"elicitation":{}}}}
    time started 1 {"protocolVersion":"2025-06-18"}
    p2 {"method":"notifications/initialized"}
"#;

const OPEN_PIPE: &str = r#"
    g1
    c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{},"elicitation":{"url":{}}}}}
    time started 1 {"protocolVersion":"2025-06-18"}
    c {"method":"notifications/initialized"}
"#;

#[test]
fn a_question_goes_on_the_stream_of_its_call_and_the_answer_to_who_asked() {
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
        time ask 2 7 {"id":"q","method":"elicitation/create","params":{"message":"m"}}
        < 3 begin
        < 3 event #1 {"id":1,"method":"elicitation/create","params":{"message":"m"}}
        < time asking 2 true
        p5 {"id":1,"result":{"action":"accept"}}
        < time asking 2 false
        < time reply 7 "q" {"id":1,"result":{"action":"accept"}}
        < 5 202
        p6 {"id":1,"result":{"action":"accept"}}
        < 6 202
        p7 {"id":"1","error":{"code":-1,"message":"m"}}
        < 7 202
        time answer 2 {"result":{}}
        < 3 event #2 {"id":3,"result":{}}
        < 3 end
        "#,
    );
}

#[test]
fn an_error_is_an_answer_too() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        time ask - 7 {"id":5,"method":"roots/list"}
        < g1 event {"id":1,"method":"roots/list"}
        c {"id":1,"error":{"code":-1,"message":"m"}}
        < time reply 7 5 {"id":1,"error":{"code":-1,"message":"m"}}
        "#,
    );
}

#[test]
fn what_the_client_did_not_declare_is_refused_at_once() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        time ask - 7 {"id":5,"method":"sampling/createMessage","params":{}}
        < time reply 7 5 {"id":5,"error":{"code":-32601,"message":"the client does not support sampling/createMessage"}}
        time ask - 7 {"id":6,"method":"elicitation/create","params":{"mode":"form"}}
        < time reply 7 6 {"id":6,"error":{"code":-32601,"message":"the client does not support elicitation/create"}}
        time ask - 7 {"id":7,"method":"elicitation/create","params":{"message":"m"}}
        < time reply 7 7 {"id":7,"error":{"code":-32601,"message":"the client does not support elicitation/create"}}
        time ask - 7 {"id":8,"method":"elicitation/create","params":{"mode":"url"}}
        < g1 event {"id":1,"method":"elicitation/create","params":{"mode":"url"}}
        time ask - 7 {"id":9,"method":"tasks/get","params":{}}
        < time reply 7 9 {"id":9,"error":{"code":-32601,"message":"the client does not support tasks/get"}}
        time ask - 7 {"id":10,"method":"vendor/odd"}
        < g1 event {"id":2,"method":"vendor/odd"}
        time ask - 7 {"id":11,"method":"ping"}
        < time reply 7 11 {"id":11,"result":{}}
        "#,
    );
}

#[test]
fn a_question_outside_calls_goes_on_the_get_stream() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        g1
        < time attached true
        < g1 begin
        time ask - 7 {"id":1,"method":"roots/list"}
        < g1 event #1 {"id":1,"method":"roots/list"}
        p3 {"id":1,"result":{"roots":[]}}
        < time reply 7 1 {"id":1,"result":{"roots":[]}}
        < 3 202
        "#,
    );
}

#[test]
fn a_question_waits_for_a_way_to_the_client() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time ask - 7 {"id":1,"method":"roots/list"}
        +4999
        g1
        < time attached true
        < g1 begin
        < g1 event #1 {"id":1,"method":"roots/list"}
        time ask - 7 {"id":2,"method":"roots/list"}
        < g1 event #2 {"id":2,"method":"roots/list"}
        "#,
    );
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time ask - 7 {"id":1,"method":"roots/list"}
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        < 3 begin
        < 3 event #1 {"id":1,"method":"roots/list"}
        < time asking 2 true
        "#,
    );
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time ask - 7 {"id":1,"method":"roots/list"}
        +5000
        < time reply 7 1 1 CLIENT_UNREACHABLE not_executed
        g1
        < time attached true
        < g1 begin
        "#,
    );
}

#[test]
fn a_question_of_a_call_whose_client_takes_json_alone_goes_on_the_get_stream() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        j3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time ask 2 7 {"id":1,"method":"roots/list"}
        g1
        < time attached true
        < g1 begin
        < g1 event #1 {"id":1,"method":"roots/list"}
        < time asking 2 true
        "#,
    );
}

#[test]
fn a_question_of_a_call_whose_stream_broke_waits_on_that_stream() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time notify 2 {"method":"notifications/progress"}
        < 3 begin
        < 3 event #1 {"method":"notifications/progress"}
        x3
        time ask 2 7 {"id":1,"method":"roots/list"}
        < time asking 2 true
        g1 #1
        < g1 begin
        < g1 event #2 {"id":1,"method":"roots/list"}
        "#,
    );
}

#[test]
fn a_question_that_nobody_answers_ends_at_its_own_deadline() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time ask 2 7 {"id":"q","method":"roots/list"}
        < 3 begin
        < 3 event #1 {"id":1,"method":"roots/list"}
        < time asking 2 true
        +3599999
        +1
        < time asking 2 false
        < 3 event #2 {"method":"notifications/cancelled","params":{"requestId":1}}
        < time reply 7 "q" "q" CLIENT_UNREACHABLE unknown
        p4 {"id":1,"result":{"roots":[]}}
        < 4 202
        "#,
    );
}

#[test]
fn a_question_on_a_stream_that_broke_stops_the_clock_no_longer_than_any_other() {
    let settings = SessionSettings {
        ask_timeout: std::time::Duration::from_secs(20),
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
        time notify 2 {"method":"notifications/progress"}
        < 3 begin
        < 3 event #1 {"method":"notifications/progress"}
        x3
        time ask 2 7 {"id":"q","method":"roots/list"}
        < time asking 2 true
        +20000
        < time asking 2 false
        < time reply 7 "q" "q" CLIENT_UNREACHABLE unknown
        g1 #1
        < g1 begin
        < g1 event #2 {"id":1,"method":"roots/list"}
        < g1 event #3 {"method":"notifications/cancelled","params":{"requestId":1}}
        "#,
    );
}

#[test]
fn a_question_to_a_pipe_that_went_ends_too() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        c {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time ask 2 7 {"id":"q","method":"roots/list"}
        < g1 event {"id":1,"method":"roots/list"}
        < time asking 2 true
        z1
        < time attached false
        +3600000
        < time asking 2 false
        < time reply 7 "q" "q" CLIENT_UNREACHABLE unknown
        "#,
    );
}

#[test]
fn a_server_that_takes_its_question_back_cancels_it_under_our_id() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        c {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time ask 2 7 {"id":"q","method":"roots/list"}
        < g1 event {"id":1,"method":"roots/list"}
        < time asking 2 true
        time withdrawn 8 "q" {"method":"notifications/cancelled","params":{"requestId":"q"}}
        time withdrawn 7 "q" {"method":"notifications/cancelled","params":{"requestId":"q","reason":"r"}}
        < time asking 2 false
        < g1 event {"method":"notifications/cancelled","params":{"requestId":1,"reason":"r"}}
        c {"id":1,"result":{}}
        "#,
    );
}

#[test]
fn the_questions_of_an_instance_go_with_it() {
    run_after(
        one(Downstream::Pipe),
        OPEN_PIPE,
        r#"
        time ask - 7 {"id":1,"method":"roots/list"}
        < g1 event {"id":1,"method":"roots/list"}
        time ask - 8 {"id":1,"method":"roots/list"}
        < g1 event {"id":2,"method":"roots/list"}
        time gone 7
        < g1 event {"method":"notifications/cancelled","params":{"requestId":1}}
        c {"id":1,"result":{}}
        c {"id":2,"result":{}}
        < time reply 8 1 {"id":2,"result":{}}
        "#,
    );
}

#[test]
fn too_many_open_questions_are_refused() {
    let settings = SessionSettings {
        pending_max: 1,
        ..SessionSettings::default()
    };
    run_after(
        SessionConfig {
            settings: settings.into(),
            ..one(Downstream::Pipe)
        },
        OPEN_PIPE,
        r#"
        time ask - 7 {"id":1,"method":"roots/list"}
        < g1 event {"id":1,"method":"roots/list"}
        time ask - 7 {"id":2,"method":"roots/list"}
        < time reply 7 2 2 CLIENT_UNREACHABLE not_executed
        "#,
    );
}
