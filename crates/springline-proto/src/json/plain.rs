//! Runs of plain text: what stands in strings between their quotes and escapes.
//!
//! Owns the search for the end of a run, by words and by blocks, and the check that a run is UTF-8.
//! Must not know the grammar around strings.

/// Text that a string holds as it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Run {
    /// The first byte that does not belong to it: a quote, a backslash or a control character; the
    /// length of the bytes when there is none.
    pub(super) end: usize,
    /// Whether it is ASCII, and so no question of UTF-8.
    pub(super) ascii: bool,
}

/// Bytes of a run that are searched by words before blocks are tried: most strings are short, and a
/// long one is worth the wider steps.
const NEAR: usize = 32;

/// Bytes that are searched before they are checked for UTF-8, so that they are read from memory
/// once. A quarter of the first-level cache of today's processors.
pub(super) const STRETCH: usize = 8 * 1024;

/// Where a run of ASCII from `at` on ends: at what [`Run::end`] names, at another character or at the
/// end of the bytes. It keeps to a few registers, so that a call of it costs nothing beside its work.
#[inline(never)]
pub(super) fn ascii_end(bytes: &[u8], mut at: usize) -> usize {
    let near = at.saturating_add(NEAR);
    while let Some(word) = word(bytes, at) {
        let found = notable(word);
        if found != 0 {
            return at + place(found);
        }
        at += 8;
        if at >= near {
            return ascii_end_far(bytes, at);
        }
    }
    at + place(notable(last_word(bytes, at)))
}

#[inline(never)]
fn ascii_end_far(bytes: &[u8], at: usize) -> usize {
    let mut at = past_blocks::<true>(bytes, at);
    while let Some(word) = word(bytes, at) {
        let found = notable(word);
        if found != 0 {
            return at + place(found);
        }
        at += 8;
    }
    at + place(notable(last_word(bytes, at)))
}

/// The run that begins at `at`.
#[inline]
pub(super) fn run(bytes: &[u8], at: usize) -> Run {
    let near = at.saturating_add(NEAR);
    match bytes.get(..near) {
        None => run_by_words(bytes, at),
        Some(head) => match run_by_words(head, at) {
            run if run.end < near => run,
            begun => rest(bytes, begun),
        },
    }
}

/// The whole of a run that has begun so.
fn rest(bytes: &[u8], begun: Run) -> Run {
    let ascii_end = past_blocks::<true>(bytes, begun.end);
    // It goes on where a block has nothing worse than other characters.
    let blocks_end = past_blocks::<false>(bytes, ascii_end);
    let last = run_by_words(bytes, blocks_end);
    Run {
        end: last.end,
        ascii: begun.ascii && blocks_end == ascii_end && last.ascii,
    }
}

/// Past the blocks from `at` on that are plain as a whole, and ASCII if `ASCII`. Written so that the
/// compiler makes vector instructions of it: this is where the time of large results goes.
fn past_blocks<const ASCII: bool>(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<64>) {
        let ends = block.iter().fold(0, |ends, &byte| {
            // Read as signed, what is not ASCII is negative: one comparison tells both.
            let low = if ASCII {
                byte.cast_signed() < 0x20
            } else {
                byte < 0x20
            };
            ends | u8::from(low) | u8::from(byte == b'"') | u8::from(byte == b'\\')
        });
        if ends != 0 {
            break;
        }
        at += 64;
    }
    at
}

#[inline]
fn run_by_words(bytes: &[u8], mut at: usize) -> Run {
    let mut seen = 0;
    while let Some(word) = word(bytes, at) {
        let found = special(word);
        if found != 0 {
            // What stands behind the first mark is not of this run.
            seen |= word & (found & found.wrapping_neg()).wrapping_sub(1);
            return Run {
                end: at + place(found),
                ascii: seen & HIGH == 0,
            };
        }
        seen |= word;
        at += 8;
    }
    let mut ascii = seen & HIGH == 0;
    while let Some(&byte) = bytes.get(at) {
        if byte < 0x20 || byte == b'"' || byte == b'\\' {
            break;
        }
        ascii &= byte.is_ascii();
        at += 1;
    }
    Run { end: at, ascii }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The eight bytes at `at`, where there are so many.
#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*word))
}

/// The bytes at `at`, fewer than eight, and zeros behind them.
#[inline]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let left = bytes.len().saturating_sub(at);
    match bytes.last_chunk::<8>() {
        Some(word) if left > 0 => u64::from_le_bytes(*word) >> (8 * (8 - left.min(8))),
        Some(_) => 0,
        None => {
            let bytes = bytes.get(at..).unwrap_or_default();
            let join = |word, &byte| word << 8 | u64::from(byte);
            bytes.iter().rev().fold(0, join)
        }
    }
}

/// The place of the first mark in a word, in bytes.
#[inline]
fn place(marks: u64) -> usize {
    (marks.trailing_zeros() / 8) as usize
}

/// Marks the bytes of `word` that end a run, and those that are not ASCII, in their high bits. A
/// borrow can only mark bytes above a true mark, so the lowest mark is exact.
#[inline]
fn notable(word: u64) -> u64 {
    (low(word) | word) & HIGH
}

/// Marks the bytes of `word` that end a run; again the lowest mark is exact.
#[inline]
fn special(word: u64) -> u64 {
    low(word) & !word & HIGH
}

/// High bits that are right for ASCII bytes.
#[inline]
fn low(word: u64) -> u64 {
    let quote = (word ^ (ONES * 0x22)).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * 0x5C)).wrapping_sub(ONES);
    let control = word.wrapping_sub(ONES * 0x20);
    quote | backslash | control
}
