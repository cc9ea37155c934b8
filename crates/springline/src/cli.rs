//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// An always-on gateway between MCP clients and MCP servers: no client sees a lost session, and no
/// tool call runs twice by its doing.
#[derive(Debug, Parser)]
#[command(name = "springline", version, about, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  springline serve --config examples/quickstart.json
  springline connect                      every server, as one stdio MCP server
  springline connect github               one server, its names untouched
  springline bridge https://mcp.example/mcp --bearer-env TOKEN
  springline call demo echo text=hello

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 configuration refused, 4 another gateway runs,
5 no gateway answers, 6 no such server or tool, 7 the call ended in an error.";

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway in the foreground.
    Serve(ServeArgs),
    /// Be a stdio MCP server for a client; bridges to the gateway, and starts one when none runs.
    Connect(ConnectArgs),
    /// Bridge stdio to one server, with no gateway.
    Bridge(BridgeArgs),
    /// Be a small MCP server on stdin and stdout, to try things with.
    #[command(hide = true)]
    Demo,
}

/// Where a gateway keeps and finds things.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PlaceArgs {
    /// Configuration file; may be given several times, a later one wins for each server name.
    /// Default: $SPRINGLINE_CONFIG, else $XDG_CONFIG_HOME/springline/config.json.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// The unix socket. Default: $XDG_RUNTIME_DIR/springline/springline.sock.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `springline serve`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Address of the HTTP listener, for example 127.0.0.1:7333 or localhost:0.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Folder for what the gateway remembers. Default: $XDG_STATE_HOME/springline.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Write logs as JSON objects.
    #[arg(long)]
    pub(crate) log_json: bool,
}

/// `springline connect`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ConnectArgs {
    /// The server; without it every server behind one endpoint.
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Never start a gateway.
    #[arg(long)]
    pub(crate) no_start: bool,
}

/// `springline bridge`.
#[derive(Args, Clone, Debug)]
#[command(after_help = BRIDGE_EXAMPLES)]
pub(crate) struct BridgeArgs {
    /// The server's Streamable HTTP endpoint.
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// A program and its arguments, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    /// A header for every request, NAME:VALUE; `${VAR}` in it is replaced. May be repeated.
    #[arg(long = "header", value_name = "NAME:VALUE")]
    pub(crate) headers: Vec<String>,
    /// The environment variable that holds a bearer token.
    #[arg(long, value_name = "VAR")]
    pub(crate) bearer_env: Option<String>,
    /// How long a call may stay without any message, for example 30s or 10m.
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Not available yet.
    #[arg(long, value_name = "NAME", hide = true)]
    pub(crate) resume: Option<String>,
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  springline bridge https://mcp.example/mcp --bearer-env TOKEN
  springline bridge https://mcp.example/mcp --header 'X-Key: ${KEY}'
  springline bridge -- uvx mcp-server-time";
