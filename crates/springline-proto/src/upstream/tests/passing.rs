//! Answers that are too large to be held.

use super::opened_http;

#[test]
fn a_large_answer_passes_with_the_callers_id_wherever_it_stands() {
    opened_http(
        r#"
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 passes begin
        > begin 2 None
        x3 passes bytes {"result":
        > bytes 2 {"result":
        x3 passes id ID
        > id 2
        x3 passes bytes }
        > bytes 2 }
        x3 passes end
        > answered 2
        x3 done
    "#,
    );
}

#[test]
fn its_length_is_told_without_its_id() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 passes begin ID
        > begin 2 Some(999)
    ",
    );
}

#[test]
fn one_that_is_cut_is_never_sent_again_even_if_it_only_reads() {
    opened_http(
        "
        call 2 resources/read a
        > x3 to g1 session A: resources/read id 2
        x3 passes begin
        > begin 2 None
        x3 broken
        > failed 2 OUTCOME_UNKNOWN unknown: cut
        call 3 resources/read b
        > x4 to g1 session A: resources/read id 3
        x4 passes begin
        > begin 3 None
        x4 noise it is no JSON
        > failed 3 BAD_ANSWER unknown: it is no JSON
        x4 passes bytes x
        x4 broken
    ",
    );
}

#[test]
fn one_that_is_anothers_never_begins_or_ends_in_an_error() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        x3 passes begin 77
        x3 passes bytes x
        x3 passes end
        x3 result
        > answer 2
        call 3 tools/call b
        > x4 to g1 session A: tools/call id 3
        x4 passes begin
        > begin 3 None
        x4 passes id 77
        > failed 3 BAD_ANSWER unknown: the answer that had begun is to another request
        > abort x4
        x4 passes end
    ",
    );
}

#[test]
fn its_patience_counts_from_the_last_bytes() {
    opened_http(
        "
        call 2 tools/call a
        > x3 to g1 session A: tools/call id 2
        +3599s
        x3 passes begin
        > begin 2 None
        +3599s
        x3 passes bytes x
        > bytes 2 x
        +3599s
        x3 passes bytes x
        > bytes 2 x
        +3600s
        > x4 to g1 session A: notifications/cancelled of 2
        > failed 2 CALL_TIMEOUT unknown: -
    ",
    );
}
