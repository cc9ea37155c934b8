//! Variables in the strings of an entry.
//!
//! The grammar, the same in every string of the configuration:
//!
//! | written | becomes |
//! |---|---|
//! | `${NAME}`, `${env:NAME}` | the variable; it must be set |
//! | `${NAME:-text}`, `${env:NAME:-text}` | the variable, or `text` if it is unset or empty |
//! | `${file:PATH}` | the content of the file without surrounding white space |
//! | `$$` | `$` |
//! | any other `$` | itself: `$NAME` is not a variable |
//!
//! `text` and `PATH` may hold variables themselves. What a variable or file contributes is never
//! expanded again.
//!
//! Owns the grammar and the look-ups; it must not know what a string is for. An error names the
//! variable or the file, never a value.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::environment::{Environment, ReadError};
use super::place::{Place, Problem, ProblemKind};
use super::secret::Secret;

/// How deep variables may stand in the text of other variables.
const DEPTH_MAX: usize = 8;

/// The largest `${file:…}` and `envFile` that is read.
const VALUE_FILE_MAX: u64 = 1 << 20;

/// What the strings of one file, or of one entry in it, are expanded with.
#[derive(Clone, Copy)]
pub(crate) struct Expander<'a> {
    /// Variables of the process, and files.
    pub(crate) environment: &'a dyn Environment,
    /// The folder of the configuration file; relative paths start there.
    pub(crate) folder: &'a Path,
    /// The entry's `envFile`, which comes before the variables of the process.
    pub(crate) entry: Option<&'a IndexMap<String, Secret>>,
}

impl Expander<'_> {
    /// The text with its variables replaced.
    pub(crate) fn expand<'t>(&self, text: &'t str, at: &Place) -> Result<Cow<'t, str>, Problem> {
        if text.contains('$') {
            self.replace(text, at, 0).map(Cow::Owned)
        } else {
            Ok(Cow::Borrowed(text))
        }
    }

    /// An expanded path made absolute: `~/` is the home, all else starts at the file's folder.
    pub(crate) fn path(&self, text: &str) -> PathBuf {
        let home = text.strip_prefix("~/").zip(self.environment.var("HOME"));
        match home {
            Some((rest, home)) => Path::new(&home).join(rest),
            None => self.folder.join(text),
        }
    }

    /// The text of a file of at most [`VALUE_FILE_MAX`] bytes. `shown` names it in an error: the
    /// path may hold the value of a variable.
    pub(crate) fn text(&self, path: &Path, shown: &str, at: &Place) -> Result<String, Problem> {
        String::from_utf8(self.read(path, shown, at)?).map_err(|_| {
            Problem::new(
                ProblemKind::Unreadable,
                at,
                format!("file {shown} is not UTF-8"),
                "name a file of UTF-8 text",
            )
        })
    }

    /// The content of such a file.
    pub(crate) fn read(&self, path: &Path, shown: &str, at: &Place) -> Result<Vec<u8>, Problem> {
        self.environment
            .read(path, VALUE_FILE_MAX)
            .map_err(|error| {
                let why = match error {
                    ReadError::TooLarge => format!("is larger than {VALUE_FILE_MAX} bytes"),
                    ReadError::Io(error) => format!("cannot be read: {error}"),
                };
                Problem::new(
                    ProblemKind::Unreadable,
                    at,
                    format!("file {shown} {why}"),
                    "correct the path, or the permissions of the file",
                )
            })
    }

    fn replace(&self, text: &str, at: &Place, depth: usize) -> Result<String, Problem> {
        if depth > DEPTH_MAX {
            return Err(Problem::invalid(
                at,
                "variables are nested too deep",
                format!("at most {DEPTH_MAX} levels are read"),
            ));
        }
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            if let Some(after) = after.strip_prefix('$') {
                out.push('$');
                rest = after;
            } else if let Some(after) = after.strip_prefix('{') {
                let Some(end) = closing(after) else {
                    return Err(Problem::invalid(
                        at,
                        "`${` is never closed",
                        "add the missing }, or write $$ for a dollar sign",
                    ));
                };
                let (inside, tail) = after.split_at(end);
                out.push_str(&self.variable(inside, at, depth)?);
                rest = tail.strip_prefix('}').unwrap_or(tail);
            } else {
                out.push('$');
                rest = after;
            }
        }
        out.push_str(rest);
        Ok(out)
    }

    /// What stands for the text between `${` and `}`.
    fn variable(&self, inside: &str, at: &Place, depth: usize) -> Result<String, Problem> {
        if let Some(path) = inside.strip_prefix("file:") {
            let full = self.path(&self.replace(path, at, depth + 1)?);
            let text = self.text(&full, &shown(path, &full), at)?;
            return Ok(text.trim().to_owned());
        }
        let named = inside.strip_prefix("env:").unwrap_or(inside);
        let (name, fallback) = match named.split_once(":-") {
            Some((name, fallback)) => (name, Some(fallback)),
            None => (named, None),
        };
        if !is_name(name) {
            return Err(bad_name(name, at));
        }
        match (self.lookup(name, at)?, fallback) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(_)) if !value.is_empty() => Ok(value),
            (_, Some(fallback)) => self.replace(fallback, at, depth + 1),
            (None, None) => Err(Problem::new(
                ProblemKind::Unset,
                at,
                format!("variable {name} is not set"),
                format!("set it, or give a default with ${{{name}:-…}}"),
            )),
        }
    }

    fn lookup(&self, name: &str, at: &Place) -> Result<Option<String>, Problem> {
        if let Some(value) = self.entry.and_then(|entry| entry.get(name)) {
            return Ok(Some(value.expose().to_owned()));
        }
        let value = self
            .environment
            .var(name)
            .map(std::ffi::OsString::into_string);
        value.transpose().map_err(|_| {
            Problem::invalid(
                at,
                format!("variable {name} is not UTF-8"),
                "set it to UTF-8 text",
            )
        })
    }
}

/// A path for people: as it was written if a variable is part of it, else in full.
pub(crate) fn shown(raw: &str, full: &Path) -> String {
    if raw.contains('$') {
        raw.to_owned()
    } else {
        full.display().to_string()
    }
}

/// The offset of the `}` that closes a `${` that was just opened.
fn closing(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open = 0_usize;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, bytes.get(at + 1)) {
            (b'$', Some(b'{')) => {
                open += 1;
                at += 1;
            }
            (b'$', Some(b'$')) => at += 1,
            (b'}', _) if open == 0 => return Some(at),
            (b'}', _) => open -= 1,
            _ => {}
        }
        at += 1;
    }
    None
}

/// Whether `name` can be the name of an environment variable.
pub(crate) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn bad_name(name: &str, at: &Place) -> Problem {
    if let Some((prefix, _)) = name.split_once(':')
        && is_name(prefix)
    {
        return Problem::invalid(
            at,
            format!("`${{{prefix}:…}}` is not known here"),
            "use ${NAME}, ${env:NAME} or ${file:PATH}",
        );
    }
    Problem::invalid(
        at,
        "`${…}` does not hold the name of a variable",
        "names are letters, digits and _; write $$ for a dollar sign",
    )
}

#[cfg(test)]
#[path = "tests/expand.rs"]
mod tests;
