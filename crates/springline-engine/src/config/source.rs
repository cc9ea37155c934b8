//! Which files are read, and what they say together.
//!
//! Owns the search order, the top level of a file and the merging of several. It must not know what
//! stands inside an entry.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use springline_proto::names::{SERVER_NAME_MAX as NAME_MAX, check_server_name};

use super::default::Home;
use super::document::{Member, Node, Value, duplicate, parse};
use super::environment::{Environment, ReadError};
use super::expand::Expander;
use super::layer::merge;
use super::nearest::nearest;
use super::place::{ConfigError, Note, Place, Problem};
use super::setting::xdg;
use super::value::{Layer, read_block};

/// The largest configuration file that is read.
const FILE_MAX: u64 = 16 << 20;

/// Where the configuration comes from.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Sources {
    /// The files of `--config`, in order. If there are none, `$SPRINGLINE_CONFIG` names the file;
    /// if that is not set, it is `springline/config.json` in `$XDG_CONFIG_HOME` or `~/.config`.
    pub files: Vec<PathBuf>,
}

impl Sources {
    /// The files of `--config`.
    pub fn from_files(files: impl IntoIterator<Item = PathBuf>) -> Sources {
        Sources {
            files: files.into_iter().collect(),
        }
    }

    /// The default path, where neither `--config` nor `$SPRINGLINE_CONFIG` names a file.
    pub fn default_path(environment: &dyn Environment) -> Option<PathBuf> {
        xdg(environment, "XDG_CONFIG_HOME", ".config")
            .map(|folder| folder.join("springline").join("config.json"))
    }
}

/// What all files say together.
#[derive(Default)]
pub(crate) struct Gathered {
    pub(crate) servers: IndexMap<String, Written>,
    pub(crate) layer: Layer,
    pub(crate) notes: Vec<Note>,
    pub(crate) files: Vec<PathBuf>,
}

/// An entry as it stands in a file.
pub(crate) struct Written {
    pub(crate) node: Node,
    /// The folder of the file.
    pub(crate) folder: Arc<Path>,
}

/// Reads and merges the files.
pub(crate) fn gather(
    sources: &Sources,
    environment: &dyn Environment,
) -> Result<Gathered, ConfigError> {
    let mut gathered = Gathered::default();
    let Named {
        paths,
        by: named_by,
        optional,
    } = named(sources, environment);
    if paths.is_empty() {
        gathered.note(
            &Place::Whole,
            "no file was read: neither XDG_CONFIG_HOME nor HOME is set".to_owned(),
        );
    }
    for path in paths {
        if let Some(bytes) = read(&path, named_by, optional, environment)? {
            gathered.file(&path, bytes, environment)?;
            continue;
        }
        let text = format!(
            "there is no file {}: no servers are configured",
            path.display()
        );
        gathered.note(&Place::Whole, text);
    }
    Ok(gathered)
}

/// The files that are to be read.
pub(crate) struct Named {
    pub(crate) paths: Vec<PathBuf>,
    /// Who named them, for errors.
    pub(crate) by: &'static str,
    /// Whether they need not be there.
    pub(crate) optional: bool,
}

/// The files that flags and environment name, else the one at the default path.
pub(crate) fn named(sources: &Sources, environment: &dyn Environment) -> Named {
    let (paths, by, optional) = if !sources.files.is_empty() {
        (sources.files.clone(), "--config", false)
    } else if let Some(path) = environment
        .var("SPRINGLINE_CONFIG")
        .filter(|path| !path.is_empty())
    {
        (vec![PathBuf::from(path)], "SPRINGLINE_CONFIG", false)
    } else {
        let path = Sources::default_path(environment);
        (path.into_iter().collect(), "the default path", true)
    };
    Named {
        paths,
        by,
        optional,
    }
}

/// What a file holds; nothing for one that need not be there and is not.
pub(crate) fn read(
    path: &Path,
    named_by: &'static str,
    optional: bool,
    environment: &dyn Environment,
) -> Result<Option<Vec<u8>>, ConfigError> {
    let cause = match environment.read(path, FILE_MAX) {
        Ok(bytes) => return Ok(Some(bytes)),
        Err(ReadError::Io(error)) if optional && error.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(ReadError::Io(error)) => error,
        Err(ReadError::TooLarge) => io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the file is larger than {FILE_MAX} bytes"),
        ),
    };
    Err(ConfigError::Unreadable {
        path: path.to_owned(),
        named_by,
        cause,
    })
}

impl Gathered {
    fn note(&mut self, place: &Place, text: String) {
        self.notes.push(Note {
            place: place.clone(),
            server: None,
            text,
        });
    }

    fn file(
        &mut self,
        path: &Path,
        bytes: Vec<u8>,
        environment: &dyn Environment,
    ) -> Result<(), Problem> {
        let start = Place::File {
            path: Arc::from(path),
            line: 1,
            column: 1,
        };
        let text = String::from_utf8(bytes)
            .map_err(|_| Problem::invalid(&start, "the file is not UTF-8", "save it as UTF-8"))?;
        self.files.push(path.to_owned());
        let Some(root) = parse(path, &text)? else {
            // Perhaps a write that was cut short: it must not take every server away at a reload.
            return Err(Problem::invalid(
                &start,
                "the file is empty",
                "write `{}` if there shall be no servers, or put the configuration back",
            ));
        };
        let folder: Arc<Path> = Arc::from(path.parent().unwrap_or(Path::new("")));
        self.top(&root, &folder, environment)
    }

    /// Reads the top level of one file.
    fn top(
        &mut self,
        root: &Node,
        folder: &Arc<Path>,
        environment: &dyn Environment,
    ) -> Result<(), Problem> {
        let mut own: IndexMap<String, &Member> = IndexMap::new();
        let mut lists: Vec<&Member> = Vec::new();
        for member in root.members("the configuration")? {
            match (member.name.as_str(), &member.node.value) {
                ("mcpServers" | "servers" | "springline", Value::Null) | ("$schema", _) => {}
                ("mcpServers" | "servers", _) => {
                    lists.push(member);
                    for server in entries(member)? {
                        check_name(server, &own)?;
                        if let Some(first) = own.insert(server.name.clone(), server) {
                            return Err(duplicate(first, server));
                        }
                    }
                }
                ("springline", _) => {
                    let expander = Expander {
                        environment,
                        folder,
                        entry: None,
                    };
                    let mut layer = Layer::new();
                    let block = member.node.members("`springline`")?;
                    read_block(block, Home::Top, "", &expander, &mut layer)?;
                    merge(&mut self.layer, layer);
                }
                (name, _) => self.note(&member.place, ignored(name)),
            }
        }
        if let [_, second] = lists.as_slice() {
            let text = "both `mcpServers` and `servers` are given: the entries of both count";
            self.note(&second.place, text.to_owned());
        }
        if lists.is_empty() && root.member("springline").is_none() {
            self.note(
                &root.place,
                "the file has no `mcpServers` and no `servers`".to_owned(),
            );
        }
        for (name, member) in own {
            let written = Written {
                node: member.node.clone(),
                folder: Arc::clone(folder),
            };
            self.servers.insert(name, written);
        }
        Ok(())
    }
}

/// The entries of `mcpServers` or `servers`.
fn entries(list: &Member) -> Result<&[Member], Problem> {
    list.node.members(&format!("`{}`", list.name))
}

/// The note for a top-level key that is not ours.
fn ignored(name: &str) -> String {
    match nearest(name, ["mcpServers", "servers", "springline"].into_iter()) {
        Some(near) => format!("the key `{name}` is ignored; did you mean `{near}`?"),
        None => format!("the key `{name}` is ignored"),
    }
}

fn check_name(server: &Member, own: &IndexMap<String, &Member>) -> Result<(), Problem> {
    let name = &server.name;
    if check_server_name(name).is_ok() {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Problem::invalid(
        &server.place,
        format!("{shown:?} cannot be the name of a server"),
        format!(
            "use 1 to {NAME_MAX} of the characters A-Z a-z 0-9 _ - without __, for example `{}`",
            suggestion(name, own)
        ),
    ))
}

/// A good name that is close to a bad one and not taken by an entry before it.
fn suggestion(name: &str, own: &IndexMap<String, &Member>) -> String {
    let mut good = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        };
        if !(matches!(c, '-' | '_') && (good.is_empty() || good.ends_with(['-', '_']))) {
            good.push(c);
        }
    }
    good.truncate(NAME_MAX);
    let good = good.trim_end_matches(['-', '_']);
    let good = if good.is_empty() { "server" } else { good };
    if !own.contains_key(good) {
        return good.to_owned();
    }
    let stem: String = good.chars().take(NAME_MAX - 3).collect();
    let numbered = (2..100).map(|number| format!("{stem}-{number}"));
    numbered
        .into_iter()
        .find(|name| !own.contains_key(name))
        .unwrap_or(stem)
}
