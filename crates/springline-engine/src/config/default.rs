//! The declaration of every setting: one table.
//!
//! The parser, `docs/config.md`, the JSON Schema, the environment variables and the hints for
//! unknown keys all derive from it, so none of them can know a key that the others do not. It owns
//! names, kinds and words; defaults of machines and drivers it takes from them. It must not know how a
//! value is read.

use std::time::Duration;

use springline_proto::settings::{BODY_MAX, SessionSettings, UpstreamSettings};

use crate::downstream::setting::HEARTBEAT;
use crate::event::KEPT_MAX;
use crate::upstream::http::DELETE_TIMEOUT;
use crate::upstream::stdio::LINE_BUFFERS_MAX;

/// In which object a key stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Home {
    /// The top-level `springline` block.
    Top,
    /// A server entry itself: the keys that other hosts know too.
    Entry,
    /// The `springline` block of a server entry.
    Block,
}

/// What a value looks like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A duration above zero: `"10s"`, or a number of milliseconds.
    Duration,
    /// A duration that may be zero.
    DurationOrZero,
    /// A number of bytes above zero: `"64MiB"`, or a number.
    Bytes,
    /// A whole number above zero.
    Count,
    /// `true` or `false`.
    Flag,
    /// A string.
    Text,
    /// A path; `~/` and paths relative to the file that names it are resolved.
    Path,
    /// A string that is never shown.
    Secret,
    /// The address of the listener, or `false` for none.
    Listen,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An array of strings.
    List,
    /// An object of strings that are never shown.
    Secrets,
    /// A key of a later version: known, and refused.
    Later,
}

/// What holds when nobody says anything.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Preset {
    /// A duration in milliseconds.
    Ms(u64),
    /// A number of bytes or of things.
    Number(u64),
    /// A flag.
    Flag(bool),
    /// A string, a choice or an address.
    Text(&'static str),
    /// No value; the text says what that means.
    Nothing(&'static str),
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Declaration {
    /// Where it stands.
    pub home: Home,
    /// Its key; nested keys with dots between them.
    pub key: &'static str,
    /// The environment variable that replaces it, if one does.
    pub variable: Option<&'static str>,
    /// What a value looks like.
    pub kind: Kind,
    /// What holds without one.
    pub preset: Preset,
    /// What it does, as the end of "this key …": plain words without a full stop.
    pub text: &'static str,
}

/// The defaults of the machines.
const UPSTREAM: &UpstreamSettings = &UpstreamSettings::DEFAULT;
const SESSION: &SessionSettings = &SessionSettings::DEFAULT;

const fn span(span: Duration) -> Preset {
    Preset::Ms(span.as_secs() * SECOND + span.subsec_millis() as u64)
}

const fn number(number: usize) -> Preset {
    Preset::Number(number as u64)
}

const SECOND: u64 = 1000;
const DAY: u64 = 24 * 60 * 60 * SECOND;

const fn top(
    key: &'static str,
    variable: &'static str,
    kind: Kind,
    preset: Preset,
    text: &'static str,
) -> Declaration {
    Declaration {
        home: Home::Top,
        key,
        variable: Some(variable),
        kind,
        preset,
        text,
    }
}

const fn other(
    home: Home,
    key: &'static str,
    kind: Kind,
    preset: Preset,
    text: &'static str,
) -> Declaration {
    Declaration {
        home,
        key,
        variable: None,
        kind,
        preset,
        text,
    }
}

/// Every setting, in the order of the documentation.
pub const DECLARATIONS: &[Declaration] = &[
    // The gateway.
    top(
        "listen",
        "SPRINGLINE_LISTEN",
        Kind::Listen,
        Preset::Text("127.0.0.1:7333"),
        "is the address and port of the HTTP listener (an IP address or `localhost`; with \
         `127.0.0.1` and `localhost` `::1` is served too, where there is one); `false` opens none. An address that other machines reach needs \
         `auth.tokens`",
    ),
    other(
        Home::Top,
        "auth.tokens",
        Kind::Secrets,
        Preset::Nothing("none: the listener takes anyone who reaches it"),
        "names the bearer tokens that the listener accepts: `{ NAME: TOKEN }`; a client is then \
         the principal `token:NAME`",
    ),
    top(
        "allowedOrigins",
        "SPRINGLINE_ALLOWED_ORIGINS",
        Kind::List,
        Preset::Nothing("loopback origins only"),
        "lists further values of `Origin` that are let in (in the environment: with commas)",
    ),
    top(
        "allowedHosts",
        "SPRINGLINE_ALLOWED_HOSTS",
        Kind::List,
        Preset::Nothing(
            "loopback names; on an address that other machines reach, where a token is needed, any",
        ),
        "lists further values of `Host` that are let in (in the environment: with commas)",
    ),
    top(
        "cors",
        "SPRINGLINE_CORS",
        Kind::Flag,
        Preset::Flag(false),
        "answers the cross-origin requests of browser clients whose `Origin` is let in",
    ),
    top(
        "socket",
        "SPRINGLINE_SOCKET",
        Kind::Path,
        Preset::Nothing(
            "`$XDG_RUNTIME_DIR/springline/springline.sock`, else \
             `/tmp/springline-UID/springline.sock`",
        ),
        "is the path of the unix socket that `connect` and the other commands use",
    ),
    top(
        "stateDir",
        "SPRINGLINE_STATE_DIR",
        Kind::Path,
        Preset::Nothing("`$XDG_STATE_HOME/springline`, else `~/.local/state/springline`"),
        "is the folder of everything that outlives the process",
    ),
    // Limits.
    top(
        "bodyMax",
        "SPRINGLINE_BODY_MAX",
        Kind::Bytes,
        number(BODY_MAX),
        "is the largest message that is taken, in either direction and on every transport",
    ),
    top(
        "streamAfter",
        "SPRINGLINE_STREAM_AFTER",
        Kind::DurationOrZero,
        span(SESSION.stream_after),
        "is how long an HTTP call waits for its answer before it is answered as a stream",
    ),
    top(
        "heartbeat",
        "SPRINGLINE_HEARTBEAT",
        Kind::Duration,
        span(HEARTBEAT),
        "is the silence on a stream after which a comment is sent",
    ),
    top(
        "connectionsMax",
        "SPRINGLINE_CONNECTIONS_MAX",
        Kind::Count,
        Preset::Nothing(
            "half of the files that the process may open beside some sixty, at most 16,384",
        ),
        "is the number of client connections to the HTTP listener; beyond it an idle one is closed for \
         a new one, and a new one is refused with 503 only if calls or streams are open on all",
    ),
    top(
        "sessionIdle",
        "SPRINGLINE_SESSION_IDLE",
        Kind::Duration,
        Preset::Ms(7 * DAY),
        "is how long a session without any message is kept",
    ),
    top(
        "sessionsMax",
        "SPRINGLINE_SESSIONS_MAX",
        Kind::Count,
        Preset::Number(10_000),
        "is the number of sessions that are kept",
    ),
    top(
        "pendingMax",
        "SPRINGLINE_PENDING_MAX",
        Kind::Count,
        number(SESSION.pending_max),
        "is the number of unanswered requests in one session",
    ),
    top(
        "concurrentStarts",
        "SPRINGLINE_CONCURRENT_STARTS",
        Kind::Count,
        Preset::Number(4),
        "is the number of servers that are started at the same time",
    ),
    top(
        "childrenMax",
        "SPRINGLINE_CHILDREN_MAX",
        Kind::Count,
        Preset::Number(256),
        "is the number of child processes that servers may have together; beyond it the one that was \
         used least recently makes room, of sessions without an attached client and without a call. Lower \
         if the process may not open four files for each beside its connections",
    ),
    top(
        "childIdle",
        "SPRINGLINE_CHILD_IDLE",
        Kind::Duration,
        span(UPSTREAM.detached_idle),
        "is how long the children of a session without an attached client are kept",
    ),
    top(
        "childUnused",
        "SPRINGLINE_CHILD_UNUSED",
        Kind::Duration,
        span(UPSTREAM.unused_idle),
        "is the same for a child that was asked nothing but its lists; never longer than `childIdle`",
    ),
    top(
        "listWait",
        "SPRINGLINE_LIST_WAIT",
        Kind::DurationOrZero,
        span(SESSION.list_wait),
        "is how long a list on `/mcp` waits for servers that were never listed before",
    ),
    top(
        "askTimeout",
        "SPRINGLINE_ASK_TIMEOUT",
        Kind::Duration,
        span(SESSION.ask_timeout),
        "is how long a client may take to answer a question of a server; the call's own clock stands still meanwhile",
    ),
    top(
        "deleteTimeout",
        "SPRINGLINE_DELETE_TIMEOUT",
        Kind::Duration,
        span(DELETE_TIMEOUT),
        "is the time for the one DELETE that ends a session with a server",
    ),
    top(
        "backoffMin",
        "SPRINGLINE_BACKOFF_MIN",
        Kind::Duration,
        span(UPSTREAM.recovery_backoff.0),
        "is the pause after the first failed recovery; each further one doubles it",
    ),
    top(
        "backoffMax",
        "SPRINGLINE_BACKOFF_MAX",
        Kind::Duration,
        span(UPSTREAM.recovery_backoff.1),
        "is the longest pause between two recoveries",
    ),
    top(
        "redeliveryEvents",
        "SPRINGLINE_REDELIVERY_EVENTS",
        Kind::Count,
        number(SESSION.redelivery_events_max),
        "is the number of stream events that a session keeps for redelivery",
    ),
    top(
        "redeliveryBytes",
        "SPRINGLINE_REDELIVERY_BYTES",
        Kind::Bytes,
        number(SESSION.redelivery_bytes_max),
        "is the size of the stream events that a session keeps for redelivery",
    ),
    top(
        "redeliveryAge",
        "SPRINGLINE_REDELIVERY_AGE",
        Kind::Duration,
        span(SESSION.redelivery_age_max),
        "is how long stream events are kept for redelivery",
    ),
    top(
        "redeliveryTotalBytes",
        "SPRINGLINE_REDELIVERY_TOTAL_BYTES",
        Kind::Bytes,
        Preset::Number(256 * 1024 * 1024),
        "is the size of the stream events that all sessions together keep for redelivery; beyond it the \
         session that keeps most drops some, answers first and the oldest before others",
    ),
    top(
        "lineBuffers",
        "SPRINGLINE_LINE_BUFFERS",
        Kind::Bytes,
        number(LINE_BUFFERS_MAX),
        "is the size of the unfinished lines of all stdio peers together",
    ),
    top(
        "eventsMax",
        "SPRINGLINE_EVENTS_MAX",
        Kind::Count,
        number(KEPT_MAX),
        "is the number of events that `springline events` can look back",
    ),
    top(
        "drain",
        "SPRINGLINE_DRAIN",
        Kind::DurationOrZero,
        Preset::Nothing("the deadlines of the calls themselves"),
        "is how long an orderly stop waits for calls in flight",
    ),
    // For every entry, unless its own block says otherwise.
    top(
        "startTimeout",
        "SPRINGLINE_START_TIMEOUT",
        Kind::Duration,
        span(UPSTREAM.start_timeout),
        "is the time that a server has to start and shake hands",
    ),
    top(
        "callTimeout",
        "SPRINGLINE_CALL_TIMEOUT",
        Kind::Duration,
        span(UPSTREAM.call_timeout),
        "is the silence on a call after which it is given up",
    ),
    top(
        "callTimeoutMax",
        "SPRINGLINE_CALL_TIMEOUT_MAX",
        Kind::Duration,
        span(UPSTREAM.call_timeout_max),
        "is the longest that a call may take, however much it reports progress",
    ),
    top(
        "reconnectWait",
        "SPRINGLINE_RECONNECT_WAIT",
        Kind::DurationOrZero,
        span(UPSTREAM.reconnect_wait),
        "is how long a refused connection is tried again",
    ),
    // A server entry: the keys that hosts share.
    other(
        Home::Entry,
        "command",
        Kind::Text,
        Preset::Nothing("required for a stdio server"),
        "is the program that serves MCP on its standard input and output",
    ),
    other(
        Home::Entry,
        "args",
        Kind::List,
        Preset::Nothing("none"),
        "lists the arguments of the program",
    ),
    other(
        Home::Entry,
        "env",
        Kind::Secrets,
        Preset::Nothing("none"),
        "adds variables to the environment of the program",
    ),
    other(
        Home::Entry,
        "envFile",
        Kind::Path,
        Preset::Nothing("none"),
        "names a file of `KEY=VALUE` lines, for the environment of the program and for `${KEY}` in \
         this entry",
    ),
    other(
        Home::Entry,
        "cwd",
        Kind::Path,
        Preset::Nothing("that of the gateway"),
        "is the folder in which the program starts",
    ),
    other(
        Home::Entry,
        "url",
        Kind::Secret,
        Preset::Nothing("required for an HTTP server"),
        "is the Streamable HTTP endpoint of the server, `http://` or `https://`",
    ),
    other(
        Home::Entry,
        "headers",
        Kind::Secrets,
        Preset::Nothing("none"),
        "adds header fields to every request to the server",
    ),
    other(
        Home::Entry,
        "type",
        Kind::Choice(TRANSPORTS),
        Preset::Nothing("by `command` or `url`"),
        "names the transport",
    ),
    other(
        Home::Entry,
        "transport",
        Kind::Choice(TRANSPORTS),
        Preset::Nothing("by `command` or `url`"),
        "is another name for `type`",
    ),
    other(
        Home::Entry,
        "disabled",
        Kind::Flag,
        Preset::Flag(false),
        "switches the entry off",
    ),
    // What Springline adds to an entry.
    other(
        Home::Block,
        "scope",
        Kind::Choice(SCOPES),
        Preset::Text("session"),
        "says what an instance of the server belongs to: one client session, or all of them \
         (`global`); other scopes come in a later version",
    ),
    other(
        Home::Block,
        "replay",
        Kind::Choice(&["after-session-loss", "annotated", "never"]),
        Preset::Text("after-session-loss"),
        "says which calls are sent once more after the server refused them for a lost session: \
         all, only tools whose own annotations call them read-only or idempotent, or none",
    ),
    other(
        Home::Block,
        "safeTools",
        Kind::List,
        Preset::Nothing("none"),
        "lists the tools that may be run again when it is unknown whether they ran",
    ),
    other(
        Home::Block,
        "onStateLoss",
        Kind::Choice(&["notify", "hide", "fail"]),
        Preset::Text("notify"),
        "says what a client learns when a server has lost its in-session state: a log message, \
         nothing, or an error for the call",
    ),
    other(
        Home::Block,
        "auth.type",
        Kind::Choice(&["bearer", "rmq-hmac-sha256"]),
        Preset::Nothing("required in `auth`"),
        "is how requests to the server are authenticated",
    ),
    other(
        Home::Block,
        "auth.token",
        Kind::Secret,
        Preset::Nothing("required for `bearer`"),
        "is the bearer token",
    ),
    other(
        Home::Block,
        "auth.accessKey",
        Kind::Secret,
        Preset::Nothing("required for `rmq-hmac-sha256`"),
        "is the access key",
    ),
    other(
        Home::Block,
        "auth.secretKey",
        Kind::Secret,
        Preset::Nothing("required for `rmq-hmac-sha256`"),
        "is the secret key",
    ),
    other(
        Home::Block,
        "auth.instanceId",
        Kind::Text,
        Preset::Nothing("required for `rmq-hmac-sha256`"),
        "is the id of the RocketMQ instance",
    ),
    other(
        Home::Block,
        "startTimeout",
        Kind::Duration,
        Preset::Nothing("that of the top-level block"),
        "is the time that this server has to start and shake hands",
    ),
    other(
        Home::Block,
        "callTimeout",
        Kind::Duration,
        Preset::Nothing("that of the top-level block"),
        "is the silence on a call after which it is given up",
    ),
    other(
        Home::Block,
        "callTimeoutMax",
        Kind::Duration,
        Preset::Nothing("that of the top-level block"),
        "is the longest that a call may take, however much it reports progress",
    ),
    other(
        Home::Block,
        "reconnectWait",
        Kind::DurationOrZero,
        Preset::Nothing("that of the top-level block"),
        "is how long a refused connection is tried again",
    ),
    other(
        Home::Block,
        "idleTimeout",
        Kind::Duration,
        Preset::Nothing("never while a client is attached"),
        "is how long an instance without calls is kept",
    ),
    other(
        Home::Block,
        "ca",
        Kind::Path,
        Preset::Nothing("none"),
        "names a PEM file of certificates to trust beside those of the system",
    ),
    other(
        Home::Block,
        "aliasOf",
        Kind::Text,
        Preset::Nothing("none"),
        "makes the entry a second name of another one, with all that is said there; under `scope: \
         global` both use the same instance",
    ),
    other(
        Home::Block,
        "sharing",
        Kind::Later,
        Preset::Nothing("none"),
        "says whether an instance takes several calls at once",
    ),
    other(
        Home::Block,
        "max",
        Kind::Later,
        Preset::Nothing("none"),
        "is the number of instances of the server",
    ),
    other(
        Home::Block,
        "min",
        Kind::Later,
        Preset::Nothing("none"),
        "is the number of instances that are started ahead",
    ),
];

/// The spellings of `type` and `transport`. `sse` is known, to be refused with its reason.
const TRANSPORTS: &[&str] = &["stdio", "http", "streamable-http", "streamableHttp", "sse"];

/// The scopes; those after the second belong to a later version.
const SCOPES: &[&str] = &["session", "global", "cwd", "repo", "worktree", "call"];

/// The declaration of `key`, if there is one.
pub fn declaration(home: Home, key: &str) -> Option<&'static Declaration> {
    DECLARATIONS
        .iter()
        .find(|declared| declared.home == home && declared.key == key)
}
