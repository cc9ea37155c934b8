//! What a single entry becomes.

use std::path::PathBuf;
use std::time::Duration;

use springline_proto::settings::{ReplayPolicy, StateLossPolicy};

use super::{Machine, entry, http as definition, loaded, refusal, stdio};
use crate::config::{Auth, Scope, Secret};

#[test]
fn a_stdio_entry_keeps_all_that_was_written() {
    let machine = Machine::new().var("TOK", "hunter2");
    let entry = entry(
        r#"{ "type": "stdio", "command": "uvx", "args": ["-p", 8080, "${TOK}"], "cwd": "work",
             "env": { "A": "${TOK}", "B": 1, "C": true, "D": null } }"#,
        &machine,
    );
    let stdio = stdio(&entry);
    assert_eq!(stdio.command, "uvx");
    assert_eq!(stdio.args, ["-p", "8080", "hunter2"]);
    assert_eq!(stdio.cwd, Some(PathBuf::from("/c/work")));
    let env: Vec<_> = stdio
        .env
        .iter()
        .map(|(k, v)| (k.as_str(), v.expose()))
        .collect();
    assert_eq!(env, [("A", "hunter2"), ("B", "1"), ("C", "true")]);
}

#[test]
fn the_env_file_serves_the_child_and_the_expansion_and_env_comes_before_it() {
    let machine = Machine::new()
        .var("KEY", "from the process")
        .file("/c/.env", "KEY=from the file\nOTHER=o\nOVER=file\n");
    let text = r#"{ "args": ["${KEY}"], "command": "x", "envFile": ".env",
                    "env": { "OVER": "entry" } }"#;
    let entry = entry(text, &machine);
    let stdio = stdio(&entry);
    assert_eq!(stdio.args, ["from the file"]);
    let env: Vec<_> = stdio
        .env
        .iter()
        .map(|(k, v)| (k.as_str(), v.expose()))
        .collect();
    assert_eq!(
        env,
        [("KEY", "from the file"), ("OTHER", "o"), ("OVER", "entry")]
    );
}

#[test]
fn an_http_entry_keeps_url_and_headers_and_drops_what_the_protocol_owns() {
    let machine = Machine::new()
        .var("TOK", "hunter2")
        .file("/c/ca.pem", "PEM");
    let entry = entry(
        r#"{ "type": "streamable-http", "url": "https://api.example/mcp?k=${TOK}#part",
             "headers": { "Authorization": "Bearer ${TOK}", "Accept": "text/plain" },
             "springline": { "ca": "ca.pem" } }"#,
        &machine,
    );
    let http = definition(&entry);
    assert_eq!(http.url.as_str(), "https://api.example/mcp?k=hunter2");
    assert_eq!(http.sanitised_url(), "https://api.example/mcp");
    assert_eq!(http.headers.len(), 1);
    assert_eq!(
        http.headers
            .get("authorization")
            .map(http::HeaderValue::as_bytes),
        Some(&b"Bearer hunter2"[..])
    );
    assert_eq!(http.ca.as_ref().map(|ca| &*ca.pem), Some(&b"PEM"[..]));
}

#[test]
fn a_path_into_which_a_variable_was_put_is_not_shown() {
    let machine = Machine::new().var("TOK", "hunter2");
    let entry = entry(
        r#"{ "url": "https://api.example:8443/${TOK}/mcp" }"#,
        &machine,
    );
    assert_eq!(
        definition(&entry).sanitised_url(),
        "https://api.example:8443/…"
    );
}

#[test]
fn every_spelling_of_the_http_transport_is_taken() {
    for spelling in ["http", "streamable-http", "streamableHttp"] {
        for key in ["type", "transport"] {
            let text = format!(r#"{{ "{key}": "{spelling}", "url": "http://h/" }}"#);
            definition(&entry(&text, &Machine::new()));
        }
    }
}

#[test]
fn a_wrong_entry_says_what_is_wrong_and_how_to_mend_it() {
    for (text, expected) in [
        (
            r#"{ "type": "sse", "url": "http://h/sse" }"#,
            "the old HTTP+SSE transport is not supported yet; use the server's Streamable HTTP \
             endpoint with `\"type\": \"http\"`",
        ),
        (
            r#"{ "type": "htpp", "url": "http://h/" }"#,
            "`type` is \"htpp\"; did you mean \"http\"? write \"stdio\" or \"http\" or \
             \"streamable-http\" or \"streamableHttp\" or \"sse\"",
        ),
        (
            r#"{ "command": "x", "url": "http://h/" }"#,
            "the entry has both `command` and `url`; keep `command` for a child process, or `url` \
             for an HTTP server",
        ),
        (
            r#"{ "comand": "x" }"#,
            "the entry has neither `command` nor `url`; did you mean `command` by `comand`?",
        ),
        (
            r#"{ "serverUrl": "http://h/" }"#,
            "the entry has neither `command` nor `url`; rename `serverUrl` to `url`",
        ),
        (
            r#"{ "type": "stdio", "url": "http://h/" }"#,
            "the type does not fit an entry with `url`; remove it, or write \"http\"",
        ),
        (
            r#"{ "url": "h/mcp" }"#,
            "`url` is not the URL of an HTTP server; write it in full, like \
             \"https://api.example/mcp\"",
        ),
        (
            r#"{ "url": "http://h/", "headers": { "X-A": "1", "x-a": "2" } }"#,
            "the header x-a is given twice; remove one of the two; upper and lower case are the \
             same",
        ),
        (
            r#"{ "url": "http://h/", "headers": { "X-A": "hunter2\n" } }"#,
            "the header X-A holds a character that no header can carry; look for a line break or \
             another control character in it",
        ),
        (
            r#"{ "command": "x", "args": "one" }"#,
            "`args` is a string; write an array of strings",
        ),
        (
            r#"{ "command": "x", "args": [["one"]] }"#,
            "an element is an array; write a string",
        ),
        (
            r#"{ "command": "" }"#,
            "`command` is empty; give it a value, or remove it",
        ),
        (
            r#"{ "command": "x", "headers": { "A": "b" } }"#,
            "`headers` has no meaning for a server of type stdio; remove it",
        ),
        (
            r#"{ "command": "x", "springline": { "relpay": "never" } }"#,
            "`relpay` is not a key of the `springline` block; did you mean `replay`? It says which \
             calls are sent once more after the server refused them for a lost session: all, only \
             tools whose own annotations call them read-only or idempotent, or none",
        ),
        (
            r#"{ "command": "x", "springline": { "scope": "cwd" } }"#,
            "scope \"cwd\" comes in a later version; write \"session\" or \"global\", or remove the key",
        ),
        (
            r#"{ "command": "x", "springline": { "scope": "sesion" } }"#,
            "`scope` is \"sesion\"; did you mean \"session\"? write \"session\" or \"global\" or \
             \"cwd\" or \"repo\" or \"worktree\" or \"call\"",
        ),
        (
            r#"{ "springline": { "aliasOf": "b" } }"#,
            "there is no server `b`; name another entry in `aliasOf`",
        ),
        (
            r#"{ "springline": { "aliasOf": "s" } }"#,
            "`s` is a second name itself; write `\"aliasOf\": \"s\"`",
        ),
        (
            r#"{ "command": "x", "springline": { "aliasOf": "b" } }"#,
            "`command` has no meaning beside `aliasOf`; write it at the entry `b`",
        ),
        (
            r#"{ "springline": { "aliasOf": "b", "scope": "global" } }"#,
            "`scope` has no meaning beside `aliasOf`; write it at the entry `b`",
        ),
        (
            r#"{ "command": "x", "springline": { "callTimeout": "soon" } }"#,
            "`callTimeout` is \"soon\"; write a duration above zero like \"10s\" (ms, s, m, h, d)",
        ),
        (
            r#"{ "command": "x", "springline": { "callTimeout": 0 } }"#,
            "`callTimeout` is \"0\"; write a duration above zero like \"10s\" (ms, s, m, h, d)",
        ),
        ("[]", "the entry is an array; write an object: { … }"),
        (
            r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer" } } }"#,
            "an `auth` of type bearer needs `auth.token`; add it; bearer takes auth.token",
        ),
        (
            r#"{ "url": "http://h/", "springline": { "auth": { "token": "hunter2" } } }"#,
            "`auth.token` stands in an `auth` without `type`; add \"type\": \"bearer\" or \"type\": \
             \"rmq-hmac-sha256\"",
        ),
        (
            r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer", "token": "t", "secretKey": "s" } } }"#,
            "`auth.secretKey` does not belong to an `auth` of type bearer; remove it; bearer takes \
             auth.token",
        ),
        (
            r#"{ "url": "http://h/", "springline": { "auth": { "typ": "bearer" } } }"#,
            "`typ` is not a key of `springline.auth`; did you mean `type`? It is how requests to the \
             server are authenticated",
        ),
        (
            r#"{ "url": "http://h/", "headers": { "authorization": "x" },
                 "springline": { "auth": { "type": "bearer", "token": "t" } } }"#,
            "the entry has both an Authorization header and `springline.auth`; remove one of the two",
        ),
        (
            r#"{ "url": "http://h/", "springline": { "ca": "none.pem" } }"#,
            "file /c/none.pem cannot be read: entity not found; correct the path, or the permissions \
             of the file",
        ),
    ] {
        assert_eq!(refusal(text, &Machine::new()), expected, "{text}");
    }
}

#[test]
fn a_value_that_came_out_of_a_variable_is_in_no_message() {
    let machine = Machine::new().var("T", "hunter2\n");
    for text in [
        r#"{ "url": "${T}" }"#,
        r#"{ "url": "http://h/", "headers": { "A": "${T}" } }"#,
        r#"{ "type": "${T}", "url": "http://h/" }"#,
        r#"{ "command": "x", "springline": { "callTimeout": "${T}" } }"#,
        r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer", "token": "${T}" } } }"#,
        r#"{ "command": "x", "springline": { "replay": "${T}" } }"#,
        r#"{ "command": "${file:/${T}}" }"#,
        r#"{ "command": "x", "envFile": "/${T}" }"#,
        r#"{ "url": "http://h/", "springline": { "ca": "/${T}" } }"#,
    ] {
        let message = refusal(text, &machine);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn no_debug_output_shows_a_secret() {
    let machine = Machine::new()
        .var("T", "hunter2")
        .file("/c/.env", "K=hunter2");
    for text in [
        r#"{ "command": "x", "args": ["hunter2"], "env": { "A": "hunter2" }, "envFile": ".env" }"#,
        r#"{ "url": "https://h/?k=hunter2", "headers": { "A": "hunter2" } }"#,
        r#"{ "url": "https://hunter2:hunter2@h/mcp#hunter2" }"#,
        r#"{ "url": "https://h/${T}", "springline": { "auth": { "type": "rmq-hmac-sha256",
             "accessKey": "hunter2", "secretKey": "hunter2", "instanceId": "i" } } }"#,
    ] {
        let entry = entry(text, &machine);
        assert!(entry.definition.is_ok(), "{text}");
        let shown = format!("{entry:?} {entry:#?}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let config = loaded(
        r#"{"springline":{"auth":{"tokens":{"a":"hunter2"}}}}"#,
        &machine,
    );
    assert!(!format!("{config:?}").contains("hunter2"));
    let secret = Secret::new("hunter2");
    assert_eq!(format!("{secret} {secret:?}"), "*** ***");
}

#[test]
fn both_kinds_of_authentication_are_read() {
    let machine = Machine::new().file("/c/key", "s3cret\n");
    let bearer = entry(
        r#"{ "url": "http://h/", "springline": { "auth": { "type": "bearer", "token": "t" } } }"#,
        &machine,
    );
    assert_eq!(
        definition(&bearer).auth,
        Some(Auth::Bearer {
            token: Secret::new("t")
        })
    );
    let signed = entry(
        r#"{ "url": "http://h/", "springline": { "auth": { "type": "rmq-hmac-sha256",
             "accessKey": "a", "secretKey": "${file:key}", "instanceId": "with space" } } }"#,
        &machine,
    );
    let expected = Auth::RmqHmacSha256 {
        access_key: Secret::new("a"),
        secret_key: Secret::new("s3cret"),
        instance_id: "with space".to_owned(),
    };
    assert_eq!(definition(&signed).auth, Some(expected));
}

#[test]
fn options_come_from_the_entry_else_from_the_top_else_from_the_table() {
    let config = loaded(
        r#"{ "servers": {
               "a": { "command": "x", "springline": { "callTimeout": "5m", "replay": "never",
                      "onStateLoss": "fail", "safeTools": ["t"], "idleTimeout": 1500,
                      "reconnectWait": "0s" } },
               "b": { "command": "x" } },
             "springline": { "callTimeout": "10m", "startTimeout": "9s" } }"#,
        &Machine::new(),
    );
    let a = &config.servers["a"].options;
    assert_eq!(a.call_timeout, Duration::from_mins(5));
    assert_eq!(a.start_timeout, Duration::from_secs(9));
    assert_eq!(a.reconnect_wait, Duration::ZERO);
    assert_eq!(a.idle_timeout, Some(Duration::from_millis(1500)));
    assert_eq!(
        (a.replay, a.on_state_loss),
        (ReplayPolicy::Never, StateLossPolicy::Fail)
    );
    assert_eq!(a.safe_tools, ["t"]);
    let b = &config.servers["b"].options;
    assert_eq!(b.call_timeout, Duration::from_mins(10));
    assert_eq!(b.call_timeout_max, Duration::from_hours(24));
    assert_eq!(b.replay, ReplayPolicy::AfterSessionLoss);
}

#[test]
fn an_entry_can_be_switched_off_in_either_spelling() {
    let off = |text| entry(text, &Machine::new().var("OFF", "true")).disabled;
    assert!(off(r#"{ "command": "x", "disabled": true }"#));
    assert!(off(r#"{ "command": "x", "disabled": "${OFF}" }"#));
    assert!(off(r#"{ "command": "x", "enabled": false }"#));
    assert!(off(r#"{ "command": "${UNSET}", "disabled": true }"#));
    assert!(!off(r#"{ "command": "x", "disabled": false }"#));
    assert!(!off(r#"{ "command": "x" }"#));
}

#[test]
fn keys_of_other_hosts_are_noted_and_do_no_harm() {
    let text = r#"{ "mcpServers": { "s": {
        "command": "x",
        "autoApprove": ["t"],
        "timeout": 5,
        "comand": "y",
        "replay": "never"
    } } }"#;
    let config = loaded(text, &Machine::new());
    assert!(config.servers["s"].definition.is_ok());
    let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "/c/s.json:3:9: server `s`: the key `autoApprove` is ignored",
            "/c/s.json:4:9: server `s`: the key `timeout` is ignored; see `springline.callTimeout`",
            "/c/s.json:5:9: server `s`: the key `comand` is ignored; did you mean `command`?",
            "/c/s.json:6:9: server `s`: the key `replay` is ignored here; it belongs into a \
             `springline` block",
        ]
    );
}

#[test]
fn a_second_name_says_what_the_other_entry_says_even_a_disabled_one() {
    let text = r#"{ "mcpServers": {
        "two": { "springline": { "aliasOf": "one" } },
        "one": { "command": "x", "disabled": true, "springline": { "scope": "global", "callTimeout": "7s" } },
        "bad": { "springline": { "aliasOf": "two" } },
        "own": { "command": "x" }
    } }"#;
    let config = loaded(text, &Machine::new());
    let (one, two) = (&config.servers["one"], &config.servers["two"]);
    assert_eq!(two.instance_name(), "one");
    assert!(one.disabled && !two.disabled);
    assert_eq!(
        (two.options.scope, &two.options),
        (Scope::Global, &one.options)
    );
    assert_eq!(two.identity(b"k"), one.identity(b"k"));
    assert_eq!(two.text_identity(b"k"), one.text_identity(b"k"));
    let error = config.servers["bad"]
        .definition
        .as_ref()
        .expect_err("twice");
    assert!(
        error.to_string().contains("write `\"aliasOf\": \"one\"`"),
        "{error}"
    );
    assert_eq!(config.servers["own"].options.scope, Scope::Session);
}
