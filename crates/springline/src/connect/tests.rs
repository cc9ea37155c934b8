//! `connect` against a gateway that is played by hand.

use std::path::Path;
use std::time::Duration;

use springline_engine::downstream::frame::{Frame, FrameReader};
use springline_engine::downstream::hello::{ClientHello, GatewayHello, Token};
use springline_engine::downstream::outgoing::Outgoing;
use springline_proto::session::{Fate, Welcome};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::connection::read_head;
use super::{Connect, ConnectArgs};
use crate::autostart::StartSpec;
use crate::stdio::Deaf;
use crate::stdio::client::Client;

const PATIENCE: Duration = Duration::from_secs(20);
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"x":1.0}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const CALL: &str = r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{}}"#;

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("s.sock")
    }

    fn serve(&self) -> UnixListener {
        UnixListener::bind(self.socket()).unwrap()
    }

    fn connect(&self, start: Option<StartSpec>) -> (JoinHandle<Result<(), Deaf>>, Client) {
        let (mut front, client) = Client::new();
        let args = ConnectArgs {
            server: Some("time".to_owned()),
            socket: self.socket(),
            start,
            body_max: 1 << 20,
        };
        let mut connect = Connect::new(args);
        let task = tokio::spawn(async move {
            let ended = connect.carry(&mut front).await;
            if let Some(connection) = connect.connection {
                connection.end().await;
            }
            ended
        });
        (task, client)
    }
}

/// The gateway's end of one attached `connect`.
struct Gateway {
    reader: FrameReader<OwnedReadHalf>,
    write: OwnedWriteHalf,
    hello: ClientHello,
    sent: u64,
}

impl Gateway {
    async fn greeted(listener: &UnixListener) -> Self {
        let accepted = timeout(PATIENCE, listener.accept()).await.unwrap();
        let (mut stream, _) = accepted.unwrap();
        let head = read_head(&mut stream).await.unwrap();
        let wanted = head.split(' ').nth(1).unwrap().to_owned();
        assert!(head.contains("Upgrade: springline/1\r\n"), "{head}");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: springline/1\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        let (read, write) = stream.into_split();
        let mut reader = FrameReader::new(read, 1 << 20);
        let Some(Frame::Hello(hello)) = reader.next().await.unwrap() else {
            panic!("no hello");
        };
        let hello = ClientHello::parse(&hello);
        let comeback = hello.session.as_ref().map_or("", |_| "&comeback");
        assert_eq!(wanted, format!("/connect?server=time{comeback}"));
        Self {
            reader,
            write,
            hello,
            sent: 0,
        }
    }

    /// Accepts, and says that the session is a new one.
    async fn accept(listener: &UnixListener) -> Self {
        let mut gateway = Self::greeted(listener).await;
        gateway.hello(false, Welcome::default()).await;
        gateway
    }

    async fn hello(&mut self, is_resumed: bool, welcome: Welcome) {
        let hello = GatewayHello {
            is_resumed,
            session: Some(Token::new("secret")),
            welcome,
        };
        let mut out = Outgoing::new(&mut self.write);
        Frame::Hello(hello.to_json()).put(&mut out);
        out.flush().await.unwrap();
    }

    /// The next message, or nothing when the client says that it is done.
    async fn next(&mut self) -> Option<String> {
        loop {
            match timeout(PATIENCE, self.reader.next())
                .await
                .unwrap()
                .unwrap()
            {
                Some(Frame::Message { body, .. }) => {
                    return Some(String::from_utf8(body.to_bytes().to_vec()).unwrap());
                }
                Some(Frame::End(_)) => return None,
                Some(_) => {}
                None => panic!("the connection broke"),
            }
        }
    }

    /// Whether the client goes without saying that it is done.
    async fn is_left(&mut self) -> bool {
        loop {
            match timeout(PATIENCE, self.reader.next()).await.unwrap() {
                Ok(Some(Frame::End(_))) => return false,
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return true,
            }
        }
    }

    async fn say(&mut self, text: &str) {
        self.sent += 1;
        let line = format!("M {} 0 {text}\n", self.sent);
        self.write.write_all(line.as_bytes()).await.unwrap();
    }

    async fn result(&mut self, id: &str) {
        self.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
            .await;
    }
}

async fn handshake(client: &mut Client, gateway: &mut Gateway) {
    assert_eq!(gateway.next().await.unwrap(), INITIALIZE);
    gateway.result("0").await;
    assert_eq!(client.next().await.unwrap()["id"], 0);
    client.send(INITIALIZED).await;
    assert_eq!(gateway.next().await.unwrap(), INITIALIZED);
}

#[tokio::test]
async fn calls_in_flight_finish_after_the_end_of_input() {
    let place = Place::new();
    let listener = place.serve();
    let (task, mut client) = place.connect(None);
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
    client.send(CALL).await;
    client.finish();
    assert_eq!(gateway.next().await.unwrap(), CALL);
    gateway
        .say(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#)
        .await;
    gateway.result("\"c\"").await;
    assert_eq!(
        client.next().await.unwrap()["method"],
        "notifications/message"
    );
    assert_eq!(client.next().await.unwrap()["id"], "c");
    assert_eq!(gateway.next().await, None);
    assert_eq!(task.await.unwrap(), Ok(()));
    assert_eq!(client.next().await, None);
}

#[tokio::test]
async fn a_session_is_taken_up_on_the_next_gateway_and_what_never_ran_is_sent_again() {
    let place = Place::new();
    let listener = place.serve();
    let (_task, mut client) = place.connect(None);
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
    client.send(CALL).await;
    gateway.next().await.unwrap();
    drop(gateway);
    let mut gateway = Gateway::greeted(&listener).await;
    assert_eq!(gateway.hello.session, Some(Token::new("secret")));
    assert_eq!(gateway.hello.comeback.received, 1);
    assert_eq!(gateway.hello.comeback.pending, [3]);
    let fates = vec![(3, Fate::NotSent)];
    gateway.sent = 1;
    gateway.hello(true, Welcome { taken: 3, fates }).await;
    assert_eq!(gateway.next().await.unwrap(), CALL);
    gateway.result("\"c\"").await;
    let answer = client.next().await.unwrap();
    assert_eq!((&answer["id"], answer.get("error")), (&"c".into(), None));
}

#[tokio::test]
async fn a_gateway_that_does_not_know_the_session_gets_the_handshake_again() {
    let place = Place::new();
    let listener = place.serve();
    let (_task, mut client) = place.connect(None);
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
    client.send(CALL).await;
    gateway.next().await.unwrap();
    drop(gateway);
    let mut gateway = Gateway::accept(&listener).await;
    let answer = client.next().await.unwrap();
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&"c".into(), &(-31002).into())
    );
    assert_eq!(answer["error"]["data"]["outcome"], "unknown");

    client.send(CALL).await;
    let again = gateway.next().await.unwrap();
    let again_id = "\"springline-connect-1\"";
    assert_eq!(
        again,
        INITIALIZE.replace("\"id\":0", &format!("\"id\":{again_id}"))
    );
    gateway.result(again_id).await;
    assert_eq!(gateway.next().await.unwrap(), INITIALIZED);
    assert_eq!(gateway.next().await.unwrap(), CALL);
    gateway.result("\"c\"").await;
    let answer = client.next().await.unwrap();
    assert_eq!((&answer["id"], answer.get("error")), (&"c".into(), None));
}

#[tokio::test]
async fn a_stopping_gateway_is_left_when_nothing_is_pending() {
    let place = Place::new();
    let listener = place.serve();
    let (_task, mut client) = place.connect(None);
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
    client.send(CALL).await;
    gateway.next().await.unwrap();
    gateway
        .write
        .write_all(b"N {\"stopping\":true}\n")
        .await
        .unwrap();
    gateway.result("\"c\"").await;
    assert_eq!(client.next().await.unwrap()["id"], "c");
    assert!(gateway.is_left().await, "without a goodbye");
}

#[tokio::test]
async fn malformed_lines_are_answered_and_the_stream_goes_on() {
    let place = Place::new();
    let listener = place.serve();
    let (_task, mut client) = place.connect(None);
    client.send("{").await;
    client.send("[]").await;
    client.send_too_long("7").await;
    let parse = client.next().await.unwrap();
    assert_eq!(
        (&parse["error"]["code"], parse.get("id")),
        (&(-32700).into(), None)
    );
    let batch = client.next().await.unwrap();
    assert_eq!(
        (&batch["error"]["code"], batch.get("id")),
        (&(-32600).into(), None)
    );
    let long = client.next().await.unwrap();
    assert_eq!(
        (&long["error"]["code"], &long["id"]),
        (&(-32600).into(), &7.into())
    );
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
}

#[tokio::test]
async fn without_a_gateway_requests_fail_and_notifications_vanish() {
    let place = Place::new();
    let (_task, mut client) = place.connect(None);
    client.send(INITIALIZED).await;
    client.send(CALL).await;
    let answer = client.next().await.unwrap();
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&"c".into(), &(-31001).into())
    );
    assert_eq!(answer["error"]["data"]["outcome"], "not_executed");
    let socket = place.socket().display().to_string();
    assert_eq!(
        answer["error"]["message"],
        format!("no gateway answers on {socket}; start one with `springline serve`")
    );
}

#[tokio::test]
async fn a_refused_upgrade_says_why() {
    let place = Place::new();
    let listener = place.serve();
    let (_task, mut client) = place.connect(None);
    client.send(CALL).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    read_head(&mut stream).await.unwrap();
    let body = r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"no server of that name"}}"#;
    let answer = format!(
        "HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    let answer = client.next().await.unwrap();
    let text = answer["error"]["message"].as_str().unwrap();
    assert_eq!(text, "no server of that name");
    assert_eq!(answer["error"]["data"]["code"], "SERVER_UNAVAILABLE");
    assert_eq!(answer["error"]["data"]["retry"], "no");
}

#[tokio::test]
async fn a_broken_stdout_or_the_end_of_the_grace_ends_it() {
    for breaks in [true, false] {
        let place = Place::new();
        let listener = place.serve();
        let (task, mut client) = place.connect(None);
        client.send(INITIALIZE).await;
        let mut gateway = Gateway::accept(&listener).await;
        handshake(&mut client, &mut gateway).await;
        client.send(CALL).await;
        gateway.next().await.unwrap();
        if breaks {
            client.break_stdout();
        } else {
            client.signal(Duration::from_millis(10));
        }
        assert_eq!(gateway.next().await, None);
        assert_eq!(timeout(PATIENCE, task).await.unwrap().unwrap(), Err(Deaf));
    }
}

#[tokio::test]
async fn a_signal_lets_calls_finish() {
    let place = Place::new();
    let listener = place.serve();
    let (task, mut client) = place.connect(None);
    client.send(INITIALIZE).await;
    let mut gateway = Gateway::accept(&listener).await;
    handshake(&mut client, &mut gateway).await;
    client.send(CALL).await;
    gateway.next().await.unwrap();
    client.signal(PATIENCE);
    gateway.result("\"c\"").await;
    assert_eq!(client.next().await.unwrap()["id"], "c");
    assert_eq!(gateway.next().await, None);
    assert_eq!(task.await.unwrap(), Ok(()));
}

fn script(place: &Place, text: &str) -> StartSpec {
    let program = Path::new("/bin/sh").to_owned();
    let args = vec!["-c".into(), text.into()];
    StartSpec {
        program,
        args,
        log: place.dir.path().join("state/gateway.log"),
        origin: None,
    }
}

#[tokio::test]
async fn a_gateway_that_ends_at_once_is_reported_with_its_log() {
    let place = Place::new();
    let spec = script(&place, "echo broken configuration >&2; exit 3");
    let (_task, mut client) = place.connect(Some(spec));
    client.send(CALL).await;
    let answer = client.next().await.unwrap();
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(
        text.contains("exit status: 3: broken configuration; see ") && text.contains("gateway.log"),
        "{text}"
    );
    let log = std::fs::read_to_string(place.dir.path().join("state/gateway.log")).unwrap();
    assert_eq!(log, "broken configuration\n");
}

#[tokio::test]
async fn of_several_starters_one_starts() {
    let place = Place::new();
    // It says that it was started, and goes on like a gateway until the folder is gone.
    let text = format!(
        "echo started; while [ -d '{}' ]; do sleep 0.1; done",
        place.dir.path().display()
    );
    let spec = script(&place, &text);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let (task, client) = place.connect(Some(spec.clone()));
        client.send(INITIALIZE).await;
        clients.push((task, client));
    }
    let log = place.dir.path().join("state/gateway.log");
    while std::fs::read_to_string(&log).unwrap_or_default().is_empty() {
        tokio::task::yield_now().await;
    }
    let listener = place.serve();
    for _ in 0..3 {
        drop(Gateway::accept(&listener).await);
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "started\n");
    drop(UnixStream::connect(place.socket()).await.unwrap());
}
