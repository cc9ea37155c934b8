//! A server that lost the session, and every way in which getting a new one can fail.

use super::{OPENED_HTTP, each, http, opened_http, play};
use crate::settings::{ReplayPolicy, UpstreamSettings};
use crate::upstream::Transport;

#[test]
fn a_lost_session_costs_one_handshake_and_each_refused_call_goes_once_more() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x3 404
        > state lost
        > open g2
        g2 opened
        > x5 to g2: initialize id 4 hello 1
        x4 404
        > end g1
        x5 minted B
        x5 result
        > x6 to g2 session B: notifications/initialized
        x6 accepted
        > x7 to g2 session B: tools/call id 5
        > x8 to g2 session B: tools/call id 6
        x7 result
        > answer 2
        x8 result
        > answer 3
    ",
    );
}

#[test]
fn a_call_retries_after_an_incomplete_recovery_before_anything_else_is_sent() {
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
        x4 minted B
        x4 result
        > x5 to g2 session B: notifications/initialized
        x5 502
        > end g2 DELETE B
        > failed 2 SESSION_RECOVERY_FAILED not_executed: notifications/initialized: HTTP 502: no
        call 3 tools/call b
        +5s
        > open g3
        g3 opened
        > x6 to g3: initialize id 4 hello 1
        x6 minted C
        x6 result
        > x7 to g3 session C: notifications/initialized
        x7 accepted
        > x8 to g3 session C: tools/call id 5
        x8 result
        > answer 3
    ",
    );
}

#[test]
fn a_queued_caller_does_not_use_an_incomplete_recovery() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x3 404
        > state lost
        > open g2
        x4 404
        > end g1
        g2 opened
        > x5 to g2: initialize id 4 hello 1
        x5 minted B
        x5 result
        > x6 to g2 session B: notifications/initialized
        x6 502
        > end g2 DELETE B
        > failed 2 SESSION_RECOVERY_FAILED not_executed: notifications/initialized: HTTP 502: no
        +5s
        > open g3
        g3 opened
        > x7 to g3: initialize id 5 hello 1
        x7 minted C
        x7 result
        > x8 to g3 session C: notifications/initialized
        x8 accepted
        > x9 to g3 session C: tools/call id 6
        x9 result
        > answer 3
    ",
    );
}

#[test]
fn a_failed_initialize_leaves_the_session_recoverable_whatever_failed() {
    for (failure, cause) in [
        ("x4 broken", "initialize: cut"),
        ("x4 503", "initialize: HTTP 503: no"),
        ("x4 done", "initialize: the HTTP answer holds no result"),
        ("x4 unreadable", "initialize: not JSON"),
        (
            "x4 error -32603 no",
            "initialize: the server answered error -32603: no",
        ),
        (
            "x4 result 1999-01-01",
            "initialize: the server chose protocol version \"1999-01-01\", which is unknown",
        ),
    ] {
        let own = if failure.contains("error") {
            " with the server's error"
        } else {
            ""
        };
        opened_http(&format!(
            "
            call 2 tools/call a
            > x3 to g1 session A: tools/call id 2
            x3 404
            > state lost
            > open g2
            > end g1
            g2 opened
            > x4 to g2: initialize id 3 hello 1
            {failure}
            > end g2
            > failed 2 SESSION_RECOVERY_FAILED not_executed{own}: {cause}
            +5s
            call 3 tools/call b
            > open g3
            g3 opened
            > x5 to g3: initialize id 4 hello 1
            x5 minted C
            x5 result
            > x6 to g3 session C: notifications/initialized
            x6 accepted
            > x7 to g3 session C: tools/call id 5
            x7 result
            > answer 3
        "
        ));
    }
}

#[test]
fn repeated_failures_of_the_handshake_cost_one_attempt_for_each_call() {
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
        x4 503
        > end g2
        > failed 2 SESSION_RECOVERY_FAILED not_executed: initialize: HTTP 503: no
        +60s
        call 3 tools/call b
        > open g3
        g3 opened
        > x5 to g3: initialize id 4 hello 1
        x5 503
        > end g3
        > failed 3 SESSION_RECOVERY_FAILED not_executed: initialize: HTTP 503: no
        +60s
        call 4 tools/call c
        > open g4
        g4 opened
        > x6 to g4: initialize id 5 hello 1
        x6 minted D
        x6 result
        > x7 to g4 session D: notifications/initialized
        x7 accepted
        > x8 to g4 session D: tools/call id 6
        x8 result
        > answer 4
    ",
    );
}

#[test]
fn twelve_concurrent_callers_share_one_recovery() {
    let first = each(2..14, |call| {
        let exchange = call + 1;
        format!("call {call} tools/call a\n> x{exchange} to g1 session A: tools/call id {call}")
    });
    let refused = each(4..15, |exchange| format!("x{exchange} 404"));
    let second = each(2..14, |call| {
        let (exchange, id) = (call + 15, call + 13);
        format!("> x{exchange} to g2 session B: tools/call id {id}")
    });
    let answers = each(2..14, |call| {
        format!("x{} result\n> answer {call}", call + 15)
    });
    opened_http(&format!(
        "
        {first}
        x3 404
        > state lost
        > open g2
        {refused}
        > end g1
        g2 opened
        > x15 to g2: initialize id 14 hello 1
        x15 minted B
        x15 result
        > x16 to g2 session B: notifications/initialized
        x16 accepted
        {second}
        {answers}
    "
    ));
}

#[test]
fn an_ambiguous_failure_is_never_sent_again_and_starts_nothing() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 502
        > failed 2 OUTCOME_UNKNOWN unknown: HTTP 502: no
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x4 broken
        > failed 3 OUTCOME_UNKNOWN unknown: cut
        call 4 tools/call c
        > x5 to g1 session A: tools/call id 4
        x5 error -32000 no
        > answer 4
        call 5 tools/call d
        > x6 to g1 session A: tools/call id 5
        x6 ended
        > failed 5 OUTCOME_UNKNOWN unknown: the event stream ended before the answer
        call 6 tools/call e
        > x7 to g1 session A: tools/call id 6
        +3600s
        > x8 to g1 session A: notifications/cancelled of 6
        > failed 6 CALL_TIMEOUT unknown: -
        call 7 tools/call f
        > x9 to g1 session A: tools/call id 7
        x9 result
        > answer 7
    ",
    );
}

#[test]
fn a_server_that_always_forgets_neither_loops_nor_wedges() {
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
        x4 minted B
        x4 result
        > x5 to g2 session B: notifications/initialized
        x5 accepted
        > x6 to g2 session B: tools/call id 4
        x6 404
        > state lost
        > failed 2 SESSION_RECOVERY_FAILED not_executed: HTTP 404: no
        > end g2
        +10s
        call 3 tools/call b
        > open g3
        g3 opened
        > x7 to g3: initialize id 5 hello 1
        x7 minted C
        x7 result
        > x8 to g3 session C: notifications/initialized
        x8 accepted
        > x9 to g3 session C: tools/call id 6
        x9 result
        > answer 3
    ",
    );
}

#[test]
fn a_clients_initialize_during_a_recovery_becomes_that_recovery() {
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
        start 3
        > open g3
        g3 opened
        > x5 to g3: initialize id 4 hello 2
        x4 minted B
        > end g2 DELETE B
        x5 minted C
        x5 result
        > x6 to g3 session C: notifications/initialized
        x6 accepted
        > started 3
        > x7 to g3 session C: tools/call id 5
        x7 result
        > answer 2
    ",
    );
}

#[test]
fn a_clients_initialize_on_a_live_session_ends_it_when_its_calls_are_done() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        start 3
        > open g2
        g2 opened
        > x4 to g2: initialize id 3 hello 2
        x4 minted B
        x4 result
        > x5 to g2 session B: notifications/initialized
        x5 accepted
        > started 3
        x3 result
        > answer 2
        > end g1 DELETE A
    ",
    );
}

#[test]
fn a_late_verdict_about_an_old_session_does_not_harm_the_new_one() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x3 404
        > state lost
        > open g2
        g2 opened
        > x5 to g2: initialize id 4 hello 1
        x5 minted B
        x5 result
        > x6 to g2 session B: notifications/initialized
        x6 accepted
        > x7 to g2 session B: tools/call id 5
        x4 404
        > x8 to g2 session B: tools/call id 6
        > end g1
        x7 result
        > answer 2
        x8 result
        > answer 3
    ",
    );
}

#[test]
fn a_slow_call_holds_up_neither_the_recovery_nor_other_calls() {
    opened_http(
        "
        call 2 tools/call slow
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x4 404
        > state lost
        > open g2
        g2 opened
        > x5 to g2: initialize id 4 hello 1
        x5 minted B
        x5 result
        > x6 to g2 session B: notifications/initialized
        x6 accepted
        > x7 to g2 session B: tools/call id 5
        x7 result
        > answer 3
        x3 result
        > answer 2
        > end g1
    ",
    );
}

#[test]
fn a_recovery_outlives_the_caller_that_began_it() {
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
        cancel 2
        x4 minted B
        x4 result
        > x5 to g2 session B: notifications/initialized
        x5 accepted
        > x6 to g2 session B: tools/call id 4
        x6 result
        > answer 3
    ",
    );
}

#[test]
fn queued_callers_do_not_hammer_a_server_that_is_down() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        call 4 tools/call c
        > x5 to g1 session A: tools/call id 4
        x3 404
        > state lost
        > open g2
        x4 404
        x5 404
        > end g1
        g2 opened
        > x6 to g2: initialize id 5 hello 1
        x6 503
        > end g2
        > failed 2 SESSION_RECOVERY_FAILED not_executed: initialize: HTTP 503: no
        +49ms
        +100ms
        > open g3
        g3 opened
        > x7 to g3: initialize id 6 hello 1
        x7 503
        > end g3
        > failed 3 SESSION_RECOVERY_FAILED not_executed: initialize: HTTP 503: no
        +99ms
        +200ms
        > open g4
        g4 opened
        > x8 to g4: initialize id 7 hello 1
    ",
    );
}

#[test]
fn what_was_set_up_is_set_up_again_before_new_calls() {
    opened_http(
        r#"
        call 2 logging/setLevel info
        > x3 to g1 session A: logging/setLevel id 2
        x3 result
        > answer 2
        call 3 resources/subscribe u
        > x4 to g1 session A: resources/subscribe id 3
        x4 result
        > answer 3
        call 4 tools/list
        > x5 to g1 session A: tools/list id 4
        x5 result {"tools":[1]}
        > answer 4
        call 5 tools/call a
        > x6 to g1 session A: tools/call id 5
        x6 404
        > state lost
        > open g2
        > end g1
        g2 opened
        > x7 to g2: initialize id 6 hello 1
        x7 minted B
        x7 result
        > x8 to g2 session B: notifications/initialized
        x8 accepted
        > x9 to g2 session B: resources/subscribe id 7
        > x10 to g2 session B: logging/setLevel id 8
        > x11 to g2 session B: tools/call id 9
        > x12 to g2 session B: tools/list id 10
        x12 result {"tools":[2]}
        > changed Tools
    "#,
    );
}

#[test]
fn a_close_during_a_recovery_leaves_no_session_behind() {
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
        close end
        > failed 2 SERVER_REMOVED not_executed: -
        x4 minted B
        > end g2 DELETE B
    ",
    );
}

#[test]
fn only_trusted_tools_go_once_more_where_the_operator_says_so() {
    let settings = UpstreamSettings {
        replay: ReplayPolicy::Annotated,
        ..UpstreamSettings::default()
    };
    play(
        Transport::Http,
        settings,
        &format!(
            "{OPENED_HTTP}{}",
            r#"
        call 2 tools/list
        > x3 to g1 session A: tools/list id 2
        x3 result {"tools":[{"name":"r","annotations":{"readOnlyHint":true}},{"name":"w"}]}
        > answer 2
        call 3 tools/call r
        > x4 to g1 session A: tools/call id 3
        call 4 tools/call w
        > x5 to g1 session A: tools/call id 4
        x4 404
        > state lost
        > open g2
        x5 404
        > failed 4 SESSION_RECOVERY_FAILED not_executed: HTTP 404: no
        > end g1
    "#
        ),
    );
}

#[test]
fn a_loss_before_the_first_handshake_was_complete_is_an_error() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 minted A
        x1 result
        > x2 to g1 session A: notifications/initialized
        x2 404
        > end g1 DELETE A
        > failed 1 SERVER_START_FAILED not_executed: notifications/initialized: HTTP 404: no
        call 2 tools/call a
        +1s
        > open g2
        g2 opened
        > x3 to g2: initialize id 2 hello 1
    ",
    );
}

#[test]
fn no_more_subscriptions_are_made_again_than_are_remembered() {
    let made = each(2..1005, |call| {
        let exchange = call + 1;
        format!(
            "call {call} resources/subscribe u{call}\n\
                 > x{exchange} to g1 session A: resources/subscribe id {call}\n\
                 x{exchange} result\n> answer {call}\nx{exchange} done\n"
        )
    });
    let again = each(0..1000, |at| {
        let (exchange, id) = (at + 1009, at + 1007);
        format!("> x{exchange} to g2 session B: resources/subscribe id {id}\n")
    });
    opened_http(&format!(
        "
        {made}
        call 1005 tools/call a
        > x1006 to g1 session A: tools/call id 1005
        x1006 404
        > state lost
        > open g2
        > end g1
        g2 opened
        > x1007 to g2: initialize id 1006 hello 1
        x1007 minted B
        x1007 result
        > x1008 to g2 session B: notifications/initialized
        x1008 accepted
        {again}
        > x2009 to g2 session B: tools/call id 2007
    "
    ));
}
