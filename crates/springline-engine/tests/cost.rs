//! What a call and an idle session cost in memory: numbers that do not depend on the machine's mood.
//!
//! A counting allocator counts for the thread of the test alone. On that thread runs all of the
//! gateway that a call passes: parsing, both machines, the exchange with the server, the answer. The
//! server has a thread of its own.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test prints what it measures, has threads, and fails by panic"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::SystemTime;

use springline_engine::config::{self, Overrides, ProcessEnvironment, Sources};
use springline_engine::downstream::{HttpServer, HttpSettings, Principal};
use springline_engine::gateway::{Gateway, Rest, SessionHandle};
use springline_engine::upstream::http::{HttpShared, ProxyEnv};
use springline_proto::message::Message;
use springline_proto::session::{Accept, Downstream, Endpoint, Part};

/// Allocations of one call, from its bytes to the bytes of its answer. nginx needs none, hyper on
/// both sides alone more than this.
const CALL_ALLOCATIONS_MAX: f64 = 13.5;

/// The same on a kept connection, from what the socket gives to what it takes: head, checks, body
/// and answer included.
const CONNECTION_ALLOCATIONS_MAX: f64 = 12.5;

/// The largest of them in bytes: the head of the request with its body, and not much smaller the future
/// of the exchange with the server. Each call under way holds its own, and each line of them is cold.
const CALL_LARGEST_MAX: usize = 640;

/// Bytes that an open session keeps while nothing happens in it, its events and records in memory
/// included.
const SESSION_BYTES_MAX: f64 = 2.7 * 1024.0;

/// Bytes that a kept connection holds between two calls: its task with the future that serves it, and
/// what the runtime keeps of its socket.
const CONNECTION_BYTES_MAX: f64 = 3.0 * 1024.0;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn note(count: u64, bytes: i64, size: usize) {
    // The thread may be on its way out, and then nothing is counted.
    if COUNT.try_with(|held| held.set(held.get() + count)).is_ok() {
        BYTES.with(|held| held.set(held.get() + bytes));
        LARGEST.with(|held| held.set(held.get().max(size)));
    }
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; it passes all on"
)]
// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, signed(layout.size()), layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(signed(layout.size())), 0);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, signed(size) - signed(layout.size()), size);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An echo server with a thread for each connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body)?;
        let message = Message::parse(body).ok();
        let id = message.as_ref().and_then(Message::id);
        let method = message.and_then(|message| message.method().map(String::from));
        let (head, result) = match (method.as_deref(), &id) {
            (Some("initialize"), _) => (
                "mcp-session-id: 0123456789abcdef\r\n",
                r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echo","version":"1"}}"#,
            ),
            (_, Some(_)) => ("", r#"{"content":[{"type":"text","text":"ok"}]}"#),
            (None, None) => {
                stream.write_all(b"HTTP/1.1 405 Not\r\ncontent-length: 0\r\n\r\n")?;
                continue;
            }
            (_, None) => {
                stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")?;
                continue;
            }
        };
        let id = String::from_utf8_lossy(id.as_deref().unwrap_or(b"null")).into_owned();
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{head}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes())?;
    }
}

/// A gateway with its store and journal in front of an echo server.
fn gateway(folder: &std::path::Path) -> Arc<Gateway> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    let file = folder.join("config.json");
    std::fs::write(
        &file,
        format!(r#"{{"mcpServers":{{"echo":{{"url":"{url}"}}}}}}"#),
    )
    .unwrap();
    let sources = Sources::from_files([file]);
    let config = config::load(&sources, &Overrides::default(), &ProcessEnvironment).unwrap();
    let (rest, _) = Rest::open(&folder.join("state")).unwrap();
    let http = HttpShared::new(ProxyEnv::none(), Arc::new(SystemTime::now));
    Gateway::new(&config, Arc::new(http), rest)
}

async fn ask(session: &SessionHandle, text: String) {
    let message = Message::parse(text).unwrap();
    let mut parts = session.post(message, Accept::Both);
    match parts.next().await {
        Some(Part::Json(body)) => {
            let body = body.to_bytes();
            let answer = String::from_utf8_lossy(&body);
            assert!(answer.contains("\"result\""), "{answer}");
        }
        Some(Part::Accepted) => {}
        other => panic!("{other:?}"),
    }
}

async fn open(gateway: &Arc<Gateway>) -> SessionHandle {
    let endpoint = Endpoint::One("echo".into());
    let session = gateway
        .open(&Principal::Anonymous, endpoint, Downstream::Http)
        .unwrap();
    ask(&session, r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"cost","version":"1"}}}"#.to_owned()).await;
    let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    ask(&session, text.to_owned()).await;
    session
}

fn call(id: u32) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{"n":{id}}}}}}}"#
    )
}

#[tokio::test]
async fn a_call_allocates_no_more_than_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let session = open(&gateway).await;
    let texts: Vec<String> = (1..=1100).map(call).collect();
    let mut texts = texts.into_iter();
    for text in texts.by_ref().take(100) {
        ask(&session, text).await;
    }
    let before = COUNT.get();
    LARGEST.set(0);
    for text in texts {
        ask(&session, text).await;
    }
    let each = f64::from(u32::try_from(COUNT.get() - before).unwrap()) / 1000.0;
    let largest = LARGEST.get();
    println!("{each:.1} allocations for each call, the largest of {largest} bytes");
    assert!(each <= CALL_ALLOCATIONS_MAX, "{each}");
    assert!(
        largest <= CALL_LARGEST_MAX,
        "{largest}: box what is rare in the futures of `upstream/http`"
    );
}

/// Sends calls on one connection, each after the answer of the last, from a thread of its own.
async fn send_calls(
    mut stream: TcpStream,
    session: String,
    ids: std::ops::Range<u32>,
) -> TcpStream {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        for id in ids {
            let body = call(id);
            let request = format!(
                "POST /mcp/echo HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, \
                 text/event-stream\r\nContent-Type: application/json\r\nMcp-Session-Id: {session}\r\n\
                 MCP-Protocol-Version: 2025-11-25\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let mut room = [0; 4096];
            while !answer.ends_with(b"}}") {
                let len = stream.read(&mut room).unwrap();
                assert_ne!(len, 0, "{}", String::from_utf8_lossy(&answer));
                answer.extend_from_slice(&room[..len]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
        drop(tell.send(stream));
    });
    told.await.unwrap()
}

#[tokio::test]
async fn a_call_on_a_kept_connection_allocates_no_more_than_it_did() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let session = open(&gateway).await.id().to_owned();
    let server = HttpServer::new(gateway, HttpSettings::default(), None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server.serve_tcp(listener));
    let stream = TcpStream::connect(address).unwrap();
    let stream = send_calls(stream, session.clone(), 1..100).await;
    let before = COUNT.get();
    drop(send_calls(stream, session, 100..1100).await);
    let each = f64::from(u32::try_from(COUNT.get() - before).unwrap()) / 1000.0;
    println!("{each:.1} allocations for each call on a kept connection");
    assert!(each <= CONNECTION_ALLOCATIONS_MAX, "{each}");
}

#[tokio::test]
async fn a_kept_connection_holds_little() {
    const CONNECTIONS: u32 = 200;
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    let session = open(&gateway).await.id().to_owned();
    let server = HttpServer::new(gateway, HttpSettings::default(), None);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(server.serve_tcp(listener));
    let mut kept = Vec::with_capacity(100 + CONNECTIONS as usize);
    // The first fill what the runtime keeps for as many as there will be.
    for id in 1..=100 {
        let stream = TcpStream::connect(address).unwrap();
        kept.push(send_calls(stream, session.clone(), id..id + 1).await);
    }
    let before = BYTES.get();
    for id in 101..=100 + CONNECTIONS {
        let stream = TcpStream::connect(address).unwrap();
        kept.push(send_calls(stream, session.clone(), id..id + 1).await);
    }
    let grown = u32::try_from(BYTES.get() - before).unwrap();
    let each = f64::from(grown) / f64::from(CONNECTIONS);
    println!("{each:.0} bytes for each kept connection");
    assert!(
        each <= CONNECTION_BYTES_MAX,
        "{each}: box what is rare in the futures of `downstream`"
    );
}

#[tokio::test]
async fn an_idle_session_keeps_little() {
    const SESSIONS: u32 = 500;
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path());
    for _ in 0..100 {
        ask(&open(&gateway).await, call(1)).await;
    }
    let before = BYTES.get();
    for _ in 0..SESSIONS {
        ask(&open(&gateway).await, call(1)).await;
    }
    let grown = u32::try_from(BYTES.get() - before).unwrap();
    let each = f64::from(grown) / f64::from(SESSIONS);
    println!("{each:.0} bytes for each idle session");
    assert!(each <= SESSION_BYTES_MAX, "{each}");
}
