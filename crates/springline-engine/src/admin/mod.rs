//! What operators ask over HTTP: `/api/…` and `/metrics`.
//!
//! Owns: these routes, who may use them, and the shapes of their answers (`docs/cli.md`). It must
//! not know the protocol beyond being a client of the gateway itself for `tools` and `call`.

mod argument;
mod client;
mod feed;
mod metric;
mod reload;
mod tool;
mod view;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;
use springline_proto::json::{self, Span};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock;
use crate::downstream::answer::{self, Answer};
use crate::downstream::guard::{self, Announced};
use crate::downstream::route::{RouteFuture, RouteRequest, Routes};
use crate::downstream::{Principal, socket};
use crate::gateway::Gateway;

pub use self::reload::{ReloadRefused, Reloaded, Reloads};

/// What only the program knows about itself.
#[derive(Clone, Debug)]
pub struct AdminFacts {
    /// The version of the program.
    pub version: &'static str,
    /// The URLs of the listeners.
    pub listen: Vec<String>,
    /// The configuration files that were read.
    pub files: Vec<PathBuf>,
}

/// The routes of operators.
pub struct Admin {
    gateway: Arc<Gateway>,
    facts: AdminFacts,
    started: Instant,
    /// How often a stop was asked for: once is orderly, twice is at once.
    stops: watch::Sender<u32>,
    /// Turns true when feeds of events must end.
    over: watch::Sender<bool>,
    reloads: reload::Desk,
}

impl Admin {
    /// The routes of this gateway.
    pub fn new(gateway: Arc<Gateway>, facts: AdminFacts) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            facts,
            started: clock::now(),
            stops: watch::Sender::new(0),
            over: watch::Sender::new(false),
            reloads: reload::Desk::new(),
        })
    }

    /// How often a stop was asked for; whoever runs the gateway acts on it.
    pub fn stops(&self) -> watch::Receiver<u32> {
        self.stops.subscribe()
    }

    /// The reloads that are asked for; whoever owns the configuration takes them, once.
    pub fn reloads(&self) -> Option<Reloads> {
        self.reloads.take()
    }

    /// Ends the feeds of events, which would otherwise hold up the stop of the server.
    pub fn end_feeds(&self) {
        self.over.send_replace(true);
    }

    async fn respond(&self, request: &RouteRequest) -> Option<Answer> {
        let known = ROUTES.iter().find(|(path, _)| *path == request.path);
        let Some((_, route)) = known else {
            let refusal = || {
                let words = "there is nothing at this path";
                Refusal::new(StatusCode::NOT_FOUND, "not_found", words).into_answer()
            };
            return request.path.starts_with("/api/").then(refusal);
        };
        Some(match Self::admit(*route, request) {
            Err(refusal) => refusal.into_answer(),
            Ok(()) => self
                .perform(*route, request)
                .await
                .unwrap_or_else(Refusal::into_answer),
        })
    }

    /// Who may do what (`docs/cli.md`): the user of the socket and the holders of tokens may do
    /// all. Anybody who reaches a listener without tokens sees the state of the gateway and no
    /// more: a loopback port is open to every user and every web page of the machine.
    fn admit(route: Route, request: &RouteRequest) -> Result<(), Refusal> {
        let is_trusted = match &request.principal {
            Principal::Uid(uid) => *uid == socket::own_uid(),
            Principal::Token(_) => true,
            Principal::Anonymous => false,
        };
        if !is_trusted && !matches!(route, Route::Status | Route::Metrics) {
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "this needs the gateway's socket, or a token of `auth.tokens`",
            ));
        }
        let method = route.method();
        if request.method != method {
            return Err(Refusal::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                format!("only {method} is allowed here"),
            ));
        }
        // A form of a web page cannot send this type without being asked first.
        if method == Method::POST && guard::announced(&request.headers) != Announced::Json {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "send a JSON object in UTF-8 with Content-Type: application/json",
            ));
        }
        Ok(())
    }

    async fn perform(&self, route: Route, request: &RouteRequest) -> Result<Answer, Refusal> {
        Ok(match route {
            Route::Status => {
                let is_full = request.principal != Principal::Anonymous;
                reply(&self.status(is_full))
            }
            Route::Servers => reply(&view::servers(&self.gateway.servers())),
            Route::Sessions => reply(&view::sessions(
                self.gateway.sessions(),
                &self.gateway.resting(),
                self.gateway.at_rest(),
            )),
            Route::Tools => self.tools(request).await?,
            Route::Call => self.call(request).await?,
            Route::Restart => self.restart(&Fields::of(&request.body)?)?,
            Route::Reload => self.reloads.ask().await?,
            Route::Stop => self.stop(&Fields::of(&request.body)?),
            Route::Events => {
                let follow = parameter(request, "follow").is_some_and(|value| value != "0");
                feed::answer(&self.gateway.events(), follow, self.over.subscribe())
            }
            Route::Metrics => {
                let text = metric::render(&self.gateway, self.facts.version, self.started);
                answer::with_body(
                    StatusCode::OK,
                    Some("text/plain; version=0.0.4"),
                    Bytes::from(text).into(),
                )
            }
        })
    }

    fn status(&self, is_full: bool) -> serde_json::Value {
        let (mut servers, sessions) = (self.gateway.servers(), self.gateway.sessions());
        servers.retain(|server| server.is_configured);
        let unavailable = servers.iter().filter(|server| server.unavailable.is_some());
        let mut status = json!({
            "version": self.facts.version,
            "pid": std::process::id(),
            "uptimeMs": view::millis(self.started.elapsed()),
            "stopping": self.gateway.is_stopping(),
            "servers": { "total": servers.len(), "unavailable": unavailable.count() },
            "sessions": {
                "total": sessions.len(),
                "attached": sessions.iter().filter(|session| session.attached).count(),
                "atRest": self.gateway.at_rest(),
            },
            "state": view::state_folder(&self.gateway.unwritable(), is_full),
            "pending": sessions.iter().map(|session| session.pending).sum::<usize>(),
            "redeliveryBytes": self.gateway.redelivery_bytes(),
        });
        if is_full && let Some(object) = status.as_object_mut() {
            let settings = self.gateway.settings();
            object.insert("listen".to_owned(), json!(self.facts.listen));
            object.insert("socket".to_owned(), json!(settings.socket));
            object.insert("stateDir".to_owned(), json!(settings.state_dir));
            object.insert("configFiles".to_owned(), json!(self.facts.files));
        }
        status
    }

    fn restart(&self, fields: &Fields) -> Result<Answer, Refusal> {
        let server = fields.text("server")?;
        let count = self
            .gateway
            .restart(&server)
            .ok_or_else(|| self.unknown_server(&server))?;
        Ok(reply(&json!({ "server": server, "instances": count })))
    }

    fn stop(&self, fields: &Fields) -> Answer {
        let end_sessions = fields
            .raw("endSessions")
            .is_some_and(|raw| &*raw == b"true");
        tracing::info!(end_sessions, "a stop was asked for");
        if end_sessions {
            self.gateway.end_sessions();
        }
        self.stops
            .send_modify(|count| *count = count.saturating_add(1));
        let pending: usize = self
            .gateway
            .sessions()
            .iter()
            .map(|session| session.pending)
            .sum();
        let body = json!({ "pid": std::process::id(), "pending": pending });
        answer::json(StatusCode::ACCEPTED, body.to_string())
    }

    fn unknown_server(&self, name: &str) -> Refusal {
        let known = self.gateway.server_names();
        let known = if known.is_empty() {
            "none is configured".to_owned()
        } else {
            format!("configured are {}", known.join(", "))
        };
        Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown_server",
            format!("there is no server {name:?}; {known}"),
        )
    }
}

impl Routes for Admin {
    fn answer(&self, request: RouteRequest) -> RouteFuture<'_> {
        Box::pin(async move { self.respond(&request).await })
    }

    fn unready(&self) -> Option<String> {
        if self.gateway.is_stopping() {
            return Some("it is stopping".to_owned());
        }
        view::unwritable(&self.gateway.unwritable())
    }
}

/// One of our routes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Route {
    Status,
    Servers,
    Sessions,
    Tools,
    Call,
    Restart,
    Reload,
    Stop,
    Events,
    Metrics,
}

const ROUTES: &[(&str, Route)] = &[
    ("/api/status", Route::Status),
    ("/api/servers", Route::Servers),
    ("/api/sessions", Route::Sessions),
    ("/api/tools", Route::Tools),
    ("/api/call", Route::Call),
    ("/api/restart", Route::Restart),
    ("/api/reload", Route::Reload),
    ("/api/stop", Route::Stop),
    ("/api/events", Route::Events),
    ("/metrics", Route::Metrics),
];

impl Route {
    fn method(self) -> Method {
        match self {
            Self::Call | Self::Restart | Self::Reload | Self::Stop => Method::POST,
            Self::Status
            | Self::Servers
            | Self::Sessions
            | Self::Tools
            | Self::Events
            | Self::Metrics => Method::GET,
        }
    }
}

/// Why a request of an operator is refused.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn into_answer(self) -> Answer {
        let body = json!({ "error": { "code": self.code, "message": self.message } });
        answer::json(self.status, body.to_string())
    }
}

/// The members of a request's JSON object, as raw text.
struct Fields(Bytes);

impl Fields {
    fn of(body: &Bytes) -> Result<Self, Refusal> {
        let text = body.slice_ref(body.trim_ascii());
        if !text.starts_with(b"{") || json::validate(&text).is_err() {
            return Err(Refusal::bad_request("the body is no JSON object"));
        }
        Ok(Self(text))
    }

    fn raw(&self, name: &str) -> Option<Bytes> {
        json::member(&self.0, Span::whole(&self.0), name).map(|span| span.slice(&self.0))
    }

    fn text(&self, name: &str) -> Result<String, Refusal> {
        self.raw(name)
            .and_then(|raw| json::string(&raw).map(std::borrow::Cow::into_owned))
            .ok_or_else(|| Refusal::bad_request(format!("{name:?} must be a string")))
    }
}

/// The value of a parameter of the query. Our values need no decoding: they are names and digits.
fn parameter<'a>(request: &'a RouteRequest, name: &str) -> Option<&'a str> {
    request
        .query
        .as_deref()?
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

fn reply(body: &serde_json::Value) -> Answer {
    raw_reply(body.to_string())
}

fn raw_reply(body: impl Into<answer::AnswerBody>) -> Answer {
    let mut answer = answer::json(StatusCode::OK, body);
    answer
        .headers_mut()
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
