//! The checks of a request's head.
//!
//! Owns: host, origin, credentials and media types. It must not know paths, bodies or sessions.

use std::net::Ipv4Addr;

use http::Uri;
use springline_proto::session::Accept;

use super::field::{Field, Fields, text};
use super::port::Principal;
use super::setting::{HttpSettings, Token};

/// Where a connection came in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// A TCP listener on a loopback address.
    Loopback,
    /// A TCP listener on another address.
    Network,
    /// The unix socket, from this user.
    Socket {
        /// The user, as the kernel says.
        uid: u32,
    },
}

/// Why a request's host or origin was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// `Host` is missing, unreadable or not allowed.
    #[error(
        "this Host is not allowed here; add it to `allowedHosts` in the `springline` block of the configuration"
    )]
    Host,
    /// `Origin` is unreadable or not allowed.
    #[error(
        "this Origin is not allowed; add it to `allowedOrigins` in the `springline` block of the configuration"
    )]
    Origin,
}

/// Checks `Host` and `Origin` against DNS rebinding (2025-11-25 basic/transports, security warning).
///
/// A network listener answers under names that we cannot know; its `Host` is checked only if
/// `allowedHosts` names some. The socket is out of a browser's reach: its `Host` is free.
pub fn check_place(
    fields: &impl Fields,
    arrival: Arrival,
    settings: &HttpSettings,
) -> Result<(), PlaceError> {
    if is_host_bound(arrival, settings) {
        let host = fields.single(Field::Host).ok_or(PlaceError::Host)?;
        if !is_host_allowed(host, &settings.allowed_hosts) {
            return Err(PlaceError::Host);
        }
    }
    if fields.has(Field::Origin) {
        let origin = fields.single(Field::Origin).ok_or(PlaceError::Origin)?;
        if !is_origin_allowed(origin, &settings.allowed_origins) {
            return Err(PlaceError::Origin);
        }
    }
    Ok(())
}

/// Checks the authority of an address in absolute form (`GET http://host/mcp`), which counts in place
/// of `Host` (RFC 9112, 3.2.2). Other forms have none.
pub fn check_authority(
    address: &Uri,
    arrival: Arrival,
    settings: &HttpSettings,
) -> Result<(), PlaceError> {
    match address.authority() {
        Some(authority) if is_host_bound(arrival, settings) => {
            let is_allowed = is_host_allowed(authority.as_str(), &settings.allowed_hosts);
            if is_allowed {
                Ok(())
            } else {
                Err(PlaceError::Host)
            }
        }
        Some(_) | None => Ok(()),
    }
}

fn is_host_bound(arrival: Arrival, settings: &HttpSettings) -> bool {
    match arrival {
        Arrival::Loopback => true,
        Arrival::Network => !settings.allowed_hosts.is_empty(),
        Arrival::Socket { .. } => false,
    }
}

/// Whether browsers of this origin may read answers: CORS is on, and the origin passed the check.
pub fn cors_origin<'a>(fields: &'a impl Fields, settings: &HttpSettings) -> Option<&'a str> {
    if !settings.cors {
        return None;
    }
    fields
        .single(Field::Origin)
        .filter(|origin| is_origin_allowed(origin, &settings.allowed_origins))
}

fn is_host_allowed(host: &str, allowed: &[String]) -> bool {
    let Some((name, port)) = split_port(host) else {
        return false;
    };
    is_loopback_name(name)
        || allowed.iter().any(|entry| match split_port(entry) {
            Some((entry_name, None)) => entry_name.eq_ignore_ascii_case(name),
            Some((entry_name, entry_port)) => {
                entry_name.eq_ignore_ascii_case(name) && entry_port == port
            }
            None => false,
        })
}

fn is_origin_allowed(origin: &str, allowed: &[String]) -> bool {
    let trim = |text: &str| text.trim_end_matches('/').to_ascii_lowercase();
    if allowed.iter().any(|entry| trim(entry) == trim(origin)) {
        return true;
    }
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false;
    };
    matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https")
        && split_port(authority).is_some_and(|(name, _)| is_loopback_name(name))
}

/// A loopback address by number cannot be a name that was bound to another address.
fn is_loopback_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name
            .parse::<Ipv4Addr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Splits an authority into its host (IPv6 in brackets) and its port, if it is a well-formed one.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let name_end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (name, rest) = authority.split_at_checked(name_end)?;
    if name.is_empty() || name.contains(['@', '/', ' ']) {
        return None;
    }
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((name, None)),
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().map(|port| (name, Some(port)))
        }
        None | Some(_) => None,
    }
}

/// Says who sends the request, or nothing if its credentials are missing or wrong.
///
/// The socket's user needs none. Only the `Authorization` header counts, never the query
/// (2025-11-25 basic/authorization, token requirements).
pub fn principal(
    fields: &impl Fields,
    arrival: Arrival,
    settings: &HttpSettings,
) -> Option<Principal> {
    if let Arrival::Socket { uid } = arrival {
        return Some(Principal::Uid(uid));
    }
    if settings.tokens.is_empty() {
        return Some(Principal::Anonymous);
    }
    let value = fields.single(Field::Authorization)?;
    let (scheme, secret) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let token = Token::find(&settings.tokens, secret.trim().as_bytes())?;
    Some(Principal::Token(token.name().clone()))
}

/// What a body is announced as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Announced {
    /// JSON, in any spelling and with any parameter.
    Json,
    /// JSON in an encoding other than UTF-8, of which ASCII is a part (RFC 8259, 8.1).
    OtherCharset,
    /// Something else, nothing, or not clearly one thing.
    Other,
}

/// What a body is announced as, by its `Content-Type`.
pub fn announced(fields: &impl Fields) -> Announced {
    // As nearly every client spells it.
    let mut values = fields.all(Field::ContentType);
    if values.next() == Some(JSON.as_bytes()) && values.next().is_none() {
        return Announced::Json;
    }
    drop(values);
    let Some(value) = fields.single(Field::ContentType) else {
        return Announced::Other;
    };
    if !media_type(value).eq_ignore_ascii_case(JSON) {
        return Announced::Other;
    }
    let is_other = value.split(';').skip(1).any(|parameter| {
        let (name, charset) = parameter.split_once('=').unwrap_or((parameter, ""));
        let charset = charset.trim().trim_matches('"').to_ascii_lowercase();
        name.trim().eq_ignore_ascii_case("charset")
            && !matches!(charset.as_str(), "utf-8" | "utf8" | "us-ascii" | "ascii")
    });
    if is_other {
        Announced::OtherCharset
    } else {
        Announced::Json
    }
}

/// Whether a body comes as it is: in no coding (RFC 9110, 8.4).
pub fn is_plain(fields: &impl Fields) -> bool {
    fields.all(Field::Encoding).all(|value| {
        text(value).is_some_and(|codings| {
            let mut codings = codings.split(',').map(str::trim);
            codings.all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case("identity"))
        })
    })
}

/// What a POST's answer may be, by its `Accept`; nothing if none of our types is accepted.
pub fn accept_post(fields: &impl Fields) -> Option<Accept> {
    match accepted(fields) {
        (true, true) => Some(Accept::Both),
        (true, false) => Some(Accept::Json),
        (false, _) => None,
    }
}

/// Whether a GET may be answered by an event stream.
pub fn accepts_stream(fields: &impl Fields) -> bool {
    accepted(fields).1
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// Both of them, as clients and SDKs spell it.
const BOTH: [&[u8]; 2] = [
    b"application/json, text/event-stream",
    b"application/json,text/event-stream",
];

/// Whether JSON and whether event streams are accepted.
fn accepted(fields: &impl Fields) -> (bool, bool) {
    let (mut json, mut events) = (false, false);
    let mut is_absent = true;
    for value in fields.all(Field::Accept) {
        is_absent = false;
        if BOTH.contains(&value) {
            (json, events) = (true, true);
            continue;
        }
        let Some(value) = text(value) else { continue };
        for range in value.split(',') {
            let kind = media_type(range);
            let has_json = is_in(kind, JSON, "application/*");
            let has_events = is_in(kind, EVENTS, "text/*");
            if (has_json || has_events) && !is_refused(range) {
                json |= has_json;
                events |= has_events;
            }
        }
    }
    (json || is_absent, events || is_absent)
}

/// Whether a media range has this type, of this family.
fn is_in(range: &str, kind: &str, family: &str) -> bool {
    range.eq_ignore_ascii_case(kind) || range.eq_ignore_ascii_case(family) || range == "*/*"
}

/// Whether a media range says that it is unwanted: `q=0`.
fn is_refused(range: &str) -> bool {
    range.split(';').skip(1).any(|parameter| {
        parameter
            .trim()
            .to_ascii_lowercase()
            .strip_prefix("q=")
            .is_some_and(|weight| {
                weight.starts_with('0') && weight.bytes().all(|byte| matches!(byte, b'0' | b'.'))
            })
    })
}

fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}
