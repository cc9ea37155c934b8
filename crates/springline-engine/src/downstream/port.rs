//! What the downstream side needs of the gateway.
//!
//! Owns: the seam, so that the HTTP rules can be tested against a scripted gateway. It must not
//! know how sessions work.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use springline_proto::call::Connection;
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Comeback, Downstream, Endpoint, Part};
use springline_proto::version::Version;

/// Who a session belongs to. A session is found by its own principal only (I9).
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Principal {
    /// A user of this machine, told by the kernel on the unix socket.
    Uid(u32),
    /// The holder of a bearer token, by the token's name.
    Token(Arc<str>),
    /// Anybody who reaches a listener without authentication.
    Anonymous,
}

impl Principal {
    /// Reads what `Display` wrote.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            Some(("uid", uid)) => uid.parse().ok().map(Self::Uid),
            Some(("token", name)) => Some(Self::Token(Arc::from(name))),
            None if text == "anonymous" => Some(Self::Anonymous),
            Some(_) | None => None,
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => write!(f, "uid:{uid}"),
            Self::Token(name) => write!(f, "token:{name}"),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// Why no session was opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// No such server entry is configured.
    #[error("no server of that name is configured")]
    UnknownServer,
    /// The cap on sessions is reached.
    #[error("the limit on open sessions is reached")]
    TooManySessions,
    /// The gateway is stopping.
    #[error("the gateway is stopping")]
    Stopping,
    /// The system gave no random bytes for an id.
    #[error("the system has no random bytes to make an id from")]
    NoRandom,
}

/// Where sessions are opened and found.
pub trait Gate: Send + Sync + 'static {
    /// What one of its sessions is reached by.
    type Session: Session;

    /// Opens a session; its `initialize` follows as its first message.
    fn open(
        &self,
        principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<Self::Session, OpenError>;

    /// Whether a session may be opened now, so that a refusal can come before an upgrade.
    fn admits(&self, endpoint: &Endpoint) -> Result<(), OpenError>;

    /// The session with this wire id, if it belongs to this principal and this endpoint and is
    /// spoken to by HTTP.
    fn find(&self, id: &str, principal: &Principal, endpoint: &Endpoint) -> Option<Self::Session>;

    /// The same for a session of the socket, whose client comes back to it. Another principal's is
    /// answered like an unknown one.
    fn take_up(
        &self,
        id: &str,
        principal: &Principal,
        endpoint: &Endpoint,
    ) -> Option<Self::Session>;

    /// The names of the configured servers, to tell a client that asked for another one.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// One session, as its client's connections see it. A clone is another way to the same one. No method
/// blocks.
pub trait Session: Clone + Send + Sync + 'static {
    /// The parts of an answer.
    type Parts: Parts;

    /// The wire id: visible ASCII, unguessable.
    fn id(&self) -> &str;
    /// The revision that was negotiated with the client, once it was.
    fn version(&self) -> Option<Version>;
    /// Takes the message of a POST.
    fn post(&self, message: Message, accept: Accept) -> Self::Parts;
    /// Opens the GET stream, after the cursor of `Last-Event-ID` if there is one.
    fn listen(&self, cursor: Option<Box<str>>) -> Self::Parts;
    /// Attaches the pipe: each part is an event with one message.
    fn pipe(&self) -> Self::Parts;
    /// Takes one line of the pipe's client.
    fn line(&self, message: Result<Message, ParseError>);
    /// Attaches the socket, in place of an older connection: the first part is the welcome, each
    /// other one a frame.
    fn attach(&self, comeback: Comeback) -> (Connection, Self::Parts);
    /// Takes a frame of the socket's client: its number, and the last one of ours that it has.
    fn frame(
        &self,
        connection: Connection,
        number: u64,
        received: u64,
        line: Result<Message, ParseError>,
    );
    /// The socket's client has our frames up to this one.
    fn acknowledged(&self, connection: Connection, received: u64);
    /// The last frame of the socket's client that was taken, crash-durable: it may be acknowledged.
    fn taken(&self) -> u64;
    /// Ends the session.
    fn close(&self);
}

/// The parts of one answer, as they come. Dropping it says that the connection is gone.
pub trait Parts: Send + 'static {
    /// The next part, or nothing when the answer is complete. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<Part>> + Send;

    /// Whether the end came too early: its client did not read what was there for it.
    fn is_cut(&self) -> bool {
        false
    }
}
