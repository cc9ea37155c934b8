//! One HTTP exchange: accounted, checked against the script, answered.
//!
//! Owns the order of these steps. Must not know what a tool does.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http_body_util::BodyExt;
use hyper::{Request, Response};

use super::body::{self, Body};
use super::server::Context;
use super::{auth, control};
use crate::account::Seen;
use crate::fault::{Action, Answers, Reply, Settings};
use crate::rpc::{self, Incoming};
use crate::session::{Entry, Outbox, Session, Stream};
use crate::world::{self, Call};

const COOKIE: &str = "fixture=sticky";

/// One request with all that is known about it.
struct Exchange {
    context: Arc<Context>,
    settings: Settings,
    http: String,
    target: String,
    headers: BTreeMap<String, String>,
    message: Option<Incoming>,
    body: Bytes,
    /// Place in the log.
    number: usize,
}

type Answer = io::Result<Response<Body>>;

/// Answers one request; an error drops the connection without an answer.
pub(super) async fn handle(
    context: Arc<Context>,
    request: Request<hyper::body::Incoming>,
) -> Answer {
    let (parts, incoming) = request.into_parts();
    let body = incoming
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    if parts.uri.path() == control::PATH {
        return control::handle(&context, &parts.method, &body).await;
    }
    if context.control_only {
        return response(404, "text/plain", body::whole("control only"));
    }
    let exchange = Exchange::record(context, &parts, &body);
    let mut answer = exchange.answer().await?;
    let status = answer.status().as_u16();
    let number = exchange.number;
    exchange.context.world.account.update(|log| {
        // The log may have been reset meanwhile.
        if let Some(seen) = log.seen.get_mut(number) {
            seen.status = Some(status);
        }
    });
    for (name, value) in &exchange.settings.headers {
        let name = http::HeaderName::try_from(name).map_err(io::Error::other)?;
        let value = http::HeaderValue::try_from(value).map_err(io::Error::other)?;
        answer.headers_mut().insert(name, value);
    }
    if exchange.settings.announce_close {
        answer
            .headers_mut()
            .insert("connection", http::HeaderValue::from_static("close"));
    }
    if exchange.settings.silent_close {
        let ended = Arc::clone(&exchange.context.ended);
        answer = answer.map(|inner| body::watched(inner, ended));
    }
    Ok(answer)
}

fn response(status: u16, media: &str, body: Body) -> Answer {
    Response::builder()
        .status(status)
        .header("content-type", media)
        .body(body)
        .map_err(io::Error::other)
}

fn bare(status: u16) -> Answer {
    Response::builder()
        .status(status)
        .body(body::whole(""))
        .map_err(io::Error::other)
}

impl Exchange {
    fn record(context: Arc<Context>, parts: &Parts, body: &Bytes) -> Self {
        let headers: BTreeMap<String, String> = parts
            .headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.as_str().to_owned(), value)
            })
            .collect();
        let http = parts.method.as_str().to_owned();
        let message = (http == "POST")
            .then(|| Incoming::parse(body).ok())
            .flatten();
        let method = message.as_ref().map(|message| {
            let method = message.method.clone();
            method.unwrap_or_else(|| "response".to_owned())
        });
        let session = headers.get("mcp-session-id").cloned();
        let initialised = session
            .as_deref()
            .and_then(|id| context.world.session(id))
            .map(|session| session.initialised());
        let settings = context.world.faults.settings();
        let seen = Seen {
            connection: context.connection,
            http: http.clone(),
            target: parts.uri.to_string(),
            id: message.as_ref().and_then(Incoming::id_text),
            protocol: headers.get("mcp-protocol-version").cloned(),
            body: String::from_utf8_lossy(body).into_owned(),
            method,
            session,
            headers: headers.clone(),
            initialised,
            ..Seen::default()
        };
        let number = enter(&context, seen, settings.sessions);
        Self {
            settings,
            http,
            target: parts.uri.to_string(),
            headers,
            message,
            body: body.clone(),
            number,
            context,
        }
    }

    fn style(&self) -> body::Style {
        body::Style {
            retry_ms: self.settings.retry_ms,
            crlf: self.settings.crlf,
            pieces: self.settings.pieces,
        }
    }

    fn method(&self) -> Option<&str> {
        let message = self.message.as_ref()?;
        Some(message.method.as_deref().unwrap_or("response"))
    }

    async fn answer(&self) -> Answer {
        let world = &self.context.world;
        if self.settings.local_only && !self.local() {
            return response(403, "text/plain", body::whole("foreign host or origin"));
        }
        let mut action = world.faults.take(&self.http, self.method());
        while let Some(Action::HoldBefore { gate }) = &action {
            world.gates.pass(gate).await;
            action = world.faults.take(&self.http, self.method());
        }
        match &action {
            Some(Action::Reply(reply)) => return self.reply(reply),
            Some(Action::CutBefore) => return Err(body::cut()),
            _ => {}
        }
        if let Some(refusal) = auth::check(&self.settings, &self.headers, &self.http, &self.target)
        {
            return self.reply(&refusal);
        }
        let cookie = self.headers.get("cookie");
        if self.settings.cookie
            && self.method() != Some("initialize")
            && !cookie.is_some_and(|sent| sent.contains(COOKIE))
        {
            return self.reply(&Reply::error(400, -32000, "Bad Request: cookie is missing"));
        }
        match self.http.as_str() {
            "POST" => self.post(action).await,
            "GET" if self.settings.get => self.get(action.as_ref()),
            "DELETE" if self.settings.delete => self.delete(action.as_ref()),
            _ => self.reply(&Reply::status(405).header("allow", "POST")),
        }
    }

    /// Whether `Host` and `Origin` name this machine.
    fn local(&self) -> bool {
        let local = |authority: &str| {
            ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| {
                authority
                    .strip_prefix(name)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            })
        };
        let origin = self.headers.get("origin").map(|origin| {
            let rest = origin.strip_prefix("http://");
            rest.or_else(|| origin.strip_prefix("https://"))
                .unwrap_or_default()
        });
        self.headers.get("host").is_some_and(|host| local(host)) && origin.is_none_or(local)
    }

    fn reply(&self, reply: &Reply) -> Answer {
        let id = self.message.as_ref().and_then(Incoming::id_text);
        let body = match id {
            Some(id) => reply.body.replace("$ID", &id),
            None => reply
                .body
                .replace(r#""id":$ID,"#, "")
                .replace("$ID", "null"),
        };
        let mut builder = Response::builder().status(reply.status);
        for (name, value) in &reply.headers {
            builder = builder.header(name, value);
        }
        builder.body(body::whole(body)).map_err(io::Error::other)
    }

    /// The session that the request names, or the refusal.
    fn session(&self) -> Result<Arc<Session>, Box<Answer>> {
        if !self.settings.sessions {
            let world = &self.context.world;
            return Ok(world.session("").unwrap_or_else(|| {
                let session = Arc::new(Session::over_http(String::new()));
                world.adopt(Arc::clone(&session));
                session
            }));
        }
        let Some(id) = self.headers.get("mcp-session-id") else {
            let text = "Bad Request: No valid session ID provided";
            return Err(Box::new(self.reply(&Reply::error(400, -32000, text))));
        };
        self.context.world.session(id).ok_or_else(|| {
            let gone = &self.settings.gone;
            Box::new(if gone.bare {
                self.reply(&Reply::status(gone.status))
            } else {
                self.reply(&Reply::error(gone.status, gone.code, &gone.message))
            })
        })
    }

    fn get(&self, action: Option<&Action>) -> Answer {
        let session = match self.session() {
            Ok(session) => session,
            Err(refusal) => return *refusal,
        };
        let primed = matches!(
            self.settings.answers,
            Answers::Primed | Answers::Polling | Answers::Torn
        );
        let (stream, at) = match self.headers.get("last-event-id") {
            None => {
                let Some(stream) = session.find_stream(0) else {
                    return self.reply(&Reply::status(405));
                };
                if primed {
                    stream.push(Entry::Priming);
                }
                let at = stream.delivered();
                (stream, at)
            }
            Some(cursor) => {
                let found = cursor.split_once('-').and_then(|(number, at)| {
                    let stream = session.find_stream(number.parse().ok()?)?;
                    Some((stream, at.parse::<usize>().ok()? + 1))
                });
                match found {
                    Some(found) => found,
                    None => return self.reply(&Reply::error(400, -32000, "Unknown event id")),
                }
            }
        };
        if matches!(action, Some(Action::CutAfter)) {
            return Err(body::cut());
        }
        let media = match action {
            Some(Action::MediaType { value }) => value.as_str(),
            _ => "text/event-stream",
        };
        let events = body::events(stream, at, self.style());
        response(200, media, events)
    }

    fn delete(&self, action: Option<&Action>) -> Answer {
        let session = match self.session() {
            Ok(session) => session,
            Err(refusal) => return *refusal,
        };
        self.context.world.end(&session.id);
        match action {
            Some(Action::CutAfter) => Err(body::cut()),
            Some(Action::ReplyAfter(reply)) => self.reply(reply),
            _ => bare(200),
        }
    }

    async fn post(&self, action: Option<Action>) -> Answer {
        let Some(message) = &self.message else {
            let reply = Reply::error(400, -32700, "Parse error");
            return self.reply(&reply);
        };
        let initialize = self.method() == Some("initialize");
        let session = if initialize && self.settings.sessions {
            self.context.world.mint()
        } else {
            match self.session() {
                Ok(session) => session,
                Err(refusal) => return *refusal,
            }
        };
        if message.method.is_none() || message.id.is_none() {
            world::accept(&self.context.world, &session, message);
            return self.accepted(action).await;
        }
        let mut answer = self.request(&session, action).await?;
        if initialize && self.settings.sessions {
            let id = http::HeaderValue::from_str(&session.id).map_err(io::Error::other)?;
            answer.headers_mut().insert("mcp-session-id", id);
        }
        if initialize && self.settings.cookie {
            let cookie = http::HeaderValue::from_static("fixture=sticky; Path=/; HttpOnly");
            answer.headers_mut().insert("set-cookie", cookie);
        }
        Ok(answer)
    }

    async fn accepted(&self, action: Option<Action>) -> Answer {
        match action {
            Some(Action::CutAfter) => Err(body::cut()),
            Some(Action::AcceptedBody { body }) => {
                response(202, "application/json", body::whole(body))
            }
            Some(Action::ReplyAfter(reply)) => self.reply(&reply),
            Some(Action::HoldAfter { gate }) => {
                self.context.world.gates.pass(&gate).await;
                bare(202)
            }
            _ => bare(202),
        }
    }

    /// Runs a request and answers it in the form that is due.
    async fn request(&self, session: &Arc<Session>, action: Option<Action>) -> Answer {
        let Ok(request) = Incoming::parse(&self.body) else {
            return self.reply(&Reply::error(400, -32700, "Parse error"));
        };
        let form = match (&action, self.method()) {
            (Some(Action::Answer { form }), _) => *form,
            // An `initialize` is never resumed.
            (_, Some("initialize")) if self.settings.answers != Answers::Auto => Answers::Sse,
            _ => self.settings.answers,
        };
        let stream = session.stream();
        if matches!(form, Answers::Primed | Answers::Polling | Answers::Torn) {
            stream.push(Entry::Priming);
        }
        match form {
            Answers::Polling => stream.push(Entry::Close),
            Answers::Torn => stream.push(Entry::Cut),
            _ => {}
        }
        // On its own task: a client that goes away does not stop the work.
        tokio::spawn(world::serve(Call {
            world: Arc::clone(&self.context.world),
            session: Arc::clone(session),
            request,
            headers: self.headers.clone(),
            outbox: Outbox::Stream(Arc::clone(&stream)),
        }));
        match action {
            None | Some(Action::Answer { .. }) => self.plain(form, stream).await,
            Some(action) => self.spoiled(form, &stream, action).await,
        }
    }

    async fn plain(&self, form: Answers, stream: Arc<Stream>) -> Answer {
        if form == Answers::Auto {
            match stream.next(0).await {
                Some(Entry::Message(text)) if is_response(&text) => {
                    return self.json(&text, "application/json");
                }
                Some(Entry::Cut) => return Err(body::cut()),
                _ => {}
            }
        }
        let events = body::events(stream, 0, self.style());
        response(200, "text/event-stream", events)
    }

    /// Executes, then spoils the answer.
    async fn spoiled(&self, form: Answers, stream: &Arc<Stream>, action: Action) -> Answer {
        let text = stream.last().await.unwrap_or_default();
        match action {
            Action::CutAfter => Err(body::cut()),
            Action::CutBody if form == Answers::Auto => {
                response(200, "application/json", body::broken(&text))
            }
            Action::CutBody => {
                let events = body::broken(&body::event(None, &text));
                response(200, "text/event-stream", events)
            }
            Action::EmptyBody => response(200, "application/json", body::whole("")),
            Action::Malformed => {
                let half = text.get(..text.len() / 2).unwrap_or("{").to_owned();
                response(200, "application/json", body::whole(half))
            }
            Action::MediaType { value } => self.json(&text, &value),
            Action::WrongId => {
                let id = self.message.as_ref().and_then(Incoming::id_text);
                let asked = format!(r#""id":{}"#, id.unwrap_or_default());
                let wrong = text.replacen(&asked, r#""id":"nobody-asked""#, 1);
                self.json(&wrong, "application/json")
            }
            Action::ReplyAfter(reply) => self.reply(&reply),
            Action::HoldAfter { gate } => {
                self.context.world.gates.pass(&gate).await;
                self.plain(form, Arc::clone(stream)).await
            }
            _ => self.plain(form, Arc::clone(stream)).await,
        }
    }

    fn json(&self, text: &str, media: &str) -> Answer {
        if self.settings.gzip {
            let mut answer = response(200, media, body::whole(body::gzip(text.as_bytes())?))?;
            let gzip = http::HeaderValue::from_static("gzip");
            answer.headers_mut().insert("content-encoding", gzip);
            return Ok(answer);
        }
        response(200, media, body::whole(text.to_owned()))
    }
}

fn is_response(text: &str) -> bool {
    rpc::member(text, "method").is_none()
}

/// Enters a request into the log and its counters; gives its place.
fn enter(context: &Context, mut seen: Seen, sessions: bool) -> usize {
    let method = seen.method.clone().unwrap_or_default();
    let handshake = matches!(
        method.as_str(),
        "initialize" | "notifications/initialized" | "ping"
    );
    context.world.account.event(
        "request",
        &serde_json::json!({
            "http": seen.http, "method": seen.method, "id": seen.id, "session": seen.session,
        }),
    );
    context.world.account.update(|log| {
        if method == "initialize" {
            log.initializes += 1;
            log.initializes_with_session += u64::from(seen.session.is_some());
        } else if sessions && seen.session.is_none() && !log.minted.is_empty() {
            log.without_session += 1;
        }
        log.deletes += u64::from(seen.http == "DELETE");
        let enters = seen.http != "DELETE" && !handshake;
        log.uninitialised += u64::from(enters && seen.initialised == Some(false));
        seen.number = log.seen.len();
        log.seen.push(seen);
        log.seen.len() - 1
    })
}
