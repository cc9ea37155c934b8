//! The reference page of the configuration, as Markdown.
//!
//! Derives its tables from the declaration table; the prose around them stands in `reference.md`.

use std::time::Duration;

use super::default::{DECLARATIONS, Declaration, Home, Kind, Preset};
use super::unit::{show_bytes, show_duration};
use super::value::form;

/// The page with a marker where each table goes.
const PROSE: &str = include_str!("reference.md");

/// The text of `docs/config.md`.
pub fn reference() -> String {
    PROSE
        .replace("<!-- table: entry -->\n", &table(Home::Entry))
        .replace("<!-- table: block -->\n", &table(Home::Block))
        .replace("<!-- table: top -->\n", &table(Home::Top))
}

fn table(home: Home) -> String {
    let mut out = String::new();
    let ours = || DECLARATIONS.iter().filter(|declared| declared.home == home);
    let variables = ours().any(|declared| declared.variable.is_some());
    let (head, rule) = if variables {
        (" variable |", "---|")
    } else {
        ("", "")
    };
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!("| key | what it does | value | default |{head}"));
    line(format!("|---|---|---|---|{rule}"));
    for declared in ours().filter(|declared| declared.kind != Kind::Later) {
        let mut row = format!(
            "| `{}` | {} | {} | {} |",
            declared.key,
            declared.text,
            form(declared.kind).replace('"', "`"),
            default(declared)
        );
        if let Some(variable) = declared.variable {
            row = format!("{row} `{variable}` |");
        } else if variables {
            row.push_str(" |");
        }
        line(row);
    }
    out
}

fn default(declared: &Declaration) -> String {
    match declared.preset {
        Preset::Ms(ms) => format!("`{}`", show_duration(Duration::from_millis(ms))),
        Preset::Number(number) if declared.kind == Kind::Bytes => {
            format!("`{}`", show_bytes(number))
        }
        Preset::Number(number) => format!("`{number}`"),
        Preset::Flag(flag) => format!("`{flag}`"),
        Preset::Text(text) => format!("`{text}`"),
        Preset::Nothing(text) => text.to_owned(),
    }
}
