//! The generated pages: one table of paths and of the functions that write them.
//!
//! Owns: which page comes from where. It must not hold text of its own: a page that is generated
//! is rendered by the crate that owns its data.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::say;

/// A path from the root, and what its file must hold.
type Page = (&'static str, fn() -> String);

const PAGES: &[Page] = &[
    ("docs/config.md", springline_engine::config::reference),
    (
        "docs/config.schema.json",
        springline_engine::config::schema_page,
    ),
    ("docs/errors.md", springline_proto::error::reference),
];

/// Writes the pages under `root`, or with `check` only tells which would change; that is an error.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    render(root, PAGES, check)
}

fn render(root: &Path, pages: &[Page], check: bool) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for (name, page) in pages {
        let (path, text) = (root.join(name), page());
        // A page that is missing or not text is as stale as one that differs.
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            continue;
        }
        stale.push(*name);
        if !check {
            fs::write(&path, text).with_context(|| format!("could not write {name}"))?;
            say::line(format_args!("docs: wrote {name}"))?;
        }
    }
    if check && !stale.is_empty() {
        bail!(
            "out of date: {}; run `cargo xtask docs` and commit",
            stale.join(", ")
        );
    }
    say::line(format_args!(
        "docs: {} generated page(s) are up to date",
        pages.len()
    ))
}

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::{Page, render};

    #[test]
    fn a_check_refuses_a_stale_page_and_a_run_mends_it() {
        let folder = env::temp_dir().join(format!("xtask-docs-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pages: &[Page] = &[("page.md", || "text\n".to_owned())];
        let refusal = render(&folder, pages, true).unwrap_err().to_string();
        assert!(refusal.contains("page.md"), "{refusal}");
        assert!(!folder.join("page.md").exists());
        render(&folder, pages, false).unwrap();
        render(&folder, pages, true).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
