//! The gateway between clients and servers that others wrote: official SDKs, published servers, the
//! conformance suite.
//!
//! Owns how such a program is found and run. `cargo xtask test` installs them, at the versions that
//! `xtask/peers` pins; by hand, `SPRINGLINE_PEERS` names the folder. It must not know what a
//! program checks: the scripts in `tests/peers` hold their own assertions.

mod client;
mod conformance;
mod outage;
mod server;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

use crate::harness::{Gateway, soon};

/// How long one program may take. Only a broken test gets there.
const RUN_MAX: Duration = Duration::from_mins(2);

/// The folder of the installed programs.
fn folder() -> PathBuf {
    let Some(folder) = std::env::var_os("SPRINGLINE_PEERS") else {
        panic!(
            "the test peers are not installed: run `cargo xtask test`, or `cargo xtask peers` and \
             set SPRINGLINE_PEERS to target/peers (`cargo xtask test --quick` leaves these tests out)"
        );
    };
    folder.into()
}

/// An installed program, from npm or `PyPI`.
fn program(name: &str) -> String {
    let places = ["node_modules/.bin", "python/bin"];
    let mut paths = places
        .map(|place| folder().join(place).join(name))
        .into_iter();
    let found = paths.find(|path| path.exists());
    let found = found.unwrap_or_else(|| panic!("{name} is not among the installed test peers"));
    found.into_os_string().into_string().unwrap()
}

/// `PATH` with the installed programs first: some need a newer Node.js than the machine's.
fn path() -> OsString {
    let own = ["node_modules/.bin", "python/bin"].map(|place| folder().join(place));
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(own.into_iter().chain(std::env::split_paths(&inherited))).unwrap()
}

/// A gateway whose servers find the installed programs.
async fn gateway(config: Value) -> Gateway {
    Gateway::start(config, |command| {
        command.env("PATH", path());
    })
    .await
}

/// A program that will find the others, with a home of its own.
fn command(program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("PATH", path())
        .env("HOME", home)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs a program to its end; it must succeed. The gateway's log is told if it does not.
async fn run(mut command: Command, gateway: Option<&Gateway>) -> String {
    let shown = format!("{:?}", command.as_std());
    let output = timeout(RUN_MAX, command.output()).await;
    let output = output
        .unwrap_or_else(|_| panic!("{shown} does not end"))
        .unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = output;
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let log = gateway.map(Gateway::log).unwrap_or_default();
    assert!(
        status.success(),
        "{shown}\n{status}\n{stdout}\n{stderr}\n-- the gateway:\n{log}"
    );
    stdout
}

/// A script of ours that plays a client, with its one argument; what it prints at its end.
async fn script(name: &str, plan: &Value, gateway: &Gateway) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peers")
        .join(name);
    let is_python = path.extension().is_some_and(|extension| extension == "py");
    let interpreter = if is_python { "python3" } else { "node" };
    let mut command = command(interpreter, gateway.folder.path());
    command.arg(path).arg(plan.to_string());
    let printed = run(command, Some(gateway)).await;
    serde_json::from_str(printed.trim()).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// The npm server "everything" on Streamable HTTP, in a process that a test can end.
struct Everything {
    child: Child,
    port: u16,
    /// The sessions that it opened are counted in its log.
    log: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    _stderr: ChildStderr,
}

impl Everything {
    async fn start(home: &Path) -> Self {
        // The server does not tell which port it took, so it is given a free one.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        Self::start_on(port, home).await
    }

    async fn start_on(port: u16, home: &Path) -> Self {
        let mut command = command(program("mcp-server-everything"), home);
        command
            .arg("streamableHttp")
            .env("PORT", port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        soon("the everything server", async {
            while !line.contains("listening") {
                let read = stderr.read_line(&mut line).await.unwrap();
                assert!(read > 0, "the everything server ended: {line}");
            }
        })
        .await;
        Self {
            child,
            port,
            log,
            _stderr: stderr.into_inner(),
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// Ends it, and tells how many sessions it had opened.
    async fn end(mut self) -> usize {
        self.child.kill().await.unwrap();
        let mut opened = 0;
        while let Some(line) = self.log.next_line().await.unwrap() {
            opened += usize::from(line.starts_with("Session initialized"));
        }
        opened
    }
}
