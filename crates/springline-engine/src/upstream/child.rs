//! Child processes: starting, signalling and reaping them.
//!
//! Owns the one thread that all children are started from, their process groups, and the words in
//! which a failed start is told. Must not know what a child speaks on its pipes.
//!
//! **No orphans.** A child gets SIGKILL when the thread that started it ends
//! (`PR_SET_PDEATHSIG`), and that thread ends with the process only. Nobody is left then to try
//! SIGTERM first. The rest of its group (what a wrapper such as `sh -c` or `npx` started) sees the
//! end of its stdin at the same moment; a process that left the group or ignores that end is out of
//! our reach. An `exec` of the gateway ends its threads, hence its children, too.
//!
//! **Only our own group is signalled.** A leader that exited stays unreaped until the last signal
//! was sent, so neither its pid nor its group's id can have passed to somebody else.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use springline_proto::error::sanitise;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};

use crate::limit;

/// Starts that may wait for the thread; the machine's start budget keeps it far below.
const STARTS_QUEUED_MAX: usize = 64;

/// Bytes of a command's name that an error quotes.
const NAME_MAX: usize = 128;

/// How to start the child of a server entry.
#[derive(Clone)]
pub struct ChildSpec {
    /// The name of the server entry.
    pub server: Arc<str>,
    /// The program: a path, or a name to look for on `PATH`.
    pub command: String,
    /// Its arguments; may carry secrets.
    pub args: Vec<String>,
    /// What is added to the gateway's own environment; may carry secrets.
    pub env: Vec<(String, String)>,
    /// Where it runs; the gateway's own folder if none.
    pub cwd: Option<PathBuf>,
}

/// Without arguments and environment: they may carry secrets.
impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("server", &self.server)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// Why a child could not be started. The text names the command, never its arguments, environment
/// or folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpawnError {
    /// A bare name that no folder of `PATH` holds.
    #[error("launcher `{0}` was not found on PATH")]
    NotOnPath(String),
    /// The same for a name with spaces: a command line where a program is meant.
    #[error("launcher `{0}` was not found on PATH; put the arguments into `args`")]
    Line(String),
    /// A path that leads nowhere.
    #[error("`{0}` does not exist")]
    NoFile(String),
    /// The file is there, and what its first line names is not.
    #[error("the interpreter that `{0}` names does not exist")]
    NoInterpreter(String),
    /// The configured folder is no folder.
    #[error("its working directory does not exist")]
    NoDirectory,
    /// No permission.
    #[error("`{0}` may not be executed: permission denied")]
    Denied(String),
    /// A zero byte where none can be.
    #[error("the command, its arguments or its environment contain a NUL character")]
    Invalid,
    /// `E2BIG`.
    #[error("its arguments and environment are too large for the system")]
    TooLarge,
    /// `EMFILE`, `ENFILE`: the gateway has no descriptors for its pipes.
    #[error(
        "`{0}` could not be started: the gateway may open no more files, and each process needs \
         four; raise `ulimit -n`, or lower `childrenMax` or `connectionsMax`"
    )]
    NoFiles(String),
    /// Anything else of the system's.
    #[error("`{command}` could not be started: {source}")]
    System {
        /// Which command.
        command: String,
        /// What the system said.
        source: io::Error,
    },
    /// The gateway itself could not do its part.
    #[error("the gateway could not start processes: {0}")]
    Gateway(io::Error),
}

impl SpawnError {
    fn not_on_path(command: String) -> Self {
        if command.contains(' ') {
            Self::Line(command)
        } else {
            Self::NotOnPath(command)
        }
    }
}

/// Why a command cannot be started, as far as that can be told without doing it: nothing of that
/// name can be executed. `path` replaces the gateway's own `PATH`. Blocks on the disk.
pub(crate) fn launcher_problem(command: &str, path: Option<&str>) -> Option<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_program = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let name = || sanitise(command, NAME_MAX);
    if command.contains('/') {
        // A relative one depends on the folder of the child.
        let is_missing = command.starts_with('/') && !Path::new(command).exists();
        return is_missing.then(|| SpawnError::NoFile(name()).to_string());
    }
    let own = std::env::var_os("PATH");
    let path = path.map(OsString::from).or(own).unwrap_or_default();
    let is_found = std::env::split_paths(&path).any(|folder| is_program(&folder.join(command)));
    (!is_found).then(|| SpawnError::not_on_path(name()).to_string())
}

/// A child that runs, and our ends of its pipes.
pub(crate) struct Spawned {
    pub(crate) process: Process,
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

/// Starts a child in a group of its own. On cancellation a child that runs already is killed.
///
/// # Panics
/// Outside a tokio runtime.
pub(crate) async fn spawn(spec: Arc<ChildSpec>) -> Result<Spawned, SpawnError> {
    keep_zombies();
    let (reply, fresh) = oneshot::channel();
    let gone = || SpawnError::Gateway(io::Error::other("its thread has ended"));
    let spawner = spawner().map_err(SpawnError::Gateway)?;
    let asked = Arc::clone(&spec);
    spawner
        .send(Order { spec, reply })
        .await
        .map_err(|_| gone())?;
    let fresh = fresh.await.map_err(|_| gone())??;
    #[expect(unsafe_code, reason = "the safe constructor is deprecated")]
    // SAFETY: the leader owns its pidfd, never replaces it, and closes it only when dropped.
    let leader = unsafe { AsyncFd::register_with_interest(fresh.leader, Interest::READABLE) };
    Ok(Spawned {
        process: Process {
            leader: leader.map_err(|error| unheld(&asked, error.into()))?,
        },
        stdin: fresh.stdin,
        stdout: fresh.stdout,
        stderr: fresh.stderr,
    })
}

/// Sees to it that an exited child waits to be reaped, even if the gateway was started with
/// SIGCHLD ignored: without that its pid could pass to another process while we hold it.
fn keep_zombies() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // The disposition stays after the stream is dropped.
    if let Err(error) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()) {
        tracing::warn!(%error, "SIGCHLD could not be set");
    }
}

/// One start, asked of the thread.
struct Order {
    spec: Arc<ChildSpec>,
    reply: oneshot::Sender<Result<Fresh, SpawnError>>,
}

/// What the thread hands back.
struct Fresh {
    leader: Leader,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// The queue of the one thread; the thread is made on first use.
fn spawner() -> io::Result<mpsc::Sender<Order>> {
    static SPAWNER: Mutex<Option<mpsc::Sender<Order>>> = Mutex::new(None);
    let mut spawner = SPAWNER.lock();
    if let Some(queue) = spawner.as_ref() {
        return Ok(queue.clone());
    }
    let (queue, mut orders) = mpsc::channel::<Order>(STARTS_QUEUED_MAX);
    std::thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            close_on_exec();
            // The static keeps a sender: this loop, and with it the thread, never ends.
            while let Some(order) = orders.blocking_recv() {
                // Nobody waits any more: what was started is dropped, which kills it.
                drop(order.reply.send(start(&order.spec)));
            }
        })?;
    Ok(spawner.insert(queue).clone())
}

/// Marks what the gateway itself inherited, so that no child inherits it; everything that it opens
/// is marked already.
fn close_on_exec() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    for fd in names
        .filter_map(|name| name.parse::<RawFd>().ok())
        .filter(|fd| *fd > 2)
    {
        #[expect(
            unsafe_code,
            reason = "a descriptor that nobody here owns can only be named by its number"
        )]
        // SAFETY: the number is used for one fcntl that changes nothing but the close-on-exec flag.
        // If it was closed meanwhile the call fails; if it was opened anew it has the flag already.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        if rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).is_err() {
            tracing::debug!("a descriptor was closed meanwhile");
        }
    }
}

/// Starts one child. Runs on the spawner's thread only.
fn start(spec: &ChildSpec) -> Result<Fresh, SpawnError> {
    let mut child = command(spec)
        .spawn()
        .map_err(|error| explain(spec, error))?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let leader = Leader::new(&child).map_err(|error| unheld(spec, error))?;
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(SpawnError::Gateway(io::Error::other("a pipe is missing")));
    };
    Ok(Fresh {
        leader,
        stdin: stdin.into(),
        stdout: stdout.into(),
        stderr: stderr.into(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that the ban points to"
)]
fn command(spec: &ChildSpec) -> Command {
    let mut command = Command::new(&spec.command);
    command
        .args(&spec.args)
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    let gateway = rustix::process::getpid();
    let files = limit::before();
    #[expect(
        unsafe_code,
        reason = "the parent-death signal and the limit are set between fork and exec"
    )]
    // SAFETY: between fork and exec only async-signal-safe work is allowed. These are three plain
    // system calls and a comparison; nothing allocates and nothing takes a lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The gateway may have died before the line above took effect.
            if rustix::process::getppid() != Some(gateway) {
                return Err(io::Error::from_raw_os_error(
                    rustix::io::Errno::SRCH.raw_os_error(),
                ));
            }
            limit::restore(files)
        });
    }
    command
}

/// Says in the user's terms why the system refused a start.
fn explain(spec: &ChildSpec, error: io::Error) -> SpawnError {
    use rustix::io::Errno;
    let command = || sanitise(&spec.command, NAME_MAX);
    if spec.cwd.as_deref().is_some_and(|cwd| !cwd.is_dir()) {
        return SpawnError::NoDirectory;
    }
    match error.kind() {
        io::ErrorKind::NotFound if is_present(spec) => SpawnError::NoInterpreter(command()),
        io::ErrorKind::NotFound if spec.command.contains('/') => SpawnError::NoFile(command()),
        io::ErrorKind::NotFound => SpawnError::not_on_path(command()),
        io::ErrorKind::PermissionDenied => SpawnError::Denied(command()),
        io::ErrorKind::InvalidInput => SpawnError::Invalid,
        _ if limit::is_out(&error) => SpawnError::NoFiles(command()),
        _ if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) => SpawnError::TooLarge,
        _ => SpawnError::System {
            command: command(),
            source: error,
        },
    }
}

/// Says why a child that runs cannot be held.
fn unheld(spec: &ChildSpec, error: io::Error) -> SpawnError {
    if limit::is_out(&error) {
        explain(spec, error)
    } else {
        SpawnError::Gateway(error)
    }
}

/// Whether the file that the command names is there after all.
fn is_present(spec: &ChildSpec) -> bool {
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("."));
    if spec.command.contains('/') {
        return cwd.join(&spec.command).is_file();
    }
    let own = spec.env.iter().rfind(|(name, _)| name == "PATH");
    let path = match own {
        Some((_, value)) => Some(value.into()),
        None => std::env::var_os("PATH"),
    };
    path.is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| cwd.join(folder).join(&spec.command).is_file())
    })
}

/// The first process of a group, unreaped as long as this value lives.
#[derive(Debug)]
struct Leader {
    pid: Pid,
    pidfd: OwnedFd,
    /// Set once the pid is no longer ours to signal.
    reaped: AtomicBool,
}

impl Leader {
    fn new(child: &std::process::Child) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the pid is out of range"))?;
        match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(pidfd) => Ok(Self {
                pid,
                pidfd,
                reaped: AtomicBool::new(false),
            }),
            Err(error) => {
                // It was not reaped, so the group is ours. One zombie is the price of a system
                // without pidfds (Linux before 5.3).
                kill_process_group(pid, Signal::KILL)?;
                Err(error.into())
            }
        }
    }

    fn wait(&self, options: WaitIdOptions) -> rustix::io::Result<Option<WaitIdStatus>> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.pid), options)
    }

    /// Signals the group; if that fails (a leader may have changed its group), the leader.
    fn signal(&self, signal: Signal) {
        if self.reaped.load(Ordering::Acquire) || kill_process_group(self.pid, signal).is_ok() {
            return;
        }
        if let Err(error) = pidfd_send_signal(&self.pidfd, signal) {
            tracing::debug!(pid = %self.pid, %error, "no process to signal");
        }
    }
}

impl AsRawFd for Leader {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

impl Drop for Leader {
    /// The last resort, when the runtime ends before the child did.
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        if !self.reaped.load(Ordering::Acquire)
            && let Err(error) = self.wait(WaitIdOptions::empty())
        {
            tracing::debug!(pid = %self.pid, %error, "a child was reaped by somebody else");
        }
    }
}

/// A child and its group. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    leader: AsyncFd<Leader>,
}

impl Process {
    /// The pid of the leader, which is the id of the group.
    pub(crate) fn pid(&self) -> u32 {
        self.leader
            .get_ref()
            .pid
            .as_raw_nonzero()
            .get()
            .unsigned_abs()
    }

    /// Waits until the leader has exited, and leaves it unreaped. Cancel safe.
    pub(crate) async fn exited(&self) -> Exit {
        let leader = self.leader.get_ref();
        loop {
            let Ok(mut ready) = self.leader.readable().await else {
                return Exit::Unknown;
            };
            match leader.wait(WaitIdOptions::NOWAIT) {
                Ok(Some(status)) => return Exit::from(&status),
                Ok(None) => ready.clear_ready(),
                Err(_) => {
                    // Reaped by somebody else: from now on the pid may be anyone's.
                    leader.reaped.store(true, Ordering::Release);
                    return Exit::Unknown;
                }
            }
        }
    }

    /// Signals the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        self.leader.get_ref().signal(signal);
    }

    /// Kills what is left of the group, waits for the leader and reaps it. Has no bound of its own:
    /// a process in an uninterruptible wait outlasts SIGKILL. Cancelled, the group is killed too.
    pub(crate) async fn reap(self) {
        self.signal(Signal::KILL);
        self.exited().await;
        let leader = self.leader.get_ref();
        // The leader's last members may have been forked between the signal and its exit.
        leader.signal(Signal::KILL);
        if let Err(error) = leader.wait(WaitIdOptions::empty()) {
            tracing::debug!(pid = %leader.pid, %error, "a child was reaped by somebody else");
        }
        leader.reaped.store(true, Ordering::Release);
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// By itself, with this status.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Nobody can tell.
    Unknown,
}

impl From<&WaitIdStatus> for Exit {
    fn from(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with status {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Self::Unknown => f.write_str("exited"),
        }
    }
}

/// The signals that end servers in practice, numbered as Linux does on all our platforms.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_for_which_there_are_no_files_says_what_to_do() {
        let spec = ChildSpec {
            server: Arc::from("a"),
            command: "tool".to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
        };
        for number in [23, 24] {
            let out = || io::Error::from_raw_os_error(number);
            for error in [explain(&spec, out()), unheld(&spec, out())] {
                let text = error.to_string();
                assert!(text.starts_with("`tool` could not be started"), "{text}");
                assert!(text.contains("raise `ulimit -n`"), "{text}");
            }
        }
        let other = unheld(&spec, io::Error::from_raw_os_error(5));
        assert!(matches!(other, SpawnError::Gateway(_)));
    }
}
