//! Scripts. A line that starts with `<` is an output; every other line is an input.
//!
//! | input | means |
//! |---|---|
//! | `c {…}` | the client says something |
//! | `new` | a gateway is reached, which opens a new session |
//! | `back 3 2=sent,3=lost` | one is reached that has the session, and has taken our frame 3 |
//! | `g 2 1 {…}` | its frame 2, with the acknowledgement of ours up to 1 |
//! | `k 3`, `stopping`, `ended`, `cut`, `refused` | as named |
//! | `+500` | so many milliseconds later, with a timer |

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;

use crate::call::Moment;
use crate::message::Message;
use crate::session::{Fate, Welcome};
use crate::tether::{Input, Output, Tether, Want};

struct Player {
    tether: Tether,
    now: Moment,
}

fn full(text: &str) -> Bytes {
    text.replacen('{', r#"{"jsonrpc":"2.0","#, 1).into()
}

fn brief(bytes: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(bytes).expect("valid JSON");
    let data = &value["error"]["data"];
    if let (Some(code), Some(outcome)) = (data["code"].as_str(), data["outcome"].as_str()) {
        return format!("{} {code} {outcome}", value["id"]);
    }
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    text.replacen(r#""jsonrpc":"2.0","#, "", 1)
}

impl Player {
    fn new() -> Self {
        let wait = Duration::from_secs(5);
        Self {
            tether: Tether::new(Some("time".to_owned()), wait),
            now: Moment(Duration::from_secs(1)),
        }
    }

    fn play(&mut self, line: &str) -> Vec<String> {
        let input = self.input(line);
        self.tether.handle(self.now, input);
        let mut out = Vec::new();
        while let Some(output) = self.tether.poll() {
            out.push(match output {
                Output::ToClient(data) => format!("c {}", brief(&data.to_bytes())),
                Output::ToGateway {
                    number,
                    received,
                    body,
                } => format!("g {number} {received} {}", brief(&body.to_bytes())),
                Output::Acknowledge(received) => format!("k {received}"),
                Output::Leave => "leave".to_owned(),
                Output::Abandon(why) => format!("abandon: {why}"),
            });
        }
        out
    }

    fn input(&mut self, line: &str) -> Input {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "c" => Input::Client(Message::parse(full(rest)).unwrap()),
            "new" => Input::Attached {
                is_resumed: false,
                welcome: Welcome::default(),
            },
            "back" => Input::Attached {
                is_resumed: true,
                welcome: welcome(rest),
            },
            "g" => {
                let mut words = rest.splitn(3, ' ');
                let mut number = || words.next().unwrap().parse().unwrap();
                Input::Frame {
                    number: number(),
                    received: number(),
                    body: full(words.next().unwrap()),
                }
            }
            "k" => Input::Acknowledged(rest.parse().unwrap()),
            "stopping" => Input::Stopping,
            "ended" => Input::Ended,
            "cut" => Input::Cut,
            "refused" => Input::Refused {
                error: r#"{"code":-31001,"message":"no","data":{"code":"SERVER_UNREACHABLE","outcome":"not_executed"}}"#
                    .to_owned(),
            },
            _ => {
                let millis = word.strip_prefix('+').unwrap().parse().unwrap();
                self.now = self.now.after(Duration::from_millis(millis));
                Input::Timer
            }
        }
    }
}

fn welcome(text: &str) -> Welcome {
    let (taken, fates) = text.split_once(' ').unwrap_or((text, ""));
    let fates = fates
        .split(',')
        .filter(|fate| !fate.is_empty())
        .map(|fate| {
            let (frame, fate) = fate.split_once('=').unwrap();
            let fate = match fate {
                "notSent" => Fate::NotSent,
                "sent" => Fate::Sent,
                _ => Fate::Lost,
            };
            (frame.parse().unwrap(), fate)
        });
    Welcome {
        taken: taken.parse().unwrap(),
        fates: fates.collect(),
    }
}

#[track_caller]
fn run(before: &str, script: &str) -> Player {
    let lines = |text: &'static str| text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (before, script): (&'static str, &'static str) = (
        Box::leak(before.to_owned().into()),
        Box::leak(script.to_owned().into()),
    );
    let mut player = Player::new();
    for line in lines(before) {
        player.play(line);
    }
    let mut transcript = String::new();
    for line in lines(script).filter(|line| !line.starts_with('<')) {
        writeln!(transcript, "{line}").unwrap();
        for output in player.play(line) {
            writeln!(transcript, "< {output}").unwrap();
        }
    }
    let expected = lines(script).fold(String::new(), |all, line| all + line + "\n");
    assert!(
        transcript == expected,
        "the transcript is:\n{transcript}\nbut should be:\n{expected}"
    );
    player
}

/// After it the client's frames 1 and 2 are taken, and the gateway's frame 1 is received.
const OPEN: &str = r#"
    c {"id":0,"method":"initialize","params":{}}
    new
    g 1 1 {"id":0,"result":{"capabilities":{"logging":{}}}}
    c {"method":"notifications/initialized"}
    k 2
"#;

#[test]
fn messages_pass_numbered_and_are_acknowledged_soon() {
    let player = run(
        OPEN,
        r#"
        c {"id":"a","method":"tools/call"}
        < g 3 1 {"id":"a","method":"tools/call"}
        g 2 3 {"id":"a","result":{}}
        < c {"id":"a","result":{}}
        +999
        +1
        < k 2
        "#,
    );
    assert!(!player.tether.is_waiting());
}

#[test]
fn each_call_in_flight_ends_by_what_the_journal_says() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        c {"id":2,"method":"tools/call"}
        < g 4 1 {"id":2,"method":"tools/call"}
        c {"id":3,"method":"tools/call"}
        < g 5 1 {"id":3,"method":"tools/call"}
        c {"id":4,"method":"tools/list"}
        < g 6 1 {"id":4,"method":"tools/list"}
        c {"id":5,"method":"tools/call"}
        < g 7 1 {"id":5,"method":"tools/call"}
        c {"id":6,"method":"tools/call"}
        < g 8 1 {"id":6,"method":"tools/call"}
        cut
        c {"id":7,"method":"tools/call"}
        back 7 3=notSent,4=sent,5=lost,6=sent
        < c 2 OUTCOME_UNKNOWN unknown
        < c 3 RESULT_LOST executed
        < k 1
        < g 8 1 {"id":1,"method":"tools/call"}
        < g 9 1 {"id":4,"method":"tools/list"}
        < g 10 1 {"id":6,"method":"tools/call"}
        < g 11 1 {"id":7,"method":"tools/call"}
        g 2 11 {"id":5,"result":{}}
        < c {"id":5,"result":{}}
        g 3 11 {"id":5,"result":{}}
        g 4 11 {"id":1,"result":{}}
        < c {"id":1,"result":{}}
        "#,
    );
}

#[test]
fn a_gateway_that_forgot_what_it_had_is_not_sent_it_again() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        k 3
        cut
        back 2
        < c 1 OUTCOME_UNKNOWN unknown
        < k 1
        "#,
    );
}

#[test]
fn a_new_session_is_told_the_handshake_and_the_client_of_the_loss() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        c {"id":2,"method":"tools/list"}
        < g 4 1 {"id":2,"method":"tools/list"}
        cut
        c {"id":3,"method":"tools/call"}
        new
        < c 1 OUTCOME_UNKNOWN unknown
        < c {"method":"notifications/message","params":{"level":"warning","logger":"springline","data":{"server":"time","reason":"the gateway does not know the session any more","text":"its in-session state starts afresh"}}}
        < g 1 0 {"id":"springline-connect-1","method":"initialize","params":{}}
        g 1 1 {"id":"springline-connect-1","result":{}}
        < g 2 1 {"method":"notifications/initialized"}
        < g 3 1 {"id":2,"method":"tools/list"}
        < g 4 1 {"id":3,"method":"tools/call"}
        "#,
    );
}

#[test]
fn a_handshake_that_fails_gives_the_session_up() {
    let mut player = run(
        OPEN,
        r#"
        ended
        c {"id":1,"method":"tools/call"}
        new
        < c {"method":"notifications/message","params":{"level":"warning","logger":"springline","data":{"server":"time","reason":"the gateway does not know the session any more","text":"its in-session state starts afresh"}}}
        < g 1 0 {"id":"springline-connect-1","method":"initialize","params":{}}
        g 1 1 {"id":"springline-connect-1","error":{"code":-1,"message":"no"}}
        < abandon: the new session's handshake failed: {"code":-1,"message":"no"}
        refused
        < c 1 SERVER_UNREACHABLE not_executed
        "#,
    );
    assert_eq!(player.tether.want(player.now), Want::Nothing);
    assert!(!player.tether.has_session());
    player.play(r#"c {"id":2,"method":"tools/call"}"#);
    assert_eq!(player.tether.want(player.now), Want::Start);
}

#[test]
fn a_handshake_in_flight_is_sent_again_as_it_is() {
    run(
        r#"
        c {"id":0,"method":"initialize","params":{}}
        new
        "#,
        r#"
        cut
        new
        < g 1 0 {"id":0,"method":"initialize","params":{}}
        g 1 1 {"id":0,"result":{}}
        < c {"id":0,"result":{}}
        "#,
    );
}

#[test]
fn a_lost_gateway_has_five_seconds_and_an_idle_client_starts_none() {
    let mut player = run(OPEN, "cut");
    assert_eq!(player.tether.want(player.now), Want::Gateway);
    player.play("+60000");
    assert_eq!(player.tether.want(player.now), Want::Gateway, "idle");
    assert_eq!(player.tether.next_deadline(), None);
    let mut player = run(OPEN, "cut");
    player.play(r#"c {"id":1,"method":"tools/call"}"#);
    player.play("+4999");
    assert_eq!(player.tether.want(player.now), Want::Gateway);
    let due = player.now.after(Duration::from_millis(1));
    assert_eq!(player.tether.next_deadline(), Some(due));
    player.play("+1");
    assert_eq!(player.tether.want(player.now), Want::Start);
    let player = run("", r#"c {"id":1,"method":"tools/call"}"#);
    assert_eq!(
        player.tether.want(player.now),
        Want::Start,
        "there was none"
    );
}

#[test]
fn without_a_gateway_each_request_ends_and_nothing_else_is_answered() {
    let player = run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        cut
        c {"id":2,"method":"tools/call"}
        c {"method":"notifications/vendor"}
        refused
        < c 1 OUTCOME_UNKNOWN unknown
        < c 2 SERVER_UNREACHABLE not_executed
        back 2
        < k 1
        < g 3 1 {"method":"notifications/vendor"}
        g 2 3 {"id":1,"result":{}}
        "#,
    );
    assert!(!player.tether.is_waiting());
}

#[test]
fn a_stopping_gateway_is_left_and_what_it_gave_back_goes_to_the_next() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        c {"id":2,"method":"tools/call"}
        < g 4 1 {"id":2,"method":"tools/call"}
        g 2 4 {"id":2,"error":{"code":-31005,"message":"x","data":{"code":"SHUTTING_DOWN","outcome":"not_executed"}}}
        c {"id":3,"method":"tools/call"}
        g 3 4 {"id":1,"result":{}}
        < c {"id":1,"result":{}}
        < leave
        back 4
        < k 3
        < g 5 3 {"id":2,"method":"tools/call"}
        < g 6 3 {"id":3,"method":"tools/call"}
        g 4 6 {"id":2,"error":{"code":-31005,"message":"x","data":{"code":"SHUTTING_DOWN","outcome":"not_executed"}}}
        < c 2 SHUTTING_DOWN not_executed
        "#,
    );
}

#[test]
fn a_gateway_that_stops_for_long_keeps_nobody_waiting() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        stopping
        c {"id":2,"method":"tools/call"}
        +10000
        < c 2 SHUTTING_DOWN not_executed
        g 2 3 {"id":1,"result":{}}
        < c {"id":1,"result":{}}
        < leave
        "#,
    );
}

#[test]
fn what_the_client_took_back_is_not_sent_again() {
    run(
        OPEN,
        r#"
        c {"id":1,"method":"tools/call"}
        < g 3 1 {"id":1,"method":"tools/call"}
        cut
        c {"id":2,"method":"tools/call"}
        c {"method":"notifications/cancelled","params":{"requestId":2}}
        c {"method":"notifications/cancelled","params":{"requestId":1}}
        back 2
        < k 1
        < g 3 1 {"method":"notifications/cancelled","params":{"requestId":1}}
        "#,
    );
}

#[test]
fn a_gap_in_the_gateways_frames_is_healed_by_coming_back() {
    run(
        OPEN,
        r#"
        g 3 2 {"method":"notifications/vendor"}
        < leave
        back 2
        < k 1
        g 2 2 {"method":"notifications/vendor"}
        < c {"method":"notifications/vendor"}
        "#,
    );
}

#[test]
fn answers_to_questions_of_another_session_go_nowhere() {
    run(
        OPEN,
        r#"
        g 2 2 {"id":9,"method":"roots/list"}
        < c {"id":9,"method":"roots/list"}
        c {"id":8,"result":{}}
        c {"id":9,"result":{}}
        < g 3 2 {"id":9,"result":{}}
        g 3 3 {"id":10,"method":"roots/list"}
        < c {"id":10,"method":"roots/list"}
        ended
        c {"id":1,"method":"ping"}
        new
        < c {"method":"notifications/message","params":{"level":"warning","logger":"springline","data":{"server":"time","reason":"the gateway does not know the session any more","text":"its in-session state starts afresh"}}}
        < g 1 0 {"id":"springline-connect-1","method":"initialize","params":{}}
        g 1 1 {"id":"springline-connect-1","result":{}}
        < g 2 1 {"method":"notifications/initialized"}
        < g 3 1 {"id":1,"method":"ping"}
        c {"id":10,"result":{}}
        "#,
    );
}

#[test]
fn what_is_held_is_bounded() {
    let mut player = run(OPEN, "cut");
    for n in 0..100 {
        player.play(&format!(
            r#"c {{"method":"notifications/vendor","params":{{"n":{n}}}}}"#
        ));
    }
    for n in 0..256 {
        assert!(!player.tether.is_full());
        player.play(&format!(r#"c {{"id":{n},"method":"tools/call"}}"#));
    }
    assert!(player.tether.is_full());
    let out = player.play("back 2");
    assert_eq!(out.len(), 1 + 64 + 256);
    assert!(
        out[1].contains(r#"{"n":36}"#),
        "the oldest are dropped: {}",
        out[1]
    );
    assert!(!player.tether.is_full());
}
