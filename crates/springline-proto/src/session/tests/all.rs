//! The endpoint of all servers.

use super::script::{KEY, Player, one, run, run_after};
use crate::method::ListKind;
use crate::session::{Downstream, Endpoint, EntryView, Remembered, SessionConfig};

/// `a` was never seen, `b` is remembered with one tool, `c` cannot be used.
fn all(downstream: Downstream) -> SessionConfig {
    let initialize = br#"{"capabilities":{"tools":{},"logging":{}},"instructions":"Be brief."}"#;
    let tools = br#"{"tools":[{"name":"old"}]}"#;
    let remembered = Remembered {
        initialize: Some(initialize[..].into()),
        lists: [(ListKind::Tools, vec![tools[..].into()])].into(),
    };
    let entry = |name: &str| EntryView {
        name: name.into(),
        unavailable: None,
        remembered: None,
    };
    let entries = vec![
        entry("a"),
        EntryView {
            remembered: Some(remembered.into()),
            ..entry("b")
        },
        EntryView {
            unavailable: Some("command not found".into()),
            ..entry("c")
        },
    ];
    SessionConfig {
        key: KEY,
        endpoint: Endpoint::All,
        entries,
        ..one(downstream)
    }
}

/// Both servers run; `a` has everything. Numbers up to 3 are used.
const OPEN: &str = r#"
    g1
    c {"id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}}}}
    c {"method":"notifications/initialized"}
    a started 2 {"capabilities":{"tools":{},"prompts":{},"resources":{},"logging":{}}}
    b started 3 {"capabilities":{"tools":{},"logging":{}}}
"#;

#[test]
fn initialize_is_answered_at_once_with_the_union_and_its_client_has_servers_when_it_goes_on() {
    run(
        all(Downstream::Http),
        r#"
        p1 {"id":"i","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}
        < 1 json {"id":"i","result":{"protocolVersion":"2025-06-18","capabilities":{"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true},"tools":{"listChanged":true}},"serverInfo":{"name":"springline","version":"0.1.0"},"instructions":"[b] Be brief."}}
        < emit Opened
        p2 {"id":1,"method":"ping"}
        < 2 json {"id":1,"result":{}}
        p3 {"method":"notifications/initialized"}
        < a start 2 {"protocolVersion":"2025-06-18","capabilities":{}}
        < a attached false
        < b start 3 {"protocolVersion":"2025-06-18","capabilities":{}}
        < b attached false
        < 3 202
        p4 {"method":"notifications/initialized"}
        < 4 202
        "#,
    );
    run(
        SessionConfig {
            entries: Vec::new(),
            ..all(Downstream::Http)
        },
        r#"
        p1 {"id":1,"method":"initialize","params":{"protocolVersion":"2099-01-01"}}
        < 1 json {"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"springline","version":"0.1.0"}}}
        < emit Opened
        "#,
    );
}

#[test]
fn a_client_that_says_initialize_alone_starts_nothing_and_its_first_request_does() {
    let initialize = r#"
        p1 {"id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25"}}
    "#;
    run_after(
        all(Downstream::Http),
        initialize,
        r#"
        g1
        < g1 begin
        < g1 event #1 retry 1000
        entries a b d
        +600000
        z1
        close
        < emit Closed
        < closed
        "#,
    );
    run_after(
        all(Downstream::Http),
        initialize,
        r#"
        p2 {"id":2,"method":"tools/call","params":{"name":"b__old"}}
        < a start 2 {"protocolVersion":"2025-11-25"}
        < a attached false
        < b start 3 {"protocolVersion":"2025-11-25"}
        < b attached false
        < b call 4 {"id":2,"method":"tools/call","params":{"name":"old"}}
        "#,
    );
}

#[test]
fn a_client_that_starts_over_keeps_its_servers_until_it_goes_on() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
        < g1 event {"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true},"tools":{"listChanged":true}},"serverInfo":{"name":"springline","version":"0.1.0"}}}
        < emit Opened
        entries a b d
        c {"method":"notifications/initialized"}
        < a start 5 {"protocolVersion":"2025-11-25"}
        < a attached true
        < b start 6 {"protocolVersion":"2025-11-25"}
        < b attached true
        < d start 7 {"protocolVersion":"2025-11-25"}
        < d attached true
        "#,
    );
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
        < g1 event {"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"logging":{},"prompts":{"listChanged":true},"resources":{"listChanged":true},"tools":{"listChanged":true}},"serverInfo":{"name":"springline","version":"0.1.0"}}}
        < emit Opened
        close
        < a close SESSION_ENDED true
        < b close SESSION_ENDED true
        < emit Closed
        < closed
        "#,
    );
}

#[test]
fn entries_that_come_while_no_client_is_attached_are_started_with_its_next_word() {
    run_after(
        all(Downstream::Http),
        r#"
        p1 {"id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25"}}
        p2 {"method":"notifications/initialized"}
        "#,
        r#"
        entries a b d
        entries a b d e
        p3 {"id":2,"method":"tools/call","params":{"name":"a__x"}}
        < d start 4 {"protocolVersion":"2025-11-25"}
        < d attached false
        < e start 5 {"protocolVersion":"2025-11-25"}
        < e attached false
        < a call 6 {"id":2,"method":"tools/call","params":{"name":"x"}}
        g1
        < a attached true
        < b attached true
        < d attached true
        < e attached true
        < g1 begin
        < g1 event #1 retry 1000
        entries a b d e f
        < f start 7 {"protocolVersion":"2025-11-25"}
        < f attached true
        "#,
    );
}

#[test]
fn a_list_waits_for_servers_that_were_never_listed_and_reads_all_pages() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        a answer 5 {"result":{"tools":[{"name":"x","v":1.0}],"nextCursor":"n"}}
        < a call 7 {"id":7,"method":"tools/list","params":{"cursor":"n"}}
        b answer 6 {"result":{"tools":[{"name":"old"}]}}
        < remember b Tools 1
        a answer 7 {"result":{"tools":[{"name":"y"}]}}
        < remember a Tools 2
        < g1 event {"id":1,"result":{"tools":[{"name":"a__x","v":1.0},{"name":"a__y"},{"name":"b__old"}]}}
        +300
        c {"id":2,"method":"tools/list"}
        < g1 event {"id":2,"result":{"tools":[{"name":"a__x","v":1.0},{"name":"a__y"},{"name":"b__old"}]}}
        "#,
    );
}

#[test]
fn a_repeated_cursor_ends_the_walk() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"prompts/list"}
        < a call 5 {"id":5,"method":"prompts/list","params":{}}
        a answer 5 {"result":{"prompts":[{"name":"p"}],"nextCursor":""}}
        < a call 6 {"id":6,"method":"prompts/list","params":{"cursor":""}}
        a answer 6 {"result":{"prompts":[{"name":"q"}],"nextCursor":""}}
        < remember a Prompts 2
        < g1 event {"id":1,"result":{"prompts":[{"name":"a__p"},{"name":"a__q"}]}}
        "#,
    );
}

#[test]
fn a_list_waits_no_longer_than_its_bound_and_late_servers_change_it_once() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        +10000
        < g1 event {"id":1,"result":{"tools":[{"name":"b__old"}]}}
        a answer 5 {"result":{"tools":[{"name":"x"}]}}
        < remember a Tools 1
        b answer 6 {"result":{"tools":[{"name":"new"}]}}
        < remember b Tools 1
        +199
        +1
        < g1 event {"method":"notifications/tools/list_changed"}
        c {"id":2,"method":"tools/list"}
        < g1 event {"id":2,"result":{"tools":[{"name":"a__x"},{"name":"b__new"}]}}
        "#,
    );
}

#[test]
fn a_server_that_fails_contributes_what_is_known_of_it() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        b failed 6
        a answer 5 {"error":{"code":-32603,"message":"broken"}}
        < g1 event {"id":1,"result":{"tools":[{"name":"b__old"}]}}
        c {"id":2,"method":"tools/list"}
        < a call 8 {"id":8,"method":"tools/list","params":{}}
        < b call 9 {"id":9,"method":"tools/list","params":{}}
        < g1 event {"id":2,"result":{"tools":[{"name":"b__old"}]}}
        c {"id":3,"method":"resources/list"}
        < a call 11 {"id":11,"method":"resources/list","params":{}}
        a answer 11 {"error":{"code":-32601,"message":"no such method"}}
        < remember a Resources 0
        < g1 event {"id":3,"result":{"resources":[]}}
        "#,
    );
}

#[test]
fn a_list_that_changed_is_read_before_the_client_hears_of_it() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        a answer 5 {"result":{"tools":[{"name":"x"}]}}
        < remember a Tools 1
        < g1 event {"id":1,"result":{"tools":[{"name":"a__x"},{"name":"b__old"}]}}
        b answer 6 {"result":{"tools":[{"name":"old"}]}}
        < remember b Tools 1
        a notify - {"method":"notifications/tools/list_changed"}
        < a call 7 {"id":7,"method":"tools/list","params":{}}
        a notify - {"method":"notifications/tools/list_changed"}
        c {"id":2,"method":"tools/list"}
        a answer 7 {"result":{"tools":[{"name":"z"}]}}
        < remember a Tools 1
        < a call 9 {"id":9,"method":"tools/list","params":{}}
        < g1 event {"id":2,"result":{"tools":[{"name":"a__z"},{"name":"b__old"}]}}
        a answer 9 {"result":{"tools":[{"name":"z"}]}}
        < remember a Tools 1
        +200
        < g1 event {"method":"notifications/tools/list_changed"}
        b notify - {"method":"notifications/tools/list_changed"}
        < b call 10 {"id":10,"method":"tools/list","params":{}}
        b answer 10 {"result":{"tools":[{"name":"old"}],"other":1}}
        < remember b Tools 1
        +200
        "#,
    );
}

#[test]
fn tools_prompts_and_resources_go_to_their_server_under_its_own_names() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/call","params":{"arguments":{"n":1.0},"name":"a__x"}}
        < a call 4 {"id":1,"method":"tools/call","params":{"arguments":{"n":1.0},"name":"x"}}
        a answer 4 {"result":{"content":[{"type":"text","text":"file:///x"},{"type":"resource_link","uri":"file:///x","name":"x"},{"type":"resource","resource":{"uri":"file:///y"}}],"structuredContent":{"uri":"file:///x"}}}
        < g1 event {"id":1,"result":{"content":[{"type":"text","text":"file:///x"},{"type":"resource_link","uri":"springline://a/file:///x","name":"x"},{"type":"resource","resource":{"uri":"springline://a/file:///y"}}],"structuredContent":{"uri":"file:///x"}}}
        c {"id":2,"method":"prompts/get","params":{"name":"a__p"}}
        < a call 5 {"id":2,"method":"prompts/get","params":{"name":"p"}}
        a answer 5 {"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"u:1"}}}]}}
        < g1 event {"id":2,"result":{"messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"springline://a/u:1"}}}]}}
        c {"id":3,"method":"resources/read","params":{"uri":"springline://a/file:///x?a=1"}}
        < a call 6 {"id":3,"method":"resources/read","params":{"uri":"file:///x?a=1"}}
        a answer 6 {"result":{"contents":[{"uri":"file:///x?a=1","text":"t"}]}}
        < g1 event {"id":3,"result":{"contents":[{"uri":"springline://a/file:///x?a=1","text":"t"}]}}
        c {"id":4,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"springline://a/t:{x}"},"argument":{}}}
        < a call 7 {"id":4,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"t:{x}"},"argument":{}}}
        c {"id":5,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"a__p"},"argument":{}}}
        < a call 8 {"id":5,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"p"},"argument":{}}}
        a failed 7
        < g1 event 4 SERVER_START_FAILED not_executed
        "#,
    );
}

#[test]
fn what_no_server_has_is_a_protocol_error() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/call","params":{"name":"x"}}
        < g1 event {"id":1,"error":{"code":-32602,"message":"Unknown tool: x"}}
        c {"id":2,"method":"tools/call","params":{"name":"d__x"}}
        < g1 event {"id":2,"error":{"code":-32602,"message":"Unknown tool: d__x"}}
        c {"id":3,"method":"tools/call"}
        < g1 event {"id":3,"error":{"code":-32602,"message":"params.name is missing"}}
        c {"id":4,"method":"prompts/get","params":{"name":"p"}}
        < g1 event {"id":4,"error":{"code":-32602,"message":"Unknown prompt: p"}}
        c {"id":5,"method":"resources/read","params":{"uri":"file:///x"}}
        < g1 event {"id":5,"error":{"code":-32002,"message":"Resource not found","data":{"uri":"file:///x"}}}
        c {"id":6,"method":"completion/complete","params":{}}
        < g1 event {"id":6,"error":{"code":-32602,"message":"params.ref names no prompt and no resource"}}
        c {"id":7,"method":"vendor/odd"}
        < g1 event {"id":7,"error":{"code":-32601,"message":"Method not found"}}
        c {"id":8,"method":"tools/list","params":{"cursor":"forged"}}
        < g1 event {"id":8,"error":{"code":-32602,"message":"Invalid cursor"}}
        c {"id":9,"method":"tools/call","params":{"name":"c__x"}}
        < g1 event 9 SERVER_UNAVAILABLE not_executed
        "#,
    );
}

#[test]
fn a_cut_name_is_found_in_the_list() {
    let long = "x".repeat(80);
    let name = crate::names::tool_name("a", &long);
    let mut player = Player::new(all(Downstream::Pipe));
    for line in OPEN.lines().map(str::trim).filter(|line| !line.is_empty()) {
        player.play(line);
    }
    player.play(r#"c {"id":1,"method":"tools/list"}"#);
    player.play(&format!(
        r#"a answer 5 {{"result":{{"tools":[{{"name":"{long}"}}]}}}}"#
    ));
    let call = format!(r#"{{"id":2,"method":"tools/call","params":{{"name":"{name}"}}}}"#);
    let sent = player.play(&format!("c {call}"));
    assert_eq!(sent, [format!("a call 7 {}", call.replace(&name, &long))]);
}

#[test]
fn subscriptions_and_updates_carry_the_uri_that_the_client_knows() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"resources/subscribe","params":{"uri":"springline://a/u:1"}}
        < a call 4 {"id":1,"method":"resources/subscribe","params":{"uri":"u:1"}}
        a answer 4 {"result":{}}
        < g1 event {"id":1,"result":{}}
        a notify - {"method":"notifications/resources/updated","params":{"uri":"u:1"}}
        < g1 event {"method":"notifications/resources/updated","params":{"uri":"springline://a/u:1"}}
        b notify - {"method":"notifications/resources/updated","params":{"uri":"u:1"}}
        a notify - {"method":"notifications/resources/updated","params":{"uri":"u:2"}}
        c {"id":2,"method":"resources/unsubscribe","params":{"uri":"springline://a/u:1"}}
        < a call 5 {"id":2,"method":"resources/unsubscribe","params":{"uri":"u:1"}}
        a answer 5 {"result":{}}
        < g1 event {"id":2,"result":{}}
        a notify - {"method":"notifications/resources/updated","params":{"uri":"u:1"}}
        "#,
    );
}

#[test]
fn the_log_level_goes_to_all_that_log_and_to_those_that_come_later() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"logging/setLevel","params":{"level":"error"}}
        < a call 5 {"id":5,"method":"logging/setLevel","params":{"level":"error"}}
        < b call 6 {"id":6,"method":"logging/setLevel","params":{"level":"error"}}
        < g1 event {"id":1,"result":{}}
        c {"id":2,"method":"logging/setLevel","params":{"level":"loud"}}
        < g1 event {"id":2,"error":{"code":-32602,"message":"Invalid log level"}}
        a answer 5 {"error":{"code":-1,"message":"no"}}
        b notify - {"method":"notifications/message","params":{"level":"info"}}
        "#,
    );
    run_after(
        all(Downstream::Pipe),
        r#"
        g1
        c {"id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}
        c {"method":"notifications/initialized"}
        c {"id":1,"method":"logging/setLevel","params":{"level":"error"}}
        "#,
        r#"
        a started 2 {"capabilities":{"logging":{}}}
        < remember a initialize
        < a call 6 {"id":6,"method":"logging/setLevel","params":{"level":"error"}}
        "#,
    );
}

#[test]
fn questions_name_the_server_that_asks() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        a ask - 7 {"id":"q","method":"elicitation/create","params":{"message":"who?","requestedSchema":{}}}
        < g1 event {"id":1,"method":"elicitation/create","params":{"message":"[a] who?","requestedSchema":{}}}
        b ask - 7 {"id":"q","method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}],"_meta":{"progressToken":"t"}}}
        < g1 event {"id":2,"method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"[b] hi"}}],"_meta":{"progressToken":"t"}}}
        c {"method":"notifications/progress","params":{"progressToken":"t","progress":1}}
        < b notify {"method":"notifications/progress","params":{"progressToken":"t","progress":1}}
        c {"method":"notifications/progress","params":{"progressToken":"u","progress":1}}
        c {"id":2,"result":{}}
        < b reply 7 "q" {"id":2,"result":{}}
        c {"id":1,"result":{}}
        < a reply 7 "q" {"id":1,"result":{}}
        c {"method":"notifications/roots/list_changed"}
        < a notify {"method":"notifications/roots/list_changed"}
        < b notify {"method":"notifications/roots/list_changed"}
        "#,
    );
}

#[test]
fn entries_come_and_go_while_the_session_lives() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        a answer 5 {"result":{"tools":[{"name":"x"}]}}
        < remember a Tools 1
        < g1 event {"id":1,"result":{"tools":[{"name":"a__x"},{"name":"b__old"}]}}
        b answer 6 {"result":{"tools":[{"name":"old"}]}}
        < remember b Tools 1
        entries a d
        < d start 7 {"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}}}
        < d attached true
        +200
        < g1 event {"method":"notifications/tools/list_changed"}
        c {"id":2,"method":"tools/list"}
        < d call 9 {"id":9,"method":"tools/list","params":{}}
        d started 7 {"capabilities":{"tools":{}}}
        < remember d initialize
        d answer 9 {"result":{"tools":[{"name":"y"}]}}
        < remember d Tools 1
        < g1 event {"id":2,"result":{"tools":[{"name":"a__x"},{"name":"d__y"}]}}
        c {"id":3,"method":"tools/call","params":{"name":"b__old"}}
        < g1 event 3 SERVER_REMOVED not_executed
        close
        < a close SESSION_ENDED true
        < d close SESSION_ENDED true
        < b close SESSION_ENDED true
        < emit Closed
        < closed
        "#,
    );
}

#[test]
fn cancelling_a_list_that_waits_leaves_nothing_behind() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        c {"method":"notifications/cancelled","params":{"requestId":1}}
        a answer 5 {"result":{"tools":[]}}
        < remember a Tools 1
        c {"id":1,"method":"ping"}
        < g1 event {"id":1,"result":{}}
        "#,
    );
}

#[test]
fn a_server_that_does_not_answer_holds_up_one_list_and_no_other() {
    run_after(
        all(Downstream::Pipe),
        OPEN,
        r#"
        c {"id":1,"method":"tools/list"}
        < a call 5 {"id":5,"method":"tools/list","params":{}}
        < b call 6 {"id":6,"method":"tools/list","params":{}}
        b answer 6 {"result":{"tools":[{"name":"old"}]}}
        < remember b Tools 1
        +10000
        < g1 event {"id":1,"result":{"tools":[{"name":"b__old"}]}}
        c {"id":2,"method":"tools/list"}
        < g1 event {"id":2,"result":{"tools":[{"name":"b__old"}]}}
        a answer 5 {"result":{"tools":[{"name":"x"}]}}
        < remember a Tools 1
        +200
        < g1 event {"method":"notifications/tools/list_changed"}
        "#,
    );
}
