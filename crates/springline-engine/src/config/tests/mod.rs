//! Behaviour of the configuration as a whole, on a machine that is a value.

mod entry;
mod error;
mod identity;
mod reference;
mod source;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::*;

/// A machine without a process: variables and files are what the test says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    vars: BTreeMap<String, String>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine::default().var("HOME", "/ann")
    }

    pub(crate) fn var(mut self, name: &str, value: &str) -> Machine {
        self.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn file(mut self, path: &str, text: impl AsRef<[u8]>) -> Machine {
        self.files
            .insert(PathBuf::from(path), text.as_ref().to_vec());
        self
    }
}

impl Environment for Machine {
    fn var(&self, name: &str) -> Option<OsString> {
        self.vars.get(name).map(OsString::from)
    }

    fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
        let bytes = self
            .files
            .get(path)
            .ok_or(io::Error::from(io::ErrorKind::NotFound))?;
        if bytes.len() as u64 > max {
            Err(ReadError::TooLarge)
        } else {
            Ok(bytes.clone())
        }
    }

    fn uid(&self) -> u32 {
        1000
    }
}

/// Loads `/c/s.json` with the given text.
pub(crate) fn try_load(text: &str, machine: &Machine) -> Result<Config, ConfigError> {
    let machine = machine.clone().file("/c/s.json", text);
    load(
        &Sources::from_files([PathBuf::from("/c/s.json")]),
        &Overrides::default(),
        &machine,
    )
}

pub(crate) fn loaded(text: &str, machine: &Machine) -> Config {
    try_load(text, machine).expect("a good configuration")
}

/// The entry `s` of the given text.
pub(crate) fn entry(text: &str, machine: &Machine) -> Entry {
    let text = format!("{{\"mcpServers\":{{\"s\":{text}}}}}");
    loaded(&text, machine)
        .servers
        .get("s")
        .expect("the entry")
        .clone()
}

/// Why the entry `s` is refused, without its place.
pub(crate) fn refusal(text: &str, machine: &Machine) -> String {
    let error = entry(text, machine)
        .definition
        .expect_err("a refused entry");
    let whole = error.to_string();
    whole
        .strip_prefix(&format!("{}: ", error.place))
        .expect("the place comes first")
        .to_owned()
}

pub(crate) fn stdio(entry: &Entry) -> &StdioDefinition {
    match &entry.definition {
        Ok(Definition::Stdio(stdio)) => stdio,
        other => panic!("not a stdio definition: {other:?}"),
    }
}

pub(crate) fn http(entry: &Entry) -> &HttpDefinition {
    match &entry.definition {
        Ok(Definition::Http(http)) => http,
        other => panic!("not an http definition: {other:?}"),
    }
}
