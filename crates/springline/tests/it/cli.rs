//! The commands that ask a running gateway: what they print, and how they exit.
//!
//! Owns a gateway for each test, over the built-in demo server. It must not look into protocols:
//! it sees what a person or a script sees.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_springline");

/// A server that records the lines it gets in `$1`, and answers each call with a fixed result.
const SCRIBE: &str = r#"
while IFS= read -r line; do
  printf '%s\n' "$line" >> "$1"
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\("[^"]*"\|[0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*) result='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"scribe","version":"1"}}' ;;
    *'"tools/call"'*'"hang"'*) continue ;;
    *'"tools/call"'*) result='{"content":[], "structuredContent":{"n":9007199254740993,"f":1.0}}' ;;
    *'"tools/list"'*'"cursor"'*) result='{"tools":[{"name":"hang","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"note","inputSchema":{"type":"object","properties":{"s":{"type":"string"}}}}],"nextCursor":"2"}' ;;
    *) continue ;;
  esac
  [ -n "$id" ] && printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

/// A gateway of its own, in a folder of its own.
struct Gateway {
    folder: tempfile::TempDir,
    child: Option<Child>,
    stderr: Option<JoinHandle<Vec<String>>>,
    url: String,
}

impl Gateway {
    /// Starts one and waits until it is ready.
    fn start() -> Self {
        let mut gateway = Self {
            folder: tempfile::tempdir().unwrap(),
            child: None,
            stderr: None,
            url: String::new(),
        };
        let servers = json!({
            "demo": { "command": PROGRAM, "args": ["demo"] },
            "scribe": { "command": "sh", "args": ["-c", SCRIBE, "sh", gateway.path("notes")] },
            "gone": { "command": "no-launcher-of-this-name" },
            "unset": { "command": PROGRAM, "args": ["${NO_VARIABLE_OF_THIS_NAME}"] },
        });
        let config = json!({ "mcpServers": servers }).to_string();
        std::fs::write(gateway.path("config.json"), config).unwrap();
        let mut child = gateway
            .command(&["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        gateway.child = Some(child);
        for line in lines.by_ref() {
            let line = line.unwrap();
            if let Some(url) = line.strip_prefix("springline: listening on http://127.0.0.1:") {
                gateway.url = format!("http://127.0.0.1:{}", url.trim_end_matches("/mcp"));
            }
            if line.starts_with("springline: ready: ") {
                break;
            }
        }
        gateway.stderr = Some(std::thread::spawn(move || {
            lines.map_while(Result::ok).collect()
        }));
        gateway
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(args)
            .env_remove("SPRINGLINE_LOG")
            .env("SPRINGLINE_CONFIG", self.path("config.json"))
            .env("SPRINGLINE_SOCKET", self.path("run/springline.sock"))
            .env("SPRINGLINE_STATE_DIR", self.path("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran(self.command(args).output().unwrap())
    }

    fn pid(&self) -> u64 {
        self.child.as_ref().unwrap().id().into()
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args([name, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the gateway's own end; its exit code and what it said since it was ready.
    fn ended(&mut self) -> (Option<i32>, String) {
        let status = self.child.take().unwrap().wait().unwrap();
        (
            status.code(),
            self.stderr.take().unwrap().join().unwrap().join("\n"),
        )
    }

    /// Starts a call that is never answered, and waits until the server has it.
    fn hanging_call(&self) -> Child {
        let call = self
            .command(&["call", "scribe", "hang", "--json", "{}"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut follow = self
            .command(&["events", "--follow", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The child is ready: the call follows without anything to wait for but the call itself.
        let lines = BufReader::new(follow.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).any(|line| {
            let event: Value = serde_json::from_str(&line).unwrap();
            event["event"] == "session.opened"
        });
        assert!(ready);
        follow.kill().unwrap();
        follow.wait().unwrap();
        while self.run(&["status", "--json"]).json()["pending"] != 1 {
            std::thread::yield_now();
        }
        call
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// How a command ended.
pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().unwrap()
    }

    pub(crate) fn out(&self) -> &str {
        std::str::from_utf8(&self.0.stdout).unwrap()
    }

    pub(crate) fn err(&self) -> &str {
        std::str::from_utf8(&self.0.stderr).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code(), 0, "{}", self.err());
        serde_json::from_str(self.out()).unwrap()
    }
}

#[test]
fn status_tells_the_gateway_and_where_it_is() {
    let gateway = Gateway::start();
    let status = gateway.run(&["status", "--json"]).json();
    assert_eq!(status["pid"], gateway.pid());
    assert_eq!(status["servers"], json!({ "total": 4, "unavailable": 2 }));
    assert_eq!(
        status["sessions"],
        json!({ "total": 0, "attached": 0, "atRest": 0 })
    );
    assert_eq!(status["listen"][0], format!("{}/mcp", gateway.url));
    assert_eq!(status["configFiles"], json!([gateway.path("config.json")]));
    let table = gateway.run(&["status"]);
    assert!(table.out().contains(&format!("process {}", gateway.pid())));
}

#[test]
fn without_a_gateway_every_question_exits_with_5_and_says_how_to_start_one() {
    let gateway = Gateway {
        folder: tempfile::tempdir().unwrap(),
        child: None,
        stderr: None,
        url: String::new(),
    };
    std::fs::write(gateway.path("config.json"), "{}").unwrap();
    for args in [
        &["status"][..],
        &["servers", "--json"],
        &["tools"],
        &["call", "demo", "echo"],
        &["restart", "demo"],
        &["stop"],
        &["events", "--follow"],
    ] {
        let ran = gateway.run(args);
        assert_eq!(ran.code(), 5, "{args:?}");
        assert!(ran.out().is_empty(), "{args:?}");
        assert!(ran.err().contains("springline serve"), "{}", ran.err());
    }
}

#[test]
fn a_missing_launcher_and_a_bad_entry_are_unavailable_and_the_others_work() {
    let gateway = Gateway::start();
    let servers = gateway.run(&["servers", "--json"]).json();
    let states: Vec<_> = servers["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| (server["server"].as_str(), server["state"].as_str()))
        .collect();
    let expected = [
        ("demo", "idle"),
        ("scribe", "idle"),
        ("gone", "unavailable"),
        ("unset", "unavailable"),
    ];
    assert_eq!(
        states,
        expected.map(|(name, state)| (Some(name), Some(state)))
    );
    let reason = servers["servers"][2]["reason"].as_str().unwrap();
    assert!(reason.contains("no-launcher-of-this-name"), "{reason}");
    let table = gateway.run(&["servers"]);
    assert!(table.out().contains("NO_VARIABLE_OF_THIS_NAME"));

    let tools = gateway.run(&["tools", "--json"]);
    let answer = tools.json();
    assert_eq!(answer["servers"][0]["tools"][0]["name"], "echo");
    assert!(answer["servers"][2]["error"]["message"].is_string());
    assert!(tools.err().contains("no-launcher-of-this-name"));
    assert_eq!(gateway.run(&["tools", "gone"]).code(), 1);
    let call = gateway.run(&["call", "demo", "echo", "text=5"]);
    assert_eq!((call.code(), call.out()), (0, "5\n"), "{}", call.err());
    let call = gateway.run(&["call", "gone", "x"]);
    assert_eq!(call.code(), 7);
    assert!(call.err().contains("not_executed"), "{}", call.err());
}

#[test]
fn tools_are_listed_from_all_pages() {
    let gateway = Gateway::start();
    let tools = gateway.run(&["tools", "scribe", "--json"]).json();
    let tools = &tools["servers"][0]["tools"];
    assert_eq!(tools[0]["name"], "note");
    assert_eq!(tools[1]["name"], "hang");
}

#[test]
fn arguments_and_results_of_a_call_pass_byte_for_byte() {
    let gateway = Gateway::start();
    let arguments = r#"{"z": 9007199254740993,"a" :1.0, "e":1e2, "z2":[ ],"u":"\u00e9"}"#;
    let ran = gateway.run(&["call", "scribe", "note", "--json", arguments]);
    assert_eq!(ran.code(), 0, "{}", ran.err());
    let result = r#"{"content":[], "structuredContent":{"n":9007199254740993,"f":1.0}}"#;
    assert_eq!(ran.out().trim_end(), result);
    let words = ["call", "scribe", "note", "n=9007199254740993", "s=7", "t=x"];
    assert_eq!(gateway.run(&words).code(), 0);
    let notes = std::fs::read_to_string(gateway.path("notes")).unwrap();
    assert!(notes.contains(arguments), "{notes}");
    assert!(
        notes.contains(r#"{"n":9007199254740993,"s":"7","t":"x"}"#),
        "{notes}"
    );
}

#[test]
fn the_exit_code_tells_how_a_call_failed() {
    let gateway = Gateway::start();
    for (args, code) in [
        (&["call", "nobody", "x"][..], 6),
        (&["call", "demo", "nothing"], 6),
        (&["call", "demo", "nothing", "a=1"], 6),
        (&["call", "demo", "echo"], 7),
        (&["call", "demo", "echo", "no-pair"], 2),
        (&["call", "demo", "echo", "--json", "[1]"], 2),
        (&["tools", "nobody"], 6),
        (&["restart", "nobody"], 6),
    ] {
        let ran = gateway.run(args);
        assert_eq!(ran.code(), code, "{args:?}: {}", ran.err());
    }
}

#[test]
fn a_session_and_its_process_are_shown_and_a_restart_ends_the_process() {
    let gateway = Gateway::start();
    let mut connect = gateway
        .command(&["connect", "demo", "--no-start"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = connect.stdin.take().unwrap();
    let mut from = BufReader::new(connect.stdout.take().unwrap()).lines();
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {},
                    "clientInfo": { "name": "tester", "version": "7" } },
    });
    writeln!(to, "{initialize}").unwrap();
    from.next().unwrap().unwrap();

    let sessions = gateway.run(&["sessions", "--json"]).json();
    let session = &sessions["sessions"][0];
    assert_eq!(
        session["client"],
        json!({ "name": "tester", "version": "7" })
    );
    assert_eq!(session["endpoint"], "/mcp/demo");
    assert_eq!(session["protocol"], "2025-11-25");
    assert_eq!(session["attached"], true);
    assert!(session["principal"].as_str().unwrap().starts_with("uid:"));
    assert!(gateway.run(&["sessions"]).out().contains("tester 7"));

    let servers = gateway.run(&["servers", "--json"]).json();
    let instance = &servers["servers"][0]["instances"][0];
    assert_eq!(servers["servers"][0]["state"], "ready");
    assert_eq!(instance["session"], session["session"]);
    let pid = instance["pids"][0].to_string();
    assert!(PathBuf::from(format!("/proc/{pid}")).exists());

    let mut count = |id: u32| {
        let call = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "count", "arguments": {} },
        });
        writeln!(to, "{call}").unwrap();
        let answer: Value = serde_json::from_str(&from.next().unwrap().unwrap()).unwrap();
        answer["result"]["content"][0]["text"].clone()
    };
    assert_eq!([count(2), count(3)], ["1", "2"]);
    let restart = gateway.run(&["restart", "demo", "--json"]).json();
    assert_eq!(restart, json!({ "server": "demo", "instances": 1 }));
    assert_eq!(count(4), "1", "the old process still answers");
    drop(to);
    connect.wait().unwrap();
}

#[test]
fn events_are_lines_with_event_and_time_and_a_follower_ends_with_the_gateway() {
    let mut gateway = Gateway::start();
    let follow = gateway
        .command(&["events", "--follow", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(gateway.run(&["call", "demo", "count"]).code(), 0);
    let events = gateway.run(&["events", "--json"]);
    let names: Vec<Value> = events
        .out()
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            assert!(event["time"].as_str().unwrap().ends_with('Z'), "{line}");
            event["event"].clone()
        })
        .collect();
    assert!(names.contains(&json!("server.ready")), "{names:?}");
    assert!(gateway.run(&["events"]).out().contains("server.ready"));
    assert_eq!(gateway.run(&["stop"]).code(), 0);
    let follow = Ran(follow.wait_with_output().unwrap());
    assert_eq!(follow.code(), 0);
    assert!(follow.out().contains("server.ready"), "{}", follow.out());
    assert_eq!(gateway.ended().0, Some(0));
}

#[test]
fn stop_returns_when_the_gateway_is_gone_and_another_can_start_at_once() {
    let mut gateway = Gateway::start();
    let stop = gateway.run(&["stop", "--end-sessions", "--json"]).json();
    assert_eq!(stop, json!({ "pid": gateway.pid(), "pending": 0 }));
    assert!(!gateway.path("run/springline.sock").exists());
    assert_eq!(gateway.ended().0, Some(0));
    assert_eq!(gateway.run(&["stop"]).code(), 5);
}

#[test]
fn a_second_gateway_exits_with_4_and_names_the_process_of_the_first() {
    let gateway = Gateway::start();
    let pid = gateway.pid().to_string();
    let ran = gateway.run(&["serve", "--listen", "none"]);
    assert_eq!(ran.code(), 4);
    assert!(ran.err().contains(&pid), "{}", ran.err());
    let other = gateway.path("other");
    let ran = gateway.run(&[
        "serve",
        "--listen",
        "none",
        "--state-dir",
        other.to_str().unwrap(),
    ]);
    assert_eq!(ran.code(), 4);
    assert!(ran.err().contains(&pid), "{}", ran.err());
}

#[test]
fn a_hangup_ends_nothing() {
    let mut gateway = Gateway::start();
    gateway.signal("-HUP");
    assert_eq!(gateway.run(&["status"]).code(), 0);
    assert_eq!(gateway.run(&["stop"]).code(), 0);
    let (code, said) = gateway.ended();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_stop_waits_for_calls_in_flight_refuses_new_ones_and_a_second_one_does_not_wait() {
    let mut gateway = Gateway::start();
    let call = gateway.hanging_call();
    gateway.signal("-TERM");
    while gateway.run(&["status", "--json"]).json()["stopping"] != true {
        std::thread::yield_now();
    }
    assert_ne!(gateway.run(&["call", "demo", "count"]).code(), 0);
    assert!(
        gateway
            .child
            .as_mut()
            .unwrap()
            .try_wait()
            .unwrap()
            .is_none()
    );
    assert_eq!(gateway.run(&["stop"]).code(), 0);
    let (code, said) = gateway.ended();
    assert_eq!(code, Some(0), "{said}");
    let call = Ran(call.wait_with_output().unwrap());
    assert!(
        matches!(call.code(), 5 | 7),
        "{}: {}",
        call.code(),
        call.err()
    );
}

#[test]
fn a_listener_without_tokens_shows_the_state_and_lets_nobody_steer() {
    let gateway = Gateway::start();
    let ask = |method: &str, path: &str| {
        use std::io::Read as _;
        let address = gateway.url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let status = ask("GET", "/api/status");
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    assert!(!status.contains("stateDir"), "{status}");
    assert!(ask("GET", "/metrics").contains("springline_server_available{server=\"gone\"} 0"));
    let nothing = ask("GET", "/api/nope");
    assert!(nothing.starts_with("HTTP/1.1 404"), "{nothing}");
    assert!(nothing.contains(r#""code":"not_found""#), "{nothing}");
    for (method, path) in [
        ("GET", "/api/servers"),
        ("GET", "/api/events"),
        ("POST", "/api/call"),
        ("POST", "/api/restart"),
        ("POST", "/api/stop"),
    ] {
        let answer = ask(method, path);
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
    assert_eq!(gateway.run(&["status"]).code(), 0);
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_no_failure() {
    let gateway = Gateway::start();
    let mut tools = gateway
        .command(&["events", "--follow", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(tools.stdout.take());
    assert_eq!(gateway.run(&["call", "demo", "count"]).code(), 0);
    let ran = Ran(tools.wait_with_output().unwrap());
    assert_eq!((ran.code(), ran.err()), (0, ""));
}

/// Runs a `connect` or `bridge` whose client sends `initialize` and ends.
pub(crate) fn greeted(mut command: Command) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    let mut input = child.stdin.take().unwrap();
    // One that failed at once may be gone before it is greeted.
    match writeln!(input, "{hello}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => panic!("{error}"),
        Ok(()) | Err(_) => drop(input),
    }
    Ran(child.wait_with_output().unwrap())
}

#[test]
fn connect_with_a_wrong_name_names_the_servers_and_exits_with_6() {
    let mut gateway = Gateway::start();
    let ran = greeted(gateway.command(&["connect", "nope"]));
    let answer: Value = serde_json::from_str(ran.out()).unwrap();
    let error = &answer["error"];
    let text = "there is no server \"nope\"; configured are demo, scribe, gone, unset";
    assert_eq!(error["message"], text);
    assert_eq!(error["data"]["retry"], "no");
    let hint = "correct the name that `springline connect` is given";
    assert_eq!(ran.err(), format!("springline connect: {text}; {hint}\n"));
    assert_eq!(ran.code(), 6);
    assert_eq!(gateway.run(&["stop"]).code(), 0);
    assert_eq!(gateway.ended().0, Some(0));

    let ran = greeted(gateway.command(&["connect", "--no-start"]));
    assert_eq!(ran.code(), 5);
    let answer: Value = serde_json::from_str(ran.out()).unwrap();
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.starts_with("no gateway answers on /"), "{text}");
}

#[test]
fn connect_says_why_the_gateway_that_it_started_ended() {
    let mut gateway = Gateway::start();
    let config = json!({ "springline": { "listen": gateway.url.trim_start_matches("http://") } });
    std::fs::write(gateway.path("other.json"), config.to_string()).unwrap();
    let mut command = gateway.command(&["connect"]);
    command
        .env("SPRINGLINE_CONFIG", gateway.path("other.json"))
        .env("SPRINGLINE_SOCKET", gateway.path("run/other.sock"))
        .env("SPRINGLINE_STATE_DIR", gateway.path("other"));
    let ran = greeted(command);
    assert_eq!(ran.code(), 5);
    assert!(ran.err().contains("the listener: "), "{}", ran.err());
    assert!(ran.err().contains("other/gateway.log"), "{}", ran.err());
    assert_eq!(gateway.run(&["stop"]).code(), 0);
    assert_eq!(gateway.ended().0, Some(0));
}

#[test]
fn neither_a_bridge_nor_a_connect_to_a_given_socket_needs_a_home() {
    let gateway = Gateway::start();
    let socket = gateway.path("run/springline.sock");
    let without_home = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let path = std::env::var_os("PATH").unwrap_or_default();
        command.args(args).env_clear().env("PATH", path);
        greeted(command)
    };
    let socket = socket.to_str().unwrap();
    for args in [
        &["bridge", "--", PROGRAM, "demo"][..],
        &["connect", "demo", "--socket", socket],
    ] {
        let ran = without_home(args);
        assert_eq!(ran.code(), 0, "{}", ran.err());
        assert!(ran.out().contains("protocolVersion"), "{}", ran.out());
    }
}

#[test]
fn a_follower_whose_reader_is_gone_ends_without_another_event() {
    let gateway = Gateway::start();
    assert_eq!(gateway.run(&["call", "demo", "count"]).code(), 0);
    let mut follow = gateway
        .command(&["events", "--follow"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(follow.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    drop(output);
    assert_eq!(follow.wait().unwrap().code(), Some(0));
}
