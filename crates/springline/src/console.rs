//! What commands print: the one writer to standard output of everything but the protocol.
//!
//! Owns: tables, and the cleaning of text that came from elsewhere. It must not know what the text
//! says.

use std::io::{self, BufWriter, IsTerminal as _, StdoutLock, Write as _};
use std::time::Duration;

use springline_proto::error::sanitise;

/// Bytes of one cell of a table.
const CELL_MAX: usize = 400;

/// Columns of a table that goes elsewhere than to a terminal: a file, or a pager.
const WIDTH: usize = 240;

/// Columns of a terminal that does not say how many it has.
const TERMINAL_WIDTH: usize = 80;

/// Columns that a column of a table keeps, however narrow the terminal is.
const WIDTH_MIN: usize = 8;

/// Standard output, buffered.
pub(crate) struct Console(BufWriter<StdoutLock<'static>>);

/// The columns that a line may have.
fn width() -> usize {
    let out = io::stdout();
    if !out.is_terminal() {
        return WIDTH;
    }
    let size = rustix::termios::tcgetwinsize(&out);
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 {
        TERMINAL_WIDTH
    } else {
        columns
    }
}

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

    /// Writes rows under a head, in columns that fit the terminal. Says nothing if there are no rows.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        for line in lines(head, rows, width()) {
            self.line(&line)?;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The lines of a table of at most `max` columns, as far as the least width of each column allows;
/// the widest columns are cut first.
fn lines(head: &[&str], rows: &[Vec<String>], max: usize) -> Vec<String> {
    let head = head.iter().map(ToString::to_string).collect();
    let rows = rows
        .iter()
        .map(|row| row.iter().map(|cell| clean(cell)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let mut widths = vec![0; rows.first().map_or(0, Vec::len)];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let gaps = 2 * widths.len().saturating_sub(1);
    let mut over = (widths.iter().sum::<usize>() + gaps).saturating_sub(max);
    while over > 0 {
        let Some(widest) = widths.iter_mut().max().filter(|width| **width > WIDTH_MIN) else {
            break;
        };
        *widest -= 1;
        over -= 1;
    }
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell = cut(cell, *width);
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', pad));
        }
        line.truncate(line.trim_end().len());
        line
    };
    rows.iter().map(line).collect()
}

/// A cell of at most so many characters.
fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    let mut cut: String = cell.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
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
    use super::{clean, lines, span};

    #[test]
    fn spans_show_their_two_largest_units() {
        assert_eq!(span(999), "0s");
        assert_eq!(span(61_000), "1m 1s");
        assert_eq!(span(3_600_000), "1h 0m");
        assert_eq!(span(90_000_000), "1d 1h");
    }

    #[test]
    fn a_table_fits_its_width_and_cuts_what_is_widest() {
        let rows = [
            vec!["demo".to_owned(), "x".repeat(300)],
            vec!["other".to_owned(), "short".to_owned()],
        ];
        for (max, expected) in [(40, 40), (500, 308), (3, 16)] {
            let lines = lines(&["SERVER", "REASON"], &rows, max);
            let widest = lines.iter().map(|line| line.chars().count()).max();
            assert_eq!(widest, Some(expected), "{max}");
            assert!(lines[1].starts_with("demo    x"), "{}", lines[1]);
            assert_eq!(lines[1].ends_with('…'), max < 300);
            assert_eq!(lines[2], "other   short");
        }
    }

    #[test]
    fn a_cell_cannot_steer_the_terminal() {
        assert!(!clean("a\u{1b}[2Jb\nc").contains(['\u{1b}', '\n']));
    }
}
