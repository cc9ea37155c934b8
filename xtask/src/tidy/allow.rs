//! The allow-list: breaches that stay, each with its reason.

use super::{File, Finding};

/// Where the list is.
pub(super) const PATH: &str = "xtask/tidy.allow";

struct Entry {
    line: usize,
    rule: String,
    path: String,
    item: String,
    used: bool,
}

/// Takes out what the list allows; adds a finding for each entry without a reason or without use.
pub(super) fn apply(files: &[File], findings: Vec<Finding>) -> Vec<Finding> {
    let text = files.iter().find(|file| file.path == PATH);
    let (mut entries, mut left) = parse(text.map_or("", |file| &file.text));
    for finding in findings {
        let allowed = entries.iter_mut().find(|entry| {
            entry.rule == finding.rule && entry.path == finding.path && entry.item == finding.item
        });
        match allowed {
            Some(entry) => entry.used = true,
            None => left.push(finding),
        }
    }
    let unused = entries.iter().filter(|entry| !entry.used);
    left.extend(unused.map(|entry| {
        fault(
            entry.line,
            "nothing breaks this rule here any more: take the line out",
        )
    }));
    left
}

fn parse(text: &str) -> (Vec<Entry>, Vec<Finding>) {
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    for (index, row) in text.lines().enumerate() {
        if row.trim().is_empty() || row.starts_with('#') {
            continue;
        }
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        match cells.as_slice() {
            [rule, path, item, reason] if reason.split_whitespace().count() >= 3 => {
                entries.push(Entry {
                    line: index + 1,
                    rule: (*rule).to_owned(),
                    path: (*path).to_owned(),
                    item: (*item).to_owned(),
                    used: false,
                });
            }
            _ => faults.push(fault(
                index + 1,
                "write `rule | path | item | reason`, with a reason of at least three words \
                 (the item is empty for a whole file)",
            )),
        }
    }
    (entries, faults)
}

fn fault(line: usize, message: &str) -> Finding {
    Finding {
        path: PATH.to_owned(),
        line,
        rule: "allow-list",
        item: String::new(),
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{PATH, apply};
    use crate::tidy::{File, Finding};

    fn long(item: &str) -> Finding {
        Finding {
            path: "a.rs".to_owned(),
            line: 1,
            rule: "function-length",
            item: item.to_owned(),
            message: String::new(),
        }
    }

    #[test]
    fn an_entry_with_a_reason_allows_exactly_what_it_names() {
        let list = File::new(PATH, "function-length | a.rs | parse | one flat match\n");
        let left = apply(&[list], vec![long("parse"), long("other")]);
        assert_eq!(left, vec![long("other")]);
    }

    #[test]
    fn an_entry_without_a_reason_is_a_finding_and_allows_nothing() {
        let list = File::new(PATH, "function-length | a.rs | parse | \n");
        let left = apply(&[list], vec![long("parse")]);
        assert_eq!(left.len(), 2);
    }

    #[test]
    fn an_entry_that_nothing_needs_is_a_finding() {
        let list = File::new(
            PATH,
            "# note\n\nfunction-length | a.rs | parse | one flat match\n",
        );
        let left = apply(&[list], Vec::new());
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].line, 3);
    }
}
