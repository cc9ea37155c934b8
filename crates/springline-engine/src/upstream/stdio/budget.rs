//! What the unfinished lines of all children may hold together.
//!
//! Owns one counter for all of them. Must not know what a line is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that the unfinished lines of all children together may have.
pub const LINE_BUFFERS_MAX: usize = 256 * 1024 * 1024;

/// A line up to this long is kept even if the budget is spent, so that children with ordinary
/// messages do not pay for the one that floods.
const LINE_ALWAYS_KEPT: usize = 1024 * 1024;

/// A shared bound on buffered bytes. Beyond it, the line that grows is treated as over the cap.
#[derive(Debug)]
pub struct LineBudget {
    bytes_max: usize,
    always_kept: usize,
    used: AtomicUsize,
}

impl LineBudget {
    /// A budget of its own.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            always_kept: LINE_ALWAYS_KEPT.min(bytes_max / 4),
            used: AtomicUsize::new(0),
        })
    }

    /// Bytes that unfinished lines hold now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one child holds of the budget. Given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<LineBudget>,
    held: usize,
}

impl Share {
    pub(super) fn new(budget: &Arc<LineBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            held: 0,
        }
    }

    /// Notes what the child's line holds now; false if that must not be kept.
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        if bytes > self.held {
            self.budget
                .used
                .fetch_add(bytes - self.held, Ordering::Relaxed);
        } else {
            self.budget
                .used
                .fetch_sub(self.held - bytes, Ordering::Relaxed);
        }
        self.held = bytes;
        bytes <= self.budget.always_kept || self.budget.used() <= self.budget.bytes_max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooding_line_is_given_up_and_an_ordinary_one_is_kept() {
        let budget = LineBudget::new(1000);
        let (mut flood, mut ordinary) = (Share::new(&budget), Share::new(&budget));
        assert!(flood.hold(1000));
        assert!(ordinary.hold(100), "a short line is always kept");
        assert!(!flood.hold(1001));
        assert!(flood.hold(0));
        assert_eq!(budget.used(), 100);
        drop((flood, ordinary));
        assert_eq!(budget.used(), 0);
    }
}
