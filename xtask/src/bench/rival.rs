//! The programs of others that `cargo xtask bench --peers` stands beside the gateway.
//!
//! Owns: `target/peers/bench/` and the pins in `xtask/peers/bench/`. One that cannot be installed
//! is told and left out: a machine without it still measures the others. Nothing is installed into
//! the system.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::peers::{build_folder, once};
use crate::say;
use crate::step::{answers, command};

/// Debian's packages of haproxy and of what it needs that few machines have.
const HAPROXY: &[&str] = &[
    "haproxy",
    "liblua5.3-0",
    "libopentracing1",
    "libopentracing-c-wrapper0",
];

/// Installs what is missing or whose pins changed, and tells the folder.
pub(crate) fn install(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = build_folder(root).join("peers/bench");
    fs::create_dir_all(&folder)
        .with_context(|| format!("could not make the folder {}", folder.display()))?;
    let pins = root.join("xtask/peers/bench");
    optional("npm's mcp-proxy, mcp-remote, supergateway", || {
        npm(&pins, &folder)
    })?;
    optional("PyPI's mcp-proxy", || python(&pins, &folder))?;
    optional("rmcp-mux", || cargo(&pins, &folder))?;
    optional("haproxy", || haproxy(&folder))?;
    Ok(folder)
}

fn optional(name: &str, install: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    match install() {
        Ok(()) => Ok(()),
        Err(error) => say::line(format_args!("left out: {name}: {error:#}")),
    }
}

fn npm(pins: &Path, folder: &Path) -> anyhow::Result<()> {
    once(pins, folder, &["package.json", "package-lock.json"], || {
        let flags = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund"];
        let arguments = [&["install", "--loglevel=error"][..], &flags].concat();
        command(folder, "npm", &arguments, &[])
    })
}

fn python(pins: &Path, folder: &Path) -> anyhow::Result<()> {
    once(pins, folder, &["requirements.txt"], || {
        command(folder, "python3", &["-m", "venv", "--clear", "python"], &[])?;
        let pip = folder.join("python/bin/pip");
        let flags = ["install", "--quiet", "--disable-pip-version-check"];
        let arguments = [&flags[..], &["--requirement", "requirements.txt"]].concat();
        command(folder, &pip.to_string_lossy(), &arguments, &[])
    })
}

/// The file `rmcp-mux` holds the version; the crate's own lock file holds the rest.
fn cargo(pins: &Path, folder: &Path) -> anyhow::Result<()> {
    once(pins, folder, &["rmcp-mux"], || {
        let version = fs::read_to_string(pins.join("rmcp-mux")).context("its version")?;
        let place = folder.to_string_lossy();
        let flags = ["--locked", "--no-default-features", "--features", "cli"];
        let which = ["install", "rmcp-mux", "--version", version.trim()];
        let arguments = [&which[..], &flags, &["--root", &place]].concat();
        command(folder, "cargo", &arguments, &[])
    })
}

/// The machine's own haproxy, else Debian's packages, unpacked where no root is needed.
fn haproxy(folder: &Path) -> anyhow::Result<()> {
    let own = folder.join("haproxy");
    if answers("haproxy", &["-v"]) || own.join("usr/sbin/haproxy").is_file() {
        return say::line("peers: haproxy is installed");
    }
    fs::create_dir_all(&own).context("no folder for haproxy")?;
    let download = [&["download", "-q"][..], HAPROXY].concat();
    command(&own, "apt-get", &download, &[])?;
    for entry in fs::read_dir(&own).context("what was downloaded")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            command(&own, "dpkg", &["-x", &path.to_string_lossy(), "."], &[])?;
        }
    }
    Ok(())
}
