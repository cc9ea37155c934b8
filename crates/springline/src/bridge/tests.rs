//! The carrying of one session, against a scripted gate.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use springline_engine::config::{
    Auth, Config, Definition, Environment, HttpDefinition, ReadError, Secret,
};
use springline_engine::downstream::{Gate, OpenError, Parts, Principal, Session};
use springline_proto::call::Connection;
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Comeback, Downstream, Endpoint, Part};
use springline_proto::version::Version;
use tokio::sync::{mpsc, watch};

use super::{After, BridgeArgs, Server, UsageError, carry, configure};
use crate::stdio::Deaf;
use crate::stdio::client::Client;

/// A gate with one session that hears lines and says what the test wants.
struct Script(OneHandle);

#[derive(Clone)]
struct OneHandle(Arc<One>);

struct One {
    heard: mpsc::Sender<String>,
    says: Mutex<Option<mpsc::Receiver<Part>>>,
    is_closed: watch::Sender<bool>,
}

impl Gate for Script {
    type Session = OneHandle;

    fn open(
        &self,
        _principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<OneHandle, OpenError> {
        assert_eq!(kind, Downstream::Pipe);
        match endpoint {
            Endpoint::One(_) => Ok(self.0.clone()),
            Endpoint::All => Err(OpenError::Stopping),
        }
    }

    fn admits(&self, _: &Endpoint) -> Result<(), OpenError> {
        Ok(())
    }

    fn find(&self, _: &str, _: &Principal, _: &Endpoint) -> Option<OneHandle> {
        None
    }

    fn take_up(&self, _: &str, _: &Principal, _: &Endpoint) -> Option<OneHandle> {
        None
    }
}

impl Session for OneHandle {
    type Parts = Said;

    fn id(&self) -> &'static str {
        "one"
    }

    fn version(&self) -> Option<Version> {
        None
    }

    fn post(&self, _: Message, _: Accept) -> Said {
        unreachable!("a pipe has no posts")
    }

    fn listen(&self, _: Option<Box<str>>) -> Said {
        unreachable!("a pipe has no streams")
    }

    fn pipe(&self) -> Said {
        Said(self.0.says.lock().take().unwrap())
    }

    fn line(&self, message: Result<Message, ParseError>) {
        let text = match message {
            Ok(message) => message.method().unwrap_or_default().into_owned(),
            Err(error) => error.code().to_string(),
        };
        self.0.heard.try_send(text).unwrap();
    }

    fn attach(&self, _: Comeback) -> (Connection, Said) {
        unreachable!("a pipe has no frames")
    }

    fn frame(&self, _: Connection, _: u64, _: u64, _: Result<Message, ParseError>) {
        unreachable!("a pipe has no frames")
    }

    fn acknowledged(&self, _: Connection, _: u64) {
        unreachable!("a pipe has no frames")
    }

    fn taken(&self) -> u64 {
        0
    }

    fn close(&self) {
        self.0.is_closed.send_replace(true);
    }
}

struct Said(mpsc::Receiver<Part>);

impl Parts for Said {
    async fn next(&mut self) -> Option<Part> {
        self.0.recv().await
    }
}

struct Scene {
    client: Client,
    heard: mpsc::Receiver<String>,
    says: mpsc::Sender<Part>,
    one: Arc<One>,
    task: tokio::task::JoinHandle<Result<(), Deaf>>,
}

fn scene(endpoint: Endpoint) -> Scene {
    let (mut front, client) = Client::new();
    let (to_heard, heard) = mpsc::channel(16);
    let (says, said) = mpsc::channel(16);
    let one = Arc::new(One {
        heard: to_heard,
        says: Mutex::new(Some(said)),
        is_closed: watch::Sender::new(false),
    });
    let gate = Script(OneHandle(Arc::clone(&one)));
    let task = tokio::spawn(async move { carry(&gate, endpoint, &mut front, After::End).await });
    Scene {
        client,
        heard,
        says,
        one,
        task,
    }
}

fn event(text: &'static str) -> Part {
    Part::Event {
        id: None,
        retry: None,
        data: Bytes::from_static(text.as_bytes()).into(),
    }
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/message"}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;

fn one() -> Endpoint {
    Endpoint::One(Arc::from("server"))
}

#[tokio::test]
async fn at_the_end_of_input_calls_finish_and_what_was_said_leaves() {
    let mut scene = scene(one());
    scene.client.send(CALL).await;
    scene.client.send("oops").await;
    scene.client.finish();
    assert_eq!(scene.heard.recv().await.unwrap(), "tools/call");
    assert_eq!(scene.heard.recv().await.unwrap(), "-32700");
    assert!(!*scene.one.is_closed.borrow());
    for text in [NOTE, RESULT, NOTE] {
        scene.says.send(event(text)).await.unwrap();
    }
    assert_eq!(
        scene.client.next().await.unwrap()["method"],
        "notifications/message"
    );
    assert_eq!(scene.client.next().await.unwrap()["id"], 1);
    assert_eq!(
        scene.client.next().await.unwrap()["method"],
        "notifications/message"
    );
    assert_eq!(scene.task.await.unwrap(), Ok(()));
    assert!(*scene.one.is_closed.borrow());
}

#[tokio::test]
async fn a_cancelled_call_is_not_waited_for() {
    let mut scene = scene(one());
    scene.client.send(CALL).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    scene.client.send(cancel).await;
    scene.client.finish();
    assert_eq!(scene.task.await.unwrap(), Ok(()));
    assert_eq!(scene.client.next().await, None);
}

#[tokio::test]
async fn a_broken_stdout_ends_the_session_at_once() {
    let scene = scene(one());
    scene.client.send(CALL).await;
    scene.client.break_stdout();
    assert_eq!(scene.task.await.unwrap(), Err(Deaf));
    assert!(*scene.one.is_closed.borrow());
}

#[tokio::test]
async fn a_signal_bounds_what_is_waited_for() {
    let mut scene = scene(one());
    scene.client.send(CALL).await;
    assert_eq!(scene.heard.recv().await.unwrap(), "tools/call");
    scene.client.signal(Duration::from_millis(10));
    assert_eq!(scene.task.await.unwrap(), Err(Deaf));
    assert!(*scene.one.is_closed.borrow());
}

/// A machine with a few variables, no home and no files.
struct Machine;

impl Environment for Machine {
    fn var(&self, name: &str) -> Option<OsString> {
        match name {
            "KEY" => Some("k3y".into()),
            "BAD" => Some("line\nbreak".into()),
            "EMPTY" => Some(" ".into()),
            _ => None,
        }
    }

    fn read(&self, _: &Path, _: u64) -> Result<Vec<u8>, ReadError> {
        Err(ReadError::Io(std::io::ErrorKind::NotFound.into()))
    }

    fn uid(&self) -> u32 {
        7
    }
}

fn args(server: Server) -> BridgeArgs {
    BridgeArgs {
        server,
        headers: Vec::new(),
        bearer_env: None,
        timeout: None,
        resume: None,
        state_dir: None,
    }
}

fn url(text: &str) -> Server {
    Server::Url(text.to_owned())
}

fn http(config: &Config) -> &HttpDefinition {
    match &config.servers[0].definition {
        Ok(Definition::Http(definition)) => definition,
        other => panic!("{other:?}"),
    }
}

#[test]
fn headers_and_tokens_take_their_secrets_from_the_environment() {
    let mut args = args(url("https://mcp.example/mcp?q=1#part"));
    args.headers = vec![
        "X-Key: a ${KEY} $$1".to_owned(),
        "x-two:${NONE:-2}".to_owned(),
    ];
    args.bearer_env = Some("KEY".to_owned());
    args.timeout = Some(Duration::from_secs(5));
    let config = configure(&args, &Machine).unwrap();
    let definition = http(&config);
    assert_eq!(definition.url.as_str(), "https://mcp.example/mcp?q=1");
    assert_eq!(definition.headers["x-key"], "a k3y $1");
    assert_eq!(definition.headers["x-two"], "2");
    assert_eq!(
        definition.auth,
        Some(Auth::Bearer {
            token: Secret::new("k3y")
        })
    );
    assert_eq!(
        config.servers["mcp.example"].options.call_timeout,
        Duration::from_secs(5)
    );
    assert!(!format!("{config:?}").contains("k3y"));
}

#[test]
fn a_program_and_its_arguments_are_taken_as_they_are() {
    let server = Server::Command {
        program: "/opt/my server!".to_owned(),
        args: vec!["${KEY}".to_owned(), "$$".to_owned()],
    };
    let config = configure(&args(server.clone()), &Machine).unwrap();
    let (name, entry) = config.servers.first().unwrap();
    assert_eq!(name, "my-server");
    match &entry.definition {
        Ok(Definition::Stdio(definition)) => {
            assert_eq!(definition.command, "/opt/my server!");
            assert_eq!(definition.args, ["${KEY}", "$$"]);
        }
        other => panic!("{other:?}"),
    }
    let mut wrong = args(server);
    wrong.bearer_env = Some("KEY".to_owned());
    assert!(matches!(
        configure(&wrong, &Machine),
        Err(UsageError::Program)
    ));
}

#[test]
fn what_cannot_be_sent_is_refused_without_showing_it() {
    for bad in ["ftp://x/", "mcp.example", "https://user:k3y@x/", "/mcp", ""] {
        let error = configure(&args(url(bad)), &Machine).unwrap_err();
        assert!(matches!(error, UsageError::Url(_)), "{bad}");
        assert!(!error.to_string().contains("k3y"));
    }
    for bad in [
        "k3y",
        "x y: 1",
        "Mcp-Session-Id: 1",
        "x: ${NONE}",
        "x: ${BAD}",
        ": 1",
    ] {
        let mut args = args(url("https://x/"));
        args.headers = vec![bad.to_owned()];
        let error = configure(&args, &Machine).unwrap_err();
        let is_meant = match error {
            UsageError::NoColon => bad == "k3y",
            UsageError::Header { .. } => true,
            _ => false,
        };
        assert!(is_meant, "{bad}");
        let text = error.to_string();
        assert!(!text.contains("k3y") && !text.contains("break"), "{text}");
    }
    for missing in ["NONE", "EMPTY"] {
        let mut args = args(url("https://x/"));
        args.bearer_env = Some(missing.to_owned());
        assert!(matches!(
            configure(&args, &Machine),
            Err(UsageError::Bearer(_))
        ));
    }
}

#[test]
fn a_name_to_resume_is_checked_and_is_for_a_url() {
    let mut args = args(url("https://x/"));
    args.state_dir = Some("/s".into());
    for bad in ["", "../x", "a b"] {
        args.resume = Some(bad.to_owned());
        let refused = configure(&args, &Machine);
        assert!(matches!(refused, Err(UsageError::ResumeName)), "{bad}");
    }
    args.resume = Some("name".to_owned());
    let config = configure(&args, &Machine).unwrap();
    assert_eq!(config.settings.state_dir, Path::new("/s"));
    args.state_dir = None;
    let refused = configure(&args, &Machine);
    assert!(matches!(refused, Err(UsageError::Settings(_))), "no folder");
    args.server = Server::Command {
        program: "x".to_owned(),
        args: Vec::new(),
    };
    let refused = configure(&args, &Machine);
    assert!(matches!(refused, Err(UsageError::ResumeProgram)));
}
