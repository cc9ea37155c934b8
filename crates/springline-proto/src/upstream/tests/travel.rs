//! What travels both ways besides calls: questions, progress, cancellation.

use super::{opened_http, stdio};

#[test]
fn progress_comes_back_under_the_clients_own_token() {
    opened_http(
        r#"
        call 2 tools/call a "t\u0041"
        > x3 to g1 session A: tools/call id 2
        x3 says {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1.0}}
        > heard of 2: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t\u0041","progress":1.0}}
        x3 result
        > answer 2
        x3 says {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":2.0}}
    "#,
    );
}

#[test]
fn a_cancelled_call_tells_the_server_and_its_late_answer_is_dropped() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        cancel 2
        > x4 to g1 session A: notifications/cancelled of 2
        x3 result
        x4 accepted
        > abort x3
    ",
    );
}

#[test]
fn a_call_that_times_out_is_cancelled_upstream() {
    opened_http(
        r#"
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        +3599s
        x3 says {"jsonrpc":"2.0","method":"notifications/message","params":{}}
        > heard of 2: {"jsonrpc":"2.0","method":"notifications/message","params":{}}
        +3599s
        asking 2 on
        +7200s
        asking 2 off
        +1s
        > x4 to g1 session A: notifications/cancelled of 2
        > failed 2 CALL_TIMEOUT unknown: -
    "#,
    );
}

#[test]
fn a_question_names_its_call_and_its_answer_goes_to_who_asked() {
    opened_http(
        r#"
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 says {"jsonrpc":"2.0","id":7,"method":"roots/list"}
        > asked of 2 by g1: {"jsonrpc":"2.0","id":7,"method":"roots/list"}
        reply g1 7
        > x4 to g1 session A: answer id 7
        reply g9 7
        x3 says {"jsonrpc":"2.0","id":8,"method":"ping"}
        > x5 to g1 session A: answer id 8
    "#,
    );
}

#[test]
fn after_a_close_everything_is_refused_and_nothing_is_left() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        close end
        > failed 2 SERVER_REMOVED unknown: -
        > end g1 DELETE A
        call 3 tools/call b
        > failed 3 SERVER_REMOVED not_executed: -
        x3 result
    ",
    );
}

#[test]
fn a_restart_lets_calls_finish_and_the_next_one_starts_afresh() {
    stdio(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 result
        > x2 to g1: notifications/initialized
        x2 accepted
        > started 1
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        retire
        > state lost
        call 3 tools/call b
        > open g2
        x3 result
        > answer 2
        > end g1
    ",
    );
}
