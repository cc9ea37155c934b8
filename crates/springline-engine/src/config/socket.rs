//! Which socket a gateway of this configuration serves, whatever else is wrong with the text.
//!
//! Owns the reading of that one key, also out of a file with a mistake in it: who asks a gateway
//! that runs needs nothing else. It must not know what is asked.

use std::path::{Path, PathBuf};

use super::default::{Home, declaration};
use super::document::{Member, Node, parse};
use super::environment::Environment;
use super::expand::Expander;
use super::place::{ConfigError, Place, Problem};
use super::setting::default_socket;
use super::source::{named, read};
use super::value::{Given, Layer, read_member};
use super::{Overrides, Sources};

/// The key, as it stands in a file.
const KEY: &str = "\"socket\"";

/// The socket that flags, environment and files name, else the default one. Blocks on the disk.
///
/// # Errors
/// When a file that would say it cannot be read, or does not tell which of several values counts.
pub fn socket(
    sources: &Sources,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<PathBuf, ConfigError> {
    if let Some(socket) = &overrides.socket {
        return Ok(socket.clone());
    }
    let variable = environment.var("SPRINGLINE_SOCKET");
    if let Some(socket) = variable.filter(|path| !path.is_empty()) {
        return Ok(socket.into());
    }
    let files = named(sources, environment);
    let mut found = None;
    for path in files.paths {
        if let Some(bytes) = read(&path, files.by, files.optional, environment)? {
            found = in_file(&path, &bytes, environment)?.or(found);
        }
    }
    Ok(found.unwrap_or_else(|| default_socket(environment)))
}

/// What one file says of it.
fn in_file(
    path: &Path,
    bytes: &[u8],
    environment: &dyn Environment,
) -> Result<Option<PathBuf>, Problem> {
    let text = String::from_utf8_lossy(bytes);
    let root = match parse(path, &text) {
        Ok(root) => root,
        // Without a tree there is only the text. Where it is not clear, the mistake is the answer.
        Err(problem) => match written(&text).as_slice() {
            [] => None,
            [value] => parse(path, &format!("{{\"springline\":{{\"socket\":{value}}}}}"))?,
            _ => return Err(problem),
        },
    };
    let member = root.as_ref().and_then(socket_member);
    let (Some(member), Some(declared)) = (member, declaration(Home::Top, "socket")) else {
        return Ok(None);
    };
    let expander = Expander {
        environment,
        folder: path.parent().unwrap_or(Path::new("")),
        entry: None,
    };
    let mut layer = Layer::new();
    read_member(declared, member, &expander, &mut layer)?;
    Ok(match layer.swap_remove("socket") {
        Some((Place::File { .. }, Given::Path(path))) => Some(path),
        _ => None,
    })
}

fn socket_member(root: &Node) -> Option<&Member> {
    root.member("springline")?.node.member("socket")
}

/// The different strings that follow the key in a text, with their quotes; not those on a line
/// behind a comment's begin.
fn written(text: &str) -> Vec<&str> {
    let mut values = Vec::new();
    for (at, _) in text.match_indices(KEY) {
        let (before, rest) = text.split_at(at);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let rest = rest.get(KEY.len()..).unwrap_or_default().trim_start();
        let value = rest
            .strip_prefix(':')
            .and_then(|rest| string(rest.trim_start()));
        if let (Some(value), false) = (value, line.contains("//"))
            && !values.contains(&value)
        {
            values.push(value);
        }
    }
    values
}

/// The string that a text begins with, with its quotes.
fn string(text: &str) -> Option<&str> {
    let mut is_escaped = false;
    let inner = text.strip_prefix('"')?;
    let end = inner.find(|c: char| {
        let is_end = c == '\n' || (c == '"' && !is_escaped);
        is_escaped = c == '\\' && !is_escaped;
        is_end
    })?;
    inner[end..].starts_with('"').then(|| &text[..end + 2])
}
