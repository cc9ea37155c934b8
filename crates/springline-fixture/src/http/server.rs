//! The server itself: listener, connections, and the handle for tests.
//!
//! Owns sockets. Must not know what a request means.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, broadcast};
use tokio::task::JoinHandle;

use super::request;
use crate::account::{Account, Log};
use crate::fault::{Faults, Rule, Settings};
use crate::world::{Face, World};

/// What all connections are told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    /// End as soon as no exchange is open.
    CloseIdle,
    /// End at once.
    Drop,
}

/// What a request needs to know of its server and connection.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) world: Arc<World>,
    pub(super) commands: broadcast::Sender<Command>,
    /// Number of the connection.
    pub(super) connection: u64,
    /// Told when a body has ended after which the connection shall close.
    pub(super) ended: Arc<Notify>,
    /// Only the control endpoint is served.
    pub(super) control_only: bool,
}

/// How a server starts.
#[derive(Debug, Default)]
pub struct Options {
    /// Where it listens; any free port of 127.0.0.1 if nothing is given.
    pub address: Option<SocketAddr>,
    /// Settings at the start.
    pub settings: Settings,
    /// Which server it is.
    pub face: Face,
    /// A ledger file, if wanted.
    pub ledger: Option<PathBuf>,
}

/// A running test server. It ends, with all its connections, when dropped.
#[derive(Debug)]
pub struct FaultServer {
    /// The MCP endpoint.
    pub url: String,
    address: SocketAddr,
    world: Arc<World>,
    commands: broadcast::Sender<Command>,
    listening: JoinHandle<()>,
}

impl FaultServer {
    /// Starts a server on a free port of 127.0.0.1.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(Options::default()).await
    }

    /// Starts a server as told.
    pub async fn start_with(options: Options) -> io::Result<Self> {
        let account = match &options.ledger {
            Some(path) => Account::with_ledger(path)?,
            None => Account::default(),
        };
        let world = World::new(options.face, Faults::new(options.settings), account);
        Self::serve(Arc::new(world), options.address, false).await
    }

    /// Serves a given world, perhaps with nothing but the control endpoint.
    pub async fn serve(
        world: Arc<World>,
        address: Option<SocketAddr>,
        control_only: bool,
    ) -> io::Result<Self> {
        let wanted = address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let listener = TcpListener::bind(wanted).await?;
        let address = listener.local_addr()?;
        let (commands, _) = broadcast::channel(16);
        let listening = tokio::spawn(listen(
            listener,
            Arc::clone(&world),
            commands.clone(),
            control_only,
        ));
        Ok(Self {
            url: format!("http://{address}/mcp"),
            address,
            world,
            commands,
            listening,
        })
    }

    /// The address, to start another server at the same place later.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A copy of the log.
    pub fn log(&self) -> Log {
        self.world.account.log()
    }

    /// The faults.
    pub fn faults(&self) -> &Faults {
        &self.world.faults
    }

    /// Everything else of the server.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Adds a rule.
    pub fn fault(&self, rule: Rule) {
        self.world.faults.add(rule);
    }

    /// Waits until the log satisfies `done`. Cancel safe.
    pub async fn wait(&self, done: impl Fn(&Log) -> bool) {
        self.world.account.wait(done).await;
    }

    /// Forgets all sessions, as a restarted server does.
    pub fn forget_sessions(&self) {
        self.world.forget();
    }

    /// Waits until `count` calls or requests have come to a gate.
    pub async fn arrived(&self, gate: &str, count: u64) {
        self.world.gates.arrived(gate, count).await;
    }

    /// Lets one waiter pass a gate.
    pub fn release(&self, gate: &str) {
        self.world.gates.release(gate);
    }

    /// Stops listening and drops every connection; gives the address, which is
    /// free when this returns, and the world, which a later server may serve.
    pub async fn stop(mut self) -> (SocketAddr, Arc<World>) {
        self.listening.abort();
        // The only outcome of an aborted endless task is that it was aborted.
        drop((&mut self.listening).await);
        self.drop_connections();
        (self.address, Arc::clone(&self.world))
    }

    /// Ends every connection as soon as it is idle, unannounced.
    pub fn close_idle(&self) {
        // No receiver means that there is no connection to close.
        drop(self.commands.send(Command::CloseIdle));
    }

    /// Ends every connection at once.
    pub fn drop_connections(&self) {
        drop(self.commands.send(Command::Drop));
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.listening.abort();
        self.drop_connections();
    }
}

async fn listen(
    listener: TcpListener,
    world: Arc<World>,
    commands: broadcast::Sender<Command>,
    control_only: bool,
) {
    let next = AtomicU64::new(0);
    loop {
        // An accept error is about one connection or about file descriptors;
        // a test server goes on.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let context = Arc::new(Context {
            world: Arc::clone(&world),
            commands: commands.clone(),
            connection: next.fetch_add(1, Ordering::SeqCst),
            ended: Arc::new(Notify::new()),
            control_only,
        });
        tokio::spawn(connection(context, commands.subscribe(), stream));
    }
}

async fn connection(
    context: Arc<Context>,
    mut commands: broadcast::Receiver<Command>,
    stream: TcpStream,
) {
    // Delay only distorts timings of tests; it is no reason to refuse.
    drop(stream.set_nodelay(true));
    let ended = Arc::clone(&context.ended);
    let service = service_fn(move |request| request::handle(Arc::clone(&context), request));
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    loop {
        tokio::select! {
            // How a connection ends is the client's affair or was scripted.
            _ = connection.as_mut() => return,
            () = ended.notified() => connection.as_mut().graceful_shutdown(),
            command = commands.recv() => match command {
                Ok(Command::CloseIdle) => connection.as_mut().graceful_shutdown(),
                Ok(Command::Drop) | Err(broadcast::error::RecvError::Closed) => return,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            },
        }
    }
}
