use std::collections::BTreeMap;

use serde_json::Value;

use super::plain::STRETCH;
use super::*;
use crate::random::Random;

const CALL: &str = r#"{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"read","arguments":{"path":"/a","n":9007199254740993,"f":1.0},"_meta":{"progressToken":"p-1","other":null}}}"#;

fn found(text: &str, span: Option<Span>) -> Option<&str> {
    span.map(|span| std::str::from_utf8(span.of(text.as_bytes())).unwrap())
}

/// What the standard says, by an independent parser that neither builds values nor limits depth.
fn is_json(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    std::str::from_utf8(bytes).is_ok()
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

#[test]
fn the_envelope_of_a_call_is_found() {
    let envelope = scan(CALL.as_bytes()).unwrap();
    assert_eq!(found(CALL, envelope.jsonrpc), Some(r#""2.0""#));
    assert_eq!(found(CALL, envelope.id), Some("17"));
    assert_eq!(found(CALL, envelope.method), Some(r#""tools/call""#));
    assert!(
        found(CALL, envelope.params)
            .unwrap()
            .starts_with(r#"{"name""#)
    );
    assert_eq!(found(CALL, envelope.progress_token), Some(r#""p-1""#));
    assert_eq!((envelope.result, envelope.error), (None, None));
}

#[test]
fn members_are_found_in_any_order_and_around_any_white_space() {
    let text = " \t{ \"params\" : {\"_meta\" :\n{ \"progressToken\" : -7 } } ,\r\n\"method\":\"m\" , \"id\" : \"x\" } \n";
    let envelope = scan(text.as_bytes()).unwrap();
    assert_eq!(found(text, envelope.id), Some("\"x\""));
    assert_eq!(found(text, envelope.progress_token), Some("-7"));
}

#[test]
fn an_escaped_name_is_the_member_it_spells() {
    let text =
        r#"{"\u0069d":3,"m\u0065thod":"m","params":{"\u005fmeta":{"progress\u0054oken":5}}}"#;
    let envelope = scan(text.as_bytes()).unwrap();
    assert_eq!(found(text, envelope.id), Some("3"));
    assert_eq!(found(text, envelope.method), Some("\"m\""));
    assert_eq!(found(text, envelope.progress_token), Some("5"));
}

#[test]
fn members_of_nested_objects_are_not_the_envelope() {
    let text = r#"{"x":{"id":1,"method":"m"},"result":{"id":2,"_meta":{"progressToken":3}}}"#;
    let envelope = scan(text.as_bytes()).unwrap();
    assert_eq!(
        (envelope.id, envelope.method, envelope.progress_token),
        (None, None, None)
    );
}

#[test]
fn a_progress_token_counts_only_beside_a_method() {
    let text = r#"{"id":1,"params":{"_meta":{"progressToken":3}}}"#;
    assert_eq!(scan(text.as_bytes()).unwrap().progress_token, None);
}

#[test]
fn a_routing_member_that_stands_twice_is_refused_with_the_id_where_it_is_clear() {
    let case = |text: &str, member, id: Option<&str>| match scan(text.as_bytes()) {
        Err(ScanError::Duplicate {
            member: named,
            id: span,
        }) => {
            assert_eq!((named, found(text, span)), (member, id), "{text}");
        }
        other => panic!("{text}: {other:?}"),
    };
    case(r#"{"id":1,"method":"a","method":"b"}"#, "method", Some("1"));
    case(
        r#"{"method":"a","m\u0065thod":"b","id":1}"#,
        "method",
        Some("1"),
    );
    case(r#"{"id":1,"method":"a","id":1}"#, "id", None);
    case(r#"{"result":1,"result":1}"#, "result", None);
    let twice = r#"{"id":1,"method":"a","params":{"_meta":{"progressToken":1,"progressToken":2}}}"#;
    case(twice, "progressToken", Some("1"));
    let metas = r#"{"method":"a","params":{"_meta":{"progressToken":1},"_meta":{}}}"#;
    case(metas, "progressToken", None);
}

#[test]
fn other_members_may_stand_twice() {
    let text = r#"{"id":1,"x":1,"x":2,"method":"m","params":{"a":1,"a":2,"_meta":{},"_meta":{"b":1,"b":2}}}"#;
    assert!(scan(text.as_bytes()).is_ok());
}

#[test]
fn what_is_not_one_object_is_named() {
    assert_eq!(scan(b"[]"), Err(ScanError::Batch { empty: true }));
    assert_eq!(scan(b" [ \n ] "), Err(ScanError::Batch { empty: true }));
    assert_eq!(scan(b"[{}]"), Err(ScanError::Batch { empty: false }));
    assert_eq!(scan(b"[{}"), Err(ScanError::Syntax { offset: 3 }));
    for scalar in ["1", "null", "\"x\"", "true"] {
        assert_eq!(
            scan(scalar.as_bytes()),
            Err(ScanError::NotObject),
            "{scalar}"
        );
    }
    assert_eq!(scan(b""), Err(ScanError::Syntax { offset: 0 }));
    assert_eq!(scan(b"{} {}"), Err(ScanError::Syntax { offset: 3 }));
    assert_eq!(
        scan(b"{\"a\":\"\xFF\"}"),
        Err(ScanError::Syntax { offset: 6 })
    );
}

#[test]
fn nesting_is_bounded_and_needs_no_stack() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(validate(nested(DEPTH_MAX).as_bytes()), Ok(()));
    assert_eq!(
        validate(nested(DEPTH_MAX + 1).as_bytes()),
        Err(ScanError::TooDeep)
    );
    assert_eq!(
        validate("[".repeat(5_000_000).as_bytes()),
        Err(ScanError::TooDeep)
    );
    for (before, after, used) in [
        ("{\"x\":", "}", 1),
        ("{\"params\":{\"x\":", "}}", 2),
        ("{\"params\":{\"_meta\":{\"x\":", "}}}", 3),
    ] {
        let around = |levels| format!("{before}{}{after}", nested(levels));
        assert!(scan(around(DEPTH_MAX - used).as_bytes()).is_ok());
        let deeper = around(DEPTH_MAX - used + 1);
        assert_eq!(scan(deeper.as_bytes()), Err(ScanError::TooDeep));
    }
}

#[test]
fn mixed_nesting_is_matched_at_every_depth() {
    let mut random = Random::new(5);
    for _ in 0..200 {
        let kinds: Vec<bool> = (0..=random.below(200))
            .map(|_| random.below(2) == 0)
            .collect();
        let mut text = String::new();
        for object in &kinds {
            text.push_str(if *object { "{\"k\":" } else { "[0," });
        }
        text.push('1');
        let open = text.clone();
        for object in kinds.iter().rev() {
            text.push(if *object { '}' } else { ']' });
        }
        assert_eq!(validate(text.as_bytes()), Ok(()), "{text}");
        let wrong = open.len() + random.below(kinds.len());
        let mut bytes = text.clone().into_bytes();
        bytes[wrong] ^= b'}' ^ b']';
        assert_eq!(validate(&bytes), Err(ScanError::Syntax { offset: wrong }));
    }
}

#[test]
fn the_grammar_is_that_of_the_standard() {
    let good = [
        "0",
        "-0",
        "1e400",
        "-1.5E+7",
        "123456789012345678901234567890",
        "1.0",
        r#""\ud800""#,
        r#""\"\\\/\b\f\n\r\t\u00e9""#,
        "\"é\u{7f}\u{2028}\"",
        "[1,2]",
        "{\"\":{}}",
        "{\"a\":1,\"a\":2}",
    ];
    let bad = [
        "01",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e+",
        "-",
        "--1",
        "0x1",
        "NaN",
        "tru",
        "nulll",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u12\"",
        "\"\t\"",
        "\"\0\"",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "{,}",
        "'a'",
        "[1}",
        "{\"a\":1]",
        "\u{a0}1",
        "/**/1",
    ];
    for text in good {
        assert!(is_json(text.as_bytes()), "{text}");
        assert_eq!(validate(text.as_bytes()), Ok(()), "{text}");
    }
    for text in bad {
        assert!(!is_json(text.as_bytes()), "{text}");
        let result = validate(text.as_bytes());
        assert!(
            matches!(result, Err(ScanError::Syntax { .. })),
            "{text}: {result:?}"
        );
    }
}

#[test]
fn a_control_character_is_refused_wherever_it_stands_in_a_string() {
    for len in 0..40 {
        for at in 0..len {
            for byte in [0, 1, 0x1F, b'\n'] {
                let mut text = vec![b'x'; len + 2];
                (text[0], text[len + 1], text[at + 1]) = (b'"', b'"', byte);
                assert_eq!(validate(&text), Err(ScanError::Syntax { offset: at + 1 }));
            }
        }
        let plain = format!("\"{}\"", "\u{7f} !#[]~".repeat(len));
        assert_eq!(validate(plain.as_bytes()), Ok(()));
    }
}

#[test]
fn a_character_is_checked_wherever_it_stands_in_a_string() {
    let places = (0..150).chain(STRETCH - 80..STRETCH + 80);
    for (place, character) in places.flat_map(|place| [(place, "é"), (place, "\u{1F600}")]) {
        let text = format!("\"{}{character}{}\"", "x".repeat(place), "y".repeat(70));
        let mut bytes = text.into_bytes();
        assert_eq!(validate(&bytes), Ok(()), "{place}");
        // Without its last byte, and as a last byte alone.
        for lost in [place + character.len(), place + 1] {
            let removed = bytes.remove(lost);
            let offset = std::str::from_utf8(&bytes).unwrap_err().valid_up_to();
            assert_eq!(validate(&bytes), Err(ScanError::Syntax { offset }));
            let answer = [br#"{"jsonrpc":"2.0","id":1,"result":"#, &bytes[..], b"}"].concat();
            for width in [answer.len(), place + 35, 7] {
                let mut flow = Flow::new();
                let mut chunks = answer.chunks(width);
                let read = chunks.try_for_each(|chunk| flow.push(chunk, &mut Vec::new()));
                let is_syntax = matches!(read, Err(FlowError::Syntax { .. }));
                assert!(is_syntax, "{place} by {width}: {read:?}");
            }
            bytes.insert(lost, removed);
        }
    }
}

#[test]
fn bytes_that_are_no_text_are_told_before_anything_else() {
    let deep = "[".repeat(DEPTH_MAX + 1);
    for before in ["{\"a\":1,,", deep.as_str(), "{} ", "\"\\x"] {
        let bytes = [before.as_bytes(), b" \"\xC3\""].concat();
        let offset = bytes.len() - 2;
        assert_eq!(validate(&bytes), Err(ScanError::Syntax { offset }));
        assert_eq!(scan(&bytes), Err(ScanError::Syntax { offset }));
    }
}

/// Random JSON text, shallow enough for every parser.
fn random_value(random: &mut Random, depth: usize, out: &mut String) {
    const SCALARS: [&str; 14] = [
        "0",
        "-1",
        "1.50",
        "1e9",
        "true",
        "false",
        "null",
        "\"\"",
        "\"a\\\"b\"",
        "\"é😀\"",
        "\"a string that is longer than what is searched by words: ……………………………………… \\n and back\"",
        "\"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123é\"",
        "\"\\ud83d\\ude00\"",
        "123456789012345678901234567890",
    ];
    const KEYS: [&str; 9] = [
        "id",
        "method",
        "params",
        "result",
        "_meta",
        "progressToken",
        "\\u0069d",
        "x",
        "é",
    ];
    let space = random.pick(&["", "", "", " ", "\n\t"]);
    match random.below(if depth == 0 { 1 } else { 3 }) {
        0 => out.push_str(random.pick(&SCALARS)),
        kind => {
            let object = kind == 1;
            out.push(if object { '{' } else { '[' });
            for index in 0..random.below(5) {
                out.push_str(if index > 0 { "," } else { "" });
                out.push_str(space);
                if object {
                    out.extend(["\"", random.pick(&KEYS), "\"", space, ":", space]);
                }
                random_value(random, depth - 1, out);
                out.push_str(space);
            }
            out.push(if object { '}' } else { ']' });
        }
    }
}

#[test]
fn the_scan_agrees_with_another_parser_on_mutated_texts() {
    let mut random = Random::new(1);
    let (mut valid, mut invalid) = (0, 0);
    for _ in 0..40_000 {
        let mut text = String::new();
        random_value(&mut random, 5, &mut text);
        let mut bytes = text.into_bytes();
        for _ in 0..random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
                1 => {
                    bytes[at] = random
                        .pick(&["\"", "\\", "{", "}", "[", ",", ":", "0", "u"])
                        .as_bytes()[0];
                }
                2 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[random.below(bytes.len())]),
            }
        }
        let expected = is_json(&bytes);
        assert_eq!(
            validate(&bytes).is_ok(),
            expected,
            "{}",
            String::from_utf8_lossy(&bytes)
        );
        if expected {
            valid += 1;
        } else {
            invalid += 1;
        }
        if let Err(error) = std::str::from_utf8(&bytes) {
            let offset = error.valid_up_to();
            assert_eq!(validate(&bytes), Err(ScanError::Syntax { offset }));
        }
        let syntax = matches!(scan(&bytes), Err(ScanError::Syntax { .. }));
        assert_eq!(syntax, !expected, "{}", String::from_utf8_lossy(&bytes));
    }
    assert!(valid > 5_000 && invalid > 5_000, "{valid} {invalid}");
}

#[test]
fn walking_agrees_with_another_parser() {
    let mut random = Random::new(2);
    for _ in 0..5_000 {
        let mut text = String::new();
        random_value(&mut random, 4, &mut text);
        let bytes = text.as_bytes();
        let whole = Span::whole(bytes);
        match serde_json::from_slice(bytes).unwrap() {
            Value::Object(expected) => {
                // The other parser keeps the last of several.
                let mut last = BTreeMap::new();
                for (key, value) in members(bytes, whole) {
                    let name = string(key.of(bytes)).unwrap().into_owned();
                    last.insert(
                        name,
                        serde_json::from_slice::<Value>(value.of(bytes)).unwrap(),
                    );
                }
                assert_eq!(last, expected.into_iter().collect(), "{text}");
                assert_eq!(elements(bytes, whole).count(), 0);
            }
            Value::Array(expected) => {
                let read = |span: Span| serde_json::from_slice::<Value>(span.of(bytes)).unwrap();
                let values: Vec<Value> = elements(bytes, whole).map(read).collect();
                assert_eq!(values, expected);
                assert_eq!(members(bytes, whole).count(), 0);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => assert_eq!(
                members(bytes, whole).count() + elements(bytes, whole).count(),
                0
            ),
        }
    }
}

#[test]
fn a_member_is_found_by_its_decoded_name_and_the_first_one_counts() {
    let text = br#"{"a":{"b":1},"\u0062":{"c":[1,2]},"b":0}"#;
    let whole = Span::whole(text);
    assert_eq!(
        member(text, whole, "b").unwrap().of(text),
        br#"{"c":[1,2]}"#
    );
    assert_eq!(path(text, whole, &["b", "c"]).unwrap().of(text), b"[1,2]");
    assert_eq!(path(text, whole, &["a", "c"]), None);
    assert_eq!(member(text, Span { start: 90, end: 99 }, "b"), None);
    assert_eq!(member(b"{\"a\":1", Span { start: 0, end: 6 }, "b"), None);
}

#[test]
fn strings_are_decoded_and_quoted_like_another_parser_does() {
    let mut random = Random::new(3);
    let parts = [
        "a", "\"", "\\", "/", "\n", "\0", "\u{1f}", "é", "\u{2028}", "😀", "u0041", "\u{7f}",
    ];
    for _ in 0..5_000 {
        let text: String = (0..random.below(8)).map(|_| random.pick(&parts)).collect();
        let literal = quote(&text);
        assert_eq!(serde_json::from_str::<String>(&literal).unwrap(), text);
        assert_eq!(string(literal.as_bytes()).as_deref(), Some(text.as_str()));
    }
    assert_eq!(
        string(br#""\u00e9\uD83D\uDE00\/""#).as_deref(),
        Some("é😀/")
    );
    assert_eq!(
        string(br#""a\ud800b\udc00\ud800\u0041""#).as_deref(),
        Some("a\u{fffd}b\u{fffd}\u{fffd}A")
    );
    for bad in ["", "\"", "a", "\"a\"b", "\"\\\"", "\"\\ud8\"", "1"] {
        assert_eq!(string(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(string(b"\"\xFF\""), None);
}

#[test]
fn edits_are_applied_whatever_their_order() {
    let bytes = Bytes::from_static(b"0123456789");
    let span = |start, end| Span { start, end };
    let edits = Splice::new(&bytes)
        .replace(span(6, 8), "XYZ")
        .insert_at(2, "a")
        .insert_at(2, "b")
        .replace(span(2, 3), "-")
        .remove(span(9, 10))
        .insert_at(0, "<");
    assert_eq!(edits.finish().to_bytes(), "<01ab-345XYZ8");
    assert_eq!(Splice::new(&bytes).finish().to_bytes(), bytes);
    assert_eq!(
        Splice::new(&bytes).insert_at(10, ">").finish().to_bytes(),
        "0123456789>"
    );
}

#[test]
fn a_small_result_is_one_segment_and_a_large_body_is_shared() {
    let bytes = Bytes::from_static(b"{\"id\":1}");
    let id = Span { start: 6, end: 7 };
    let small = Splice::new(&bytes).replace(id, "22").finish();
    assert_eq!(small.iter().collect::<Vec<_>>(), ["{\"id\":22}"]);
    for text in [&b""[..], b"2", &[b'7'; 38], &[b'8'; 39], &[b'9'; 300]] {
        let copied = Splice::new(&bytes).replace_copied(id, text).finish();
        let expected = [&bytes[..6], text, b"}"].concat();
        assert_eq!(copied.to_bytes(), expected);
        assert_eq!(copied.into_only().unwrap(), expected);
    }
    let large = Bytes::from(vec![b'x'; JOIN_MAX * 2]);
    let pieces = Splice::new(&large)
        .replace(Span { start: 1, end: 2 }, "y")
        .finish();
    assert_eq!((pieces.iter().len(), pieces.len()), (3, large.len()));
    assert_eq!(pieces.iter().last().unwrap().as_ptr(), large[2..].as_ptr());
    assert_eq!(pieces.into_only().unwrap_err().iter().len(), 3);
    let copied = Splice::new(&large).replace_copied(Span { start: 1, end: 2 }, b"y");
    assert_eq!(copied.finish().iter().nth(1).unwrap(), "y");
    assert_eq!(Pieces::new().into_only().unwrap(), "");
}

#[test]
fn line_ends_between_tokens_become_spaces() {
    let pieces = Pieces::from(Bytes::from_static(b"{\r\n\"a\":\n1}")).one_line();
    assert_eq!(pieces.to_bytes(), "{  \"a\": 1}");
    let one = Bytes::from_static(b"{\"a\":\"\\n\"}");
    assert_eq!(
        Pieces::from(one.clone()).one_line().to_bytes().as_ptr(),
        one.as_ptr()
    );
}

#[test]
fn values_that_say_the_same_are_the_same_in_any_writing() {
    let same_pairs = [
        (
            r#"{"a":1,"b":[true,null]}"#,
            "{ \"b\" : [ true , null ] ,\n\"a\":1 }",
        ),
        (r#"{"\u0061":"\u00e9"}"#, r#"{"a":"é"}"#),
        ("[]", "[ ]"),
        (r#"{"x":{"b":1,"a":2}}"#, r#"{"x":{"a":2,"b":1}}"#),
    ];
    for (left, right) in same_pairs {
        assert!(same(left.as_bytes(), right.as_bytes()), "{left} {right}");
    }
    let other_pairs = [
        (r#"{"a":1}"#, r#"{"a":1.0}"#),
        (r#"{"a":1}"#, r#"{"a":1,"b":null}"#),
        (r#"{"a":1}"#, r#"{"b":1}"#),
        ("[1,2]", "[2,1]"),
        ("[1]", "[1,2]"),
        ("[1,2]", "[1]"),
        ("{}", "[]"),
        (r#""1""#, "1"),
        (r#"{"a":1,"a":2}"#, r#"{"a":2,"a":1}"#),
    ];
    for (left, right) in other_pairs {
        assert!(!same(left.as_bytes(), right.as_bytes()), "{left} {right}");
    }
    let deep = "[".repeat(DEPTH_MAX) + &"]".repeat(DEPTH_MAX);
    assert!(same(deep.as_bytes(), format!(" {deep}").as_bytes()));
}
