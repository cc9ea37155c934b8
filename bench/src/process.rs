//! The processes that a measurement starts, and what the kernel says of them.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// A process that serves under a URL; killed when dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    /// From the start of the process to the line that says that it is ready.
    pub(crate) ready: Duration,
    child: Child,
    /// Whether it has processes of its own to end.
    has_workers: bool,
    _folder: Option<tempfile::TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // nginx ends its workers only if it is asked; what is left is killed with the child.
        if let (true, Some(pid)) = (self.has_workers, self.child.id()) {
            let asked = std::process::Command::new("kill")
                .arg(pid.to_string())
                .status();
            let deadline = Instant::now() + Duration::from_secs(2);
            while asked.as_ref().is_ok_and(std::process::ExitStatus::success)
                && matches!(self.child.try_wait(), Ok(None))
                && Instant::now() < deadline
            {
                std::thread::yield_now();
            }
        }
    }
}

impl Server {
    /// Memory of the process.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        memory_of(self.child.id().context("it runs")?)
    }
}

/// The echo server, as a process of its own.
pub(crate) async fn echo() -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("echo")
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let begun = Instant::now();
    let mut child = command.spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
    let url = lines.next_line().await?.context("the echo server's URL")?;
    Ok(Server {
        url,
        ready: begun.elapsed(),
        child,
        has_workers: false,
        _folder: None,
    })
}

/// The gateway, in front of an upstream or of none.
pub(crate) async fn springline(binary: &Path, upstream: Option<&str>) -> anyhow::Result<Server> {
    let folder = tempfile::tempdir()?;
    let servers = upstream.map_or(String::new(), |url| format!(r#""echo":{{"url":"{url}"}}"#));
    let config = folder.path().join("config.json");
    std::fs::write(&config, format!(r#"{{"mcpServers":{{{servers}}}}}"#))?;
    let mut command = Command::new(binary);
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .arg("--socket")
        .arg(folder.path().join("s.sock"))
        .arg("--state-dir")
        .arg(folder.path().join("state"))
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let begun = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("{}", binary.display()))?;
    let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
    let mut url = None;
    while let Some(line) = lines.next_line().await? {
        if let Some(at) = line.find("http://127.0.0.1") {
            url = line.get(at..).map(|base| format!("{base}/echo"));
        }
        if line.contains("ready:") {
            let ready = begun.elapsed();
            // Keeps the pipe empty, so that a log line never blocks the gateway.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            let url = url.context("the gateway's address")?;
            return Ok(Server {
                url,
                ready,
                child,
                has_workers: false,
                _folder: Some(folder),
            });
        }
    }
    bail!("the gateway did not become ready")
}

/// nginx as a plain reverse proxy, if it is installed.
pub(crate) async fn nginx(upstream: &str) -> anyhow::Result<Option<Server>> {
    let binary = Path::new("/usr/sbin/nginx");
    if !binary.exists() {
        return Ok(None);
    }
    let folder = tempfile::tempdir()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let address = upstream
        .strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .context("an address")?;
    let config = folder.path().join("nginx.conf");
    std::fs::write(
        &config,
        format!(
            "daemon off; worker_processes 2; pid {dir}/pid; error_log stderr error;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; keepalive_requests 10000000; client_body_temp_path {dir}/b;\n\
             proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;\n\
             scgi_temp_path {dir}/s; client_max_body_size 64m; client_body_buffer_size 1m;\n\
             upstream up {{ server {address}; keepalive 1024; keepalive_requests 10000000; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://up;\n\
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }} }} }}\n",
            dir = folder.path().display()
        ),
    )?;
    let begun = Instant::now();
    let child = Command::new(binary)
        .arg("-c")
        .arg(&config)
        .kill_on_drop(true)
        .spawn()?;
    while tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if begun.elapsed() > Duration::from_secs(5) {
            bail!("nginx did not start");
        }
    }
    let url = format!("http://127.0.0.1:{port}/mcp");
    Ok(Some(Server {
        url,
        ready: begun.elapsed(),
        child,
        has_workers: true,
        _folder: Some(folder),
    }))
}

/// What a process holds.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// Resident, KiB.
    pub(crate) resident: u64,
    /// Proportional, KiB: shared pages divided among those who share them.
    pub(crate) proportional: u64,
}

fn memory_of(pid: u32) -> anyhow::Result<Memory> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim().split(' ').next()?.parse().ok())
            .with_context(|| format!("{name} of {pid}"))
    };
    Ok(Memory {
        resident: field("Rss:")?,
        proportional: field("Pss:")?,
    })
}
