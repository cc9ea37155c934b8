use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::*;
use crate::random::Random;

fn decode_with(decoder: &mut SseDecoder, chunks: &[&[u8]]) -> Vec<SseItem> {
    let mut items = Vec::new();
    for chunk in chunks {
        decoder.push(chunk);
        while let Some(item) = decoder.next() {
            items.push(item);
        }
    }
    items
}

fn decode(chunks: &[&[u8]], event_max: usize) -> Vec<SseItem> {
    decode_with(&mut SseDecoder::new(event_max), chunks)
}

fn event(event: Option<&str>, id: Option<&str>, data: &str) -> SseItem {
    SseItem::Event {
        event: event.map(str::to_owned),
        id: id.map(Arc::from),
        data: Bytes::copy_from_slice(data.as_bytes()),
    }
}

/// Decodes in one chunk and in single bytes, and expects the same of both.
fn check(stream: &str, expected: &[SseItem]) {
    let single: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
    assert_eq!(decode(&[stream.as_bytes()], 1000), expected, "{stream:?}");
    assert_eq!(decode(&single, 1000), expected, "{stream:?}");
}

#[test]
fn the_grammar_of_the_standard_is_understood() {
    check("data: a\n\n", &[event(None, None, "a")]);
    check(
        "data:a\r\n\r\ndata: b\r\r",
        &[event(None, None, "a"), event(None, None, "b")],
    );
    check("\u{feff}data:  a \n\n", &[event(None, None, " a ")]);
    check("\u{feff}\u{feff}data: a\n\n", &[]);
    check(
        ": note\ndata: a\n:\ndata:b\ndata\ndata:\n\n",
        &[event(None, None, "a\nb\n\n")],
    );
    check(
        "event: ping\ndata: x\n\ndata: y\n\n",
        &[event(Some("ping"), None, "x"), event(None, None, "y")],
    );
    check("event: lost\n\ndata: y\n\n", &[event(None, None, "y")]);
    check("Data: a\ndata : a\nfoo\nfoo: bar\n\n", &[]);
    check("data\n\n", &[event(None, None, "")]);
    check("\n\n\n", &[]);
    check(
        "data: {\"a\":\"b: c\"}\n\n",
        &[event(None, None, "{\"a\":\"b: c\"}")],
    );
}

#[test]
fn an_unfinished_event_is_dropped() {
    let mut decoder = SseDecoder::new(100);
    assert_eq!(
        decode_with(&mut decoder, &[b"id: 1\ndata: a\n\nid: 2\ndata: b\n"]).len(),
        1
    );
    assert_eq!(decoder.last_event_id(), Some("1"));
}

#[test]
fn ids_persist_can_be_reset_and_never_hold_nul() {
    let stream = "id: 1\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\nid\ndata: d\n\nid: 2\n\n";
    let one = Some("1");
    let expected = [
        event(None, one, "a"),
        event(None, one, "b"),
        event(None, one, "c"),
        event(None, None, "d"),
        event(None, Some("2"), ""),
    ];
    check(stream, &expected);
    let mut decoder = SseDecoder::new(100);
    decode_with(&mut decoder, &[b"id: 7\ndata: a\n\n"]);
    assert_eq!(decoder.last_event_id(), Some("7"));
    decode_with(&mut decoder, &[b"id:\n\n"]);
    assert_eq!(decoder.last_event_id(), None);
}

#[test]
fn retry_takes_digits_only() {
    let mut decoder = SseDecoder::new(100);
    assert_eq!(decoder.retry(), None);
    decode_with(&mut decoder, &[b"retry: 1500\n"]);
    assert_eq!(decoder.retry(), Some(Duration::from_millis(1500)));
    for bad in ["-1", "1.5", "", "1s", "99999999999999999999999", "+5"] {
        decode_with(&mut decoder, &[format!("retry: {bad}\n").as_bytes()]);
        assert_eq!(decoder.retry(), Some(Duration::from_millis(1500)), "{bad}");
    }
}

#[test]
fn an_event_over_the_bound_is_named_once_and_the_stream_goes_on() {
    let body = format!("{{\"result\":\"{}\",\"id\":4}}", "x".repeat(2000));
    let stream = format!("id: e1\ndata: {body}\nid: e2\n: note\n\ndata: ok\n\n");
    let long = SseItem::TooLong {
        len_seen: body.len() as u64,
        event_id: Some(Arc::from("e2")),
        id: Some(Bytes::from_static(b"4")),
        method: None,
    };
    check(&stream, &[long, event(None, Some("e2"), "ok")]);
}

#[test]
fn many_lines_together_are_bounded_too() {
    let stream = format!(
        "data: {{\"method\":\"m\",\n{}data: \"id\":9}}\n\n",
        "data: \"x\":1,\n".repeat(200)
    );
    let long = SseItem::TooLong {
        len_seen: 14 + 200 * 7 + 8,
        event_id: None,
        id: Some(Bytes::from_static(b"9")),
        method: Some("m".to_owned()),
    };
    check(&stream, &[long]);
}

#[test]
fn nothing_but_data_counts_and_other_fields_are_bounded() {
    let mut decoder = SseDecoder::new(10);
    let long = "y".repeat(20_000);
    for name in [": ", "id: ", "event: ", "foo: ", "retry: ", ""] {
        let chunks = [name.as_bytes(), long.as_bytes(), long.as_bytes(), b"\n"];
        for chunk in chunks {
            assert_eq!(decode_with(&mut decoder, &[chunk]), []);
            assert!(decoder.buffered() <= FIELD_MAX + 16, "I8");
        }
    }
    let cut = event(Some(&"y".repeat(FIELD_MAX)), None, "ok");
    assert_eq!(decode_with(&mut decoder, &[b"data: ok\n\n"]), [cut]);
}

/// The standard's algorithm over the whole text, as plainly as it is written there.
fn model(stream: &str) -> Vec<SseItem> {
    let stream = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    let text = stream.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    lines.pop();
    let (mut items, mut id, mut id_seen, mut kind) =
        (Vec::new(), String::new(), false, String::new());
    let mut data: Option<String> = None;
    for line in lines {
        if line.is_empty() {
            if data.is_some() || id_seen {
                let (kind, id) = (
                    (!kind.is_empty()).then_some(kind.as_str()),
                    (!id.is_empty()).then_some(id.as_str()),
                );
                let text = data.take().unwrap_or_default();
                items.push(event(kind, id, text.strip_suffix('\n').unwrap_or(&text)));
            }
            (id_seen, data) = (false, None);
            kind.clear();
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "data" => data.get_or_insert_default().extend([value, "\n"]),
            "event" => value.clone_into(&mut kind),
            "id" if !value.contains('\0') => {
                value.clone_into(&mut id);
                id_seen = true;
            }
            _ => {}
        }
    }
    items
}

const PARTS: [&str; 18] = [
    "\n",
    "\r\n",
    "\r",
    "\n\n",
    "data: ",
    "data:",
    "data",
    "id: ",
    "id",
    "event: e",
    "retry: 5",
    ":",
    "\0",
    "\u{feff}",
    "é",
    "{\"id\":1}",
    " ",
    "x",
];

#[test]
fn random_streams_are_read_as_the_standard_says_however_they_are_cut() {
    let mut random = Random::new(31);
    for _ in 0..40_000 {
        let stream: String = (0..random.below(20)).map(|_| random.pick(&PARTS)).collect();
        let cut = random.chunks(stream.as_bytes(), 5);
        assert_eq!(decode(&cut, 1000), model(&stream), "{stream:?}");
    }
}

#[test]
fn chunks_do_not_matter_at_the_bound() {
    let mut random = Random::new(32);
    for _ in 0..40_000 {
        let stream: String = (0..random.below(30)).map(|_| random.pick(&PARTS)).collect();
        let cut = random.chunks(stream.as_bytes(), 5);
        assert_eq!(
            decode(&cut, 9),
            decode(&[stream.as_bytes()], 9),
            "{stream:?}"
        );
    }
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let mut out = Vec::new();
    encode_retry(&mut out, Duration::from_secs(1));
    encode_comment(&mut out, "keep\nalive");
    encode_event(&mut out, Some("a-1"), None, &[b""]);
    encode_event(
        &mut out,
        Some("a-2\n\0data: forged"),
        Some("message"),
        &[b"{\"x\":", b"1}"],
    );
    assert_eq!(
        String::from_utf8(out.clone()).unwrap(),
        "retry: 1000\n\n: keepalive\n\nid: a-1\ndata: \n\n\
         id: a-2data: forged\nevent: message\ndata: {\"x\":1}\n\n",
    );
    encode_event(
        &mut out,
        None,
        None,
        &[b"{\n\"x\":\r", b"", b"\n1\r\n\r\n", b"}\r"],
    );
    let items = decode(&[&out], 1000);
    let forged = Some("a-2data: forged");
    assert_eq!(items[0], event(None, Some("a-1"), ""));
    assert_eq!(items[1], event(Some("message"), forged, "{\"x\":1}"));
    assert_eq!(items[2], event(None, forged, "{\n\"x\":\n1\n\n}\n"));
}
