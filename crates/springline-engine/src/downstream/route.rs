//! From a request to an answer.
//!
//! Owns: the paths, the order of the checks (place, credentials, path, media types, size, JSON,
//! session, version) and the statuses of refusals (DESIGN.md section 5, "HTTP answers"). It must
//! not know what an accepted message does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header, request};
use http_body::Body;
use springline_proto::session::Endpoint;
use tokio::sync::watch;

use super::answer::{self, Answer};
use super::body::ReadError;
use super::call::{Call, SESSIONLESS_MAX, check_coding, close, read_body, refuse_body};
use super::field::Fields;
use super::guard::{self, Arrival, PlaceError};
use super::port::{Gate, Principal};
use super::seat;
use super::setting::HttpSettings;

/// The JSON-RPC code of a refused HTTP request.
pub(crate) const INVALID_REQUEST: i32 = -32600;
const METHODS: &str = "GET, POST, DELETE, OPTIONS";

/// A request to a route beside the protocol's own.
#[derive(Debug)]
pub struct RouteRequest {
    /// Its method.
    pub method: Method,
    /// Its path, as sent.
    pub path: String,
    /// Its query, without the question mark.
    pub query: Option<String>,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// Who sent it.
    pub principal: Principal,
}

/// The future of a route's answer; nothing if there is no such route.
pub type RouteFuture<'a> = Pin<Box<dyn Future<Output = Option<Answer>> + Send + 'a>>;

/// Routes beside the protocol's own: `/api/…`, `/metrics`, `/dashboard`. Place and credentials
/// have been checked, and the body was read within the cap.
pub trait Routes: Send + Sync + 'static {
    /// Answers a request, or says that it has no such route.
    fn answer(&self, request: RouteRequest) -> RouteFuture<'_>;

    /// Why the gateway should be given no new work, if so: `/readyz`. Told to everybody.
    fn unready(&self) -> Option<String> {
        None
    }
}

/// No further routes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRoutes;

impl Routes for NoRoutes {
    fn answer(&self, _request: RouteRequest) -> RouteFuture<'_> {
        Box::pin(std::future::ready(None))
    }
}

/// What the answers to all requests of a server share.
pub(crate) struct Desk<G> {
    pub(crate) gate: G,
    pub(crate) routes: Arc<dyn Routes>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl<G: Gate> Desk<G> {
    /// Answers one request. Dropping the future abandons it, and tells the session so.
    pub(crate) async fn answer<B>(
        &self,
        request: Request<B>,
        arrival: Arrival,
        settings: &HttpSettings,
    ) -> Answer
    where
        B: Body<Data = Bytes> + Send,
    {
        let (head, body) = request.into_parts();
        let place = guard::check_place(&head.headers, arrival, settings)
            .and_then(|()| guard::check_authority(&head.uri, arrival, settings));
        if let Err(error) = place {
            return refuse_place(error);
        }
        let mut answer = self.answer_allowed(&head, body, arrival, settings).await;
        if let Some(origin) = guard::cors_origin(&head.headers, settings) {
            add_cors(&mut answer, origin);
            if head.method == Method::OPTIONS {
                add_preflight(&mut answer, &head.headers);
            }
        }
        answer
    }

    async fn answer_allowed<B>(
        &self,
        head: &request::Parts,
        body: B,
        arrival: Arrival,
        settings: &HttpSettings,
    ) -> Answer
    where
        B: Body<Data = Bytes> + Send,
    {
        let path = head.uri.path();
        if let Some(answer) = self.answer_open(head, path) {
            return answer;
        }
        let principal = match principal(&head.headers, arrival, settings) {
            Ok(principal) => principal,
            Err(answer) => return answer,
        };
        let Some(endpoint) = server_of(path).map(endpoint_of) else {
            return self.answer_route(head, body, principal, settings).await;
        };
        let call = Call {
            desk: self,
            fields: &head.headers,
            principal,
            endpoint,
            settings,
        };
        match head.method {
            Method::POST => call.post(body).await,
            Method::GET => call.get().await,
            Method::DELETE => call.delete(),
            _ => method_not_allowed(METHODS),
        }
    }

    /// A POST on an endpoint, once place and credentials are in order: the same steps as
    /// [`Self::answer`] takes, for a request that was read in place.
    pub(super) fn call<'a, F: Fields>(
        &'a self,
        fields: &'a F,
        endpoint: Endpoint,
        arrival: Arrival,
        settings: &'a HttpSettings,
    ) -> Result<Call<'a, G, F>, Answer> {
        Ok(Call {
            desk: self,
            fields,
            principal: principal(fields, arrival, settings)?,
            endpoint,
            settings,
        })
    }

    /// What needs no credentials: health, and the questions of browsers.
    fn answer_open(&self, head: &request::Parts, path: &str) -> Option<Answer> {
        let is_health = matches!(path, "/healthz" | "/readyz");
        if head.method == Method::OPTIONS {
            let allowed = if is_health {
                "GET, HEAD, OPTIONS"
            } else {
                METHODS
            };
            let mut answer = answer::bare(StatusCode::NO_CONTENT);
            answer
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static(allowed));
            return Some(answer);
        }
        if !is_health {
            return None;
        }
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Some(method_not_allowed("GET, HEAD, OPTIONS"));
        }
        let unready = match path {
            "/healthz" => None,
            _ if *self.stopping.borrow() => Some("it is stopping".to_owned()),
            _ => self.routes.unready(),
        };
        let (status, text) = match unready {
            None => (StatusCode::OK, "ok\n".to_owned()),
            Some(reason) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("not ready: {reason}\n"),
            ),
        };
        let body = Bytes::from(text).into();
        Some(answer::with_body(status, Some("text/plain"), body))
    }

    async fn answer_route<B>(
        &self,
        head: &request::Parts,
        body: B,
        principal: Principal,
        settings: &HttpSettings,
    ) -> Answer
    where
        B: Body<Data = Bytes> + Send,
    {
        if let Err(answer) = check_coding(&head.headers) {
            return answer;
        }
        // Nobody who is not known steers anything: such a body is read to be passed over.
        let is_known = principal != Principal::Anonymous;
        let max = if is_known {
            settings.body_max
        } else {
            settings.body_max.min(SESSIONLESS_MAX)
        };
        let (body, is_whole) = match read_body(&head.headers, body, max, settings).await {
            Ok(body) => (body, true),
            Err(ReadError::TooLarge { .. }) if !is_known => (Bytes::new(), false),
            Err(error) => return refuse_body(error, settings),
        };
        let request = RouteRequest {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers.clone(),
            body,
            principal,
        };
        let busy = seat::busy();
        let answer = self.routes.answer(request).await.unwrap_or_else(|| {
            let text = "there is nothing at this path; MCP is served at /mcp and /mcp/{server}";
            answer::refuse(StatusCode::NOT_FOUND, None, INVALID_REQUEST, text)
        });
        drop(busy);
        if is_whole { answer } else { close(answer) }
    }
}

/// The server that a path of the protocol names, empty for all of them; both spellings name the
/// same, with no redirect.
pub(super) fn server_of(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/mcp")?;
    if rest.is_empty() || rest == "/" {
        return Some("");
    }
    let name = rest.strip_prefix('/')?;
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    is_name.then_some(name)
}

/// The endpoint of a server by this name, or of all.
pub(super) fn endpoint_of(server: &str) -> Endpoint {
    if server.is_empty() {
        Endpoint::All
    } else {
        Endpoint::One(Arc::from(server))
    }
}

/// Refuses a host or an origin.
pub(super) fn refuse_place(error: PlaceError) -> Answer {
    let text = error.to_string();
    answer::refuse(StatusCode::FORBIDDEN, None, INVALID_REQUEST, &text)
}

/// Who sends a request, or the answer that asks for credentials.
fn principal(
    fields: &impl Fields,
    arrival: Arrival,
    settings: &HttpSettings,
) -> Result<Principal, Answer> {
    guard::principal(fields, arrival, settings).ok_or_else(|| {
        let text = "credentials are missing or wrong: send Authorization: Bearer with a token \
                    of `auth.tokens`";
        let mut answer = answer::refuse(StatusCode::UNAUTHORIZED, None, INVALID_REQUEST, text);
        answer
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        answer
    })
}

fn method_not_allowed(allowed: &'static str) -> Answer {
    let text = format!("this method is not allowed here; allowed are {allowed}");
    let mut answer = answer::refuse(StatusCode::METHOD_NOT_ALLOWED, None, INVALID_REQUEST, &text);
    answer
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

/// Lets the browser's page of this origin read an answer.
pub(super) fn add_cors(answer: &mut Answer, origin: &str) {
    let headers = answer.headers_mut();
    let Ok(origin) = HeaderValue::from_str(origin) else {
        return;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static("Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate"),
    );
}

/// Says what the browser's page may ask for.
fn add_preflight(answer: &mut Answer, asked: &HeaderMap) {
    if !asked.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return;
    }
    let headers = answer.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static(METHODS),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static(
            "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, \
             Mcp-Session-Id",
        ),
    );
    headers.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("600"),
    );
}
