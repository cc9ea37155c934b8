//! From a request to an answer.
//!
//! Owns: the paths, the order of the checks (place, credentials, path, media types, size, JSON,
//! session, version) and the statuses of refusals (DESIGN.md section 5, "HTTP answers"). It must
//! not know what an accepted message does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, request};
use http_body::Body;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::message::{Kind, Message, ParseError, ParseErrorKind};
use springline_proto::session::{Accept, Downstream, Endpoint, Part};
use springline_proto::version::Version;
use tokio::sync::watch;

use super::answer::{self, Answer, AnswerBody, EventBody, StreamManners};
use super::body::{self, ReadError};
use super::guard::{self, Arrival};
use super::port::{Gate, OpenError, Parts as _, Principal, Session};
use super::setting::HttpSettings;

const INVALID_REQUEST: i32 = -32600;
/// The one code of ours inside the reserved range: clients key on it (DESIGN.md section 5).
const SESSION_NOT_FOUND: i32 = -32001;
const SESSION_HEADER: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const CURSOR_HEADER: HeaderName = HeaderName::from_static("last-event-id");
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

    /// Whether the gateway takes new work: `/readyz`.
    fn is_ready(&self) -> bool {
        true
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
        let mut answer = match guard::check_place(&head.headers, arrival, settings) {
            Ok(()) => self.answer_allowed(&head, body, arrival, settings).await,
            Err(error) => {
                return answer::refuse(
                    StatusCode::FORBIDDEN,
                    None,
                    INVALID_REQUEST,
                    &error.to_string(),
                );
            }
        };
        if let Some(origin) = guard::cors_origin(&head.headers, settings) {
            add_cors(&mut answer, origin, &head);
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
        let Some(principal) = guard::principal(&head.headers, arrival, settings) else {
            let text = "credentials are missing or wrong: send Authorization: Bearer with a token \
                        of `auth.tokens`";
            let mut answer = answer::refuse(StatusCode::UNAUTHORIZED, None, INVALID_REQUEST, text);
            answer
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        };
        let Some(endpoint) = endpoint(path) else {
            return self.answer_route(head, body, principal, settings).await;
        };
        let call = Call {
            desk: self,
            head,
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
        let is_well = path == "/healthz" || (self.routes.is_ready() && !*self.stopping.borrow());
        let (status, text) = if is_well {
            (StatusCode::OK, "ok\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        };
        Some(answer::with_body(
            status,
            Some("text/plain"),
            Bytes::from_static(text.as_bytes()).into(),
        ))
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
        let body = match read_body(head, body, settings).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let request = RouteRequest {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            query: head.uri.query().map(str::to_owned),
            headers: head.headers.clone(),
            body,
            principal,
        };
        self.routes.answer(request).await.unwrap_or_else(|| {
            let text = "there is nothing at this path; MCP is served at /mcp and /mcp/{server}";
            answer::refuse(StatusCode::NOT_FOUND, None, INVALID_REQUEST, text)
        })
    }
}

/// The endpoint of a path; both spellings name the same, with no redirect.
fn endpoint(path: &str) -> Option<Endpoint> {
    let rest = path.strip_prefix("/mcp")?;
    match rest {
        "" | "/" => return Some(Endpoint::All),
        _ => {}
    }
    let name = rest.strip_prefix('/')?;
    let name = name.strip_suffix('/').unwrap_or(name);
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    is_name.then(|| Endpoint::One(Arc::from(name)))
}

fn method_not_allowed(allowed: &'static str) -> Answer {
    let text = format!("this method is not allowed here; allowed are {allowed}");
    let mut answer = answer::refuse(StatusCode::METHOD_NOT_ALLOWED, None, INVALID_REQUEST, &text);
    answer
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn add_cors(answer: &mut Answer, origin: &str, head: &request::Parts) {
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
    if head.method == Method::OPTIONS
        && head
            .headers
            .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, DELETE, OPTIONS"),
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
}

/// Reads the body of a request, or answers why not.
async fn read_body<B>(
    head: &request::Parts,
    body: B,
    settings: &HttpSettings,
) -> Result<Bytes, Answer>
where
    B: Body<Data = Bytes> + Send,
{
    let max = settings.body_max;
    // Who asks before writing is told before writing.
    let is_asking = head.headers.contains_key(header::EXPECT);
    let is_over = body.size_hint().lower() > max as u64;
    let read = if is_asking && is_over {
        Err(ReadError::TooLarge { max })
    } else {
        body::read(body, max, settings.read_patience).await
    };
    read.map_err(|error| match error {
        ReadError::TooLarge { max } => {
            let text = format!("the body is larger than the limit of {max} bytes; see `bodyMax`");
            close(answer::refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                None,
                INVALID_REQUEST,
                &text,
            ))
        }
        ReadError::Stalled | ReadError::Broken => {
            let text = error.to_string();
            close(answer::refuse(
                StatusCode::BAD_REQUEST,
                None,
                INVALID_REQUEST,
                &text,
            ))
        }
    })
}

/// Says that the connection ends here: what is left of the request's body is in its way.
fn close(mut answer: Answer) -> Answer {
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn bad_request(id: Option<&[u8]>, message: &str) -> Answer {
    answer::refuse(StatusCode::BAD_REQUEST, id, INVALID_REQUEST, message)
}

/// One request on an endpoint of the protocol, past place and credentials.
struct Call<'a, G> {
    desk: &'a Desk<G>,
    head: &'a request::Parts,
    principal: Principal,
    endpoint: Endpoint,
    settings: &'a HttpSettings,
}

impl<G: Gate> Call<'_, G> {
    async fn post<B>(&self, body: B) -> Answer
    where
        B: Body<Data = Bytes> + Send,
    {
        if !guard::is_json(&self.head.headers) {
            let text = "the body must be announced as Content-Type: application/json";
            return close(answer::refuse(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                None,
                INVALID_REQUEST,
                text,
            ));
        }
        let Some(accept) = guard::accept_post(&self.head.headers) else {
            let text = "Accept must allow application/json and text/event-stream";
            return close(answer::refuse(
                StatusCode::NOT_ACCEPTABLE,
                None,
                INVALID_REQUEST,
                text,
            ));
        };
        let body = match read_body(self.head, body, self.settings).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let message = match Message::parse(body) {
            Ok(message) => message,
            Err(error) => return self.refuse_unreadable(&error),
        };
        if message.kind() == Kind::Request && message.method().as_deref() == Some("initialize") {
            return self.initialize(message, accept).await;
        }
        let id = message.id();
        let session = match self.session(id.as_deref()) {
            Ok(session) => session,
            Err(answer) => return answer,
        };
        let parts = session.post(message, accept);
        self.first(parts, id, None).await
    }

    /// A new session, whatever session id the request may carry: some clients send a stale one.
    async fn initialize(&self, message: Message, accept: Accept) -> Answer {
        let id = message.id();
        let opened = self
            .desk
            .gate
            .open(&self.principal, self.endpoint.clone(), Downstream::Http);
        let session = match opened {
            Ok(session) => session,
            Err(error) => return refuse_open(error, id.as_deref()),
        };
        let parts = session.post(message, accept);
        self.first(parts, id, HeaderValue::from_str(session.id()).ok())
            .await
    }

    async fn get(&self) -> Answer {
        if !guard::accepts_stream(&self.head.headers) {
            let text = "Accept must allow text/event-stream";
            return answer::refuse(StatusCode::NOT_ACCEPTABLE, None, INVALID_REQUEST, text);
        }
        let session = match self.session(None) {
            Ok(session) => session,
            Err(answer) => return answer,
        };
        let cursor = match self
            .head
            .headers
            .get(&CURSOR_HEADER)
            .map(HeaderValue::to_str)
        {
            None => None,
            // An empty one says that no event has been seen.
            Some(Ok("")) => None,
            Some(Ok(text)) => Some(Box::from(text)),
            Some(Err(_)) => {
                return bad_request(None, "Last-Event-ID is not a cursor of this session");
            }
        };
        let mut parts = session.listen(cursor);
        match parts.next().await {
            Some(Part::Begin) => {
                let manners = StreamManners {
                    heartbeat: self.settings.heartbeat,
                    stopping: Some(self.desk.stopping.clone()),
                };
                answer::stream(EventBody::new(parts, manners))
            }
            Some(Part::Refuse { status, body }) => refused(status, body),
            Some(Part::Accepted | Part::Json(_) | Part::Event { .. } | Part::End) | None => {
                session_not_found(None)
            }
        }
    }

    fn delete(&self) -> Answer {
        match self.session(None) {
            Ok(session) => {
                session.close();
                answer::bare(StatusCode::NO_CONTENT)
            }
            Err(answer) => answer,
        }
    }

    /// The session of a request that needs one, with its version header checked.
    ///
    /// A revision that we know but that was not negotiated is let pass: it is supported, which is
    /// all that 2025-11-25 basic/transports asks for, and some clients send the one that they asked
    /// for instead of the one that they got.
    fn session(&self, id: Option<&[u8]>) -> Result<Arc<G::Session>, Answer> {
        let Some(value) = self.head.headers.get(&SESSION_HEADER) else {
            let text = "the Mcp-Session-Id header is missing: send `initialize` first, then the id \
                        of its answer with every request";
            return Err(bad_request(id, text));
        };
        let is_single = self.head.headers.get_all(&SESSION_HEADER).iter().count() == 1;
        let session = value
            .to_str()
            .ok()
            .filter(|_| is_single)
            .and_then(|value| self.desk.gate.find(value, &self.principal, &self.endpoint))
            .ok_or_else(|| session_not_found(id))?;
        if self.head.headers.contains_key(&VERSION_HEADER) {
            let version = guard::single(&self.head.headers, &VERSION_HEADER);
            if version
                .and_then(|version| Version::parse(version.trim()))
                .is_none()
            {
                let known = Version::ALL.map(Version::as_str).join(", ");
                let text =
                    format!("MCP-Protocol-Version names no supported revision; they are {known}");
                return Err(bad_request(id, &text));
            }
        }
        Ok(session)
    }

    /// A body that is no message: 400, with what is wrong with it.
    fn refuse_unreadable(&self, error: &ParseError) -> Answer {
        let text = match error.kind {
            ParseErrorKind::Batch { .. } if self.is_batch_era() => {
                "batches are not supported by this gateway, though 2025-03-26 has them: send each \
                 message in a POST of its own; nothing of this one was run"
                    .to_owned()
            }
            ParseErrorKind::Batch { .. } => {
                "batches are not supported: a body is one message; nothing was run".to_owned()
            }
            kind => kind.to_string(),
        };
        answer::refuse(
            StatusCode::BAD_REQUEST,
            error.id.as_deref(),
            error.code(),
            &text,
        )
    }

    fn is_batch_era(&self) -> bool {
        self.session(None)
            .is_ok_and(|session| session.version() == Some(Version::V2025_03_26))
    }

    /// Answers with the first part, and with the rest if it begins a stream. A session that the
    /// message opened is named, unless it is known that it failed.
    async fn first(
        &self,
        mut parts: <G::Session as Session>::Parts,
        id: Option<Bytes>,
        opened: Option<HeaderValue>,
    ) -> Answer {
        match parts.next().await {
            Some(Part::Accepted) => answer::bare(StatusCode::ACCEPTED),
            Some(Part::Json(pieces)) => {
                // A failed `initialize` has opened no session.
                let opened = opened.filter(|_| is_result(&pieces));
                named(answer::json(StatusCode::OK, pieces), opened)
            }
            Some(Part::Begin) => {
                let manners = StreamManners {
                    heartbeat: self.settings.heartbeat,
                    stopping: None,
                };
                named(answer::stream(EventBody::new(parts, manners)), opened)
            }
            Some(Part::Refuse { status, body }) => refused(status, body),
            Some(Part::Event { .. } | Part::End) | None => match id {
                Some(id) => answer::json(
                    StatusCode::OK,
                    Fault::new(FaultKind::SessionEnded).response(&id),
                ),
                None => answer::bare(StatusCode::ACCEPTED),
            },
        }
    }
}

fn named(mut answer: Answer, session: Option<HeaderValue>) -> Answer {
    if let Some(session) = session {
        answer.headers_mut().insert(SESSION_HEADER, session);
    }
    answer
}

fn is_result(pieces: &springline_proto::json::Pieces) -> bool {
    Message::parse(pieces.to_bytes()).is_ok_and(|message| message.kind() == Kind::Result)
}

fn refused(status: u16, body: Bytes) -> Answer {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    answer::json(status, AnswerBody::from(body))
}

/// One body for a session that is unknown, ended, another principal's or another endpoint's.
fn session_not_found(id: Option<&[u8]>) -> Answer {
    answer::refuse(
        StatusCode::NOT_FOUND,
        id,
        SESSION_NOT_FOUND,
        "Session not found",
    )
}

fn refuse_open(error: OpenError, id: Option<&[u8]>) -> Answer {
    let kind = match error {
        OpenError::UnknownServer => {
            let text = error.to_string();
            return answer::refuse(StatusCode::NOT_FOUND, id, INVALID_REQUEST, &text);
        }
        OpenError::TooManySessions => FaultKind::TooManyPending,
        OpenError::Stopping => FaultKind::ShuttingDown,
    };
    let fault = Fault::new(kind).because(error.to_string());
    answer::json(StatusCode::OK, fault.response(id.unwrap_or(b"null")))
}
