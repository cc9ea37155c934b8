//! The stdio side of `connect` and `bridge`: an MCP server towards the program that started us.
//!
//! Owns: lines from standard input, lines to standard output, signals, the requests that wait for
//! an answer, and one line on standard error for each failure. It must not know where messages go.

mod line;
mod stream;
mod thread;

use std::collections::HashSet;
use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use springline_engine::{clock, spawn};
use springline_proto::error::{error_response, plain_error, sanitise};
use springline_proto::frame::Line;
use springline_proto::json::{self, Pieces};
use springline_proto::message::{Kind, Message, ParseError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use self::line::{Answers, Lines};

/// How long calls in flight may take once a signal asked us to end.
pub const SIGNAL_GRACE: Duration = Duration::from_secs(10);

/// How long the last lines may take to leave.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of one line on standard error.
const STDERR_MAX: usize = 512;

/// Standard output is gone, or the time to end is over: nobody reads any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("nobody reads the answers any more")]
pub struct Deaf;

/// The client on the other end of standard input and output.
pub struct Front {
    name: &'static str,
    lines: Option<Lines>,
    answers: Answers,
    /// True when standard output is broken.
    broken: watch::Receiver<bool>,
    /// When everything must be over, once a signal came.
    due: watch::Receiver<Option<Instant>>,
    pending: HashSet<Bytes>,
    /// The last failure that was told, until something succeeded: the same one is told once.
    failure: Option<String>,
    /// Whether anything ever succeeded.
    had_result: bool,
}

/// Something that the client did.
#[derive(Debug)]
pub enum Heard {
    /// It sent a message.
    Message(Message),
    /// It sent a line that is none.
    Malformed(ParseError),
    /// It will send nothing more; what is pending may finish.
    Finished,
    /// It reads nothing any more, or the time to end is over.
    Deaf,
}

impl Front {
    /// Takes over this process's standard input and output. `name` stands before every line on
    /// standard error; lines of more than `line_max` bytes are refused.
    ///
    /// # Errors
    /// When the system gives no thread or no signal.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(name: &'static str, line_max: usize) -> std::io::Result<Self> {
        let (to_broken, broken) = watch::channel(false);
        let lines = Lines::open(line_max)?;
        let answers = Answers::open(to_broken.clone())?;
        thread::watch(to_broken)?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (to_due, due) = watch::channel(None);
        spawn::named("signals", async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                // The second signal means at once.
                let grace = if to_due.borrow().is_some() {
                    Duration::ZERO
                } else {
                    SIGNAL_GRACE
                };
                to_due.send_replace(Some(clock::now() + grace));
            }
        });
        Ok(Self {
            name,
            lines: Some(lines),
            answers,
            broken,
            due,
            pending: HashSet::new(),
            failure: None,
            had_result: false,
        })
    }

    /// What the client does next; once it has finished, that is only to become deaf. What waits for
    /// standard output leaves when the client has said nothing that is not heard. Cancel safe, but for
    /// the answer to a line over the limit.
    pub async fn heard(&mut self) -> Heard {
        loop {
            let Some(lines) = &mut self.lines else {
                self.deaf().await;
                return Heard::Deaf;
            };
            let mut due = self.due.clone();
            let line = tokio::select! {
                biased;
                () = signalled(&mut due) => None,
                line = lines.next() => line,
                _ = self.answers.work() => return Heard::Deaf,
                () = deaf(&self.broken, &self.due) => return Heard::Deaf,
            };
            match line {
                None => {
                    self.lines = None;
                    return Heard::Finished;
                }
                Some(Line::Message(bytes)) => match Message::parse(bytes) {
                    Ok(message) => return Heard::Message(self.note(message)),
                    Err(error) => {
                        self.complain(&format!("a line from the client is no message: {error}"));
                        return Heard::Malformed(error);
                    }
                },
                Some(Line::TooLong { len_seen, id, .. }) => {
                    let text = format!("a line of {len_seen} bytes is over the limit (bodyMax)");
                    self.complain(&text);
                    let error = plain_error(-32600, &text);
                    if self
                        .say(error_response(id.as_deref(), &error).into())
                        .await
                        .is_err()
                    {
                        self.lines = None;
                        return Heard::Finished;
                    }
                }
            }
        }
    }

    /// Keeps in mind what the client waits for.
    fn note(&mut self, message: Message) -> Message {
        match message.kind() {
            Kind::Request => {
                if let Some(id) = message.id() {
                    // A copy: the slice would keep the whole message.
                    self.pending.insert(Bytes::copy_from_slice(&id));
                }
            }
            Kind::Notification
                if message.method().as_deref() == Some("notifications/cancelled") =>
            {
                if let Some(id) = message.param("requestId") {
                    self.pending.remove(&id);
                }
            }
            Kind::Notification | Kind::Result | Kind::Error => {}
        }
        message
    }

    /// Passes a message on to the client; it leaves when the next one is listened for. An error of the
    /// gateway's own is told on standard error too.
    ///
    /// # Errors
    /// [`Deaf`] when standard output is broken or the time is over. Not cancel safe.
    pub async fn pass(&mut self, data: Pieces) -> Result<(), Deaf> {
        let text = data.to_bytes();
        if let Ok(message) = Message::parse(text.clone())
            && matches!(message.kind(), Kind::Result | Kind::Error)
        {
            if let Some(id) = message.id() {
                self.pending.remove(&id);
            }
            if let Some(failure) = message.error().and_then(|error| own_failure(&error)) {
                self.fail(failure);
            } else {
                self.failure = None;
                self.had_result |= message.kind() == Kind::Result;
            }
        }
        self.say(text.into()).await
    }

    async fn say(&mut self, data: Pieces) -> Result<(), Deaf> {
        tokio::select! {
            biased;
            sent = self.answers.put(data) => sent,
            () = deaf(&self.broken, &self.due) => Err(Deaf),
        }
    }

    /// Answers a line that was no message: under the id that could be read, else under none.
    ///
    /// # Errors
    /// As [`Front::pass`].
    pub async fn refuse(&mut self, error: &ParseError) -> Result<(), Deaf> {
        let text = plain_error(error.code(), &error.to_string());
        self.say(error_response(error.id.as_deref(), &text).into())
            .await
    }

    /// Whether the client waits for an answer.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the client will send nothing more.
    pub fn is_finished(&self) -> bool {
        self.lines.is_none()
    }

    /// Until standard output is broken or the time to end is over; what waits for it leaves
    /// meanwhile. Cancel safe.
    pub async fn deaf(&mut self) {
        tokio::select! {
            _ = self.answers.work() => {}
            () = deaf(&self.broken, &self.due) => {}
        }
    }

    /// Something failed: one line on standard error, unless the last one said the same.
    pub fn fail(&mut self, failure: String) {
        if self.failure.as_ref() != Some(&failure) {
            self.complain(&failure);
        }
        self.failure = Some(failure);
    }

    /// Whether all that was tried has failed.
    pub fn was_in_vain(&self) -> bool {
        self.failure.is_some() && !self.had_result
    }

    /// Writes one line on standard error: flattened, cut, without control characters.
    pub fn complain(&self, text: &str) {
        complain(self.name, text);
    }

    /// Ends it: what was said leaves, within a bound.
    pub async fn close(self) {
        // Whoever does not read his last lines by now has no use for them.
        drop(timeout(FLUSH_PATIENCE, self.answers.close()).await);
    }
}

/// Writes one line on standard error under a name.
pub fn complain(name: &str, text: &str) {
    let line = format!("springline {name}: {}\n", sanitise(text, STDERR_MAX));
    // Nobody can be told that standard error is gone.
    std::io::stderr()
        .lock()
        .write_all(line.as_bytes())
        .unwrap_or_default();
}

/// The message and the hint of an error that is ours and not the server's: its code lies in our
/// range.
fn own_failure(error: &Bytes) -> Option<String> {
    let whole = json::Span::whole(error);
    let code = json::member(error, whole, "code")?;
    let code: i64 = std::str::from_utf8(code.of(error)).ok()?.parse().ok()?;
    if !(-31099..=-31001).contains(&code) {
        return None;
    }
    let text = |path: &[&str]| {
        let span = json::path(error, whole, path)?;
        json::string(span.of(error)).map(std::borrow::Cow::into_owned)
    };
    let message = text(&["message"])?;
    match text(&["data", "hint"]) {
        Some(hint) => Some(format!("{message}; {hint}")),
        None => Some(message),
    }
}

async fn deaf(broken: &watch::Receiver<bool>, due: &watch::Receiver<Option<Instant>>) {
    let (mut broken, mut due) = (broken.clone(), due.clone());
    tokio::select! {
        () = raised(&mut broken) => {}
        () = overdue(&mut due) => {}
    }
}

async fn signalled(due: &mut watch::Receiver<Option<Instant>>) {
    if due.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn overdue(due: &mut watch::Receiver<Option<Instant>>) {
    signalled(due).await;
    loop {
        let Some(at) = *due.borrow_and_update() else {
            return;
        };
        tokio::select! {
            () = sleep_until(at) => return,
            // A second signal moves it.
            changed = due.changed() => if changed.is_err() { return },
        }
    }
}

async fn raised(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|flag| *flag).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Until the reader of standard output has gone, for a command that has no [`Front`]; for a file or
/// a null device, for ever. Cancel safe.
pub async fn unread() {
    let (to_broken, mut broken) = watch::channel(false);
    let watched = thread::watch(to_broken);
    if let Err(error) = watched {
        // The next write tells it as well, only later.
        tracing::debug!(%error, "standard output is not watched");
    }
    raised(&mut broken).await;
}

#[cfg(test)]
pub(crate) mod client;
