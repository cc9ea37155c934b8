//! The pinned servers, clients and suites that the end-to-end tests talk to.
//!
//! Owns: `target/peers/` and the pins in `xtask/peers/`. It must not know what a test does with
//! them. No install script of a package is run: what is installed is what the pins name.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::say;
use crate::step::command;

/// Where the peers are.
pub(crate) struct Peers {
    folder: PathBuf,
}

impl Peers {
    /// What tells a test where the peers are: their folder, and their programs first in `PATH`.
    /// The Node.js of the pins comes before the machine's, since some peers need a newer one.
    pub(crate) fn environment(&self) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        let own = ["node_modules/.bin", "python/bin"].map(|name| self.folder.join(name));
        let inherited = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths(own.into_iter().chain(env::split_paths(&inherited)))
            .context("PATH cannot be extended")?;
        Ok(vec![
            ("SPRINGLINE_PEERS", self.folder.clone().into_os_string()),
            ("PATH", path),
        ])
    }
}

/// Installs what is missing or whose pins changed; a second run does nothing.
pub(crate) fn install(root: &Path) -> anyhow::Result<Peers> {
    let folder = build_folder(root).join("peers");
    fs::create_dir_all(&folder)
        .with_context(|| format!("could not make the folder {}", folder.display()))?;
    let pins = root.join("xtask/peers");
    once(
        &pins,
        &folder,
        &["package.json", "package-lock.json"],
        || {
            // `install` and not `ci`: the lock names no entry for an optional Windows package, which
            // `ci` refuses. The versions are the lock's all the same.
            let flags = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund"];
            let arguments = [&["install", "--loglevel=error"][..], &flags].concat();
            command(&folder, "npm", &arguments, &[])
        },
    )?;
    once(&pins, &folder, &["requirements.txt"], || {
        command(
            &folder,
            "python3",
            &["-m", "venv", "--clear", "python"],
            &[],
        )?;
        let pip = folder.join("python/bin/pip");
        let flags = ["install", "--quiet", "--disable-pip-version-check"];
        let arguments = [&flags[..], &["--requirement", "requirements.txt"]].concat();
        command(&folder, &pip.to_string_lossy(), &arguments, &[])
    })?;
    Ok(Peers { folder })
}

/// Cargo's folder for what it builds.
pub(crate) fn build_folder(root: &Path) -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root.join(folder),
        None => root.join("target"),
    }
}

/// Runs `install` unless it already succeeded with these pins in this folder.
pub(crate) fn once(
    pins: &Path,
    folder: &Path,
    names: &[&str],
    install: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // The folder is a part of the stamp: a virtual environment does not survive a move.
    let mut stamp = format!("{}\n", folder.display());
    for name in names {
        let pin = fs::read_to_string(pins.join(name))
            .with_context(|| format!("could not read xtask/peers/{name}"))?;
        stamp.push_str(&pin);
    }
    let stamp_path = folder.join(format!("{}.stamp", names[0]));
    if fs::read_to_string(&stamp_path).is_ok_and(|current| current == stamp) {
        return say::line(format_args!("peers: {} is installed", names[0]));
    }
    for name in names {
        fs::copy(pins.join(name), folder.join(name))
            .with_context(|| format!("could not copy {name}"))?;
    }
    install()?;
    fs::write(&stamp_path, stamp).context("could not write the stamp")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::{env, fs, process};

    use anyhow::bail;

    use super::once;

    #[test]
    fn an_install_runs_again_only_after_a_failure_or_a_changed_pin() {
        let base = env::temp_dir().join(format!("xtask-peers-{}", process::id()));
        let (pins, folder) = (base.join("pins"), base.join("folder"));
        fs::create_dir_all(&pins).unwrap();
        fs::create_dir_all(&folder).unwrap();
        fs::write(pins.join("a"), "1").unwrap();
        let runs = Cell::new(0);
        let count = || {
            runs.set(runs.get() + 1);
            Ok(())
        };
        once(&pins, &folder, &["a"], || bail!("no network")).unwrap_err();
        once(&pins, &folder, &["a"], count).unwrap();
        once(&pins, &folder, &["a"], count).unwrap();
        assert_eq!(runs.get(), 1);
        fs::write(pins.join("a"), "2").unwrap();
        once(&pins, &folder, &["a"], count).unwrap();
        assert_eq!(runs.get(), 2);
        fs::remove_dir_all(&base).unwrap();
    }
}
