//! The end of an instance: last words arrive, and nothing else does.

use super::{opened_http, stdio};

#[test]
fn a_session_is_ended_only_after_a_notification_on_its_way_has_arrived() {
    opened_http(
        "
        notify
        > x3 to g1 session A: notifications/roots/list_changed
        close end
        x3 accepted
        > end g1 DELETE A
        +60s
        ",
    );
}

#[test]
fn a_session_is_ended_when_a_last_notification_does_not_arrive_in_time() {
    opened_http(
        "
        notify
        > x3 to g1 session A: notifications/roots/list_changed
        close end
        +1s
        +2s
        > end g1 DELETE A
        x3 accepted
        ",
    );
}

#[test]
fn nothing_enters_or_leaves_an_instance_that_waits_for_its_last_words() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        notify
        > x4 to g1 session A: notifications/roots/list_changed
        close end
        > failed 2 SERVER_REMOVED unknown: -
        > abort x3
        notify
        reply g1 7
        x4 says {\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"}
        call 3 tools/call b
        > failed 3 SERVER_REMOVED not_executed: -
        x4 broken
        > end g1 DELETE A
        ",
    );
}

#[test]
fn a_kept_session_waits_for_its_last_words_too_and_stays() {
    opened_http(
        "
        notify
        > x3 to g1 session A: notifications/roots/list_changed
        close keep
        x3 accepted
        > end g1
        ",
    );
}

#[test]
fn a_cancellation_arrives_before_the_instance_that_it_is_for_is_ended() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        cancel 2
        > x4 to g1 session A: notifications/cancelled of 2
        retire
        > state lost
        > abort x3
        call 4 tools/call b
        > open g2
        g2 opened
        > x5 to g2: initialize id 3 hello 1
        x4 accepted
        > end g1 DELETE A
        ",
    );
}

#[test]
fn the_pipe_of_a_child_keeps_the_order_by_itself() {
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
        notify
        > x3 to g1: notifications/roots/list_changed
        close end
        > end g1
        ",
    );
}
