//! The one table of the gateway's own errors, and how they read on the wire.
//!
//! Codes lie outside the range that JSON-RPC and MCP reserve (-32768..-32000), so that nobody takes
//! them for the server's (2025-11-25 basic/index). A server's own error never passes through here.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// What is known of the execution of a request that ended in an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It did not run.
    NotExecuted,
    /// It may have run.
    Unknown,
    /// It ran; only its result is lost.
    Executed,
}

impl Outcome {
    /// The text of `error.data.outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotExecuted => "not_executed",
            Self::Unknown => "unknown",
            Self::Executed => "executed",
        }
    }

    /// The text of `error.data.retry`: what the outcome means for sending the request again.
    fn retry(self) -> &'static str {
        match self {
            Self::NotExecuted => "safe",
            Self::Unknown => "unknown",
            Self::Executed => "no",
        }
    }
}

/// The row of one kind of fault.
struct Row {
    name: &'static str,
    code: i32,
    outcome: Outcome,
    text: &'static str,
    hint: &'static str,
}

macro_rules! faults {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $name:literal, $outcome:ident, $text:literal, $hint:literal;)*) => {
        /// A kind of error that the gateway itself answers with.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum FaultKind {
            $($(#[$doc])* $kind,)*
        }

        impl FaultKind {
            /// All kinds, by falling code.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            fn row(self) -> Row {
                match self {
                    $(Self::$kind => Row {
                        name: $name,
                        code: $code,
                        outcome: Outcome::$outcome,
                        text: $text,
                        hint: $hint,
                    },)*
                }
            }
        }
    };
}

faults! {
    /// No connection to the server could be made.
    ServerUnreachable = -31001, "SERVER_UNREACHABLE", NotExecuted,
        "the server could not be reached",
        "check that it runs and listens at the configured place; the call may be sent again";
    /// The request left, and no answer came back; the cause says what was in the way.
    OutcomeUnknown = -31002, "OUTCOME_UNKNOWN", Unknown,
        "no answer came back, and the call may have run",
        "look at the server's own records before you send the call again";
    /// The server had lost the session, and a new one could not be opened.
    SessionRecoveryFailed = -31003, "SESSION_RECOVERY_FAILED", NotExecuted,
        "the server lost its session and could not open a new one",
        "the next call tries again by itself";
    /// The server could not be started, or its first handshake failed.
    ServerStartFailed = -31004, "SERVER_START_FAILED", NotExecuted,
        "the server could not be started",
        "mend the cause that is named; the next call tries again by itself";
    /// The child process ended while the call was with it.
    ServerExited = -31005, "SERVER_EXITED", Unknown,
        "the server's process ended before it answered",
        "the next call starts it again; look at its own records before you send this one again";
    /// The entry left the configuration.
    ServerRemoved = -31006, "SERVER_REMOVED", NotExecuted,
        "the server is no longer configured",
        "add it to the configuration again";
    /// The server stayed silent for longer than the call's patience.
    CallTimeout = -31007, "CALL_TIMEOUT", Unknown,
        "the server did not answer in time",
        "raise callTimeout for this server if the tool needs longer";
    /// The call ran, and its result is gone.
    ResultLost = -31008, "RESULT_LOST", Executed,
        "the call was executed, but its result is no longer held",
        "do not send the call again if it has side effects";
    /// The server refused our credentials.
    UpstreamUnauthorized = -31009, "UPSTREAM_UNAUTHORIZED", NotExecuted,
        "the server refused the configured credentials",
        "renew the credentials of this server in the configuration";
    /// The server refused the request with an HTTP status.
    UpstreamRefused = -31010, "UPSTREAM_REFUSED", NotExecuted,
        "the server refused the request",
        "see the status that is named";
    /// The server answered something that is no answer.
    BadAnswer = -31011, "BAD_ANSWER", Unknown,
        "the server's answer could not be used",
        "this is a fault of the server; look at its log";
    /// The answer was larger than the cap on bodies and frames.
    AnswerTooLarge = -31012, "ANSWER_TOO_LARGE", Executed,
        "the server's answer is larger than the configured limit",
        "raise bodyMax, or ask for less";
    /// The entry is configured, but cannot be used as it stands.
    ServerUnavailable = -31013, "SERVER_UNAVAILABLE", NotExecuted,
        "the server is not available",
        "mend the cause that is named, then reload or restart";
    /// Too many requests of this session are pending.
    TooManyPending = -31014, "TOO_MANY_PENDING", NotExecuted,
        "too many requests are pending",
        "wait for answers before you send more";
    /// The session ended while the call was pending.
    SessionEnded = -31015, "SESSION_ENDED", Unknown,
        "the session ended before the answer came",
        "open a new session";
    /// A server asked something of a client that cannot be reached.
    ClientUnreachable = -31016, "CLIENT_UNREACHABLE", NotExecuted,
        "the client cannot be asked now",
        "the client has no stream open for requests from servers";
    /// The server lost its in-session state, and the configuration says that this fails the call.
    StateLost = -31017, "STATE_LOST", NotExecuted,
        "the server started afresh and lost its in-session state",
        "repeat what this session had set up, then send the call again";
    /// The gateway is stopping.
    ShuttingDown = -31018, "SHUTTING_DOWN", NotExecuted,
        "the gateway is stopping",
        "send the call again when it runs";
    /// A defect of the gateway.
    Internal = -31019, "INTERNAL", Unknown,
        "the gateway met a defect of its own",
        "please report it with the gateway's log";
    /// The gateway ended before it sent the call.
    GatewayRestarted = -31020, "GATEWAY_RESTARTED", NotExecuted,
        "the gateway was restarted before it sent the call",
        "send the call again";
    /// As many sessions are open as may be, and none of them can give way.
    TooManySessions = -31021, "TOO_MANY_SESSIONS", NotExecuted,
        "too many sessions are open",
        "end sessions that nobody needs, or raise sessionsMax";
    /// The call must not leave before that is written down, and it could not be.
    StateUnwritable = -31022, "STATE_UNWRITABLE", NotExecuted,
        "the gateway could not write down that the call leaves, so it did not send it",
        "make room on the disk of the state folder; the gateway goes on by itself within seconds, and the call may be sent again";
    /// What stands at the URL answers, but not as an MCP endpoint does.
    NotEndpoint = -31023, "NOT_MCP_ENDPOINT", NotExecuted,
        "the URL is no MCP endpoint",
        "give the URL of the server's Streamable HTTP endpoint, often its address with /mcp; the older HTTP+SSE transport, whose URLs often end in /sse, is not spoken yet";
    /// As many children run as may, and none of them could give way in time.
    TooManyChildren = -31024, "TOO_MANY_CHILDREN", NotExecuted,
        "as many server processes run as may, and none of them could give way",
        "send the call again when others are done, end sessions that nobody needs, or raise childrenMax (and `ulimit -n` with it)";
}

impl FaultKind {
    /// The name in `error.data.code`, in events and in metrics.
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// What it means, in words.
    pub fn text(self) -> &'static str {
        self.row().text
    }

    /// The JSON-RPC code.
    pub fn code(self) -> i32 {
        self.row().code
    }

    /// The outcome, unless the fault at hand says otherwise.
    pub fn outcome(self) -> Outcome {
        self.row().outcome
    }
}

/// One error of the gateway's own, as the client will read it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// What kind.
    pub kind: FaultKind,
    /// What is known of the execution.
    pub outcome: Outcome,
    /// The server entry that it is about.
    pub server: Option<Arc<str>>,
    /// The cause, cleaned for people; may quote the server.
    pub cause: Option<Box<str>>,
    /// When it makes sense to try again, if the server said so.
    pub retry_after: Option<Duration>,
}

impl Fault {
    /// A fault of this kind with the outcome of its row.
    pub fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            outcome: kind.outcome(),
            server: None,
            cause: None,
            retry_after: None,
        }
    }

    /// Says which server it is about.
    #[must_use]
    pub fn of(mut self, server: &Arc<str>) -> Self {
        self.server = Some(Arc::clone(server));
        self
    }

    /// Says which server it is about, where that is one.
    #[must_use]
    pub fn at(self, server: Option<&Arc<str>>) -> Self {
        match server {
            Some(server) => self.of(server),
            None => self,
        }
    }

    /// Says why. The text is cleaned: it may come from a server.
    #[must_use]
    pub fn because(mut self, cause: impl AsRef<str>) -> Self {
        let clean = sanitise(cause.as_ref(), CAUSE_MAX);
        self.cause = (!clean.is_empty()).then(|| clean.into_boxed_str());
        self
    }

    /// Overrides what is known of the execution.
    #[must_use]
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// One line for people: the text of the kind, the server and the cause.
    pub fn message(&self) -> String {
        let row = self.kind.row();
        let mut text = String::new();
        if let Some(server) = &self.server {
            text.push_str(server);
            text.push_str(": ");
        }
        text.push_str(row.text);
        if let Some(cause) = &self.cause {
            text.push_str(" (");
            text.push_str(cause);
            text.push(')');
        }
        text
    }

    /// What to do about it. A hint for a call that did not run may say to send it again, which is
    /// wrong once it may have run.
    fn hint(&self) -> &'static str {
        let row = self.kind.row();
        match self.outcome {
            Outcome::Unknown if row.outcome == Outcome::NotExecuted => {
                FaultKind::OutcomeUnknown.row().hint
            }
            Outcome::Executed if row.outcome != Outcome::Executed => {
                FaultKind::ResultLost.row().hint
            }
            Outcome::NotExecuted | Outcome::Unknown | Outcome::Executed => row.hint,
        }
    }

    /// The JSON text of the `error` member.
    pub fn to_json(&self) -> String {
        let row = self.kind.row();
        let message = crate::json::quote(&self.message());
        let mut json = String::with_capacity(256);
        // Writing to a String cannot fail.
        let mut put = |args: std::fmt::Arguments<'_>| json.write_fmt(args).unwrap_or_default();
        put(format_args!(
            r#"{{"code":{},"message":{message},"data":{{"code":"{}","message":{message},"hint":"{}""#,
            row.code,
            row.name,
            self.hint()
        ));
        if let Some(server) = &self.server {
            put(format_args!(r#","server":{}"#, crate::json::quote(server)));
        }
        put(format_args!(
            r#","outcome":"{}","retry":"{}""#,
            self.outcome.as_str(),
            self.outcome.retry()
        ));
        if let Some(after) = self.retry_after {
            put(format_args!(r#","retryAfterMs":{}"#, after.as_millis()));
        }
        put(format_args!("}}}}"));
        json
    }

    /// Kind, outcome and server of an error response that was made by [`Self::response`]; `None` for any
    /// other answer.
    pub fn of_response(message: &crate::message::Message) -> Option<Self> {
        let error = message.error()?;
        let text = |name| {
            let whole = crate::json::Span::whole(&error);
            let span = crate::json::path(&error, whole, &["data", name])?;
            crate::json::string(span.of(&error))
        };
        let name = text("code")?;
        let kind = FaultKind::ALL.iter().find(|kind| kind.as_str() == name)?;
        let outcome = text("outcome")?;
        let outcomes = [Outcome::NotExecuted, Outcome::Unknown, Outcome::Executed];
        let outcome = outcomes.into_iter().find(|held| held.as_str() == outcome)?;
        let server = text("server").map(Arc::from);
        Some(Self::new(*kind).outcome(outcome).at(server.as_ref()))
    }

    /// A whole JSON-RPC error response to the request with this id (raw JSON text).
    pub fn response(&self, id: &[u8]) -> bytes::Bytes {
        error_response(Some(id), &self.to_json())
    }
}

/// A whole JSON-RPC error response with a ready `error` member; the id is left out if it could not
/// be read (2025-11-25 schema, `JSONRPCErrorResponse`).
pub fn error_response(id: Option<&[u8]>, error: &str) -> bytes::Bytes {
    let mut out = Vec::with_capacity(error.len() + 64);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    if let Some(id) = id {
        out.extend_from_slice(br#""id":"#);
        out.extend_from_slice(id);
        out.push(b',');
    }
    out.extend_from_slice(br#""error":"#);
    out.extend_from_slice(error.as_bytes());
    out.push(b'}');
    out.into()
}

/// The `error` member with a code of JSON-RPC or MCP and a plain message.
pub fn plain_error(code: i32, message: &str) -> String {
    format!(
        r#"{{"code":{code},"message":{}}}"#,
        crate::json::quote(message)
    )
}

/// Bytes that the cause of an error may have: a screen's worth of a server's words.
pub const CAUSE_MAX: usize = 512;

/// An error with its causes, in one line. A cause that stands in what was said is not said again.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

/// Makes text of unknown origin fit for one line: controls and bidirectional marks go, white space
/// becomes one space, and it is cut at a character's end.
pub fn sanitise(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    let mut gap = false;
    for c in text.chars() {
        if c.is_whitespace() {
            gap = !out.is_empty();
            continue;
        }
        if c.is_control() || is_bidirectional(c) {
            continue;
        }
        if out.len() + c.len_utf8() + usize::from(gap) > max {
            out.push('…');
            break;
        }
        if std::mem::take(&mut gap) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

fn is_bidirectional(c: char) -> bool {
    matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `docs/errors.md`, rendered from the table.
pub fn reference() -> String {
    let mut page = String::from(
        "# Errors\n\nThe gateway's own errors. A server's own error passes unchanged and is not in \
         this table.\nEach has `error.data = { code, message, hint, server, outcome, retry, \
         retryAfterMs? }`.\n\n| code | `data.code` | outcome | meaning | what to do |\n\
         |---|---|---|---|---|\n",
    );
    for kind in FaultKind::ALL {
        let row = kind.row();
        // Writing to a String cannot fail.
        writeln!(
            page,
            "| {} | `{}` | `{}` | {} | {} |",
            row.code,
            row.name,
            row.outcome.as_str(),
            row.text,
            row.hint
        )
        .unwrap_or_default();
    }
    page.push_str(
        "\nThe outcome in the table is the usual one; the error itself says what holds: \
         `not_executed` (sending again is safe), `unknown` (it may have run), `executed`.\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_outside_the_reserved_range() {
        let mut codes: Vec<i32> = FaultKind::ALL.iter().map(|kind| kind.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), FaultKind::ALL.len());
        assert!(codes.iter().all(|code| *code > -32000 && *code <= -31001));
    }

    #[test]
    fn a_fault_names_the_server_the_cause_and_the_next_step() {
        let server: Arc<str> = Arc::from("github");
        let fault = Fault::new(FaultKind::ServerUnreachable)
            .of(&server)
            .because("refused");
        let value: serde_json::Value = serde_json::from_str(&fault.to_json()).unwrap();
        assert_eq!(value["code"], -31001);
        assert_eq!(
            value["message"],
            "github: the server could not be reached (refused)"
        );
        assert_eq!(value["data"]["outcome"], "not_executed");
        assert_eq!(value["data"]["retry"], "safe");
        assert_eq!(value["data"]["server"], "github");
    }

    #[test]
    fn no_hint_says_to_send_a_call_again_that_may_have_run() {
        let hint = |kind, outcome| {
            let json = Fault::new(kind).outcome(outcome).to_json();
            let value: serde_json::Value = serde_json::from_str(&json).unwrap();
            value["data"]["hint"].as_str().unwrap().to_owned()
        };
        for kind in FaultKind::ALL {
            let may_have_run = hint(*kind, Outcome::Unknown);
            assert!(!may_have_run.contains("may be sent again"), "{kind:?}");
            assert!(!may_have_run.starts_with("send the call again"), "{kind:?}");
            assert!(
                !hint(*kind, Outcome::Executed).contains("may be sent again"),
                "{kind:?}"
            );
        }
        let stopped = hint(FaultKind::ShuttingDown, Outcome::NotExecuted);
        assert_eq!(stopped, "send the call again when it runs");
    }

    #[test]
    fn text_of_a_server_is_flattened_and_cut() {
        assert_eq!(sanitise("a\r\n\tb\u{1b}[31m\u{202e}c", 100), "a b[31mc");
        assert_eq!(sanitise("ééé", 4), "éé…");
        assert_eq!(sanitise("  \n ", 10), "");
    }
}
