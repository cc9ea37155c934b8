//! The programs of others that stand beside the gateway.
//!
//! Owns: how each is started in front of the echo server. One that is not installed is left out.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;

use crate::process::{Server, free_port};

/// How long one may take to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// nginx as a plain reverse proxy, if it is installed.
pub(crate) async fn nginx(upstream: &str) -> anyhow::Result<Option<Server>> {
    let Some(binary) = installed("nginx", None) else {
        return Ok(None);
    };
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let address = address(upstream)?;
    let config = folder.path().join("nginx.conf");
    std::fs::write(
        &config,
        format!(
            "daemon off; worker_processes 2; pid {dir}/pid; error_log stderr error;\n\
             worker_rlimit_nofile 20000; events {{ worker_connections 8192; }}\n\
             http {{ access_log off; keepalive_requests 10000000; client_body_temp_path {dir}/b;\n\
             proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;\n\
             scgi_temp_path {dir}/s; client_max_body_size 64m; client_body_buffer_size 1m;\n\
             upstream up {{ server {address}; keepalive 1024; keepalive_requests 10000000; }}\n\
             server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://up;\n\
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffering off; }} }} }}\n",
            dir = folder.path().display()
        ),
    )?;
    let mut command = Command::new(binary);
    command.arg("-c").arg(&config);
    serving(command, Door::Port(port), Some(folder))
        .await
        .map(Some)
}

/// haproxy as a plain reverse proxy, if it is installed.
pub(crate) async fn haproxy(upstream: &str, peers: &Path) -> anyhow::Result<Option<Server>> {
    let Some(binary) = installed("haproxy", Some(&peers.join("haproxy/usr/sbin"))) else {
        return Ok(None);
    };
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let address = address(upstream)?;
    let config = folder.path().join("haproxy.cfg");
    std::fs::write(
        &config,
        format!(
            "global\n maxconn 8192\n nbthread 2\n\
             defaults\n mode http\n http-reuse always\n timeout connect 5s\n timeout client 1h\n\
             timeout server 1h\n option http-keep-alive\n\
             frontend front\n bind 127.0.0.1:{port}\n default_backend echo\n\
             backend echo\n server one {address} pool-max-conn 1024\n"
        ),
    )?;
    let mut command = Command::new(binary);
    let libraries = peers.join("haproxy/usr/lib/x86_64-linux-gnu");
    if libraries.exists() {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.arg("-db").arg("-f").arg(&config);
    serving(command, Door::Port(port), Some(folder))
        .await
        .map(Some)
}

/// Where a program will listen.
pub(crate) enum Door {
    Port(u16),
    Socket(PathBuf),
}

impl Door {
    async fn is_open(&self) -> bool {
        match self {
            Self::Port(port) => TcpStream::connect(("127.0.0.1", *port)).await.is_ok(),
            Self::Socket(path) => UnixStream::connect(path).await.is_ok(),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Port(port) => format!("http://127.0.0.1:{port}/mcp"),
            Self::Socket(path) => path.display().to_string(),
        }
    }
}

/// Starts a program and waits until it listens.
pub(crate) async fn serving(
    mut command: Command,
    door: Door,
    folder: Option<tempfile::TempDir>,
) -> anyhow::Result<Server> {
    let begun = Instant::now();
    let program = command
        .as_std()
        .get_program()
        .to_string_lossy()
        .into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    while !door.is_open().await {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if let Some(status) = child.try_wait()? {
            bail!("{program} ended with {status}");
        }
        if begun.elapsed() > PATIENCE {
            bail!("{program} did not listen within {PATIENCE:?}");
        }
    }
    Ok(Server::new(door.url(), begun, child, folder))
}

/// Where a program is: in a folder of ours, or where systems keep theirs.
pub(crate) fn installed(name: &str, own: Option<&Path>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own
        .map(Path::to_owned)
        .into_iter()
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

fn address(url: &str) -> anyhow::Result<&str> {
    url.strip_prefix("http://")
        .and_then(|rest| rest.split('/').next())
        .context("an address")
}
