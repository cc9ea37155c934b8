//! Answers that are too large to be held, and who reads them.

use super::script::{one, run_after};
use crate::session::Downstream;

const OPEN: &str = r#"
    p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
    time started 1 {"protocolVersion":"2025-11-25"}
    p2 {"method":"notifications/initialized"}
    p3 {"id":"c","method":"tools/call"}
"#;

#[test]
fn a_large_json_answer_passes_as_it_comes_and_is_never_a_stream() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        time passing 2 begin 100
        < 3 open 103
        +500
        time passing 2 bytes {"result":1,"id":
        < 3 bytes {"result":1,"id":
        time passing 2 id
        < 3 bytes "c"
        time passing 2 end
        < 3 end
        "#,
    );
}

#[test]
fn a_large_event_gets_its_cursor_behind_its_data_and_nothing_between() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        +500
        < 3 begin
        < 3 event #1 retry 1000
        time passing 2 begin
        < 3 open event
        time notify 2 {"method":"notifications/message"}
        time passing 2 id
        < 3 bytes "c"
        time passing 2 end
        < 3 close #2
        < 3 end
        g1 #2
        < g1 begin
        < g1 end
        g2 #1
        < g2 begin
        < g2 event "c" RESULT_LOST executed
        < g2 end
        "#,
    );
}

#[test]
fn what_breaks_in_the_midst_is_cut_and_the_error_comes_on_resume() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        +500
        < 3 begin
        < 3 event #1 retry 1000
        time passing 2 begin
        < 3 open event
        time failed 2
        < 3 cut
        g1 #1
        < g1 begin
        < g1 event #2 "c" SERVER_START_FAILED not_executed
        < g1 end
        p4 {"id":4,"method":"tools/call"}
        < time call 3 {"id":4,"method":"tools/call"}
        time passing 3 begin
        < 4 open
        time failed 3
        < 4 cut
        "#,
    );
}

#[test]
fn whoever_leaves_in_the_midst_hears_later_that_it_is_lost() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        +500
        < 3 begin
        < 3 event #1 retry 1000
        time passing 2 begin
        < 3 open event
        x3
        time passing 2 bytes x
        g1 #1
        < g1 begin
        time passing 2 bytes x
        time passing 2 end
        < g1 event #2 "c" RESULT_LOST executed
        < g1 end
        "#,
    );
}

#[test]
fn whoever_comes_back_in_the_midst_cuts_the_connection_before() {
    run_after(
        one(Downstream::Http),
        OPEN,
        r#"
        +500
        < 3 begin
        < 3 event #1 retry 1000
        time passing 2 begin
        < 3 open event
        g1 #1
        < g1 begin
        < 3 cut
        time passing 2 id
        p4 {"method":"notifications/cancelled","params":{"requestId":"c"}}
        < g1 end
        < time cancel 2 {"method":"notifications/cancelled","params":{"requestId":"c"}}
        < 4 202
        "#,
    );
}
