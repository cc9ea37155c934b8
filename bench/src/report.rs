//! The one place that prints.

use std::io::Write as _;
use std::time::Duration;

/// One line on stdout. Who reads no more ends the run.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    drop(written);
}

/// The middle of some figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Lowest and highest of some figures: what noise did.
pub(crate) fn spread(figures: &[f64]) -> (f64, f64) {
    let low = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let high = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (low, high)
}

/// A span in microseconds.
pub(crate) fn micros(span: Duration) -> f64 {
    span.as_secs_f64() * 1e6
}
