//! What no file may say: hosts of package registries, folders of one machine, work left open.

use super::mask::line_of;
use super::{File, Finding};

/// Hosts of package registries, in two halves so that this list does not break its own rule.
const HOSTS: &[(&str, &str)] = &[
    ("crates", "io"),
    ("npmjs", "com"),
    ("npmjs", "org"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("yarnpkg", "com"),
];
/// First folders of paths that exist on one machine only.
const FOLDERS: &[&str] = &["Users", "builds", "home", "root", "work", "workspace"];
/// Folders of people in examples.
const EXAMPLES: &[&str] = &["home/user", "home/you", "Users/you"];
/// Extensions of files that people write code in.
const CODE: &[&str] = &["js", "mjs", "py", "sh", "toml", "ts", "yml"];

fn each_line<'a>(
    files: impl Iterator<Item = &'a File>,
    rule: &'static str,
    judge: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (index, row) in file.text.lines().enumerate() {
            findings.extend(judge(row).map(|message| Finding {
                path: file.path.clone(),
                line: index + 1,
                rule,
                item: String::new(),
                message,
            }));
        }
    }
    findings
}

/// A package is named, never the place that serves it: people have mirrors.
pub(super) fn hosts(files: &[File]) -> Vec<Finding> {
    let hosts: Vec<String> = HOSTS
        .iter()
        .map(|(name, zone)| format!("{name}.{zone}"))
        .collect();
    // Cargo writes its own lock file.
    let files = files
        .iter()
        .filter(|file| !file.path.ends_with("Cargo.lock"));
    each_line(files, "registry-host", |row| {
        let host = hosts.iter().find(|host| row.contains(host.as_str()))?;
        Some(format!(
            "names {host}: name the package alone, the client knows its registry"
        ))
    })
}

/// No path that exists on one machine only.
pub(super) fn machine_paths(files: &[File]) -> Vec<Finding> {
    each_line(files.iter(), "machine-path", |row| {
        let folder = FOLDERS.iter().find(|folder| names_folder(row, folder))?;
        Some(format!(
            "a path under /{folder} exists on one machine only: make it relative, or use a variable"
        ))
    })
}

fn names_folder(row: &str, folder: &str) -> bool {
    row.match_indices(&format!("/{folder}/")).any(|(at, _)| {
        let before = row[..at].chars().next_back();
        let starts = before.is_none_or(|c| c.is_whitespace() || "\"'`=(:,".contains(c));
        let example = EXAMPLES
            .iter()
            .any(|example| row[at + 1..].starts_with(example));
        starts && !example
    })
}

/// Every module begins with what it is for; a test module belongs to the one that it tests.
pub(super) fn module_docs(files: &[File]) -> Vec<Finding> {
    let sources = files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test());
    let silent = sources.filter(|file| !file.text.starts_with("//!"));
    silent
        .map(|file| Finding {
            path: file.path.clone(),
            line: 1,
            rule: "module-doc",
            item: String::new(),
            message: "begin with `//!`: purpose, what it owns, what it must not know".to_owned(),
        })
        .collect()
}

/// A note on open work names its issue.
pub(super) fn unfinished(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let extension = file.path.rsplit('.').next().unwrap_or_default();
        let text = if file.is_rust() {
            &file.mask.comments
        } else if CODE.contains(&extension) {
            &file.text
        } else {
            continue;
        };
        for (index, row) in text.lines().enumerate() {
            let open = ["TODO", "FIXME", "XXX"]
                .iter()
                .find(|mark| row.contains(*mark));
            if open.is_some_and(|mark| !names_issue(row, mark)) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: index + 1,
                    rule: "open-work",
                    item: String::new(),
                    message: "write `TODO(#ISSUE, owner): …`, or do it now".to_owned(),
                });
            }
        }
    }
    findings
}

fn names_issue(row: &str, mark: &str) -> bool {
    let after = row.split_once(mark).map_or("", |(_, after)| after);
    let number = after.strip_prefix("(#").unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit()) && number.contains(')')
}

/// A test that never runs is no test.
pub(super) fn ignored_tests(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (at, _) in file.mask.code.match_indices("#[ignore") {
            findings.push(Finding {
                path: file.path.clone(),
                line: line_of(&file.text, at),
                rule: "ignored-test",
                item: String::new(),
                message: "a test that never runs is no test: mend it or take it out".to_owned(),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::{hosts, ignored_tests, machine_paths, module_docs, unfinished};
    use crate::tidy::{File, Finding};

    fn judge(rule: fn(&[File]) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&[File::new(path, text)]).len()
    }

    #[test]
    fn a_registry_host_is_found_except_in_cargos_own_lock_file() {
        let text = format!("see https://{}.{}/x", "pypi", "org");
        assert_eq!(judge(hosts, "README.md", &text), 1);
        assert_eq!(judge(hosts, "Cargo.lock", &text), 0);
        assert_eq!(
            judge(hosts, "README.md", "the PyPI package mcp-server-time"),
            0
        );
    }

    #[test]
    fn machine_paths_are_found_and_look_alikes_are_not() {
        let path = |folder: &str| format!("cd \"/{folder}/me/code\"");
        assert_eq!(judge(machine_paths, "a.sh", &path("home")), 1);
        assert_eq!(judge(machine_paths, "a.sh", &path("root")), 1);
        let address = format!("https://host.example/{}/x", "home");
        assert_eq!(judge(machine_paths, "a.md", &address), 0);
        assert_eq!(judge(machine_paths, "a.md", "cd \"/home/you/code\""), 0);
        assert_eq!(judge(machine_paths, "a.md", "/tmp/springline-$UID/"), 0);
    }

    #[test]
    fn a_module_without_its_purpose_is_found() {
        assert_eq!(judge(module_docs, "a/src/b.rs", "use x;\n"), 1);
        assert_eq!(judge(module_docs, "a/src/b.rs", "//! B.\n"), 0);
    }

    #[test]
    fn open_work_needs_an_issue() {
        let note = |text: &str| format!("// {}{text}\n", "TODO");
        assert_eq!(judge(unfinished, "a.rs", &note(": later")), 1);
        assert_eq!(judge(unfinished, "a.rs", &note("(#12, ann): later")), 0);
        assert_eq!(
            judge(unfinished, "a.rs", &format!("let a = \"{}\";", "TODO")),
            0
        );
    }

    #[test]
    fn an_ignored_test_is_found() {
        assert_eq!(
            judge(ignored_tests, "a.rs", "#[test]\n#[ignore]\nfn a() {}"),
            1
        );
        assert_eq!(judge(ignored_tests, "a.rs", "// #[ignore]\n"), 0);
    }
}
