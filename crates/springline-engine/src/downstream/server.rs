//! The HTTP server: listeners, connections and their end.
//!
//! Owns: accepting, keep-alive, the orderly stop. It must not know paths or messages.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::answer::Answer;
use super::attach;
use super::guard::Arrival;
use super::local::LocalStream;
use super::port::{Gate, OpenError, Principal};
use super::raised;
use super::route::{Desk, NoRoutes, Routes};
use super::seat::Seats;
use super::setting::HttpSettings;
use super::stream::Patient;
use super::unless;
use super::wire::{Attended, Escort, Left, Underway, Wire};
use crate::lane::Lanes;
use crate::{limit, spawn};

/// The pause after an accept that failed: out of descriptors is not cured by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The same while a connection gives way: its descriptor is free in a moment.
const FREED_PAUSE: Duration = Duration::from_millis(2);

/// One HTTP/1.1 server over any number of listeners.
pub struct HttpServer<G> {
    desk: Desk<G>,
    /// The settings that new requests take; replaced whole by a reload.
    settings: watch::Sender<Arc<HttpSettings>>,
    /// Turns true when the server stops.
    stop: watch::Sender<bool>,
    /// Turns true when the time to finish answers is over.
    cut: watch::Sender<bool>,
    /// The same, as it was at the beginning: it has changed once it was raised.
    cutting: watch::Receiver<bool>,
    /// How many connections there are.
    live: watch::Sender<usize>,
    /// The TCP connections; those of the socket are the user's own, and are not counted here.
    seats: Arc<Seats>,
    /// A descriptor that is of use when there is no other.
    kept: Mutex<Option<File>>,
    /// Where connections run; on the runtime of their listener if there are none.
    lanes: Lanes,
}

/// One connection, counted while it lives.
struct Counted(watch::Sender<usize>);

impl Counted {
    fn new(live: &watch::Sender<usize>) -> Self {
        live.send_modify(|count| *count += 1);
        Self(live.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A descriptor for nothing; none if there is none.
fn keep_one() -> Option<File> {
    File::open("/dev/null").ok()
}

impl<G: Gate> HttpServer<G> {
    /// A server for `gate`, with the further `routes` if there are any.
    pub fn new(gate: G, settings: HttpSettings, routes: Option<Arc<dyn Routes>>) -> Arc<Self> {
        Self::on_lanes(gate, settings, routes, Lanes::none())
    }

    /// The same, with its connections on these lanes.
    pub fn on_lanes(
        gate: G,
        settings: HttpSettings,
        routes: Option<Arc<dyn Routes>>,
        lanes: Lanes,
    ) -> Arc<Self> {
        let (stop, stopping) = watch::channel(false);
        let (cut, cutting) = watch::channel(false);
        let routes = routes.unwrap_or_else(|| Arc::new(NoRoutes));
        Arc::new(Self {
            desk: Desk {
                gate,
                routes,
                stopping,
            },
            settings: watch::Sender::new(Arc::new(settings)),
            stop,
            cut,
            cutting,
            live: watch::Sender::new(0),
            seats: Arc::default(),
            kept: Mutex::new(keep_one()),
            lanes,
        })
    }

    /// Replaces the settings; requests that are under way keep the old ones.
    pub fn configure(&self, settings: HttpSettings) {
        self.settings.send_replace(Arc::new(settings));
    }

    /// Serves a TCP listener until the server stops. Cancel safe: connections live on.
    pub async fn serve_tcp(self: Arc<Self>, listener: TcpListener) {
        let arrival = match listener.local_addr() {
            Ok(address) if !address.ip().is_loopback() => Arrival::Network,
            _ => Arrival::Loopback,
        };
        let mut stopping = self.stop.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = raised(&mut stopping) => return,
            };
            match accepted {
                Ok((stream, _)) => {
                    // Without it small answers wait for the client's delayed acknowledgements.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "TCP_NODELAY was not set");
                    }
                    self.admit(stream, arrival);
                }
                Err(error) => {
                    if !self.find_room(&error).await {
                        self.refuse_next(&listener).await;
                    }
                }
            }
        }
    }

    /// Gives a TCP connection to a lane, if there is room for it.
    fn admit(self: &Arc<Self>, stream: TcpStream, arrival: Arrival) {
        let max = self.settings.borrow().connections_max;
        let Some(taken) = self.seats.take(max) else {
            let refused = Arc::clone(&self.seats).refuse(stream);
            spawn::named("refused connection", refused);
            return;
        };
        let Some(lane) = self.lanes.next() else {
            let held = taken.hold(Arc::clone(self).hold(stream, arrival));
            spawn::named("http connection", held);
            return;
        };
        let server = Arc::clone(self);
        // It leaves the reactor of the listener for that of the lane.
        let moved = stream.into_std();
        lane.run("http connection", async move {
            match moved.and_then(TcpStream::from_std) {
                Ok(stream) => taken.hold(server.hold(stream, arrival)).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
        });
    }

    /// Serves the unix socket until the server stops. Cancel safe: connections live on.
    pub async fn serve_unix(self: Arc<Self>, listener: UnixListener) {
        let mut stopping = self.stop.subscribe();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = raised(&mut stopping) => return,
            };
            match accepted.and_then(|(stream, _)| stream.peer_cred().map(|peer| (stream, peer))) {
                Ok((stream, peer)) => self.connect(stream, Arrival::Socket { uid: peer.uid() }),
                Err(error) => drop(self.find_room(&error).await),
            }
        }
    }

    /// After an accept that failed. If the process is out of descriptors, an idle connection from the
    /// network gives way. Says false if none can; else trying again is of use after the pause, which
    /// also keeps a listener from spinning.
    async fn find_room(&self, error: &io::Error) -> bool {
        let is_out = limit::is_out(error);
        if is_out && self.seats.free_one() {
            sleep(FREED_PAUSE).await;
            return true;
        }
        tracing::warn!(%error, "a connection could not be accepted");
        sleep(ACCEPT_PAUSE).await;
        !is_out
    }

    /// Tells the next client that the process is out of descriptors: by the one that is kept for it.
    async fn refuse_next(&self, listener: &TcpListener) {
        drop(self.kept.lock().take());
        // Somebody else may have been faster, and got the descriptor.
        if let Ok(Ok((stream, _))) = timeout(ACCEPT_PAUSE, listener.accept()).await {
            Arc::clone(&self.seats).refuse(stream).await;
        }
        *self.kept.lock() = keep_one();
    }

    /// Stops: no new connection or request, GET streams end at once, answers may finish within
    /// `grace`, then every connection is closed. Cancel safe: it may be called again.
    pub async fn stop(&self, grace: Duration) {
        self.stop.send_replace(true);
        let mut live = self.live.subscribe();
        if timeout(grace, live.wait_for(|count| *count == 0))
            .await
            .is_err()
        {
            tracing::warn!("connections were cut: they still answered when the time was over");
        }
        self.cut.send_replace(true);
    }

    /// Where sessions are opened and found.
    pub(crate) fn gate(&self) -> &G {
        &self.desk.gate
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        *self.live.borrow()
    }

    /// Gives a connection of the socket to a lane. There is room for it: it is the user's own.
    fn connect(self: &Arc<Self>, stream: UnixStream, arrival: Arrival) {
        let server = Arc::clone(self);
        let counted = Counted::new(&self.live);
        // It leaves the reactor of the listener for that of the lane.
        let moved = stream.into_std();
        let held = async move {
            match moved.and_then(LocalStream::new) {
                Ok(stream) => server.converse(stream, arrival).await,
                Err(error) => tracing::warn!(%error, "a connection could not be taken over"),
            }
            drop(counted);
        };
        match self.lanes.next() {
            Some(lane) => lane.run("http connection", held),
            None => drop(spawn::named("http connection", held)),
        }
    }

    /// Whether the time to finish answers is over.
    fn is_cutting(&self) -> bool {
        self.cutting.has_changed().unwrap_or(true)
    }

    /// Serves a connection, counted while it lives.
    pub(super) fn hold<S>(
        self: Arc<Self>,
        stream: S,
        arrival: Arrival,
    ) -> impl Future<Output = ()> + Send
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // Now, and not when it is first polled: a stop waits for it.
        let counted = Counted::new(&self.live);
        async move {
            self.converse(stream, arrival).await;
            drop(counted);
        }
    }

    async fn converse<S>(self: Arc<Self>, stream: S, arrival: Arrival)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let settings = Arc::clone(&self.settings.borrow());
        let stream = Patient::new(stream, settings.write_patience);
        let mut cut = self.cut.subscribe();
        let other = {
            let wire = Wire::new(&self.desk, arrival, stream);
            let served = pin!(wire.serve(self.settings.subscribe()));
            let ended = pin!(raised(&mut cut));
            unless(served, ended, || self.is_cutting()).await.flatten()
        };
        if let Some(left) = other {
            // Boxed: most connections never come here.
            Box::pin(self.converse_freely(left, arrival, &settings, cut)).await;
        }
    }

    /// Goes on with a connection on which something else came than plain calls.
    async fn converse_freely<S>(
        self: Arc<Self>,
        left: Left<Patient<S>>,
        arrival: Arrival,
        settings: &HttpSettings,
        mut cut: watch::Receiver<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let underway = Underway::default();
        let patience = settings.head_patience;
        let stream = Escort::new(left.stream, left.until, patience, underway.clone());
        let server = Arc::clone(&self);
        let service = service_fn(move |request| {
            let (server, underway) = (Arc::clone(&server), underway.clone());
            let answering = underway.begin();
            async move {
                let answer = server.answer(request, arrival).await.into_response();
                if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
                    underway.leave();
                }
                Ok::<_, Infallible>(answer.map(|body| Attended::new(body, answering)))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(settings.idle_patience)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = Box::pin(connection);
        let mut stopping = self.stop.subscribe();
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = raised(&mut stopping) => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = raised(&mut cut) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            // Clients come and go; that is no fault of anybody.
            tracing::debug!(%error, "an HTTP connection ended");
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>, arrival: Arrival) -> Answer {
        let settings = Arc::clone(&self.settings.borrow());
        if let (Arrival::Socket { uid }, attach::PATH) = (arrival, request.uri().path()) {
            return self.attach(request, uid, &settings);
        }
        self.desk.answer(request, arrival, &settings).await
    }

    /// Hands the connection of a `connect` over to its frames.
    fn attach(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        uid: u32,
        settings: &HttpSettings,
    ) -> Answer {
        let attach::Wanted {
            endpoint,
            comes_back,
        } = match attach::requested(&request) {
            Ok(wanted) => wanted,
            Err(answer) => return answer,
        };
        match self.desk.gate.admits(&endpoint) {
            Ok(()) => {}
            Err(OpenError::UnknownServer) if comes_back => {}
            Err(error) => return attach::refused(error, &endpoint, &self.desk.gate.names()),
        }
        let pipe = attach::Pipe {
            server: Arc::clone(self),
            principal: Principal::Uid(uid),
            endpoint,
            frame_max: settings.body_max,
            heartbeat: settings.heartbeat,
            stopping: self.stop.subscribe(),
            cut: self.cut.subscribe(),
        };
        let upgrade = hyper::upgrade::on(&mut request);
        let counted = Counted::new(&self.live);
        spawn::named("connect pipe", async move {
            pipe.run(upgrade).await;
            drop(counted);
        });
        attach::switching()
    }
}
