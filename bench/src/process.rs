//! The processes that a measurement starts: the echo server and the gateway.
//!
//! Owns: their folders, and their end. `peer` starts the programs of others, `kernel` asks what
//! the system knows of any of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::kernel::{self, Memory};

/// A command line.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

impl Program {
    /// A program with arguments.
    pub(crate) fn new<T: Into<OsString>>(
        path: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            path: path.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
        }
    }

    /// This harness as an echo server on stdio.
    pub(crate) fn echo() -> anyhow::Result<Self> {
        Ok(Self::new(std::env::current_exe()?, ["echo", "--stdio"]))
    }
}

/// A process that serves under a URL; killed when dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    /// From the start of the process to the line that says that it is ready.
    pub(crate) ready: Duration,
    child: Child,
    /// Whether it has processes of its own to end.
    has_children: bool,
    /// What it needs while it runs.
    folder: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Some end their children only if they are asked; what is left is killed with this one.
        if self.has_children {
            self.ask_to_end();
            let deadline = Instant::now() + Duration::from_secs(2);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
    }
}

impl Server {
    /// What was started, and is reached under this URL since now.
    pub(crate) fn new(
        url: String,
        begun: Instant,
        child: Child,
        folder: Option<tempfile::TempDir>,
    ) -> Self {
        Self {
            url,
            ready: begun.elapsed(),
            child,
            has_children: true,
            folder,
        }
    }

    /// Memory of the process and its children.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        kernel::memory(self.pid()?)
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("it ended")
    }

    /// SIGKILL, and the end of it.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.has_children = false;
        self.child.kill().await?;
        drop(self.folder.take());
        Ok(())
    }

    /// SIGTERM, and the end of it.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.has_children = false;
        self.ask_to_end();
        self.child.wait().await?;
        Ok(())
    }

    fn ask_to_end(&self) {
        if let Some(pid) = self.child.id() {
            let asked = std::process::Command::new("kill")
                .arg(pid.to_string())
                .status();
            // Without `kill` the child is killed when it is dropped.
            drop(asked);
        }
    }
}

/// A loopback port that is free now.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

/// The echo server, as a process of its own.
pub(crate) async fn echo() -> anyhow::Result<Server> {
    echo_at("127.0.0.1:0").await
}

/// The echo server at an address.
pub(crate) async fn echo_at(listen: &str) -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["echo", "--listen", listen])
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let url = lines.next_line().await?.context("the echo server's URL")?;
    let mut server = Server::new(url, begun, child, None);
    server.has_children = false;
    Ok(server)
}

/// Where a gateway lives, over any number of starts.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    listen: String,
}

impl Home {
    /// A gateway with one entry, `echo`, in front of a URL.
    pub(crate) fn with_url(url: &str) -> anyhow::Result<Self> {
        Self::new(&format!(r#""echo":{{"url":"{url}"}}"#))
    }

    /// A gateway with one entry, `echo`, that runs a program for each session.
    pub(crate) fn with_program(program: &Program) -> anyhow::Result<Self> {
        let arguments: Vec<String> = program
            .arguments
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        let entry = serde_json::json!({ "command": program.path, "args": arguments });
        Self::new(&format!(r#""echo":{entry}"#))
    }

    /// A gateway with these entries.
    pub(crate) fn new(entries: &str) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("config.json");
        std::fs::write(config, format!(r#"{{"mcpServers":{{{entries}}}}}"#))?;
        let listen = format!("127.0.0.1:{}", free_port()?);
        Ok(Self { folder, listen })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s.sock")
    }

    /// The endpoint of `echo`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp/echo", self.listen)
    }

    /// `springline connect` to this gateway.
    pub(crate) fn connect(&self, binary: &Path) -> Program {
        let mut program = Program::new(binary, ["connect", "echo", "--no-start", "--socket"]);
        program.arguments.push(self.socket().into_os_string());
        program
    }

    /// Starts the gateway, with the state that its last start left.
    pub(crate) async fn start(&self, binary: &Path) -> anyhow::Result<Server> {
        let mut command = Command::new(binary);
        command
            .args(["serve", "--listen", &self.listen, "--config"])
            .arg(self.folder.path().join("config.json"))
            .arg("--socket")
            .arg(self.socket())
            .arg("--state-dir")
            .arg(self.folder.path().join("state"))
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let begun = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("could not start {}", binary.display()))?;
        let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
        let mut said = String::new();
        while let Some(line) = lines.next_line().await? {
            if line.contains("ready:") {
                let server = Server::new(self.url(), begun, child, None);
                // Keeps the pipe empty, so that a log line never blocks the gateway.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(server);
            }
            said = line;
        }
        bail!("the gateway did not become ready: {said}")
    }
}
