//! Which crate may know which, and what the core may not touch.

use super::mask::line_of;
use super::{File, Finding};

/// What each crate may depend on among our own; a crate that is not named here is free.
const EDGES: &[(&str, &[&str])] = &[
    ("springline-proto", &[]),
    ("springline-store", &["springline-proto"]),
    (
        "springline-engine",
        &["springline-proto", "springline-store"],
    ),
    (
        "springline",
        &["springline-engine", "springline-proto", "springline-store"],
    ),
    ("springline-sim", &["springline-proto", "springline-store"]),
    ("springline-fixture", &[]),
];
/// The end-to-end tests alone may drive the fixtures from within.
const JUDGED: (&str, &str) = ("springline", "springline-fixture");
/// The style guide's limit for the core.
const PROTO_DEPENDENCIES_MAX: usize = 8;
/// Words that the core's sources must not hold, tests aside (I12).
const PROTO_BANS: &[&str] = &[
    "tokio",
    "hyper",
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::io",
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "thread_local",
    "f32",
    "f64",
];

/// One dependency as a manifest spells it.
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) for_tests: bool,
}

/// Reads the dependency sections of a manifest, those of the workspace included.
pub(super) fn dependencies(manifest: &str) -> Vec<Dependency> {
    let mut found = Vec::new();
    let mut section = Section::Other;
    for (index, row) in manifest.lines().enumerate() {
        let row = row.trim();
        if row.starts_with('[') {
            section = Section::of(row);
        }
        let for_tests = matches!(section, Section::Tests);
        let name = match (&section, row.split_once('=')) {
            (Section::One(name), _) if row.starts_with('[') => Some(name.clone()),
            (Section::Build | Section::Tests, Some((key, _))) if !row.starts_with(['#', '[']) => {
                key.trim().split('.').next().map(str::to_owned)
            }
            _ => None,
        };
        found.extend(name.map(|name| Dependency {
            name,
            line: index + 1,
            for_tests,
        }));
    }
    found
}

enum Section {
    Build,
    Tests,
    /// `[dependencies.NAME]`
    One(String),
    Other,
}

impl Section {
    fn of(header: &str) -> Self {
        let header = header.trim_start_matches('[').trim_end_matches(']');
        if header.ends_with("dev-dependencies") {
            return Self::Tests;
        }
        if header.ends_with("dependencies") {
            return Self::Build;
        }
        match header.rsplit_once("dependencies.") {
            Some((_, name)) => Self::One(name.to_owned()),
            None => Self::Other,
        }
    }
}

fn crate_name(file: &File) -> Option<&str> {
    let mut parts = file.path.rsplit('/');
    parts.next().filter(|name| *name == "Cargo.toml")?;
    parts.next()
}

/// `proto ← store ← engine ← springline`, `sim → proto, store`, and fixtures that share no code
/// with what they judge.
pub(super) fn direction(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some((name, allowed)) = crate_name(file)
            .and_then(|name| EDGES.iter().find(|(candidate, _)| *candidate == name))
        else {
            continue;
        };
        for dependency in dependencies(&file.text) {
            let ours =
                dependency.name == "springline" || dependency.name.starts_with("springline-");
            let judged = dependency.for_tests && (*name, &*dependency.name) == JUDGED;
            if ours && !judged && !allowed.contains(&dependency.name.as_str()) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: dependency.line,
                    rule: "dependency-direction",
                    item: dependency.name.clone(),
                    message: format!(
                        "{name} must not know {}: move what it needs down, or hand it in as a value",
                        dependency.name
                    ),
                });
            }
        }
    }
    findings
}

/// The core stays small.
pub(super) fn proto_dependencies(files: &[File]) -> Vec<Finding> {
    let manifest = files
        .iter()
        .find(|file| file.is_manifest() && crate_name(file) == Some("springline-proto"));
    let Some(file) = manifest else {
        return Vec::new();
    };
    let mut direct = dependencies(&file.text);
    direct.retain(|dependency| !dependency.for_tests);
    let Some(extra) = direct.get(PROTO_DEPENDENCIES_MAX) else {
        return Vec::new();
    };
    vec![Finding {
        path: file.path.clone(),
        line: extra.line,
        rule: "proto-dependencies",
        item: extra.name.clone(),
        message: format!(
            "springline-proto has {} direct dependencies, {PROTO_DEPENDENCIES_MAX} are allowed: \
             take one out",
            direct.len()
        ),
    }]
}

/// The core reads no clock, no files, no sockets and no randomness.
pub(super) fn proto_source(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources = files
        .iter()
        .filter(|file| file.path.starts_with("crates/springline-proto/src/"))
        .filter(|file| file.is_rust() && !file.is_test());
    for file in sources {
        for ban in PROTO_BANS {
            for (at, _) in file.mask.code.match_indices(ban) {
                if is_whole(&file.mask.code, at, ban.len()) && !file.mask.in_test(at) {
                    findings.push(Finding {
                        path: file.path.clone(),
                        line: line_of(&file.text, at),
                        rule: "proto-source",
                        item: (*ban).to_owned(),
                        message: format!(
                            "`{ban}` in the core (I12): take time and randomness as arguments, \
                             leave IO to the engine, keep order and numbers exact"
                        ),
                    });
                }
            }
        }
    }
    findings
}

/// Whether the match stands alone, not as a part of a longer word.
pub(super) fn is_whole(code: &str, at: usize, len: usize) -> bool {
    let word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let bytes = code.as_bytes();
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    !word(before) && !word(bytes.get(at + len))
}

#[cfg(test)]
mod tests {
    use super::{direction, proto_dependencies, proto_source};
    use crate::tidy::File;

    const SECTIONS: &str = "[package]\nname = \"x\"\n[dependencies]\nbytes = \"1\"\n\
                            springline-engine = { path = \"..\" }\n";

    #[test]
    fn an_upward_edge_is_found_with_its_line() {
        let file = File::new("crates/springline-store/Cargo.toml", SECTIONS);
        let found = direction(&[file]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 5);
        assert_eq!(found[0].item, "springline-engine");
    }

    #[test]
    fn downward_edges_are_fine() {
        let file = File::new("crates/springline/Cargo.toml", SECTIONS);
        assert!(direction(&[file]).is_empty());
    }

    #[test]
    fn a_fixture_may_know_none_of_ours_even_in_tests() {
        let text = "[dev-dependencies]\nspringline-proto.workspace = true\n";
        let file = File::new("crates/springline-fixture/Cargo.toml", text);
        assert_eq!(direction(&[file]).len(), 1);
    }

    #[test]
    fn only_the_tests_of_the_binary_may_know_the_fixtures() {
        let manifest = |path, section| {
            let text = format!("[{section}]\nspringline-fixture = \"1\"\n");
            direction(&[File::new(path, text)]).len()
        };
        let binary = "crates/springline/Cargo.toml";
        assert_eq!(manifest(binary, "dev-dependencies"), 0);
        assert_eq!(manifest(binary, "dependencies"), 1);
        let engine = "crates/springline-engine/Cargo.toml";
        assert_eq!(manifest(engine, "dev-dependencies"), 1);
    }

    #[test]
    fn every_form_of_section_is_read() {
        let text = "[target.'cfg(unix)'.dependencies]\nspringline-store = \"1\"\n\
                    [dependencies.springline-engine]\npath = \"..\"\n";
        let file = File::new("crates/springline-proto/Cargo.toml", text);
        assert_eq!(direction(&[file]).len(), 2);
    }

    #[test]
    fn the_ninth_dependency_of_the_core_is_one_too_many() {
        let eight = ["a", "b", "c", "d", "e", "f", "g", "h"].join(" = \"1\"\n") + " = \"1\"\n";
        let path = "crates/springline-proto/Cargo.toml";
        let manifest = |more: &str| File::new(path, format!("[dependencies]\n{eight}{more}"));
        assert!(proto_dependencies(&[manifest("[dev-dependencies]\nx = \"1\"\n")]).is_empty());
        assert_eq!(proto_dependencies(&[manifest("ninth = \"1\"\n")]).len(), 1);
    }

    #[test]
    fn io_in_the_core_is_found_but_not_in_comments_strings_or_tests() {
        let path = "crates/springline-proto/src/a.rs";
        let bad = File::new(path, "fn f() { let t = std::time::Instant::now(); }");
        assert_eq!(proto_source(&[bad]).len(), 1);
        let fine = "// tokio\nconst A: &str = \"hyper\";\n#[cfg(test)]\nmod tests { use tokio; }";
        assert!(proto_source(&[File::new(path, fine)]).is_empty());
    }
}
