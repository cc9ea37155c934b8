//! The last words of a child: a bounded tail of its stderr.
//!
//! Owns draining the pipe, so that a child never blocks on it, and making the end of it fit for an
//! error. Must not judge what it says: output on stderr is no sign of an error.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use springline_proto::error::sanitise;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

/// Bytes of stderr that are kept of one child.
const TAIL_MAX: usize = 64 * 1024;

/// Bytes that an error quotes: with the exit status it fits into the bound of a cause.
const QUOTE_MAX: usize = 440;

/// Lines that an error quotes.
const QUOTE_LINES_MAX: usize = 6;

/// The end of what a child wrote to stderr.
#[derive(Debug, Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
}

impl Tail {
    /// Appends; the oldest bytes go beyond the bound, newlines or not.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        let kept = chunk
            .get(chunk.len().saturating_sub(TAIL_MAX)..)
            .unwrap_or_default();
        let excess = (self.bytes.len() + kept.len()).saturating_sub(TAIL_MAX);
        self.bytes.drain(..excess);
        self.bytes.extend(kept);
    }

    /// The last lines on one line, cleaned and cut from the front: what matters stands last.
    pub(super) fn quote(&self) -> Option<String> {
        // Twice the bound leaves room for what cleaning removes.
        let start = self.bytes.len().saturating_sub(4 * QUOTE_MAX);
        let bytes: Vec<u8> = self.bytes.range(start..).copied().collect();
        let text = without_escapes(&String::from_utf8_lossy(&bytes));
        let mut lines: Vec<String> = text
            .split(['\n', '\r'])
            .map(|line| sanitise(line, 4 * QUOTE_MAX))
            .filter(|line| !line.is_empty())
            .collect();
        lines.drain(..lines.len().saturating_sub(QUOTE_LINES_MAX));
        let quote = lines.join(" | ");
        (!quote.is_empty()).then(|| last(&quote, QUOTE_MAX))
    }
}

/// Reads stderr to its end into the tail. Cancel safe: what was read is in the tail.
pub(super) async fn drain(mut stderr: pipe::Receiver, tail: Arc<Mutex<Tail>>, server: Arc<str>) {
    let mut buffer = vec![0; 8 * 1024];
    // An error of our own pipe ends the stream like its end does.
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        let chunk = buffer.get(..count).unwrap_or_default();
        if tracing::enabled!(tracing::Level::DEBUG) {
            let text = sanitise(&String::from_utf8_lossy(chunk), QUOTE_MAX);
            tracing::debug!(%server, text, "stderr");
        }
        tail.lock().push(chunk);
    }
}

/// The end of a text, at most `max` bytes, with a mark where it was cut.
fn last(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut start = text.len() - max + '…'.len_utf8();
    while !text.is_char_boundary(start) {
        start += 1;
    }
    format!("…{}", text.get(start..).unwrap_or_default())
}

/// Drops terminal control sequences (ECMA-48 CSI): colours mean nothing in an error.
fn without_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' && chars.peek() == Some(&'[') {
            chars.next();
            while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(chunks: &[&[u8]]) -> Option<String> {
        let mut tail = Tail::default();
        for chunk in chunks {
            tail.push(chunk);
        }
        tail.quote()
    }

    #[test]
    fn the_last_lines_are_quoted_on_one_line_without_colours() {
        let text = quoted(&[
            b"old\n\x1b[31mTraceback\x1b[0m\n",
            b"  File x\r\nValueError: no\n\n",
        ]);
        assert_eq!(
            text.as_deref(),
            Some("old | Traceback | File x | ValueError: no")
        );
        assert_eq!(quoted(&[b"\n \n"]), None);
    }

    #[test]
    fn a_flood_without_newlines_stays_within_the_bounds() {
        let mut tail = Tail::default();
        for _ in 0..50 {
            tail.push(&[b'x'; 5000]);
        }
        tail.push(&vec![b'y'; 3 * TAIL_MAX]);
        assert_eq!(tail.bytes.len(), TAIL_MAX);
        tail.push("é!".as_bytes());
        let text = tail.quote().unwrap();
        assert!(
            text.len() <= QUOTE_MAX && text.starts_with('…') && text.ends_with("yé!"),
            "{text}"
        );
    }
}
