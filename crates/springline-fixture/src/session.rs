//! Sessions and the streams of their messages.
//!
//! Owns in-session state and the order of what is sent to a client. Must not
//! know how a stream reaches the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::rpc;

/// One thing to do on a stream.
#[derive(Clone, Debug)]
pub enum Entry {
    /// An event with an id and empty data, and a `retry`.
    Priming,
    /// A JSON-RPC message.
    Message(String),
    /// The body ends here, once; a resumed body goes on behind it.
    Close,
    /// The connection is dropped here, once.
    Cut,
    /// A `Close` or `Cut` that was carried out.
    Spent,
}

#[derive(Debug, Default)]
struct StreamState {
    entries: Vec<Entry>,
    done: bool,
    delivered: usize,
}

/// The messages of one stream, kept so that it can be resumed.
#[derive(Debug)]
pub struct Stream {
    /// Number in the session; part of every event id.
    pub number: u64,
    state: Mutex<StreamState>,
    changed: Notify,
}

impl Stream {
    /// An empty stream.
    pub fn new(number: u64) -> Self {
        Self {
            number,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Appends an entry.
    pub fn push(&self, entry: Entry) {
        self.state.lock().entries.push(entry);
        self.changed.notify_waiters();
    }

    /// Nothing more will come.
    pub fn finish(&self) {
        self.state.lock().done = true;
        self.changed.notify_waiters();
    }

    /// The first entry that no reader has had yet.
    pub fn delivered(&self) -> usize {
        self.state.lock().delivered
    }

    /// Whether its events carry ids.
    pub fn primed(&self) -> bool {
        let state = self.state.lock();
        state
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Priming))
    }

    /// The last message, once the stream has ended.
    pub async fn last(&self) -> Option<String> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.done {
                    return state.entries.iter().rev().find_map(|entry| match entry {
                        Entry::Message(text) => Some(text.clone()),
                        _ => None,
                    });
                }
            }
            changed.await;
        }
    }

    /// A reader has had everything before `at`.
    pub fn mark(&self, at: usize) {
        let mut state = self.state.lock();
        state.delivered = state.delivered.max(at);
    }

    /// The entry at `at`; nothing when the stream has ended before it.
    ///
    /// Cancel safe. A `Close` or `Cut` is spent by being read.
    pub async fn next(&self, at: usize) -> Option<Entry> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if let Some(entry) = state.entries.get_mut(at) {
                    let found = entry.clone();
                    if matches!(found, Entry::Close | Entry::Cut) {
                        *entry = Entry::Spent;
                    }
                    return Some(found);
                }
                if state.done {
                    return None;
                }
            }
            changed.await;
        }
    }
}

/// A step of the writer on stdio.
#[derive(Clone, Debug)]
pub enum Line {
    /// A message to write.
    Message(String),
    /// The process ends with this code.
    Exit(u8),
}

/// Where messages of a call or a session go.
#[derive(Clone, Debug)]
pub enum Outbox {
    /// A stream over HTTP.
    Stream(Arc<Stream>),
    /// The one pipe of stdio.
    Pipe(mpsc::UnboundedSender<Line>),
}

impl Outbox {
    /// Sends a message.
    pub fn message(&self, text: String) {
        match self {
            Self::Stream(stream) => stream.push(Entry::Message(text)),
            // A closed pipe means that the process is about to end.
            Self::Pipe(pipe) => drop(pipe.send(Line::Message(text))),
        }
    }

    /// Sends a priming event; nothing on stdio.
    pub fn prime(&self) {
        if let Self::Stream(stream) = self {
            stream.push(Entry::Priming);
        }
    }

    /// Ends the present body of a stream; nothing on stdio.
    pub fn close(&self) {
        if let Self::Stream(stream) = self {
            stream.push(Entry::Close);
        }
    }
}

#[derive(Debug, Default)]
struct SessionState {
    counter: u64,
    level: usize,
    protocol: String,
    capabilities: Value,
    subscriptions: BTreeSet<String>,
    pending: BTreeMap<u64, oneshot::Sender<String>>,
    running: BTreeMap<String, Arc<Notify>>,
    streams: BTreeMap<u64, Arc<Stream>>,
}

/// One session of one client.
#[derive(Debug)]
pub struct Session {
    /// The id; `stdio` on stdio.
    pub id: String,
    /// Where messages outside any call go.
    pub standalone: Outbox,
    initialised: AtomicBool,
    next_request: AtomicU64,
    next_stream: AtomicU64,
    state: Mutex<SessionState>,
}

const LEVELS: [&str; 8] = [
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
];

impl Session {
    /// A session that was not initialised yet.
    pub fn new(id: String, standalone: Outbox) -> Self {
        Self {
            id,
            standalone,
            initialised: AtomicBool::new(false),
            next_request: AtomicU64::new(1),
            next_stream: AtomicU64::new(1),
            state: Mutex::default(),
        }
    }

    /// A session over HTTP with a standalone stream, which is number 0.
    pub fn over_http(id: String) -> Self {
        let standalone = Arc::new(Stream::new(0));
        let session = Self::new(id, Outbox::Stream(Arc::clone(&standalone)));
        session.state.lock().streams.insert(0, standalone);
        session
    }

    /// Keeps what the client said in `initialize`.
    pub fn open(&self, protocol: &str, capabilities: Value) {
        let mut state = self.state.lock();
        protocol.clone_into(&mut state.protocol);
        state.capabilities = capabilities;
    }

    /// `notifications/initialized` came.
    pub fn set_initialised(&self) {
        self.initialised.store(true, Ordering::SeqCst);
    }

    /// Whether `notifications/initialized` came.
    pub fn initialised(&self) -> bool {
        self.initialised.load(Ordering::SeqCst)
    }

    /// The revision in use.
    pub fn protocol(&self) -> String {
        self.state.lock().protocol.clone()
    }

    /// What the client declared.
    pub fn capabilities(&self) -> Value {
        self.state.lock().capabilities.clone()
    }

    /// Counts up and gives the new value.
    pub fn count(&self) -> u64 {
        let mut state = self.state.lock();
        state.counter += 1;
        state.counter
    }

    /// Sets the log level; false if there is no such level.
    pub fn set_level(&self, level: &str) -> bool {
        let found = LEVELS.iter().position(|name| *name == level);
        if let Some(at) = found {
            self.state.lock().level = at;
        }
        found.is_some()
    }

    /// The log level, `debug` at first.
    pub fn level(&self) -> &'static str {
        LEVELS
            .get(self.state.lock().level)
            .copied()
            .unwrap_or("debug")
    }

    /// Whether messages of this level are wanted.
    pub fn wants(&self, level: &str) -> bool {
        LEVELS
            .iter()
            .position(|name| *name == level)
            .is_some_and(|at| at >= self.state.lock().level)
    }

    /// Subscribes to a resource.
    pub fn subscribe(&self, uri: &str) {
        self.state.lock().subscriptions.insert(uri.to_owned());
    }

    /// Ends a subscription.
    pub fn unsubscribe(&self, uri: &str) {
        self.state.lock().subscriptions.remove(uri);
    }

    /// All subscriptions.
    pub fn subscriptions(&self) -> BTreeSet<String> {
        self.state.lock().subscriptions.clone()
    }

    /// A new stream for one request.
    pub fn stream(&self) -> Arc<Stream> {
        let number = self.next_stream.fetch_add(1, Ordering::SeqCst);
        let stream = Arc::new(Stream::new(number));
        self.state
            .lock()
            .streams
            .insert(number, Arc::clone(&stream));
        stream
    }

    /// The stream with this number.
    pub fn find_stream(&self, number: u64) -> Option<Arc<Stream>> {
        self.state.lock().streams.get(&number).cloned()
    }

    /// Asks the client and waits for the raw result or error.
    ///
    /// Nothing comes back if the session ends before.
    pub async fn ask(&self, outbox: &Outbox, method: &str, params: &str) -> Option<String> {
        let id = self.next_request.fetch_add(1, Ordering::SeqCst);
        let (answer, answered) = oneshot::channel();
        self.state.lock().pending.insert(id, answer);
        outbox.message(rpc::request(id, method, params));
        answered.await.ok()
    }

    /// A response of the client; false if nobody asked.
    pub fn respond(&self, id: &str, outcome: String) -> bool {
        let Ok(id) = id.parse() else { return false };
        match self.state.lock().pending.remove(&id) {
            Some(waiting) => waiting.send(outcome).is_ok(),
            None => false,
        }
    }

    /// Enters a call; the notification cancels it.
    pub fn begin(&self, id: &str) -> Arc<Notify> {
        let cancelled = Arc::new(Notify::new());
        self.state
            .lock()
            .running
            .insert(id.to_owned(), Arc::clone(&cancelled));
        cancelled
    }

    /// A call has ended.
    pub fn end(&self, id: &str) {
        self.state.lock().running.remove(id);
    }

    /// Cancels a call; false if it is not running.
    pub fn cancel(&self, id: &str) -> bool {
        match self.state.lock().running.remove(id) {
            Some(call) => {
                call.notify_one();
                true
            }
            None => false,
        }
    }
}
