//! What a server entry defines, with all variables replaced.
//!
//! Owns the typed definition; `build.rs` makes it. The secrets in it are for the
//! transports alone: `Debug` shows none of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderMap;
use indexmap::IndexMap;
use url::Url;

use super::secret::Secret;

/// How a server is reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Definition {
    /// A child process that speaks on its standard input and output.
    Stdio(StdioDefinition),
    /// A Streamable HTTP endpoint.
    Http(HttpDefinition),
}

/// A child process. `Debug` shows neither arguments nor values.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct StdioDefinition {
    /// The program; looked up in `PATH` unless it holds a `/`.
    pub command: String,
    /// Its arguments. They may hold secrets: do not show them.
    pub args: Vec<String>,
    /// Variables on top of the inherited environment: those of the `envFile`, replaced by `env`.
    pub env: IndexMap<String, Secret>,
    /// The folder to start in; `None` is that of the gateway.
    pub cwd: Option<PathBuf>,
}

/// A Streamable HTTP endpoint. `Debug` shows no secret.
#[derive(Clone, Eq, PartialEq)]
pub struct HttpDefinition {
    /// The endpoint without a fragment. Its user info and query may be secrets.
    pub url: Url,
    /// Fields for every request, each marked sensitive. Those that the protocol sets are not here.
    pub headers: HeaderMap,
    /// How each request is authenticated beyond `headers`.
    pub auth: Option<Auth>,
    /// Certificates to trust beside those of the system.
    pub ca: Option<Ca>,
    /// The endpoint for people.
    pub(super) shown: String,
}

/// Upstream authentication that is more than a header.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Auth {
    /// `Authorization: Bearer TOKEN`.
    Bearer {
        /// The token.
        token: Secret,
    },
    /// RocketMQ Studio's signature, made afresh for each attempt.
    RmqHmacSha256 {
        /// The public half of the credential.
        access_key: Secret,
        /// The secret half.
        secret_key: Secret,
        /// The instance that the credential belongs to.
        instance_id: String,
    },
}

/// Further trusted certificates.
#[derive(Clone, Eq, PartialEq)]
pub struct Ca {
    /// Where it was read.
    pub path: PathBuf,
    /// Its text.
    pub pem: Arc<[u8]>,
}

/// Fields that belong to the protocol, to the frame of a message or to one connection; in `headers`
/// they are ignored.
pub const RESERVED_HEADERS: &[&str] = &[
    "accept",
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl StdioDefinition {
    /// A program with its arguments and nothing else.
    pub fn new(command: impl Into<String>, args: Vec<String>) -> StdioDefinition {
        StdioDefinition {
            command: command.into(),
            args,
            ..StdioDefinition::default()
        }
    }
}

impl HttpDefinition {
    /// An endpoint with nothing else.
    pub fn new(url: Url) -> HttpDefinition {
        let shown = sanitised_url(&url);
        HttpDefinition {
            url,
            headers: HeaderMap::new(),
            auth: None,
            ca: None,
            shown,
        }
    }

    /// The endpoint for people: without user info, query and fragment, and without a path into
    /// which variables were put.
    pub fn sanitised_url(&self) -> &str {
        &self.shown
    }
}

/// A URL for people: without user info, query and fragment.
pub fn sanitised_url(url: &Url) -> String {
    let mut shown = origin(url);
    shown.push_str(url.path());
    shown
}

/// Scheme, host and port.
pub(super) fn origin(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{}://{host}:{port}", url.scheme()),
        None => format!("{}://{host}", url.scheme()),
    }
}

impl fmt::Debug for StdioDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioDefinition")
            .field("command", &self.command)
            .field("args", &self.args.len())
            .field("env", &self.env)
            .field("cwd", &self.cwd)
            .finish()
    }
}

impl fmt::Debug for HttpDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpDefinition")
            .field("url", &self.shown)
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("auth", &self.auth)
            .field("ca", &self.ca)
            .finish()
    }
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ca({})", self.path.display())
    }
}
