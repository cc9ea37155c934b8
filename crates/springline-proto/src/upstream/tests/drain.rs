//! Out of service with calls under way, and the machine that takes the place.

use std::time::Duration;

use super::{
    CallKey, Fault, FaultKind, Generation, Hello, Input, Message, Moment, Output, Record, Script,
    compare, http, http_machine, opened_http, stdio,
};
use crate::call::SessionKey;
use crate::upstream::{Drain, SessionEvent, Standby, Transport, Upstream, UpstreamConfig};

#[test]
fn a_call_in_flight_finishes_then_the_session_is_deleted_once() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        drain refuse
        call 3 tools/call b
        > failed 3 SERVER_REMOVED not_executed: -
        x3 result
        > answer 2
        > end g1 DELETE A
        x3 done
        call 4 tools/call c
        > failed 4 SERVER_REMOVED not_executed: -
    ",
    );
}

#[test]
fn without_calls_the_end_comes_at_once() {
    opened_http(
        "
        drain refuse
        > end g1 DELETE A
        drain refuse
    ",
    );
}

#[test]
fn a_call_keeps_its_own_deadline() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        drain refuse
        +3599s
        +1s
        > x4 to g1 session A: notifications/cancelled of 2
        > failed 2 CALL_TIMEOUT unknown: -
        > abort x3
        x4 accepted
        > end g1 DELETE A
    ",
    );
}

#[test]
fn what_was_not_sent_moves_and_a_start_under_way_is_given_up() {
    http(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        call 2 tools/call a
        drain move
        > moved 1
        > moved 2
        call 3 tools/call b
        > moved 3
        x1 minted A
        > end g1 DELETE A
    ",
    );
}

#[test]
fn a_draining_machine_starts_nothing() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        call 3 resources/subscribe u
        > x4 to g1 session A: resources/subscribe id 3
        drain move
        > moved 3
        x3 404 -32001 Session not found
        > moved 2
        > end g1 DELETE A
    ",
    );
}

#[test]
fn what_set_up_state_and_moved_may_have_run_wherever_it_ends() {
    let mut old = Script::new(http_machine());
    let mut shown = String::new();
    for line in super::OPENED_HTTP
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if !line.starts_with('>') {
            old.line(line, &mut shown);
        }
    }
    old.line("call 2 resources/subscribe u", &mut shown);
    let now = Moment::default();
    old.machine.handle(now, Input::Drain(Drain::Move));
    let mut taken = None;
    while let Some(output) = old.machine.poll() {
        if let Output::Moved { key, moved, .. } = output {
            taken = Some((key, moved));
        }
    }
    let (key, moved) = taken.expect("it moves");
    // The place that it comes to is closed by then.
    let mut new = Script::new(http_machine());
    new.line("close keep", &mut shown);
    shown.clear();
    new.feed(Input::Take { key, moved }, &mut shown);
    assert_eq!(shown.trim(), "> failed 2 SERVER_REMOVED unknown: -");
}

#[test]
fn a_handshake_that_came_while_nothing_was_configured_is_remembered() {
    let mut old = Script::new(http_machine());
    let mut shown = String::new();
    old.line("close keep", &mut shown);
    old.line("start 1", &mut shown);
    assert_eq!(shown.trim(), "> failed 1 SERVER_REMOVED not_executed: -");
    let legacy = old.machine.legacy();
    let now = Moment::default();
    let mut new = Script::new(Upstream::succeed(config(), legacy, now));
    shown.clear();
    new.line("call 2 tools/call a", &mut shown);
    assert_eq!(shown.trim(), "> open g1");
}

#[test]
fn the_one_that_takes_the_place_lets_no_restart_resume_the_session_before() {
    let mut old = Script::new(http_machine());
    let mut shown = String::new();
    for line in super::OPENED_HTTP
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if !line.starts_with('>') {
            old.line(line, &mut shown);
        }
    }
    assert!(old.record.as_ref().is_some_and(Record::is_resumable));
    let legacy = old.machine.legacy();
    let mut new = Script::new(Upstream::succeed(config(), legacy, Moment::default()));
    new.feed(Input::Timer, &mut shown);
    assert!(new.record.is_some_and(|record| !record.is_resumable()));
}

#[test]
fn a_machine_that_was_closed_with_a_record_at_rest_forgets_it_with_the_session() {
    let mut player = Script::new(http_machine());
    player.shows_rest = true;
    compare(
        player,
        "
        close keep
        close end
        > forget
    ",
    );
}

#[test]
fn a_child_that_dies_while_draining_is_not_started_again() {
    stdio(
        "
        start 1
        > open g1
        g1 opened
        > x1 to g1: initialize id 1 hello 1
        x1 accepted
        x1 result
        > x2 to g1: notifications/initialized
        x2 accepted
        > started 1
        call 2 tools/call a
        > x3 to g1: tools/call id 2
        x3 accepted
        drain move
        g1 lost
        > failed 2 SERVER_EXITED unknown: exit status 1
        call 3 tools/call b
        > moved 3
    ",
    );
}

fn config() -> UpstreamConfig {
    UpstreamConfig {
        server: "s".into(),
        transport: Transport::Http,
        session: SessionKey(1),
        settings: std::sync::Arc::default(),
        base: 0,
        seed: 1,
    }
}

fn key(number: u64) -> CallKey {
    CallKey {
        session: SessionKey(1),
        number,
    }
}

fn drained(machine: &mut Upstream, now: Moment, input: Input) -> Vec<Output> {
    machine.handle(now, input);
    std::iter::from_fn(|| machine.poll()).collect()
}

fn call(text: &str) -> Message {
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{text}"}}}}"#);
    Message::parse(text).unwrap()
}

#[test]
fn the_next_machine_takes_what_moved_and_its_generations_follow_on() {
    let now = Moment::default();
    let mut old = Upstream::new(config(), now);
    let hello = Hello {
        params: "{}".into(),
    };
    drained(&mut old, now, Input::Start { key: key(1), hello });
    drained(
        &mut old,
        now,
        Input::Call {
            key: key(2),
            message: call("a"),
            stretches: false,
        },
    );
    let legacy = old.legacy();
    let moved = drained(&mut old, now, Input::Drain(Drain::Move));
    let mut new = Upstream::succeed(config(), legacy, now);
    let mut opened = Vec::new();
    for output in moved {
        if let Output::Moved { key, moved, .. } = output {
            opened.extend(drained(&mut new, now, Input::Take { key, moved }));
        }
    }
    assert_eq!(new.pending_len(), 2);
    assert!(opened.iter().any(|output| matches!(
        output,
        Output::Open {
            generation: Generation(2)
        }
    )));
    assert_eq!(old.standby(), Standby::Closed);
    // The deadline is the call's own, not a new one.
    let late = now.after(Duration::from_hours(1));
    let failed = drained(&mut new, late, Input::Timer);
    assert!(failed.iter().any(|output| matches!(
        output,
        Output::ToSession { event: SessionEvent::Failed { key, .. }, .. } if key.number == 2
    )));
}

#[test]
fn a_machine_that_still_drains_can_be_revived_and_one_that_ended_cannot() {
    let now = Moment::default();
    let mut machine = Upstream::new(config(), now);
    let hello = Hello {
        params: "{}".into(),
    };
    let refuse = || Input::Drain(Drain::Refuse(Fault::new(FaultKind::ServerRemoved)));
    drained(&mut machine, now, Input::Greet { hello });
    machine.handle(now, refuse());
    assert!(!machine.revive(), "nothing was under way: it ended at once");
}
