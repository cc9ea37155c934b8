//! The one writer of this program's words.

use std::fmt::Display;
use std::io::{Write as _, stdout};

/// Prints one line. Errors only when standard output is gone.
pub(crate) fn line(text: impl Display) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()?;
    Ok(())
}
