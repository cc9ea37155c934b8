//! What a run did, as a number that two runs of one seed must share, and as text on request.

use std::fmt::{Arguments, Write as _};

const OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01B3;

/// Folds bytes into a number, eight at a time (after Fowler, Noll and Vo).
pub(crate) fn fold(bytes: &[u8]) -> u64 {
    fold_into(OFFSET, bytes)
}

fn fold_into(mut sum: u64, bytes: &[u8]) -> u64 {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(PRIME);
        sum ^= sum >> 29;
    }
    (sum ^ bytes.len() as u64).wrapping_mul(PRIME)
}

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    sum: u64,
    text: Option<String>,
}

impl Trace {
    pub(crate) fn new(keep: bool) -> Self {
        Self {
            sum: OFFSET,
            text: keep.then(String::new),
        }
    }

    /// Notes one thing: numbers and bytes for the sum, a line for people.
    pub(crate) fn note(&mut self, numbers: [u64; 4], bytes: &[u8], line: Arguments<'_>) {
        for number in numbers {
            self.sum = (self.sum ^ number).wrapping_mul(PRIME);
            self.sum ^= self.sum >> 29;
        }
        self.sum = fold_into(self.sum, bytes);
        if let Some(text) = &mut self.text {
            // Writing to a String cannot fail.
            writeln!(text, "{line}").unwrap_or_default();
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.text.is_some()
    }

    pub(crate) fn finish(self) -> (u64, Option<String>) {
        (self.sum, self.text)
    }
}
