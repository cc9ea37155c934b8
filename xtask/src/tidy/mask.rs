//! A Rust source with its comments and its literals told apart from its code.
//!
//! Owns: just enough of Rust's lexical rules to do that. All three texts keep the length and the
//! line breaks of the source, so that a position means the same in each. It must not know why
//! anybody asks.

use std::ops::Range;

/// What a source looks like to the rules.
#[derive(Default)]
pub(crate) struct Mask {
    /// The source with comments and the insides of literals blanked.
    pub(super) code: String,
    /// The source with everything but comments blanked.
    pub(super) comments: String,
    /// Byte ranges of items under `#[cfg(test)]`.
    pub(super) tests: Vec<Range<usize>>,
}

impl Mask {
    pub(super) fn of(source: &str) -> Self {
        let mut scanner = Scanner {
            source: source.as_bytes(),
            at: 0,
            code: Vec::with_capacity(source.len()),
            comments: Vec::with_capacity(source.len()),
        };
        scanner.run();
        let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
        let (code, comments) = (text(scanner.code), text(scanner.comments));
        let tests = test_items(&code);
        Self {
            code,
            comments,
            tests,
        }
    }

    pub(super) fn in_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }
}

/// The number of the line, counted from 1, that holds byte `at`.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

/// Where the bracket that opens at `open` closes; the end of the text if it never does.
pub(super) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Where the item that starts at `from` opens its body with a brace, or `None` if it ends with a
/// semicolon first.
pub(super) fn body(code: &str, from: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for marker in ["#[cfg(test)]", "#[cfg(all(test", "#[test]", "#[tokio::test"] {
        for (start, _) in code.match_indices(marker) {
            let after = closing(code, start + 1) + 1;
            if let Some(open) = body(code, after) {
                ranges.push(start..closing(code, open) + 1);
            }
        }
    }
    ranges
}

struct Scanner<'a> {
    source: &'a [u8],
    at: usize,
    code: Vec<u8>,
    comments: Vec<u8>,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

impl Scanner<'_> {
    fn run(&mut self) {
        while self.at < self.source.len() {
            let rest = &self.source[self.at..];
            if rest.starts_with(b"//") {
                let len = rest.iter().position(|byte| *byte == b'\n');
                self.take(len.unwrap_or(rest.len()), Part::Comment);
            } else if rest.starts_with(b"/*") {
                self.take(block_len(rest), Part::Comment);
            } else if let Some(len) = raw_len(rest).filter(|_| !self.inside_word()) {
                self.take(len, Part::Literal);
            } else if rest[0] == b'"' {
                self.take(quoted_len(rest), Part::Literal);
            } else if let Some(len) = char_len(rest) {
                self.take(len, Part::Literal);
            } else {
                self.take(1, Part::Code);
            }
        }
    }

    fn inside_word(&self) -> bool {
        let before = self.at.checked_sub(1).map(|at| self.source[at]);
        before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    fn take(&mut self, len: usize, part: Part) {
        let end = (self.at + len).min(self.source.len());
        for &byte in &self.source[self.at..end] {
            let blank = if byte == b'\n' { b'\n' } else { b' ' };
            let keep = |wanted| if part == wanted { byte } else { blank };
            self.code.push(keep(Part::Code));
            self.comments.push(keep(Part::Comment));
        }
        self.at = end;
    }
}

fn block_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of a raw string (`r"…"`, `br#"…"#`) at the start of `rest`.
fn raw_len(rest: &[u8]) -> Option<usize> {
    let prefix = rest.iter().position(|byte| !b"bcr".contains(byte))?;
    if prefix == 0 || prefix > 2 || rest[prefix - 1] != b'r' {
        return None;
    }
    let hashes = rest[prefix..].iter().position(|byte| *byte != b'#')?;
    if rest[prefix + hashes] != b'"' {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let start = prefix + hashes + 1;
    let found = rest[start..]
        .windows(end.len())
        .position(|window| window == end);
    Some(found.map_or(rest.len(), |at| start + at + end.len()))
}

fn quoted_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a character literal at the start of `rest`; `None` for a lifetime.
fn char_len(rest: &[u8]) -> Option<usize> {
    if rest[0] != b'\'' {
        return None;
    }
    let first = *rest.get(1)?;
    if first == b'\\' {
        let end = rest.iter().skip(3).position(|byte| *byte == b'\'')?;
        return Some(end + 4);
    }
    // One character of up to four bytes, then the closing quote: else it is a lifetime.
    let width = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    (rest.get(width + 1) == Some(&b'\'')).then_some(width + 2)
}

#[cfg(test)]
mod tests {
    use super::{Mask, body, closing, line_of};

    #[test]
    fn comments_and_literals_are_not_code() {
        let mask =
            Mask::of("let a = \"fn /*\"; // fn x\nlet b = 'c'; /* fn /* y */ */ r#\"\"}\"#;");
        assert!(!mask.code.contains("fn"));
        assert!(!mask.code.contains('}'));
        assert!(mask.code.contains("let b ="));
        assert!(mask.comments.contains("// fn x"));
        assert!(mask.comments.contains("/* fn /* y */ */"));
        assert_eq!(mask.code.matches('\n').count(), 1);
    }

    #[test]
    fn lifetimes_are_code_and_escaped_quotes_do_not_end_a_literal() {
        let mask = Mask::of(r#"fn f<'a>(x: &'a str) { let q = '\''; let s = "\"{"; }"#);
        assert!(mask.code.contains("<'a>"));
        assert_eq!(
            closing(&mask.code, body(&mask.code, 0).unwrap()),
            mask.code.len() - 1
        );
    }

    #[test]
    fn multibyte_text_keeps_every_position() {
        let source = "let a = \"ä€\"; let c = 'ä'; let d = 1;";
        let mask = Mask::of(source);
        assert_eq!(mask.code.len(), source.len());
        assert_eq!(mask.code.find("let d"), source.find("let d"));
    }

    #[test]
    fn test_items_are_found() {
        let mask = Mask::of("fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}");
        let at = |name| mask.code.find(name).unwrap();
        assert!(!mask.in_test(at("fn a")));
        assert!(mask.in_test(at("fn b")));
        assert!(!mask.in_test(at("fn c")));
        assert_eq!(line_of(&mask.code, at("fn b")), 4);
    }
}
