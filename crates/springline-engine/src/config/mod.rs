//! The configuration: from the files that users already have to typed settings and server entries.
//!
//! Owns the dialect, the layers (built-in < files < environment < flags), the expansion of
//! variables, every message about them, the JSON Schema and the reference page. It must not know
//! what a server does, and it starts nothing.
//!
//! Two sorts of fault are kept apart. A bad entry becomes an [`Entry`] whose `definition` is the
//! reason; the others work. An unparsable file, a bad name or a bad top-level block is a
//! [`ConfigError`]: at start nothing runs, at a reload nothing changes. No value that came out of a
//! variable or a file is ever part of a message.

mod build;
pub mod default;
mod definition;
mod document;
mod entry;
mod env_file;
mod environment;
mod expand;
mod identity;
mod layer;
mod nearest;
mod place;
mod reference;
mod schema;
mod secret;
mod setting;
mod socket;
mod source;
mod unit;
mod value;

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

pub use self::definition::{
    Auth, Ca, Definition, HttpDefinition, RESERVED_HEADERS, StdioDefinition, sanitised_url,
};
pub use self::entry::{Entry, EntryOptions, Scope};
pub use self::environment::{Environment, ProcessEnvironment, ReadError};
pub use self::identity::Identity;
pub use self::place::{ConfigError, EntryError, Note, Place, Problem, ProblemKind};
pub use self::reference::reference;
pub use self::schema::{schema, schema_page};
pub use self::secret::Secret;
pub use self::setting::{Listen, PORT_DEFAULT, Settings};
pub use self::socket::socket;
pub use self::source::Sources;
pub use self::unit::{parse_bytes, parse_duration, show_bytes, show_duration};

/// What the command line says about settings; it comes before files and environment.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Overrides {
    /// `--listen ADDR`, or `none`.
    pub listen: Option<String>,
    /// `--socket PATH`.
    pub socket: Option<PathBuf>,
    /// `--state-dir PATH`.
    pub state_dir: Option<PathBuf>,
}

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Config {
    /// The entries by name, in the order of the files. A later file replaces an entry of the same
    /// name in its old position.
    pub servers: IndexMap<String, Entry>,
    /// The settings of the gateway.
    pub settings: Settings,
    /// What the operator should know.
    pub notes: Vec<Note>,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
}

/// Reads the configuration. Blocks on the disk.
///
/// # Errors
/// [`ConfigError`] if the configuration as a whole is to be refused. A fault in a single entry is no
/// error here; see [`Entry::definition`].
pub fn load(
    sources: &Sources,
    overrides: &Overrides,
    environment: &dyn Environment,
) -> Result<Config, ConfigError> {
    let mut gathered = source::gather(sources, environment)?;
    layer::environment(&mut gathered.layer, environment)?;
    layer::overrides(&mut gathered.layer, overrides)?;
    let settings = Settings::from_layer(&gathered.layer, environment)?;
    let mut servers = IndexMap::new();
    let mut notes = gathered.notes;
    for (name, written) in gathered.servers {
        let entry = Entry::read(&name, written.node, written.folder, &settings, environment);
        notes.extend(entry.notes());
        servers.insert(name, entry);
    }
    second_names(&mut servers);
    Ok(Config {
        servers,
        settings,
        notes,
        files: gathered.files,
    })
}

/// Gives each second name what its entry says.
fn second_names(servers: &mut IndexMap<String, Entry>) {
    let aliases: Vec<(String, Entry)> = servers
        .values()
        .filter_map(|entry| {
            let other = servers.get(entry.alias_of.as_deref()?)?;
            Some((entry.name.clone(), other.clone()))
        })
        .collect();
    for (name, other) in aliases {
        if let Some(entry) = servers.get_mut(&name) {
            entry.become_second_name(&other);
        }
    }
}

/// Replaces the variables in a text from the command line; the grammar is that of the files, and
/// relative paths start at the current folder. Blocks on the disk for `${file:…}`.
///
/// # Errors
/// When a variable is not set or a file cannot be read. No value is part of the message.
pub fn expand(text: &str, environment: &dyn Environment) -> Result<String, EntryError> {
    let expander = expand::Expander {
        environment,
        folder: Path::new(""),
        entry: None,
    };
    expander
        .expand(text, &Place::Whole)
        .map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests;
