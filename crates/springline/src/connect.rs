//! `springline connect`: stdio to the gateway on the unix socket.
//!
//! Owns: the connection, the attempts to have one, and the start of a gateway when a request needs
//! one. It must not know servers, and decides nothing about messages: the tether does, which holds
//! on to the session while gateways come and go.

mod attempt;
mod connection;
mod refusal;

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use springline_engine::clock;
use springline_engine::downstream::frame::Frame;
use springline_engine::downstream::hello::{ClientHello, Token};
use springline_proto::call::Moment;
use springline_proto::error::error_response;
use springline_proto::message::Kind;
use springline_proto::settings::BODY_MAX;
use springline_proto::tether::{Input, Output, Tether, Want};
use tokio::time::{Sleep, sleep};

use self::attempt::{Attempt, Reached};
use self::connection::{Connection, Reader, Writer, is_stopping};
use self::refusal::AttachError;
use crate::autostart::{START_PATIENCE, StartSpec};
use crate::stdio::{Deaf, Front, Heard, complain};

/// How long a lost gateway is given to come back by other means before one is started.
const RETURN_WAIT: Duration = Duration::from_secs(5);

/// The pause before the next attempt after one that failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

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
    let ended = connect.carry(&mut front).await;
    let connection = connect.connection.take();
    let left = async {
        if let Some(connection) = connection {
            connection.end().await;
        }
    };
    // A client that stopped reading has ended; that is no failure of ours.
    if ended.is_err() {
        left.await;
        return ExitCode::SUCCESS;
    }
    // The last answers do not wait for the gateway.
    tokio::join!(left, front.close());
    ExitCode::from(connect.exit)
}

/// Refuses whatever the client asks, in these words, until it has finished: where a gateway would be
/// is not known. A client that gets an answer shows it; one whose server just ends mostly does not.
pub async fn refuse(text: &str, exit: u8) -> ExitCode {
    let error = AttachError::Config(text.to_owned());
    let Ok(mut front) = Front::open("connect", BODY_MAX) else {
        complain("connect", text);
        return ExitCode::from(exit);
    };
    let mut is_told = false;
    let refused = loop {
        let answered = match front.heard().await {
            Heard::Message(message) => {
                match message.id().filter(|_| message.kind() == Kind::Request) {
                    Some(id) => {
                        is_told = true;
                        let answer = error_response(Some(&id), &error.to_json());
                        front.pass(answer.into()).await
                    }
                    None => Ok(()),
                }
            }
            Heard::Malformed(error) => front.refuse(&error).await,
            Heard::Finished => break Ok(()),
            Heard::Deaf => break Err(Deaf),
        };
        if answered.is_err() {
            break answered;
        }
    };
    if !is_told {
        front.complain(text);
    }
    if refused.is_ok() {
        front.close().await;
    }
    ExitCode::from(exit)
}

struct Connect {
    args: ConnectArgs,
    tether: Tether,
    /// Names the session on the gateway.
    token: Option<Token>,
    connection: Option<Connection>,
    attempt: Option<Attempt>,
    /// The exit code: that of the last failure, unless there ever was a session.
    exit: u8,
    /// Whether there ever was one.
    was_attached: bool,
}

impl Connect {
    fn new(args: ConnectArgs) -> Self {
        // Who may not start a gateway waits as long as one who may would take for that.
        let wait = match args.start {
            Some(_) => RETURN_WAIT,
            None => RETURN_WAIT + START_PATIENCE,
        };
        Self {
            tether: Tether::new(args.server.clone(), wait),
            args,
            token: None,
            connection: None,
            attempt: None,
            exit: 0,
            was_attached: false,
        }
    }

    async fn carry(&mut self, front: &mut Front) -> Result<(), Deaf> {
        let mut alarm = Alarm::default();
        loop {
            if front.is_finished() && !self.tether.is_waiting() {
                return Ok(());
            }
            self.seek();
            let is_full = self.tether.is_full();
            let (reader, writer) = self
                .connection
                .as_mut()
                .map(|connection| (&mut connection.reader, &mut connection.writer))
                .unzip();
            // What is there is heard first: what it makes us say leaves in one write.
            tokio::select! {
                biased;
                frame = next(reader) => self.on_frame(frame),
                reached = reached(&mut self.attempt) => {
                    self.attempt = None;
                    self.on_reached(reached);
                }
                heard = hear(front, is_full) => match heard {
                    Heard::Message(message) => self.tell(Input::Client(message)),
                    Heard::Malformed(error) => front.refuse(&error).await?,
                    Heard::Finished => {}
                    Heard::Deaf => return Err(Deaf),
                },
                error = broken(writer) => self.on_frame(Err(error)),
                () = alarm.ring(self.tether.next_deadline()) => self.tell(Input::Timer),
            }
            self.perform(front).await?;
        }
    }

    fn tell(&mut self, input: Input) {
        self.tether.handle(clock::moment(), input);
    }

    /// Begins the attempt that is wanted now, if another one is under way or none.
    fn seek(&mut self) {
        let want = self.tether.want(clock::moment());
        match (want, &self.attempt) {
            (Want::Gateway, None) => self.attempt = Some(Attempt::look(&self.args, Duration::ZERO)),
            (Want::Start, None) => self.attempt = Some(Attempt::start(&self.args)),
            (Want::Start, Some(attempt)) if attempt.only_looks => {
                self.attempt = Some(Attempt::start(&self.args));
            }
            (Want::Gateway | Want::Start, Some(_)) | (Want::Nothing, _) => {}
        }
    }

    fn on_reached(&mut self, reached: Result<Reached, AttachError>) {
        match reached {
            Ok(Reached::Socket(stream)) => {
                let token = self.token.clone().filter(|_| self.tether.has_session());
                let hello = ClientHello {
                    session: token,
                    comeback: self.tether.comeback(),
                };
                self.attempt = Some(Attempt::greet(&self.args, stream, hello));
            }
            Ok(Reached::Gateway(connection, hello)) => {
                self.connection = Some(connection);
                self.token = hello.session;
                (self.exit, self.was_attached) = (0, true);
                self.tell(Input::Attached {
                    is_resumed: hello.is_resumed,
                    welcome: hello.welcome,
                });
            }
            Err(error) => self.on_failed(&error),
        }
    }

    /// What waits hears of it, and so does standard error; unless a lost gateway still has time.
    fn on_failed(&mut self, error: &AttachError) {
        let is_patient = self.tether.want(clock::moment()) == Want::Gateway;
        if !(error.is_passing() && is_patient) && self.tether.is_waiting() {
            if !self.was_attached {
                self.exit = error.exit();
            }
            let error = error.to_json();
            self.tell(Input::Refused { error });
        }
        if self.tether.want(clock::moment()) == Want::Gateway {
            self.attempt = Some(Attempt::look(&self.args, RETRY_PAUSE));
        }
    }

    fn on_frame(&mut self, frame: std::io::Result<Option<Frame>>) {
        match frame {
            Ok(Some(Frame::Message {
                number,
                received,
                body,
            })) => {
                let body = body.to_bytes();
                self.tell(Input::Frame {
                    number,
                    received,
                    body,
                });
            }
            Ok(Some(Frame::Ack(received))) => self.tell(Input::Acknowledged(received)),
            Ok(Some(Frame::Note(note))) => {
                if is_stopping(&note) {
                    self.tell(Input::Stopping);
                }
            }
            Ok(Some(Frame::Hello(_) | Frame::Unknown)) => {}
            Ok(Some(Frame::End(_))) => {
                self.connection = None;
                self.tell(Input::Ended);
            }
            Ok(None) | Err(_) => self.lose(),
        }
    }

    fn lose(&mut self) {
        self.connection = None;
        self.tell(Input::Cut);
    }

    /// Does what the tether wants.
    async fn perform(&mut self, front: &mut Front) -> Result<(), Deaf> {
        while let Some(output) = self.tether.poll() {
            let frame = match output {
                Output::ToClient(data) => {
                    front.pass(data).await?;
                    continue;
                }
                Output::ToGateway {
                    number,
                    received,
                    body,
                } => Frame::Message {
                    number,
                    received,
                    body,
                },
                Output::Acknowledge(received) => Frame::Ack(received),
                Output::Leave => {
                    if let Some(mut connection) = self.connection.take() {
                        // If it is broken, it is left all the same.
                        connection.writer.flush().await.unwrap_or_default();
                    }
                    continue;
                }
                Output::Abandon(why) => {
                    if let Some(connection) = self.connection.take() {
                        connection.end().await;
                    }
                    self.on_failed(&AttachError::Handshake(why));
                    continue;
                }
            };
            // What was meant for a connection that broke meanwhile is sent on the next.
            if let Some(connection) = &mut self.connection
                && connection.writer.send(frame).await.is_err()
            {
                self.lose();
            }
        }
        Ok(())
    }
}

async fn next(reader: Option<&mut Reader>) -> std::io::Result<Option<Frame>> {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

/// Sends what waits, until that fails. Cancel safe.
async fn broken(writer: Option<&mut Writer>) -> std::io::Error {
    match writer {
        Some(writer) => writer.work().await,
        None => std::future::pending().await,
    }
}

/// What the client does next; one that sent more than can be held is not read for a while. Cancel
/// safe as [`Front::heard`].
async fn hear(front: &mut Front, is_full: bool) -> Heard {
    if is_full {
        front.deaf().await;
        return Heard::Deaf;
    }
    front.heard().await
}

async fn reached(attempt: &mut Option<Attempt>) -> Result<Reached, AttachError> {
    match attempt {
        Some(attempt) => attempt.done().await,
        None => std::future::pending().await,
    }
}

/// A timer that is set anew only for something earlier: most deadlines move on with each message.
#[derive(Default)]
struct Alarm {
    set: Option<(Moment, Pin<Box<Sleep>>)>,
}

impl Alarm {
    /// Waits for a deadline, or for one before it that was set and not waited for. Cancel safe.
    async fn ring(&mut self, deadline: Option<Moment>) {
        let Some(deadline) = deadline else {
            return std::future::pending().await;
        };
        let set = self.set.take_if(|(at, _)| *at > deadline);
        drop(set);
        let (_, sleep) = self.set.get_or_insert_with(|| {
            let sleep = sleep(deadline.since(clock::moment()));
            (deadline, Box::pin(sleep))
        });
        sleep.as_mut().await;
        self.set = None;
    }
}

#[cfg(test)]
mod tests;
