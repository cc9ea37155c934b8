//! Which files are read, and what comes before what.

use std::path::PathBuf;
use std::time::Duration;

use super::{Machine, loaded, try_load};
use springline_proto::settings::{SessionSettings, UpstreamSettings};

use crate::config::{
    Config, ConfigError, Definition, EntryOptions, Listen, Overrides, ProcessEnvironment, Settings,
    Sources, load,
};

fn load_all(files: &[&str], machine: &Machine) -> Result<Config, ConfigError> {
    let sources = Sources::from_files(files.iter().map(PathBuf::from));
    load(&sources, &Overrides::default(), machine)
}

fn names(config: &Config) -> Vec<&str> {
    config.servers.keys().map(String::as_str).collect()
}

#[test]
fn the_flag_comes_before_the_variable_and_the_variable_before_the_default_path() {
    let one = |name: &str| format!("{{\"servers\":{{\"{name}\":{{\"command\":\"x\"}}}}}}");
    let machine = Machine::new()
        .file("/flag.json", one("flag"))
        .file("/variable.json", one("variable"))
        .file("/xdg/springline/config.json", one("xdg"))
        .file("/ann/.config/springline/config.json", one("home"));
    assert_eq!(names(&load_all(&[], &machine).expect("home")), ["home"]);
    let machine = machine.var("XDG_CONFIG_HOME", "/xdg");
    assert_eq!(names(&load_all(&[], &machine).expect("xdg")), ["xdg"]);
    let machine = machine.var("SPRINGLINE_CONFIG", "/variable.json");
    assert_eq!(
        names(&load_all(&[], &machine).expect("variable")),
        ["variable"]
    );
    let config = load_all(&["/flag.json"], &machine).expect("flag");
    assert_eq!(names(&config), ["flag"]);
    assert_eq!(config.files, [PathBuf::from("/flag.json")]);
}

#[test]
fn only_the_default_file_may_be_missing() {
    let config = load_all(&[], &Machine::new()).expect("an empty configuration");
    assert!(config.servers.is_empty() && config.files.is_empty());
    let notes: Vec<String> = config.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "configuration: there is no file /ann/.config/springline/config.json: no servers are \
          configured"
        ]
    );
    let error = load_all(&["/none"], &Machine::new()).expect_err("named by the flag");
    let text = error.to_string();
    let named = "/none: cannot read the configuration file named by --config (";
    assert!(text.starts_with(named), "{text}");
    assert!(
        text.ends_with("); correct the path or the permissions"),
        "{text}"
    );
    let machine = Machine::new().var("SPRINGLINE_CONFIG", "/none");
    let error = load_all(&[], &machine).expect_err("named by the variable");
    let text = error.to_string();
    let named = "/none: cannot read the configuration file named by SPRINGLINE_CONFIG (";
    assert!(text.starts_with(named), "{text}");
    assert!(
        text.ends_with("); correct the path or the permissions"),
        "{text}"
    );
}

#[test]
fn a_later_file_wins_for_each_name_and_each_setting() {
    let machine = Machine::new()
        .file(
            "/a/1.json",
            r#"{ "mcpServers": { "x": { "command": "one" }, "y": { "command": "two" } },
                 "springline": { "heartbeat": "1s", "sessionsMax": 5,
                                 "auth": { "tokens": { "a": "1", "b": "2" } } } }"#,
        )
        .file(
            "/b/2.json",
            r#"{ "servers": { "z": { "command": "three" }, "x": { "command": "four", "cwd": "d" } },
                 "springline": { "heartbeat": "2s", "auth": { "tokens": { "b": "3" } } } }"#,
        );
    let config = load_all(&["/a/1.json", "/b/2.json"], &machine).expect("both");
    assert_eq!(names(&config), ["x", "y", "z"]);
    let Ok(Definition::Stdio(x)) = &config.servers["x"].definition else {
        panic!("stdio")
    };
    assert_eq!(
        (x.command.as_str(), x.cwd.clone()),
        ("four", Some(PathBuf::from("/b/d")))
    );
    assert_eq!(config.settings.heartbeat, Duration::from_secs(2));
    assert_eq!(config.settings.sessions_max, 5);
    let tokens: Vec<_> = config
        .settings
        .tokens
        .iter()
        .map(|(n, t)| (n.as_str(), t.expose()))
        .collect();
    assert_eq!(tokens, [("a", "1"), ("b", "3")]);
}

#[test]
fn environment_comes_before_files_and_flags_before_both() {
    let text = r#"{ "springline": { "listen": "127.0.0.1:1", "stateDir": "state", "cors": true,
                                    "heartbeat": "1s" } }"#;
    let from_file = loaded(text, &Machine::new()).settings;
    assert_eq!(from_file.listen, Listen::parse("127.0.0.1:1"));
    assert_eq!(from_file.state_dir, PathBuf::from("/c/state"));
    let machine = Machine::new()
        .file("/c/s.json", text)
        .var("SPRINGLINE_LISTEN", "127.0.0.1:2")
        .var("SPRINGLINE_STATE_DIR", "/var/s")
        .var("SPRINGLINE_ALLOWED_HOSTS", "A.example, b.example:1")
        .var("SPRINGLINE_CORS", "0")
        .var("SPRINGLINE_HEARTBEAT", "");
    let from_environment = loaded(text, &machine).settings;
    assert_eq!(from_environment.listen, Listen::parse("127.0.0.1:2"));
    assert_eq!(from_environment.state_dir, PathBuf::from("/var/s"));
    assert_eq!(from_environment.allowed_hosts, ["a.example", "b.example:1"]);
    assert_eq!(from_environment.heartbeat, Duration::from_secs(1));
    assert!(from_file.cors && !from_environment.cors);
    let overrides = Overrides {
        listen: Some("none".to_owned()),
        socket: Some(PathBuf::from("/run/s.sock")),
        state_dir: Some(PathBuf::from("rel")),
    };
    let sources = Sources::from_files([PathBuf::from("/c/s.json")]);
    let flags = load(&sources, &overrides, &machine)
        .expect("flags")
        .settings;
    assert_eq!(flags.listen, None);
    assert_eq!(flags.socket, PathBuf::from("/run/s.sock"));
    assert_eq!(flags.state_dir, PathBuf::from("rel"));
}

#[test]
fn an_error_in_a_variable_or_flag_names_it_and_not_its_value() {
    let machine = Machine::new().var("SPRINGLINE_HEARTBEAT", "hunter2");
    let error = load_all(&[], &machine).expect_err("no duration");
    assert_eq!(
        error.to_string(),
        "environment variable SPRINGLINE_HEARTBEAT: the value for `heartbeat` is not valid; write a \
         duration above zero like \"10s\" (ms, s, m, h, d)"
    );
    let overrides = Overrides {
        listen: Some("0.0.0.0:1".to_owned()),
        ..Overrides::default()
    };
    let error = load(&Sources::default(), &overrides, &Machine::new()).expect_err("open to all");
    assert_eq!(
        error.to_string(),
        "flag --listen: other machines can reach 0.0.0.0:1, and there is no authentication; add a \
         token to `springline.auth.tokens`, or listen on 127.0.0.1"
    );
}

#[test]
fn an_open_address_needs_a_token_and_takes_one() {
    let text = r#"{ "springline": { "listen": "[::]:1", "auth": { "tokens": { "a": "t" } } } }"#;
    assert!(
        loaded(text, &Machine::new())
            .settings
            .listen
            .is_some_and(|l| !l.is_loopback())
    );
    for loopback in [
        "127.0.0.1",
        "127.8.8.8:1",
        "[::1]:1",
        "::1",
        "localhost",
        "localhost:9",
    ] {
        assert!(
            Listen::parse(loopback).is_some_and(|l| l.is_loopback()),
            "{loopback}"
        );
    }
    assert_eq!(
        Listen::parse("localhost:9").map(|l| l.addresses.len()),
        Some(2)
    );
    for wrong in [
        "",
        ":1",
        "host.example:1",
        "127.0.0.1:",
        "127.0.0.1:99999",
        "1.2.3",
    ] {
        assert_eq!(Listen::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn paths_are_built_from_the_machine_where_nobody_names_them() {
    let settings = Settings::built_in(&Machine::new()).expect("a home");
    assert_eq!(
        settings.socket,
        PathBuf::from("/tmp/springline-1000/springline.sock")
    );
    assert_eq!(
        settings.state_dir,
        PathBuf::from("/ann/.local/state/springline")
    );
    let machine = Machine::new()
        .var("XDG_RUNTIME_DIR", "/run/user/1")
        .var("XDG_STATE_HOME", "/s");
    let settings = Settings::built_in(&machine).expect("all");
    assert_eq!(
        settings.socket,
        PathBuf::from("/run/user/1/springline/springline.sock")
    );
    assert_eq!(settings.state_dir, PathBuf::from("/s/springline"));
    assert!(settings.socket_is_default);
    assert!(
        Settings::built_in(&Machine::default()).is_err(),
        "no home, no state"
    );
}

#[test]
fn an_object_without_servers_is_a_configuration_and_an_empty_file_is_none() {
    for text in ["{}", "{ \"mcpServers\": null }", "// nothing yet\n{}"] {
        assert!(loaded(text, &Machine::new()).servers.is_empty(), "{text:?}");
    }
    for text in ["", "\n", "\u{feff}", "// nothing yet\n"] {
        let refused = try_load(text, &Machine::new()).expect_err("no configuration");
        let refused = refused.to_string();
        assert!(refused.contains("json:1:1"), "{refused}");
        assert!(
            refused.contains("the file is empty") && refused.contains("`{}`"),
            "{refused}"
        );
    }
}

#[test]
fn the_real_machine_reads_files_up_to_the_cap() {
    use crate::config::{Environment, ReadError};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("f");
    std::fs::write(&path, "12345").expect("written");
    assert_eq!(
        ProcessEnvironment.read(&path, 5).expect("it fits"),
        b"12345"
    );
    assert!(matches!(
        ProcessEnvironment.read(&path, 4),
        Err(ReadError::TooLarge)
    ));
    assert!(matches!(
        ProcessEnvironment.read(folder.path(), 4),
        Err(ReadError::Io(_))
    ));
    assert!(
        ProcessEnvironment.var("SPRINGLINE_EXE").is_some(),
        "the running program"
    );
}

#[test]
fn the_table_and_the_machines_have_the_same_defaults() {
    let settings = Settings::built_in(&Machine::new()).expect("a home");
    let options = EntryOptions::from_settings(&settings);
    let upstream = UpstreamSettings::default();
    assert_eq!(options.start_timeout, upstream.start_timeout);
    assert_eq!(options.reconnect_wait, upstream.reconnect_wait);
    assert_eq!(options.call_timeout, upstream.call_timeout);
    assert_eq!(options.call_timeout_max, upstream.call_timeout_max);
    assert_eq!(options.idle_timeout, upstream.idle_timeout);
    assert_eq!(options.safe_tools, upstream.safe_tools);
    assert_eq!(
        (settings.backoff_min, settings.backoff_max),
        upstream.recovery_backoff
    );
    assert_eq!(settings.child_idle, upstream.detached_idle);
    assert_eq!(settings.child_unused, upstream.unused_idle);
    let session = SessionSettings::default();
    assert_eq!(settings.stream_after, session.stream_after);
    assert_eq!(settings.pending_max, session.pending_max);
    assert_eq!(settings.list_wait, session.list_wait);
    assert_eq!(settings.ask_timeout, session.ask_timeout);
    assert_eq!(settings.redelivery_events, session.redelivery_events_max);
    assert_eq!(settings.redelivery_bytes, session.redelivery_bytes_max);
    assert_eq!(settings.redelivery_age, session.redelivery_age_max);
}

#[test]
fn no_text_makes_the_reader_panic_and_every_refusal_has_a_place() {
    let text = "// é\n{ \"mcpServers\": { \"a\": { \"command\": \"${A:-ü}\", \"args\": [\"x\", 1.5e3,], \
                \"env\": { \"K\": \"\\u00e4\" }, \"springline\": { \"auth\": { \"type\": \"bearer\" }, \
                \"callTimeout\": \"5m\" } } },\r\n \"springline\": { \"listen\": \"[::1]:1\", \"auth\": \
                { \"tokens\": { \"a\": \"$$t\" } }, \"bodyMax\": 7 } } /* end */";
    let mut texts: Vec<Vec<u8>> = (0..text.len())
        .map(|end| text.as_bytes()[..end].to_vec())
        .collect();
    for at in 0..text.len() {
        for byte in *b"\"{}[],:$\\/ \n\r0a\xff\0" {
            let mut changed = text.as_bytes().to_vec();
            changed[at] = byte;
            texts.push(changed);
        }
    }
    for text in texts {
        let machine = Machine::new().file("/f", &text);
        match load_all(&["/f"], &machine) {
            Ok(config) => {
                for entry in config.servers.values() {
                    if let Err(problem) = &entry.definition {
                        assert!(problem.to_string().starts_with("/f:"), "{problem}");
                    }
                }
            }
            Err(error) => assert!(error.to_string().starts_with("/f:"), "{error}"),
        }
    }
}
