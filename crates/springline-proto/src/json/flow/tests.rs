use std::fmt::Write as _;

use super::*;
use crate::fuzz::fuzz_message;

/// What passes of chunks of `width` bytes, with `<id>` where the id stands.
fn flow(text: &[u8], width: usize) -> Result<String, FlowError> {
    let (mut flow, mut out) = (Flow::new(), Vec::new());
    for chunk in text.chunks(width) {
        let mut steps = Vec::new();
        flow.push(chunk, &mut steps)?;
        for step in steps {
            match step {
                Step::Pass(range) => out.extend_from_slice(&chunk[range]),
                Step::Id(id) => {
                    out.extend_from_slice(b"<");
                    out.extend_from_slice(&id);
                    out.extend_from_slice(b">");
                }
            }
        }
    }
    flow.finish()?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn the_id_is_told_wherever_it_stands_and_however_it_is_cut() {
    let cases = [
        (
            r#"{"jsonrpc":"2.0","id":17,"result":{"a":[1,{"id":2}]}}"#,
            r#"{"jsonrpc":"2.0","id":<17>,"result":{"a":[1,{"id":2}]}}"#,
        ),
        (
            "\u{feff} \n{ \"result\" : [\"ä€𝄞\", -0.5e+7, true] , \"jsonrpc\":\"2.0\", \"id\" : \"x\\\"\u{e9}\" } \n",
            "{ \"result\" : [\"ä€𝄞\", -0.5e+7, true] , \"jsonrpc\":\"2.0\", \"id\" : <\"x\\\"\u{e9}\"> } \n",
        ),
        (
            r#"{"\u0069d":-3,"error":{"code":1},"json\u0072pc":"2.\u0030"}"#,
            r#"{"\u0069d":<-3>,"error":{"code":1},"json\u0072pc":"2.\u0030"}"#,
        ),
    ];
    for (text, passed) in cases {
        for width in 1..=text.len() {
            assert_eq!(flow(text.as_bytes(), width).as_deref(), Ok(passed));
        }
    }
}

#[test]
fn what_is_no_answer_to_us_never_passes_as_whole() {
    let long = format!(
        r#"{{"jsonrpc":"2.0","id":"{}","result":1}}"#,
        "x".repeat(CAPTURE_MAX)
    );
    let cases = [
        (r#"{"jsonrpc":"2.0","id":1,"result":1"#, FlowError::Cut),
        (
            r#"{"jsonrpc":"2.0","result":1}"#,
            FlowError::NotAnswer("it has no id"),
        ),
        (r#"{"jsonrpc":"2.0","id":1.5,"result":1}"#, FlowError::Id),
        (
            r#"{"jsonrpc":"2.0","id":{"a":1},"result":1}"#,
            FlowError::Id,
        ),
        (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, FlowError::Id),
        (&long, FlowError::Id),
        (r#"{"id":1,"id":1,"result":1}"#, FlowError::Duplicate("id")),
        (r#"{"id":1,"\u0069d":1}"#, FlowError::Duplicate("id")),
        (
            r#"{"result":1,"method":"m"}"#,
            FlowError::NotAnswer("it has a method"),
        ),
        (r#"[{"id":1}]"#, FlowError::NotAnswer("it is a batch")),
        (r#"{"a":tru}"#, FlowError::Syntax { offset: 8 }),
        (r#"{"a":01}"#, FlowError::Syntax { offset: 6 }),
        ("{\"a\":\"\n\"}", FlowError::Syntax { offset: 6 }),
    ];
    for (text, error) in cases {
        for width in 1..=text.len() {
            assert_eq!(
                flow(text.as_bytes(), width),
                Err(error),
                "{text} by {width}"
            );
        }
    }
}

#[test]
fn the_last_bracket_of_what_is_no_answer_does_not_pass() {
    for text in [
        r#"{"jsonrpc":"2.0","result":1}"#,
        r#"{"id":1,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":1}"#,
        r#"{"jsonrpc":"2.0","id":1}"#,
    ] {
        let (mut flow, mut passed) = (Flow::new(), 0);
        for (at, byte) in text.bytes().enumerate() {
            let mut steps = Vec::new();
            let is_last = at + 1 == text.len();
            assert_eq!(flow.push(&[byte], &mut steps).is_err(), is_last, "{text}");
            passed += steps.len();
        }
        assert!(passed < text.len());
        assert!(flow.finish().is_err());
    }
}

#[test]
fn it_is_an_answer_once_the_result_is_named() {
    let mut flow = Flow::new();
    flow.push(
        br#"{"jsonrpc":"2.0","_meta":{"result":1},"resul"#,
        &mut Vec::new(),
    )
    .unwrap();
    assert!(!flow.is_answer());
    flow.push(br#"t""#, &mut Vec::new()).unwrap();
    assert!(flow.is_answer());
}

#[test]
fn nesting_is_bounded_as_in_the_whole_scan() {
    for (depth, fits) in [(511, true), (512, false)] {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{}{}}}"#,
            "[".repeat(depth),
            "]".repeat(depth)
        );
        assert_eq!(super::super::scan(text.as_bytes()).is_ok(), fits);
        assert_eq!(flow(text.as_bytes(), 100).is_ok(), fits);
    }
}

/// The next number of a sequence that looks random (an LCG; Knuth's constants), below `bound`.
fn below(state: &mut u64, bound: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).unwrap() % bound
}

/// Bytes near an answer: one that is whole, with members added, and perhaps damaged.
fn near_answer(state: &mut u64) -> Vec<u8> {
    const VALUES: [&str; 12] = [
        "1",
        "-0.1e5",
        "\"é\\u00e9\\n\"",
        "null",
        "true",
        "[]",
        "{}",
        "[1,[2]]",
        "{\"id\":1}",
        "\"2.0\"",
        "1.0",
        "\"long, longer than a block of the scan, with a quote \\\" in it, and more behind it\"",
    ];
    const NAMES: [&str; 8] = [
        "jsonrpc", "id", "result", "error", "method", "x", "i\\u0064", "params",
    ];
    const BASES: [&str; 4] = [
        "\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":[1,\"€\"]}",
        "\"result\":\"x\",\"jsonrpc\":\"2.0\", \"id\":\"7\"",
        "\"jsonrpc\":\"2.0\",\"id\":7,\"error\":{}",
        "\"x\":1",
    ];
    let mut text = format!(" {{ {}", BASES[below(state, BASES.len())]);
    for _ in 0..below(state, 3) {
        let (name, value) = (below(state, NAMES.len()), below(state, VALUES.len()));
        write!(text, " ,\"{}\" : {}", NAMES[name], VALUES[value]).unwrap();
    }
    text.push_str("} ");
    let mut bytes = text.into_bytes();
    if below(state, 2) == 0 {
        let at = below(state, bytes.len());
        bytes[at] = u8::try_from(below(state, 256)).unwrap();
    }
    bytes
}

#[test]
fn chunks_make_no_difference() {
    let mut state = 4;
    let mut answers = 0;
    for _ in 0..4000 {
        let bytes = near_answer(&mut state);
        answers += u32::from(flow(&bytes, 3).is_ok());
        fuzz_message(&bytes);
    }
    assert!((500..3500).contains(&answers), "a fair mix: {answers}");
}
