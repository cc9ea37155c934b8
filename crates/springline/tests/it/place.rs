//! A gateway at the default places, and a configuration that goes, comes and breaks meanwhile.
//!
//! Owns a home for each test. It sees what a person or a script sees.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::cli::{PROGRAM, Ran, greeted};

/// A home, in which the gateway that is started in it ends with the test.
struct Home {
    folder: tempfile::TempDir,
    gateway: Option<Child>,
    /// What the gateway said until it was ready.
    said: Vec<String>,
}

impl Home {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            gateway: None,
            said: Vec::new(),
        }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config/springline/config.json")
    }

    fn write(&self, text: &str) {
        std::fs::create_dir_all(self.config().parent().unwrap()).unwrap();
        std::fs::write(self.config(), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .args(args)
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env("XDG_RUNTIME_DIR", self.folder.path().join("run"))
            .env("SPRINGLINE_LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null());
        command
    }

    /// The gateway under a limit that the shell sets.
    fn limited(&self, limit: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{limit}; exec \"$0\" serve"), PROGRAM])
            .env_clear()
            .stdin(Stdio::null());
        let like = self.command(&[]);
        command.envs(
            like.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran(self.command(args).output().unwrap())
    }

    /// Starts the gateway and waits until it is ready.
    fn serve(&mut self) {
        let command = self.command(&["serve"]);
        self.serve_with(command);
    }

    /// The same by this command; where it listens.
    fn serve_with(&mut self, mut command: Command) -> String {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        self.gateway = Some(child);
        let mut address = String::new();
        let said = &mut self.said;
        let is_ready = |line: String| {
            said.push(line.clone());
            if let Some(url) = line.strip_prefix("springline: listening on http://127.0.0.1:") {
                address = format!("127.0.0.1:{}", url.trim_end_matches("/mcp"));
            }
            line.starts_with("springline: ready: ")
        };
        assert!(lines.by_ref().map_while(Result::ok).any(is_ready));
        // Whoever writes into a pipe without a reader fails.
        std::thread::spawn(move || lines.for_each(drop));
        address
    }

    /// Waits for an event with this name.
    fn happened(&self, name: &str) -> Value {
        let mut follow = self
            .command(&["events", "--follow", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        let mut events = lines
            .map_while(Result::ok)
            .map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let event = events.find(|event| event["event"] == name).unwrap();
        follow.kill().unwrap();
        follow.wait().unwrap();
        event
    }

    fn servers(&self) -> Vec<Value> {
        let servers = self.run(&["servers", "--json"]).json();
        servers["servers"].as_array().unwrap().clone()
    }

    fn connect(&self, args: &[&str]) -> Connected {
        let mut whole = vec!["connect"];
        whole.extend_from_slice(args);
        let mut child = self
            .command(&whole)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Connected {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Also one that a `connect` started.
        self.run(&["stop"]);
        if let Some(child) = &mut self.gateway {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// A `connect` and its client.
struct Connected {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Connected {
    fn initialize(&mut self) -> Value {
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "t", "version": "1" },
        });
        self.ask("initialize", &params)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        writeln!(self.to, "{request}").unwrap();
        serde_json::from_str(&self.from.next().unwrap().unwrap()).unwrap()
    }

    fn ended(self) -> Ran {
        drop(self.to);
        Ran(self.child.wait_with_output().unwrap())
    }
}

fn demo() -> String {
    json!({ "mcpServers": { "demo": { "command": PROGRAM, "args": ["demo"] } } }).to_string()
}

#[test]
fn a_default_file_that_goes_takes_no_server_away_and_one_that_comes_back_counts() {
    let mut home = Home::new();
    home.write(&demo());
    home.serve();
    std::fs::remove_file(home.config()).unwrap();
    let refused = home.happened("reload.refused");
    let reason = refused["reason"].as_str().unwrap();
    assert!(
        reason.contains("config.json: the configuration file is gone"),
        "{reason}"
    );
    let reload = home.run(&["reload"]);
    assert_eq!(reload.code(), 3, "{}", reload.err());
    assert!(
        reload
            .err()
            .contains("config.json: the configuration file is gone")
    );
    assert_eq!(home.servers().len(), 1);
    assert_eq!(home.run(&["call", "demo", "count"]).code(), 0);
    home.write("{}");
    let done = home.happened("reload.done");
    assert_eq!(done["removed"], json!(["demo"]), "{done}");
    assert!(home.servers().is_empty());
}

#[test]
fn a_default_file_that_never_was_is_picked_up_when_it_comes() {
    let mut home = Home::new();
    home.serve();
    assert_eq!(home.run(&["reload"]).code(), 0);
    assert!(home.servers().is_empty());
    home.write(&demo());
    while home.servers().is_empty() {
        home.happened("reload.done");
    }
    assert_eq!(home.run(&["call", "demo", "count"]).code(), 0);
}

#[test]
fn a_gateway_that_runs_is_asked_whatever_is_wrong_with_the_file_by_now() {
    let mut home = Home::new();
    home.write(&demo());
    home.serve();
    home.write("{\n  \"mcpServers\": nonsense");
    for args in [&["status"][..], &["servers"], &["tools"], &["events"]] {
        let ran = home.run(args);
        assert_eq!((ran.code(), ran.err()), (0, ""), "{args:?}");
    }
    let reload = home.run(&["reload"]);
    assert_eq!(reload.code(), 3);
    assert!(reload.err().contains("config.json:2:"), "{}", reload.err());
    let mut client = home.connect(&[]);
    assert!(client.initialize()["result"].is_object());
    assert_eq!(client.ended().code(), 0);
    // Which gateway a file means that is not there, nobody knows.
    let missing = home.run(&["status", "--config", "/nowhere/missing.json"]);
    assert_eq!(missing.code(), 3);
    assert!(
        missing.err().contains("/nowhere/missing.json"),
        "{}",
        missing.err()
    );
    assert_eq!(home.run(&["stop"]).code(), 0);
    let status = home.run(&["status"]);
    assert_eq!(status.code(), 5);
    assert!(status.err().contains("no gateway runs"), "{}", status.err());
    assert!(status.err().contains("config.json:2:"), "{}", status.err());
}

#[test]
fn a_socket_that_a_broken_file_names_is_found_in_it() {
    let mut home = Home::new();
    let socket = home.folder.path().join("other/s.sock");
    let block = json!({ "socket": socket }).to_string();
    home.write(&format!("{{ \"springline\": {block} }}"));
    home.serve();
    for broken in [
        format!("{{ \"springline\": {block}, \"mcpServers\": nonsense }}"),
        format!("{{ \"springline\": {block}, \"mcpServers\": {{ \"a b\": {{}} }} }}"),
        format!("{{ // \"socket\": \"/x\"\n \"springline\": {block}"),
    ] {
        home.write(&broken);
        let status = home.run(&["status"]);
        assert_eq!((status.code(), status.err()), (0, ""), "{broken}");
    }
    home.write(&format!("{{ \"springline\": {block} }}"));
}

#[test]
fn connect_tells_its_client_what_is_wrong_with_the_file_and_goes_on_when_it_is_mended() {
    let home = Home::new();
    home.write("{\n  \"mcpServers\": nonsense");
    let mut client = home.connect(&["demo"]);
    let refused = client.initialize();
    let text = refused["error"]["message"].as_str().unwrap();
    assert!(text.contains("config.json:2:"), "{text}");
    assert_eq!(refused["error"]["data"]["outcome"], "not_executed");
    home.write(&demo());
    assert!(client.initialize()["result"].is_object());
    let ran = client.ended();
    assert_eq!(ran.code(), 0, "{}", ran.err());
    let said: Vec<&str> = ran.err().lines().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("config.json:2:"), "{said:?}");
}

#[test]
fn connect_answers_also_where_no_gateway_can_be_found_and_exits_with_3() {
    let home = Home::new();
    home.write("nonsense");
    for args in [&["--config", "/nowhere/missing.json"][..], &[]] {
        let mut client = home.connect(args);
        let refused = client.initialize();
        let text = refused["error"]["message"].as_str().unwrap();
        assert!(text.contains("configuration refused: /"), "{text}");
        assert!(text.contains(".json:"), "{text}");
        let ran = client.ended();
        assert_eq!(ran.code(), 3, "{}", ran.err());
        assert_eq!(ran.err().lines().count(), 1, "{}", ran.err());
    }
}

#[test]
fn a_flood_of_half_open_connections_keeps_nobody_out() {
    let mut home = Home::new();
    home.write(&demo());
    let address = home.serve_with(home.limited("ulimit -n 128"));
    let flood: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut half = TcpStream::connect(&address).unwrap();
            // It may be closed again by then.
            drop(half.write_all(b"POST /mcp HTTP/1.1\r\nhost: "));
            half
        })
        .collect();
    let status = home.run(&["status"]);
    assert_eq!((status.code(), status.err()), (0, ""));
    let mut client = home.connect(&["demo"]);
    assert!(client.initialize()["result"].is_object());
    let tools = client.ask("tools/list", &json!({}));
    assert_eq!(tools["result"]["tools"][0]["name"], "echo");
    assert_eq!(client.ended().code(), 0);
    let mut other = TcpStream::connect(&address).unwrap();
    write!(
        other,
        "GET /healthz HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(flood);
}

/// A request on a connection of its own, and what is answered until `last` has come.
fn asked(address: &str, line: &str, fields: &str, body: &str, last: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let len = body.len();
    write!(
        stream,
        "{line} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{fields}\
         content-length: {len}\r\n\r\n{body}"
    )
    .unwrap();
    let mut text = Vec::new();
    let mut room = [0; 4096];
    while !String::from_utf8_lossy(&text).contains(last) {
        let read = stream.read(&mut room).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&room[..read]);
    }
    (stream, String::from_utf8(text).unwrap())
}

/// A session at this path: the field that names it.
fn opened(address: &str, path: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",
        "capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    let (_, text) = asked(address, &format!("POST {path}"), "", body, "serverInfo");
    let line = text
        .lines()
        .find(|line| line.starts_with("mcp-session-id: "));
    format!("{}\r\n", line.unwrap())
}

#[test]
fn with_few_files_idle_connections_give_way_before_anybody_is_refused() {
    let mut home = Home::new();
    home.write(&demo());
    let address = home.serve_with(home.limited("ulimit -n 64"));
    let health = || asked(&address, "GET /healthz", "", "", "ok\n");
    let kept: Vec<_> = (0..60).map(|_| health()).collect();
    assert!(
        kept.iter()
            .all(|(_, text)| text.starts_with("HTTP/1.1 200"))
    );
    std::thread::scope(|scope| {
        for asking in [(); 6].map(|()| scope.spawn(health)) {
            assert!(asking.join().unwrap().1.starts_with("HTTP/1.1 200"));
        }
    });
    let session = |_| opened(&address, "/mcp");
    let sessions: Vec<String> = (0..8).map(session).collect();
    let listen = |session: &String| asked(&address, "GET /mcp", session, "", "event-stream");
    let streams: Vec<_> = sessions.iter().map(listen).collect();
    let (_, refused) = asked(&address, "GET /healthz", "", "", "\"}}");
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(
        refused.contains("content-type: application/json"),
        "{refused}"
    );
    assert!(refused.contains("connectionsMax"), "{refused}");
    drop(streams);
}

#[test]
fn as_many_children_run_as_there_are_files_for() {
    let mut home = Home::new();
    home.write(&demo());
    let address = home.serve_with(home.limited("ulimit -n 128"));
    let told = "springline: `childrenMax` counts as ";
    let told: Vec<_> = home
        .said
        .iter()
        .filter(|line| line.starts_with(told))
        .collect();
    assert_eq!(told.len(), 1, "{:?}", home.said);
    assert!(
        told[0].contains("may open 128 files; raise `ulimit -n`"),
        "{told:?}"
    );
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"count","arguments":{}}}"#;
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..2 {
                    let session = opened(&address, "/mcp/demo");
                    let (_, text) = asked(&address, "POST /mcp/demo", &session, call, r#""id":2"#);
                    assert!(text.contains("content"), "{text}");
                }
            });
        }
    });
}

#[test]
fn the_limit_on_open_files_is_raised_for_the_gateway_and_not_for_its_children() {
    let mut home = Home::new();
    let seen = home.folder.path().join("limit");
    let script = format!("ulimit -Sn > {}; exec \"$0\" demo", seen.display());
    let entry = json!({ "command": "sh", "args": ["-c", script, PROGRAM] });
    home.write(&json!({ "mcpServers": { "demo": entry } }).to_string());
    home.serve_with(home.limited("ulimit -Sn 150"));
    assert_eq!(home.run(&["call", "demo", "count"]).code(), 0);
    assert_eq!(std::fs::read_to_string(seen).unwrap().trim(), "150");
    let pid = home.gateway.as_ref().unwrap().id();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_ne!(words[3], "150", "{words:?}");
}

#[test]
fn a_gateway_starts_in_the_moment_in_which_another_was_killed() {
    let mut home = Home::new();
    for _ in 0..5 {
        home.serve();
        home.gateway.as_mut().unwrap().kill().unwrap();
    }
}

#[test]
fn a_state_folder_that_cannot_be_used_is_named_once_with_what_to_do() {
    let home = Home::new();
    home.write(&demo());
    for command in [
        &["serve"][..],
        &["connect"],
        &["bridge", "--resume", "n", "http://[::1]:9/"],
    ] {
        let mut command = home.command(command);
        command.env("XDG_STATE_HOME", "/dev/null/state");
        let ran = greeted(command);
        assert_ne!(ran.code(), 0);
        assert_eq!(ran.err().lines().count(), 1, "{}", ran.err());
        assert_eq!(
            ran.err().matches("/dev/null/state").count(),
            1,
            "{}",
            ran.err()
        );
        assert_eq!(
            ran.err().matches("Not a directory").count(),
            1,
            "{}",
            ran.err()
        );
        assert!(
            ran.err().contains("writable for this user"),
            "{}",
            ran.err()
        );
    }
}

#[test]
fn a_bridge_that_reached_nothing_fails_and_says_each_failure_once() {
    let home = Home::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let mut command = home.command(&["bridge", &url]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let params = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "t", "version": "1" },
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for id in 0..2 {
        let hello = json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params });
        writeln!(to, "{hello}").unwrap();
        let answer: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["error"]["data"]["code"], "SERVER_UNREACHABLE");
    }
    drop(to);
    let ran = Ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code(), 1);
    assert_eq!(ran.err().lines().count(), 1, "{}", ran.err());
    // One that did its work ends well.
    let ran = greeted(home.command(&["bridge", "--", PROGRAM, "demo"]));
    assert_eq!((ran.code(), ran.err()), (0, ""));
}

#[test]
fn a_table_has_no_line_without_end_and_the_whole_text_is_in_the_json() {
    let mut home = Home::new();
    let long = "x".repeat(300);
    let entry = json!({ "command": format!("/nowhere/{long}") });
    home.write(&json!({ "mcpServers": { "long": entry } }).to_string());
    home.serve();
    let table = home.run(&["servers"]);
    assert!(table.out().contains("unavailable"), "{}", table.out());
    for line in table.out().lines() {
        assert!(line.chars().count() <= 240, "{line}");
    }
    let restart = home.run(&["restart", "long"]);
    assert_eq!(
        restart.out(),
        "long: nothing was running; the next call starts it\n"
    );
}
