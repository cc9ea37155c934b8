//! Gateways and bridges that people use in place of the gateway, as `cargo xtask bench --peers`
//! installs them.
//!
//! Owns: how each is started. One that is not there is told and left out.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::peer::{Door, haproxy, installed, serving};
use crate::process::{Program, Server, free_port};
use crate::report::line;

/// The folder in which they are.
pub(crate) struct Rivals<'a> {
    folder: &'a Path,
}

impl<'a> Rivals<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self { folder }
    }

    fn find(&self, name: &str, own: &str) -> Option<PathBuf> {
        let program = installed(name, Some(&self.folder.join(own)))
            .filter(|program| program.starts_with(self.folder));
        if program.is_none() {
            line(&format!("{own}/{name} is not installed: left out."));
        }
        program
    }

    /// haproxy, in front of the HTTP echo server.
    pub(crate) async fn proxies(&self, url: &str) -> Vec<(&'static str, Server)> {
        match haproxy(url, self.folder).await {
            Ok(Some(server)) => return vec![("haproxy", server)],
            Ok(None) => line("haproxy is not installed: left out."),
            Err(error) => line(&format!("haproxy: left out: {error:#}")),
        }
        Vec::new()
    }

    /// Those that serve a stdio server over HTTP, in front of the stdio echo server.
    pub(crate) async fn servers(&self, echo: &Program) -> Vec<(&'static str, Server)> {
        let mut servers = Vec::new();
        let npm = ("npm mcp-proxy", "node_modules/.bin", "--host");
        let python = ("PyPI mcp-proxy", "python/bin", "--host");
        for (name, own, host) in [npm, python] {
            let Some(program) = self.find("mcp-proxy", own) else {
                continue;
            };
            match self.serve(&program, host, echo).await {
                Ok(server) => servers.push((name, server)),
                Err(error) => line(&format!("{name}: left out: {error:#}")),
            }
        }
        servers
    }

    async fn serve(&self, program: &Path, host: &str, echo: &Program) -> anyhow::Result<Server> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args([host, "127.0.0.1", "--port", &port.to_string(), "--"]);
        command.arg(&echo.path).args(&echo.arguments);
        serving(command, Door::Port(port), None).await
    }

    /// Those that carry stdio to an HTTP server.
    pub(crate) fn bridges(&self, url: &str, folder: &Path) -> Vec<(&'static str, Program)> {
        let mut bridges = Vec::new();
        if let Some(path) = self.find("supergateway", "node_modules/.bin") {
            let arguments = ["--streamableHttp", url, "--logLevel", "none"];
            bridges.push(("supergateway", Program::new(path, arguments)));
        }
        if let Some(path) = self.find("mcp-remote", "node_modules/.bin") {
            let mut program = Program::new(path, [url, "--transport", "http-only"]);
            let place = folder.as_os_str().to_owned();
            program.environment.push(("MCP_REMOTE_CONFIG_DIR", place));
            bridges.push(("mcp-remote", program));
        }
        bridges
    }

    /// rmcp-mux: its daemon in front of the stdio echo server, and the program that a client runs.
    pub(crate) async fn mux(&self, echo: &Program) -> anyhow::Result<Option<(Server, Program)>> {
        let daemon = self.find("rmcp-mux", "bin");
        let proxy = self.find("rmcp-mux-proxy", "bin");
        let (Some(daemon), Some(proxy)) = (daemon, proxy) else {
            return Ok(None);
        };
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("mux.sock");
        let mut command = Command::new(daemon);
        command.args(["--log-level", "error", "--socket"]);
        command.arg(&socket).arg("--cmd").arg(&echo.path).arg("--");
        command.args(&echo.arguments);
        let mut program = Program::new(proxy, ["--socket"]);
        program.arguments.push(socket.clone().into_os_string());
        let server = serving(command, Door::Socket(socket), Some(folder)).await?;
        Ok(Some((server, program)))
    }
}
