use super::*;
use crate::random::Random;

fn skim(chunks: &[&[u8]]) -> Skim {
    let mut skim = Skim::new();
    for chunk in chunks {
        skim.push(chunk);
    }
    skim
}

fn check(text: &str, id: Option<&str>, method: Option<&str>) {
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    for skim in [skim(&[text.as_bytes()]), skim(&bytes)] {
        assert_eq!(skim.id().map(|id| &id[..]), id.map(str::as_bytes), "{text}");
        assert_eq!(skim.method(), method, "{text}");
        assert_eq!(skim.seen(), text.len() as u64);
        if let (Some(range), Some(id)) = (skim.id_range(), id) {
            let (start, end) = (usize::try_from(range.start), usize::try_from(range.end));
            assert_eq!(&text[start.unwrap()..end.unwrap()], id, "{text}");
        }
    }
}

#[test]
fn id_and_method_are_found_wherever_they_stand() {
    check(
        r#"{"id":1,"method":"m","params":{"x":"y"}}"#,
        Some("1"),
        Some("m"),
    );
    check(
        r#"{"result":{"id":7,"method":"n","a":["id",{"id":8}]},"id":"a\"}"}"#,
        Some(r#""a\"}""#),
        None,
    );
    check(
        "\u{feff} { \"x\" : \"id\" , \"\\u0069d\" : -12 , \"method\" : \"a\\/b\" } ",
        Some("-12"),
        Some("a/b"),
    );
    check(r#"{"a":"\\","id":5}"#, Some("5"), None);
    check(r#"{"a":true,"b":1,"c":null,"id":5}"#, Some("5"), None);
    check(r#"{"id":5"#, None, None);
    check(r#"{"id":5,"x":"unfinished"#, Some("5"), None);
}

#[test]
fn what_is_unusable_or_unclear_is_not_found() {
    check(r#"{"id":1,"id":1}"#, None, None);
    check(r#"{"id":1.5,"method":["m"]}"#, None, None);
    check(r#"{"id":null,"method":3}"#, None, None);
    check(r#"{"id":{"id":3}}"#, None, None);
    check("{\"id\":\"a\tb\"}", None, None);
    check(r#"[{"id":1}]"#, None, None);
    check(r#"rubbish {"id":1}"#, None, None);
    check(r#"{"x":1} {"id":1}"#, None, None);
    let long = format!(
        "{{\"id\":\"{}\",\"method\":\"{}\"}}",
        "x".repeat(2000),
        "y".repeat(2000)
    );
    check(&long, None, None);
}

#[test]
fn it_agrees_with_the_scan_however_the_message_is_cut() {
    let mut random = Random::new(11);
    let members = [
        r#""id":17"#,
        r#""id":"q\\\"q""#,
        r#""method":"a\u00e9""#,
        r#""x":{"id":1,"y":[{"method":"z"}]}"#,
        r#""params" : [ 1, "}", "\\" ]"#,
        "\"result\":\"{\\\"id\\\":3}\"",
        "\"\": -1.5e3",
        "\"é\":\"é\"",
    ];
    for _ in 0..20_000 {
        let picked: Vec<&str> = (0..random.below(6))
            .map(|_| random.pick(&members))
            .collect();
        let text = format!("{{{}}}", picked.join(", "));
        let Ok(envelope) = crate::json::scan(text.as_bytes()) else {
            continue;
        };
        let chunks = random.chunks(text.as_bytes(), 9);
        let skim = skim(&chunks);
        let expected = envelope.id.map(|span| span.of(text.as_bytes()));
        assert_eq!(skim.id().map(|id| &id[..]), expected, "{text}");
        let method = envelope
            .method
            .and_then(|span| string(span.of(text.as_bytes())));
        assert_eq!(skim.method(), method.as_deref(), "{text}");
    }
}

#[test]
fn a_broken_answer_still_says_what_it_answers() {
    for (bytes, id) in [
        (
            &b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"t\":\"\xff\xfe\"}}"[..],
            Some("7"),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"result\":\"\xff\",\"id\":\"x\"}",
            Some("\"x\""),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"id\":9,\"t\":\"cut",
            Some("7"),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{\"code\":NaN}}",
            Some("7"),
        ),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\",\"result\":1",
            None,
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":\"\xff\"}", None),
        (b"{\"id\":7,\"result\":\"\xff\"}", None),
        (b"{\"jsonrpc\":\"2.0\",\"result\":{\"id\":9", None),
        (b"started \xff", None),
    ] {
        let found = Skim::answer_id(bytes);
        assert_eq!(
            found.as_deref(),
            id.map(str::as_bytes),
            "{}",
            bytes.escape_ascii()
        );
    }
}
