//! Children that exit, close their pipes, or never start.

use super::{opened_stdio, stdio};

#[test]
fn a_child_that_exits_in_mid_call_costs_that_call_and_no_other() {
    opened_stdio(
        "
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        x3 accepted
        g1 lost
        > failed 2 SERVER_EXITED unknown: exit status 1
        > state lost
        call 3 tools/call b
        > open g2
        g2 opened
        > x4 to g2: initialize id 3 hello 1
        x4 result
        > x5 to g2: notifications/initialized
        x5 accepted
        > x6 to g2: tools/call id 4
        x6 result
        > answer 3
    ",
    );
}

#[test]
fn a_read_survives_the_exit_of_the_child() {
    opened_stdio(
        "
        call 2 resources/read a
        > x3 to g1: resources/read id 2
        g1 lost
        > state lost
        > open g2
        g2 opened
        > x4 to g2: initialize id 3 hello 1
        x4 result
        > x5 to g2: notifications/initialized
        x5 accepted
        > x6 to g2: resources/read id 4
        x6 result
        > answer 2
    ",
    );
}

#[test]
fn a_child_that_closes_every_pipe_is_not_asked_without_end() {
    opened_stdio(
        "
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        x3 unsent
        > state lost
        > end g1
        > open g2
        g2 opened
        > x4 to g2: initialize id 3 hello 1
        x4 result
        > x5 to g2: notifications/initialized
        x5 accepted
        > x6 to g2: tools/call id 4
        x6 unsent
        > state lost
        > failed 2 SERVER_UNREACHABLE not_executed: cut
        > end g2
    ",
    );
}

#[test]
fn a_child_that_cannot_be_started_is_an_error_and_the_next_call_tries_again() {
    stdio(
        "
        start 1
        > open g1
        g1 failed
        > end g1
        > failed 1 SERVER_START_FAILED not_executed: start: no such file
        call 2 tools/call a
        +1s
        > open g2
        g2 opened
        > x1 to g2: initialize id 1 hello 1
    ",
    );
}

#[test]
fn nothing_enters_a_child_before_initialized_was_written() {
    stdio(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        call 2 tools/call a
        notify
        x1 result
        > x2 to g1: notifications/initialized
        x2 accepted
        > started 1
        > x3 to g1: tools/call id 2
    ",
    );
}

#[test]
fn an_answer_too_large_to_keep_was_executed() {
    opened_stdio(
        "
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        g1 noise large 2
        > failed 2 ANSWER_TOO_LARGE executed: too large
    ",
    );
}

#[test]
fn late_words_of_an_ended_child_are_not_heard() {
    opened_stdio(
        r#"
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        retire
        > state lost
        start 3
        > open g2
        g2 opened
        > x4 to g2: initialize id 3 hello 2
        x4 result
        > x5 to g2: notifications/initialized
        x5 accepted
        > started 3
        x3 result
        > answer 2
        > end g1
        g1 says {"jsonrpc":"2.0","id":2,"result":{}}
        g1 lost
        call 4 tools/call b
        > x6 to g2: tools/call id 4
    "#,
    );
}

#[test]
fn a_child_of_a_detached_session_is_ended_after_half_an_hour() {
    opened_stdio(
        "
        attached off
        +1799s
        +1s
        > state lost
        > end g1
        call 2 tools/call a
        > open g2
    ",
    );
}
