//! The carrying of one session, against a scripted gate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use springline_engine::downstream::{Gate, OpenError, Parts, Principal, Session};
use springline_proto::message::{Message, ParseError};
use springline_proto::session::{Accept, Downstream, Endpoint, Part};
use springline_proto::version::Version;
use tokio::sync::{mpsc, watch};

use super::carry;
use crate::stdio::{Client, Deaf};

/// A gate with one session that hears lines and says what the test wants.
struct Script(Arc<One>);

struct One {
    heard: mpsc::Sender<String>,
    says: Mutex<Option<mpsc::Receiver<Part>>>,
    is_closed: watch::Sender<bool>,
}

impl Gate for Script {
    type Session = One;

    fn open(
        &self,
        _principal: &Principal,
        endpoint: Endpoint,
        kind: Downstream,
    ) -> Result<Arc<One>, OpenError> {
        assert_eq!(kind, Downstream::Pipe);
        match endpoint {
            Endpoint::One(_) => Ok(Arc::clone(&self.0)),
            Endpoint::All => Err(OpenError::Stopping),
        }
    }

    fn find(&self, _: &str, _: &Principal, _: &Endpoint) -> Option<Arc<One>> {
        None
    }
}

impl Session for One {
    type Parts = Said;

    fn id(&self) -> &'static str {
        "one"
    }

    fn version(&self) -> Option<Version> {
        None
    }

    fn post(self: &Arc<Self>, _: Message, _: Accept) -> Said {
        unreachable!("a pipe has no posts")
    }

    fn listen(self: &Arc<Self>, _: Option<Box<str>>) -> Said {
        unreachable!("a pipe has no streams")
    }

    fn pipe(self: &Arc<Self>) -> Said {
        Said(self.says.lock().take().unwrap())
    }

    fn line(&self, message: Result<Message, ParseError>) {
        let text = match message {
            Ok(message) => message.method().unwrap_or_default().into_owned(),
            Err(error) => error.code().to_string(),
        };
        self.heard.try_send(text).unwrap();
    }

    fn close(&self) {
        self.is_closed.send_replace(true);
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
    let gate = Script(Arc::clone(&one));
    let task = tokio::spawn(async move { carry(&gate, endpoint, &mut front).await });
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
