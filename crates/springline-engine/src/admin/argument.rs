//! Arguments of a tool from words like `key=value`.
//!
//! Owns: the rule by which a word becomes JSON. It must not change a value's text: numbers keep
//! their digits.

use springline_proto::json::{self, Span};

/// Makes the JSON object of arguments. Where the tool's input schema says that a property is a
/// string, it stays one; else a value that reads as a number, a truth value, null, an object or an
/// array is that, and anything else is a string.
pub(super) fn object(words: &[String], schema: &[u8]) -> Result<String, String> {
    let mut object = String::from("{");
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return Err(format!("{word:?} is not of the form key=value"));
        };
        if seen.contains(&key) {
            return Err(format!("{key:?} is given twice"));
        }
        if !seen.is_empty() {
            object.push(',');
        }
        seen.push(key);
        object.push_str(&json::quote(key));
        object.push(':');
        object.push_str(&value_text(value, &kinds(schema, key)));
    }
    object.push('}');
    Ok(object)
}

fn value_text(value: &str, kinds: &[String]) -> String {
    let guess = kind_of(value);
    let is_text = match guess {
        None => true,
        Some(guess) => {
            let is_named = kinds
                .iter()
                .any(|kind| kind == guess || (kind == "integer" && guess == "number"));
            !is_named && kinds.iter().any(|kind| kind == "string")
        }
    };
    if is_text {
        json::quote(value)
    } else {
        value.to_owned()
    }
}

/// The JSON type that a text reads as, if it is none that needs quotes.
fn kind_of(value: &str) -> Option<&'static str> {
    json::validate(value.as_bytes()).ok()?;
    match value.trim_ascii().as_bytes().first()? {
        b'{' => Some("object"),
        b'[' => Some("array"),
        b't' | b'f' => Some("boolean"),
        b'n' => Some("null"),
        b'"' => None,
        _ => Some("number"),
    }
}

/// The types that a schema gives to a property; none if it says nothing that we understand.
fn kinds(schema: &[u8], key: &str) -> Vec<String> {
    let Some(kind) = json::path(schema, Span::whole(schema), &["properties", key, "type"]) else {
        return Vec::new();
    };
    let text = |span: Span| json::string(span.of(schema)).map(std::borrow::Cow::into_owned);
    if kind.of(schema).starts_with(b"[") {
        json::elements(schema, kind).filter_map(text).collect()
    } else {
        text(kind).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::object;

    const SCHEMA: &[u8] = br#"{"type":"object","properties":{"text":{"type":"string"},
        "either":{"type":["string","null"]},"n":{"type":"integer"}}}"#;

    fn made(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        object(&words, SCHEMA).unwrap()
    }

    #[test]
    fn a_property_of_type_string_stays_a_string() {
        assert_eq!(made(&["text=5"]), r#"{"text":"5"}"#);
        assert_eq!(made(&["text=\"a\""]), r#"{"text":"\"a\""}"#);
        assert_eq!(made(&["either=null", "n=7"]), r#"{"either":null,"n":7}"#);
        assert_eq!(made(&["either=7"]), r#"{"either":"7"}"#);
    }

    #[test]
    fn without_a_schema_json_values_are_taken_as_they_are_and_the_rest_is_text() {
        let made = made(&["a=9007199254740993", "b=1.0", "c=x=y", "d=[1, 2]", "e="]);
        assert_eq!(
            made,
            r#"{"a":9007199254740993,"b":1.0,"c":"x=y","d":[1, 2],"e":""}"#
        );
    }

    #[test]
    fn a_word_without_a_key_and_a_key_that_stands_twice_are_refused() {
        assert!(object(&["text".to_owned()], SCHEMA).is_err());
        assert!(object(&["a=1".to_owned(), "a=2".to_owned()], SCHEMA).is_err());
    }
}
