//! The files of the tree, read once.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::mask::Mask;

/// Folders that are never ours to judge (in a linked work tree `.git` is a file).
const SKIPPED: &[&str] = &[".git", "node_modules", "target"];
/// A text file larger than this is data.
const LEN_MAX: u64 = 4 << 20;

/// One text file.
pub(crate) struct File {
    /// Path from the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// For Rust sources only; empty for the rest.
    pub(super) mask: Mask,
}

impl File {
    pub(super) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let mask = if is_rust(&path) {
            Mask::of(&text)
        } else {
            Mask::default()
        };
        Self { path, text, mask }
    }

    pub(super) fn is_rust(&self) -> bool {
        is_rust(&self.path)
    }

    /// Whether the whole file is test code.
    pub(super) fn is_test(&self) -> bool {
        let in_tests = self.path.split('/').any(|part| part == "tests");
        in_tests || self.path.ends_with("/tests.rs") || self.path.ends_with("_tests.rs")
    }

    pub(super) fn is_manifest(&self) -> bool {
        self.path == "Cargo.toml" || self.path.ends_with("/Cargo.toml")
    }

    /// The file's name without folder and extension.
    pub(super) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }
}

fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|ext| ext == "rs")
}

/// The root of the workspace: the parent of this crate's folder.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}

/// Reads every text file under `root`, in the order of their paths.
pub(super) fn read(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder)
            .with_context(|| format!("could not read the folder {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if SKIPPED.iter().any(|skipped| name == *skipped) {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && entry.metadata()?.len() <= LEN_MAX {
                files.extend(read_text(root, &path)?);
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// `None` for a file that is not UTF-8: fuzz corpora and other data.
fn read_text(root: &Path, path: &Path) -> anyhow::Result<Option<File>> {
    let name = path
        .strip_prefix(root)?
        .to_string_lossy()
        .replace('\\', "/");
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(File::new(name, text))),
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::NotFound) => {
            Ok(None)
        }
        Err(error) => Err(error).with_context(|| format!("could not read {name}")),
    }
}
