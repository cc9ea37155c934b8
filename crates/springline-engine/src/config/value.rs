//! Reading values by their declaration.
//!
//! Owns the step from a node (or the text of a variable or flag) to a typed value, and the refusal
//! of unknown keys with the nearest known one. It must not know what any single setting is for.

use std::path::PathBuf;
use std::time::Duration;

use indexmap::IndexMap;

use super::default::{DECLARATIONS, Declaration, Home, Kind, declaration};
use super::document::{Member, Node, Value};
use super::expand::Expander;
use super::nearest::nearest;
use super::place::{Place, Problem, ProblemKind};
use super::secret::Secret;
use super::unit::{parse_bytes, parse_duration};

/// A value as it was given.
#[derive(Clone, Debug)]
pub(crate) enum Given {
    Duration(Duration),
    Number(u64),
    Flag(bool),
    Text(String),
    Path(PathBuf),
    Secret(Secret),
    List(Vec<String>),
    Secrets(IndexMap<String, Secret>),
    /// `false` where a string is expected: none.
    Off,
}

/// The values of one block by key, each with the place of its value.
pub(crate) type Layer = IndexMap<&'static str, (Place, Given)>;

/// Reads the members of a block whose keys start with `prefix` (empty, or `auth.`) into `layer`.
/// An unknown key is refused; `null` counts as not given.
pub(crate) fn read_block(
    members: &[Member],
    home: Home,
    prefix: &str,
    expander: &Expander<'_>,
    layer: &mut Layer,
) -> Result<(), Problem> {
    for member in members {
        let key = format!("{prefix}{}", member.name);
        let deeper = format!("{key}.");
        let declared = DECLARATIONS.iter().filter(|declared| declared.home == home);
        if let Some(found) = declared.clone().find(|declared| declared.key == key) {
            read_member(found, member, expander, layer)?;
        } else if declared
            .clone()
            .any(|declared| declared.key.starts_with(&deeper))
        {
            if member.node.value != Value::Null {
                let inner = member.node.members(&format!("`{key}`"))?;
                read_block(inner, home, &deeper, expander, layer)?;
            }
        } else {
            return Err(unknown(member, home, prefix));
        }
    }
    Ok(())
}

/// Reads one member into `layer`.
pub(crate) fn read_member(
    declared: &'static Declaration,
    member: &Member,
    expander: &Expander<'_>,
    layer: &mut Layer,
) -> Result<(), Problem> {
    if member.node.value != Value::Null {
        let given = from_node(declared, &member.node, expander)?;
        layer.insert(declared.key, (member.node.place.clone(), given));
    }
    Ok(())
}

/// The error for a key that nobody declared, with the nearest one and what that does.
fn unknown(member: &Member, home: Home, prefix: &str) -> Problem {
    let siblings = || {
        let keys = DECLARATIONS
            .iter()
            .filter(move |declared| declared.home == home);
        keys.filter_map(move |declared| declared.key.strip_prefix(prefix))
    };
    let heads = siblings().map(|key| key.split('.').next().unwrap_or(key));
    let mend = if let Some(name) = nearest(&member.name, heads.clone()) {
        let text = declaration(home, &format!("{prefix}{name}")).map(|found| found.text);
        let text = text.map(|text| format!(" It {text}")).unwrap_or_default();
        format!("did you mean `{name}`?{text}")
    } else {
        let mut known: Vec<&str> = heads.collect();
        known.dedup();
        format!("known keys: {}", known.join(", "))
    };
    let block = match prefix.strip_suffix('.') {
        Some(inner) => format!("`springline.{inner}`"),
        None => "the `springline` block".to_owned(),
    };
    Problem::invalid(
        &member.place,
        format!("`{}` is not a key of {block}", member.name),
        mend,
    )
}

/// Reads a node by its declaration.
fn from_node(
    declared: &Declaration,
    node: &Node,
    expander: &Expander<'_>,
) -> Result<Given, Problem> {
    match (&node.value, declared.kind) {
        (_, Kind::Later) => Err(Problem::new(
            ProblemKind::Unavailable,
            &node.place,
            format!("`{}` is not available in this version", declared.key),
            "remove the key",
        )),
        (Value::Array(elements), Kind::List) => {
            let texts = elements
                .iter()
                .map(|element| text(element, expander, "an element"));
            texts.collect::<Result<_, _>>().map(Given::List)
        }
        (Value::Object(_), Kind::Secrets) => secrets(declared.key, node, expander),
        (Value::Bool(flag), Kind::Flag) => Ok(Given::Flag(*flag)),
        (Value::Bool(false), Kind::Listen) => Ok(Given::Off),
        (
            Value::Number(number),
            Kind::Duration | Kind::DurationOrZero | Kind::Bytes | Kind::Count,
        ) => from_text(declared, number, &node.place).map_err(|problem| match problem {
            Some(problem) => problem,
            None => wrong(declared, node, Some(number)),
        }),
        (Value::Text(raw), kind) if !matches!(kind, Kind::List | Kind::Secrets) => {
            let full = expander.expand(raw, &node.place)?;
            if kind == Kind::Path && !full.is_empty() && !full.contains('\0') {
                return Ok(Given::Path(expander.path(&full)));
            }
            from_text(declared, &full, &node.place).map_err(|problem| match problem {
                Some(problem) => problem,
                None => wrong(declared, node, Some(raw)),
            })
        }
        _ => Err(wrong(declared, node, None)),
    }
}

fn secrets(key: &str, node: &Node, expander: &Expander<'_>) -> Result<Given, Problem> {
    let mut values = IndexMap::new();
    for member in node.members(&format!("`{key}`"))? {
        if member.node.value != Value::Null {
            let value = text(&member.node, expander, &format!("`{}`", member.name))?;
            values.insert(member.name.clone(), Secret::from(value));
        }
    }
    Ok(Given::Secrets(values))
}

/// A string inside a list or a map. Numbers and booleans count as the text that was written.
fn text(node: &Node, expander: &Expander<'_>, name: &str) -> Result<String, Problem> {
    let text = match &node.value {
        Value::Text(raw) => expander.expand(raw, &node.place)?.into_owned(),
        Value::Number(number) => number.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            return Err(Problem::invalid(
                &node.place,
                format!("{name} is {}", node.kind()),
                "write a string",
            ));
        }
    };
    if text.contains('\0') {
        return Err(Problem::invalid(
            &node.place,
            format!("{name} holds a NUL character"),
            "remove it",
        ));
    }
    Ok(text)
}

/// Reads the text of a variable or a flag, or an expanded string. `Err(None)` if the text is not
/// of the declared kind, so that the caller may say it without showing an expanded value.
pub(crate) fn from_text(
    declared: &Declaration,
    text: &str,
    place: &Place,
) -> Result<Given, Option<Problem>> {
    let given = match declared.kind {
        Kind::Duration => parse_duration(text)
            .filter(|d| !d.is_zero())
            .map(Given::Duration),
        Kind::DurationOrZero => parse_duration(text).map(Given::Duration),
        Kind::Bytes => parse_bytes(text)
            .filter(|bytes| *bytes > 0)
            .map(Given::Number),
        Kind::Count => text
            .trim()
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .map(Given::Number),
        Kind::Flag => match text {
            "true" | "1" => Some(Given::Flag(true)),
            "false" | "0" => Some(Given::Flag(false)),
            _ => None,
        },
        Kind::Listen if matches!(text, "none" | "false") => Some(Given::Off),
        Kind::Choice(choices) => choices
            .contains(&text)
            .then(|| Given::Text(text.to_owned())),
        Kind::Text | Kind::Listen | Kind::Path | Kind::Secret
            if text.is_empty() || text.contains('\0') =>
        {
            let what = if text.is_empty() {
                "is empty"
            } else {
                "holds a NUL character"
            };
            return Err(Some(Problem::invalid(
                place,
                format!("`{}` {what}", declared.key),
                "give it a value, or remove it",
            )));
        }
        Kind::Text | Kind::Listen => Some(Given::Text(text.to_owned())),
        Kind::Path => Some(Given::Path(PathBuf::from(text))),
        Kind::Secret => Some(Given::Secret(Secret::new(text))),
        Kind::List => Some(Given::List(
            text.split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect(),
        )),
        Kind::Secrets | Kind::Later => None,
    };
    given.ok_or(None)
}

/// The error for a value of the wrong kind. `shown` is text from the file itself; it is quoted only
/// when nothing was put in place of a variable, and never for a secret.
fn wrong(declared: &Declaration, node: &Node, shown: Option<&str>) -> Problem {
    let quotable = shown.filter(|text| !text.contains('$') && declared.kind != Kind::Secret);
    let what = match quotable {
        Some(text) => format!("`{}` is {:?}", declared.key, shorten(text)),
        None if shown.is_some() => format!("`{}` has a value that is not valid", declared.key),
        None => format!("`{}` is {}", declared.key, node.kind()),
    };
    let hint = match (declared.kind, quotable) {
        (Kind::Choice(choices), Some(text)) => nearest(text, choices.iter().copied())
            .map(|choice| format!("did you mean \"{choice}\"? ")),
        _ => None,
    };
    let mend = format!("{}write {}", hint.unwrap_or_default(), form(declared.kind));
    Problem::invalid(&node.place, what, mend)
}

/// The error for a variable or flag of the wrong kind; its value is not shown.
pub(crate) fn wrong_text(declared: &Declaration, place: &Place) -> Problem {
    Problem::invalid(
        place,
        format!("the value for `{}` is not valid", declared.key),
        format!("write {}", form(declared.kind)),
    )
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// How a value of a kind is written.
pub(crate) fn form(kind: Kind) -> String {
    match kind {
        Kind::Duration => "a duration above zero like \"10s\" (ms, s, m, h, d)".to_owned(),
        Kind::DurationOrZero => "a duration like \"10s\" (ms, s, m, h, d)".to_owned(),
        Kind::Bytes => "a size above zero like \"64MiB\" (B, KiB, MiB, GiB)".to_owned(),
        Kind::Count => "a whole number above zero".to_owned(),
        Kind::Flag => "true or false".to_owned(),
        Kind::Text | Kind::Secret => "a string".to_owned(),
        Kind::Path => "a path".to_owned(),
        Kind::Listen => "an address like \"127.0.0.1:7333\", or false".to_owned(),
        Kind::Choice(choices) => {
            let quoted: Vec<String> = choices
                .iter()
                .map(|choice| format!("\"{choice}\""))
                .collect();
            quoted.join(" or ")
        }
        Kind::List => "an array of strings".to_owned(),
        Kind::Secrets => "an object of strings".to_owned(),
        Kind::Later => "nothing: it belongs to a later version".to_owned(),
    }
}
