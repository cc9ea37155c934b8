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
        call 9 tools/call a
        > x3 to g1: tools/call id 2
        x3 result
        > answer 9
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

#[test]
fn a_child_that_was_only_asked_what_it_offers_is_ended_after_two_minutes_and_nothing_is_lost() {
    opened_stdio(
        "
        attached off
        +100s
        call 2 tools/list
        > x3 to g1: tools/list id 2
        x3 result
        > answer 2
        call 3 logging/setLevel error
        > x4 to g1: logging/setLevel id 3
        x4 result
        > answer 3
        +119s
        +1s
        > end g1
        call 4 tools/call a
        > open g2
    ",
    );
}

#[test]
fn a_child_is_not_ended_while_its_client_is_attached() {
    opened_stdio(
        "
        +7200s
        call 2 tools/list
        > x3 to g1: tools/list id 2
    ",
    );
}

#[test]
fn a_call_waits_for_room_as_long_as_for_a_start_and_then_hears_which_limit_it_was() {
    stdio(
        "
        crowd 4
        start 1
        > no room for g1
        +20s
        call 2 tools/list
        +39s
        +1s
        > end g1
        > failed 1 TOO_MANY_CHILDREN not_executed: start: childrenMax is 4; waited for startTimeout
        > no room for g2
        +10s
        call 3 tools/call a
        +10s
        > end g2
        > failed 2 TOO_MANY_CHILDREN not_executed: start: childrenMax is 4; waited for startTimeout
        > no room for g3
        g3 admitted
        > open g3
        g3 opened
        > x1 to g3: initialize id 1 hello 1
        x1 result
        > x2 to g3: notifications/initialized
        x2 accepted
        > x3 to g3: tools/call id 2
    ",
    );
}

#[test]
fn those_who_came_together_stop_waiting_for_room_together() {
    stdio(
        "
        crowd 1
        start 1
        > no room for g1
        call 2 tools/list
        call 3 tools/call a
        +60s
        > end g1
        > failed 1 TOO_MANY_CHILDREN not_executed: start: childrenMax is 1; waited for startTimeout
        > failed 2 TOO_MANY_CHILDREN not_executed: childrenMax is 1; waited for startTimeout
        > failed 3 TOO_MANY_CHILDREN not_executed: childrenMax is 1; waited for startTimeout
        g1 admitted
        +600s
    ",
    );
}

#[test]
fn time_that_passed_before_there_was_room_is_not_counted_against_the_start() {
    stdio(
        "
        crowd 1
        start 1
        > no room for g1
        +59s
        g1 admitted
        > open g1
        +59s
        g1 opened
        > x1 to g1: initialize id 1 hello 1
    ",
    );
}

#[test]
fn a_child_gives_way_only_while_nobody_is_attached_and_nothing_is_under_way() {
    opened_stdio(
        "
        give way
        attached off
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        give way
        x3 result
        > answer 2
        attached on
        give way
        attached off
        give way
        > state lost
        > end g1
        give way
        call 3 tools/call a
        > open g2
    ",
    );
}
