//! Faults of the connection and of credentials, over HTTP.

use super::{each, http, opened_http};

#[test]
fn a_refused_connection_is_tried_again_until_the_wait_is_over() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 unsent
        +50ms
        > x4 to g1 session A: tools/call id 3
        x4 unsent
        +100ms
        > x5 to g1 session A: tools/call id 4
        x5 result
        > answer 2
        call 3 tools/call b
        > x6 to g1 session A: tools/call id 5
        x6 unsent
        +10s
        > x7 to g1 session A: tools/call id 6
        x7 unsent
        > failed 3 SERVER_UNREACHABLE not_executed: cut
    ",
    );
}

#[test]
fn a_read_of_unknown_outcome_goes_once_more_and_is_not_called_unexecuted() {
    opened_http(
        "
        call 2 resources/read a
        > x3 to g1 session A: resources/read id 2
        x3 broken
        > x4 to g1 session A: resources/read id 3
        x4 429
        > failed 2 UPSTREAM_REFUSED unknown: HTTP 429: no
        call 3 resources/read a
        > x5 to g1 session A: resources/read id 4
        x5 502
        > x6 to g1 session A: resources/read id 5
        x6 result
        > answer 3
    ",
    );
}

#[test]
fn a_body_that_holds_no_message_is_the_servers_fault_and_only_what_reads_goes_once_more() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 unreadable
        > failed 2 BAD_ANSWER unknown: not JSON
        call 3 resources/read a
        > x4 to g1 session A: resources/read id 3
        x4 unreadable
        > x5 to g1 session A: resources/read id 4
        x5 unreadable
        > failed 3 BAD_ANSWER unknown: not JSON
    ",
    );
}

#[test]
fn fresh_credentials_send_the_call_once_more_on_the_same_session() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x3 401
        > read credentials
        x4 403
        credentials changed
        > x5 to g1 session A: tools/call id 4
        > x6 to g1 session A: tools/call id 5
        x5 result
        > answer 2
        x6 401
        > failed 3 UPSTREAM_UNAUTHORIZED not_executed: HTTP 401: no
        call 4 tools/call c
        > x7 to g1 session A: tools/call id 6
        x7 401
        > read credentials
        credentials same
        > failed 4 UPSTREAM_UNAUTHORIZED not_executed: HTTP 401 or 403, and the credential sources hold nothing new
    ",
    );
}

#[test]
fn an_initialize_without_credentials_is_tried_once_more_with_fresh_ones() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 401
        > read credentials
        credentials changed
        > x2 to g1: initialize id 2 hello 1
        x2 401
        > end g1
        > failed 1 UPSTREAM_UNAUTHORIZED not_executed: initialize: HTTP 401: no
    ",
    );
}

#[test]
fn a_stream_with_an_event_id_is_resumed_and_its_call_lives_on() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 ended e1
        > resume x3 from e1 after 1s
        x3 result
        > answer 2
        x3 done
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x4 ended e2
        > resume x4 from e2 after 1s
        x4 404
        > state lost
        > failed 3 OUTCOME_UNKNOWN unknown: HTTP 404: no
        > end g1
    ",
    );
}

#[test]
fn an_error_that_speaks_of_a_lost_session_is_passed_on_and_checked_by_one_ping() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 error -32001 Session not found
        > answer 2
        > x4 to g1 session A: ping id 3
        x4 error -32001 Session not found
        call 3 tools/call b
        > x5 to g1 session A: tools/call id 4
        x5 result
        > answer 3
    ",
    );
}

#[test]
fn one_ping_at_a_time_finds_out_and_a_refused_connection_ends_it() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        call 4 tools/call c
        > x5 to g1 session A: tools/call id 4
        x3 error -32001 Session not found
        > answer 2
        > x6 to g1 session A: ping id 5
        x4 error -32001 Session not found
        > answer 3
        x6 unsent
        +60s
        x5 error -32001 Session not found
        > answer 4
        > x7 to g1 session A: ping id 6
        x7 404
        > state lost
        > open g2
        > end g1
    ",
    );
}

#[test]
fn the_npm_form_of_a_lost_session_is_recognised() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 400 -32000 Bad Request: No valid session ID provided
        > state lost
        > open g2
        > end g1
        g2 opened
        > x4 to g2: initialize id 3 hello 1
    ",
    );
}

#[test]
fn a_404_without_a_session_is_a_wrong_address() {
    http(
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
        x3 404
        > failed 2 UPSTREAM_REFUSED not_executed: HTTP 404: no
        call 3 tools/call a
        > x4 to g1: tools/call id 3
    ",
    );
}

#[test]
fn the_get_stream_is_opened_again_and_never_a_verdict() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 minted A
        x1 result 2025-06-18
        > x2 to g1 session A: notifications/initialized
        x2 accepted
        > started 1
        > x3 listens to g1 after 0ns
        x3 ended
        > x4 listens to g1 after 1s
        x4 broken
        > x5 listens to g1 after 2s
        x5 404
        call 2 tools/call a
        > x6 to g1 session A: tools/call id 2
        x6 result
        > answer 2
    ",
    );
}

#[test]
fn a_hanging_attempt_ends_by_its_own_deadline_and_the_next_caller_goes_on() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 404
        > state lost
        > open g2
        > end g1
        g2 opened
        > x4 to g2: initialize id 3 hello 1
        call 3 tools/call b
        +60s
        > end g2
        > failed 2 SESSION_RECOVERY_FAILED not_executed: initialize: no answer within startTimeout
        +1s
        > open g3
        g3 opened
        > x5 to g3: initialize id 4 hello 1
    ",
    );
}

#[test]
fn a_servers_own_error_with_a_status_of_4xx_is_the_answer() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 minted A
        x1 result
        > x2 to g1 session A: notifications/initialized
        x1 done
        x2 accepted
        > started 1
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 400 own 2 -32602
        > answer 2
        call 3 tools/call a
        > x4 to g1 session A: tools/call id 3
        x4 400 own 2 -32602
        > failed 3 UPSTREAM_REFUSED not_executed: HTTP 400, error -32602: no
        call 4 tools/call a
        > x5 to g1 session A: tools/call id 4
        x5 429 own 4 -32602
        > failed 4 UPSTREAM_REFUSED not_executed: HTTP 429, error -32602: no
        call 5 tools/call a
        > x6 to g1 session A: tools/call id 5
        x6 500 own 5 -32602
        > failed 5 OUTCOME_UNKNOWN unknown: HTTP 500, error -32602: no
        call 6 tools/call a
        > x7 to g1 session A: tools/call id 6
        x7 404 own 6 -32602
        > state lost
        > open g2
        > end g1
        ",
    );
}

#[test]
fn the_error_to_a_first_handshake_passes_whatever_its_status() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 400 own 1 -32602
        > end g1
        > failed 1 SERVER_START_FAILED not_executed with the server's error: initialize: the server answered error -32602: no
        ",
    );
}

#[test]
fn the_first_handshakes_error_reaches_the_client_as_the_server_wrote_it() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 minted A
        x1 error -32602 no
        > end g1 DELETE A
        > failed 1 SERVER_START_FAILED not_executed with the server's error: initialize: the server answered error -32602: no
    ",
    );
}

#[test]
fn a_call_may_be_polled_for_without_end_as_long_as_events_come() {
    let polls = each(0..20, |poll| {
        format!("x3 ended e{poll}\n> resume x3 from e{poll} after 1s\n")
    });
    let stuck = each(0..4, |_| {
        "x3 ended e19\n> resume x3 from e19 after 1s".to_owned()
    });
    opened_http(&format!(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        {polls}
        {stuck}
        x3 ended e19
        > failed 2 OUTCOME_UNKNOWN unknown: the event stream ended before the answer
    "
    ));
}

#[test]
fn what_a_server_never_accepts_is_given_up() {
    opened_http(
        "
        notify
        > x3 to g1 session A: notifications/roots/list_changed
        call 2 tools/call a
        > x4 to g1 session A: tools/call id 2
        +30s
        cancel 2
        > x5 to g1 session A: notifications/cancelled of 2
        +30s
        > abort x3
        +30s
        > abort x5
        > abort x4
    ",
    );
}

#[test]
fn streams_that_stay_open_after_the_answer_are_dropped_when_there_are_many() {
    let calls = each(2..40, |call| {
        let exchange = call + 1;
        let dropped = if call < 34 {
            String::new()
        } else {
            format!("> abort x{}\n", call - 31)
        };
        format!(
            "call {call} tools/call a\n> x{exchange} to g1 session A: tools/call id {call}\n\
                 x{exchange} result\n{dropped}> answer {call}\n"
        )
    });
    opened_http(&calls);
}

#[test]
fn a_url_where_no_mcp_endpoint_is_says_so_and_one_that_speaks_json_rpc_does_not() {
    for answer in ["404", "405", "501", "200 none page", "400 none page"] {
        http(&format!(
            "
            start 1
            > open g1
            g1 opened
            > x1 to g1: initialize id 1 hello 1
            x1 {answer}
            > end g1
            > failed 1 NOT_MCP_ENDPOINT not_executed: initialize: HTTP {}
            ",
            answer
                .replacen(" none page", ": page", 1)
                .replacen("501", "501: no", 1)
                .replacen("404", "404: no", 1)
                .replacen("405", "405: no", 1)
        ));
    }
    for (answer, told) in [
        ("404 -32000 gone", "HTTP 404, error -32000: gone"),
        ("500", "HTTP 500: no"),
        ("502 none page", "HTTP 502: page"),
    ] {
        http(&format!(
            "
            start 1
            > open g1
            g1 opened
            > x1 to g1: initialize id 1 hello 1
            x1 {answer}
            > end g1
            > failed 1 SERVER_START_FAILED not_executed: initialize: {told}
            "
        ));
    }
}
