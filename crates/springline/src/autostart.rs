//! Starting a gateway for a `connect` that found none.
//!
//! Owns: the detached start and the lock that lets one starter win. It must not know what the
//! gateway does.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use springline_engine::clock;
use springline_engine::config::{self, ConfigError, Overrides, ProcessEnvironment, Sources};
use springline_engine::downstream::socket::{self, PidLock, SocketError};
use springline_proto::error::sanitise;
use tokio::net::UnixStream;
use tokio::time::sleep;

/// The variable that tells a gateway that nobody watches it; see [`detach_if_asked`].
pub const DETACHED: &str = "SPRINGLINE_DETACHED";

/// How long a started gateway may take until its socket answers. It is ready within 100 ms on an
/// idle machine.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(15);

/// The pause between two looks at the socket.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Bytes at the end of the log in which its last line is looked for.
const LOG_TAIL: u64 = 16 * 1024;

/// The name of the log in the state folder.
const LOG: &str = "gateway.log";

/// Bytes of that line in an error.
const LINE_MAX: usize = 300;

/// How a gateway is started.
#[derive(Clone, Debug)]
pub struct StartSpec {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Where its output goes, unless `origin` says where.
    pub log: PathBuf,
    /// The configuration that it will read. What it would refuse is found out before it is started,
    /// and told in its own words.
    pub origin: Option<(Sources, Overrides)>,
}

impl StartSpec {
    /// This very program, serving this socket; the log goes into the state folder.
    ///
    /// # Errors
    /// When the system cannot name the running program.
    pub fn own(socket: &Path, state_dir: &Path) -> io::Result<Self> {
        let args = [
            "serve".into(),
            "--socket".into(),
            socket.as_os_str().to_owned(),
        ];
        Ok(Self {
            program: std::env::current_exe()?,
            args: args.into(),
            log: state_dir.join(LOG),
            origin: None,
        })
    }

    /// The same, as the configuration now is. Blocks on the disk.
    fn checked(mut self) -> Result<Self, StartError> {
        if let Some((sources, overrides)) = &self.origin {
            let config = config::load(sources, overrides, &ProcessEnvironment)?;
            self.log = config.settings.state_dir.join(LOG);
        }
        Ok(self)
    }
}

/// Why no gateway runs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The socket's folder is not safe.
    #[error(transparent)]
    Place(#[from] SocketError),
    /// It would end at once.
    #[error("no gateway runs, and none can be started: configuration refused: {0}")]
    Config(#[from] ConfigError),
    /// Its log cannot be written.
    #[error("no gateway runs, and none can be started: {}: {cause}; make the state folder writable for this user, or choose another with SPRINGLINE_STATE_DIR", path.display())]
    State {
        /// The log or its folder.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// The system refused.
    #[error("no gateway runs, and one could not be started: {0}")]
    Refused(#[from] io::Error),
    /// It ended at once.
    #[error("no gateway runs, and one that was started ended with {status}{why}; see {log}")]
    Ended {
        /// How.
        status: std::process::ExitStatus,
        /// The last line that it said, after a colon; empty if it said nothing.
        why: String,
        /// Where it says why.
        log: PathBuf,
    },
    /// It does not answer.
    #[error("a gateway was started, but its socket does not answer; see {log}")]
    Silent {
        /// Where it may say why.
        log: PathBuf,
    },
}

/// Connects to the gateway, and starts one first if none runs. Of several starters one wins, and
/// the others wait for its gateway. Cancel safe: a gateway that was started goes on.
///
/// # Errors
/// [`StartError`]; a later attempt may do.
pub async fn connect_or_start(path: &Path, spec: &StartSpec) -> Result<UnixStream, StartError> {
    let spec = spec.clone();
    let checked = tokio::task::spawn_blocking(move || spec.checked()).await;
    let spec = &checked.map_err(io::Error::from)??;
    socket::prepare_folder(path)?;
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".start");
    let until = clock::now() + START_PATIENCE;
    let mut lock = None;
    let mut child = None;
    let mut begin = 0;
    while clock::now() < until {
        if let Ok(stream) = UnixStream::connect(path).await {
            return Ok(stream);
        }
        if lock.is_none() {
            lock = PidLock::acquire(Path::new(&lock_path))?.ok();
        } else if child.is_none() {
            // Behind the lock the socket was looked at once more: nobody else has started one.
            begin = log_end(&spec.log);
            child = Some(start(spec)?);
        }
        if let Some(status) = ended(&mut child)? {
            return Err(StartError::Ended {
                status,
                why: last_line(&spec.log, begin),
                log: spec.log.clone(),
            });
        }
        sleep(LOOK_PAUSE).await;
    }
    Err(StartError::Silent {
        log: spec.log.clone(),
    })
}

/// Where the next part of the log will begin.
pub(crate) fn log_end(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |log| log.len())
}

/// What a gateway said last, as far as the log can be read; `begin` is where its own part begins.
pub(crate) fn last_line(log: &Path, begin: u64) -> String {
    let mut said = Vec::new();
    let read = fs::File::open(log).and_then(|mut log| {
        let tail = log.metadata()?.len().saturating_sub(LOG_TAIL);
        log.seek(SeekFrom::Start(begin.max(tail)))?;
        log.take(LOG_TAIL).read_to_end(&mut said)
    });
    if let Err(error) = read {
        tracing::debug!(%error, "the log of the gateway cannot be read");
    }
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    last.map_or_else(String::new, |line| {
        let line = line.trim();
        let line = line.strip_prefix("springline: ").unwrap_or(line);
        format!(": {}", sanitise(line, LINE_MAX))
    })
}

fn ended(child: &mut Option<Child>) -> io::Result<Option<std::process::ExitStatus>> {
    child.as_mut().map_or(Ok(None), Child::try_wait)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the gateway is no server of ours: it outlives us and has its own session"
)]
fn start(spec: &StartSpec) -> Result<Child, StartError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |cause| StartError::State { path, cause }
    };
    if let Some(folder) = spec.log.parent() {
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(folder)
            .map_err(failed(folder))?;
    }
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&spec.log)
        .map_err(failed(&spec.log))?;
    let child = std::process::Command::new(&spec.program)
        .args(&spec.args)
        .env(DETACHED, "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(child)
}

/// Called first by a gateway: if a `connect` started it, it leaves the session and terminal of that
/// one, so that their end is not its own.
pub fn detach_if_asked() {
    if std::env::var_os(DETACHED).is_some() {
        // It fails only for a process that leads a group already, which is detached enough.
        if let Err(error) = rustix::process::setsid() {
            tracing::debug!(%error, "no session of our own");
        }
    }
}
