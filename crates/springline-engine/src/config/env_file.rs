//! Files of `KEY=VALUE` lines.
//!
//! Owns their grammar: blank lines and lines that start with `#` are skipped; `export` before a key
//! is allowed; a value in single quotes is taken as it stands; in double quotes `\n`, `\r`, `\t`,
//! `\"`, `\\` and `\$` are read; an unquoted value ends at ` #` and loses the white space around it.
//! Nothing in a value is expanded. The last of two equal keys wins, as in a shell.

use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;

use super::expand::is_name;
use super::place::{Place, Problem};
use super::secret::Secret;

/// Reads the text of an `envFile`. An error names the line, never a value.
pub(crate) fn parse(path: &Path, text: &str) -> Result<IndexMap<String, Secret>, Problem> {
    let path: Arc<Path> = Arc::from(path);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut values = IndexMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = Place::File {
            path: Arc::clone(&path),
            line: u32::try_from(number + 1).unwrap_or(u32::MAX),
            column: 1,
        };
        let (key, value) = pair(line, &place)?;
        values.insert(key.to_owned(), Secret::from(value));
    }
    Ok(values)
}

fn pair<'a>(line: &'a str, place: &Place) -> Result<(&'a str, String), Problem> {
    let unexported = match line.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        _ => line,
    };
    let pair = unexported
        .split_once('=')
        .map(|(key, value)| (key.trim(), value.trim()));
    let Some((key, value)) = pair.filter(|(key, _)| is_name(key)) else {
        return Err(Problem::invalid(
            place,
            "this line is not KEY=VALUE",
            "write KEY=VALUE, or # before a comment",
        ));
    };
    let value = match value.as_bytes().first() {
        Some(b'"') => double_quoted(value),
        Some(b'\'') => value.get(1..).and_then(|rest| {
            let (inside, tail) = rest.split_once('\'')?;
            is_tail(tail).then(|| inside.to_owned())
        }),
        _ => Some(unquoted(value).to_owned()),
    };
    let value = value.ok_or_else(|| {
        Problem::invalid(
            place,
            format!("the quoted value of {key} does not end on its line"),
            "close the quote; nothing but a comment may follow it",
        )
    })?;
    Ok((key, value))
}

/// Whether nothing but a comment follows a closing quote.
fn is_tail(tail: &str) -> bool {
    let tail = tail.trim_start();
    tail.is_empty() || tail.starts_with('#')
}

fn unquoted(value: &str) -> &str {
    let comment = value.starts_with('#').then_some(0);
    let comment = comment
        .or_else(|| value.find(" #"))
        .or_else(|| value.find("\t#"));
    comment
        .and_then(|at| value.get(..at))
        .unwrap_or(value)
        .trim_end()
}

fn double_quoted(value: &str) -> Option<String> {
    let mut out = String::new();
    let mut chars = value.chars();
    chars.next();
    loop {
        match chars.next()? {
            '"' => return is_tail(chars.as_str()).then_some(out),
            '\\' => match chars.next()? {
                'n' => out.push('\n'),
                'r' => out.push('\r'),
                't' => out.push('\t'),
                same @ ('"' | '\\' | '$') => out.push(same),
                other => out.extend(['\\', other]),
            },
            plain => out.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse;

    fn read(text: &str) -> Vec<(String, String)> {
        let values = parse(Path::new(".env"), text).expect("a good file");
        values
            .into_iter()
            .map(|(key, value)| (key, value.expose().to_owned()))
            .collect()
    }

    #[test]
    fn every_form_of_a_line_is_read() {
        let text = "\u{feff}# a comment\n\nA=1\nexport B = two words # why\nC=\"x\\ny # no\" # yes\n\
                    D='$HOME \\n'\nE=\nF=a#b\r\nG=#\nA=last\nexported=1\n";
        let expected = [
            ("A", "last"),
            ("B", "two words"),
            ("C", "x\ny # no"),
            ("D", "$HOME \\n"),
            ("E", ""),
            ("F", "a#b"),
            ("G", ""),
            ("exported", "1"),
        ];
        assert_eq!(
            read(text),
            expected.map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
    }

    #[test]
    fn a_broken_line_is_named_and_its_value_is_not() {
        let error = parse(Path::new("x/.env"), "A=1\nB=\"hunter2\nC=3").expect_err("open quote");
        assert_eq!(
            error.to_string(),
            "x/.env:2:1: the quoted value of B does not end on its line; close the quote; nothing \
             but a comment may follow it"
        );
        let error = parse(Path::new("x/.env"), "hunter2").expect_err("no key");
        assert_eq!(
            error.to_string(),
            "x/.env:1:1: this line is not KEY=VALUE; write KEY=VALUE, or # before a comment"
        );
    }
}
