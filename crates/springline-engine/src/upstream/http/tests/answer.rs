//! What comes back: JSON, event streams, refusals, rubbish.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const SSE: &str = "Content-Type: Text/Event-Stream; charset=UTF-8\r\n";

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn chunked_json_arrives_whole_and_untouched() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked("Content-Type: Application/JSON ; charset=utf-8\r\n")
        .await;
    for byte in ANSWER.as_bytes() {
        peer.chunk([*byte]).await;
    }
    peer.last_chunk().await;
    assert_eq!(&rig.message().await.bytes()[..], ANSWER.as_bytes());
    assert_eq!(rig.end().await, End::Complete);
    rig.send(2);
    rig.answered(&mut peer).await;
}

#[tokio::test]
async fn a_batch_is_reported_message_by_message() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#;
    peer.json(&format!("[{note}, {ANSWER},7]")).await;
    assert_eq!(&rig.message().await.bytes()[..], note.as_bytes());
    assert_eq!(&rig.message().await.bytes()[..], ANSWER.as_bytes());
    assert!(matches!(
        rig.input().await,
        Input::Garbled {
            too_large: false,
            ..
        }
    ));
    assert_eq!(rig.end().await, End::Complete);
}

#[tokio::test]
async fn a_success_without_a_message_is_never_made_one() {
    let mut rig = Rig::new().await;
    let json = "Content-Type: application/json\r\n";
    for (headers, body, says, is_broken) in [
        (
            "Content-Type: text/html\r\n",
            "<h1>\u{1b}[1mLogin",
            "text/html",
            true,
        ),
        (json, " \n", "empty body", false),
        (
            json,
            "{\"token\":\"hush",
            "not valid JSON (at byte 14)",
            false,
        ),
        (json, "{\"code\":\"hush\"}", "not a JSON-RPC message", false),
        (json, "[]", "holds no JSON-RPC message", false),
        ("", "hush", "no media type", false),
        (
            "Content-Type: application/json\r\nContent-Encoding: br\r\n",
            "x",
            "\"br\"",
            true,
        ),
    ] {
        rig.send(1);
        let mut peer = rig.accept().await;
        peer.request().await;
        peer.reply("200 OK", &format!("{headers}Connection: close\r\n"), body)
            .await;
        let cause = if is_broken {
            rig.broken().await
        } else {
            rig.unreadable().await
        };
        assert!(cause.contains(says), "{cause}");
        assert!(
            cause.contains("200") && !cause.contains('\u{1b}') && !cause.contains("hush"),
            "{cause}"
        );
    }
    // A missing media type does not hide a message.
    rig.send(2);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply("200 OK", "", ANSWER).await;
    assert_eq!(&rig.message().await.bytes()[..], ANSWER.as_bytes());
    assert_eq!(rig.end().await, End::Complete);
}

#[tokio::test]
async fn a_202_is_accepted_whatever_its_body() {
    let mut rig = Rig::new().await;
    rig.send_as(1, Purpose::Oneway, route(), false);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply("202 Accepted", "Content-Type: text/plain\r\n", "Accepted")
        .await;
    assert_eq!(rig.end().await, End::Accepted);
    rig.send_as(2, Purpose::Initialized, route(), false);
    peer.request().await;
    peer.write("HTTP/1.1 204 No Content\r\n\r\n").await;
    assert_eq!(rig.end().await, End::Accepted);
    rig.send_as(3, Purpose::Oneway, route(), false);
    peer.request().await;
    peer.reply("200 OK", "", "").await;
    assert_eq!(rig.end().await, End::Accepted);
    rig.send(4);
    rig.answered(&mut peer).await;
}

#[tokio::test]
async fn an_event_stream_is_reported_as_it_comes() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked(SSE).await;
    peer.chunk(": hello\r\nid: e1\r\nretry: 250\r\nda").await;
    peer.chunk("ta:\r\n\r\nid: e2\ndata: {\"jsonrpc\":\"2.0\",\n")
        .await;
    peer.chunk("data: \"method\":\"notifications/x\"}\n\n")
        .await;
    assert_eq!(
        rig.message().await.method().as_deref(),
        Some("notifications/x")
    );
    peer.chunk("event: ping\ndata: now\n\ndata: rubbish\n\n")
        .await;
    assert!(matches!(
        rig.input().await,
        Input::Garbled {
            too_large: false,
            ..
        }
    ));
    peer.chunk("data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":NaN}\n\n")
        .await;
    match rig.input().await {
        Input::Garbled { id, .. } => assert_eq!(id.as_deref(), Some(&b"7"[..])),
        other => panic!("{other:?}"),
    }
    peer.chunk(format!("event: message\nid: e3\ndata: {ANSWER}\n\n"))
        .await;
    assert_eq!(&rig.message().await.bytes()[..], ANSWER.as_bytes());
    peer.chunk("id: e4\ndata: {\"half\"").await;
    peer.last_chunk().await;
    assert_eq!(
        rig.end().await,
        End::StreamEnded {
            last_event_id: Some("e3".into()),
            retry: Some(Duration::from_millis(250)),
        }
    );
    rig.send(2);
    rig.answered(&mut peer).await;
}

#[tokio::test]
async fn a_broken_stream_is_resumed_under_the_same_name() {
    let mut rig = Rig::new().await;
    rig.send(7);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked(SSE).await;
    peer.chunk("id: e1\ndata:\n\n").await;
    drop(peer);
    let first = End::StreamEnded {
        last_event_id: Some("e1".into()),
        retry: None,
    };
    assert_eq!(rig.end().await, first);
    rig.transport.resume(
        GEN,
        ExchangeId(7),
        "e1".into(),
        Duration::from_millis(1),
        route(),
    );
    let mut peer = rig.accept().await;
    let asked = peer.request().await;
    assert_eq!(asked.line, "GET /api/mcp?k=v HTTP/1.1");
    assert_eq!(asked.header("last-event-id"), Some("e1"));
    assert_eq!(asked.header("accept"), Some("text/event-stream"));
    assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
    assert_eq!(asked.header("content-type"), None);
    peer.chunked(SSE).await;
    peer.chunk(format!("data: {ANSWER}\n\n")).await;
    match rig.input().await {
        Input::Message { exchange, .. } => assert_eq!(exchange, Some(ExchangeId(7))),
        other => panic!("{other:?}"),
    }
    // A stream without ids of its own goes on from where it began.
    peer.last_chunk().await;
    assert_eq!(rig.end().await, first);
    peer.closed().await;
}

#[tokio::test]
async fn a_get_that_is_refused_says_so() {
    let mut rig = Rig::new().await;
    rig.transport
        .listen(GEN, ExchangeId(1), None, Duration::ZERO, route());
    let mut peer = rig.accept().await;
    assert_eq!(peer.request().await.header("last-event-id"), None);
    peer.reply("405 Method Not Allowed", "", "").await;
    match rig.end().await {
        End::Refused(refusal) => assert_eq!(refusal.status, 405),
        other => panic!("{other:?}"),
    }
    rig.transport
        .listen(GEN, ExchangeId(2), None, Duration::ZERO, route());
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.json("{}").await;
    assert!(rig.broken().await.contains("no event stream"));
}

#[tokio::test]
async fn gzip_is_decoded_also_in_several_members() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    let (head, tail) = ANSWER.split_at(9);
    let body = [gzip(head.as_bytes()), gzip(tail.as_bytes())].concat();
    let headers = "Content-Type: application/json\r\nContent-Encoding: GZip\r\n";
    peer.reply("200 OK", headers, body).await;
    assert_eq!(&rig.message().await.bytes()[..], ANSWER.as_bytes());
    assert_eq!(rig.end().await, End::Complete);
    rig.send(2);
    peer.request().await;
    let mut cut = gzip(ANSWER.as_bytes());
    cut.truncate(cut.len() - 4);
    peer.reply("200 OK", headers, cut).await;
    assert!(rig.broken().await.contains("gzip"));
    rig.send(3);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.reply(
        "404 Not Found",
        headers,
        gzip(b"{\"error\":{\"code\":-32001}}"),
    )
    .await;
    match rig.end().await {
        End::Refused(refusal) => assert_eq!(refusal.rpc_code, Some(-32001)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_compressed_event_comes_before_the_stream_ends() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked(&format!("{SSE}Content-Encoding: gzip\r\n"))
        .await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    let text = "x".repeat(100_000);
    for n in 0..3 {
        write!(
            encoder,
            "id: {n}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"m{n}\",\"params\":{{\"t\":\"{text}\"}}}}\n\n"
        )
        .unwrap();
        encoder.flush().unwrap();
        let flushed = std::mem::take(encoder.get_mut());
        let (a, b) = flushed.split_at(flushed.len() / 2);
        peer.chunk(a).await;
        peer.chunk(b).await;
        assert_eq!(rig.message().await.method().unwrap(), format!("m{n}"));
    }
    peer.chunk(encoder.finish().unwrap()).await;
    peer.last_chunk().await;
    assert_eq!(
        rig.end().await,
        End::StreamEnded {
            last_event_id: Some("2".into()),
            retry: None
        }
    );
}

#[tokio::test]
async fn an_answer_over_the_cap_is_not_kept_but_its_id_is_found() {
    let limits = HttpLimits {
        body_max: 1000,
        ..HttpLimits::default()
    };
    let mut rig = Rig::with(Setup {
        limits,
        ..Setup::default()
    })
    .await;
    rig.send(1);
    let mut peer = rig.accept().await;
    let large = format!(
        "{{\"jsonrpc\":\"2.0\",\n\"result\":{{\"t\":\"{}\"}},\n\"id\":\"last\"}}",
        "x".repeat(2000)
    );
    let check = |input| match input {
        Input::Garbled {
            id,
            too_large,
            exchange,
            cause,
            ..
        } => {
            assert_eq!(id.as_deref(), Some(&b"\"last\""[..]));
            assert!(too_large && exchange == Some(ExchangeId(1)));
            assert!(cause.contains("1000"), "{cause}");
        }
        other => panic!("{other:?}"),
    };
    // With its length announced; in chunks; as an event.
    peer.request().await;
    peer.json(&large).await;
    check(rig.input().await);
    assert_eq!(rig.end().await, End::Complete);
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked("Content-Type: application/json\r\n").await;
    for part in large.as_bytes().chunks(100) {
        peer.chunk(part).await;
    }
    peer.last_chunk().await;
    check(rig.input().await);
    assert_eq!(rig.end().await, End::Complete);
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked(SSE).await;
    peer.chunk(format!("data: {}\n\n", large.replace('\n', "")))
        .await;
    check(rig.input().await);
    peer.chunk(format!("data: {ANSWER}\n\n")).await;
    rig.message().await;
}

#[tokio::test]
async fn a_refusal_keeps_what_the_server_said() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    let body = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID provided"}}"#;
    peer.reply(
        "400 Bad Request",
        "Content-Type: application/json\r\n",
        body,
    )
    .await;
    match rig.end().await {
        End::Refused(refusal) => {
            assert_eq!((refusal.status, refusal.rpc_code), (400, Some(-32000)));
            assert_eq!(&*refusal.text, "No valid session ID provided");
            assert_eq!(refusal.retry_after, None);
        }
        other => panic!("{other:?}"),
    }
    rig.send(2);
    peer.request().await;
    peer.chunked("").await;
    peer.chunk("ignored").await;
    peer.last_chunk().await;
    assert!(rig.unreadable().await.contains("no media type"));
    rig.send(3);
    peer.request().await;
    let headers = "Retry-After: 7\r\nWWW-Authenticate: Bearer realm=\"x\"\r\n";
    peer.reply("401 Unauthorized", headers, "y".repeat(10_000))
        .await;
    match rig.end().await {
        End::Refused(refusal) => {
            assert_eq!(refusal.retry_after, Some(Duration::from_secs(7)));
            assert!(
                refusal
                    .text
                    .ends_with("WWW-Authenticate: Bearer realm=\"x\"")
            );
            assert!(refusal.text.len() < 5000);
        }
        other => panic!("{other:?}"),
    }
}
