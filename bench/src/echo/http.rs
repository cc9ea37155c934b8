//! The echo server on Streamable HTTP: sessions, and answers as JSON or as an event stream.

use std::collections::HashSet;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};

use super::{Reply, reply};

#[derive(Default)]
struct World {
    next: AtomicU64,
    sessions: Mutex<HashSet<String>>,
}

/// Connections that may come at once: as many as a gateway opens for as many sessions.
const BACKLOG: u32 = 4096;

fn listener(address: &str) -> anyhow::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address.parse()?)?;
    Ok(socket.listen(BACKLOG)?)
}

pub(super) async fn run(listen: &str) -> anyhow::Result<()> {
    let listener = listener(listen)?;
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
    let method = request.method().clone();
    if request.uri().path() == "/forget" {
        world.forget();
        return Ok(empty(StatusCode::NO_CONTENT));
    }
    if method == Method::DELETE {
        world.end(request.headers());
        return Ok(empty(StatusCode::NO_CONTENT));
    }
    if method != Method::POST {
        return Ok(empty(StatusCode::METHOD_NOT_ALLOWED));
    }
    let is_known = world.knows(request.headers());
    let Ok(body) = request.into_body().collect().await else {
        return Ok(empty(StatusCode::BAD_REQUEST));
    };
    Ok(match reply(&body.to_bytes()) {
        None => empty(StatusCode::BAD_REQUEST),
        Some(Reply::Initialize(text)) => {
            let mut answer = json(text);
            if let Ok(id) = HeaderValue::from_str(&world.open()) {
                answer.headers_mut().insert("mcp-session-id", id);
            }
            answer
        }
        Some(_) if !is_known => empty(StatusCode::NOT_FOUND),
        Some(Reply::Nothing) => empty(StatusCode::ACCEPTED),
        Some(Reply::Result { text, is_stream }) if is_stream => events(&text),
        Some(Reply::Result { text, .. }) => json(text),
    })
}

impl World {
    fn open(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut session = String::new();
        // Writing to a String cannot fail. A benchmark needs no secret here, but a server that was
        // started again must not know the ids of the one before.
        let process = std::process::id();
        write!(session, "bench-{process:x}-{number:016x}").unwrap_or_default();
        if let Ok(mut sessions) = self.sessions.lock() {
            sessions.insert(session.clone());
        }
        session
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let sessions = self.sessions.lock();
        id_of(headers).is_some_and(|id| sessions.is_ok_and(|sessions| sessions.contains(id)))
    }

    fn end(&self, headers: &HeaderMap) {
        if let (Some(id), Ok(mut sessions)) = (id_of(headers), self.sessions.lock()) {
            sessions.remove(id);
        }
    }

    /// Loses every session, as a restart does.
    fn forget(&self) {
        if let Ok(mut sessions) = self.sessions.lock() {
            sessions.clear();
        }
    }
}

fn id_of(headers: &HeaderMap) -> Option<&str> {
    headers.get("mcp-session-id")?.to_str().ok()
}

fn json(body: String) -> Response<Full<Bytes>> {
    typed(body, "application/json")
}

fn events(message: &str) -> Response<Full<Bytes>> {
    typed(
        format!("event: message\ndata: {message}\n\n"),
        "text/event-stream",
    )
}

fn typed(body: String, kind: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}
