//! Answers that are too large to be held.

use springline_proto::call::ExchangeId;
use springline_proto::json::Pieces;
use springline_proto::settings::HELD_MAX;
use springline_proto::upstream::{End, Input, Purpose, Stretch};
use tokio::net::TcpStream;

use super::{CALL, GEN, Peer, Post, Rig, post, route};
use crate::spawn::Errand;

const STREAM: &str = "Content-Type: text/event-stream\r\n";
const JSON: &str = "Content-Type: application/json\r\n";

/// An answer whose result is a text of so many bytes, with its id last, and spread over some lines.
fn answer(len: usize) -> String {
    let text = "a\\n€ \\u00e9 ".repeat(len / 14 + 1);
    format!("{{\n \"result\":\n{{\"t\":\"{text}\"}},\n\"jsonrpc\":\"2.0\",\"id\": 1}}")
}

impl Rig {
    /// Sends a call whose answer may pass.
    fn send_large(&self) {
        let body = Pieces::from(bytes::Bytes::from_static(CALL.as_bytes()));
        let post = Post {
            stretches: true,
            ..post(body, Purpose::Request, route())
        };
        self.transport
            .send(GEN, ExchangeId(1), post, &mut Errand::none());
    }

    async fn asked_large(&self) -> Peer<TcpStream> {
        self.send_large();
        let mut peer = self.accept().await;
        peer.request().await;
        peer
    }

    /// What passes, up to what follows it; the id comes back as `<id>`.
    async fn passed(&mut self) -> (Option<u64>, String, Input) {
        let (mut passed, mut length) = (Vec::new(), None);
        loop {
            match self.input().await {
                Input::Stretch { stretch, .. } => match stretch {
                    Stretch::Begin { len, .. } => length = len,
                    Stretch::Bytes(bytes) => passed.extend_from_slice(&bytes),
                    Stretch::Id(id) => passed.extend([b"<", &id[..], b">"].concat()),
                    Stretch::End => {
                        let end = Stretch::End;
                        let (generation, exchange) = (GEN, ExchangeId(1));
                        let end = Input::Stretch {
                            generation,
                            exchange,
                            stretch: end,
                        };
                        return (length, String::from_utf8(passed).unwrap(), end);
                    }
                },
                other => {
                    let passed = String::from_utf8_lossy(&passed).into_owned();
                    return (length, passed, other);
                }
            }
        }
    }

    async fn assert_passes(&mut self, body: &str, len: Option<usize>) {
        let (length, passed, end) = self.passed().await;
        let wanted = body.replace("\"id\": 1}", "\"id\": <1>}");
        assert!(passed == wanted, "{} bytes passed otherwise", passed.len());
        assert_eq!(length, len.map(|len| len as u64));
        assert!(matches!(
            end,
            Input::Stretch {
                stretch: Stretch::End,
                ..
            }
        ));
    }
}

#[tokio::test]
async fn a_large_body_passes_whatever_its_framing() {
    let body = answer(3 * HELD_MAX);
    let mut rig = Rig::new().await;
    let mut peer = rig.asked_large().await;
    let (sent, ()) = tokio::join!(peer.json(&body), rig.assert_passes(&body, Some(body.len())));
    let () = sent;
    assert_eq!(rig.end().await, End::Complete);
    // The connection carries the next call.
    rig.send_large();
    peer.request().await;
    let write = async {
        peer.chunked(JSON).await;
        for piece in body.as_bytes().chunks(100_001) {
            peer.chunk(piece).await;
        }
        peer.last_chunk().await;
    };
    tokio::join!(write, rig.assert_passes(&body, None));
    assert_eq!(rig.end().await, End::Complete);
}

#[tokio::test]
async fn a_body_up_to_the_bound_is_held() {
    let mut rig = Rig::new().await;
    let mut peer = rig.asked_large().await;
    let small = answer(HELD_MAX / 2);
    let (message, ()) = tokio::join!(rig.message(), peer.json(&small));
    assert_eq!(message.bytes(), small.as_bytes());
}

#[tokio::test]
async fn a_large_event_passes_in_one_line_or_many() {
    let body = answer(3 * HELD_MAX);
    let many = body.replace('\n', "\ndata: ");
    let one = body.replace('\n', " ");
    for (text, wanted) in [(many, body), (one.clone(), one)] {
        let mut rig = Rig::new().await;
        let mut peer = rig.asked_large().await;
        let write = async {
            peer.chunked(STREAM).await;
            let events =
                format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"m\"}}\n\ndata: {text}\r\n\r\n");
            for piece in events.as_bytes().chunks(70_001) {
                peer.chunk(piece).await;
            }
            peer.last_chunk().await;
        };
        let read = async {
            assert_eq!(rig.message().await.method().as_deref(), Some("m"));
            rig.assert_passes(&wanted, None).await;
        };
        tokio::join!(write, read);
        assert!(matches!(rig.end().await, End::StreamEnded { .. }));
    }
}

#[tokio::test]
async fn what_is_no_answer_is_held_however_large_it_is() {
    let text = "x".repeat(2 * HELD_MAX);
    let notice = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{{"t":"{text}"}}}}"#);
    let mut rig = Rig::new().await;
    let mut peer = rig.asked_large().await;
    let write = async {
        peer.chunked(STREAM).await;
        peer.chunk(format!("data: {notice}\n\n")).await;
        peer.last_chunk().await;
    };
    let (message, ()) = tokio::join!(rig.message(), write);
    assert_eq!(message.bytes(), notice.as_bytes());
    assert!(matches!(rig.end().await, End::StreamEnded { .. }));
    rig.send_large();
    peer.request().await;
    let (message, ()) = tokio::join!(rig.message(), peer.json(&notice));
    assert_eq!(message.bytes(), notice.as_bytes());
}

#[tokio::test]
async fn what_breaks_in_the_midst_says_so() {
    let body = answer(3 * HELD_MAX);
    let mut rig = Rig::new().await;
    let mut peer = rig.asked_large().await;
    let write = async move {
        let head = format!(
            "HTTP/1.1 200 OK\r\n{JSON}Content-Length: {}\r\n\r\n",
            body.len()
        );
        peer.write(head).await;
        peer.write(&body[..2 * HELD_MAX]).await;
        drop(peer);
    };
    let ((_, _, end), ()) = tokio::join!(rig.passed(), write);
    let broke = matches!(
        &end,
        Input::Ended {
            end: End::Broken { .. },
            ..
        }
    );
    assert!(broke, "{end:?}");
}

#[tokio::test]
async fn what_turns_out_to_be_no_json_is_garbled() {
    let mut body = answer(3 * HELD_MAX);
    let at = (2 * HELD_MAX..body.len()).find(|at| body.is_char_boundary(*at));
    body.insert(at.unwrap(), '\u{1}');
    for as_event in [false, true] {
        let mut rig = Rig::new().await;
        let mut peer = rig.asked_large().await;
        let body = body.replace('\n', " ");
        let write = async {
            if as_event {
                peer.chunked(STREAM).await;
                peer.chunk(format!("data: {body}\n\n")).await;
                peer.last_chunk().await;
            } else {
                let head = format!(
                    "HTTP/1.1 200 OK\r\n{JSON}Content-Length: {}\r\n\r\n",
                    body.len()
                );
                peer.write(head).await;
                // The rest is not read.
                drop(tokio::io::AsyncWriteExt::write_all(&mut peer.stream, body.as_bytes()).await);
            }
        };
        let ((_, passed, end), ()) = tokio::join!(rig.passed(), write);
        assert!(passed.len() < 2 * HELD_MAX + 70_000, "{}", passed.len());
        let Input::Garbled {
            cause, too_large, ..
        } = end
        else {
            panic!("{end:?}")
        };
        assert!(cause.contains("not valid JSON"), "{cause}");
        assert!(!too_large);
        match (as_event, rig.end().await) {
            (true, End::StreamEnded { .. }) | (false, End::Broken { .. }) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_server_waits_for_the_one_who_reads() {
    let body = answer(16 * HELD_MAX);
    let mut rig = Rig::new().await;
    let mut peer = rig.asked_large().await;
    let head = format!(
        "HTTP/1.1 200 OK\r\n{JSON}Content-Length: {}\r\n\r\n",
        body.len()
    );
    peer.write(head).await;
    // What is reported and held is never more than the window and what was read at once.
    let mut kept = Vec::new();
    let mut write = Box::pin(peer.write(&body));
    let (mut most, mut passed, mut written) = (0, 0, false);
    while passed < body.len() {
        let input = tokio::select! {
            biased;
            input = rig.heard.recv() => input.unwrap(),
            () = &mut write, if !written => {
                written = true;
                continue;
            }
        };
        if let Input::Stretch {
            stretch: Stretch::Bytes(bytes),
            ..
        } = input
        {
            passed += bytes.len();
            kept.push(bytes);
        }
        let sum: usize = kept.iter().map(bytes::Bytes::len).sum();
        most = most.max(sum);
        if rig.heard.is_empty() && sum > 100_000 {
            kept.clear();
        }
        if passed + 4 >= body.len() {
            break;
        }
    }
    assert!(most <= 300_000, "{most} bytes were held at once");
}
