//! How long a file, a function and the architecture page may be. Tests are aside.

use super::mask::{body, closing, line_of};
use super::{File, Finding};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
const ARCHITECTURE_LINES_MAX: usize = 250;

/// No source longer than a reviewer can hold.
pub(super) fn files(files: &[File]) -> Vec<Finding> {
    let sources = files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test());
    sources
        .filter_map(|file| {
            let lines = file.text.lines().count() - test_lines(file);
            (lines > FILE_LINES_MAX).then(|| Finding {
                path: file.path.clone(),
                line: FILE_LINES_MAX + 1,
                rule: "file-length",
                item: String::new(),
                message: format!(
                    "{lines} lines without its tests, {FILE_LINES_MAX} are allowed: give a part of \
                     its state a file of its own"
                ),
            })
        })
        .collect()
}

fn test_lines(file: &File) -> usize {
    let mut end = 0;
    let mut lines = 0;
    let mut ranges = file.mask.tests.clone();
    ranges.sort_by_key(|range| range.start);
    for range in ranges {
        // Nested items are counted with the outermost.
        if range.start >= end {
            end = range.end;
            lines += line_of(&file.text, range.end) - line_of(&file.text, range.start) + 1;
        }
    }
    lines
}

/// No function longer than a screen.
pub(super) fn functions(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files
        .iter()
        .filter(|file| file.is_rust() && !file.is_test())
    {
        for (at, name) in definitions(&file.mask.code, "fn ") {
            let Some(open) = body(&file.mask.code, at) else {
                continue;
            };
            let first = line_of(&file.text, at);
            let lines = line_of(&file.text, closing(&file.mask.code, open)) - first + 1;
            if lines > FUNCTION_LINES_MAX && !file.mask.in_test(at) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: first,
                    rule: "function-length",
                    item: name.to_owned(),
                    message: format!(
                        "fn {name} has {lines} lines, {FUNCTION_LINES_MAX} are allowed: give its \
                         steps names of their own"
                    ),
                });
            }
        }
    }
    findings
}

/// Where `keyword` (with its blank) starts a definition, and the name that follows.
pub(super) fn definitions<'a>(
    code: &'a str,
    keyword: &'a str,
) -> impl Iterator<Item = (usize, &'a str)> {
    code.match_indices(keyword).filter_map(move |(at, _)| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if code[..at].chars().next_back().is_some_and(is_word) {
            return None;
        }
        let rest = &code[at + keyword.len()..];
        let name = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        (!name.is_empty()).then_some((at, name))
    })
}

/// The architecture page stays a page.
pub(super) fn architecture(files: &[File]) -> Vec<Finding> {
    let page = files.iter().find(|file| file.path == "ARCHITECTURE.md");
    let lines = page.map_or(0, |file| file.text.lines().count());
    if lines <= ARCHITECTURE_LINES_MAX {
        return Vec::new();
    }
    vec![Finding {
        path: "ARCHITECTURE.md".to_owned(),
        line: ARCHITECTURE_LINES_MAX + 1,
        rule: "architecture-length",
        item: String::new(),
        message: format!(
            "{lines} lines, {ARCHITECTURE_LINES_MAX} are allowed: move detail to docs/"
        ),
    }]
}

#[cfg(test)]
mod tests {
    use super::{architecture, files, functions};
    use crate::tidy::File;

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_of_71_lines_is_too_long_and_one_of_70_is_not() {
        let file = |lines| File::new("src/a.rs", function(lines));
        assert!(functions(&[file(70)]).is_empty());
        let found = functions(&[file(71)]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].item, "long");
    }

    #[test]
    fn functions_of_tests_may_be_long() {
        let text = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(90));
        assert!(functions(&[File::new("src/a.rs", text)]).is_empty());
        assert!(functions(&[File::new("tests/it/a.rs", function(90))]).is_empty());
    }

    #[test]
    fn a_signature_without_a_body_has_no_length() {
        let text = format!("trait T {{ fn f(a: [u8; 2]) -> u8; }}\n{}", "\n".repeat(99));
        assert!(functions(&[File::new("src/a.rs", text)]).is_empty());
    }

    #[test]
    fn the_tests_at_the_bottom_of_a_file_do_not_count() {
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// t\n".repeat(500));
        let file = |lines| File::new("src/a.rs", format!("{}{tests}", "// a\n".repeat(lines)));
        assert!(files(&[file(800)]).is_empty());
        assert_eq!(files(&[file(801)]).len(), 1);
    }

    #[test]
    fn the_architecture_page_has_a_limit() {
        let page = |lines| File::new("ARCHITECTURE.md", "x\n".repeat(lines));
        assert!(architecture(&[page(250)]).is_empty());
        assert_eq!(architecture(&[page(251)]).len(), 1);
    }
}
