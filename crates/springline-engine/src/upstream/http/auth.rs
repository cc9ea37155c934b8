//! Credentials of a server entry: configured headers, bearer tokens and `rmq-hmac-sha256`.
//!
//! Owns: which headers authenticate a request, and signing. It must not know bodies (they are not
//! signed), sessions or connections. Values never show in errors, logs or `Debug`.

use std::fmt;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::Method;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

use crate::config::RESERVED_HEADERS;

/// The first line of what is signed, and the scheme of `Authorization`. The token is the revision:
/// an incompatible change would bring another one.
const RMQ_ALGORITHM: &str = "rmq-hmac-sha256";

/// Servers accept a signature whose time is off by at most this.
const RMQ_WINDOW: Duration = Duration::from_mins(5);

/// How requests are authenticated beside the configured headers.
#[derive(Clone, Eq, PartialEq)]
pub enum HttpAuth {
    /// By nothing more.
    None,
    /// `Authorization: Bearer TOKEN`.
    Bearer {
        /// The token.
        token: String,
    },
    /// RocketMQ Studio's signature over time, method and path, revision 1.
    RmqHmacSha256 {
        /// Names the key; travels in the header.
        access_key: String,
        /// Signs; never travels.
        secret_key: String,
        /// `x-rmq-instance-id`.
        instance_id: String,
    },
}

impl fmt::Debug for HttpAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Bearer { .. } => "Bearer(..)",
            Self::RmqHmacSha256 { .. } => "RmqHmacSha256(..)",
        })
    }
}

/// Why a set of credentials cannot be used. Names the header, never its value.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CredentialsError {
    /// The name of a header has a character that HTTP does not allow.
    #[error("{0:?} is no valid name of an HTTP header")]
    Name(String),
    /// The value has a control character, usually a line break from a file or a variable.
    #[error("the value of {0} has a character that an HTTP header cannot carry")]
    Value(String),
}

/// Who we are, unless the entry says otherwise.
pub(super) const AGENT: &[u8] =
    concat!("user-agent: springline/", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

/// The values that every request of an entry carries.
#[derive(Clone, Eq, PartialEq)]
pub struct Credentials {
    headers: HeaderMap,
    auth: HttpAuth,
    /// All of it as it stands in a head, with [`AGENT`]; nothing if it is signed for each request.
    lines: Option<Box<[u8]>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("headers", &self.headers.keys().collect::<Vec<_>>())
            .field("auth", &self.auth)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Checks expanded values. A header that the client sets itself (framing, content negotiation,
    /// the session's own) is left out: ours holds.
    pub fn new<'a>(
        configured: impl IntoIterator<Item = (&'a str, &'a str)>,
        auth: HttpAuth,
    ) -> Result<Self, CredentialsError> {
        let mut headers = HeaderMap::new();
        for (name, value) in configured {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| CredentialsError::Name(name.to_owned()))?;
            let value = secret(name.as_str(), value)?;
            headers.append(name, value);
        }
        Self::from_headers(&headers, auth)
    }

    /// The same from headers that were checked before; their values are hidden from `Debug`.
    pub fn from_headers(configured: &HeaderMap, auth: HttpAuth) -> Result<Self, CredentialsError> {
        let mut headers = HeaderMap::with_capacity(configured.len());
        for (name, value) in configured {
            if RESERVED_HEADERS.contains(&name.as_str()) {
                tracing::debug!(header = %name, "a configured header is set by the gateway itself");
                continue;
            }
            let mut value = value.clone();
            value.set_sensitive(true);
            headers.append(name.clone(), value);
        }
        let mut credentials = Self {
            headers,
            auth,
            lines: None,
        };
        // Also a probe, so that a value that cannot be sent is told at load and not at the first call.
        let mut all = HeaderMap::new();
        credentials.sign(&mut all, &Method::POST, "/", UNIX_EPOCH)?;
        let is_signed = matches!(credentials.auth, HttpAuth::RmqHmacSha256 { .. });
        credentials.lines = (!is_signed).then(|| lines_of(&all));
        Ok(credentials)
    }

    /// No headers, no authentication.
    pub fn none() -> Self {
        Self {
            headers: HeaderMap::new(),
            auth: HttpAuth::None,
            lines: Some(AGENT.into()),
        }
    }

    /// All that these put into a head, if it is the same for each request.
    pub(super) fn lines(&self) -> Option<&[u8]> {
        self.lines.as_deref()
    }

    /// Adds `Basic` from the user information of a URL, unless something authenticates already.
    #[must_use]
    pub(super) fn or_basic(mut self, url: &url::Url) -> Self {
        if url.username().is_empty()
            || self.auth != HttpAuth::None
            || self.headers.contains_key(header::AUTHORIZATION)
        {
            return self;
        }
        if let Some(value) = basic(url) {
            self.headers.insert(header::AUTHORIZATION, value);
            self.lines = Some(lines_of(&self.headers));
        }
        self
    }

    /// Puts the configured headers and a fresh signature on one attempt. `path` is in origin form:
    /// what the server sees as path and query.
    pub(super) fn sign(
        &self,
        headers: &mut HeaderMap,
        method: &Method,
        path: &str,
        now: SystemTime,
    ) -> Result<(), CredentialsError> {
        for (name, value) in &self.headers {
            headers.append(name.clone(), value.clone());
        }
        match &self.auth {
            HttpAuth::None => {}
            HttpAuth::Bearer { token } => {
                headers.insert(
                    header::AUTHORIZATION,
                    secret("authorization", &format!("Bearer {token}"))?,
                );
            }
            HttpAuth::RmqHmacSha256 {
                access_key,
                secret_key,
                instance_id,
            } => {
                let millis = now
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default()
                    .as_millis();
                let timestamp = millis.to_string();
                let text = rmq_text(access_key, instance_id, &timestamp, method.as_str(), path);
                let signature = rmq_signature(secret_key, &text);
                let value = format!(
                    "{RMQ_ALGORITHM} Credential={}, Signature={signature}",
                    percent_encode(access_key)
                );
                headers.insert(header::AUTHORIZATION, secret("authorization", &value)?);
                headers.insert(
                    "x-rmq-instance-id",
                    secret("x-rmq-instance-id", instance_id)?,
                );
                headers.insert("x-rmq-timestamp", secret("x-rmq-timestamp", &timestamp)?);
            }
        }
        Ok(())
    }

    /// What a refusal with 401 may be due to, if the server's clock shows it: signatures hold for
    /// five minutes only, and the server's answer is the same for every cause.
    pub(super) fn clock_note(&self, date: Option<&str>, now: SystemTime) -> Option<String> {
        if !matches!(self.auth, HttpAuth::RmqHmacSha256 { .. }) {
            return None;
        }
        let theirs = httpdate::parse_http_date(date?).ok()?;
        let apart = now
            .duration_since(theirs)
            .or_else(|_| theirs.duration_since(now))
            .unwrap_or_default();
        (apart > RMQ_WINDOW).then(|| {
            format!(
                "the server's clock differs from ours by {} s, and signatures hold for {} s",
                apart.as_secs(),
                RMQ_WINDOW.as_secs()
            )
        })
    }
}

/// Fields as they stand in a head.
fn lines_of(headers: &HeaderMap) -> Box<[u8]> {
    let mut lines = Vec::new();
    for (name, value) in headers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.extend_from_slice(b"\r\n");
    }
    if !headers.contains_key(header::USER_AGENT) {
        lines.extend_from_slice(AGENT);
    }
    lines.into_boxed_slice()
}

/// A header value that `Debug` does not show.
fn secret(name: &str, value: &str) -> Result<HeaderValue, CredentialsError> {
    let mut value = HeaderValue::from_bytes(value.as_bytes())
        .map_err(|_| CredentialsError::Value(name.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// `Basic` from the user information of a URL; none if there is none.
pub(super) fn basic(url: &url::Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair = percent_decode(url.username());
    pair.push(b':');
    pair.extend(percent_decode(url.password().unwrap_or_default()));
    let text = format!(
        "Basic {}",
        base64::engine::general_purpose::STANDARD.encode(pair)
    );
    secret("authorization", &text).ok()
}

/// The six lines that are signed. The request's path goes in exactly as it is sent.
fn rmq_text(access_key: &str, instance: &str, timestamp: &str, method: &str, path: &str) -> String {
    format!("{RMQ_ALGORITHM}\n{access_key}\n{instance}\n{timestamp}\n{method}\n{path}")
}

fn rmq_signature(secret_key: &str, text: &str) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret_key.as_bytes()) else {
        // HMAC takes keys of any length; an empty signature is refused by the server.
        return String::new();
    };
    mac.update(text.as_bytes());
    let mut hex = String::with_capacity(64);
    for byte in mac.finalize().into_bytes() {
        // Writing to a String cannot fail.
        write!(hex, "{byte:02x}").unwrap_or_default();
    }
    hex
}

/// RFC 3986: everything but the unreserved characters as `%XX`.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            write!(out, "%{byte:02X}").unwrap_or_default();
        }
    }
    out
}

/// Undoes `%XX`; anything else stays as it is.
fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let coded = tail
            .get(..2)
            .filter(|hex| first == b'%' && hex.iter().all(u8::is_ascii_hexdigit))
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(coded.unwrap_or(first));
        rest = if coded.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use http::{HeaderMap, Method};

    use super::{Credentials, HttpAuth, percent_decode, percent_encode, rmq_text};

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Vector {
        name: String,
        access_key: String,
        secret_key: String,
        instance_id: String,
        timestamp: String,
        method: String,
        path: String,
        string_to_sign: String,
        signature: String,
    }

    #[test]
    fn signatures_match_the_golden_vectors() {
        let text = include_str!("../../../tests/data/hmac-vectors.json");
        let vectors: Vec<Vector> = serde_json::from_str(text).unwrap();
        assert_eq!(vectors.len(), 3);
        for v in vectors {
            let text = rmq_text(
                &v.access_key,
                &v.instance_id,
                &v.timestamp,
                &v.method,
                &v.path,
            );
            assert_eq!(text, v.string_to_sign, "{}", v.name);
            let credentials = Credentials::new(
                [],
                HttpAuth::RmqHmacSha256 {
                    access_key: v.access_key.clone(),
                    secret_key: v.secret_key,
                    instance_id: v.instance_id.clone(),
                },
            )
            .unwrap();
            let mut headers = HeaderMap::new();
            credentials
                .sign(
                    &mut headers,
                    &Method::from_bytes(v.method.as_bytes()).unwrap(),
                    &v.path,
                    UNIX_EPOCH + Duration::from_millis(v.timestamp.parse().unwrap()),
                )
                .unwrap();
            let expected = format!(
                "rmq-hmac-sha256 Credential={}, Signature={}",
                percent_encode(&v.access_key),
                v.signature
            );
            assert_eq!(headers["authorization"], expected, "{}", v.name);
            assert_eq!(headers["x-rmq-timestamp"], v.timestamp);
            assert_eq!(headers["x-rmq-instance-id"], v.instance_id);
        }
    }

    #[test]
    fn the_query_is_part_of_what_is_signed() {
        let credentials = Credentials::new([], rmq()).unwrap();
        let sign = |path| {
            let mut headers = HeaderMap::new();
            credentials
                .sign(&mut headers, &Method::POST, path, UNIX_EPOCH)
                .unwrap();
            headers["authorization"].clone()
        };
        assert_ne!(sign("/api/mcp"), sign("/api/mcp?a=1"));
    }

    #[test]
    fn debug_output_shows_no_value() {
        let credentials = Credentials::new(
            [("X-Key", "hush")],
            HttpAuth::Bearer {
                token: "hush".to_owned(),
            },
        )
        .unwrap();
        let mut headers = HeaderMap::new();
        credentials
            .sign(&mut headers, &Method::POST, "/", UNIX_EPOCH)
            .unwrap();
        let shown = format!("{credentials:?} {headers:?} {:?}", rmq());
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("x-key"), "{shown}");
    }

    #[test]
    fn headers_of_the_frame_and_of_the_session_are_ours() {
        let credentials = Credentials::new(
            [
                ("Content-Type", "text/plain"),
                ("MCP-Session-Id", "x"),
                ("Host", "y"),
                ("a", "b"),
            ],
            HttpAuth::None,
        )
        .unwrap();
        let mut headers = HeaderMap::new();
        credentials
            .sign(&mut headers, &Method::POST, "/", UNIX_EPOCH)
            .unwrap();
        assert_eq!(
            headers
                .keys()
                .map(http::HeaderName::as_str)
                .collect::<Vec<_>>(),
            ["a"]
        );
    }

    #[test]
    fn a_value_with_a_line_break_is_refused_by_name_only() {
        let refused = Credentials::new([("X-Key", "hush\nX-Evil: 1")], HttpAuth::None).unwrap_err();
        assert!(refused.to_string().contains("x-key"), "{refused}");
        assert!(!refused.to_string().contains("hush"), "{refused}");
        let token = HttpAuth::Bearer {
            token: "hush\r\n".to_owned(),
        };
        assert!(Credentials::new([], token).is_err());
    }

    #[test]
    fn user_information_becomes_basic_unless_something_authenticates() {
        let url = "http://me:p%40ss@h/".parse().unwrap();
        let mut headers = HeaderMap::new();
        Credentials::none()
            .or_basic(&url)
            .sign(&mut headers, &Method::GET, "/", UNIX_EPOCH)
            .unwrap();
        assert_eq!(headers["authorization"], "Basic bWU6cEBzcw==");
        let lines = Credentials::none().or_basic(&url);
        let lines = String::from_utf8_lossy(lines.lines().unwrap()).into_owned();
        assert!(lines.starts_with("authorization: Basic bWU6cEBzcw==\r\nuser-agent: "));
        let given = Credentials::new([("authorization", "x")], HttpAuth::None).unwrap();
        let mut headers = HeaderMap::new();
        given
            .or_basic(&url)
            .sign(&mut headers, &Method::GET, "/", UNIX_EPOCH)
            .unwrap();
        assert_eq!(headers["authorization"], "x");
    }

    #[test]
    fn what_is_the_same_in_each_request_is_written_once() {
        let token = HttpAuth::Bearer {
            token: "hush".to_owned(),
        };
        let configured = [("user-agent", "mine"), ("authorization", "old"), ("a", "b")];
        let credentials = Credentials::new(configured, token).unwrap();
        let lines = String::from_utf8_lossy(credentials.lines().unwrap()).into_owned();
        assert_eq!(
            lines,
            "user-agent: mine\r\nauthorization: Bearer hush\r\na: b\r\n"
        );
        assert_eq!(Credentials::none().lines(), Some(super::AGENT));
        let signed = Credentials::new([], rmq()).unwrap();
        assert_eq!(
            signed.lines(),
            None,
            "each request has a signature of its own"
        );
    }

    #[test]
    fn percent_coding_goes_both_ways() {
        assert_eq!(percent_encode("a b/é~"), "a%20b%2F%C3%A9~");
        assert_eq!(percent_decode("p%40%zz%4"), b"p@%zz%4");
    }

    fn rmq() -> HttpAuth {
        HttpAuth::RmqHmacSha256 {
            access_key: "key".to_owned(),
            secret_key: "hush".to_owned(),
            instance_id: "one".to_owned(),
        }
    }
}
