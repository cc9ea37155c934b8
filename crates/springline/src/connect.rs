//! `springline connect`: stdio to the gateway on the unix socket.
//!
//! Owns: the start of a gateway when a request needs one, and the repeated handshake with a gateway
//! that came later. It must not know servers.
//!
//! What was pending when a gateway went away is answered with an error: the gateway keeps no
//! session for us yet. The client's own session goes on with the next gateway.

mod connection;
mod refusal;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use springline_engine::clock;
use springline_engine::downstream::frame::Frame;
use springline_proto::error::{Fault, FaultKind};
use springline_proto::json::{self, Pieces};
use springline_proto::message::{Kind, Message};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use self::connection::Connection;
use self::refusal::AttachError;
use crate::autostart::{self, StartSpec};
use crate::stdio::{Deaf, Front, Heard, complain};

/// How long a lost gateway is given to come back by other means before one is started.
const RETURN_WAIT: Duration = Duration::from_secs(5);

/// The pause between two attempts within that time.
const RETURN_PAUSE: Duration = Duration::from_millis(100);

/// How long the gateway may take for the upgrade and its hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);

/// How long a repeated handshake may take: as long as a server may take to start, and a little.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(75);

/// What `connect` is told.
#[derive(Clone, Debug)]
pub struct ConnectArgs {
    /// The server; every server without it.
    pub server: Option<String>,
    /// The gateway's socket.
    pub socket: PathBuf,
    /// How to start a gateway; without it none is started.
    pub start: Option<StartSpec>,
    /// The cap on a message, in bytes (`bodyMax`).
    pub body_max: usize,
}

/// Runs `connect` until its client has finished, and says how it ended.
pub async fn run(args: ConnectArgs) -> ExitCode {
    let mut front = match Front::open("connect", args.body_max) {
        Ok(front) => front,
        Err(error) => {
            complain("connect", &format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let mut connect = Connect::new(args);
    // A client that stopped reading has ended; that is no failure of ours.
    let ended = connect.carry(&mut front).await;
    if let Some(connection) = connect.connection {
        connection.end().await;
    }
    if ended.is_err() {
        return ExitCode::SUCCESS;
    }
    front.close().await;
    ExitCode::from(connect.exit)
}

/// What a new gateway has to be told before anything else.
#[derive(Default)]
struct Handshake {
    initialize: Option<Message>,
    initialized: Option<Message>,
    /// How often it was repeated.
    repeats: u64,
}

struct Connect {
    args: ConnectArgs,
    connection: Option<Connection>,
    handshake: Handshake,
    /// When a gateway went away without saying so.
    lost_at: Option<Instant>,
    /// The exit code: that of the last failure, unless there ever was a session.
    exit: u8,
    /// Whether there ever was one.
    was_attached: bool,
}

impl Connect {
    fn new(args: ConnectArgs) -> Self {
        Self {
            args,
            connection: None,
            handshake: Handshake::default(),
            lost_at: None,
            exit: 0,
            was_attached: false,
        }
    }

    async fn carry(&mut self, front: &mut Front) -> Result<(), Deaf> {
        loop {
            if front.is_finished() && !front.is_waiting() {
                return Ok(());
            }
            let is_idle = !front.is_waiting();
            if is_idle
                && let Some(connection) =
                    self.connection.take_if(|connection| connection.is_stopping)
            {
                connection.end().await;
            }
            tokio::select! {
                biased;
                frame = next(&mut self.connection) => self.on_frame(frame, front).await?,
                heard = front.heard() => match heard {
                    Heard::Message(message) => self.on_message(message, front).await?,
                    Heard::Malformed(error) => front.refuse(&error).await?,
                    Heard::Finished => {}
                    Heard::Deaf => return Err(Deaf),
                },
            }
        }
    }

    async fn on_frame(
        &mut self,
        frame: std::io::Result<Option<Frame>>,
        front: &mut Front,
    ) -> Result<(), Deaf> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        match frame {
            Ok(Some(Frame::Message { body, .. })) => {
                connection.acknowledge_if_due().await;
                front.pass(body).await
            }
            Ok(Some(Frame::Note(_) | Frame::Ack(_) | Frame::Hello(_) | Frame::Unknown)) => Ok(()),
            Ok(Some(Frame::End(_))) => self.lose(front, true).await,
            Ok(None) | Err(_) => self.lose(front, false).await,
        }
    }

    /// The gateway is gone: what is pending gets its one answer.
    async fn lose(&mut self, front: &mut Front, is_orderly: bool) -> Result<(), Deaf> {
        let was_told = self
            .connection
            .take()
            .is_some_and(|connection| connection.is_stopping);
        if !is_orderly && !was_told {
            self.lost_at = Some(clock::now());
        }
        if front.is_waiting() {
            let text = "the gateway went away before it answered";
            front.complain(text);
            let fault = Fault::new(FaultKind::OutcomeUnknown).because(text);
            front.fail_pending(&fault.to_json()).await?;
        }
        Ok(())
    }

    async fn on_message(&mut self, message: Message, front: &mut Front) -> Result<(), Deaf> {
        let is_initialize = message.method().as_deref() == Some("initialize");
        match message.method().as_deref() {
            Some("initialize") if message.kind() == Kind::Request => {
                self.handshake.initialize = Some(message.clone());
                self.handshake.initialized = None;
            }
            Some("notifications/initialized") => {
                self.handshake.initialized = Some(message.clone());
            }
            _ => {}
        }
        if self.connection.is_none() {
            // Nothing but a request is worth a gateway; the rest belongs to a session that is gone.
            if message.kind() != Kind::Request {
                return Ok(());
            }
            match self.attach(front, !is_initialize).await {
                Ok(connection) => {
                    self.connection = Some(connection);
                    self.lost_at = None;
                    (self.exit, self.was_attached) = (0, true);
                }
                Err(AttachError::Deaf(deaf)) => return Err(deaf),
                Err(error) => {
                    front.complain(&error.to_string());
                    if !self.was_attached {
                        self.exit = error.exit();
                    }
                    return front.fail_pending(&error.to_json()).await;
                }
            }
        }
        if let Some(connection) = &mut self.connection
            && connection.send(Pieces::from(&message)).await.is_err()
        {
            return self.lose(front, false).await;
        }
        Ok(())
    }

    async fn attach(
        &mut self,
        front: &mut Front,
        repeats_handshake: bool,
    ) -> Result<Connection, AttachError> {
        let start = self.args.start.as_ref();
        let log_end = start.map_or(0, |spec| autostart::log_end(&spec.log));
        let dialled = tokio::select! {
            dialled = dial(&self.args, self.lost_at) => dialled,
            () = front.deaf() => return Err(Deaf.into()),
        };
        let connection = Connection::open(dialled?, &self.args);
        let mut connection = match timeout(HELLO_PATIENCE, connection).await? {
            Ok(connection) => connection,
            Err(error) => return Err(error.explained(start, log_end).await),
        };
        if repeats_handshake {
            let repeated = tokio::time::timeout(
                HANDSHAKE_PATIENCE,
                self.handshake.repeat(&mut connection, front),
            );
            repeated.await??;
        }
        Ok(connection)
    }
}

impl Handshake {
    /// Does for a new session what the client did for its first.
    async fn repeat(
        &mut self,
        connection: &mut Connection,
        front: &mut Front,
    ) -> Result<(), AttachError> {
        let Some(initialize) = &self.initialize else {
            return Ok(());
        };
        self.repeats += 1;
        let id = json::quote(&format!("springline-connect-{}", self.repeats));
        connection.send(initialize.with_id(id.as_bytes())).await?;
        loop {
            let body = match connection.next().await? {
                Some(Frame::Message { body, .. }) => body,
                Some(Frame::End(_)) | None => {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
                Some(_) => continue,
            };
            let answer = Message::parse(body.to_bytes()).ok();
            match answer.filter(|answer| answer.id().as_deref() == Some(id.as_bytes())) {
                Some(answer) if answer.kind() == Kind::Result => break,
                Some(answer) => {
                    let error = answer.error().unwrap_or_default();
                    return Err(AttachError::Handshake(
                        String::from_utf8_lossy(&error).into_owned(),
                    ));
                }
                None => front.pass(body).await?,
            }
        }
        if let Some(initialized) = &self.initialized {
            connection.send(Pieces::from(initialized)).await?;
        }
        Ok(())
    }
}

/// Connects to the gateway. One that went away is given some time before another is started.
async fn dial(args: &ConnectArgs, lost_at: Option<Instant>) -> Result<UnixStream, AttachError> {
    loop {
        let error = match UnixStream::connect(&args.socket).await {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if lost_at.is_some_and(|lost_at| clock::now() < lost_at + RETURN_WAIT) {
            sleep(RETURN_PAUSE).await;
            continue;
        }
        return match &args.start {
            Some(spec) => Ok(autostart::connect_or_start(&args.socket, spec).await?),
            None => Err(AttachError::absent(&args.socket, &error)),
        };
    }
}

async fn next(connection: &mut Option<Connection>) -> std::io::Result<Option<Frame>> {
    match connection {
        Some(connection) => connection.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
