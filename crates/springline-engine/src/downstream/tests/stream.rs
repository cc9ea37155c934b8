//! Event streams: their bytes, their heartbeat, their end.

use std::time::Duration;

use springline_proto::session::Part;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::script::{House, PATIENCE, event, request, until};
use crate::downstream::HttpSettings;

const V: &str = "2025-11-25";

async fn read_until(stream: &mut TcpStream, seen: &mut Vec<u8>, text: &str) {
    while !String::from_utf8_lossy(seen).contains(text) {
        let read = timeout(PATIENCE, stream.read_buf(seen))
            .await
            .expect("nothing came")
            .unwrap();
        assert_ne!(read, 0, "closed after {}", String::from_utf8_lossy(seen));
    }
}

async fn listen(house: &House, session: &str, more: &[&str]) -> (TcpStream, Vec<u8>) {
    let mut head = vec![session, "Accept: text/event-stream"];
    head.extend_from_slice(more);
    let mut stream = house.dial().await;
    stream
        .write_all(&request("GET /mcp", &head, ""))
        .await
        .unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, "\r\n\r\n").await;
    (stream, seen)
}

#[tokio::test]
async fn a_streamed_answer_has_the_headers_and_the_bytes_of_events() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let reply = house
        .post(&[&session], r#"{"jsonrpc":"2.0","id":7,"method":"stream"}"#)
        .await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    assert_eq!(
        reply.body,
        "id: c.0\nretry: 1000\ndata: \n\n\
         id: c.1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{   \"a\": 1  }}\n\n"
    );
}

#[tokio::test]
async fn the_head_of_a_get_stream_comes_before_any_event() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let (mut stream, mut seen) = listen(&house, &session, &["Last-Event-ID: c.9"]).await;
    assert!(seen.starts_with(b"HTTP/1.1 200"));
    let script = house.script.session("s-1");
    assert!(
        script
            .heard
            .lock()
            .contains(&"listen Some(\"c.9\")".to_owned())
    );
    script
        .to_stream
        .send(event(None, "{\"n\":1}"))
        .await
        .unwrap();
    read_until(
        &mut stream,
        &mut seen,
        "event: message\ndata: {\"n\":1}\n\n",
    )
    .await;
    script.to_stream.send(Part::End).await.unwrap();
    read_until(&mut stream, &mut seen, "0\r\n\r\n").await;
}

#[tokio::test]
async fn a_cursor_that_the_session_refuses_is_400() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let reply = house
        .ask("GET /mcp", &[&session, "Last-Event-ID: forged"], "")
        .await;
    reply.refusal(400, -32600, None);
}

#[tokio::test]
async fn silent_streams_carry_a_heartbeat() {
    let settings = HttpSettings {
        heartbeat: Duration::from_millis(20),
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let (mut stream, mut seen) = listen(&house, &session, &[]).await;
    read_until(&mut stream, &mut seen, "\r\n: keep-alive\n\n\r\n").await;
    let head = [session.as_str(), "Content-Type: application/json"];
    let mut post = house.dial().await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"wait"}"#;
    post.write_all(&request("POST /mcp", &head, body))
        .await
        .unwrap();
    let mut seen = Vec::new();
    read_until(&mut post, &mut seen, ": keep-alive\n\n").await;
}

#[tokio::test]
async fn a_large_event_arrives_whole() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let (mut stream, mut seen) = listen(&house, &session, &[]).await;
    let text = format!("\"{}\"", "é".repeat(300_000));
    let script = house.script.session("s-1");
    script
        .to_stream
        .send(event(Some("c.1"), &text))
        .await
        .unwrap();
    script.to_stream.send(Part::End).await.unwrap();
    timeout(PATIENCE, stream.read_to_end(&mut seen))
        .await
        .unwrap()
        .unwrap();
    let reply = super::script::Reply::parse(&seen);
    assert!(reply.body == format!("id: c.1\nevent: message\ndata: {text}\n\n"));
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off() {
    let settings = HttpSettings {
        write_patience: Duration::from_millis(50),
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let script = house.script.session("s-1");
    let before = *script.gone.borrow();
    let head = [session.as_str(), "Content-Type: application/json"];
    let mut stream = house.dial().await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"flood"}"#;
    stream
        .write_all(&request("POST /mcp", &head, body))
        .await
        .unwrap();
    until(&script.gone, |gone| *gone > before).await;
    drop(stream);
}

#[tokio::test]
async fn at_the_cap_idle_connections_give_way_and_streams_do_not() {
    let house = House::open(HttpSettings {
        connections_max: 2,
        ..HttpSettings::default()
    })
    .await;
    let session = house.session(&[], V).await;
    let mut flood = Vec::new();
    for _ in 0..50 {
        let mut half = house.dial().await;
        half.write_all(b"POST /mcp HTTP/1.1\r\nHost: ")
            .await
            .unwrap();
        flood.push(half);
    }
    let (first, _) = listen(&house, &session, &[]).await;
    let other = house.session(&[], V).await;
    let (_second, _) = listen(&house, &other, &[]).await;
    for mut half in flood {
        let mut seen = Vec::new();
        // Closed with what it had sent unread: it may see that as a reset.
        drop(
            timeout(PATIENCE, half.read_to_end(&mut seen))
                .await
                .unwrap(),
        );
        assert_eq!(seen, b"");
    }
    let reply = house.ask("GET /healthz", &[], "").await;
    let text = reply.refusal(503, -32600, None);
    assert!(text.contains("connectionsMax"), "{text}");
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(house.server.connections(), 2);
    drop(first);
    while house.ask("GET /healthz", &[], "").await.status != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stop_ends_get_streams_at_once_and_cuts_what_never_ends() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let (mut stream, mut seen) = listen(&house, &session, &[]).await;
    house.server.stop(PATIENCE).await;
    assert_eq!(house.server.connections(), 0);
    timeout(PATIENCE, stream.read_to_end(&mut seen))
        .await
        .unwrap()
        .unwrap();
    assert!(seen.ends_with(b"0\r\n\r\n"), "the stream is complete");
    assert!(TcpStream::connect(house.address).await.is_err());

    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let script = house.script.session("s-1");
    let before = *script.gone.borrow();
    let head = [session.as_str(), "Content-Type: application/json"];
    let mut stream = house.dial().await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"wait"}"#;
    stream
        .write_all(&request("POST /mcp", &head, body))
        .await
        .unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, "\r\n\r\n").await;
    house.server.stop(Duration::from_millis(20)).await;
    until(&script.gone, |gone| *gone > before).await;
}
