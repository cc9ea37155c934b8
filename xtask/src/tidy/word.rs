//! One word for one idea: names of our items and files keep to the glossary.
//!
//! Only names that we choose are judged: what follows `fn`, `struct` and the like. Comments,
//! strings and names of others (an HTTP request target, a `resource_link`) are not.

use super::length::definitions;
use super::mask::line_of;
use super::{File, Finding};

/// The word that is not said, and what to say for it.
const WORDS: &[(&str, &str)] = &[
    ("backend", "upstream, server or store"),
    ("common", "the idea that the parts share"),
    ("handler", "the machine or the task that does it"),
    ("helper", "what it does"),
    ("lease", "claim"),
    ("link", "binding or connection"),
    ("manager", "what it owns"),
    ("slot", "binding, permit or place"),
    ("target", "server, address or path"),
    ("util", "what it does"),
    ("worker", "task, thread or instance"),
];
/// MCP's and the system's own nouns that hold one of the words.
const FOREIGN: &[&str] = &["resource_link", "request_target", "hard_link", "sym_link"];
const KEYWORDS: &[&str] = &[
    "fn ", "struct ", "enum ", "trait ", "mod ", "type ", "const ", "static ", "union ",
];
const FILE_WORDS_MAX: usize = 2;

/// Names of items.
pub(super) fn item_names(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for keyword in KEYWORDS {
            for (at, name) in definitions(&file.mask.code, keyword) {
                if let Some((word, instead)) = forbidden(name) {
                    findings.push(Finding {
                        path: file.path.clone(),
                        line: line_of(&file.text, at),
                        rule: "glossary",
                        item: name.to_owned(),
                        message: format!(
                            "`{name}` says \"{word}\": say {instead} (docs/glossary.md)"
                        ),
                    });
                }
            }
        }
    }
    findings
}

/// Names of source files and their folders.
pub(super) fn file_names(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let folders = file
            .path
            .rsplit_once('/')
            .map_or("", |(folders, _)| folders);
        let names = folders.split('/').chain([file.stem()]);
        let mut message = None;
        for name in names {
            if let Some((word, instead)) = forbidden(name) {
                message = Some(format!("`{name}` says \"{word}\": say {instead}"));
            }
        }
        let long = words(file.stem()).len() > FILE_WORDS_MAX && !file.is_test();
        let long = long.then(|| format!("a file's name has at most {FILE_WORDS_MAX} words"));
        findings.extend(message.or(long).map(|message| Finding {
            path: file.path.clone(),
            line: 1,
            rule: "file-name",
            item: String::new(),
            message,
        }));
    }
    findings
}

fn forbidden(name: &str) -> Option<(&'static str, &'static str)> {
    let words = words(name);
    let whole = words.join("_");
    let ours = FOREIGN
        .iter()
        .fold(whole, |rest, foreign| rest.replace(foreign, ""));
    let is = |word: &str, said: &str| said == word || said.strip_suffix('s') == Some(word);
    WORDS
        .iter()
        .copied()
        .find(|(word, _)| ours.split('_').any(|said| is(word, said)))
}

/// `HTTPPool`, `pool_size` and `POOL_SIZE` as lower-case words.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before_is_lower = false;
    for part in name.split(['_', '-']).filter(|part| !part.is_empty()) {
        words.push(String::new());
        for letter in part.chars() {
            if letter.is_uppercase() && before_is_lower {
                words.push(String::new());
            }
            before_is_lower = letter.is_lowercase() || letter.is_ascii_digit();
            if let Some(word) = words.last_mut() {
                word.extend(letter.to_lowercase());
            }
        }
        before_is_lower = false;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{file_names, item_names, words};
    use crate::tidy::File;

    fn items(text: &str) -> usize {
        item_names(&[File::new("src/a.rs", text)]).len()
    }

    #[test]
    fn names_fall_into_words() {
        assert_eq!(words("WorkerPool"), ["worker", "pool"]);
        assert_eq!(words("POOL_SIZE"), ["pool", "size"]);
        assert_eq!(words("on_sse2Event"), ["on", "sse2", "event"]);
    }

    #[test]
    fn our_own_names_keep_to_the_glossary() {
        assert_eq!(items("struct SessionManager;"), 1);
        assert_eq!(items("fn free_slots() {}"), 1);
        assert_eq!(items("enum Backend { A }"), 1);
        assert_eq!(items("mod utils;"), 1);
    }

    #[test]
    fn names_of_others_and_longer_words_are_free() {
        assert_eq!(items("fn resource_link() {}"), 0);
        assert_eq!(
            items("fn unlink() { let target = handler.link(); } // struct Worker"),
            0
        );
        assert_eq!(items("const NAME: &str = \"fn worker\";"), 0);
        assert_eq!(items("fn release() {} struct Network;"), 0);
    }

    #[test]
    fn file_names_are_short_and_keep_to_the_glossary() {
        let count = |path: &str| file_names(&[File::new(path, "")]).len();
        assert_eq!(count("src/utils.rs"), 1);
        assert_eq!(count("src/common/mod.rs"), 1);
        assert_eq!(count("src/a_long_name.rs"), 1);
        assert_eq!(count("src/stream_log.rs"), 0);
        assert_eq!(count("tests/it/a_lost_session.rs"), 0);
    }
}
