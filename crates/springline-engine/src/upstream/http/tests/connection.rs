//! Connections: what was sent and what was not, and which connection carries what.

use super::*;

/// Moves the clock that the pool reads, with no wait.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_refused_connection_means_that_nothing_was_sent() {
    let mut rig = Rig::new().await;
    let port = rig.listener.local_addr().unwrap().port();
    rig.listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    rig.send(1);
    let cause = rig.unsent().await;
    assert!(
        cause.contains(&port.to_string()) && cause.contains("refused"),
        "{cause}"
    );
}

#[tokio::test]
async fn a_connection_that_ends_before_or_in_the_answer_leaves_it_open() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    drop(peer);
    assert!(rig.broken().await.contains("no answer came"));
    rig.send(2);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.write("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        .await;
    drop(peer);
    assert!(rig.broken().await.contains("body"));
    rig.send(3);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.write("SPEAK FRIEND\r\n\r\n").await;
    assert!(rig.broken().await.contains("no answer came"));
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_loses_no_request() {
    let mut rig = Rig::new().await;
    for exchange in 0..20 {
        rig.send(exchange);
        let mut peer = rig.accept().await;
        rig.answered(&mut peer).await;
        drop(peer);
        heard_by_the_runtime().await;
    }
}

#[tokio::test]
async fn a_connection_that_its_answer_closes_is_not_kept() {
    let mut rig = Rig::new().await;
    for head in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\n",
    ] {
        rig.send(1);
        let mut peer = rig.accept().await;
        peer.request().await;
        let length = ANSWER.len();
        peer.write(format!("{head}Content-Length: {length}\r\n\r\n{ANSWER}"))
            .await;
        rig.message().await;
        assert_eq!(rig.end().await, End::Complete);
        peer.closed().await;
    }
}

/// The server answers, and closes without a word, at the very moment when the next call comes.
/// Some calls may end unknown; none may arrive twice, and none that arrived may count as unsent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_arrives_twice_when_the_server_closes_at_the_worst_moment() {
    const CALLS: u64 = 500;
    let mut rig = Rig::new().await;
    let listener = std::mem::replace(
        &mut rig.listener,
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let arrived = Arc::new(Mutex::new(std::collections::BTreeMap::new()));
    let counts = Arc::clone(&arrived);
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut peer = Peer {
                stream,
                buffer: Vec::new(),
            };
            let asked = peer.request().await;
            *counts.lock().unwrap().entry(asked.body).or_insert(0) += 1;
            peer.json(ANSWER).await;
            // A call that comes before the end is seen was read by nobody.
            let mut rest = Vec::new();
            if peer.stream.try_read_buf(&mut rest).is_ok() {
                drop(rest);
            }
        }
    });
    for call in 0..CALLS {
        let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{call},\"method\":\"tools/call\"}}");
        let pieces = Pieces::from(bytes::Bytes::from(body.clone()));
        rig.transport.send(
            GEN,
            ExchangeId(call),
            post(pieces, Purpose::Request, route()),
            &mut Errand::none(),
        );
        let mut answered = false;
        let end = loop {
            match rig.input().await {
                Input::Message { .. } => answered = true,
                Input::Ended { end, .. } => break end,
                other => panic!("{other:?}"),
            }
        };
        let count = arrived.lock().unwrap().get(&body).copied().unwrap_or(0);
        match end {
            End::Complete => assert!(answered && count == 1, "{call}: {count}"),
            End::Broken { .. } => assert!(!answered && count <= 1, "{call}: {count}"),
            End::NotSent { .. } => assert_eq!(count, 0, "{call}"),
            other => panic!("{other:?}"),
        }
    }
    server.abort();
}

#[tokio::test]
async fn an_idle_connection_that_got_a_stray_byte_is_not_used() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut first = rig.accept().await;
    rig.answered(&mut first).await;
    first.write("HTTP/1.1 408 Request Timeout\r\n\r\n").await;
    heard_by_the_runtime().await;
    rig.send(2);
    let mut second = rig.accept().await;
    rig.answered(&mut second).await;
}

#[tokio::test]
async fn a_call_never_goes_on_a_connection_that_was_idle_for_long() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut first = rig.accept().await;
    rig.answered(&mut first).await;
    pass(Duration::from_millis(2900)).await;
    rig.send(2);
    rig.answered(&mut first).await;
    pass(Duration::from_millis(3100)).await;
    rig.send(3);
    let mut second = rig.accept().await;
    rig.answered(&mut second).await;
    first.closed().await;
    // What may be repeated may go on it.
    pass(Duration::from_millis(3100)).await;
    rig.send_as(4, Purpose::Request, route(), true);
    rig.answered(&mut second).await;
}

#[tokio::test]
async fn the_servers_hint_less_a_second_is_the_limit_for_every_request() {
    let mut rig = Rig::new().await;
    let hint = "Content-Type: application/json\r\nKeep-Alive: timeout=6\r\n";
    rig.send(1);
    let mut first = rig.accept().await;
    first.request().await;
    first.reply("200 OK", hint, ANSWER).await;
    rig.message().await;
    rig.end().await;
    pass(Duration::from_millis(4800)).await;
    rig.send(2);
    first.request().await;
    first.reply("200 OK", hint, ANSWER).await;
    rig.message().await;
    rig.end().await;
    pass(Duration::from_millis(5100)).await;
    rig.send_as(3, Purpose::Request, route(), true);
    let mut second = rig.accept().await;
    rig.answered(&mut second).await;
}

#[tokio::test]
async fn concurrent_calls_have_connections_of_their_own_and_streams_block_nobody() {
    let mut rig = Rig::new().await;
    rig.transport
        .listen(GEN, ExchangeId(1), None, Duration::ZERO, route());
    let mut stream = rig.accept().await;
    stream.request().await;
    stream.chunked("Content-Type: text/event-stream\r\n").await;
    rig.send(2);
    let mut slow = rig.accept().await;
    slow.request().await;
    rig.send(3);
    let mut quick = rig.accept().await;
    rig.answered(&mut quick).await;
    slow.json(ANSWER).await;
    rig.message().await;
    rig.end().await;
    stream.chunk(format!("data: {ANSWER}\n\n")).await;
    rig.message().await;
}

#[tokio::test]
async fn an_aborted_exchange_closes_its_connection_and_says_nothing() {
    let mut rig = Rig::new().await;
    rig.send(1);
    let mut peer = rig.accept().await;
    peer.request().await;
    rig.transport.abort(GEN, ExchangeId(1));
    peer.closed().await;
    // In the middle of an answer, too; and before a delayed stream was even asked for.
    rig.send(2);
    let mut peer = rig.accept().await;
    peer.request().await;
    peer.chunked("Content-Type: text/event-stream\r\n").await;
    peer.chunk(format!("data: {ANSWER}\n\n")).await;
    rig.message().await;
    rig.transport.abort(GEN, ExchangeId(2));
    peer.closed().await;
    rig.transport
        .listen(GEN, ExchangeId(3), None, Duration::from_hours(1), route());
    rig.transport.abort(GEN, ExchangeId(3));
    rig.send(4);
    let mut peer = rig.accept().await;
    rig.answered(&mut peer).await;
    assert!(rig.heard.try_recv().is_err());
}

#[tokio::test]
async fn localhost_is_dialled_in_both_families() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        eprintln!("this machine has no IPv6");
        return;
    };
    let spec = Box::new(|spec: &mut HttpSpec| spec.url.set_host(Some("localhost")).unwrap());
    let mut rig = Rig::on(
        listener,
        Setup {
            spec,
            ..Setup::default()
        },
    );
    rig.send(1);
    let mut peer = rig.accept().await;
    let asked = rig.answered(&mut peer).await;
    assert!(asked.header("host").unwrap().starts_with("localhost:"));
    // Bound before the other is let go, so that it is another port.
    rig.listener = TcpListener::bind("[::1]:0").await.unwrap();
    drop(peer);
    heard_by_the_runtime().await;
    rig.send(2);
    assert!(rig.unsent().await.starts_with("127.0.0.1:"));
}

/// Polls the exchange in the test's own task, as the connection of a client does.
#[tokio::test]
async fn an_errand_is_run_by_who_waits_for_it_and_can_be_aborted() {
    let mut rig = Rig::new().await;
    let mut errand = Errand::one();
    let body = Pieces::from(bytes::Bytes::from_static(CALL.as_bytes()));
    let (id, purpose) = (ExchangeId(1), Purpose::Request);
    rig.transport
        .send(GEN, id, post(body.clone(), purpose, route()), &mut errand);
    let mut work = errand.into_work().unwrap();
    let run = std::future::poll_fn(|cx| {
        if work.poll(cx) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    });
    let answer = async {
        let mut peer = rig.accept().await;
        peer.request().await;
        peer.json(ANSWER).await;
        peer
    };
    let ((), mut peer) = tokio::join!(run, answer);
    rig.message().await;
    assert_eq!(rig.end().await, End::Complete);
    let mut errand = Errand::one();
    let id = ExchangeId(2);
    rig.transport
        .send(GEN, id, post(body, purpose, route()), &mut errand);
    let mut work = errand.into_work().unwrap();
    std::future::poll_fn(|cx| {
        assert!(!work.poll(cx), "the server says nothing");
        std::task::Poll::Ready(())
    })
    .await;
    rig.transport.abort(GEN, id);
    std::future::poll_fn(|cx| {
        assert!(work.poll(cx), "it was dropped");
        std::task::Poll::Ready(())
    })
    .await;
    peer.request().await;
    peer.closed().await;
    assert!(rig.heard.try_recv().is_err(), "nothing is told of it");
}
