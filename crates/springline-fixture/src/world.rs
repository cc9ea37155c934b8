//! The server behind both transports: sessions, faults, gates, account, and
//! the answer to each method.
//!
//! Owns dispatch. Must not know HTTP or pipes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::account::Account;
use crate::fault::Faults;
use crate::gate::Gates;
use crate::rpc::{self, Incoming};
use crate::session::{Line, Outbox, Session};
use crate::{conformance, faulty};

/// The revision answered when the client asks for one that we do not know.
pub const LATEST: &str = "2025-11-25";
const KNOWN: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", LATEST];

/// Which server this is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Face {
    /// The server for fault tests.
    #[default]
    Faulty,
    /// The server that the official conformance suite wants.
    Conformance,
}

/// How a request ends.
#[derive(Debug)]
pub enum Outcome {
    /// A raw result.
    Result(String),
    /// A JSON-RPC error.
    Error(i64, String),
    /// The connection is dropped, or the process ends with this code.
    Cut(u8),
    /// Nothing is answered.
    Silent,
}

impl Outcome {
    /// A result made of a value.
    pub fn value(value: &Value) -> Self {
        Self::Result(value.to_string())
    }

    /// A tool result of one text.
    pub fn text(text: &str) -> Self {
        Self::value(&json!({"content": [{"type": "text", "text": text}]}))
    }
}

/// One request being answered.
#[derive(Debug)]
pub struct Call {
    /// The server.
    pub world: Arc<World>,
    /// The session.
    pub session: Arc<Session>,
    /// The request.
    pub request: Incoming,
    /// Headers of the HTTP request; empty on stdio.
    pub headers: BTreeMap<String, String>,
    /// Where related messages go.
    pub outbox: Outbox,
}

impl Call {
    /// The raw id.
    pub fn id(&self) -> String {
        self.request.id_text().unwrap_or_else(|| "null".to_owned())
    }

    /// Sends a related notification.
    pub fn notify(&self, method: &str, params: &Value) {
        self.outbox
            .message(rpc::notification(method, &params.to_string()));
    }

    /// Sends a log message at `info`, if the client wants it.
    pub fn log(&self, text: &str) {
        if self.session.wants("info") {
            self.notify(
                "notifications/message",
                &json!({"level": "info", "logger": "fixture", "data": text}),
            );
        }
    }

    /// Sends progress, if the request has a token; the token's text is kept.
    pub fn progress(&self, progress: u64, total: u64) {
        if let Some(token) = self.request.progress_token() {
            self.outbox.message(rpc::notification(
                "notifications/progress",
                &format!(r#"{{"progressToken":{token},"progress":{progress},"total":{total}}}"#),
            ));
        }
    }

    /// Asks the client on the related stream.
    pub async fn ask(&self, method: &str, params: &Value) -> Option<Value> {
        let raw = self
            .session
            .ask(&self.outbox, method, &params.to_string())
            .await?;
        serde_json::from_str(&raw).ok()
    }
}

/// One server.
#[derive(Debug)]
pub struct World {
    /// Which server it is.
    pub face: Face,
    /// Its faults.
    pub faults: Faults,
    /// Its gates.
    pub gates: Gates,
    /// Its account.
    pub account: Account,
    sessions: Mutex<BTreeMap<String, Arc<Session>>>,
    minted: AtomicU64,
    added_tools: AtomicU64,
    revision: AtomicU64,
    key: u64,
}

impl World {
    /// A server without sessions.
    pub fn new(face: Face, faults: Faults, account: Account) -> Self {
        use std::hash::{BuildHasher, Hasher};
        let key = std::collections::hash_map::RandomState::new()
            .build_hasher()
            .finish();
        Self {
            face,
            faults,
            gates: Gates::default(),
            account,
            sessions: Mutex::default(),
            minted: AtomicU64::new(0),
            added_tools: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            key,
        }
    }

    /// Mints a session over HTTP.
    pub fn mint(&self) -> Arc<Session> {
        let number = self.minted.fetch_add(1, Ordering::SeqCst);
        let id = format!("fx-{:016x}-{number}", self.key);
        let session = Arc::new(Session::over_http(id.clone()));
        self.adopt(Arc::clone(&session));
        self.account.update(|log| log.minted.push(id));
        session
    }

    /// Enters a session.
    pub fn adopt(&self, session: Arc<Session>) {
        self.sessions.lock().insert(session.id.clone(), session);
    }

    /// The session with this id.
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.lock().get(id).cloned()
    }

    /// All sessions.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Ends a session; false if there is none.
    pub fn end(&self, id: &str) -> bool {
        self.sessions.lock().remove(id).is_some()
    }

    /// Forgets all sessions, as a restarted server does.
    pub fn forget(&self) {
        self.sessions.lock().clear();
    }

    /// Changes `test://watched` and tells the subscribers.
    pub fn update_resource(&self) {
        self.revision.fetch_add(1, Ordering::SeqCst);
        let text = rpc::notification(
            "notifications/resources/updated",
            &json!({"uri": faulty::WATCHED}).to_string(),
        );
        for session in self.sessions() {
            if session.subscriptions().contains(faulty::WATCHED) {
                session.standalone.message(text.clone());
            }
        }
    }

    /// How often `test://watched` was changed.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    /// Adds a tool and tells every session.
    pub fn add_tool(&self) {
        self.added_tools.fetch_add(1, Ordering::SeqCst);
        for session in self.sessions() {
            session
                .standalone
                .message(rpc::notification("notifications/tools/list_changed", "{}"));
        }
    }

    /// How many tools were added.
    pub fn added_tools(&self) -> u64 {
        self.added_tools.load(Ordering::SeqCst)
    }
}

/// Answers one request onto its outbox. Runs to its end even if the client is
/// gone; a cancelled call answers nothing.
///
/// The call can be cancelled as soon as this has returned the future.
pub fn serve(call: Call) -> impl Future<Output = ()> + Send {
    let cancelled = call.session.begin(&call.id());
    run(call, cancelled)
}

async fn run(call: Call, cancelled: Arc<Notify>) {
    let id = call.id();
    let session = Arc::clone(&call.session);
    let outbox = call.outbox.clone();
    let outcome = tokio::select! {
        outcome = answer(&call) => outcome,
        () = cancelled.notified() => Outcome::Silent,
    };
    session.end(&id);
    match (outcome, &outbox) {
        (Outcome::Result(result), _) if call.world.faults.settings().id_last => {
            outbox.message(rpc::result_id_last(&id, &result));
        }
        (Outcome::Result(result), _) => outbox.message(rpc::result(&id, &result)),
        (Outcome::Error(code, message), _) => {
            outbox.message(rpc::error(Some(&id), code, &message));
        }
        (Outcome::Cut(_), Outbox::Stream(stream)) => stream.push(crate::session::Entry::Cut),
        (Outcome::Cut(code), Outbox::Pipe(pipe)) => drop(pipe.send(Line::Exit(code))),
        (Outcome::Silent, _) => {}
    }
    if let Outbox::Stream(stream) = &outbox {
        stream.finish();
    }
}

async fn answer(call: &Call) -> Outcome {
    let method = call.request.method.as_deref().unwrap_or_default();
    let params = call.request.params_value();
    let session = &call.session;
    match method {
        "initialize" => initialize(call, &params),
        "ping" => Outcome::Result("{}".to_owned()),
        "logging/setLevel" => match params["level"].as_str() {
            Some(level) if session.set_level(level) => Outcome::Result("{}".to_owned()),
            _ => Outcome::Error(-32602, "Unknown level".to_owned()),
        },
        "resources/subscribe" | "resources/unsubscribe" => {
            let Some(uri) = params["uri"].as_str() else {
                return Outcome::Error(-32602, "uri is missing".to_owned());
            };
            if method == "resources/subscribe" {
                session.subscribe(uri);
            } else {
                session.unsubscribe(uri);
            }
            Outcome::Result("{}".to_owned())
        }
        _ => match call.world.face {
            Face::Faulty => faulty::answer(call, method, &params).await,
            Face::Conformance => conformance::answer(call, method, &params).await,
        },
    }
}

/// What every server here declares.
pub fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "prompts": {"listChanged": true},
        "completions": {},
        "logging": {},
    })
}

fn initialize(call: &Call, params: &Value) -> Outcome {
    let asked = params["protocolVersion"].as_str().unwrap_or(LATEST);
    let known = if KNOWN.contains(&asked) {
        asked
    } else {
        LATEST
    };
    let version = call.world.faults.settings().version;
    let version = version.as_deref().unwrap_or(known);
    call.session.open(version, params["capabilities"].clone());
    Outcome::value(&json!({
        "protocolVersion": version,
        "capabilities": capabilities(),
        "serverInfo": {"name": "springline-fixture", "version": env!("CARGO_PKG_VERSION")},
        "instructions": "A test peer.",
    }))
}

/// Takes a notification or response of the client.
pub fn accept(world: &World, session: &Session, message: &Incoming) {
    match message.method.as_deref() {
        Some("notifications/initialized") => {
            session.set_initialised();
            world.account.update(|log| log.initialized += 1);
        }
        Some("notifications/cancelled") => {
            if let Some(id) = message.param_text("requestId") {
                session.cancel(&id);
            }
        }
        Some(_) => {}
        None => {
            let outcome = message.result.as_ref().or(message.error.as_ref());
            if let (Some(id), Some(outcome)) = (message.id_text(), outcome) {
                session.respond(&id, outcome.get().to_owned());
            }
        }
    }
}
