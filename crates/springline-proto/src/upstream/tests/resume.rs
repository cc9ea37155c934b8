//! Scripts of a session that is resumed after a restart of the gateway: its first request, and
//! whose the one chance is to turn a 401 into a new handshake (DESIGN.md section 5).

use super::{OPENED_HTTP, Script, compare, http_machine};
use crate::call::Moment;
use crate::upstream::{Record, Upstream};

/// What a machine has at rest, and when, after a script whose outputs do not matter.
fn at_rest_after(machine: Upstream, before: &str) -> (Record, Moment) {
    let mut first = Script::new(machine);
    let lines = before.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('>')) {
        first.line(line, &mut String::new());
    }
    let bytes = first.record.expect("a record").encode();
    (Record::decode(&bytes).unwrap(), first.now)
}

/// Plays `before` on one machine, then `script` on another that begins with its record.
fn resumed_after(before: &str, script: &str) {
    let (record, now) = at_rest_after(http_machine(), before);
    let mut player = Script::new(Upstream::resume(http_machine().config, record, now));
    player.shows_rest = true;
    compare(player, script);
}

fn resumed(script: &str) {
    resumed_after(OPENED_HTTP, script);
}

#[test]
fn the_first_request_of_a_resumed_session_goes_on_it_and_is_its_proof() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 result
        > answer 2
        ",
    );
}

#[test]
fn a_refused_first_request_leads_to_one_handshake_without_an_id_and_goes_once_more() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        g2 opened
        > x2 to g2: initialize id 2 hello 1
        x2 minted b
        x2 result
        > x3 to g2 session b: notifications/initialized
        x2 done
        x3 accepted
        > keep g2 session b
        > sent 2 to g2
        > x4 to g2 session b: tools/call id 3
        x4 result
        > answer 2
        ",
    );
}

#[test]
fn fresh_credentials_are_tried_on_the_same_session_first() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 401
        > read credentials
        credentials changed
        > keep g1 session A
        > sent 2 to g1
        > x2 to g1 session A: tools/call id 2
        x2 result
        > answer 2
        ",
    );
}

#[test]
fn an_overlapping_refused_request_waits_for_the_owner_and_goes_once_to_the_new_generation() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        call 3 tools/call b
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 401
        > read credentials
        credentials same
        x1 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        g2 opened
        > x3 to g2: initialize id 3 hello 1
        x3 minted b
        x3 result
        > x4 to g2 session b: notifications/initialized
        x3 done
        x4 accepted
        > keep g2 session b
        > sent 2 to g2
        > x5 to g2 session b: tools/call id 4
        > sent 3 to g2
        > x6 to g2 session b: tools/call id 5
        x5 result
        > answer 2
        x6 result
        > answer 3
        ",
    );
}

#[test]
fn an_overlapping_refused_request_fails_when_the_owner_is_answered() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        call 3 tools/call b
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 403
        > read credentials
        credentials same
        x1 error -1 no
        > failed 3 UPSTREAM_UNAUTHORIZED not_executed: HTTP 401 or 403, and the credential sources hold nothing new
        > answer 2
        ",
    );
}

#[test]
fn a_failure_of_the_owner_hands_the_chance_to_a_request_that_waits_for_it() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        call 3 tools/call b
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 401
        > read credentials
        credentials same
        x1 503
        > failed 2 OUTCOME_UNKNOWN unknown: HTTP 503: no
        > state lost
        > open g2
        > end g1
        g2 opened
        > x3 to g2: initialize id 3 hello 1
        ",
    );
}

#[test]
fn a_cancel_of_the_owner_hands_the_chance_to_the_next_request_that_starts() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        cancel 2
        > x2 to g1 session A: notifications/cancelled of 1
        x2 accepted
        > abort x1
        call 3 tools/call b
        > sent 3 to g1
        > x3 to g1 session A: tools/call id 2
        x3 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        ",
    );
}

#[test]
fn the_success_of_a_request_that_started_later_does_not_spend_the_chance() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        call 3 tools/call b
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 result
        > answer 3
        x1 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        ",
    );
}

#[test]
fn requests_of_our_own_neither_own_nor_spend_the_chance() {
    resumed_after(
        &format!("{OPENED_HTTP} \n call 2 resources/subscribe a \n x3 result"),
        "
        attached on
        > x1 to g1 session A: resources/subscribe id 1
        x1 result
        call 3 tools/call a
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        ",
    );
}

#[test]
fn a_refusal_of_our_own_request_does_not_give_the_session_up() {
    resumed_after(
        &format!("{OPENED_HTTP} \n call 2 resources/subscribe a \n x3 result"),
        "
        attached on
        > x1 to g1 session A: resources/subscribe id 1
        x1 401
        > read credentials
        credentials same
        call 3 tools/call a
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 result
        > answer 3
        ",
    );
}

#[test]
fn a_later_401_never_leads_to_a_handshake() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 result
        > answer 2
        call 3 tools/call a
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 401
        > read credentials
        credentials same
        > failed 3 UPSTREAM_UNAUTHORIZED not_executed: HTTP 401 or 403, and the credential sources hold nothing new
        ",
    );
}

#[test]
fn a_404_on_a_resumed_session_recovers_as_usual() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 404
        > state lost
        > open g2
        > end g1
        g2 opened
        > x2 to g2: initialize id 2 hello 1
        x2 minted b
        x2 result
        > x3 to g2 session b: notifications/initialized
        x2 done
        x3 accepted
        > keep g2 session b
        > sent 2 to g2
        > x4 to g2 session b: tools/call id 3
        x4 result
        > answer 2
        ",
    );
}

#[test]
fn what_a_client_relies_on_is_at_rest_before_it_is_told() {
    resumed(
        "
        call 2 resources/subscribe a
        > sent 2 to g1
        > x1 to g1 session A: resources/subscribe id 1
        x1 result
        > keep g1 session A
        > answer 2
        call 3 logging/setLevel info
        > sent 3 to g1
        > x2 to g1 session A: logging/setLevel id 2
        x2 result
        > keep g1 session A
        > answer 3
        call 4 tools/list
        > sent 4 to g1
        > x3 to g1 session A: tools/list id 3
        x3 result {\"tools\":[]}
        > keep g1 session A
        > answer 4
        close end
        > forget
        > end g1 DELETE A
        ",
    );
}

#[test]
fn the_record_of_a_resumed_session_lets_go_of_it_before_it_is_ended() {
    resumed(
        "
        start 2
        > open g2
        > keep g1 session none
        > end g1 DELETE A
        g2 opened
        > x1 to g2: initialize id 1 hello 1
        x1 minted b
        x1 result
        > x2 to g2 session b: notifications/initialized
        x1 done
        x2 accepted
        > keep g2 session b
        > started 2
        ",
    );
}

/// Plays a script on a machine that begins with the record of one that kept its answer.
fn kept(script: &str) {
    let mut machine = http_machine();
    machine.keep_answer();
    let (record, now) = at_rest_after(machine, OPENED_HTTP);
    let mut machine = Upstream::resume(http_machine().config, record, now);
    machine.keep_answer();
    let mut player = Script::new(machine);
    player.shows_rest = true;
    compare(player, script);
}

#[test]
fn a_client_that_comes_back_as_it_was_is_answered_from_the_record_and_its_request_is_the_proof() {
    kept(
        "
        start 2
        > started 2
        attached on
        call 3 tools/call a
        > sent 3 to g1
        > x1 to g1 session A: tools/call id 1
        x1 404
        > state lost
        > open g2
        > end g1
        g2 opened
        > x2 to g2: initialize id 2 hello 1
        x2 minted b
        x2 result
        > x3 to g2 session b: notifications/initialized
        x2 done
        x3 accepted
        > keep g2 session b
        > sent 3 to g2
        > x4 to g2 session b: tools/call id 3
        ",
    );
}

#[test]
fn a_client_that_comes_back_and_starts_over_has_used_up_what_was_kept_for_it() {
    kept(
        "
        start 2
        > started 2
        start 3
        > open g2
        > keep g1 session none
        > end g1 DELETE A
        ",
    );
}

#[test]
fn another_client_ends_the_kept_session_and_its_failed_start_is_no_recovery() {
    let mut machine = http_machine();
    machine.keep_answer();
    let (mut record, now) = at_rest_after(machine, OPENED_HTTP);
    record.hello = r#"{"hello":"other"}"#.into();
    let mut machine = Upstream::resume(http_machine().config, record, now);
    machine.keep_answer();
    let mut player = Script::new(machine);
    player.shows_rest = true;
    compare(
        player,
        "
        start 2
        > open g2
        > keep g1 session none
        > end g1 DELETE A
        g2 opened
        > x1 to g2: initialize id 1 hello 1
        x1 500
        > end g2
        > failed 2 SERVER_START_FAILED not_executed: initialize: HTTP 500: no
        ",
    );
}

#[test]
fn a_request_that_may_not_leave_ends_in_one_error_and_spends_no_chance() {
    resumed(
        "
        call 2 tools/call a
        > sent 2 to g1
        > x1 to g1 session A: tools/call id 1
        x1 withheld
        > failed 2 STATE_UNWRITABLE not_executed: disk full
        call 3 tools/call b
        > sent 3 to g1
        > x2 to g1 session A: tools/call id 2
        x2 401
        > read credentials
        credentials same
        > state lost
        > open g2
        > end g1
        ",
    );
}
