//! The command line of the test peers.
//!
//! `faulty http|stdio`, `conformance http|stdio`, `rmcp-server http|stdio`,
//! `rmcp-client URL`. An HTTP
//! server prints `LISTENING URL` on stdout and serves until it is killed.

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use springline_fixture::{Face, FaultServer, Options, Settings, client, peer, stdio};

#[derive(Parser)]
#[command(about = "Test peers of Springline")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The server for fault tests.
    Faulty {
        #[command(subcommand)]
        transport: Transport,
    },
    /// The server that the official conformance suite wants.
    Conformance {
        #[command(subcommand)]
        transport: Transport,
    },
    /// The same contents on the `rmcp` crate's server.
    RmcpServer {
        #[command(subcommand)]
        transport: Plain,
    },
    /// Initialises, lists tools, calls one, prints JSON.
    RmcpClient {
        /// The endpoint.
        url: String,
        /// The tool to call; the first one if nothing is given.
        #[arg(long)]
        tool: Option<String>,
        /// Its arguments as a JSON object.
        #[arg(long, value_parser = json)]
        arguments: Option<serde_json::Value>,
    },
    /// Does nothing until it is killed.
    #[command(hide = true)]
    Linger,
}

#[derive(Subcommand)]
enum Transport {
    /// Streamable HTTP on 127.0.0.1.
    Http(HttpFlags),
    /// stdin and stdout.
    Stdio(stdio::Flags),
}

#[derive(Subcommand)]
enum Plain {
    /// Streamable HTTP on 127.0.0.1.
    Http {
        /// Port; 0 is any free one.
        #[arg(long, default_value_t = 0)]
        port: u16,
    },
    /// stdin and stdout.
    Stdio,
}

#[derive(Args)]
struct HttpFlags {
    /// Port; 0 is any free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Settings as a JSON object.
    #[arg(long)]
    settings: Option<String>,
    /// Appends each event to this file, one JSON line each.
    #[arg(long)]
    ledger: Option<std::path::PathBuf>,
    /// Prints the URL of the control endpoint too; it is always served.
    #[arg(long)]
    control: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(run(cli));
    // A blocked read of stdin must not keep the process.
    runtime.shutdown_background();
    Ok(ExitCode::from(code?))
}

async fn run(cli: Cli) -> anyhow::Result<u8> {
    match cli.command {
        Command::Faulty { transport } => serve(Face::Faulty, transport).await,
        Command::Conformance { transport } => serve(Face::Conformance, transport).await,
        Command::RmcpServer { transport } => match transport {
            Plain::Stdio => peer::serve_stdio().await.map(|()| 0),
            Plain::Http { port } => {
                let url = peer::serve_http(port).await?;
                print(&format!("LISTENING {url}"))?;
                std::future::pending().await
            }
        },
        Command::RmcpClient {
            url,
            tool,
            arguments,
        } => {
            let answer = client::converse(&url, tool, arguments).await?;
            print(&answer.to_string())?;
            Ok(0)
        }
        Command::Linger => std::future::pending().await,
    }
}

async fn serve(face: Face, transport: Transport) -> anyhow::Result<u8> {
    let flags = match transport {
        Transport::Stdio(flags) => return Ok(stdio::run(face, flags).await?),
        Transport::Http(flags) => flags,
    };
    let settings = match flags.settings {
        Some(text) => serde_json::from_str(&text)?,
        None => Settings {
            local_only: face == Face::Conformance,
            ..Settings::default()
        },
    };
    let server = FaultServer::start_with(Options {
        address: Some(SocketAddr::from(([127, 0, 0, 1], flags.port))),
        settings,
        face,
        ledger: flags.ledger,
    })
    .await?;
    print(&format!("LISTENING {}", server.url))?;
    if flags.control {
        print(&format!(
            "CONTROL {}",
            server.url.replace("/mcp", "/__control")
        ))?;
    }
    std::future::pending().await
}

/// Clap by itself would take any text for a JSON string.
fn json(text: &str) -> Result<serde_json::Value, serde_json::Error> {
    serde_json::from_str(text)
}

fn print(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
