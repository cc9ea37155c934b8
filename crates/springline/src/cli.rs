//! The command line.

#![expect(
    clippy::doc_markdown,
    reason = "these comments are the text of --help, where backticks around a name would show"
)]

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
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(ServeArgs),
    /// Be a stdio MCP server for a client; bridges to the gateway, and starts one when none runs.
    #[command(after_help = CONNECT_EXAMPLES)]
    Connect(ConnectArgs),
    /// Bridge stdio to one server, with no gateway.
    Bridge(BridgeArgs),
    /// Show the running gateway.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(AskArgs),
    /// List the servers: state, processes, and why one is unavailable.
    #[command(after_help = SERVERS_EXAMPLES)]
    Servers(AskArgs),
    /// List the sessions of clients.
    #[command(after_help = SESSIONS_EXAMPLES)]
    Sessions(AskArgs),
    /// List the tools of one server, or of all; starts them if need be.
    #[command(after_help = TOOLS_EXAMPLES)]
    Tools(ToolsArgs),
    /// Call a tool once, in a session of its own.
    #[command(after_help = CALL_EXAMPLES)]
    Call(CallArgs),
    /// Have a server start afresh with the next call; what is in flight finishes first.
    #[command(after_help = RESTART_EXAMPLES)]
    Restart(RestartArgs),
    /// Read the configuration again; what did not change is not touched.
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(AskArgs),
    /// Stop the gateway in good order, and wait until it is gone.
    #[command(after_help = STOP_EXAMPLES)]
    Stop(StopArgs),
    /// Show what happened, newest last.
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(EventsArgs),
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
    /// The unix socket. Default: $SPRINGLINE_SOCKET, else the configuration's `socket`, else
    /// $XDG_RUNTIME_DIR/springline/springline.sock, else /tmp/springline-UID/springline.sock.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `springline serve`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Address of the HTTP listener, for example localhost:0; `none` opens none. Default:
    /// $SPRINGLINE_LISTEN, else the configuration's `listen`, else 127.0.0.1:7333.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Folder for what the gateway remembers. Default: $SPRINGLINE_STATE_DIR, else the
    /// configuration's `stateDir`, else $XDG_STATE_HOME/springline.
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
    /// Keep the session with the server under this name when the bridge ends or is killed, and go
    /// on with it at the next start. For a URL; one bridge for each name.
    #[arg(long, value_name = "NAME")]
    pub(crate) resume: Option<String>,
    /// Folder in which --resume keeps it. Default: $SPRINGLINE_STATE_DIR, else
    /// $XDG_STATE_HOME/springline.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

const BRIDGE_EXAMPLES: &str = "\
Examples:
  springline bridge https://mcp.example/mcp --bearer-env TOKEN
  springline bridge https://mcp.example/mcp --header 'X-Key: ${KEY}'
  springline bridge https://mcp.example/mcp --resume laptop
  springline bridge -- uvx mcp-server-time";

/// A command that asks a running gateway.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AskArgs {
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print the gateway's own JSON, for programs.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `springline tools`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ToolsArgs {
    /// The server; without it all are asked at once.
    pub(crate) server: Option<String>,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// `springline call`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CallArgs {
    /// The server.
    pub(crate) server: String,
    /// The tool, by the server's own name for it.
    pub(crate) tool: String,
    /// Arguments. A value stays a string where the tool's schema says so, or if it does not read as
    /// JSON; a number keeps its digits.
    #[arg(value_name = "KEY=VALUE", conflicts_with = "json")]
    pub(crate) words: Vec<String>,
    /// The arguments as a JSON object, passed on unchanged; prints the result as with --raw.
    #[arg(long, value_name = "OBJECT")]
    pub(crate) json: Option<String>,
    /// Print the result, or the error, as the server sent it.
    #[arg(long)]
    pub(crate) raw: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// `springline restart`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RestartArgs {
    /// The server.
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// `springline stop`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StopArgs {
    /// End all sessions, those at HTTP servers too; without it they are kept for the next start.
    #[arg(long)]
    pub(crate) end_sessions: bool,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

/// `springline events`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EventsArgs {
    /// Go on with what happens from now on, until the gateway ends.
    #[arg(long)]
    pub(crate) follow: bool,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
}

const SERVE_EXAMPLES: &str = "\
Examples:
  springline serve --config examples/quickstart.json
  springline serve --listen none          only the unix socket

SIGTERM, SIGINT and `springline stop` end it: calls in flight may finish within their own deadlines
(or within the setting `drain`). A second one ends it at once.";

const CONNECT_EXAMPLES: &str = "\
Examples:
  springline connect                      every server, as one stdio MCP server
  springline connect github               one server, its names untouched";

const STATUS_EXAMPLES: &str = "\
Examples:
  springline status
  springline status --json | jq .pid";

const SERVERS_EXAMPLES: &str = "\
Examples:
  springline servers
  springline servers --json | jq '.servers[] | select(.state == \"unavailable\")'";

const SESSIONS_EXAMPLES: &str = "\
Examples:
  springline sessions
  springline sessions --json";

const TOOLS_EXAMPLES: &str = "\
Examples:
  springline tools
  springline tools demo --json";

const CALL_EXAMPLES: &str = "\
Examples:
  springline call demo echo text=hello
  springline call demo add a=1 b=2 --raw
  springline call demo add --json '{\"a\": 9007199254740993, \"b\": 0}'";

const RESTART_EXAMPLES: &str = "\
Examples:
  springline restart github";

const RELOAD_EXAMPLES: &str = "\
Examples:
  springline reload
  springline reload --json | jq .changed

It returns when new calls meet the new configuration. A configuration that is refused changes
nothing: exit code 3, and the message names file and line.";

const STOP_EXAMPLES: &str = "\
Examples:
  springline stop
  springline stop --end-sessions";

const EVENTS_EXAMPLES: &str = "\
Examples:
  springline events
  springline events --follow --json | jq 'select(.event == \"server.exited\")'";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use super::Cli;

    #[test]
    fn the_definition_of_the_command_line_holds() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_flag_stands_in_the_page_of_commands() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let page = std::fs::read_to_string(path).unwrap();
        let mut cli = Cli::command();
        cli.build();
        let commands = cli
            .get_subcommands()
            .filter(|command| !command.is_hide_set() && command.get_name() != "help");
        for command in commands {
            let head = format!("## springline {}\n", command.get_name());
            let found = page.split(&head).nth(1);
            let section = found.unwrap_or_else(|| panic!("docs/cli.md lacks {head}"));
            let section = section.split("\n## ").next().unwrap();
            for flag in flags(command) {
                assert!(
                    section.contains(&format!("`--{flag}")),
                    "docs/cli.md: {head} lacks --{flag}"
                );
            }
        }
    }

    fn flags(command: &Command) -> Vec<String> {
        command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
            .filter_map(|argument| argument.get_long().map(str::to_owned))
            .filter(|flag| flag != "help")
            .collect()
    }
}
