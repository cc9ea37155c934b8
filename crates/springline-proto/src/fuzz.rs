//! Entry points for fuzzing, which panic when a property fails.
//!
//! Owns the properties that must hold for any bytes. The targets in `fuzz/` call these functions, and
//! so does a test that replays `fuzz/corpus` with every build. Must not be called by the product.

use bytes::Bytes;

use crate::{
    frame::{Line, LineFramer},
    json::{self, Flow, Skim, Span, Step},
    message::{Kind, Message},
    sse::{SseDecoder, SseItem, encode_event},
};

/// A message: what is accepted can be taken apart and spliced without damage (I13).
pub fn fuzz_message(bytes: &[u8]) {
    let valid = json::validate(bytes).is_ok();
    let scanned = json::scan(bytes);
    assert!(valid || scanned.is_err(), "a message that is not JSON");
    let text = json::quote(&String::from_utf8_lossy(bytes));
    assert!(json::validate(text.as_bytes()).is_ok(), "a bad literal");
    let decoded = json::string(text.as_bytes());
    assert_eq!(decoded.as_deref(), Some(&*String::from_utf8_lossy(bytes)));
    walk(bytes);
    flow(bytes);
    if let Ok(message) = Message::parse(Bytes::copy_from_slice(bytes)) {
        rewrite(&message);
        skim(&message);
    }
}

/// Lines: how the stream is cut into chunks changes nothing, and the cap holds (I8). The first byte
/// is the cap, the second the length of chunks.
pub fn fuzz_line(bytes: &[u8]) {
    let [cap, chunk_len, stream @ ..] = bytes else {
        return;
    };
    let cap = usize::from(*cap);
    let whole = lines(cap, &[stream]);
    let chunks: Vec<&[u8]> = stream.chunks(usize::from(*chunk_len).max(1)).collect();
    assert_eq!(lines(cap, &chunks), whole, "chunks matter");
}

/// Events: as for lines, and an event that is written again reads the same.
pub fn fuzz_sse(bytes: &[u8]) {
    let [cap, chunk_len, stream @ ..] = bytes else {
        return;
    };
    let cap = usize::from(*cap);
    let whole = events(cap, &[stream]);
    let chunks: Vec<&[u8]> = stream.chunks(usize::from(*chunk_len).max(1)).collect();
    assert_eq!(events(cap, &chunks), whole, "chunks matter");
    for item in &whole {
        if let SseItem::Event { event, id, data } = item {
            let mut out = Vec::new();
            encode_event(&mut out, id.as_deref(), event.as_deref(), &[data]);
            assert_eq!(
                events(cap, &[&out]),
                std::slice::from_ref(item),
                "not the same"
            );
        }
    }
}

/// What goes by in chunks is what the whole scan makes of it: the same answers are taken, and the same
/// bytes pass, wherever the chunks are cut.
fn flow(bytes: &[u8]) {
    let id = b"\"another\"";
    let message = Message::parse(Bytes::copy_from_slice(bytes)).ok();
    let answer = message.filter(|message| {
        matches!(message.kind(), Kind::Result | Kind::Error) && message.id().is_some()
    });
    for width in [1, 2, 3, 5, 7, 64, bytes.len().max(1)] {
        let passed = pass(bytes, width, id);
        match &answer {
            // A longer id is none of ours, and is told apart without being kept.
            Some(message) if message.id().is_some_and(|id| id.len() > 256) => {
                assert!(passed.is_none(), "a giant id passed");
            }
            Some(message) => {
                let whole = message.with_id(id).to_bytes();
                // White space behind an answer is cut off there and passes here.
                let same = passed.as_deref().map(<[u8]>::trim_ascii_end);
                assert_eq!(same, Some(&whole[..]), "not the same by {width}");
            }
            None => assert!(passed.is_none(), "what is no answer passed by {width}"),
        }
    }
}

fn pass(bytes: &[u8], width: usize, id: &[u8]) -> Option<Vec<u8>> {
    let (mut flow, mut out) = (Flow::new(), Vec::new());
    for chunk in bytes.chunks(width) {
        let mut steps = Vec::new();
        flow.push(chunk, &mut steps).ok()?;
        for step in steps {
            match step {
                Step::Pass(range) => out.extend_from_slice(chunk.get(range).unwrap_or_default()),
                Step::Id(_) => out.extend_from_slice(id),
            }
        }
    }
    flow.finish().ok().map(|()| out)
}

/// Walks whatever this is, valid or not; what is found in valid JSON is valid.
fn walk(bytes: &[u8]) {
    let whole = Span::whole(bytes);
    let valid = json::validate(bytes).is_ok();
    for (key, value) in json::members(bytes, whole) {
        let fine = json::string(key.of(bytes)).is_some() && json::validate(value.of(bytes)).is_ok();
        assert!(fine || !valid, "a bad member");
    }
    for value in json::elements(bytes, whole) {
        assert!(
            json::validate(value.of(bytes)).is_ok() || !valid,
            "a bad element"
        );
    }
}

fn rewrite(message: &Message) {
    let changed = message.with_id(b"\"another\"").one_line().to_bytes();
    assert!(!changed.contains(&b'\n'), "a line end is left");
    let Ok(changed) = Message::parse(changed) else {
        // Only a notification, or an error without an id, changes what it is with an id.
        assert!(
            message.envelope().id.is_none(),
            "splicing broke the message"
        );
        return;
    };
    assert_eq!(changed.id().as_deref(), Some(&b"\"another\""[..]));
    assert_eq!(changed.method(), message.method());
    assert_eq!(
        changed.progress_token().is_some(),
        message.progress_token().is_some()
    );
    let Some(id) = message.id() else { return };
    let back = changed.with_id(&id).to_bytes();
    let flat = json::Pieces::from(message).one_line().to_bytes();
    assert_eq!(back, flat, "another byte changed");
}

/// The machine for messages that are not kept finds what the scan finds.
fn skim(message: &Message) {
    for chunk_len in [1, 7, message.bytes().len()] {
        let mut skim = Skim::new();
        for chunk in message.bytes().chunks(chunk_len) {
            skim.push(chunk);
        }
        let short = |len: Option<usize>| len.is_some_and(|len| len <= 1024);
        if short(message.id().map(|id| id.len())) {
            assert_eq!(skim.id(), message.id().as_ref());
        }
        if short(message.envelope().method.map(Span::len)) {
            assert_eq!(skim.method(), message.method().as_deref());
        }
    }
}

fn lines(cap: usize, chunks: &[&[u8]]) -> Vec<Line> {
    let mut framer = LineFramer::new(cap);
    let mut lines = Vec::new();
    for chunk in chunks {
        framer.push(chunk);
        while let Some(line) = framer.next() {
            lines.push(line);
        }
        assert!(framer.buffered() <= cap, "over the cap");
    }
    lines.extend(framer.finish());
    lines
}

fn events(cap: usize, chunks: &[&[u8]]) -> Vec<SseItem> {
    let mut decoder = SseDecoder::new(cap);
    let mut items = Vec::new();
    for chunk in chunks {
        decoder.push(chunk);
        while let Some(item) = decoder.next() {
            items.push(item);
        }
        let bound = cap + crate::sse::FIELD_MAX + 32;
        assert!(decoder.buffered() <= 2 * bound, "over the cap");
    }
    items
}
