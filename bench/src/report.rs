//! The one place that prints.
//!
//! Owns: the lines of the tables, and what is compared with a goal. A ratio is that of two figures
//! of the same round; the median over the rounds is printed, and the lowest and the highest.

use std::io::Write as _;
use std::time::Duration;

/// One line on stdout. Who reads no more ends the run.
pub(crate) fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    drop(written);
}

/// The middle of some figures; of an even number, that between the two in the middle.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
    let high = figures.len() / 2;
    let low = figures.len().saturating_sub(1) / 2;
    f64::midpoint(at(low), at(high))
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

/// A span in milliseconds.
pub(crate) fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Middle, lowest and highest of some figures.
pub(crate) fn range(figures: &[f64], digits: usize) -> String {
    let (low, high) = spread(figures);
    format!(
        "{:.digits$} ({low:.digits$} to {high:.digits$})",
        median(figures)
    )
}

/// What a figure of the gateway is held against.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// There is none; the figure stands for itself.
    None,
}

/// One line of the table of goals.
struct Line {
    measure: String,
    /// The gateway's figure, and how it reads.
    own: (f64, String),
    /// Those of others.
    others: Vec<(&'static str, String)>,
    goal: Goal,
    unit: &'static str,
}

/// What all sections found, for the table of goals at the end.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<Line>,
    /// Whether only the answers are judged, and no figure is printed.
    pub(crate) is_smoke: bool,
    /// Errors of the gateway, by measure.
    pub(crate) faults: Vec<String>,
}

impl Report {
    /// Adds a figure of the gateway beside those of others.
    pub(crate) fn add(
        &mut self,
        measure: impl Into<String>,
        own: (f64, String),
        others: Vec<(&'static str, String)>,
        goal: Goal,
        unit: &'static str,
    ) {
        self.lines.push(Line {
            measure: measure.into(),
            own,
            others,
            goal,
            unit,
        });
    }

    /// Prints the table of goals.
    pub(crate) fn print(&self) {
        if self.lines.is_empty() || self.is_smoke {
            return;
        }
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.lines.iter().flat_map(|line| &line.others) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        line("");
        line("### Goals");
        line("");
        let others = names.iter().map(|name| format!(" {name} |"));
        let others = others.collect::<String>();
        line(&format!(
            "| measure | Springline | goal | reached |{others}"
        ));
        line(&format!("|---|---|---|---|{}", "---|".repeat(names.len())));
        for row in &self.lines {
            let cells = names.iter().map(|name| {
                let cell = row.others.iter().find(|(other, _)| other == name);
                format!(" {} |", cell.map_or("", |(_, cell)| cell))
            });
            let (goal, reached) = row.verdict();
            line(&format!(
                "| {} | {} | {goal} | {reached} |{}",
                row.measure,
                row.own.1,
                cells.collect::<String>()
            ));
        }
    }
}

impl Line {
    fn verdict(&self) -> (String, &'static str) {
        let unit = self.unit;
        let (goal, is_reached) = match self.goal {
            Goal::AtLeast(bound) => (format!("≥ {bound}{unit}"), self.own.0 >= bound),
            Goal::AtMost(bound) => (format!("≤ {bound}{unit}"), self.own.0 <= bound),
            Goal::None => return (String::new(), ""),
        };
        (goal, if is_reached { "yes" } else { "**no**" })
    }
}

#[cfg(test)]
mod tests {
    use super::{median, range};

    #[test]
    fn the_middle_is_printed_with_the_lowest_and_the_highest() {
        assert_eq!(range(&[3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
        assert_eq!(range(&[4.0, 1.0, 2.0, 3.0], 1), "2.5 (1.0 to 4.0)");
        assert!(median(&[]).is_nan());
    }
}
