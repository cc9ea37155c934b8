use super::*;
use crate::random::Random;

fn drain(framer: &mut LineFramer, lines: &mut Vec<Line>) {
    while let Some(line) = framer.next() {
        lines.push(line);
    }
}

fn frame(chunks: &[&[u8]], frame_max: usize) -> Vec<Line> {
    let mut framer = LineFramer::new(frame_max);
    let mut lines = Vec::new();
    for chunk in chunks {
        framer.push(chunk);
        drain(&mut framer, &mut lines);
        assert!(framer.buffered() <= frame_max, "I8");
    }
    lines.extend(framer.finish());
    assert_eq!((framer.buffered(), framer.finish()), (0, None));
    lines
}

fn message(text: &str) -> Line {
    Line::Message(Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn lines_are_cut_at_line_feeds_and_cleaned() {
    let stream = "\u{feff}{\"a\":1}\r\n\n \t\r\n{\"é\":2}\nhalf";
    let lines = frame(&[stream.as_bytes()], 100);
    assert_eq!(
        lines,
        [message("{\"a\":1}"), message("{\"é\":2}"), message("half")]
    );
    assert_eq!(frame(&[b"\n\r\n  "], 100), []);
}

#[test]
fn a_line_of_the_cap_passes_and_one_byte_more_does_not() {
    for chunk_len in [1, 3, 100] {
        let stream = format!("{}\n{}\n{}\n", "x".repeat(20), "y".repeat(21), "z");
        let chunks: Vec<&[u8]> = stream.as_bytes().chunks(chunk_len).collect();
        let long = Line::TooLong {
            len_seen: 21,
            id: None,
            method: None,
        };
        assert_eq!(
            frame(&chunks, 20),
            [message(&"x".repeat(20)), long, message("z")]
        );
    }
}

#[test]
fn an_over_long_line_is_not_kept_but_its_id_is_found_at_the_end() {
    let mut framer = LineFramer::new(1000);
    framer.push(b"{\"jsonrpc\":\"2.0\",\"result\":{\"id\":5,\"text\":\"");
    for _ in 0..1000 {
        framer.push(&[b'x'; 1000]);
        assert_eq!(framer.next(), None);
        assert!(framer.buffered() <= 1000, "I8");
    }
    framer.push(b"\"},\"id\":\"req-9\"}\n{\"next\":1}\n");
    match framer.next() {
        Some(Line::TooLong {
            len_seen,
            id,
            method,
        }) => {
            assert_eq!((len_seen, method), (1_000_058, None));
            assert_eq!(id.as_deref(), Some(&b"\"req-9\""[..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(framer.next(), Some(message("{\"next\":1}")));
    assert_eq!(framer.next(), None);
}

#[test]
fn an_over_long_line_without_an_end_is_reported_at_the_end() {
    let lines = frame(&[b"{\"method\":\"m\",\"x\":\"", &[b'y'; 50], b"zz"], 30);
    let long = Line::TooLong {
        len_seen: 71,
        id: None,
        method: Some("m".into()),
    };
    assert_eq!(lines, [long]);
}

#[test]
fn long_lines_share_the_buffer_and_short_ones_do_not_hold_it() {
    let mut framer = LineFramer::new(1 << 20);
    framer.push(&[vec![b'x'; 100_000], b"\nshort\n".to_vec()].concat());
    assert!(matches!(framer.next(), Some(Line::Message(line)) if line.len() == 100_000));
    assert_eq!(framer.next(), Some(message("short")));
    assert_eq!(framer.next(), None);
    assert!(framer.buffer.capacity() <= IDLE_MAX);
}

#[test]
fn chunks_do_not_matter() {
    let mut random = Random::new(21);
    let parts = [
        "\n",
        "\r\n",
        "{\"id\":1}",
        "\u{feff}",
        " ",
        "é😀",
        "\"",
        "\\",
        "{\"id\":\"abc\",\"m\":[",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "\r",
    ];
    for _ in 0..20_000 {
        let stream: String = (0..random.below(12)).map(|_| random.pick(&parts)).collect();
        let whole = frame(&[stream.as_bytes()], 24);
        let cut = random.chunks(stream.as_bytes(), 7);
        assert_eq!(frame(&cut, 24), whole, "{stream:?}");
    }
}

#[test]
fn a_large_line_in_small_chunks_costs_linear_time() {
    // Quadratic searching would read 3 TB here, and never end.
    let mut framer = LineFramer::new(64 << 20);
    for _ in 0..100_000 {
        framer.push(&[b'x'; 600]);
        assert_eq!(framer.next(), None);
    }
    framer.push(b"\n");
    assert!(matches!(framer.next(), Some(Line::Message(line)) if line.len() == 60_000_000));
}

#[test]
fn a_line_that_was_given_up_keeps_its_id_and_the_next_line_is_whole() {
    let mut framer = LineFramer::new(1000);
    let mut lines = Vec::new();
    framer.give_up();
    framer.push(br#"{"result":1,"#);
    drain(&mut framer, &mut lines);
    framer.give_up();
    assert_eq!(framer.buffered(), 0);
    framer.push(b"\"id\":7}\n{\"a\":1}\n");
    drain(&mut framer, &mut lines);
    let id = Some(Bytes::from_static(b"7"));
    let long = Line::TooLong {
        len_seen: 19,
        id,
        method: None,
    };
    assert_eq!(lines, [long, message(r#"{"a":1}"#)]);
}
