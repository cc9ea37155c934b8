//! The rules of the house that a compiler cannot keep, read from the text of the tree.
//!
//! Owns: the list of rules and how a breach is told. Each rule is a function from files to
//! findings, so that its tests need no tree.

use std::fmt;
use std::path::Path;

use anyhow::bail;

use crate::say;

mod allow;
mod edge;
mod length;
mod mask;
mod table;
mod text;
pub(crate) mod tree;
mod unused;
mod word;

pub(crate) use tree::File;

/// One breach of one rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Finding {
    /// Path from the root, with `/`.
    path: String,
    /// Counted from 1.
    line: usize,
    /// The rule's name, as the allow-list spells it.
    rule: &'static str,
    /// What an entry of the allow-list must name besides the path; empty for a whole file.
    item: String,
    /// What is wrong and how to mend it.
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            rule,
            message,
            ..
        } = self;
        write!(f, "{path}:{line}: [{rule}] {message}")
    }
}

type Rule = fn(&[File]) -> Vec<Finding>;

const RULES: &[Rule] = &[
    edge::direction,
    edge::proto_dependencies,
    edge::proto_source,
    length::files,
    length::functions,
    length::architecture,
    table::dependencies,
    text::hosts,
    text::machine_paths,
    text::module_docs,
    text::unfinished,
    text::ignored_tests,
    unused::dependency,
    word::file_names,
    word::item_names,
];

/// Checks the tree under `root`; an error tells how many rules were broken.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let files = tree::read(root)?;
    let findings = check(&files);
    for finding in &findings {
        say::line(finding)?;
    }
    if findings.is_empty() {
        return say::line(format_args!("tidy: {} files, no findings", files.len()));
    }
    bail!(
        "tidy: {} finding(s); mend them, or add a line with a reason to {}",
        findings.len(),
        allow::PATH
    )
}

fn check(files: &[File]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(files)).collect();
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    allow::apply(files, findings)
}
