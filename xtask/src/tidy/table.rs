//! Every dependency has its line in the table of CONTRIBUTING.md, and no line is left over.

use std::collections::BTreeMap;

use super::edge::dependencies as read;
use super::{File, Finding};

const PAGE: &str = "CONTRIBUTING.md";
const HEADING: &str = "## Dependencies";

/// A dependency without a reason, or a reason without a dependency.
pub(super) fn dependencies(files: &[File]) -> Vec<Finding> {
    let mut used = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_manifest()) {
        for dependency in read(&file.text) {
            if !dependency.name.starts_with("springline") {
                let place = (file.path.as_str(), dependency.line);
                used.entry(dependency.name).or_insert(place);
            }
        }
    }
    let page = files.iter().find(|file| file.path == PAGE);
    let rows = rows(page.map_or("", |file| &file.text));
    let missing = used
        .iter()
        .filter(|(name, _)| !rows.contains_key(name.as_str()));
    let missing = missing.map(|(name, (path, line))| {
        let message = format!(
            "`{name}` has no line in the table \"Dependencies\" of {PAGE}: say why it is needed \
             and what else was looked at"
        );
        finding(path, *line, name, message)
    });
    let stale = rows.iter().filter(|(name, _)| !used.contains_key(**name));
    let stale = stale.map(|(name, line)| {
        finding(
            PAGE,
            *line,
            name,
            format!("`{name}` is no dependency: take its line out"),
        )
    });
    missing.chain(stale).collect()
}

/// The names in the first column, with their lines.
fn rows(page: &str) -> BTreeMap<&str, usize> {
    let lines = page
        .lines()
        .enumerate()
        .skip_while(|(_, row)| *row != HEADING);
    let section = lines.skip(1).take_while(|(_, row)| !row.starts_with("## "));
    section
        .filter_map(|(index, row)| {
            let name = row.strip_prefix("| `")?.split('`').next()?;
            Some((name, index + 1))
        })
        .collect()
}

fn finding(path: &str, line: usize, name: &str, message: String) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        rule: "dependency-table",
        item: name.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::dependencies;
    use crate::tidy::File;

    fn tree(page: &str) -> [File; 2] {
        let manifest = "[dependencies]\nbytes = \"1\"\nspringline-proto = \"0\"\n";
        [
            File::new("a/Cargo.toml", manifest),
            File::new("CONTRIBUTING.md", page),
        ]
    }

    #[test]
    fn a_dependency_without_a_line_is_found_where_it_is_declared() {
        let found = dependencies(&tree("## Dependencies\n"));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("a/Cargo.toml", 2));
    }

    #[test]
    fn a_line_without_a_dependency_is_found() {
        let found = dependencies(&tree("## Dependencies\n| `bytes` | b |\n| `old` | o |\n"));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].item.as_str(), found[0].line), ("old", 3));
    }

    #[test]
    fn other_tables_of_the_page_are_not_read() {
        let page = "| `x` | y |\n## Dependencies\n| `bytes` | b |\n## Next\n| `z` | z |\n";
        assert!(dependencies(&tree(page)).is_empty());
    }
}
