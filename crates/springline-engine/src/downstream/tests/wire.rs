//! Calls that are read in place: byte by byte, and beside hyper.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::timeout;

use super::script::{House, PATIENCE, initialize, until};
use crate::downstream::guard::Arrival;
use crate::downstream::{HttpSettings, Token};

const V: &str = "2025-11-25";
const KIND: &str = "Content-Type: application/json";

/// A request with `Host`, these fields and this body; it does not ask for the connection's end.
fn post(path: &str, fields: &[&str], body: &str) -> String {
    let mut text = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    for field in fields {
        text.push_str(field);
        text.push_str("\r\n");
    }
    write!(text, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    text
}

fn call(id: u32, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{{"n":{id}}}}}"#)
}

/// Everything that comes until the server closes.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut bytes = Vec::new();
    // A reset is an end, too: that of a request that was not read to its own.
    drop(
        timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .expect("it is not closed"),
    );
    String::from_utf8(bytes).unwrap()
}

async fn read_until(stream: &mut (impl AsyncRead + Unpin), seen: &mut Vec<u8>, text: &str) {
    while !String::from_utf8_lossy(seen).contains(text) {
        let read = timeout(PATIENCE, stream.read_buf(seen)).await.unwrap();
        assert_ne!(read.unwrap(), 0, "{}", String::from_utf8_lossy(seen));
    }
}

/// What a house answers to these bytes, and what its last session heard. With an empty line before
/// the first request hyper has the connection from the beginning.
async fn answers(settings: &HttpSettings, bytes: &[u8], by_hyper: bool) -> (String, Vec<String>) {
    let house = House::open(settings.clone()).await;
    house.session(&["Authorization: Bearer one"], V).await;
    let before: &[u8] = if by_hyper { b"\r\n" } else { b"" };
    // The last request asks for the end of the connection.
    let last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let all = [before, bytes, last].concat();
    let (mut read, mut write) = tokio::io::split(served(&house));
    // What is refused may not be read to its end.
    let (_, text) = tokio::join!(write.write_all(&all), rest(&mut read));
    let lines = text.split_inclusive("\r\n");
    let dateless = lines.filter(|line| !line.starts_with("date: ")).collect();
    let heard = house.script.last().heard.lock().clone();
    (dateless, heard)
}

async fn is_the_same(settings: &HttpSettings, bytes: &[u8]) -> (String, Vec<String>) {
    let ours = answers(settings, bytes, false).await;
    let theirs = answers(settings, bytes, true).await;
    let head = &bytes[..bytes.len().min(400)];
    assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(head));
    ours
}

#[tokio::test]
async fn an_answer_is_byte_for_byte_the_one_that_hyper_writes() {
    let settings = HttpSettings {
        cors: true,
        allowed_origins: vec!["https://app.example".into()],
        ..HttpSettings::default()
    };
    let s = "Mcp-Session-Id: s-1";
    for (fields, body, status) in [
        (&[KIND, s][..], call(1, "echo"), "200 OK"),
        (&[KIND, s], call(1, "stream"), "200 OK"),
        (&[KIND, s], call(1, "refuse"), "400 Bad Request"),
        (&[KIND, s], call(1, "nothing"), "200 OK"),
        (
            &[KIND, s],
            r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned(),
            "202 Accepted",
        ),
        (&[KIND], initialize(V), "200 OK"),
        (&[KIND], call(1, "echo"), "400 Bad Request"),
        (
            &[KIND, "mcp-session-id: other"],
            call(1, "echo"),
            "404 Not Found",
        ),
        (
            &[KIND, s, "MCP-Protocol-Version: x"],
            call(1, "echo"),
            "400 Bad Request",
        ),
        (&[KIND, s], "{".to_owned(), "400 Bad Request"),
        (&[KIND, s], String::new(), "400 Bad Request"),
        (
            &[KIND, s, "Origin: https://app.example"],
            call(1, "echo"),
            "200 OK",
        ),
        (
            &[KIND, s, "Origin: https://evil.example"],
            call(1, "echo"),
            "403 Forbidden",
        ),
        (&[KIND, s, "Connection: close"], call(1, "echo"), "200 OK"),
        (&[KIND, s, "Connection: close"], call(1, "stream"), "200 OK"),
        (
            &[KIND, s, "Connection: keep-alive"],
            call(1, "echo"),
            "200 OK",
        ),
        (
            &[s, "Content-Type: text/plain"],
            call(1, "echo"),
            "415 Unsupported Media Type",
        ),
        (
            &[KIND, s, "Accept: text/html"],
            call(1, "echo"),
            "406 Not Acceptable",
        ),
        (
            &[
                KIND,
                s,
                "Accept: application/json",
                "Accept: text/event-stream",
            ],
            call(1, "echo"),
            "200 OK",
        ),
        (&[KIND, s, s], call(1, "echo"), "404 Not Found"),
    ] {
        let bytes = post("/mcp", fields, &body);
        let (text, _) = is_the_same(&settings, bytes.as_bytes()).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{text}"
        );
    }
    let tokens = HttpSettings {
        tokens: vec![Token::new("laptop", "one")],
        ..HttpSettings::default()
    };
    for (secret, status) in [("one", "200"), ("two", "401")] {
        let secret = format!("Authorization: Bearer {secret}");
        let bytes = post("/mcp", &[KIND, s, &secret], &call(1, "echo"));
        let (text, _) = is_the_same(&tokens, bytes.as_bytes()).await;
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
    }
}

#[tokio::test]
async fn what_could_smuggle_a_request_is_judged_by_hyper() {
    let settings = HttpSettings::default();
    let body = call(7, "echo");
    let hidden = post("/mcp", &[KIND, "Mcp-Session-Id: s-1"], &call(8, "echo"));
    let len = body.len();
    for lines in [
        format!("Content-Length: {len}\r\nContent-Length: {len}"),
        format!("Content-Length: {len}\r\nContent-Length: 0"),
        format!("Content-Length: 0\r\nContent-Length: {len}"),
        format!("Content-Length: +{len}"),
        format!("Content-Length: {len}, {len}"),
        format!("Content-Length: 0{len}"),
        format!("Content-Length: {len} "),
        format!("Content-Length:\t{len}"),
        format!("Content-Length : {len}"),
        format!("Content-Length: {len};x"),
        "Content-Length: -1".to_owned(),
        "Content-Length: 0x10".to_owned(),
        "Content-Length: 99999999999999999999999".to_owned(),
        "Content-Length:".to_owned(),
        format!("Content-Length: {len}\r\nTransfer-Encoding: chunked"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {len}"),
        format!("Content-Length: {len}\r\nTransfer-Encoding: identity"),
        format!("Content-Length: {len}\r\nTransfer-Encoding : chunked"),
        format!("Content-Length: {len}\r\nX: a\r\n Transfer-Encoding: chunked"),
        format!("Content-Length: {len}\r\n\tfolded"),
        format!("X: a\rTransfer-Encoding: chunked\r\nContent-Length: {len}"),
        format!("X: a\0\r\nContent-Length: {len}"),
        format!("X: a\nContent-Length: {len}"),
        format!("Content-Length: {len}\n"),
        format!("Connection: close, x\r\nContent-Length: {len}"),
        format!("Connection: keep-alive\r\nConnection: close\r\nContent-Length: {len}"),
        format!("Host: evil.example\r\nContent-Length: {len}"),
    ] {
        let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: s-1\r\n";
        let bytes = format!("{head}{KIND}\r\n{lines}\r\n\r\n{body}{hidden}");
        is_the_same(&settings, bytes.as_bytes()).await;
    }
    for line in [
        "POST /mcp HTTP/1.0",
        "POST  /mcp HTTP/1.1",
        "POST /mcp  HTTP/1.1",
        "POST /mcp HTTP/1.2",
        "POST /mcp",
        "post /mcp HTTP/1.1",
        "POSTS /mcp HTTP/1.1",
        "POST http://localhost/mcp HTTP/1.1",
        "POST http://evil.example/mcp HTTP/1.1",
        "POST /mcp?x=/mcp HTTP/1.1",
        "POST /mcp#x HTTP/1.1",
        "POST //mcp HTTP/1.1",
        "POST /mcp/%74ime HTTP/1.1",
        "POST /mcp/../mcp HTTP/1.1",
        "POST /mcpx HTTP/1.1",
        "POST * HTTP/1.1",
        "POST /mcp HTTP/1.1\r\n X: y",
        "PUT /mcp HTTP/1.1",
    ] {
        let head = format!("Host: localhost\r\n{KIND}\r\nMcp-Session-Id: s-1\r\n");
        let bytes = format!("{line}\r\n{head}Content-Length: {len}\r\n\r\n{body}");
        is_the_same(&settings, bytes.as_bytes()).await;
    }
}

#[tokio::test]
async fn requests_that_come_together_are_answered_in_their_order() {
    let s = "Mcp-Session-Id: s-1";
    let settings = HttpSettings::default();
    let mut bytes = String::new();
    for id in 1..=5 {
        bytes.push_str(&post("/mcp", &[KIND, s], &call(id, "echo")));
    }
    bytes.push_str(&post("/mcp", &[KIND, s], &call(6, "stream")));
    // From here on the connection is hyper's.
    bytes.push_str("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    bytes.push_str(&post("/mcp", &[KIND, s], &call(7, "echo")));
    let (text, heard) = is_the_same(&settings, bytes.as_bytes()).await;
    let places = (1..=7).map(|id| text.find(&format!(r#""id":{id},"#)));
    let places: Vec<usize> = places.collect::<Option<_>>().unwrap();
    assert!(places.is_sorted(), "{text}");
    assert_eq!(heard.len(), 8, "{heard:?}");
}

/// A connection that is served on this thread: what is written is read before the next step.
fn served(house: &House) -> DuplexStream {
    let (client, server) = tokio::io::duplex(64 * 1024);
    tokio::spawn(Arc::clone(&house.server).hold(server, Arrival::Loopback));
    client
}

async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_may_be_cut_anywhere() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let request = post("/mcp", &[KIND, &session], &call(1, "echo"));
    let two = request.repeat(2);
    for at in 1..two.len() {
        let mut client = served(&house);
        let (first, second) = two.as_bytes().split_at(at);
        client.write_all(first).await.unwrap();
        settle().await;
        client.write_all(second).await.unwrap();
        let mut seen = Vec::new();
        while String::from_utf8_lossy(&seen).matches(r#""n":1"#).count() < 2 {
            let read = timeout(PATIENCE, client.read_buf(&mut seen)).await;
            assert_ne!(read.unwrap().unwrap(), 0, "{at}");
        }
    }
    let mut client = served(&house);
    for byte in request.as_bytes() {
        client.write_all(&[*byte]).await.unwrap();
        settle().await;
    }
    let mut seen = [0; 15];
    client.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_head_that_is_large_is_hypers() {
    let s = "Mcp-Session-Id: s-1";
    let settings = HttpSettings::default();
    for (size, status) in [
        (15_000, "200"),
        (17_000, "200"),
        (300_000, "200"),
        (3_000_000, "431"),
    ] {
        let large = format!("X: {}", "x".repeat(size));
        let bytes = post("/mcp", &[KIND, s, &large], &call(1, "echo"));
        let (text, _) = is_the_same(&settings, bytes.as_bytes()).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {status}")),
            "{size}: {text}"
        );
    }
    let many: Vec<String> = (0..99).map(|n| format!("X-{n}: y")).collect();
    for count in [60, 61, 62, 90, 99] {
        let mut fields = vec![KIND, s];
        fields.extend(many.iter().take(count).map(String::as_str));
        let bytes = post("/mcp", &fields, &call(1, "echo"));
        is_the_same(&settings, bytes.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_body_that_stops_coming_is_refused_and_a_slow_one_is_taken() {
    let settings = HttpSettings {
        read_patience: Duration::from_millis(30),
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let request = post("/mcp", &[KIND, &session], &call(1, "echo"));
    let mut stream = house.dial().await;
    stream
        .write_all(&request.as_bytes()[..request.len() - 1])
        .await
        .unwrap();
    let text = rest(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 400"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
    assert!(text.contains("the body stopped coming"), "{text}");

    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let text = "y".repeat(300_000);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{{"t":"{text}"}}}}"#);
    let request = post("/mcp", &[KIND, &session], &body);
    let mut client = served(&house);
    let (mut read, mut write) = tokio::io::split(&mut client);
    let sent = async {
        for piece in request.as_bytes().chunks(7_001) {
            write.write_all(piece).await.unwrap();
            settle().await;
        }
    };
    let mut seen = Vec::new();
    let received = async {
        while !seen.ends_with(b"}}") {
            assert_ne!(read.read_buf(&mut seen).await.unwrap(), 0);
        }
    };
    timeout(PATIENCE, async { tokio::join!(sent, received) })
        .await
        .unwrap();
    assert!(String::from_utf8(seen).unwrap().contains(&text));
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_writes_on() {
    let settings = HttpSettings {
        tokens: vec![Token::new("laptop", "one")],
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let body = " ".repeat(3_000_000);
    let request = post("/mcp", &[KIND], &body);
    let mut stream = house.dial().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let text = rest(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
    assert!(text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn a_client_that_closes_its_half_is_gone() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let script = house.script.session("s-1");
    for method in ["silent", "wait"] {
        let before = *script.gone.borrow();
        let heard = script.heard.lock().len();
        let mut stream = house.dial().await;
        let request = post("/mcp", &[KIND, &session], &call(1, method));
        stream.write_all(request.as_bytes()).await.unwrap();
        while script.heard.lock().len() == heard {
            tokio::task::yield_now().await;
        }
        stream.shutdown().await.unwrap();
        until(&script.gone, |gone| *gone > before).await;
        let text = rest(&mut stream).await;
        assert!(!text.contains("0\r\n\r\n"), "{text}");
    }
}

#[tokio::test]
async fn what_is_sent_ahead_waits_for_the_answer() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let script = house.script.session("s-1");
    let mut stream = house.dial().await;
    let wait = post("/mcp", &[KIND, &session], &call(1, "wait"));
    stream.write_all(wait.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, "\r\n\r\n").await;
    let heard = script.heard.lock().len();
    let echo = post("/mcp", &[KIND, &session], &call(2, "echo"));
    stream.write_all(echo.as_bytes()).await.unwrap();
    house.session(&[], V).await;
    assert_eq!(script.heard.lock().len(), heard, "it was not its turn");
}

#[tokio::test]
async fn a_stop_ends_idle_connections_and_those_that_have_answered() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let echo = post("/mcp", &[KIND, &session], &call(1, "echo"));
    let mut idle = house.dial().await;
    idle.write_all(echo.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut idle, &mut seen, r#""n":1"#).await;
    assert!(!String::from_utf8(seen).unwrap().contains("connection:"));
    let fresh = house.dial().await;
    timeout(PATIENCE, async {
        while house.server.connections() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    timeout(PATIENCE, house.server.stop(PATIENCE))
        .await
        .unwrap();
    assert_eq!(house.server.connections(), 0);
    for mut stream in [idle, fresh] {
        assert_eq!(rest(&mut stream).await, "");
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_its_patience() {
    let settings = HttpSettings {
        idle_patience: Duration::from_millis(30),
        ..HttpSettings::default()
    };
    let house = House::open(settings).await;
    let session = house.session(&[], V).await;
    let echo = post("/mcp", &[KIND, &session], &call(1, "echo"));
    for sent in ["", &echo] {
        let mut stream = house.dial().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        let text = rest(&mut stream).await;
        assert_eq!(text.contains("200 OK"), sent == echo, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_patience_counts_from_the_last_answer_on() {
    let house = House::open(HttpSettings {
        idle_patience: Duration::from_secs(10),
        ..HttpSettings::default()
    })
    .await;
    let mut client = served(&house);
    let mut seen = Vec::new();
    client
        .write_all(post("/mcp", &[KIND], &initialize(V)).as_bytes())
        .await
        .unwrap();
    read_until(&mut client, &mut seen, "capabilities").await;
    let echo = post("/mcp", &[KIND, "Mcp-Session-Id: s-1"], &call(1, "echo"));
    for _ in 0..5 {
        tokio::time::advance(Duration::from_secs(7)).await;
        settle().await;
        client.write_all(echo.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        read_until(&mut client, &mut seen, r#""n":1"#).await;
    }
    let asleep = tokio::time::Instant::now();
    assert_eq!(rest(&mut client).await, "");
    assert_eq!(asleep.elapsed(), Duration::from_secs(10));
}

#[tokio::test]
async fn an_answer_that_is_being_read_gives_way_to_no_connection() {
    let house = House::open(HttpSettings {
        connections_max: 1,
        ..HttpSettings::default()
    })
    .await;
    let session = house.session(&[], V).await;
    // More than the kernel takes for a client that does not read.
    let text = "y".repeat(24 << 20);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":"{text}"}}"#);
    let mut stream = house.dial().await;
    let request = post("/mcp", &[KIND, &session], &body);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = vec![0; 15];
    stream.read_exact(&mut seen).await.unwrap();
    let other = house.ask("GET /healthz", &[], "").await;
    assert_eq!(other.status, 503, "{other:?}");
    while !seen.ends_with(b"\"}") {
        assert_ne!(stream.read_buf(&mut seen).await.unwrap(), 0);
    }
    assert!(seen.len() > text.len());
}

#[tokio::test]
async fn new_settings_count_from_the_next_request_on() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let echo = post("/mcp", &[KIND, &session], &call(1, "echo"));
    let mut stream = house.dial().await;
    stream.write_all(echo.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, r#""n":1"#).await;
    house.server.configure(HttpSettings {
        tokens: vec![Token::new("laptop", "one")],
        ..HttpSettings::default()
    });
    stream.write_all(echo.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, "HTTP/1.1 401").await;
}

#[tokio::test]
async fn each_request_of_a_connection_has_its_host_judged() {
    let s = "Mcp-Session-Id: s-1";
    let good = post("/mcp", &[KIND, s], &call(1, "echo"));
    let bad = good.replace("Host: localhost", "Host: evil.example");
    let page = post("/mcp", &[KIND, s, "Origin: https://evil.example"], "{}");
    let all = [&good[..], &good, &bad, &page, &good, &bad].concat();
    let (text, _) = is_the_same(&HttpSettings::default(), all.as_bytes()).await;
    let statuses = text.split("HTTP/1.1 ").filter_map(|answer| answer.get(..3));
    let statuses: Vec<&str> = statuses.collect();
    // The last one is that of the request behind them.
    assert_eq!(statuses, ["200", "200", "403", "403", "200", "403", "200"]);
    // What passed under other settings counts no more.
    let house = House::open(HttpSettings {
        allowed_hosts: vec!["evil.example".to_owned()],
        ..HttpSettings::default()
    })
    .await;
    house.session(&[], V).await;
    let mut stream = house.dial().await;
    stream.write_all(bad.as_bytes()).await.unwrap();
    read_until(&mut stream, &mut Vec::new(), r#""n":1"#).await;
    house.server.configure(HttpSettings::default());
    stream.write_all(bad.as_bytes()).await.unwrap();
    read_until(&mut stream, &mut Vec::new(), "HTTP/1.1 403").await;
}

#[tokio::test]
async fn who_waits_for_a_word_before_it_sends_gets_it() {
    let house = House::open(HttpSettings::default()).await;
    let session = house.session(&[], V).await;
    let body = call(1, "echo");
    let request = post("/mcp", &[KIND, &session, "Expect: 100-continue"], &body);
    let head = request.len() - body.len();
    let mut stream = house.dial().await;
    stream.write_all(&request.as_bytes()[..head]).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(body.as_bytes()).await.unwrap();
    read_until(&mut stream, &mut seen, r#""n":1"#).await;
}
