//! No manifest declares what its crate does not use.

use super::edge::{dependencies, is_whole};
use super::{File, Finding};

const ROOT: &str = "Cargo.toml";

/// A dependency that no source of the crate names, or that no crate takes from the workspace.
pub(super) fn dependency(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut taken = Vec::new();
    let (roots, members): (Vec<&File>, Vec<&File>) = files
        .iter()
        .filter(|file| file.is_manifest())
        .partition(|file| file.path == ROOT);
    for manifest in members {
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        for dependency in dependencies(&manifest.text) {
            if !is_named(files, folder, &dependency.name.replace('-', "_")) {
                findings.push(finding(manifest, dependency.line, &dependency.name));
            }
            taken.push(dependency.name);
        }
    }
    for root in roots {
        let all = dependencies(&root.text).into_iter();
        let unused = all.filter(|dependency| !taken.contains(&dependency.name));
        findings.extend(unused.map(|dependency| finding(root, dependency.line, &dependency.name)));
    }
    findings
}

fn is_named(files: &[File], folder: &str, name: &str) -> bool {
    let mut sources = files.iter().filter(|file| file.path.starts_with(folder));
    sources.any(|file| {
        let code = &file.mask.code;
        code.match_indices(name)
            .any(|(at, _)| is_whole(code, at, name.len()))
    })
}

fn finding(manifest: &File, line: usize, name: &str) -> Finding {
    Finding {
        path: manifest.path.clone(),
        line,
        rule: "unused-dependency",
        item: name.to_owned(),
        message: format!("nothing uses `{name}`: take the line out"),
    }
}

#[cfg(test)]
mod tests {
    use super::dependency;
    use crate::tidy::File;

    fn unused(source: &str) -> Vec<String> {
        let root = "[workspace.dependencies]\nhttp-body = \"1\"\nold = \"1\"\n";
        let tree = [
            File::new("Cargo.toml", root),
            File::new(
                "a/Cargo.toml",
                "[dependencies]\nhttp-body = { workspace = true }\n",
            ),
            File::new("a/src/lib.rs", source),
        ];
        dependency(&tree)
            .into_iter()
            .map(|finding| finding.item)
            .collect()
    }

    #[test]
    fn a_name_in_the_code_is_a_use() {
        assert_eq!(unused("use http_body::Body;"), ["old"]);
    }

    #[test]
    fn a_longer_name_or_a_comment_is_not() {
        assert_eq!(
            unused("use http_body_util::Full; // http_body"),
            ["http-body", "old"]
        );
    }
}
