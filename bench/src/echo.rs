//! A server as fast as is simple: it keeps sessions and answers each call with its own arguments,
//! or with as much text as the call asks for.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpListener;

#[derive(Default)]
struct World {
    next: AtomicU64,
    sessions: Mutex<HashSet<String>>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Wanted {
    bytes: Option<usize>,
}

/// Serves until it is killed.
pub(crate) async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    crate::report::line(&format!("http://{}/mcp", listener.local_addr()?));
    let world = Arc::new(World::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&world), request));
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            // The other side closed in the middle of something: its own business.
            drop(served);
        });
    }
}

async fn answer(
    world: Arc<World>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.method() != Method::POST {
        let ended = request.method() == Method::DELETE;
        let status = if ended {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::METHOD_NOT_ALLOWED
        };
        return Ok(empty(status));
    }
    let session = request.headers().get("mcp-session-id").cloned();
    let Ok(body) = request.into_body().collect().await else {
        return Ok(empty(StatusCode::BAD_REQUEST));
    };
    let body = body.to_bytes();
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(&body) else {
        return Ok(empty(StatusCode::BAD_REQUEST));
    };
    let Some(id) = envelope.id else {
        return Ok(empty(StatusCode::ACCEPTED));
    };
    if envelope.method == Some("initialize") {
        return Ok(initialize(&world, id));
    }
    let known = session
        .as_ref()
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| {
            world
                .sessions
                .lock()
                .is_ok_and(|sessions| sessions.contains(value))
        });
    if !known {
        return Ok(empty(StatusCode::NOT_FOUND));
    }
    let arguments = envelope.params.and_then(|params| params.arguments);
    let arguments = arguments.map_or("{}", RawValue::get);
    let wanted = serde_json::from_str::<Wanted>(arguments)
        .ok()
        .and_then(|wanted| wanted.bytes);
    let text = wanted.map(|bytes| format!("\"{}\"", "x".repeat(bytes)));
    let text = text.as_deref().unwrap_or("\"ok\"");
    Ok(json(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":{text}}}],"structuredContent":{arguments}}}}}"#
    )))
}

fn initialize(world: &World, id: &RawValue) -> Response<Full<Bytes>> {
    let number = world.next.fetch_add(1, Ordering::Relaxed);
    let mut session = String::new();
    // Writing to a String cannot fail. A benchmark needs no secret here.
    write!(session, "bench-{number:016x}").unwrap_or_default();
    let mut answer = json(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"result":{{"protocolVersion":"2025-11-25","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"echo","version":"1"}}}}}}"#
    ));
    if let Ok(value) = HeaderValue::from_str(&session) {
        answer.headers_mut().insert("mcp-session-id", value);
    }
    if let Ok(mut sessions) = world.sessions.lock() {
        sessions.insert(session);
    }
    answer
}

fn json(body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    answer
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}
