//! Exact accounting: what came in, in which order, and what was executed.
//!
//! Owns the log of one server and its optional ledger file. Must not know
//! faults or transports.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// One request or message as it came.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Seen {
    /// Place in the order of arrival, from 0.
    pub number: usize,
    /// The connection that carried it, counted from 0 (HTTP).
    pub connection: u64,
    /// HTTP method; empty on stdio.
    pub http: String,
    /// Request target as sent; empty on stdio.
    pub target: String,
    /// JSON-RPC method, `response` for a response, or nothing.
    pub method: Option<String>,
    /// Raw text of the JSON-RPC id.
    pub id: Option<String>,
    /// The `Mcp-Session-Id` header.
    pub session: Option<String>,
    /// The `MCP-Protocol-Version` header.
    pub protocol: Option<String>,
    /// All headers, names in lower case, the last value of each.
    pub headers: BTreeMap<String, String>,
    /// The body as text.
    pub body: String,
    /// Whether the session was initialised when this came; nothing if unknown.
    pub initialised: Option<bool>,
    /// The HTTP status answered; nothing while it is open or if it was cut.
    pub status: Option<u16>,
}

/// One execution of a tool.
#[derive(Clone, Debug, Serialize)]
pub struct Execution {
    /// The tool.
    pub tool: String,
    /// `arguments.id` where it is a string, else empty.
    pub id: String,
    /// The session in which it ran; `stdio` on stdio.
    pub session: String,
    /// The process in which it ran.
    pub pid: u32,
}

/// What a server has seen and done.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Log {
    /// Every request in the order of arrival.
    pub seen: Vec<Seen>,
    /// Every tool execution in order.
    pub executions: Vec<Execution>,
    /// Session ids in the order in which they were minted.
    pub minted: Vec<String>,
    /// `initialize` requests that came.
    pub initializes: u64,
    /// `initialize` requests that wrongly carried a session id.
    pub initializes_with_session: u64,
    /// `notifications/initialized` that came.
    pub initialized: u64,
    /// DELETE requests that came.
    pub deletes: u64,
    /// Requests without a session id although one had been minted (I14).
    pub without_session: u64,
    /// Requests into a session before it was initialised (I6).
    pub uninitialised: u64,
}

impl Log {
    /// How often a call with this `arguments.id` was executed.
    pub fn executed(&self, id: &str) -> usize {
        self.executions.iter().filter(|run| run.id == id).count()
    }

    /// How many requests with this JSON-RPC or HTTP method came.
    pub fn count(&self, method: &str) -> usize {
        self.of(method).count()
    }

    /// The requests with this JSON-RPC method, or HTTP method for GET/DELETE.
    pub fn of<'a>(&'a self, method: &'a str) -> impl Iterator<Item = &'a Seen> {
        self.seen
            .iter()
            .filter(move |seen| seen.method.as_deref() == Some(method) || seen.http == method)
    }
}

/// The account of one server.
#[derive(Debug, Default)]
pub struct Account {
    log: Mutex<Log>,
    ledger: Mutex<Option<File>>,
    changed: Notify,
}

impl Account {
    /// An account that also appends to a ledger file, one JSON line an event.
    pub fn with_ledger(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let account = Self::default();
        *account.ledger.lock() = Some(file);
        Ok(account)
    }

    /// A copy of the log.
    pub fn log(&self) -> Log {
        self.log.lock().clone()
    }

    /// Changes the log and wakes those who wait for a change.
    pub fn update<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        let value = change(&mut self.log.lock());
        self.changed.notify_waiters();
        value
    }

    /// Empties the log; the ledger file stays.
    pub fn reset(&self) {
        self.update(|log| *log = Log::default());
    }

    /// Waits until the log satisfies `done`. Cancel safe.
    pub async fn wait(&self, done: impl Fn(&Log) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if done(&self.log.lock()) {
                return;
            }
            changed.await;
        }
    }

    /// Enters an execution; the ledger has it before this returns.
    pub fn execute(&self, tool: &str, id: &str, session: &str) {
        let run = Execution {
            tool: tool.to_owned(),
            id: id.to_owned(),
            session: session.to_owned(),
            pid: std::process::id(),
        };
        self.event(
            "execute",
            &json!({"tool": tool, "id": id, "session": session}),
        );
        self.update(|log| log.executions.push(run));
    }

    /// Appends an event to the ledger file, if there is one.
    ///
    /// # Panics
    /// If the file cannot be written: a ledger with gaps would make tests lie.
    pub fn event(&self, name: &str, detail: &Value) {
        let mut ledger = self.ledger.lock();
        let Some(file) = ledger.as_mut() else { return };
        let line = format!(
            "{}\n",
            json!({"event": name, "pid": std::process::id(), "detail": detail})
        );
        // One write for the whole line, so that several processes can share
        // the file.
        assert!(
            file.write_all(line.as_bytes()).is_ok(),
            "the ledger cannot be written"
        );
    }
}
