//! Walking objects and arrays that were validated before.
//!
//! Owns the iterators and the comparison. On bytes that were not validated they stop early; they never panic.

use std::borrow::Cow;

use super::{
    Span,
    scan::Scanner,
    text::{key_is, string},
};

/// Values longer than this say the same only if they are the same bytes: a comparison reads nested
/// values once for each level.
const COMPARED_MAX: usize = 64 * 1024;

/// Whether two values that were validated before say the same: whatever the space between them, the
/// order of their members and the escapes in their strings. A number is its text: `1` is not `1.0`.
pub fn same(left: &[u8], right: &[u8]) -> bool {
    let is_short = |bytes: &[u8]| bytes.len() <= COMPARED_MAX;
    left == right
        || (is_short(left)
            && is_short(right)
            && is_same((left, Span::whole(left)), (right, Span::whole(right))))
}

/// Calls itself for each level of nesting, of which the scanner admits [`super::DEPTH_MAX`].
fn is_same(left: (&[u8], Span), right: (&[u8], Span)) -> bool {
    let text = |(bytes, span): (&'_ [u8], Span)| span.of(bytes).trim_ascii().first().copied();
    match (text(left), text(right)) {
        (Some(b'{'), Some(b'{')) => {
            let (ours, theirs) = (sorted(left), sorted(right));
            ours.len() == theirs.len()
                && ours.iter().zip(&theirs).all(|(ours, theirs)| {
                    ours.0 == theirs.0 && is_same((left.0, ours.1), (right.0, theirs.1))
                })
        }
        (Some(b'['), Some(b'[')) => {
            let mut theirs = elements(right.0, right.1);
            elements(left.0, left.1).all(|ours| {
                let theirs = theirs.next();
                theirs.is_some_and(|theirs| is_same((left.0, ours), (right.0, theirs)))
            }) && theirs.next().is_none()
        }
        (Some(b'"'), Some(b'"')) => {
            string(left.1.of(left.0).trim_ascii()) == string(right.1.of(right.0).trim_ascii())
        }
        _ => left.1.of(left.0).trim_ascii() == right.1.of(right.0).trim_ascii(),
    }
}

/// The members in the order of their names; those of one name stay in theirs.
fn sorted((bytes, object): (&[u8], Span)) -> Vec<(Option<Cow<'_, str>>, Span)> {
    let mut members: Vec<_> = members(bytes, object)
        .map(|(name, value)| (string(name.of(bytes)), value))
        .collect();
    members.sort_by(|left, right| left.0.cmp(&right.0));
    members
}

/// The value of the first member `name` of `object`, not looking into nested values.
pub fn member(bytes: &[u8], object: Span, name: &str) -> Option<Span> {
    members(bytes, object)
        .find(|(key, _)| {
            let literal = key.of(bytes);
            literal.get(1..literal.len().saturating_sub(1)) == Some(name.as_bytes())
                || (literal.contains(&b'\\') && key_is(literal, name))
        })
        .map(|(_, value)| value)
}

/// Follows `names` inwards from `object`.
pub fn path(bytes: &[u8], object: Span, names: &[&str]) -> Option<Span> {
    names
        .iter()
        .try_fold(object, |at, name| member(bytes, at, name))
}

/// The members of `object` in their order: (name with quotes, value). Nothing for another value.
pub fn members(bytes: &[u8], object: Span) -> Members<'_> {
    Members(Walk::new(bytes, object, b'{', b'}'))
}

/// The elements of `array` in their order. Nothing for another value.
pub fn elements(bytes: &[u8], array: Span) -> Elements<'_> {
    Elements(Walk::new(bytes, array, b'[', b']'))
}

/// Iterator of [`members`].
pub struct Members<'a>(Walk<'a>);

impl Iterator for Members<'_> {
    type Item = (Span, Span);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step(|scanner| {
            let start = scanner.at;
            let name = scanner.key().ok()?.literal;
            let name = Span::new(start, start + name.len());
            Some((name, value(scanner)?))
        })
    }
}

/// Iterator of [`elements`].
pub struct Elements<'a>(Walk<'a>);

impl Iterator for Elements<'_> {
    type Item = Span;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.step(value)
    }
}

fn value(scanner: &mut Scanner<'_>) -> Option<Span> {
    let start = scanner.at;
    scanner.value(0).ok()?;
    Some(Span::new(start, scanner.at))
}

/// What both iterators share: the scanner, and whether there is more.
struct Walk<'a> {
    scanner: Scanner<'a>,
    close: u8,
    done: bool,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], container: Span, open: u8, close: u8) -> Self {
        let bytes = bytes.get(..container.end as usize).unwrap_or_default();
        let at = container.start as usize;
        let mut scanner = Scanner::within(bytes, at);
        scanner.space();
        let is_container = scanner.peek() == Some(open);
        scanner.at += 1;
        scanner.space();
        let done = !is_container || scanner.peek() == Some(close);
        Self {
            scanner,
            close,
            done,
        }
    }

    fn step<T>(&mut self, read: impl FnOnce(&mut Scanner<'a>) -> Option<T>) -> Option<T> {
        if self.done {
            return None;
        }
        self.done = true;
        let item = read(&mut self.scanner)?;
        self.scanner.space();
        match self.scanner.peek() {
            Some(b',') => {
                self.scanner.at += 1;
                self.scanner.space();
                self.done = false;
                Some(item)
            }
            Some(byte) if byte == self.close => Some(item),
            _ => None,
        }
    }
}
