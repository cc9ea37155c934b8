//! The open containers of a walk.
//!
//! Owns the bound on nesting. Must not know what stands in the containers.

use super::{DEPTH_MAX, scan::Stop};

/// The open containers, one bit each: is it an object?
#[derive(Clone, Debug)]
pub(super) struct Nesting {
    /// The innermost containers, of which the last bit is the innermost of all.
    inner: u64,
    /// What `inner` was whenever it was full.
    outer: [u64; DEPTH_MAX / 64],
    /// Containers opened by this walk.
    opened: usize,
    /// Containers open around this walk.
    base: usize,
}

impl Nesting {
    #[inline]
    pub(super) fn new(base: usize) -> Self {
        Self {
            inner: 0,
            outer: [0; DEPTH_MAX / 64],
            opened: 0,
            base,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.opened == 0
    }

    /// Whether the innermost one is an object.
    #[inline]
    pub(super) fn is_object(&self) -> bool {
        self.inner & 1 == 1
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
        if self.opened.is_multiple_of(64)
            && let Some(full) = self.outer.get_mut(self.opened / 64)
        {
            *full = self.inner;
        }
        self.inner = self.inner << 1 | u64::from(object);
        self.opened += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn pop(&mut self) {
        self.opened = self.opened.saturating_sub(1);
        self.inner >>= 1;
        if self.opened.is_multiple_of(64)
            && let Some(full) = self.outer.get(self.opened / 64)
        {
            self.inner = *full;
        }
    }
}
