//! One HTTP request: its head, the connection it goes on, redirects.
//!
//! Owns: the difference between "nothing left" and "may have left". It must not know what an answer
//! means. A request goes out once; only one that hyper gives back unsent takes a second connection
//! (I4).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use springline_proto::error::sanitise;
use springline_proto::json::Pieces;
use springline_proto::upstream::{End, Refusal, Route};
use url::{Position, Url};

use super::auth::Credentials;
use super::body::{Segments, drain};
use super::dial::{Origin, Place, dial};
use super::pool::{Connection, keep_alive_hint};
use super::proxy::{Proxy, Way};
use super::{Instance, Wire, text_of};
use crate::spawn;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Redirects that one request follows.
const REDIRECTS_MAX: u32 = 5;

/// How long a connection whose answer was read may take to become ready again.
const READY_PATIENCE: Duration = Duration::from_secs(1);

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

impl Ask {
    fn accept(&self) -> &'static str {
        if self.method == Method::GET {
            "text/event-stream"
        } else {
            "application/json, text/event-stream"
        }
    }
}

/// The head of an answer, and the way to its body.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Incoming,
    /// What the request was authenticated with.
    pub(super) credentials: Arc<Credentials>,
    pub(super) after: After,
}

/// The connection of an answer that is being read. Dropped, it closes.
pub(super) struct After {
    place: Place,
    connection: Connection,
    hint: Option<Duration>,
    alone: bool,
}

impl After {
    /// Gives the connection back: its answer was read to the end.
    pub(super) async fn give_back(mut self, wire: &Wire) {
        if self.alone {
            return;
        }
        // hyper needs a turn to see the end; one that closes says so here.
        let ready = self.connection.sender.ready();
        if let Ok(Ok(())) = tokio::time::timeout(READY_PATIENCE, ready).await {
            wire.shared
                .pool
                .put(&self.place, self.connection, self.hint);
        }
    }
}

/// Sends `ask` and follows redirects that stay at home, until there is an answer to judge. Cancel
/// safe: dropping it closes the connection, whatever was sent.
pub(super) async fn request(wire: &Wire, instance: &Instance, ask: &Ask) -> Result<Answer, End> {
    let mut url = Cow::Borrowed(&wire.spec.url);
    let mut hop = 0;
    loop {
        let mut answer = attempt(wire, instance, ask, &url).await?;
        if !matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(answer);
        }
        match next_hop(&url, answer.status, &answer.headers, hop) {
            Ok(next) => {
                if drain(&mut answer.body).await {
                    answer.after.give_back(wire).await;
                }
                url = Cow::Owned(next);
                hop += 1;
            }
            Err(text) => {
                return Err(End::Refused(Refusal {
                    status: answer.status.as_u16(),
                    rpc_code: None,
                    text: text.into_boxed_str(),
                    retry_after: None,
                    answer: None,
                }));
            }
        }
    }
}

/// 307 and 308 keep method and body, so they are followed, on the same origin only: a signed
/// request must not be aimed elsewhere.
fn next_hop(url: &Url, status: StatusCode, headers: &HeaderMap, hop: u32) -> Result<Url, String> {
    let location = headers
        .get(header::LOCATION)
        .and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
        .and_then(|text| url.join(text).ok());
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
async fn attempt(wire: &Wire, instance: &Instance, ask: &Ask, url: &Url) -> Result<Answer, End> {
    let unsent = |cause: String| End::NotSent {
        cause: cause.into_boxed_str(),
    };
    let origin = Origin::of(url)
        .ok_or_else(|| unsent(format!("the scheme {} is not spoken here", url.scheme())))?;
    let way = wire.shared.proxies.way(url);
    let proxy = match &way {
        Way::Via(proxy) => Some(proxy.to_string()),
        Way::Direct | Way::Unusable(_) => None,
    };
    let place = Place {
        server: Arc::clone(&wire.spec.server),
        origin,
        proxy,
        ca: wire.spec.ca.clone(),
    };
    let credentials = Arc::clone(&wire.credentials.lock());
    let mut pooled = (!ask.alone)
        .then(|| wire.shared.pool.take(&place, ask.repeatable))
        .flatten();
    let mut redialled = false;
    loop {
        let mut connection = match pooled.take() {
            Some(connection) => connection,
            None => open(wire, &place, &way).await?,
        };
        let request =
            build(wire, instance, ask, url, &place, &way, &credentials).map_err(unsent)?;
        match connection.sender.try_send_request(request).await {
            Ok(response) => {
                let (head, body) = response.into_parts();
                instance
                    .jar
                    .lock()
                    .store(&head.headers, url.path(), wire.shared.wall());
                let hint = keep_alive_hint(&head.headers);
                let after = After {
                    place,
                    connection,
                    hint,
                    alone: ask.alone,
                };
                let (status, headers) = (head.status, head.headers);
                return Ok(Answer {
                    status,
                    headers,
                    body,
                    credentials,
                    after,
                });
            }
            // Given back: hyper never began to write it, so nothing left, and one more connection
            // is no repetition.
            Err(error) if error.message().is_some() => {
                if std::mem::replace(&mut redialled, true) {
                    return Err(unsent(text_of(error.error())));
                }
            }
            Err(error) => {
                let cause = format!("no answer came: {}", text_of(error.error()));
                return Err(End::Broken {
                    cause: cause.into_boxed_str(),
                });
            }
        }
    }
}

async fn open(wire: &Wire, place: &Place, way: &Way) -> Result<Connection, End> {
    let unsent = |cause: String| End::NotSent {
        cause: cause.into_boxed_str(),
    };
    let dialled = dial(place, way, &wire.shared.tls, wire.limits.connect_timeout)
        .await
        .map_err(|error| unsent(error.to_string()))?;
    let (sender, connection) = hyper::client::conn::http1::Builder::new()
        .handshake(TokioIo::new(dialled.stream))
        .await
        .map_err(|error| unsent(text_of(&error)))?;
    // Reads, writes and watches the socket, idle or not; ends when the sender is dropped.
    spawn::named("http connection", async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = text_of(&error), "a connection to a server broke");
        }
    });
    Ok(Connection {
        sender,
        socket: dialled.socket,
    })
}

fn build(
    wire: &Wire,
    instance: &Instance,
    ask: &Ask,
    url: &Url,
    place: &Place,
    way: &Way,
    credentials: &Credentials,
) -> Result<Request<Segments>, String> {
    let now = wire.shared.wall();
    let origin_form = &url[Position::BeforePath..Position::AfterQuery];
    let origin_uri: Uri = origin_form
        .parse()
        .map_err(|_| "the URL's path cannot be sent".to_owned())?;
    let mut headers = HeaderMap::with_capacity(16);
    let authority = place.origin.authority();
    let host = HeaderValue::from_str(&authority)
        .map_err(|_| "the URL's host cannot be sent".to_owned())?;
    headers.insert(header::HOST, host);
    credentials
        .sign(&mut headers, &ask.method, &origin_uri, now)
        .map_err(|error| error.to_string())?;
    let agent = HeaderValue::from_static(concat!("springline/", env!("CARGO_PKG_VERSION")));
    headers.entry(header::USER_AGENT).or_insert(agent);
    headers.insert(header::ACCEPT, HeaderValue::from_static(ask.accept()));
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
    if ask.method == Method::POST {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
    }
    route_headers(&mut headers, ask)?;
    let configured = headers.get(header::COOKIE).cloned();
    let secure = place.origin.secure;
    if let Some(value) = instance
        .jar
        .lock()
        .header(configured.as_ref(), url.path(), secure, now)
    {
        headers.insert(header::COOKIE, value);
    }
    let uri = match way {
        // RFC 9112, 3.2.2: a proxy is given the whole URL, unless it only carries a tunnel.
        Way::Via(proxy) if !secure => {
            authorize_proxy(&mut headers, proxy);
            format!("http://{authority}{origin_form}")
                .parse()
                .map_err(|_| "the URL cannot be sent to a proxy".to_owned())?
        }
        Way::Via(_) | Way::Direct | Way::Unusable(_) => origin_uri,
    };
    let mut request = Request::new(Segments::new(ask.body.clone()));
    *request.method_mut() = ask.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// What ties a request to its session (I14; 2025-11-25 basic/transports).
fn route_headers(headers: &mut HeaderMap, ask: &Ask) -> Result<(), String> {
    if let Some(id) = &ask.route.session_id {
        let mut value = HeaderValue::from_str(id)
            .map_err(|_| "the session id cannot stand in a header".to_owned())?;
        value.set_sensitive(true);
        headers.insert(SESSION_ID, value);
    }
    if let Some(version) = ask
        .route
        .version
        .filter(|version| version.has_version_header())
    {
        headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(version.as_str()));
    }
    if let Some(id) = &ask.last_event_id {
        let value = HeaderValue::from_bytes(id.as_bytes())
            .map_err(|_| "the event id cannot stand in a header".to_owned())?;
        headers.insert(LAST_EVENT_ID, value);
    }
    Ok(())
}

fn authorize_proxy(headers: &mut HeaderMap, proxy: &Proxy) {
    if let Some(value) = &proxy.authorization {
        headers.insert(header::PROXY_AUTHORIZATION, value.clone());
    }
}
