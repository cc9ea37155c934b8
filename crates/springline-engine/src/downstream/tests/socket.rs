//! The unix socket's place and the frames of `connect`.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use springline_proto::session::{Downstream, Fate, Welcome};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::script::{PATIENCE, Script, until};
use crate::downstream::frame::{Frame, FrameReader};
use crate::downstream::hello::GatewayHello;
use crate::downstream::socket::{self, SocketError};
use crate::downstream::{HttpServer, HttpSettings, Principal, listen};

#[test]
fn the_default_path_follows_the_runtime_folder() {
    let at = |dir: Option<&str>| socket::default_path(dir.map(Into::into), 7);
    assert_eq!(
        at(Some("/run/user/7")),
        Path::new("/run/user/7/springline/springline.sock")
    );
    for missing in [None, Some(""), Some("relative")] {
        assert_eq!(at(missing), Path::new("/tmp/springline-7/springline.sock"));
    }
}

#[tokio::test]
async fn the_socket_is_private_and_a_dead_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("springline/s.sock");
    let bound = socket::bind(&path).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
    match socket::bind(&path).await {
        Err(SocketError::Live { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    drop(bound);
    assert!(!path.exists());
    // What a killed gateway leaves: a socket file that nobody serves.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    socket::bind(&path).await.unwrap();
}

#[tokio::test]
async fn a_socket_that_is_served_without_our_lock_is_not_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(matches!(
        socket::bind(&path).await,
        Err(SocketError::Live { .. })
    ));
    assert!(path.exists());
}

#[tokio::test]
async fn unsafe_places_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let is_unsafe =
        async |path: &Path| matches!(socket::bind(path).await, Err(SocketError::Unsafe { .. }));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(is_unsafe(&dir.path().join("file")).await);
    fs::create_dir(dir.path().join("real")).unwrap();
    symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
    assert!(is_unsafe(&dir.path().join("link/s.sock")).await);
    fs::set_permissions(dir.path().join("real"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(is_unsafe(&dir.path().join("real/s.sock")).await);
    assert!(is_unsafe(&dir.path().join("x".repeat(120))).await);
}

#[tokio::test]
async fn a_taken_port_is_reported_with_its_process() {
    let first = listen::bind(&["127.0.0.1:0".parse().unwrap()], true).unwrap();
    let address = first[0].local_addr().unwrap();
    match listen::bind(&[address], false) {
        Err(listen::BindError::InUse { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    if let Some(second) = first.get(1) {
        assert_eq!(
            second.local_addr().unwrap().to_string(),
            format!("[::1]:{}", address.port())
        );
    }
}

#[tokio::test]
async fn a_burst_of_clients_finds_room_before_one_of_them_is_accepted() {
    let listeners = listen::bind(&["127.0.0.1:0".parse().unwrap()], false).unwrap();
    let address = listeners[0].local_addr().unwrap();
    // Where there is none, the system tries again after a second.
    let patience = std::time::Duration::from_millis(900);
    let clients: Vec<_> = (0..300)
        .map(|_| std::net::TcpStream::connect_timeout(&address, patience).unwrap())
        .collect();
    assert_eq!(clients.len(), 300);
}

struct Gateway {
    script: Script,
    server: Arc<HttpServer<Script>>,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

async fn gateway() -> Gateway {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.sock");
    let bound = socket::bind(&path).await.unwrap();
    let script = Script::default();
    let settings = HttpSettings {
        heartbeat: Duration::from_millis(20),
        ..HttpSettings::default()
    };
    let server = HttpServer::new(script.clone(), settings, None);
    let serving = Arc::clone(&server);
    tokio::spawn(async move {
        serving.serve_unix(bound.listener).await;
        drop(bound.claim);
    });
    Gateway {
        script,
        server,
        path,
        _dir: dir,
    }
}

async fn attach(gateway: &Gateway, path: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&gateway.path).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: springline/1\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn head(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn hello(reader: &mut FrameReader<&mut UnixStream>) -> GatewayHello {
    match next(reader).await {
        Some(Frame::Hello(json)) => GatewayHello::parse(&json),
        other => panic!("{other:?}"),
    }
}

async fn next(reader: &mut FrameReader<&mut UnixStream>) -> Option<Frame> {
    timeout(PATIENCE, reader.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn connect_carries_numbered_frames_both_ways() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect?server=time").await;
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 101"));
    let hello = "H {\"version\":\"9.9.9\",\"later\":1}\nQ a frame of a later version\n";
    stream.write_all(hello.as_bytes()).await.unwrap();
    let lines = "M 1 0 {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\nM 2 0 {oops\n";
    stream.write_all(lines.as_bytes()).await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    assert!(matches!(next(&mut reader).await, Some(Frame::Hello(_))));
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        match next(&mut reader).await {
            Some(Frame::Message { number, body, .. }) => {
                bodies.push(body.to_bytes());
                assert_eq!(number, bodies.len() as u64);
            }
            Some(Frame::Ack(received)) => assert!(received <= 2),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        bodies[0],
        Bytes::from_static(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{ }}")
    );
    assert_eq!(bodies[1], Bytes::from_static(b"{\"code\":-32700}"));
    let session = gateway.script.last();
    assert_eq!(session.kind, Downstream::Socket);
    let uid = socket::own_uid();
    assert_eq!(gateway.script.principal("s-1"), Principal::Uid(uid));
    drop(stream);
    until(&session.gone, |gone| *gone == 1).await;
    assert!(!*session.is_closed.borrow(), "its client may come back");
}

#[tokio::test]
async fn a_client_that_was_cut_finds_its_session_and_one_that_says_goodbye_ends_it() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect").await;
    head(&mut stream).await;
    stream.write_all(b"H {}\n").await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    let hello = hello(&mut reader).await;
    assert!(!hello.is_resumed);
    let token = hello.session.unwrap().as_str().to_owned();
    drop(stream);
    let session = gateway.script.last();
    until(&session.gone, |gone| *gone == 1).await;

    let mut stream = attach(&gateway, "/connect").await;
    head(&mut stream).await;
    let back = format!("H {{\"session\":\"{token}\",\"received\":4,\"pending\":[2,3]}}\nA 4\n");
    stream.write_all(back.as_bytes()).await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    let hello = self::hello(&mut reader).await;
    assert!(hello.is_resumed);
    let fates = [(2, Fate::NotSent), (3, Fate::NotSent)];
    assert_eq!(hello.welcome.fates, fates);
    stream.write_all(b"E {}\n").await.unwrap();
    until(&session.is_closed, |is_closed| *is_closed).await;
    let heard = session.heard.lock().clone();
    let comeback = "attach Comeback { received: 4, pending: [2, 3] }";
    assert!(heard.iter().any(|line| line == comeback), "{heard:?}");
    assert!(
        heard.iter().any(|line| line == "acknowledged 4"),
        "{heard:?}"
    );
    assert_eq!(gateway.script.opened(), 1);
}

#[tokio::test]
async fn a_forged_token_opens_another_session_and_another_endpoint_does_too() {
    let gateway = gateway().await;
    for (path, token) in [("/connect", "forged"), ("/connect?server=time", "s-1")] {
        let mut stream = attach(&gateway, path).await;
        head(&mut stream).await;
        let text = format!("H {{\"session\":\"{token}\",\"pending\":[1]}}\n");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut reader = FrameReader::new(&mut stream, 1000);
        let hello = hello(&mut reader).await;
        assert!(!hello.is_resumed);
        assert_eq!(hello.welcome, Welcome::default());
    }
    assert_eq!(gateway.script.opened(), 2);
}

#[tokio::test]
async fn a_session_is_found_again_though_its_server_is_gone_and_nobody_else_gets_in() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect?server=nobody&comeback").await;
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 101"));
    stream
        .write_all(b"H {\"session\":\"s-9\"}\n")
        .await
        .unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    match next(&mut reader).await {
        Some(Frame::End(text)) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            assert!(text.contains("\"unknown-server\""), "{text}");
            assert!(text.contains("there is no server"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_received_is_acknowledged_without_an_answer() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect").await;
    head(&mut stream).await;
    let lines = "H {}\nM 1 0 {\"jsonrpc\":\"2.0\",\"method\":\"quiet\"}\n";
    stream.write_all(lines.as_bytes()).await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    assert!(matches!(next(&mut reader).await, Some(Frame::Hello(_))));
    assert!(matches!(next(&mut reader).await, Some(Frame::Ack(1))));
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_connection() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect").await;
    head(&mut stream).await;
    stream.write_all(b"H {}\nM 2 0 {}\n").await.unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .unwrap()
        .unwrap();
    assert!(rest.ends_with(b"E {\"reason\":\"session-ended\"}\n"));
}

#[tokio::test]
async fn the_end_of_a_session_and_a_stop_are_told() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect").await;
    head(&mut stream).await;
    stream.write_all(b"H {}\n").await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    assert!(matches!(next(&mut reader).await, Some(Frame::Hello(_))));
    let server = Arc::clone(&gateway.server);
    let stop = tokio::spawn(async move { server.stop(PATIENCE).await });
    match next(&mut reader).await {
        Some(Frame::Note(text)) => assert_eq!(text, Bytes::from_static(b"{\"stopping\":true}")),
        other => panic!("{other:?}"),
    }
    drop(reader);
    let quit = b"M 1 0 {\"jsonrpc\":\"2.0\",\"method\":\"quit\"}\n";
    stream.write_all(quit).await.unwrap();
    let mut reader = FrameReader::new(&mut stream, 1000);
    loop {
        match next(&mut reader).await {
            Some(Frame::Ack(_)) => {}
            Some(Frame::End(text)) => break assert!(text.ends_with(b"\"session-ended\"}")),
            other => panic!("{other:?}"),
        }
    }
    stop.await.unwrap();
}

#[tokio::test]
async fn an_upgrade_that_cannot_be_is_refused() {
    let gateway = gateway().await;
    let mut stream = attach(&gateway, "/connect?server=nobody").await;
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 404"));
    let mut stream = UnixStream::connect(&gateway.path).await.unwrap();
    stream
        .write_all(b"GET /connect HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 426"));
    let mut stream = UnixStream::connect(&gateway.path).await.unwrap();
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    assert!(head(&mut stream).await.starts_with("HTTP/1.1 200"));
}

#[test]
fn frames_are_read_as_they_were_written() {
    let parse = |line: &'static str| Frame::parse(&Bytes::from_static(line.as_bytes()));
    assert!(matches!(
        parse("M 12 3 {\"a\": 1}"),
        Ok(Frame::Message {
            number: 12,
            received: 3,
            ..
        })
    ));
    assert!(matches!(parse("A 5"), Ok(Frame::Ack(5))));
    assert!(matches!(parse("Z anything"), Ok(Frame::Unknown)));
    for bad in [
        "",
        "M",
        "M x 1 {}",
        "A",
        "Hx",
        "\u{7f} 1",
        "m 1 1 {}",
        "A 99999999999999999999999",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}
