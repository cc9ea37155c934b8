//! Notifications of servers.

use super::script::{one, run_after};
use crate::session::Downstream;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
    time started 1 {"protocolVersion":"2025-06-18","capabilities":{"logging":{},"tools":{"listChanged":true},"prompts":{}}}
    p2 {"method":"notifications/initialized"}
    g1
"#;

#[test]
fn one_call_in_flight_takes_what_names_no_call() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time notify - {"method":"notifications/a"}
        < 3 begin
        < 3 event #1 {"method":"notifications/a"}
        p4 {"id":4,"method":"tools/call"}
        < time call 3 {"id":4,"method":"tools/call"}
        time notify - {"method":"notifications/b"}
        < g1 event #2 {"method":"notifications/b"}
        "#,
    );
}

#[test]
fn nothing_comes_on_the_stream_of_a_call_after_its_answer() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"tools/call"}
        < time call 2 {"id":3,"method":"tools/call"}
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        time notify 2 {"method":"notifications/progress"}
        < emit Dropped { reason: "progress outside any call" }
        time notify 2 {"method":"notifications/message"}
        < g1 event #1 {"method":"notifications/message"}
        "#,
    );
}

#[test]
fn log_messages_below_the_level_that_was_set_are_left_out() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time notify - {"method":"notifications/message","params":{"level":"debug"}}
        < g1 event #1 {"method":"notifications/message","params":{"level":"debug"}}
        p3 {"id":3,"method":"logging/setLevel","params":{"level":"error"}}
        < time call 2 {"id":3,"method":"logging/setLevel","params":{"level":"error"}}
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        time notify - {"method":"notifications/message","params":{"level":"warning"}}
        time notify - {"method":"notifications/message","params":{"level":"error"}}
        < g1 event #2 {"method":"notifications/message","params":{"level":"error"}}
        time lost died
        "#,
    );
}

#[test]
fn a_level_that_the_server_refused_filters_nothing() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        p3 {"id":3,"method":"logging/setLevel","params":{"level":"error"}}
        < time call 2 {"id":3,"method":"logging/setLevel","params":{"level":"error"}}
        time answer 2 {"error":{"code":-32602,"message":"no"}}
        < 3 json {"id":3,"error":{"code":-32602,"message":"no"}}
        time notify - {"method":"notifications/message","params":{"level":"debug"}}
        < g1 event #1 {"method":"notifications/message","params":{"level":"debug"}}
        "#,
    );
}

#[test]
fn updates_come_to_subscribers_alone() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        p3 {"id":3,"method":"resources/subscribe","params":{"uri":"a:x"}}
        < time call 2 {"id":3,"method":"resources/subscribe","params":{"uri":"a:x"}}
        time answer 2 {"result":{}}
        < 3 json {"id":3,"result":{}}
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        < g1 event #1 {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:x/sub"}}
        < g1 event #2 {"method":"notifications/resources/updated","params":{"uri":"a:x/sub"}}
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:y"}}
        p4 {"id":4,"method":"resources/subscribe","params":{"uri":"a:x"}}
        < time call 3 {"id":4,"method":"resources/subscribe","params":{"uri":"a:x"}}
        time answer 3 {"error":{"code":-5,"message":"twice"}}
        < 4 json {"id":4,"error":{"code":-5,"message":"twice"}}
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        < g1 event #3 {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        p5 {"id":5,"method":"resources/unsubscribe","params":{"uri":"a:x"}}
        < time call 4 {"id":5,"method":"resources/unsubscribe","params":{"uri":"a:x"}}
        time answer 4 {"result":{}}
        < 5 json {"id":5,"result":{}}
        time notify - {"method":"notifications/resources/updated","params":{"uri":"a:x"}}
        "#,
    );
}

#[test]
fn a_loss_of_state_is_told_once_where_logging_was_announced() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time lost the process "x" ended
        < g1 event #1 {"method":"notifications/message","params":{"level":"warning","logger":"springline","data":{"server":"time","reason":"the process \"x\" ended","text":"its in-session state starts afresh"}}}
        "#,
    );
    run_after(
        one(Downstream::Pipe),
        r#"
        g1
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        time started 1 {"protocolVersion":"2025-06-18","capabilities":{}}
        c {"method":"notifications/initialized"}
        "#,
        r#"
        time lost reason
        "#,
    );
}

#[test]
fn a_changed_list_is_told_where_that_was_announced() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time changed Tools
        < g1 event #1 {"method":"notifications/tools/list_changed"}
        time changed Prompts
        time listed Tools {"tools":[]}
        < remember time Tools 1
        "#,
    );
}

#[test]
fn servers_wait_with_what_is_outside_calls_until_the_client_is_ready() {
    run_after(
        one(Downstream::Http),
        r#"
        p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}
        time started 1 {"protocolVersion":"2025-06-18"}
        "#,
        r#"
        g1
        < time attached true
        < g1 begin
        time notify - {"method":"notifications/a"}
        p2 {"id":2,"method":"tools/list"}
        < time call 2 {"id":2,"method":"tools/list"}
        time notify 2 {"method":"notifications/b"}
        < 2 begin
        < 2 event #1 {"method":"notifications/b"}
        p3 {"method":"notifications/initialized"}
        < g1 event #2 {"method":"notifications/a"}
        < 3 202
        "#,
    );
}
