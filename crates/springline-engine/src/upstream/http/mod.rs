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
mod chunk;
mod cookie;
mod dial;
mod exchange;
mod field;
mod framing;
mod pool;
mod proxy;
mod request;
mod site;
mod stretch;
mod tls;
mod window;

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Waker};
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
use self::site::Site;
use self::tls::Tls;
use super::Sink;
use crate::spawn::{self, Errand, Recall};

/// Where an HTTP transport reports to, and what it asks there: each upstream has one, so there is
/// nothing between it and the owner of the machine.
pub trait HttpSink: Sink {
    /// Reads the sources of the entry's credentials again; may block on files. The error is for
    /// people and holds no value.
    fn reread(&self) -> Result<Credentials, String>;

    /// The DELETE of a session ended so.
    fn deleted(&self, generation: Generation, outcome: DeleteOutcome);
}

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
    /// A PEM file of authorities to trust beside the system's.
    pub ca: Option<PathBuf>,
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
    /// The sites of entries in use, since all sessions of an entry have the same. Held for a look or
    /// a change.
    sites: Mutex<Vec<Arc<Site>>>,
}

impl HttpShared {
    /// Nothing is opened or read yet.
    pub fn new(proxies: ProxyEnv, wall: Wall) -> Self {
        Self {
            pool: Arc::default(),
            tls: Arc::default(),
            proxies,
            wall,
            sites: Mutex::default(),
        }
    }

    /// Where the requests of an entry go.
    fn site(&self, spec: &HttpSpec) -> Result<Arc<Site>, Box<str>> {
        let mut sites = self.sites.lock();
        if let Some(site) = sites.iter().find(|site| site.is_of(spec)) {
            return Ok(Arc::clone(site));
        }
        sites.retain(|site| Arc::strong_count(site) > 1);
        let (server, ca) = (Arc::clone(&spec.server), spec.ca.clone());
        let site = Arc::new(Site::of(spec.url.clone(), server, ca, &self.proxies)?);
        sites.push(Arc::clone(&site));
        Ok(site)
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
    server: Arc<str>,
    /// Where requests go first, or why none can.
    site: Result<Arc<Site>, Box<str>>,
    sink: Weak<dyn HttpSink>,
    limits: Arc<HttpLimits>,
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
    exchanges: Mutex<Vec<(ExchangeId, Running)>>,
}

/// Exchanges for which an idle instance keeps room: one call at a time is what most clients have.
const EXCHANGES_KEPT: usize = 1;

/// What runs an exchange.
enum Running {
    /// A task of its own.
    Task(AbortHandle),
    /// The task of the client that waits for it, which is woken when it is dropped.
    Errand(Option<Waker>),
}

impl Running {
    fn abort(self) {
        match self {
            Self::Task(task) => task.abort(),
            Self::Errand(Some(waker)) => waker.wake(),
            Self::Errand(None) => {}
        }
    }
}

impl Instance {
    fn drop_all(&self) {
        let dropped = std::mem::take(&mut *self.exchanges.lock());
        for (_, running) in dropped {
            running.abort();
        }
    }

    fn remove(&self, id: ExchangeId) -> Option<Running> {
        let mut exchanges = self.exchanges.lock();
        let at = exchanges.iter().position(|(held, _)| *held == id)?;
        let (_, running) = exchanges.swap_remove(at);
        if exchanges.is_empty() && exchanges.capacity() > EXCHANGES_KEPT {
            *exchanges = Vec::new();
        }
        Some(running)
    }
}

/// Exchanges that are errands are wanted until they are dropped.
impl Recall for Instance {
    fn is_wanted(&self, number: u64, cx: &Context<'_>) -> bool {
        let mut exchanges = self.exchanges.lock();
        let found = exchanges
            .iter_mut()
            .find(|(held, _)| *held == ExchangeId(number));
        let Some((_, Running::Errand(waker))) = found else {
            return false;
        };
        if !waker
            .as_ref()
            .is_some_and(|held| held.will_wake(cx.waker()))
        {
            *waker = Some(cx.waker().clone());
        }
        true
    }
}

/// One message to the server, as the machine's output says it.
#[derive(Debug)]
pub struct Post {
    /// The message.
    pub body: Pieces,
    /// What for.
    pub purpose: Purpose,
    /// Headers of the session.
    pub route: Route,
    /// Whether it may go on a connection that could be closing.
    pub repeatable: bool,
    /// Whether a large answer may be reported in stretches.
    pub stretches: bool,
}

/// The HTTP side of one upstream. Methods return at once and need a tokio runtime; what happens is
/// reported to the sink, also from inside a call.
pub struct HttpTransport {
    wire: Arc<Wire>,
    /// Few, mostly one.
    instances: Mutex<Vec<(Generation, Arc<Instance>)>>,
    /// DELETEs under way, once there was one; bounded by their timeout, and by the machine, which
    /// ends one instance after the other.
    deletes: OnceLock<watch::Sender<usize>>,
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
    /// Nothing is opened yet. Nothing is reported once the sink is gone.
    pub fn new(
        mut spec: HttpSpec,
        sink: Weak<dyn HttpSink>,
        limits: Arc<HttpLimits>,
        shared: Arc<HttpShared>,
    ) -> Self {
        let credentials =
            std::mem::replace(&mut spec.credentials, Credentials::none()).or_basic(&spec.url);
        let site = shared.site(&spec);
        let credentials = match &site {
            Ok(site) => site.shared(credentials),
            Err(_) => Arc::new(credentials),
        };
        let wire = Wire {
            site,
            server: spec.server,
            sink,
            limits,
            shared,
            credentials: Mutex::new(credentials),
            refused: Mutex::new(None),
        };
        Self {
            wire: Arc::new(wire),
            instances: Mutex::default(),
            deletes: OnceLock::new(),
        }
    }

    /// Begins a generation. Reports `Opened` at once: a connection is made when a request needs it.
    pub fn open(&self, generation: Generation) {
        if self.instance(generation).is_none() {
            let mut instances = self.instances.lock();
            instances.reserve_exact(1);
            instances.push((generation, Arc::default()));
        }
        self.wire.report(Input::Opened { generation });
    }

    /// Sends one message. `errand` may take the exchange along, if it has room.
    pub fn send(
        &self,
        generation: Generation,
        exchange: ExchangeId,
        post: Post,
        errand: &mut Errand,
    ) {
        self.start(
            generation,
            exchange,
            "http exchange",
            errand,
            move |exchange| exchange.post(post),
        );
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
        let none = &mut Errand::none();
        self.start(
            generation,
            exchange,
            "http resumption",
            none,
            move |exchange| exchange.stream(Some(last_event_id), delay, route),
        );
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
        let none = &mut Errand::none();
        self.start(generation, exchange, "http stream", none, move |exchange| {
            exchange.stream(last_event_id, delay, route)
        });
    }

    /// Drops an exchange; its connection is closed and no end is reported.
    pub fn abort(&self, generation: Generation, exchange: ExchangeId) {
        let Some(instance) = self.instance(generation) else {
            return;
        };
        let dropped = instance.remove(exchange);
        if let Some(running) = dropped {
            running.abort();
        }
    }

    /// Reads the credential sources again and reports whether they differ from what was refused.
    pub fn refresh_credentials(&self) {
        let wire = Arc::clone(&self.wire);
        spawn::named("http credentials", async move {
            let Some(sink) = wire.sink.upgrade() else {
                return;
            };
            let read = tokio::task::spawn_blocking(move || sink.reread()).await;
            let fresh = read.unwrap_or_else(|error| Err(error.to_string()));
            let changed = match fresh {
                Ok(fresh) => wire.swap(match &wire.site {
                    Ok(site) => fresh.or_basic(&site.url),
                    Err(_) => fresh,
                }),
                Err(error) => {
                    let server = &wire.server;
                    tracing::warn!(%server, error, "credentials could not be read again");
                    false
                }
            };
            wire.report(Input::Credentials { changed });
        });
    }

    /// Ends a generation: all its exchanges are dropped and nothing more is heard of it. With
    /// `delete`, its session is ended with the server by one best-effort DELETE.
    pub fn end(&self, generation: Generation, delete: bool, route: Route) {
        let instance = self.instance(generation).unwrap_or_default();
        self.instances
            .lock()
            .retain(|(held, _)| *held != generation);
        instance.drop_all();
        if !delete || route.session_id.is_none() {
            return;
        }
        let wire = Arc::clone(&self.wire);
        let open = OpenDelete::new(self.deletes.get_or_init(|| watch::Sender::new(0)));
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
        for (_, instance) in instances {
            instance.drop_all();
        }
        let Some(deletes) = self.deletes.get() else {
            return;
        };
        let mut open = deletes.subscribe();
        // It fails only without a sender, and that is ours.
        drop(open.wait_for(|open| *open == 0).await);
    }

    fn instance(&self, generation: Generation) -> Option<Arc<Instance>> {
        let instances = self.instances.lock();
        let found = instances.iter().find(|(held, _)| *held == generation);
        found.map(|(_, instance)| Arc::clone(instance))
    }

    /// Runs an exchange under its name. One of a generation that is not open, which the machine
    /// would not ask for, is left out.
    fn start<F>(
        &self,
        generation: Generation,
        id: ExchangeId,
        name: &'static str,
        errand: &mut Errand,
        run: impl FnOnce(Exchange) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(instance) = self.instance(generation) else {
            tracing::debug!(%generation, "an exchange of a generation that is not open");
            return;
        };
        let exchange = Exchange {
            wire: Arc::clone(&self.wire),
            instance: Arc::clone(&instance),
            generation,
            id,
        };
        // The lock is held over the start, so that the task cannot end before it is listed.
        let mut exchanges = instance.exchanges.lock();
        let running = if errand.has_room() {
            let recall = (Arc::clone(&instance) as Arc<dyn Recall>, id.0);
            errand.take_on(name, recall, run(exchange));
            Running::Errand(None)
        } else {
            Running::Task(spawn::named(name, run(exchange)).abort_handle())
        };
        let before = put(&mut exchanges, id, running);
        drop(exchanges);
        if let Some(before) = before {
            before.abort();
        }
    }
}

/// Lists an exchange; gives back one of the same name.
fn put(
    exchanges: &mut Vec<(ExchangeId, Running)>,
    id: ExchangeId,
    running: Running,
) -> Option<Running> {
    if let Some((_, held)) = exchanges.iter_mut().find(|(held, _)| *held == id) {
        return Some(std::mem::replace(held, running));
    }
    if exchanges.capacity() == 0 {
        exchanges.reserve_exact(EXCHANGES_KEPT);
    }
    exchanges.push((id, running));
    None
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        for (_, instance) in std::mem::take(self.instances.get_mut()) {
            instance.drop_all();
        }
    }
}

impl Wire {
    /// Tells the owner of the machine, if there is one still.
    fn report(&self, input: Input) {
        if let Some(sink) = self.sink.upgrade() {
            sink.input(input);
        }
    }

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
