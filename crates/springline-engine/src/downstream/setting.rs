//! What the HTTP side can be told by the configuration.
//!
//! Owns: the limits and lists below, and the digests of tokens. It must not know where they were
//! written down.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use springline_proto::settings::BODY_MAX;

/// The pause after which a silent stream carries a comment. Load balancers cut silent streams after
/// 60 s; some runtimes much later.
pub const HEARTBEAT: Duration = Duration::from_secs(15);

/// The settings of all listeners and of the socket.
#[derive(Clone, Debug)]
pub struct HttpSettings {
    /// Hosts, with or without a port, that `Host` may name besides loopback ones.
    pub allowed_hosts: Vec<String>,
    /// Origins that browsers may send besides loopback ones.
    pub allowed_origins: Vec<String>,
    /// Whether answers carry CORS headers for allowed origins.
    pub cors: bool,
    /// The bearer tokens; with none, listeners take everybody as `anonymous`.
    pub tokens: Vec<Token>,
    /// The cap on a request body, in bytes.
    pub body_max: usize,
    /// The cap on TCP connections, of all listeners together.
    pub connections_max: usize,
    /// The pause after which a silent stream carries a comment.
    pub heartbeat: Duration,
    /// How long a client may take no byte of an answer before its connection is closed.
    pub write_patience: Duration,
    /// How long a request body may bring no byte; that long, and a second for each KiB that came, may
    /// all of it take.
    pub read_patience: Duration,
    /// How long the head of a request may take, from its first byte on.
    pub head_patience: Duration,
    /// How long a connection may stay without a byte of a request.
    pub idle_patience: Duration,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            cors: false,
            tokens: Vec::new(),
            body_max: BODY_MAX,
            connections_max: 16_384,
            heartbeat: HEARTBEAT,
            write_patience: Duration::from_mins(1),
            read_patience: Duration::from_mins(1),
            head_patience: Duration::from_secs(30),
            // Longer than the keep-alive pools of usual clients (Node.js 5 s, undici 4 s, hyper 90 s).
            idle_patience: Duration::from_mins(5),
        }
    }
}

/// A bearer token: its name, and a digest of the secret.
#[derive(Clone)]
pub struct Token {
    name: Arc<str>,
    digest: [u8; 32],
}

impl Token {
    /// A token with this name; only the digest of the secret is kept.
    pub fn new(name: impl Into<Arc<str>>, secret: &str) -> Self {
        Self {
            name: name.into(),
            digest: Sha256::digest(secret).into(),
        }
    }

    /// Its name, the principal's.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The first of `tokens` that the presented secret is. Takes the same time whichever it is, and
    /// whether or not it is one.
    pub fn find<'a>(tokens: &'a [Self], presented: &[u8]) -> Option<&'a Self> {
        let digest: [u8; 32] = Sha256::digest(presented).into();
        let mut found = None;
        for token in tokens {
            let difference = token
                .digest
                .iter()
                .zip(digest)
                .fold(0, |sum, (left, right)| sum | (left ^ right));
            // black_box keeps the compiler from leaving the fold early.
            if std::hint::black_box(difference) == 0 && found.is_none() {
                found = Some(token);
            }
        }
        found
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
