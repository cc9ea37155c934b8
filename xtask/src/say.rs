//! The one writer of this program's words.

use std::fmt::Display;
use std::io::{Write as _, stderr, stdout};

/// Prints one line. Errors only when standard output is gone.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Prints an error with its causes on one line. That standard error is gone changes nothing: the
/// exit status says the same.
pub(crate) fn error(error: &anyhow::Error) {
    writeln!(stderr().lock(), "error: {error:#}").ok();
}
