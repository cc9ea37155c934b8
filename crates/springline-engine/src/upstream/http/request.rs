//! One HTTP request: its head, the connection it goes on, redirects.
//!
//! Owns: the difference between "nothing left" and "may have left". It must not know what an answer
//! means. A request goes out once; only one of which no byte left takes a second connection (I4).

use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap};
use http::{Method, StatusCode};
use springline_proto::error::sanitise;
use springline_proto::json::Pieces;
use springline_proto::upstream::{End, Refusal, Route};
use url::Url;

use super::auth::{AGENT, Credentials};
use super::body::drain;
use super::dial::{Place, dial};
use super::field::Fields;
use super::framing::{AskError, Body, Connection};
use super::pool::keep_alive_hint;
use super::proxy::Way;
use super::site::Site;
use super::{Instance, Wire};

/// Redirects that one request follows.
const REDIRECTS_MAX: u32 = 5;

/// Room for the head of a request; a longer one grows.
const HEAD_ROOM: usize = 512;

/// The longest body that is sent in one buffer with its head.
const JOINED_ROOM: usize = 16 * 1024;

/// What a request says, on whichever connection it goes.
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) body: Pieces,
    pub(super) route: Route,
    pub(super) last_event_id: Option<Arc<str>>,
    /// It may go on a connection that could be closing.
    pub(super) repeatable: bool,
    /// It takes a connection of its own, which is closed afterwards.
    pub(super) alone: bool,
}

/// The head of an answer, and the way to its body.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
    pub(super) body: Body,
    /// What the request was authenticated with.
    pub(super) credentials: Arc<Credentials>,
    pub(super) after: After,
}

/// What becomes of the connection of an answer.
pub(super) struct After {
    place: Arc<Place>,
    hint: Option<Duration>,
    alone: bool,
}

impl After {
    /// Gives the connection back, if its answer was read to the end and another may follow.
    pub(super) fn give_back(self, wire: &Wire, body: Body) {
        if self.alone {
            return;
        }
        if let Some(connection) = body.into_connection() {
            wire.shared.pool.put(&self.place, connection, self.hint);
        }
    }
}

fn unsent(cause: impl Into<Box<str>>) -> End {
    End::NotSent {
        cause: cause.into(),
    }
}

/// Sends `ask` and follows redirects that stay at home, until there is an answer to judge. Cancel
/// safe: dropping it closes the connection, whatever was sent.
///
/// No `async fn`, which would hold its arguments twice, and what is rare is boxed: it is part of what
/// is made for each call.
#[expect(clippy::manual_async_fn, reason = "it would hold its arguments twice")]
pub(super) fn request<'a>(
    wire: &'a Wire,
    instance: &'a Instance,
    ask: &'a Ask,
) -> impl Future<Output = Result<Answer, End>> + 'a {
    async move {
        let site = match &wire.site {
            Ok(site) => site,
            Err(cause) => return Err(unsent(cause.clone())),
        };
        let answer = attempt(wire, instance, ask, site).await?;
        if is_redirect(&answer) {
            return Box::pin(follow(wire, instance, ask, site, Box::new(answer))).await;
        }
        Ok(answer)
    }
}

fn is_redirect(answer: &Answer) -> bool {
    matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Goes on from an answer of `first` that is a redirect.
async fn follow(
    wire: &Wire,
    instance: &Instance,
    ask: &Ask,
    first: &Site,
    answer: Box<Answer>,
) -> Result<Answer, End> {
    let mut answer = *answer;
    let mut last = None;
    let mut hop = 0;
    loop {
        let site = last.as_ref().unwrap_or(first);
        match next_hop(&site.url, answer.status, &answer.fields, hop) {
            Ok(next) => {
                if drain(&mut answer.body).await {
                    answer.after.give_back(wire, answer.body);
                }
                let (server, ca) = (Arc::clone(&wire.server), site.place.ca.clone());
                let next = Site::of(next, server, ca, &wire.shared.proxies).map_err(unsent)?;
                answer = attempt(wire, instance, ask, &next).await?;
                if !is_redirect(&answer) {
                    return Ok(answer);
                }
                last = Some(next);
                hop += 1;
            }
            Err(text) => {
                return Err(End::Refused(Refusal {
                    status: answer.status.as_u16(),
                    rpc_code: None,
                    text: text.into_boxed_str(),
                    foreign: false,
                    retry_after: None,
                    answer: None,
                }));
            }
        }
    }
}

/// 307 and 308 keep method and body, so they are followed, on the same origin only: a signed
/// request must not be aimed elsewhere.
fn next_hop(url: &Url, status: StatusCode, fields: &Fields, hop: u32) -> Result<Url, String> {
    let location = fields.text("location").and_then(|text| url.join(text).ok());
    let Some(mut next) = location else {
        return Err("a redirect that names no usable place; it is not followed".to_owned());
    };
    let shown = sanitise(&place_of(&next), 200);
    if !matches!(status.as_u16(), 307 | 308) {
        return Err(format!(
            "a redirect to {shown}; it is not followed, since only 307 and 308 keep the request"
        ));
    }
    if next.origin() != url.origin() {
        return Err(format!(
            "a redirect to {shown}, another origin; it is not followed: configure that URL if it \
             is right"
        ));
    }
    if hop >= REDIRECTS_MAX {
        return Err(format!(
            "more than {REDIRECTS_MAX} redirects, the last to {shown}"
        ));
    }
    next.set_fragment(None);
    Ok(next)
}

/// A URL for people: without user information and query, which may be secret.
pub(super) fn place_of(url: &Url) -> String {
    let origin = url.origin().ascii_serialization();
    format!("{origin}{}", url.path())
}

/// One HTTP attempt: signed now, on one connection.
async fn attempt(wire: &Wire, instance: &Instance, ask: &Ask, site: &Site) -> Result<Answer, End> {
    let place = &site.place;
    let credentials = Arc::clone(&wire.credentials.lock());
    let mut is_first = true;
    loop {
        let pool = &wire.shared.pool;
        let may_share = is_first && !ask.alone;
        let pooled = || pool.take(place, ask.repeatable);
        let connection = if let Some(connection) = may_share.then(pooled).flatten() {
            connection
        } else {
            open(wire, site).await?
        };
        let head = head(wire, instance, ask, site, &credentials).map_err(unsent)?;
        match connection.ask(head, &ask.body).await {
            Ok((head, body)) => {
                if head.fields.has("set-cookie") {
                    let now = wire.shared.wall();
                    let mut jar = instance.jar.lock();
                    jar.store(&head.fields, site.url.path(), now);
                }
                let after = After {
                    place: Arc::clone(place),
                    hint: keep_alive_hint(&head.fields),
                    alone: ask.alone,
                };
                return Ok(Answer {
                    status: head.status,
                    fields: head.fields,
                    body,
                    credentials,
                    after,
                });
            }
            // The kernel took no byte of it, so one more connection is no repetition.
            Err(AskError::Unsent(error)) => {
                if !std::mem::replace(&mut is_first, false) {
                    return Err(unsent(error.to_string()));
                }
            }
            Err(AskError::Broken(cause)) => {
                let cause = format!("no answer came: {cause}");
                return Err(End::Broken {
                    cause: cause.into_boxed_str(),
                });
            }
        }
    }
}

async fn open(wire: &Wire, site: &Site) -> Result<Connection, End> {
    let (tls, patience) = (&wire.shared.tls, wire.limits.connect_timeout);
    // Boxed: dialling is rare, and large as a future.
    let channel = Box::pin(dial(&site.place, &site.way, tls, patience))
        .await
        .map_err(|error| unsent(error.to_string()))?;
    Ok(Connection::new(channel))
}

/// The bytes of the request up to its body, with room for a small one.
fn head(
    wire: &Wire,
    instance: &Instance,
    ask: &Ask,
    site: &Site,
    credentials: &Credentials,
) -> Result<Vec<u8>, String> {
    let body = ask.body.len();
    let room = if body <= JOINED_ROOM { body } else { 0 };
    let mut out = Vec::with_capacity(HEAD_ROOM + room);
    match (&site.opening, credentials.lines()) {
        (Some(opening), Some(lines))
            if ask.method == Method::POST && instance.jar.lock().is_empty() =>
        {
            out.extend_from_slice(opening);
            out.extend_from_slice(lines);
        }
        _ => open_anew(&mut out, wire, instance, ask, site, credentials)?,
    }
    if ask.method == Method::GET {
        out.extend_from_slice(b"accept: text/event-stream\r\n");
    } else {
        out.extend_from_slice(b"accept: application/json, text/event-stream\r\n");
    }
    out.extend_from_slice(b"accept-encoding: gzip\r\n");
    if ask.method == Method::POST {
        out.extend_from_slice(b"content-type: application/json\r\ncontent-length: ");
        put_number(&mut out, body);
        out.extend_from_slice(b"\r\n");
    }
    route_fields(&mut out, ask)?;
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// The beginning of a head that is not the same for all requests: its method, signature or cookies are
/// its own.
fn open_anew(
    out: &mut Vec<u8>,
    wire: &Wire,
    instance: &Instance,
    ask: &Ask,
    site: &Site,
    credentials: &Credentials,
) -> Result<(), String> {
    let now = wire.shared.wall();
    let secure = site.place.origin.secure;
    out.extend_from_slice(ask.method.as_str().as_bytes());
    out.push(b' ');
    let mut configured = HeaderMap::new();
    credentials
        .sign(&mut configured, &ask.method, &site.path, now)
        .map_err(|error| error.to_string())?;
    if let Way::Via(proxy) = &site.way
        && !secure
    {
        // RFC 9112, 3.2.2: a proxy is given the whole URL, unless it only carries a tunnel.
        out.extend_from_slice(b"http://");
        out.extend_from_slice(site.authority.as_bytes());
        if let Some(value) = &proxy.authorization {
            configured.insert(header::PROXY_AUTHORIZATION, value.clone());
        }
    }
    out.extend_from_slice(site.path.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    field(out, "host", site.authority.as_bytes())?;
    let cookies =
        instance
            .jar
            .lock()
            .header(configured.get(header::COOKIE), site.url.path(), secure, now);
    if let Some(cookies) = cookies {
        configured.insert(header::COOKIE, cookies);
    }
    for (name, value) in &configured {
        field(out, name.as_str(), value.as_bytes())?;
    }
    if !configured.contains_key(header::USER_AGENT) {
        out.extend_from_slice(AGENT);
    }
    Ok(())
}

/// Appends a number in decimal digits.
fn put_number(out: &mut Vec<u8>, mut number: usize) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
        at -= 1;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(at..).unwrap_or_default());
}

/// What ties a request to its session (I14; 2025-11-25 basic/transports).
fn route_fields(out: &mut Vec<u8>, ask: &Ask) -> Result<(), String> {
    if let Some(id) = &ask.route.session_id {
        field(out, "mcp-session-id", id.as_bytes())?;
    }
    let version = ask.route.version;
    if let Some(version) = version.filter(|version| version.has_version_header()) {
        field(out, "mcp-protocol-version", version.as_str().as_bytes())?;
    }
    if let Some(id) = &ask.last_event_id {
        field(out, "last-event-id", id.as_bytes())?;
    }
    Ok(())
}

/// Appends a field, unless its value would break the head.
fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) -> Result<(), String> {
    let breaks = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7F;
    // Without a way out, so that the compiler looks at many at once.
    if value
        .iter()
        .fold(false, |found, byte| found | breaks(*byte))
    {
        return Err(format!("the value of {name} cannot stand in a header"));
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}
