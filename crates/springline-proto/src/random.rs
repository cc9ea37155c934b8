//! Seeded random inputs for tests: the same seed gives the same test (I12).

/// Marsaglia's xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap() % bound
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }

    /// Cuts `bytes` into chunks of random length, some of them empty.
    pub(crate) fn chunks<'a>(&mut self, mut bytes: &'a [u8], len_max: usize) -> Vec<&'a [u8]> {
        let mut chunks = Vec::new();
        while !bytes.is_empty() {
            let (chunk, rest) = bytes.split_at(self.below(len_max + 1).min(bytes.len()));
            chunks.push(chunk);
            bytes = rest;
        }
        chunks
    }
}
