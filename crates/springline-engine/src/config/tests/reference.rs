//! Parser, schema, reference page and examples know the same keys.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Machine, entry, loaded, try_load};
use crate::config::default::{DECLARATIONS, Declaration, Home, Kind, Preset};
use crate::config::{Overrides, Settings, Sources, load, reference, schema};

/// The keys that the schema of a block allows, nested ones with dots.
fn keys(block: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    for (name, property) in block["properties"].as_object().expect("properties") {
        if property.get("properties").is_some() {
            keys(property, &format!("{prefix}{name}."), found);
        } else {
            found.insert(format!("{prefix}{name}"));
        }
    }
}

/// A value that the parser takes for a declaration.
fn sample(declared: &Declaration) -> String {
    match declared.kind {
        Kind::Duration | Kind::DurationOrZero => "\"7s\"".to_owned(),
        Kind::Bytes => "\"7KiB\"".to_owned(),
        Kind::Count => "7".to_owned(),
        Kind::Flag => "true".to_owned(),
        Kind::Choice(choices) => format!("\"{}\"", choices[0]),
        Kind::List => "[\"https://h.example\"]".replace("https://", scheme(declared)),
        Kind::Secrets => "{ \"a\": \"b\" }".to_owned(),
        Kind::Listen => "\"127.0.0.1:7\"".to_owned(),
        Kind::Text | Kind::Path | Kind::Secret | Kind::Later => "\"/x\"".to_owned(),
    }
}

fn scheme(declared: &Declaration) -> &'static str {
    if declared.key == "allowedHosts" {
        ""
    } else {
        "https://"
    }
}

/// One rule spans two keys: a longer first pause needs a longer longest one.
fn with_room(text: &str) -> String {
    text.replace("\"backoffMin\":", "\"backoffMax\": \"8s\", \"backoffMin\":")
}

fn nested(key: &str, value: &str) -> String {
    key.rsplit('.').fold(value.to_owned(), |inner, name| {
        format!("{{ \"{name}\": {inner} }}")
    })
}

#[test]
fn the_schema_knows_each_key_of_the_table_and_no_other() {
    let schema = schema();
    let mut entry = schema["$defs"]["entry"].clone();
    let homes = [
        (Home::Top, schema["properties"]["springline"].clone()),
        (Home::Block, entry["properties"]["springline"].clone()),
        (Home::Entry, {
            entry["properties"]
                .as_object_mut()
                .expect("keys")
                .remove("springline");
            entry
        }),
    ];
    for (home, block) in homes {
        let mut found = BTreeSet::new();
        keys(&block, "", &mut found);
        let declared = DECLARATIONS.iter().filter(|declared| declared.home == home);
        assert_eq!(
            found,
            declared.map(|declared| declared.key.to_owned()).collect()
        );
    }
}

#[test]
fn the_parser_takes_each_key_of_the_table() {
    for declared in DECLARATIONS {
        let value = nested(declared.key, &sample(declared));
        match declared.home {
            Home::Top => {
                let text = format!("{{\"springline\": {value}}}");
                let text = with_room(&text);
                assert!(try_load(&text, &Machine::new()).is_ok(), "{text}");
            }
            Home::Block => {
                let entry = entry(&format!("{{\"springline\": {value}}}"), &Machine::new());
                // It is refused for want of a command or server, or as a key of a later version.
                let error = entry.definition.expect_err("no command").what;
                let later = error.contains("not available in this version");
                assert_eq!(later, declared.kind == Kind::Later, "{error}");
                assert!(!error.contains("not a key of"), "{error}");
            }
            Home::Entry => {
                let text = format!("{{\"mcpServers\": {{\"s\": {value}}}}}");
                assert_eq!(loaded(&text, &Machine::new()).notes, [], "{text}");
            }
        }
    }
}

#[test]
fn each_setting_of_the_top_block_reaches_its_field_and_defaults_are_those_of_the_table() {
    let built_in = format!("{:?}", Settings::built_in(&Machine::new()).expect("a home"));
    for declared in DECLARATIONS
        .iter()
        .filter(|declared| declared.home == Home::Top)
    {
        let value = nested(declared.key, &sample(declared));
        let text = format!("{{\"springline\": {value}}}");
        let text = with_room(&text);
        let config = try_load(&text, &Machine::new()).expect(&text);
        assert_ne!(format!("{:?}", config.settings), built_in, "{text}");
        // A preset with a value is spelled like one in a file, and changes nothing.
        let preset = match declared.preset {
            Preset::Ms(ms) => ms.to_string(),
            Preset::Number(number) => number.to_string(),
            Preset::Flag(flag) => flag.to_string(),
            Preset::Text(text) => format!("\"{text}\""),
            Preset::Nothing(_) => continue,
        };
        let text = format!("{{\"springline\": {}}}", nested(declared.key, &preset));
        let config = try_load(&text, &Machine::new()).expect(&text);
        assert_eq!(format!("{:?}", config.settings), built_in, "{text}");
    }
}

#[test]
fn each_variable_reaches_its_setting() {
    for declared in DECLARATIONS {
        let Some(variable) = declared.variable else {
            continue;
        };
        let screaming: String =
            declared
                .key
                .chars()
                .fold(String::from("SPRINGLINE_"), |mut out, c| {
                    if c.is_uppercase() {
                        out.push('_');
                    }
                    out.extend(c.to_uppercase());
                    out
                });
        assert_eq!(variable, screaming);
        let value = sample(declared).replace(['"', '[', ']'], "");
        let machine = Machine::new()
            .var(variable, &value)
            .var("SPRINGLINE_BACKOFF_MAX", "8s");
        let built_in = Machine::new().var("SPRINGLINE_BACKOFF_MAX", "5s");
        let shown = |machine| format!("{:?}", loaded("{}", machine).settings);
        assert_ne!(shown(&machine), shown(&built_in), "{variable}");
    }
}

#[test]
fn the_reference_page_names_each_key_and_leaves_no_marker() {
    let page = reference();
    assert!(!page.contains("<!-- table"), "a table is missing");
    for declared in DECLARATIONS {
        assert!(
            page.contains(&format!("`{}`", declared.key)),
            "{}",
            declared.key
        );
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_example_is_read_without_a_note() {
    let mut examples = 0;
    for file in std::fs::read_dir(root().join("examples"))
        .into_iter()
        .flatten()
    {
        let path = file.expect("a file").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read(&path).expect("an example");
        let path = path.to_str().expect("UTF-8").to_owned();
        let machine = Machine::new().file(&path, text);
        let sources = Sources::from_files([PathBuf::from(&path)]);
        let config = load(&sources, &Overrides::default(), &machine).expect(&path);
        assert_eq!(config.notes, [], "{path}");
        examples += 1;
    }
    assert!(examples > 0, "there are no examples");
}
