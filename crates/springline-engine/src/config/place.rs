//! Where a setting was written, and what is wrong with it.
//!
//! Owns the wording `where: what is wrong; how to mend it` that every error and note of the
//! configuration shares. It must not know what any setting means, and no text that it carries may
//! hold an expanded value.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The origin of a value: a point in a file, an environment variable or a command line flag.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// A point in a configuration file.
    File {
        /// The file as it was named to us.
        path: Arc<Path>,
        /// Line, from 1.
        line: u32,
        /// Column in characters, from 1.
        column: u32,
    },
    /// An environment variable, by name.
    Variable(&'static str),
    /// A command line flag, with its dashes.
    Flag(&'static str),
    /// No single point: the files as a whole.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Whole => f.write_str("configuration"),
        }
    }
}

/// What sort of fault a [`Problem`] is, for callers that react to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProblemKind {
    /// The text is wrong and stays wrong until someone edits it.
    Invalid,
    /// A variable that the text asks for is not set.
    Unset,
    /// A file that the text asks for cannot be read.
    Unreadable,
    /// A known feature that this version does not have.
    Unavailable,
}

/// One fault in the configuration: where, what, and how to mend it. Its `Display` is one line and
/// holds no secret.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{place}: {what}; {mend}")]
pub struct Problem {
    /// What sort of fault it is.
    pub kind: ProblemKind,
    /// Where the value stands.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub mend: String,
}

impl Problem {
    /// A fault in the text itself.
    pub(crate) fn invalid(
        place: &Place,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Problem {
        Self::new(ProblemKind::Invalid, place, what, mend)
    }

    /// A fault of the given kind.
    pub(crate) fn new(
        kind: ProblemKind,
        place: &Place,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Problem {
        Problem {
            kind,
            place: place.clone(),
            what: what.into(),
            mend: mend.into(),
        }
    }
}

/// Why one entry cannot be used. The other entries are not touched by it.
pub type EntryError = Problem;

/// Something that the operator should know, but that stops nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Note {
    /// Where it was seen.
    pub place: Place,
    /// The server entry that it is about, if it is about one.
    pub server: Option<String>,
    /// What was seen and what we made of it.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if let Some(server) = &self.server {
            write!(f, "server `{server}`: ")?;
        }
        f.write_str(&self.text)
    }
}

/// Why the configuration as a whole is refused. At start nothing runs; at a reload nothing changes.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that was named explicitly does not exist or cannot be read.
    #[error("{}: cannot read the configuration file named by {named_by} ({cause}); correct the path or the permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Who named it: `--config`, `SPRINGLINE_CONFIG` or `the default path`.
        named_by: &'static str,
        /// Why it cannot be read; part of the text, and so no source of it.
        cause: std::io::Error,
    },
    /// The text of a file or of a top-level setting is wrong.
    #[error(transparent)]
    Refused(#[from] Problem),
}

impl ConfigError {
    /// The fault in the text, if that is what it is.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Unreadable { .. } => None,
        }
    }
}
