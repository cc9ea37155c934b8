//! Whether two definitions are the same.
//!
//! Owns the canonical form behind the digests. Two digests are kept apart: that of the *values*
//! (everything that reaches the server, credentials included) and that of the *text* (the same keys
//! before variables are replaced). Equal texts with different values are a rotated credential; a
//! different text is another server. Knobs that can change live are in neither: timeouts, idle
//! times, replay, safe tools, the reaction to lost state.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::definition::{Auth, Definition, HttpDefinition, StdioDefinition};
use super::document::{Node, Value};

/// A keyed digest (HMAC-SHA-256) of a definition. It may be stored: without the key it says nothing
/// about the values.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Identity([u8; 32]);

impl Identity {
    /// The digest from its stored bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Identity {
        Identity(bytes)
    }

    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The identity of an expanded definition.
    pub fn of_definition(definition: &Definition, key: &[u8]) -> Identity {
        let mut canon = Canon::new(key, "values 1");
        match definition {
            Definition::Stdio(stdio) => canon.stdio(stdio),
            Definition::Http(http) => canon.http(http),
        }
        canon.finish()
    }

    /// The identity of the text of an entry.
    pub(crate) fn of_text(node: &Node, key: &[u8]) -> Identity {
        let mut canon = Canon::new(key, "text 1");
        canon.node(node, Filter::Entry);
        canon.finish()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(")?;
        for byte in self.0.iter().take(4) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

/// The keys of an entry that make it the server that it is.
const ENTRY_KEYS: &[&str] = &[
    "args",
    "command",
    "cwd",
    "env",
    "envFile",
    "headers",
    "springline",
    "transport",
    "type",
    "url",
];

/// The same of its `springline` block.
const BLOCK_KEYS: &[&str] = &["aliasOf", "auth", "ca", "scope"];

/// Which members of an object count.
#[derive(Clone, Copy)]
enum Filter {
    Entry,
    Block,
    All,
}

impl Filter {
    fn admits(self, name: &str) -> bool {
        match self {
            Self::Entry => ENTRY_KEYS.contains(&name),
            Self::Block => BLOCK_KEYS.contains(&name),
            Self::All => true,
        }
    }
}

/// A stream of length-prefixed fields, so that no two different sequences read the same.
struct Canon(Hmac<Sha256>);

impl Canon {
    fn new(key: &[u8], form: &str) -> Canon {
        // HMAC pads a short key and hashes a long one: every length is taken.
        let mac = Hmac::<Sha256>::new_from_slice(key);
        let mut canon = Canon(mac.unwrap_or_else(|_| Hmac::new(&[0; 64].into())));
        canon.field(b"springline identity");
        canon.field(form.as_bytes());
        canon
    }

    fn finish(self) -> Identity {
        Identity(self.0.finalize().into_bytes().into())
    }

    fn count(&mut self, count: usize) {
        self.0
            .update(&u64::try_from(count).unwrap_or(u64::MAX).to_be_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn pairs<'a>(&mut self, pairs: impl Iterator<Item = (&'a str, &'a [u8])>) {
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort_unstable();
        self.count(pairs.len());
        for (name, value) in pairs {
            self.field(name.as_bytes());
            self.field(value);
        }
    }

    fn stdio(&mut self, stdio: &StdioDefinition) {
        self.field(b"stdio");
        self.field(stdio.command.as_bytes());
        self.count(stdio.args.len());
        for arg in &stdio.args {
            self.field(arg.as_bytes());
        }
        self.pairs(
            stdio
                .env
                .iter()
                .map(|(name, value)| (name.as_str(), value.expose().as_bytes())),
        );
        match &stdio.cwd {
            Some(cwd) => self.field(cwd.as_os_str().as_encoded_bytes()),
            None => self.field(b""),
        }
    }

    fn http(&mut self, http: &HttpDefinition) {
        self.field(b"http");
        self.field(http.url.as_str().as_bytes());
        self.pairs(
            http.headers
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_bytes())),
        );
        match &http.auth {
            None => self.field(b"none"),
            Some(Auth::Bearer { token }) => {
                self.field(b"bearer");
                self.field(token.expose().as_bytes());
            }
            Some(Auth::RmqHmacSha256 {
                access_key,
                secret_key,
                instance_id,
            }) => {
                self.field(b"rmq-hmac-sha256");
                self.field(access_key.expose().as_bytes());
                self.field(secret_key.expose().as_bytes());
                self.field(instance_id.as_bytes());
            }
        }
        self.field(http.ca.as_ref().map_or(&b""[..], |ca| &ca.pem));
    }

    fn node(&mut self, node: &Node, filter: Filter) {
        match &node.value {
            Value::Null => self.field(b"null"),
            Value::Bool(flag) => self.field(if *flag { b"true" } else { b"false" }),
            Value::Number(text) => {
                self.field(b"number");
                self.field(text.as_bytes());
            }
            Value::Text(text) => {
                self.field(b"text");
                self.field(text.as_bytes());
            }
            Value::Array(elements) => {
                self.field(b"array");
                self.count(elements.len());
                for element in elements {
                    self.node(element, Filter::All);
                }
            }
            Value::Object(members) => {
                let mut members: Vec<_> = members
                    .iter()
                    .filter(|member| filter.admits(&member.name))
                    .collect();
                members.sort_by(|left, right| left.name.cmp(&right.name));
                self.field(b"object");
                self.count(members.len());
                for member in members {
                    self.field(member.name.as_bytes());
                    let inner = match (filter, member.name.as_str()) {
                        (Filter::Entry, "springline") => Filter::Block,
                        _ => Filter::All,
                    };
                    self.node(&member.node, inner);
                }
            }
        }
    }
}
