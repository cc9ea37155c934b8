//! The grammar of variables.

use std::path::Path;

use indexmap::IndexMap;

use super::Expander;
use crate::config::Secret;
use crate::config::place::{Place, ProblemKind};
use crate::config::tests::Machine;

fn machine() -> Machine {
    Machine::new()
        .var("TOK", "hunter2")
        .var("EMPTY", "")
        .var("TRICK", "${TOK} $$")
        .var("DIR", "/run")
        .file("/run/secret", "  s3cret\n")
        .file("/c/near", "close")
        .file("/ann/far", "away")
}

fn expand(text: &str) -> Result<String, String> {
    let machine = machine();
    let entry = IndexMap::from([("OWN".to_owned(), Secret::new("mine"))]);
    let expander = Expander {
        environment: &machine,
        folder: Path::new("/c"),
        entry: Some(&entry),
    };
    expander
        .expand(text, &Place::Whole)
        .map(std::borrow::Cow::into_owned)
        .map_err(|error| error.to_string())
}

#[test]
fn every_form_of_a_variable_is_replaced() {
    for (text, expected) in [
        ("plain", "plain"),
        ("Bearer ${TOK}", "Bearer hunter2"),
        ("${env:TOK}", "hunter2"),
        ("${TOK:-d}", "hunter2"),
        ("${UNSET:-d}", "d"),
        ("${env:UNSET:-d}", "d"),
        ("${UNSET:-}", ""),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${UNSET:-http://x:80/${TOK}}", "http://x:80/hunter2"),
        ("${file:/run/secret}", "s3cret"),
        ("${file:near}", "close"),
        ("${file:~/far}", "away"),
        ("${file:${DIR}/secret}", "s3cret"),
        ("${OWN}", "mine"),
    ] {
        assert_eq!(expand(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn a_dollar_sign_that_starts_no_variable_stays() {
    for (text, expected) in [
        ("$TOK", "$TOK"),
        ("5$", "5$"),
        ("$$", "$"),
        ("$${TOK}", "${TOK}"),
        ("$$$${TOK}", "$${TOK}"),
        ("$$${TOK}", "$hunter2"),
        ("{TOK}", "{TOK}"),
        ("${UNSET:-$$}", "$"),
    ] {
        assert_eq!(expand(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn what_a_variable_contributes_is_not_expanded_again() {
    assert_eq!(expand("${TRICK}").as_deref(), Ok("${TOK} $$"));
}

#[test]
fn what_cannot_be_replaced_is_refused_by_name() {
    for (text, expected) in [
        (
            "${UNSET}",
            "configuration: variable UNSET is not set; set it, or give a default with ${UNSET:-…}",
        ),
        (
            "${file:/none}",
            "configuration: file /none cannot be read: entity not found; correct the path, or the \
             permissions of the file",
        ),
        (
            "${TOK",
            "configuration: `${` is never closed; add the missing }, or write $$ for a dollar sign",
        ),
        (
            "${input:key}",
            "configuration: `${input:…}` is not known here; use ${NAME}, ${env:NAME} or ${file:PATH}",
        ),
        (
            "${}",
            "configuration: `${…}` does not hold the name of a variable; names are letters, digits \
             and _; write $$ for a dollar sign",
        ),
    ] {
        assert_eq!(expand(text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn nesting_is_bounded() {
    let text = format!("{}x{}", "${A:-".repeat(100), "}".repeat(100));
    let error = expand(&text).expect_err("too deep");
    assert!(error.contains("nested too deep"), "{error}");
}

#[test]
fn the_kind_of_a_refusal_tells_unset_from_unreadable() {
    let machine = machine();
    let expander = Expander {
        environment: &machine,
        folder: Path::new(""),
        entry: None,
    };
    let kind = |text| expander.expand(text, &Place::Whole).expect_err(text).kind;
    assert_eq!(kind("${UNSET}"), ProblemKind::Unset);
    assert_eq!(kind("${file:none}"), ProblemKind::Unreadable);
    assert_eq!(kind("${"), ProblemKind::Invalid);
}
