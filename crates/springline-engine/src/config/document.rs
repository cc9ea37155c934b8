//! One configuration file as an owned tree in which every node knows its place.
//!
//! Owns the dialect (JSON with comments and trailing commas, nothing looser) and the check for
//! duplicate keys. It must not know which keys exist.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use jsonc_parser::ast;
use jsonc_parser::common::{Range, Ranged};
use jsonc_parser::errors::{ParseError, ParseErrorKind};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::expand::shown;
use super::place::{Place, Problem};

/// A value and its place in a file.
#[derive(Clone, PartialEq)]
pub(crate) struct Node {
    /// Where the value starts.
    pub(crate) place: Place,
    /// The value.
    pub(crate) value: Value,
}

/// A JSON value. Numbers keep their text.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Node>),
    Object(Vec<Member>),
}

/// One key of an object with its value.
#[derive(Clone, PartialEq)]
pub(crate) struct Member {
    /// The key.
    pub(crate) name: String,
    /// Where the key starts.
    pub(crate) place: Place,
    /// The value.
    pub(crate) node: Node,
}

// The tree holds whatever the operator wrote, which may be a secret.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({} at {})", self.kind(), self.place)
    }
}

impl Node {
    /// What the value is, with its article, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        }
    }

    /// The members of an object that must have no key twice. `name` is what the object is called.
    pub(crate) fn members(&self, name: &str) -> Result<&[Member], Problem> {
        let Value::Object(members) = &self.value else {
            return Err(Problem::invalid(
                &self.place,
                format!("{name} is {}", self.kind()),
                "write an object: { … }",
            ));
        };
        refuse_duplicates(members)?;
        Ok(members)
    }

    /// The path that this text became, for people.
    pub(crate) fn shown_path(&self, full: &Path) -> String {
        match &self.value {
            Value::Text(raw) => shown(raw, full),
            _ => full.display().to_string(),
        }
    }

    /// The member called `name` of an object.
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        let Value::Object(members) = &self.value else {
            return None;
        };
        members.iter().find(|member| member.name == name)
    }
}

/// Refuses an object in which a key stands twice; the message names both lines.
pub(crate) fn refuse_duplicates(members: &[Member]) -> Result<(), Problem> {
    for (at, member) in members.iter().enumerate() {
        if let Some(first) = members
            .iter()
            .take(at)
            .find(|first| first.name == member.name)
        {
            return Err(duplicate(first, member));
        }
    }
    Ok(())
}

/// The error for a key that stands twice.
pub(crate) fn duplicate(first: &Member, second: &Member) -> Problem {
    let first_at = match &first.place {
        Place::File { line, .. } => format!("line {line}"),
        other => other.to_string(),
    };
    Problem::invalid(
        &second.place,
        format!("`{}` is given twice, first on {first_at}", second.name),
        "remove one of the two",
    )
}

/// Parses a file. `None` stands for a file without any value (empty, or comments only).
pub(crate) fn parse(path: &Path, text: &str) -> Result<Option<Node>, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = Source {
        path: Arc::from(path),
        line_starts: line_starts(text),
        text,
    };
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options)
        .map_err(|error| source.syntax(&error))?;
    Ok(parsed.value.map(|value| source.node(value)))
}

/// The text being read, with what is needed to turn an offset into line and column.
struct Source<'a> {
    path: Arc<Path>,
    text: &'a str,
    line_starts: Vec<usize>,
}

/// The offset at which each line starts. A lone CR ends a line too, as it does for the parser.
fn line_starts(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let ends = bytes.iter().enumerate().filter(|&(at, &byte)| {
        byte == b'\n' || (byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'))
    });
    std::iter::once(0)
        .chain(ends.map(|(at, _)| at + 1))
        .collect()
}

impl Source<'_> {
    fn place(&self, range: Range) -> Place {
        let line = self
            .line_starts
            .partition_point(|&start| start <= range.start)
            .max(1);
        let start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let column = self
            .text
            .get(start..range.start)
            .map_or(0, |text| text.chars().count());
        let bounded = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Place::File {
            path: Arc::clone(&self.path),
            line: bounded(line),
            column: bounded(column + 1),
        }
    }

    fn node(&self, value: ast::Value<'_>) -> Node {
        let place = self.place(value.range());
        let value = match value {
            ast::Value::NullKeyword(_) => Value::Null,
            ast::Value::BooleanLit(literal) => Value::Bool(literal.value),
            ast::Value::NumberLit(literal) => Value::Number(literal.value.to_owned()),
            ast::Value::StringLit(literal) => Value::Text(literal.value.into_owned()),
            ast::Value::Array(array) => Value::Array(
                array
                    .elements
                    .into_iter()
                    .map(|value| self.node(value))
                    .collect(),
            ),
            ast::Value::Object(object) => Value::Object(
                object
                    .properties
                    .into_iter()
                    .map(|property| self.member(property))
                    .collect(),
            ),
        };
        Node { place, value }
    }

    fn member(&self, property: ast::ObjectProp<'_>) -> Member {
        let place = self.place(property.range);
        Member {
            name: property.name.into_string(),
            place,
            node: self.node(property.value),
        }
    }

    /// The parser's own words are not passed on: some quote the text, which may be a secret.
    fn syntax(&self, error: &ParseError) -> Problem {
        let (what, mend) = match error.kind() {
            ParseErrorKind::ExpectedComma => {
                ("a comma is missing here", "put one between the two values")
            }
            ParseErrorKind::ExpectedColonAfterObjectKey => {
                ("a colon is missing after a key", "write \"key\": value")
            }
            ParseErrorKind::ExpectedObjectValue => ("a key has no value", "write \"key\": value"),
            ParseErrorKind::ExpectedStringObjectProperty | ParseErrorKind::UnexpectedWord => {
                ("a bare word stands here", "put it in double quotes")
            }
            ParseErrorKind::SingleQuotedStringsNotAllowed => {
                ("a string is in single quotes", "use double quotes")
            }
            ParseErrorKind::UnterminatedObject => {
                ("this object is never closed", "add the missing }")
            }
            ParseErrorKind::UnterminatedArray => {
                ("this array is never closed", "add the missing ]")
            }
            ParseErrorKind::UnterminatedCommentBlock => {
                ("this comment is never closed", "add the missing */")
            }
            ParseErrorKind::String(_) => (
                "this string is broken",
                "close it with a double quote, and write a backslash as \\\\",
            ),
            ParseErrorKind::NestingDepthExceeded => {
                ("the nesting is too deep", "at most 512 levels are read")
            }
            ParseErrorKind::MultipleRootJsonValues => (
                "more text follows the end of the configuration",
                "remove it, or the } before it",
            ),
            _ => (
                "this is not JSON",
                "look at this character and the one before it",
            ),
        };
        Problem::invalid(&self.place(error.range()), what, mend)
    }
}
