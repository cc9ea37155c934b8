//! What commands print: the one writer to standard output of everything but the protocol.
//!
//! Owns: tables, and the cleaning of text that came from elsewhere. It must not know what the text
//! says.

use std::io::{self, BufWriter, StdoutLock, Write as _};
use std::time::Duration;

use springline_proto::error::sanitise;

/// Bytes of one cell of a table.
const CELL_MAX: usize = 400;

/// Standard output, buffered.
pub(crate) struct Console(BufWriter<StdoutLock<'static>>);

impl Console {
    pub(crate) fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    /// Writes bytes as they are and ends the line.
    pub(crate) fn raw(&mut self, text: &[u8]) -> io::Result<()> {
        self.0.write_all(text)?;
        self.0.write_all(b"\n")
    }

    /// Writes one line of our own words; what came from elsewhere in it must be clean.
    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.raw(text.as_bytes())
    }

    /// Writes a text of several lines that came from elsewhere: a terminal must not obey it.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        let clean: String = text
            .chars()
            .filter(|c| matches!(c, '\n' | '\t') || !c.is_control())
            .collect();
        self.line(&clean)
    }

    /// Writes rows under a head, in columns. Says nothing if there are no rows.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(|cell| clean(cell)).collect())
            .collect();
        let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let head: Vec<String> = head.iter().map(ToString::to_string).collect();
        for row in std::iter::once(&head).chain(&rows) {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                let pad = width.saturating_sub(cell.chars().count()) + 2;
                line.extend(std::iter::repeat_n(' ', pad));
            }
            self.line(line.trim_end())?;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// One cell: a line without control characters, cut.
pub(crate) fn clean(text: &str) -> String {
    sanitise(text, CELL_MAX)
}

/// A span for people: its two largest units.
pub(crate) fn span(millis: u64) -> String {
    let seconds = Duration::from_millis(millis).as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::{clean, span};

    #[test]
    fn spans_show_their_two_largest_units() {
        assert_eq!(span(999), "0s");
        assert_eq!(span(61_000), "1m 1s");
        assert_eq!(span(3_600_000), "1h 0m");
        assert_eq!(span(90_000_000), "1d 1h");
    }

    #[test]
    fn a_cell_cannot_steer_the_terminal() {
        assert!(!clean("a\u{1b}[2Jb\nc").contains(['\u{1b}', '\n']));
    }
}
