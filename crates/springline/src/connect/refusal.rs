//! Why there is no session on the gateway, and how the client and the shell are told.
//!
//! Owns: the texts and the exit codes of a failed attempt. It must not know how one is made.

use std::io;
use std::path::Path;
use std::time::Duration;

use springline_proto::error::{CAUSE_MAX, FaultKind, sanitise};
use springline_proto::json;
use tokio::time::sleep;

use crate::autostart::{self, StartError, StartSpec};

/// The pause between two looks at the log of a gateway that went away, and how many there are.
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

/// Why there is no connection to the gateway.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("no gateway answers on {socket}{why}; start one with `springline serve`")]
    Absent { socket: String, why: String },
    /// In the gateway's words, which name the servers that there are.
    #[error("{0}")]
    Unknown(String),
    #[error("the gateway refused: {0}")]
    Refused(String),
    /// In the gateway's words: it takes no session now, but may soon.
    #[error("the gateway refused: {0}")]
    Busy(String),
    #[error("the gateway went away during the handshake: {0}")]
    Broken(#[from] io::Error),
    /// One that was only just started: it had its socket, and then could not go on.
    #[error("the gateway ended while it started{why}; see {log}")]
    Ended { why: String, log: String },
    #[error("the gateway did not answer in time")]
    Late(#[from] tokio::time::error::Elapsed),
    /// Where a gateway would be is not known; says why.
    #[error("{0}")]
    Config(String),
    /// A new session is of no use; says why.
    #[error("{0}")]
    Handshake(String),
}

impl AttachError {
    /// Nobody listens on the socket. That it is not there, or left over, needs no words of the
    /// system's; anything else does.
    pub(super) fn absent(socket: &Path, error: &io::Error) -> Self {
        let is_plain = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        );
        Self::Absent {
            socket: socket.display().to_string(),
            why: if is_plain {
                String::new()
            } else {
                format!(" ({error})")
            },
        }
    }

    /// A connection that broke, with what the gateway's log says of it since `begin`. The gateway
    /// closes its socket a moment before it says why it ends.
    pub(super) async fn explained(self, start: Option<&StartSpec>, begin: u64) -> Self {
        let (Self::Broken(_), Some(spec)) = (&self, start) else {
            return self;
        };
        for _ in 0..LOOKS {
            let why = autostart::last_line(&spec.log, begin);
            if !why.is_empty() {
                let log = spec.log.display().to_string();
                return Self::Ended { why, log };
            }
            sleep(LOOK_PAUSE).await;
        }
        self
    }

    /// Whether another attempt a moment later may do: a gateway that was there went away, or is
    /// about to.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Broken(_) | Self::Late(_) | Self::Busy(_))
    }

    /// The exit code of a `connect` that ended with nothing but this; docs/cli.md has the table.
    pub(super) fn exit(&self) -> u8 {
        match self {
            Self::Start(StartError::Config(_)) | Self::Config(_) => 3,
            Self::Start(_)
            | Self::Absent { .. }
            | Self::Ended { .. }
            | Self::Broken(_)
            | Self::Late(_) => 5,
            Self::Unknown(_) => 6,
            Self::Refused(_) | Self::Busy(_) | Self::Handshake(_) => 1,
        }
    }

    /// The `error` member for the requests that wait. The message is the gateway's matter and not a
    /// server's, so it does not begin with the text of the kind. Nothing was sent: nothing ran.
    pub(super) fn to_json(&self) -> String {
        let (kind, hint, retry) = match self {
            Self::Unknown(_) => (
                FaultKind::ServerUnavailable,
                "correct the name that `springline connect` is given",
                "no",
            ),
            Self::Absent { .. } => (
                FaultKind::ServerUnreachable,
                "start the gateway, then send the call again",
                "safe",
            ),
            Self::Config(_) => (
                FaultKind::ServerUnreachable,
                "mend the configuration, then start `springline connect` again",
                "safe",
            ),
            Self::Start(_) | Self::Ended { .. } => (
                FaultKind::ServerUnreachable,
                "mend the cause that is named; the next call tries again by itself",
                "safe",
            ),
            _ => (
                FaultKind::ServerUnreachable,
                "look at `springline status` and the gateway's log; the call may be sent again",
                "safe",
            ),
        };
        let message = json::quote(&sanitise(&self.to_string(), 2 * CAUSE_MAX));
        format!(
            r#"{{"code":{},"message":{message},"data":{{"code":"{}","message":{message},"hint":{},"outcome":"not_executed","retry":"{retry}"}}}}"#,
            kind.code(),
            kind.as_str(),
            json::quote(hint),
        )
    }
}
