//! The open containers of a walk.
//!
//! Owns the bound on nesting. Must not know what stands in the containers.

use super::{DEPTH_MAX, scan::Stop};

/// The open containers, one bit each: is it an object?
#[derive(Clone, Debug)]
pub(super) struct Nesting {
    /// The kinds of the containers around the innermost one.
    outer: [u64; DEPTH_MAX / 64],
    /// Containers opened by this walk.
    opened: usize,
    /// Containers open around this walk.
    base: usize,
    /// Whether the innermost one is an object.
    pub(super) object: bool,
}

impl Nesting {
    #[inline]
    pub(super) fn new(base: usize) -> Self {
        Self {
            outer: [0; DEPTH_MAX / 64],
            opened: 0,
            base,
            object: false,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.opened == 0
    }

    /// Containers opened by this walk and not closed.
    #[inline]
    pub(super) fn depth(&self) -> usize {
        self.opened
    }

    #[inline]
    pub(super) fn push(&mut self, object: bool) -> Result<(), Stop> {
        if self.base + self.opened >= DEPTH_MAX {
            return Err(Stop::TooDeep);
        }
        if let Some(word) = self.outer.get_mut(self.opened / 64) {
            let bit = 1 << (self.opened % 64);
            *word = if self.object {
                *word | bit
            } else {
                *word & !bit
            };
        }
        self.opened += 1;
        self.object = object;
        Ok(())
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.opened = self.opened.saturating_sub(1);
        let word = self.outer.get(self.opened / 64).copied().unwrap_or(0);
        self.object = word >> (self.opened % 64) & 1 == 1;
    }
}
