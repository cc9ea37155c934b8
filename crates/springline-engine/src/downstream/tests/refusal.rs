//! Requests that are refused before anybody knows what they ask for, and those that never come whole.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, sleep, timeout};

use super::script::{House, PATIENCE, Reply};
use crate::downstream::HttpSettings;
use crate::downstream::guard::Arrival;

const V: &str = "2025-11-25";
const HEAD: &str = "Host: localhost\r\nContent-Type: application/json\r\nMcp-Session-Id: s-1\r\n";
const ECHO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"echo","params":{"n":1}}"#;

fn served(house: &House) -> DuplexStream {
    let (client, server) = tokio::io::duplex(64 * 1024);
    tokio::spawn(Arc::clone(&house.server).hold(server, Arrival::Loopback));
    client
}

fn echo() -> String {
    let len = ECHO.len();
    format!("POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: {len}\r\n\r\n{ECHO}")
}

/// Everything that is answered to these bytes, until the server closes.
async fn said(house: &House, bytes: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(served(house));
    let mut text = Vec::new();
    // What is refused may not be read to its end.
    let (_, ended) = tokio::join!(
        write.write_all(bytes),
        timeout(PATIENCE, read.read_to_end(&mut text))
    );
    ended.expect("it is not closed").unwrap();
    text
}

/// The last of the answers in these bytes, and how many there are before it.
fn last(text: &[u8]) -> (Reply, usize) {
    let at = memchr::memmem::rfind(text, b"HTTP/1.1 ").unwrap();
    let before = memchr::memmem::find_iter(&text[..at], b"HTTP/1.1 ").count();
    (Reply::parse(&text[at..]), before)
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_refused_in_json_wherever_it_comes() {
    let large = format!(
        "GET /healthz HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(3_000_000)
    );
    let many = format!("GET /healthz HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101));
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(70_000)
    );
    let length = format!("POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: x\r\n\r\n");
    let coding = format!("POST /mcp HTTP/1.1\r\n{HEAD}Transfer-Encoding: gzip\r\n\r\n");
    let version = format!("POST /mcp HTTP/3.0\r\n{HEAD}\r\n");
    let other = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (refused, status, told) in [
        (
            "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03\r\n\r\n",
            400,
            "cannot be read",
        ),
        ("EHLO there\r\n\r\n", 400, "cannot be read"),
        (
            "POST /mcp HTTP/1.1\r\nno field\r\n\r\n",
            400,
            "cannot be read",
        ),
        (&length, 400, "cannot be read"),
        (&coding, 400, "cannot be read"),
        (&version, 400, "cannot be read"),
        (&long, 414, "too long"),
        (&large, 431, "too large"),
        (&many, 431, "too large"),
    ] {
        for before in [
            vec![],
            vec![echo()],
            vec![other.to_owned()],
            vec![echo(), other.to_owned()],
        ] {
            let house = House::open(HttpSettings::default()).await;
            house.session(&[], V).await;
            let bytes = [before.concat().as_bytes(), refused.as_bytes()].concat();
            let (reply, count) = last(&said(&house, &bytes).await);
            assert_eq!(count, before.len(), "{reply:?}");
            let message = reply.refusal(status, -32600, None);
            assert!(message.contains(told), "{message}");
            assert_eq!(reply.header("connection"), Some("close"));
            assert!(reply.header("date").is_some());
        }
    }
}

#[tokio::test]
async fn a_refused_client_that_writes_on_meets_the_answer() {
    let house = House::open(HttpSettings::default()).await;
    let mut stream = house.dial().await;
    let bytes = format!("GET /healthz HTTP/1.1\r\nX: {}", "x".repeat(3_000_000));
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut text = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut text))
        .await
        .unwrap()
        .unwrap();
    Reply::parse(&text).refusal(431, -32600, None);
}

#[tokio::test]
async fn a_body_in_a_coding_is_refused_before_it_is_read() {
    let house = House::open(HttpSettings::default()).await;
    house.session(&[], V).await;
    let heard = house.script.session("s-1").heard.lock().len();
    for path in ["/mcp", "/api/anything"] {
        for framing in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
            for coding in ["gzip", "GZIP", "identity, br", "deflate", "\u{e9}"] {
                let bytes = format!(
                    "POST {path} HTTP/1.1\r\n{HEAD}{framing}\r\nContent-Encoding: {coding}\r\n\r\n"
                );
                let (reply, _) = last(&said(&house, bytes.as_bytes()).await);
                let message = reply.refusal(415, -32600, None);
                assert!(message.contains("Content-Encoding"), "{message}");
                assert_eq!(reply.header("accept-encoding"), Some("identity"));
                assert_eq!(reply.header("connection"), Some("close"));
            }
        }
    }
    assert_eq!(house.script.session("s-1").heard.lock().len(), heard);
    for line in ["Content-Encoding: Identity", "Content-Encoding:"] {
        let reply = house.post(&["Mcp-Session-Id: s-1", line], ECHO).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

#[tokio::test]
async fn a_client_that_sends_no_more_gets_an_answer_that_is_there() {
    let house = House::open(HttpSettings::default()).await;
    house.session(&[], V).await;
    let chunked = format!(
        "POST /mcp HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{ECHO}\r\n0\r\n\r\n",
        ECHO.len()
    );
    let get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    for request in [echo(), chunked, get] {
        for _ in 0..20 {
            let mut stream = house.dial().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut text = Vec::new();
            timeout(PATIENCE, stream.read_to_end(&mut text))
                .await
                .unwrap()
                .unwrap();
            assert_eq!(Reply::parse(&text).status, 200, "{request}");
        }
    }
}

/// How long it takes, and what is answered, when these bytes come `pause` apart, after these.
async fn slowly(before: &str, bytes: &str, pause: Duration) -> (Duration, String) {
    let house = House::open(HttpSettings::default()).await;
    house.session(&[], V).await;
    let mut client = served(&house);
    client.write_all(before.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let answered = before.matches("HTTP/1.1").count();
    while String::from_utf8_lossy(&seen).matches("\r\n\r\n").count() < answered {
        assert_ne!(client.read_buf(&mut seen).await.unwrap(), 0);
    }
    // It was idle for a while.
    sleep(Duration::from_mins(4)).await;
    let begun = Instant::now();
    let (mut read, mut write) = tokio::io::split(client);
    let sent = async {
        for byte in bytes.as_bytes() {
            if write.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(pause).await;
        }
        std::future::pending::<()>().await;
    };
    let mut text = String::new();
    let (at, all) = tokio::select! {
        () = sent => unreachable!(),
        read = read.read_to_string(&mut text) => (begun.elapsed(), read.unwrap()),
    };
    // The end of the body of the last answer may be among it.
    let text = text.get(text.find("HTTP/1.1").unwrap_or(all)..).unwrap();
    (at, text.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_head_has_its_time_from_its_first_byte_on_and_silence_another() {
    let get = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let both = format!("{}{get}", echo());
    for before in ["", &echo(), get, &both] {
        for begun in [
            "P",
            "POST /mcp HTTP/1.1\r\nHost: l",
            "GET /mcp HTT",
            "\r\n\r\n",
        ] {
            let (after, text) = slowly(before, begun, Duration::ZERO).await;
            assert!(after >= Duration::from_secs(30), "{after:?}");
            assert!(after < Duration::from_secs(31), "{after:?}");
            let message = Reply::parse(text.as_bytes()).refusal(408, -32600, None);
            assert!(message.contains("in time"), "{message}");
        }
        for begun in [echo(), get.repeat(2)] {
            let (after, text) = slowly(before, &begun, Duration::from_secs(3)).await;
            assert!(after >= Duration::from_secs(30), "{after:?}");
            assert!(after < Duration::from_secs(34), "{after:?}");
            Reply::parse(text.as_bytes()).refusal(408, -32600, None);
        }
        // The four minutes before count.
        let (after, text) = slowly(before, "", Duration::ZERO).await;
        assert!(after >= Duration::from_secs(59), "{after:?}");
        assert!(after < Duration::from_secs(61), "{after:?}");
        assert_eq!(text, "");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drips_is_refused_and_one_that_flows_slowly_is_taken() {
    let head = |length: usize| format!("POST /mcp HTTP/1.1\r\n{HEAD}Content-Length: {length}\r\n");
    let chunked = format!("POST /mcp HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\n");
    for head in [head(1000), chunked] {
        let house = House::open(HttpSettings::default()).await;
        house.session(&[], V).await;
        let (mut read, mut write) = tokio::io::split(served(&house));
        let sent = async {
            write
                .write_all(format!("{head}\r\n").as_bytes())
                .await
                .unwrap();
            loop {
                // One byte of the body, in either framing.
                let piece = if head.contains("chunked") {
                    "1\r\n \r\n"
                } else {
                    " "
                };
                if write.write_all(piece.as_bytes()).await.is_err() {
                    std::future::pending::<()>().await;
                }
                sleep(Duration::from_secs(7)).await;
            }
        };
        let begun = Instant::now();
        let mut text = Vec::new();
        tokio::select! {
            () = sent => unreachable!(),
            all = read.read_to_end(&mut text) => drop(all.unwrap()),
        }
        assert!(begun.elapsed() >= Duration::from_mins(1));
        assert!(
            begun.elapsed() < Duration::from_secs(70),
            "{:?}",
            begun.elapsed()
        );
        let message = Reply::parse(&text).refusal(400, -32600, None);
        assert!(message.contains("too slow"), "{message}");
    }
    let house = House::open(HttpSettings::default()).await;
    house.session(&[], V).await;
    let text = "y".repeat(200 * 1024);
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{{"t":"{text}"}}}}"#);
    let (mut read, mut write) = tokio::io::split(served(&house));
    let sent = async {
        write
            .write_all(format!("{}\r\n", head(body.len())).as_bytes())
            .await
            .unwrap();
        for piece in body.as_bytes().chunks(20 * 1024) {
            write.write_all(piece).await.unwrap();
            sleep(Duration::from_secs(15)).await;
        }
    };
    let mut seen = vec![0; 15];
    tokio::join!(sent, async { read.read_exact(&mut seen).await.unwrap() });
    assert_eq!(seen, b"HTTP/1.1 200 OK");
}
