//! MCP servers behind Streamable HTTP (2025-03-26 to 2025-11-25 basic/transports).
//!
//! Owns: connections, requests, answers, event streams, credentials and cookies of HTTP servers. It
//! must not know what a method means or whether something is sent again: the upstream machine says
//! what to do, and hears what happened. Nothing that may have left is ever sent again here (I4).
//!
//! One [`HttpTransport`] serves one upstream machine; connections, TLS and proxies are shared
//! through [`HttpShared`]. HTTP/1.1 only.

mod answer;
mod auth;
mod body;
mod cookie;
mod dial;
mod exchange;
mod pool;
mod proxy;
mod request;
mod tls;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use springline_proto::call::{ExchangeId, Generation};
use springline_proto::json::Pieces;
use springline_proto::settings::BODY_MAX;
use springline_proto::upstream::{Input, Purpose, Route};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use url::Url;

pub use self::auth::{Credentials, CredentialsError, HttpAuth};
pub use self::proxy::ProxyEnv;

use self::cookie::Jar;
use self::exchange::Exchange;
use self::pool::Pool;
use self::tls::Tls;
use super::Sink;
use crate::spawn;

/// Reads the sources of an entry's credentials again; may block on files. The error is for people
/// and holds no value.
pub type Reread = Arc<dyn Fn() -> Result<Credentials, String> + Send + Sync>;

/// Hears how the DELETE of a session ended.
pub type DeleteWatch = Arc<dyn Fn(Generation, DeleteOutcome) + Send + Sync>;

/// What an entry says of its server.
#[derive(Clone)]
pub struct HttpSpec {
    /// The name of the entry.
    pub server: Arc<str>,
    /// The endpoint; `http` or `https`. User information in it becomes `Basic` if nothing else
    /// authenticates.
    pub url: Url,
    /// The expanded headers and authentication.
    pub credentials: Credentials,
    /// How to read them again.
    pub reread: Reread,
    /// A PEM file of authorities to trust beside the system's.
    pub ca: Option<PathBuf>,
    /// Who hears of DELETEs.
    pub on_delete: Option<DeleteWatch>,
}

impl fmt::Debug for HttpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSpec")
            .field("server", &self.server)
            .field("url", &request::place_of(&self.url))
            .field("credentials", &self.credentials)
            .field("ca", &self.ca)
            .finish_non_exhaustive()
    }
}

/// The bounds of one transport.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Bytes of one JSON answer or one event, decoded.
    pub body_max: usize,
    /// Bytes that are read of a refusal's body.
    pub refusal_max: usize,
    /// From the name to a connection that can carry a request, TLS and proxy included.
    pub connect_timeout: Duration,
    /// For the DELETE of a session, all in all.
    pub delete_timeout: Duration,
}

/// For the one DELETE that ends a session with a server.
pub const DELETE_TIMEOUT: Duration = Duration::from_secs(5);

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_max: BODY_MAX,
            refusal_max: 4 * 1024,
            connect_timeout: Duration::from_secs(10),
            delete_timeout: DELETE_TIMEOUT,
        }
    }
}

/// How the one attempt to end a session with its server went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DeleteOutcome {
    /// 2xx.
    Done,
    /// Another status: 405 says that the server ends sessions itself, 404 that it was gone.
    Refused(u16),
    /// No answer in time.
    TimedOut,
    /// No connection, or a broken one.
    Failed(Box<str>),
}

impl fmt::Display for DeleteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("done"),
            Self::Refused(status) => write!(f, "refused with {status}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Failed(cause) => write!(f, "failed: {cause}"),
        }
    }
}

/// The wall clock that signatures, cookies and `Retry-After` go by.
pub type Wall = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What all HTTP transports of a gateway share.
pub struct HttpShared {
    pool: Arc<Pool>,
    tls: Arc<Tls>,
    proxies: ProxyEnv,
    wall: Wall,
}

impl HttpShared {
    /// Nothing is opened or read yet.
    pub fn new(proxies: ProxyEnv, wall: Wall) -> Self {
        Self {
            pool: Arc::default(),
            tls: Arc::default(),
            proxies,
            wall,
        }
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        self.pool.clear();
    }

    fn wall(&self) -> SystemTime {
        (self.wall)()
    }
}

/// What the tasks of one transport share.
struct Wire {
    spec: HttpSpec,
    sink: Arc<dyn Sink>,
    limits: HttpLimits,
    shared: Arc<HttpShared>,
    /// What the next attempt is signed with. A lock and no watch: it is only read and swapped.
    credentials: Mutex<Arc<Credentials>>,
    /// What the last 401 or 403 was an answer to.
    refused: Mutex<Option<Arc<Credentials>>>,
}

/// What lives as long as one generation.
#[derive(Default)]
struct Instance {
    jar: Mutex<Jar>,
    /// The exchanges under way. Who takes one out of here reports its end.
    exchanges: Mutex<HashMap<ExchangeId, AbortHandle>>,
}

impl Instance {
    fn drop_all(&self) {
        let dropped = std::mem::take(&mut *self.exchanges.lock());
        for task in dropped.into_values() {
            task.abort();
        }
    }
}

/// The HTTP side of one upstream. Methods return at once and need a tokio runtime; what happens is
/// reported to the sink, also from inside a call.
pub struct HttpTransport {
    wire: Arc<Wire>,
    instances: Mutex<BTreeMap<Generation, Arc<Instance>>>,
    /// DELETEs under way; bounded by their timeout, and by the machine, which ends one instance
    /// after the other.
    deletes: watch::Sender<usize>,
}

/// A DELETE under way; whoever shuts down waits until it is dropped.
struct OpenDelete(watch::Sender<usize>);

impl OpenDelete {
    fn new(open: &watch::Sender<usize>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open.clone())
    }
}

impl Drop for OpenDelete {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl HttpTransport {
    /// Nothing is opened yet.
    pub fn new(
        mut spec: HttpSpec,
        sink: Arc<dyn Sink>,
        limits: HttpLimits,
        shared: Arc<HttpShared>,
    ) -> Self {
        let credentials = Arc::new(
            std::mem::replace(&mut spec.credentials, Credentials::none()).or_basic(&spec.url),
        );
        let wire = Wire {
            spec,
            sink,
            limits,
            shared,
            credentials: Mutex::new(credentials),
            refused: Mutex::new(None),
        };
        Self {
            wire: Arc::new(wire),
            instances: Mutex::default(),
            deletes: watch::Sender::new(0),
        }
    }

    /// Begins a generation. Reports `Opened` at once: a connection is made when a request needs it.
    pub fn open(&self, generation: Generation) {
        self.instances.lock().entry(generation).or_default();
        self.wire.sink.input(Input::Opened { generation });
    }

    /// Sends one message by POST. `repeatable` says whether it may go on a connection that could be
    /// closing.
    pub fn send(
        &self,
        generation: Generation,
        exchange: ExchangeId,
        body: Pieces,
        purpose: Purpose,
        route: Route,
        repeatable: bool,
    ) {
        self.start(generation, exchange, "http exchange", |exchange| {
            exchange.post(body, purpose, route, repeatable)
        });
    }

    /// Goes on with the broken stream of an exchange, by GET, after a pause.
    pub fn resume(
        &self,
        generation: Generation,
        exchange: ExchangeId,
        last_event_id: Arc<str>,
        delay: Duration,
        route: Route,
    ) {
        self.start(generation, exchange, "http resumption", |exchange| {
            exchange.stream(Some(last_event_id), delay, route)
        });
    }

    /// Opens the standalone GET stream, after a pause.
    pub fn listen(
        &self,
        generation: Generation,
        exchange: ExchangeId,
        last_event_id: Option<Arc<str>>,
        delay: Duration,
        route: Route,
    ) {
        self.start(generation, exchange, "http stream", |exchange| {
            exchange.stream(last_event_id, delay, route)
        });
    }

    /// Drops an exchange; its connection is closed and no end is reported.
    pub fn abort(&self, generation: Generation, exchange: ExchangeId) {
        let Some(instance) = self.instances.lock().get(&generation).cloned() else {
            return;
        };
        let dropped = instance.exchanges.lock().remove(&exchange);
        if let Some(task) = dropped {
            task.abort();
        }
    }

    /// Reads the credential sources again and reports whether they differ from what was refused.
    pub fn refresh_credentials(&self) {
        let wire = Arc::clone(&self.wire);
        spawn::named("http credentials", async move {
            let reread = Arc::clone(&wire.spec.reread);
            let read = tokio::task::spawn_blocking(move || reread()).await;
            let fresh = read.unwrap_or_else(|error| Err(error.to_string()));
            let changed = match fresh {
                Ok(fresh) => wire.swap(fresh.or_basic(&wire.spec.url)),
                Err(error) => {
                    let server = &wire.spec.server;
                    tracing::warn!(%server, error, "credentials could not be read again");
                    false
                }
            };
            wire.sink.input(Input::Credentials { changed });
        });
    }

    /// Ends a generation: all its exchanges are dropped and nothing more is heard of it. With
    /// `delete`, its session is ended with the server by one best-effort DELETE.
    pub fn end(&self, generation: Generation, delete: bool, route: Route) {
        let instance = self
            .instances
            .lock()
            .remove(&generation)
            .unwrap_or_default();
        instance.drop_all();
        if !delete || route.session_id.is_none() {
            return;
        }
        let wire = Arc::clone(&self.wire);
        let open = OpenDelete::new(&self.deletes);
        spawn::named("http delete", async move {
            exchange::delete(wire, instance, generation, route).await;
            drop(open);
        });
    }

    /// Drops all exchanges and waits for the DELETEs under way, each bounded by its own limit.
    /// Sends nothing new: sessions are kept unless they were ended. Cancel
    /// safe, and any number of callers may wait.
    pub async fn shut_down(&self) {
        let instances = std::mem::take(&mut *self.instances.lock());
        for instance in instances.into_values() {
            instance.drop_all();
        }
        let mut open = self.deletes.subscribe();
        // It fails only without a sender, and that is ours.
        drop(open.wait_for(|open| *open == 0).await);
    }

    /// Runs an exchange under its name. One of a generation that is not open, which the machine
    /// would not ask for, is left out.
    fn start<F>(
        &self,
        generation: Generation,
        id: ExchangeId,
        name: &'static str,
        run: impl FnOnce(Exchange) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(instance) = self.instances.lock().get(&generation).cloned() else {
            tracing::debug!(%generation, "an exchange of a generation that is not open");
            return;
        };
        let wire = Arc::clone(&self.wire);
        let task = run(Exchange {
            wire,
            instance: Arc::clone(&instance),
            generation,
            id,
        });
        // The lock is held over the start, so that the task cannot end before it is listed.
        let mut exchanges = instance.exchanges.lock();
        let before = exchanges.insert(id, spawn::named(name, task).abort_handle());
        if let Some(before) = before {
            before.abort();
        }
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        for instance in std::mem::take(self.instances.get_mut()).into_values() {
            instance.drop_all();
        }
    }
}

impl Wire {
    /// Takes in fresh credentials. Answers whether they differ from those that were refused; with
    /// none refused, from those in use.
    fn swap(&self, fresh: Credentials) -> bool {
        let mut current = self.credentials.lock();
        let refused = self.refused.lock().clone();
        let changed = fresh != *refused.unwrap_or_else(|| Arc::clone(&current));
        if fresh != **current {
            *current = Arc::new(fresh);
        }
        changed
    }
}

/// An error and its sources in one line.
fn text_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        // Some libraries repeat the source in their own text.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = inner.source();
    }
    text
}
