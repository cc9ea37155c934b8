//! The rule for heads that are read in place, as a function of any bytes: hyper takes them as the
//! same request. `cargo +nightly fuzz run head` calls it, and so do the tests below with every build.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Version, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;

use super::head::{self, Head, Look};
use crate::downstream::field::{Field, Fields as _};
use crate::downstream::route;

const FIELDS: [Field; 10] = [
    Field::Accept,
    Field::Authorization,
    Field::ContentType,
    Field::Cursor,
    Field::Encoding,
    Field::Expect,
    Field::Host,
    Field::Origin,
    Field::Session,
    Field::Version,
];

/// What hyper makes of the same bytes.
struct Seen {
    request: Request<()>,
    length: Option<u64>,
    /// The first bytes of the body.
    body: Option<Bytes>,
}

/// Checks that what is taken in place is what hyper sees. Says whether it was taken.
///
/// # Panics
/// It is not.
#[expect(clippy::panic, reason = "that is what a fuzzer looks for")]
pub fn fuzz_head(bytes: &[u8]) -> bool {
    let Look::Plain(head) = head::look(bytes) else {
        return false;
    };
    assert!(
        !matches!(head::look(&bytes[..head.len - 1]), Look::Plain(_)),
        "the head is shorter"
    );
    for seen in [0, 1, head.len / 2, head.len - 3, head.len - 2, head.len - 1] {
        assert!(head::may_end(&bytes[..head.len], seen), "its end is missed");
    }
    let Some(seen) = by_hyper(bytes) else {
        panic!("hyper refuses it");
    };
    compare(&head, &seen, bytes);
    true
}

fn compare(head: &Head<'_>, seen: &Seen, bytes: &[u8]) {
    let request = &seen.request;
    assert_eq!(request.method(), Method::POST);
    assert_eq!(request.version(), Version::HTTP_11);
    assert_eq!(request.uri().query(), None);
    assert_eq!(request.uri().authority(), None);
    assert_eq!(route::server_of(request.uri().path()), Some(head.server));
    assert_eq!(seen.length, Some(head.length));
    if let Some(body) = &seen.body {
        assert!(bytes[head.len..].starts_with(body), "the body is elsewhere");
    }
    for name in [header::TRANSFER_ENCODING, header::UPGRADE, header::EXPECT] {
        assert!(!request.headers().contains_key(name));
    }
    let connection = request.headers().get(header::CONNECTION);
    let says_close =
        connection.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"close"));
    assert_eq!(head.closes, says_close);
    // A POST does not ask for it.
    for field in FIELDS.into_iter().filter(|field| *field != Field::Cursor) {
        let map: &HeaderMap = request.headers();
        assert!(head.all(field).eq(map.all(field)), "{field:?}");
    }
}

/// Nothing if hyper hands out no request.
fn by_hyper(bytes: &[u8]) -> Option<Seen> {
    let seen: Arc<Mutex<Option<Seen>>> = Arc::default();
    let (mut client, server) = tokio::io::duplex(bytes.len().max(1024));
    let told = Arc::clone(&seen);
    let service = service_fn(move |request: Request<Incoming>| {
        let (parts, mut body) = request.into_parts();
        let length = body.size_hint().exact();
        let is_first = told.lock().is_none();
        if is_first {
            let request = Request::from_parts(parts, ());
            let body = None;
            *told.lock() = Some(Seen {
                request,
                length,
                body,
            });
        }
        let told = Arc::clone(&told);
        async move {
            if let Some(Ok(frame)) = body.frame().await
                && is_first
                && let Some(seen) = &mut *told.lock()
            {
                seen.body = frame.into_data().ok();
            }
            // One request is enough.
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(())) = pin!(client.write_all(bytes)).poll(&mut cx) else {
        return None;
    };
    let mut connection =
        pin!(http1::Builder::new().serve_connection(TokioIo::new(server), service));
    for _ in 0..4 {
        if connection.as_mut().poll(&mut cx).is_ready() {
            break;
        }
    }
    seen.lock().take()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::fuzz_head;

    const PLAIN: &str = "POST /mcp/time HTTP/1.1\r\nHost: localhost:1\r\nAccept: application/json, \
        text/event-stream\r\nContent-Type: application/json\r\nMcp-Session-Id: s-1\r\n\
        MCP-Protocol-Version: 2025-11-25\r\nConnection: keep-alive\r\nContent-Length: 4\r\n\r\nbody";

    /// Marsaglia's generator: the same bytes in each run.
    fn next(state: &mut u64) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state >> 33).unwrap()
    }

    fn mutate(bytes: &mut Vec<u8>, state: &mut u64) {
        const ODD: &[u8] = b" \t\r\n:;,+-0123456789xX\0\x7f\x80/?#%.*";
        const LINES: [&str; 11] = [
            "Content-Length: 4\r\n",
            "Content-Length: 5\r\n",
            "content-length:4\r\n",
            "Content-Length : 4\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Connection: close\r\n",
            "Expect: 100-continue\r\n",
            "Host: other\r\n",
            " folded\r\n",
            "X: y\n",
            "\r\n",
        ];
        let at = next(state) % bytes.len();
        match next(state) % 5 {
            0 => bytes[at] = ODD[next(state) % ODD.len()],
            1 => bytes.insert(at, ODD[next(state) % ODD.len()]),
            2 => drop(bytes.remove(at)),
            3 => {
                let ends: Vec<usize> = (1..bytes.len())
                    .filter(|at| bytes[at - 1] == b'\n')
                    .collect();
                let Some(at) = ends.get(next(state) % ends.len().max(1)) else {
                    return;
                };
                let line = LINES[next(state) % LINES.len()];
                bytes.splice(at..at, line.bytes());
            }
            _ => bytes[at] ^= 0x20,
        }
    }

    #[test]
    fn what_is_taken_in_place_is_what_hyper_sees() {
        assert!(fuzz_head(PLAIN.as_bytes()));
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut taken = 0;
        for round in 0..4_000 {
            let mut bytes = PLAIN.as_bytes().to_vec();
            for _ in 0..=round % 3 {
                mutate(&mut bytes, &mut state);
            }
            taken += usize::from(fuzz_head(&bytes));
        }
        assert!((400..3_600).contains(&taken), "{taken}");
    }

    #[test]
    fn heads_of_the_corpus_hold_their_properties() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/head");
        let (mut taken, mut left) = (0, 0);
        for file in fs::read_dir(corpus).unwrap() {
            let path = file.unwrap().path();
            let is_taken = fuzz_head(&fs::read(&path).unwrap());
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(is_taken, name.starts_with("plain"), "{name}");
            taken += usize::from(is_taken);
            left += usize::from(!is_taken);
        }
        assert!(taken >= 3 && left >= 10, "{corpus}: {taken} and {left}");
    }
}
