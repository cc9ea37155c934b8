//! String literals: from JSON and to JSON.
//!
//! Owns escapes. Must not know where a literal stands.

use std::{borrow::Cow, fmt::Write as _};

use super::scan::Scanner;

/// Decodes a JSON string literal, quotes included; `None` when `bytes` are not exactly one.
///
/// A lone surrogate escape, which no `str` can hold, becomes U+FFFD here; the bytes of the message
/// keep it (I13).
pub fn string(bytes: &[u8]) -> Option<Cow<'_, str>> {
    if bytes.first() != Some(&b'"') {
        return None;
    }
    let mut scanner = Scanner::within(bytes, 0);
    let escaped = scanner.string().ok()?;
    if scanner.at != bytes.len() {
        return None;
    }
    let inner = std::str::from_utf8(bytes.get(1..bytes.len() - 1)?).ok()?;
    if escaped {
        unescape(inner).map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// Writes `text` as a JSON string literal, quotes included.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\0'..='\x1F' => {
                // Writing to a String cannot fail.
                write!(out, "\\u{:04x}", character as u32).unwrap_or_default();
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

/// Whether the literal `key` (with quotes) spells `name`.
pub(crate) fn key_is(key: &[u8], name: &str) -> bool {
    string(key).is_some_and(|text| text == name)
}

/// The inside of a validated literal without its escapes.
fn unescape(mut inner: &str) -> Option<String> {
    let mut out = String::with_capacity(inner.len());
    while let Some((plain, rest)) = inner.split_once('\\') {
        out.push_str(plain);
        let kind = rest.chars().next()?;
        inner = rest.get(1..)?;
        match kind {
            'b' => out.push('\x08'),
            'f' => out.push('\x0C'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'u' => {
                let (character, rest) = code_point(inner)?;
                out.push(character);
                inner = rest;
            }
            other => out.push(other),
        }
    }
    out.push_str(inner);
    Some(out)
}

/// Reads the digits behind `\u`, and the second half of a surrogate pair where one follows.
fn code_point(text: &str) -> Option<(char, &str)> {
    let first = hex(text)?;
    let rest = text.get(4..)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, rest));
    }
    let second = rest.strip_prefix("\\u").and_then(hex);
    if let (0xD800..=0xDBFF, Some(low @ 0xDC00..=0xDFFF)) = (first, second) {
        let joined = 0x1_0000 + ((first - 0xD800) << 10) + (low - 0xDC00);
        return Some((char::from_u32(joined)?, rest.get(6..)?));
    }
    Some((char::REPLACEMENT_CHARACTER, rest))
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.get(..4)?, 16).ok()
}
