use super::*;

fn parse(text: &str) -> Result<Message, ParseError> {
    Message::parse(text.to_owned())
}

#[test]
fn messages_are_told_apart_by_their_members() {
    let case = |text: &str, kind, id: Option<&str>| {
        let message = parse(text).unwrap();
        assert_eq!(message.kind(), kind, "{text}");
        assert_eq!(message.id().as_deref(), id.map(str::as_bytes), "{text}");
        assert_eq!(message.raw_id(), message.id().as_deref(), "{text}");
    };
    case(
        r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#,
        Kind::Request,
        Some("1"),
    );
    case(
        r#"{"jsonrpc":"2.0","id":"1","method":"m"}"#,
        Kind::Request,
        Some("\"1\""),
    );
    case(
        r#"{"jsonrpc":"2.0","id":-9007199254740993,"method":"m"}"#,
        Kind::Request,
        Some("-9007199254740993"),
    );
    case(
        r#"{"jsonrpc":"2.0","method":"m"}"#,
        Kind::Notification,
        None,
    );
    case(
        r#"{"jsonrpc":"2.0","id":0,"result":null}"#,
        Kind::Result,
        Some("0"),
    );
    case(
        r#"{"jsonrpc":"2.0","id":0,"error":{}}"#,
        Kind::Error,
        Some("0"),
    );
    case(
        r#"{"jsonrpc":"2.0","id":null,"error":{}}"#,
        Kind::Error,
        None,
    );
    case(r#"{"jsonrpc":"2.0","error":{}}"#, Kind::Error, None);
    case(
        r#"{"jsonrpc":"2\u002e0","method":"m"}"#,
        Kind::Notification,
        None,
    );
}

#[test]
fn a_method_is_known_in_any_spelling() {
    use crate::method::Method;
    let of = |method: &str| {
        let text = format!(r#"{{"jsonrpc":"2.0","method":{method}}}"#);
        Method::of(&parse(&text).unwrap())
    };
    assert_eq!(of(r#""tools/call""#), Method::ToolsCall);
    assert_eq!(of(r#""tools\/call""#), Method::ToolsCall);
    assert_eq!(of(r#""\u0070ing""#), Method::Ping);
    for other in [r#""""#, r#""tools/cal""#, r#""tools/calls""#, r#""\ud800""#] {
        assert_eq!(of(other), Method::Other, "{other}");
    }
    let answer = parse(r#"{"jsonrpc":"2.0","id":1,"result":1}"#).unwrap();
    assert_eq!(Method::of(&answer), Method::Other);
}

#[test]
fn what_is_no_message_is_refused_under_its_id() {
    let case = |text: &str, code, id: Option<&str>| {
        let error = parse(text).unwrap_err();
        assert_eq!(
            (error.code(), error.id.as_deref()),
            (code, id.map(str::as_bytes)),
            "{text}"
        );
    };
    case("", -32700, None);
    case("{\"id\":1,", -32700, None);
    case(&"[".repeat(600), -32700, None);
    case("[]", -32600, None);
    case("7", -32600, None);
    case(r#"{"id":1,"method":"m"}"#, -32600, Some("1"));
    case(
        r#"{"jsonrpc":"1.0","id":"a","method":"m"}"#,
        -32600,
        Some("\"a\""),
    );
    case(r#"{"jsonrpc":"2.0","id":1.0,"method":"m"}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","id":1e3,"method":"m"}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","id":{},"error":{}}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600, Some("1"));
    case(r#"{"jsonrpc":"2.0","id":1}"#, -32600, Some("1"));
    case(
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{}}"#,
        -32600,
        Some("1"),
    );
    case(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","result":1}"#,
        -32600,
        Some("1"),
    );
    case(r#"{"jsonrpc":"2.0","id":null,"result":1}"#, -32600, None);
    case(r#"{"jsonrpc":"2.0","result":1}"#, -32600, None);
    case(
        r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#,
        -32600,
        Some("1"),
    );
    case(
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"b"}"#,
        -32600,
        None,
    );
}

#[test]
fn members_are_handed_out_as_they_were_sent() {
    let text = "\u{feff} {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\\/b\",\"params\":{ \"n\": 1e400,\"_meta\":{\"progressToken\":\"t\"}}}\r\n";
    let message = parse(text).unwrap();
    assert_eq!(message.bytes(), text.trim_matches('\u{feff}').trim());
    assert_eq!(message.method().as_deref(), Some("a/b"));
    assert_eq!(
        message.params().unwrap(),
        "{ \"n\": 1e400,\"_meta\":{\"progressToken\":\"t\"}}"
    );
    assert_eq!(message.param("n").unwrap(), "1e400");
    assert_eq!(message.param("absent"), None);
    assert_eq!(message.progress_token().unwrap(), "\"t\"");
    assert_eq!((message.result(), message.error()), (None, None));
}

#[test]
fn another_id_changes_no_other_byte() {
    let request =
        r#"{ "method":"m","params":{"a":1.0,"a":-0,"id":1}, "jsonrpc":"2.0", "id" : "x\u0041" }"#;
    let changed = parse(request).unwrap().with_id(b"42").to_bytes();
    assert_eq!(changed, request.replace(r#""x\u0041""#, "42"));
    let plain = parse(r#"{"jsonrpc":"2.0","method":"m"}"#).unwrap();
    assert_eq!(
        plain.with_id(b"7").to_bytes(),
        r#"{"id":7,"jsonrpc":"2.0","method":"m"}"#
    );
}

#[test]
fn debug_output_shows_no_content() {
    let message =
        parse(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"key":"hunter2"}}"#).unwrap();
    assert!(!format!("{message:?} {:?}", Pieces::from(&message)).contains("hunter2"));
}
