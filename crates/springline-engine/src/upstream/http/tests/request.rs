//! What goes out: heads, bodies, redirects, cookies, signatures.

use super::*;

#[tokio::test]
async fn a_request_carries_what_the_transport_asks_for() {
    let mut rig = Rig::new().await;
    rig.send_as(1, Purpose::Request, route(), false);
    let mut peer = rig.accept().await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.line, "POST /api/mcp?k=v HTTP/1.1");
    let port = rig.listener.local_addr().unwrap().port();
    for (name, value) in [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("accept-encoding", "gzip"),
        ("mcp-session-id", "s-1"),
        ("mcp-protocol-version", "2025-06-18"),
        ("host", &format!("127.0.0.1:{port}")),
        (
            "user-agent",
            concat!("springline/", env!("CARGO_PKG_VERSION")),
        ),
        ("content-length", &CALL.len().to_string()),
    ] {
        assert_eq!(asked.header(name), Some(value), "{name}");
    }
    assert_eq!(asked.body, CALL);
    assert_eq!(asked.header("authorization"), None);
}

#[tokio::test]
async fn a_handshake_and_an_old_revision_carry_no_session_headers() {
    let mut rig = Rig::new().await;
    rig.send_as(1, Purpose::Initialize, Route::default(), false);
    let mut peer = rig.accept().await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.header("mcp-session-id"), None);
    assert_eq!(asked.header("mcp-protocol-version"), None);
    let old = Route {
        version: Some(Version::V2025_03_26),
        ..route()
    };
    rig.send_as(2, Purpose::Request, old, false);
    let asked = rig.answered(&mut peer).await;
    assert_eq!(asked.header("mcp-session-id"), Some("s-1"));
    assert_eq!(asked.header("mcp-protocol-version"), None);
}

#[tokio::test]
async fn segments_go_out_as_one_body_with_its_length() {
    let mut rig = Rig::new().await;
    let large = format!("{{\"x\":\"{}\"", "y".repeat(3 * 1024 * 1024));
    let mut body = Pieces::new();
    for segment in [large.as_str(), ",\"id\":", "7", "}"] {
        body.push(bytes::Bytes::copy_from_slice(segment.as_bytes()));
    }
    let whole = body.to_bytes();
    let none = &mut Errand::none();
    let (id, purpose) = (ExchangeId(1), Purpose::Request);
    rig.transport
        .send(GEN, id, post(body, purpose, route()), none);
    let mut peer = rig.accept().await;
    let asked = rig.answered(&mut peer).await;
    assert_eq!(
        asked.header("content-length"),
        Some(whole.len().to_string().as_str())
    );
    assert!(asked.body.as_bytes() == &whole[..]);
}

#[tokio::test]
async fn every_attempt_is_signed_afresh_and_for_its_own_path() {
    let auth = HttpAuth::RmqHmacSha256 {
        access_key: "AKEXAMPLE2".to_owned(),
        secret_key: "SKEXAMPLE2SECRET".to_owned(),
        instance_id: "rmq-cluster".to_owned(),
    };
    let mut rig = Rig::with(Setup {
        credentials: Credentials::new([("X-Team", "t")], auth).unwrap(),
        spec: Box::new(|spec| spec.url.set_path("/first")),
        ..Setup::default()
    })
    .await;
    rig.send(1);
    let mut peer = rig.accept().await;
    let first = peer.request().await;
    peer.reply(
        "307 Temporary Redirect",
        "Location: /api/mcp/tools/call\r\n",
        "",
    )
    .await;
    let second = rig.answered(&mut peer).await;
    assert_eq!(second.line, "POST /api/mcp/tools/call HTTP/1.1");
    assert_eq!(second.body, CALL);
    assert_eq!(second.header("x-team"), Some("t"));
    assert_eq!(second.header("x-rmq-timestamp"), Some("1757600001234"));
    assert_eq!(second.header("x-rmq-instance-id"), Some("rmq-cluster"));
    // The second golden vector.
    assert_eq!(
        second.header("authorization"),
        Some(
            "rmq-hmac-sha256 Credential=AKEXAMPLE2, Signature=\
             1a34204f14445ee534f8d8ddee40e2676722a8e6abf63f8df9a9253a119b582a"
        )
    );
    assert_ne!(
        first.header("authorization"),
        second.header("authorization")
    );
}

#[tokio::test]
async fn a_redirect_is_followed_at_home_only_and_five_times_at_most() {
    let mut rig = Rig::new().await;
    for (status, location, says) in [
        (
            "307 Temporary Redirect",
            "http://127.0.0.1:1/x?token=hush",
            "another origin",
        ),
        (
            "308 Permanent Redirect",
            "https://127.0.0.1/",
            "another origin",
        ),
        ("302 Found", "/elsewhere", "only 307 and 308"),
        ("307 Temporary Redirect", "http://[", "no usable place"),
    ] {
        rig.send(1);
        let mut peer = rig.accept().await;
        peer.request().await;
        peer.reply(
            status,
            &format!("Location: {location}\r\nConnection: close\r\n"),
            "",
        )
        .await;
        match rig.end().await {
            End::Refused(refusal) => {
                assert_eq!(refusal.status.to_string(), status[..3]);
                assert!(refusal.text.contains("not followed"), "{refusal:?}");
                assert!(refusal.text.contains(says), "{refusal:?}");
                assert!(!refusal.text.contains("hush"), "{refusal:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    rig.send(2);
    let mut peer = rig.accept().await;
    for hop in 0..6 {
        let asked = peer.request().await;
        assert_eq!(asked.body, CALL);
        peer.reply(
            "308 Permanent Redirect",
            &format!("Location: /hop{hop}\r\n"),
            "moved",
        )
        .await;
    }
    match rig.end().await {
        End::Refused(refusal) => assert!(refusal.text.contains("more than 5"), "{refusal:?}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn cookies_stay_with_their_generation() {
    let mut rig = Rig::new().await;
    rig.send_as(1, Purpose::Initialize, Route::default(), false);
    let mut peer = rig.accept().await;
    assert_eq!(peer.request().await.header("cookie"), None);
    let set = "Content-Type: application/json\r\nSet-Cookie: lb=one; Path=/\r\n";
    peer.reply("200 OK", set, ANSWER).await;
    rig.message().await;
    rig.end().await;
    rig.send(2);
    assert_eq!(
        rig.answered(&mut peer).await.header("cookie"),
        Some("lb=one")
    );
    rig.transport
        .listen(GEN, ExchangeId(3), None, Duration::ZERO, route());
    let mut stream = rig.accept().await;
    assert_eq!(stream.request().await.header("cookie"), Some("lb=one"));
    rig.transport.open(Generation(2));
    rig.input().await;
    let body = Pieces::from(bytes::Bytes::from_static(CALL.as_bytes()));
    rig.transport.send(
        Generation(2),
        ExchangeId(4),
        post(body, Purpose::Initialize, Route::default()),
        &mut Errand::none(),
    );
    assert_eq!(rig.answered(&mut peer).await.header("cookie"), None);
    rig.transport.end(GEN, true, route());
    let asked = peer.request().await;
    assert_eq!(asked.line, "DELETE /api/mcp?k=v HTTP/1.1");
    assert_eq!(asked.header("cookie"), Some("lb=one"));
}

#[tokio::test]
async fn credentials_are_judged_by_what_was_refused() {
    let bearer = |token: &str| {
        Credentials::new(
            [],
            HttpAuth::Bearer {
                token: token.to_owned(),
            },
        )
        .unwrap()
    };
    let mut rig = Rig::with(Setup {
        credentials: bearer("old"),
        ..Setup::default()
    })
    .await;
    let mut peers = Vec::new();
    for exchange in [1, 2] {
        rig.send(exchange);
        let mut peer = rig.accept().await;
        assert_eq!(
            peer.request().await.header("authorization"),
            Some("Bearer old")
        );
        peers.push(peer);
    }
    let changed = |input| match input {
        Input::Credentials { changed } => changed,
        other => panic!("{other:?}"),
    };
    peers[0]
        .reply("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", "")
        .await;
    assert!(matches!(rig.end().await, End::Refused(_)));
    rig.transport.refresh_credentials();
    assert!(
        !changed(rig.input().await),
        "the source still has what was refused"
    );
    *rig.sink.fresh.lock().unwrap() = Ok(bearer("new"));
    rig.transport.refresh_credentials();
    assert!(changed(rig.input().await));
    // The other call was sent with the old value: for it, the source has changed.
    peers[1].reply("401 Unauthorized", "", "").await;
    rig.end().await;
    rig.transport.refresh_credentials();
    assert!(changed(rig.input().await));
    rig.send(3);
    assert_eq!(
        peers[1].request().await.header("authorization"),
        Some("Bearer new")
    );
    peers[1].reply("403 Forbidden", "", "").await;
    rig.end().await;
    rig.transport.refresh_credentials();
    assert!(!changed(rig.input().await));
    *rig.sink.fresh.lock().unwrap() = Err("the file is gone".to_owned());
    rig.transport.refresh_credentials();
    assert!(!changed(rig.input().await));
}
