//! The life of one child: start, service, loss or end.
//!
//! Owns the order of what is reported (every message before the loss) and the ladder from the end
//! of stdin to SIGKILL. Must not know what the messages mean.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::Signal;
use springline_proto::call::Generation;
use springline_proto::upstream::Input;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::intake::Intake;
use super::tail::{self, Tail};
use super::writer::{self, Outgoing, Unwritten};
use super::{ChildSpec, ChildView, Sink, StdioLimits};
use crate::upstream::child::{self, Exit, Process, Spawned};
use crate::{clock, spawn};

/// Bytes read at once: half of what a pipe holds by default.
const READ_MAX: usize = 32 * 1024;

/// What a pipe can hold at most without privileges (`/proc/sys/fs/pipe-max-size`): a child that
/// has exited left no more than this.
const PIPE_MAX: usize = 1024 * 1024;

/// Why nothing can be written to a child that was lost.
const GONE: &str = "the server's process has ended";

/// What the transport and the tasks of one child share.
pub(super) struct Instance {
    generation: Generation,
    server: Arc<str>,
    sink: Weak<dyn Sink>,
    /// Taken when the end begins: the writer finishes what is queued, then closes stdin. The lock
    /// covers a `try_send`, nothing that waits.
    queue: Mutex<Option<mpsc::Sender<Outgoing>>>,
    queued_bytes: AtomicUsize,
    /// Whether the end was asked for; nothing is reported from then on.
    ended: watch::Sender<bool>,
    /// Zero until the child runs.
    pid: AtomicU32,
    lines_skipped: AtomicU64,
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl Instance {
    pub(super) fn new(
        generation: Generation,
        server: Arc<str>,
        sink: Weak<dyn Sink>,
        queue: mpsc::Sender<Outgoing>,
    ) -> Self {
        Self {
            generation,
            server,
            sink,
            queue: Mutex::new(Some(queue)),
            queued_bytes: AtomicUsize::new(0),
            ended: watch::Sender::new(false),
            pid: AtomicU32::new(0),
            lines_skipped: AtomicU64::new(0),
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Tells the owner, unless the end was asked for.
    pub(super) fn report(&self, input: Input) {
        if !self.is_ended()
            && let Some(sink) = self.sink.upgrade()
        {
            sink.input(input);
        }
    }

    /// Queues a message; the text of the refusal is for people.
    pub(super) fn enqueue(&self, message: Outgoing, bytes_max: usize) -> Result<(), &'static str> {
        let len = message.body.len();
        let guard = self.queue.lock();
        let Some(queue) = guard.as_ref() else {
            return Err(GONE);
        };
        // Only this method adds, and it holds the lock.
        let queued = self.queued_bytes.load(Ordering::Relaxed);
        if queued > 0 && queued.saturating_add(len) > bytes_max {
            return Err("too many bytes wait to be read by the server");
        }
        match queue.try_reserve() {
            Ok(room) => {
                self.queued_bytes.fetch_add(len, Ordering::Relaxed);
                room.send(message);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(())) => {
                Err("too many messages wait to be read by the server")
            }
            Err(mpsc::error::TrySendError::Closed(())) => Err(GONE),
        }
    }

    pub(super) fn dequeued(&self, bytes: usize) {
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn line_skipped(&self) {
        self.lines_skipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Asks for the end.
    pub(super) fn end(&self) {
        self.ended.send_replace(true);
        self.queue.lock().take();
    }

    pub(super) fn view(&self) -> ChildView {
        let pid = self.pid.load(Ordering::Relaxed);
        ChildView {
            generation: self.generation,
            pid: (pid != 0).then_some(pid),
            ending: self.queue.lock().is_none(),
            lines_skipped: self.lines_skipped.load(Ordering::Relaxed),
        }
    }

    fn is_ended(&self) -> bool {
        *self.ended.borrow()
    }

    fn lost(&self, cause: String, never_ran: bool) {
        self.queue.lock().take();
        self.report(Input::Lost {
            generation: self.generation,
            cause: cause.into(),
            never_ran,
        });
    }
}

/// Runs a child from its start until it is reaped.
pub(super) async fn run(
    instance: &Arc<Instance>,
    spec: Arc<ChildSpec>,
    messages: mpsc::Receiver<Outgoing>,
    limits: &StdioLimits,
) {
    let mut child = match start(instance, spec, messages).await {
        Ok(child) => child,
        Err(cause) => return instance.lost(cause, true),
    };
    instance.report(Input::Opened {
        generation: instance.generation,
    });
    if let Some(loss) = child.serve(limits).await {
        child.mourn(loss).await;
    }
    child.end(limits).await;
}

/// Starts the process and the tasks on its pipes. The error is for people.
async fn start(
    instance: &Arc<Instance>,
    spec: Arc<ChildSpec>,
    messages: mpsc::Receiver<Outgoing>,
) -> Result<Child, String> {
    let server = Arc::clone(&spec.server);
    let spawned = child::spawn(spec)
        .await
        .map_err(|error| error.to_string())?;
    let Spawned {
        process,
        stdin,
        stdout,
        stderr,
    } = spawned;
    let pipes = || -> std::io::Result<_> {
        let stdin = pipe::Sender::from_owned_fd(stdin)?;
        let stdout = pipe::Receiver::from_owned_fd(stdout)?;
        Ok((stdin, stdout, pipe::Receiver::from_owned_fd(stderr)?))
    };
    let pipes = pipes().map_err(|error| format!("its pipes could not be used: {error}"));
    let (stdin, stdout, stderr) = pipes?;
    instance.pid.store(process.pid(), Ordering::Relaxed);
    let tail = Arc::default();
    let stop = watch::Sender::new(false);
    let writing = writer::run(Arc::clone(instance), stdin, messages, stop.subscribe());
    let draining = tail::drain(stderr, Arc::clone(&tail), server);
    Ok(Child {
        instance: Arc::clone(instance),
        process,
        stdout: Some(stdout),
        buffer: vec![0; READ_MAX],
        writer: Some(spawn::named("stdio writer", writing)),
        unwritten: None,
        stop,
        stderr: spawn::named("stdio stderr", draining),
        tail,
    })
}

/// The task that writes to stdin.
type Writer = JoinHandle<Option<Unwritten>>;

/// A child that runs.
struct Child {
    instance: Arc<Instance>,
    process: Process,
    /// None after its end.
    stdout: Option<pipe::Receiver>,
    buffer: Vec<u8>,
    /// None once it was joined.
    writer: Option<Writer>,
    /// What the writer left, once it ended.
    unwritten: Option<Unwritten>,
    /// Makes the writer give back what it has not written.
    stop: watch::Sender<bool>,
    stderr: JoinHandle<()>,
    tail: Arc<Mutex<Tail>>,
}

/// What was seen of the end of a child.
#[derive(Default)]
struct Loss {
    exit: Option<Exit>,
    stdout_closed: bool,
    /// When the wait for the rest ends; set by the first sign.
    until: Option<Instant>,
    /// Bytes read since the first sign.
    drained: usize,
}

impl Loss {
    fn sign(&mut self, limits: &StdioLimits) {
        self.until
            .get_or_insert_with(|| clock::now() + limits.exit_drain);
    }

    /// Whether all was seen, or enough was waited. A process that keeps a pipe of an exited child
    /// filled does not get more than the child can have left in it.
    fn is_complete(&self) -> bool {
        let late = self.until.is_some_and(|until| clock::now() >= until);
        (self.exit.is_some() && self.stdout_closed) || (late && self.drained >= PIPE_MAX)
    }
}

impl Child {
    /// Carries messages until the child is lost, or its end is asked for (none). What it wrote
    /// before its exit is delivered.
    async fn serve(&mut self, limits: &StdioLimits) -> Option<Loss> {
        let mut intake = Intake::new(&self.instance, limits.frame_max, &limits.line_budget);
        let mut ended = self.instance.ended.subscribe();
        let mut loss = Loss::default();
        while !loss.is_complete() {
            let until = loss.until;
            tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => return None,
                exit = self.process.exited(), if loss.exit.is_none() => {
                    loss.exit = Some(exit);
                    loss.sign(limits);
                }
                // The writer ends before the instance only if stdin broke.
                unwritten = unwritten(&mut self.writer), if self.writer.is_some() => {
                    self.unwritten = unwritten;
                    loss.sign(limits);
                }
                // Before the deadline in this order: bytes that are there are read.
                count = read(&mut self.stdout, &mut self.buffer), if !loss.stdout_closed => {
                    if count == 0 {
                        loss.stdout_closed = true;
                        loss.sign(limits);
                    } else {
                        loss.drained += if until.is_some() { count } else { 0 };
                        intake.take(self.buffer.get(..count).unwrap_or_default());
                    }
                }
                () = sleep_until(until), if until.is_some() => break,
            }
        }
        intake.finish();
        Some(loss)
    }

    /// Reports the loss: first what was not written, then the loss itself, both with the cause.
    async fn mourn(&mut self, loss: Loss) {
        self.stop.send_replace(true);
        if self.writer.is_some() {
            self.unwritten = unwritten(&mut self.writer).await;
        }
        let until = loss.until.unwrap_or_else(clock::now);
        if !self.stderr.is_finished()
            && let Ok(drained) = timeout_at(until, &mut self.stderr).await
        {
            joined(drained);
        }
        let mut cause = match loss.exit {
            Some(exit) => exit.to_string(),
            None if loss.stdout_closed => "closed its stdout".to_owned(),
            None => "closed its stdin".to_owned(),
        };
        if let Some(words) = self.tail.lock().quote() {
            cause.push_str("; stderr: ");
            cause.push_str(&words);
        }
        self.instance.queue.lock().take();
        if let Some(unwritten) = self.unwritten.take() {
            unwritten.report(&self.instance, &cause);
        }
        self.instance.lost(cause, false);
    }

    /// The ladder (2025-11-25 basic/lifecycle, Shutdown): stdin closes once the queue is written,
    /// then SIGTERM and SIGKILL go to the group. It goes on until the leader has exited and nobody
    /// holds its pipes, so that what a wrapper started gets its time as well.
    async fn end(mut self, limits: &StdioLimits) {
        self.instance.queue.lock().take();
        let steps: [(Option<Signal>, Duration); 3] = [
            (None, limits.stdin_grace),
            (Some(Signal::TERM), limits.term_grace),
            (Some(Signal::KILL), limits.kill_grace),
        ];
        for (signal, grace) in steps {
            if let Some(signal) = signal {
                // A child that reads nothing keeps the writer: stdin closes now at the latest.
                self.stop_writing();
                self.process.signal(signal);
            }
            if timeout(grace, self.gone()).await.is_ok() {
                break;
            }
        }
        self.stop_writing();
        self.stderr.abort();
        self.process.reap().await;
    }

    fn stop_writing(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.abort();
        }
    }

    /// Waits until the leader has exited and its pipes are closed; reads and drops what comes, so
    /// that nobody hangs on a full pipe. Cancel safe.
    async fn gone(&mut self) {
        let Self {
            process,
            stdout,
            buffer,
            stderr,
            ..
        } = self;
        let silence = async { while read(stdout, buffer).await > 0 {} };
        tokio::join!(process.exited(), silence);
        if !stderr.is_finished() {
            joined(stderr.await);
        }
    }
}

/// Reads some bytes; zero at the end of the stream, which an error of our own pipe is as well. The
/// pipe is dropped then. Cancel safe.
async fn read(stdout: &mut Option<pipe::Receiver>, buffer: &mut [u8]) -> usize {
    let Some(pipe) = stdout else {
        return 0;
    };
    let count = pipe.read(buffer).await.unwrap_or_default();
    if count == 0 {
        *stdout = None;
    }
    count
}

/// Waits for the end of the writer and takes what it left. Cancel safe.
async fn unwritten(writer: &mut Option<Writer>) -> Option<Unwritten> {
    let ended = writer.as_mut()?.await;
    *writer = None;
    joined(ended).flatten()
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What a task of a child returned. One that panicked was reported by the runtime; the child ends
/// all the same.
fn joined<T>(joined: Result<T, tokio::task::JoinError>) -> Option<T> {
    match joined {
        Ok(value) => Some(value),
        Err(error) => {
            tracing::debug!(%error, "a task of a child did not finish");
            None
        }
    }
}
