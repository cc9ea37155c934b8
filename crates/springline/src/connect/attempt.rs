//! One attempt to reach the gateway, beside which the client is still heard.
//!
//! Owns: the dialling, and when a gateway is started. It must not know what is said on a
//! connection.

use std::pin::Pin;
use std::time::Duration;

use springline_engine::downstream::hello::{ClientHello, GatewayHello};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::ConnectArgs;
use super::connection::Connection;
use super::refusal::AttachError;
use crate::autostart;

/// The pause between two looks for a gateway that may come back at any moment.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// The same once it has been away for a while and nobody waits for it.
const IDLE_PAUSE: Duration = Duration::from_secs(1);

/// Looks with the short pause.
const LOOKS: u32 = 200;

/// How long the gateway may take for the upgrade and its hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

type Future<T> = Pin<Box<dyn std::future::Future<Output = T> + Send>>;

/// What an attempt came to.
pub(super) enum Reached {
    /// Someone listens on the socket.
    Socket(UnixStream),
    /// The gateway said its hello.
    Gateway(Connection, GatewayHello),
}

/// An attempt under way.
pub(super) struct Attempt {
    future: Future<Result<Reached, AttachError>>,
    /// Whether it waits for somebody else to start a gateway.
    pub(super) only_looks: bool,
}

impl Attempt {
    /// Waits until a gateway is there, after a pause.
    pub(super) fn look(args: &ConnectArgs, pause: Duration) -> Self {
        let socket = args.socket.clone();
        let look = async move {
            sleep(pause).await;
            let mut looks = 0;
            loop {
                if let Ok(stream) = UnixStream::connect(&socket).await {
                    return Ok(Reached::Socket(stream));
                }
                looks += 1;
                sleep(if looks < LOOKS {
                    LOOK_PAUSE
                } else {
                    IDLE_PAUSE
                })
                .await;
            }
        };
        Self {
            future: Box::pin(look),
            only_looks: true,
        }
    }

    /// Connects now, and starts a gateway if none is there and that is allowed.
    pub(super) fn start(args: &ConnectArgs) -> Self {
        let args = args.clone();
        let start = async move {
            let stream = match UnixStream::connect(&args.socket).await {
                Ok(stream) => stream,
                Err(error) => match &args.start {
                    Some(spec) => autostart::connect_or_start(&args.socket, spec).await?,
                    None => return Err(AttachError::absent(&args.socket, &error)),
                },
            };
            Ok(Reached::Socket(stream))
        };
        Self {
            future: Box::pin(start),
            only_looks: false,
        }
    }

    /// Goes on with a socket that somebody listens on.
    pub(super) fn greet(args: &ConnectArgs, stream: UnixStream, hello: ClientHello) -> Self {
        let args = args.clone();
        let greet = async move {
            let start = args.start.as_ref();
            let log_end = start.map_or(0, |spec| autostart::log_end(&spec.log));
            let opened = timeout(HELLO_PATIENCE, Connection::open(stream, &args, &hello)).await?;
            match opened {
                Ok((connection, hello)) => Ok(Reached::Gateway(connection, hello)),
                // A session that is to be taken up has the time to try again instead.
                Err(error) if hello.session.is_some() => Err(error),
                Err(error) => Err(error.explained(start, log_end).await),
            }
        };
        Self {
            future: Box::pin(greet),
            only_looks: false,
        }
    }

    /// What it came to. Cancel safe.
    pub(super) async fn done(&mut self) -> Result<Reached, AttachError> {
        self.future.as_mut().await
    }
}
