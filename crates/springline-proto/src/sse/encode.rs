//! Writing events.
//!
//! Owns the escaping of line ends; nothing that it writes can end an event early.

use std::time::Duration;

/// Appends one event. `data` is the concatenation of its parts and is always written, also when it is
/// empty; a line end in it starts another data line, as the grammar asks. Line ends in `id`
/// and `event` are left out, and NUL in `id`, which would make clients ignore it.
pub fn encode_event(out: &mut Vec<u8>, id: Option<&str>, event: Option<&str>, data: &[&[u8]]) {
    let data_len: usize = data.iter().map(|part| part.len()).sum();
    out.reserve(data_len + 64);
    if let Some(id) = id {
        let kept = id.bytes().filter(|byte| *byte != b'\0');
        field(out, b"id: ", kept);
    }
    if let Some(event) = event {
        field(out, b"event: ", event.bytes());
    }
    out.extend_from_slice(b"data: ");
    let mut after_cr = false;
    for part in data {
        after_cr = data_part(out, part, after_cr);
    }
    out.extend_from_slice(b"\n\n");
}

/// Appends the reconnection time, in whole milliseconds.
pub fn encode_retry(out: &mut Vec<u8>, retry: Duration) {
    out.extend_from_slice(format!("retry: {}\n\n", retry.as_millis()).as_bytes());
}

/// Appends a comment, which clients ignore: a heartbeat.
pub fn encode_comment(out: &mut Vec<u8>, text: &str) {
    field(out, b": ", text.bytes());
    out.push(b'\n');
}

fn field(out: &mut Vec<u8>, name: &[u8], value: impl Iterator<Item = u8>) {
    out.extend_from_slice(name);
    out.extend(value.filter(|byte| !matches!(byte, b'\n' | b'\r')));
    out.push(b'\n');
}

/// Appends a part of the data; `after_cr` tells whether the part before it ended in a CR, and the
/// returned value whether this one does.
fn data_part(out: &mut Vec<u8>, part: &[u8], after_cr: bool) -> bool {
    let mut rest = part;
    if after_cr && rest.first() == Some(&b'\n') {
        rest = rest.get(1..).unwrap_or_default();
    }
    while let Some(at) = memchr::memchr2(b'\n', b'\r', rest) {
        let (line, end) = rest.split_at(at);
        out.extend_from_slice(line);
        out.extend_from_slice(b"\ndata: ");
        let end_len = if end.starts_with(b"\r\n") { 2 } else { 1 };
        rest = end.get(end_len..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    match part.last() {
        Some(last) => *last == b'\r',
        None => after_cr,
    }
}
