//! Names on `/mcp`, where every server stands behind one endpoint.
//!
//! Owns the mapping between a server's own tool names and resource URIs and those that clients see
//! there, the rule for server names, and the cursors of the merged lists. A name depends on its own
//! server and tool alone, so that it stays when other servers come and go. Must not know lists.

mod cursor;

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

pub use cursor::{Cursor, CursorError, CursorKey};

/// The longest name of a tool or prompt on `/mcp`; hosts refuse longer ones.
pub const TOOL_NAME_MAX: usize = 64;

/// The longest name of a server entry. It leaves 21 characters of a tool's own name beside the
/// digest.
pub const SERVER_NAME_MAX: usize = 32;

/// Between a server's name and a tool's.
const SEPARATOR: &str = "__";

/// Before a server's name in a resource URI.
const SCHEME: &str = "springline://";

/// Hexadecimal digits of the digest that tells cut names apart.
const DIGEST_LEN: usize = 8;

/// Why a name cannot be that of a server entry.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{reason}; \"{suggestion}\" would do")]
pub struct NameError {
    /// What is wrong with it.
    pub reason: NameFlaw,
    /// A valid name close to it.
    pub suggestion: String,
}

/// What is wrong with a server's name.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NameFlaw {
    /// It has no character.
    #[error("the name is empty")]
    Empty,
    /// It has more than [`SERVER_NAME_MAX`] characters.
    #[error("the name is longer than {SERVER_NAME_MAX} characters")]
    TooLong,
    /// A character outside `[A-Za-z0-9_-]`.
    #[error("the name has the character {0:?} (letters, digits, \"_\" and \"-\" are allowed)")]
    Character(char),
    /// Two underscores in a row, which separate server and tool on `/mcp`.
    #[error("the name has \"__\", which separates server and tool")]
    Separator,
}

/// Checks the name of a server entry: `[A-Za-z0-9_-]{1,32}` without `__`.
pub fn check_server_name(name: &str) -> Result<(), NameError> {
    let stray = name.chars().find(|character| !is_server_char(*character));
    let reason = if name.is_empty() {
        NameFlaw::Empty
    } else if let Some(character) = stray {
        NameFlaw::Character(character)
    } else if name.contains(SEPARATOR) {
        NameFlaw::Separator
    } else if name.len() > SERVER_NAME_MAX {
        NameFlaw::TooLong
    } else {
        return Ok(());
    };
    Err(NameError {
        reason,
        suggestion: suggest(name),
    })
}

/// The name on `/mcp` of a server's tool or prompt: `server__tool`.
///
/// Over [`TOOL_NAME_MAX`] characters, or with a character outside `[A-Za-z0-9_.-]`, the tool's part is
/// cut, its stray characters become `_`, and it ends in `_` and 8 hexadecimal digits of the SHA-256
/// of the original. `server` must be valid.
pub fn tool_name(server: &str, tool: &str) -> String {
    let mut name = String::with_capacity(TOOL_NAME_MAX);
    name.push_str(server);
    name.push_str(SEPARATOR);
    if is_plain(server, tool) {
        name.push_str(tool);
        return name;
    }
    let room = TOOL_NAME_MAX.saturating_sub(name.len() + 1 + DIGEST_LEN);
    let clean = |character| {
        if is_tool_char(character) {
            character
        } else {
            '_'
        }
    };
    name.extend(tool.chars().take(room).map(clean));
    name.push('_');
    for byte in Sha256::digest(tool.as_bytes()).iter().take(DIGEST_LEN / 2) {
        // Writing to a String cannot fail.
        write!(name, "{byte:02x}").unwrap_or_default();
    }
    name
}

/// Whether clients see the tool `tool` of `server` as `listed`.
pub fn names_tool(listed: &str, server: &str, tool: &str) -> bool {
    let own = listed
        .strip_prefix(server)
        .and_then(|rest| rest.strip_prefix(SEPARATOR));
    // Plain names, nearly all of them, need no digest.
    own.is_some_and(|part| {
        if is_plain(server, tool) {
            part == tool
        } else {
            tool_name(server, tool) == listed
        }
    })
}

/// Splits a name on `/mcp` into the server and the tool's part, at the first place where that can be.
///
/// The part is the tool's own name unless that was cut; whether it was, only the server's list can
/// tell (see [`names_tool`]).
pub fn split_tool_name(listed: &str) -> Option<(&str, &str)> {
    tool_name_splits(listed).next()
}

/// All the ways to read a name on `/mcp`. There are two where a server's name ends in an underscore,
/// or a tool's begins with one: `a___b` is `_b` of `a` and `b` of `a_`.
pub fn tool_name_splits(listed: &str) -> impl Iterator<Item = (&str, &str)> {
    let first = listed.find(SEPARATOR).unwrap_or(listed.len());
    [first, first + 1].into_iter().filter_map(move |at| {
        let server = listed.get(..at)?;
        let tool = listed.get(at..)?.strip_prefix(SEPARATOR)?;
        check_server_name(server).is_ok().then_some((server, tool))
    })
}

/// The URI on `/mcp` of a server's resource, or its template: `springline://{server}/` and the
/// original as it is.
pub fn resource_uri(server: &str, original: &str) -> String {
    [SCHEME, server, "/", original].concat()
}

/// Splits a URI on `/mcp` into the server and the original. The exact inverse of [`resource_uri`].
pub fn split_resource_uri(uri: &str) -> Option<(&str, &str)> {
    let (server, original) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    check_server_name(server)
        .is_ok()
        .then_some((server, original))
}

/// Whether a tool's name can stand as it is.
fn is_plain(server: &str, tool: &str) -> bool {
    server.len() + SEPARATOR.len() + tool.len() <= TOOL_NAME_MAX && tool.chars().all(is_tool_char)
}

fn is_server_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-')
}

fn is_tool_char(character: char) -> bool {
    is_server_char(character) || character == '.'
}

/// A valid name close to `name`.
fn suggest(name: &str) -> String {
    let mut out = String::new();
    for character in name.trim().chars() {
        let character = if is_server_char(character) {
            character
        } else {
            '-'
        };
        let repeated = matches!(character, '_' | '-') && out.ends_with(character);
        if !repeated && out.len() < SERVER_NAME_MAX {
            out.push(character);
        }
    }
    let out = out.trim_matches('-');
    if out.is_empty() {
        "server".to_owned()
    } else {
        out.to_owned()
    }
}

#[cfg(test)]
mod tests;
