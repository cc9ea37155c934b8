//! Where an error is and how it reads, to the letter.

use super::{Machine, loaded, try_load};

fn error(text: &str) -> String {
    try_load(text, &Machine::new())
        .expect_err("a refused configuration")
        .to_string()
}

#[test]
fn a_file_that_is_not_json_is_refused_with_line_and_column() {
    for (text, expected) in [
        (
            "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" }\n    \"b\": {}\n  }\n}",
            "/c/s.json:3:28: a comma is missing here; put one between the two values",
        ),
        (
            "{\n  mcpServers: {}\n}",
            "/c/s.json:2:3: a bare word stands here; put it in double quotes",
        ),
        (
            "{\n  \"servers\": {},\n  'a': 1\n}",
            "/c/s.json:3:3: a string is in single quotes; use double quotes",
        ),
        (
            "{ \"servers\": {",
            "/c/s.json:1:14: this object is never closed; add the missing }",
        ),
        (
            "{ \"servers\": \"C:\\new\\x\" }",
            "/c/s.json:1:21: this string is broken; close it with a double quote, and write a \
             backslash as \\\\",
        ),
        (
            "{}\n}",
            "/c/s.json:2:1: more text follows the end of the configuration; remove it, or the } \
             before it",
        ),
        (
            "[]",
            "/c/s.json:1:1: the configuration is an array; write an object: { … }",
        ),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn comments_trailing_commas_bom_and_crlf_are_read_and_counted() {
    let text = "\u{feff}// one\r\n{ /* two */\r\n  \"servers\": { \"ä\": 1, },\r\n}\r\n";
    assert_eq!(
        error(text),
        "/c/s.json:3:16: \"ä\" cannot be the name of a server; use 1 to 32 of the characters A-Z \
         a-z 0-9 _ - without __, for example `server`"
    );
    let text =
        "// a comment\n{ \"servers\": { \"a\": { \"command\": \"x\", \"args\": [\"b\",], }, }, }";
    assert!(
        loaded(text, &Machine::new()).servers["a"]
            .definition
            .is_ok()
    );
}

#[test]
fn a_column_counts_characters_not_bytes() {
    let text = "{ \"servers\": { \"a\": { \"env\": {\"Ä\": \"ööö\"}, \"command\": 1 } } }";
    let config = loaded(text, &Machine::new());
    let refused = config.servers["a"]
        .definition
        .as_ref()
        .expect_err("a number");
    assert_eq!(
        refused.to_string(),
        "/c/s.json:1:55: `command` is a number; write a string"
    );
}

#[test]
fn a_bad_name_comes_with_a_good_one() {
    for (name, good) in [
        ("my server", "my-server"),
        ("a__b", "a_b"),
        ("", "server"),
        ("-@scope/pkg-", "scope-pkg"),
        (
            "abcdefghijklmnopqrstuvwxyz0123456789",
            "abcdefghijklmnopqrstuvwxyz012345",
        ),
    ] {
        let message = error(&format!("{{\"servers\":{{\"{name}\":{{}}}}}}"));
        assert!(
            message.ends_with(&format!("for example `{good}`")),
            "{message}"
        );
    }
    let taken = error(r#"{"servers":{"my-server":{},"my server":{}}}"#);
    assert!(taken.ends_with("for example `my-server-2`"), "{taken}");
}

#[test]
fn a_key_that_stands_twice_names_both_lines() {
    assert_eq!(
        error("{\n \"servers\": {\n  \"a\": {},\n  \"a\": {}\n }\n}"),
        "/c/s.json:4:3: `a` is given twice, first on line 3; remove one of the two"
    );
    assert_eq!(
        error("{\n \"servers\": { \"a\": {} },\n \"mcpServers\": { \"a\": {} }\n}"),
        "/c/s.json:3:18: `a` is given twice, first on line 2; remove one of the two"
    );
    assert_eq!(
        error("{\"springline\": { \"cors\": true,\n\"cors\": false }}"),
        "/c/s.json:2:1: `cors` is given twice, first on line 1; remove one of the two"
    );
    // Inside an entry it stays in the entry.
    let text = "{\"servers\": { \"a\": { \"command\": \"x\", \"env\": {\"A\": \"1\",\n\"A\": \"2\"}}, \
                \"b\": { \"command\": \"x\" }}}";
    let config = loaded(text, &Machine::new());
    assert_eq!(
        config.servers["a"]
            .definition
            .as_ref()
            .expect_err("twice")
            .to_string(),
        "/c/s.json:2:1: `A` is given twice, first on line 1; remove one of the two"
    );
    assert!(config.servers["b"].definition.is_ok());
}

#[test]
fn one_bad_entry_leaves_the_others_alone_and_in_order() {
    let text = "{\"mcpServers\": {\n\"z\": { \"command\": \"x\" },\n\"m\": { \"url\": \"http://h/\", \
                \"headers\": {\n\"A\": \"Bearer ${TOK}\" } },\n\"a\": { \"command\": \"y\" } }}";
    let config = loaded(text, &Machine::new());
    let names: Vec<&str> = config.servers.keys().map(String::as_str).collect();
    assert_eq!(names, ["z", "m", "a"]);
    assert!(config.servers["z"].definition.is_ok());
    assert!(config.servers["a"].definition.is_ok());
    assert_eq!(
        config.servers["m"]
            .definition
            .as_ref()
            .expect_err("unset")
            .to_string(),
        "/c/s.json:4:6: variable TOK is not set; set it, or give a default with ${TOK:-…}"
    );
}

#[test]
fn a_bad_top_level_block_refuses_the_start() {
    for (block, expected) in [
        (
            r#"{ "lisen": "x" }"#,
            "1:18: `lisen` is not a key of the `springline` block; did you mean `listen`? It is the \
             address and port of the HTTP listener (an IP address or `localhost`; with \
             `127.0.0.1` and `localhost` `::1` is served too, where there is one); `false` opens none. An address that other machines reach needs `auth.tokens`",
        ),
        (
            r#"{ "auth": { "token": {} } }"#,
            "1:28: `token` is not a key of `springline.auth`; did you mean `tokens`? It names the \
             bearer tokens that the listener accepts: `{ NAME: TOKEN }`; a client is then the \
             principal `token:NAME`",
        ),
        (
            r#"{ "heartbeat": true }"#,
            "1:31: `heartbeat` is a boolean; write a duration above zero like \"10s\" (ms, s, m, h, d)",
        ),
        (
            r#"{ "bodyMax": "64MB" }"#,
            "1:29: `bodyMax` is \"64MB\"; write a size above zero like \"64MiB\" (B, KiB, MiB, GiB)",
        ),
        (
            r#"{ "pendingMax": 1.5 }"#,
            "1:32: `pendingMax` is \"1.5\"; write a whole number above zero",
        ),
        (
            r#"{ "listen": "0.0.0.0:1" }"#,
            "1:28: other machines can reach 0.0.0.0:1, and there is no authentication; add a token to \
             `springline.auth.tokens`, or listen on 127.0.0.1",
        ),
        (
            r#"{ "listen": ":8080" }"#,
            "1:28: `listen` is not an address with a port; write an IP address or localhost, like \
             \"127.0.0.1:7333\" or \"[::1]:7333\"",
        ),
        (
            r#"{ "allowedOrigins": ["*"] }"#,
            "1:36: element 1 of `allowedOrigins` is not valid; write an origin like \
             \"https://app.example\", without a path; `*` is not taken",
        ),
        (
            r#"{ "auth": { "tokens": { "a": "${TOK}" } } }"#,
            "1:45: variable TOK is not set; set it, or give a default with ${TOK:-…}",
        ),
        (
            r#"{ "auth": { "tokens": { "a": "" } } }"#,
            "1:38: token `a` is empty or holds a character that no header can carry; use a long \
             random string of visible ASCII characters",
        ),
        (
            r#"{ "auth": { "tokens": { "a": "t", "b": "t" } } }"#,
            "1:38: tokens `a` and `b` have the same value; give each name a value of its own: it says \
             who a session belongs to",
        ),
        (
            r#"{ "backoffMin": "9s" }"#,
            "1:32: `backoffMin` is longer than `backoffMax`; make it shorter, or raise `backoffMax`",
        ),
        (
            "7",
            "1:16: `springline` is a number; write an object: { … }",
        ),
    ] {
        let text = format!("{{\"springline\": {block}}}");
        assert_eq!(error(&text), format!("/c/s.json:{expected}"), "{block}");
    }
}
