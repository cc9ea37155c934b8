//! The unix socket's place: its path, its folder, its lock.
//!
//! Owns: the rules that keep another user out and a second gateway away (DESIGN.md section 3.3). It
//! must not know what is served on the socket.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Bytes that the path of a unix socket may have on Linux (unix(7), `sun_path` less its end).
const PATH_MAX: usize = 107;

/// Why the socket was not made.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A gateway serves it.
    #[error("a gateway already serves {path}{}", process(*.pid))]
    Live {
        /// The socket.
        path: PathBuf,
        /// The gateway's process, if it is known.
        pid: Option<u32>,
    },
    /// Something that is not a socket of ours stands at the path.
    #[error("{path} {problem}")]
    Unsafe {
        /// What is wrong.
        path: PathBuf,
        /// How.
        problem: &'static str,
    },
    /// The system refused.
    #[error("{path} cannot be used")]
    Refused {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn process(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})"))
        .unwrap_or_default()
}

/// A file that one process at a time holds, with its number in it. Released when dropped, and by
/// the system when the process ends, however it ends.
#[derive(Debug)]
pub struct PidLock {
    // Closing it gives the lock back.
    _file: File,
}

impl PidLock {
    /// Takes the lock. If another process holds it, the error is its number, if that can be read.
    pub fn acquire(path: &Path) -> io::Result<Result<Self, Option<u32>>> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
            .open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                file.take(20).read_to_string(&mut text)?;
                return Ok(Err(text.trim().parse().ok()));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Ok(Self { _file: file }))
    }
}

/// A bound socket; dropping it removes the socket file and gives the lock back.
#[derive(Debug)]
pub struct BoundSocket {
    /// What to serve.
    pub listener: UnixListener,
    /// What keeps it ours.
    pub claim: SocketClaim,
}

/// The right to a socket's path.
#[derive(Debug)]
pub struct SocketClaim {
    path: PathBuf,
    _lock: PidLock,
}

impl Drop for SocketClaim {
    fn drop(&mut self) {
        // Who comes next replaces a dead socket anyway.
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, "the socket file was not removed");
        }
    }
}

/// The default path: in the user's runtime folder, else in a folder of ours in `/tmp`.
pub fn default_path(runtime_dir: Option<OsString>, uid: u32) -> PathBuf {
    match runtime_dir
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
    {
        Some(dir) => dir.join("springline/springline.sock"),
        None => PathBuf::from(format!("/tmp/springline-{uid}/springline.sock")),
    }
}

/// Binds the socket: the folder is made (0700) and checked, a live gateway refused, a dead socket
/// replaced, the file closed to others (0600).
pub async fn bind(path: &Path) -> Result<BoundSocket, SocketError> {
    prepare_folder(path)?;
    let refused = |source| SocketError::Refused {
        path: path.to_owned(),
        source,
    };
    let lock = PidLock::acquire(&lock_path(path))
        .map_err(refused)?
        .map_err(|pid| SocketError::Live {
            path: path.to_owned(),
            pid,
        })?;
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() || found.uid() != own_uid() => {
            let problem = "is in the way: it is not a socket of this user; remove it or choose \
                           another path with --socket";
            return Err(SocketError::Unsafe {
                path: path.to_owned(),
                problem,
            });
        }
        Ok(_) => {
            // Someone may serve it without our lock.
            if let Ok(stream) = UnixStream::connect(path).await {
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                let pid = pid.and_then(|pid| u32::try_from(pid).ok());
                return Err(SocketError::Live {
                    path: path.to_owned(),
                    pid,
                });
            }
            fs::remove_file(path).map_err(refused)?;
        }
    }
    let listener = UnixListener::bind(path).map_err(refused)?;
    // The folder lets nobody in meanwhile.
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(refused)?;
    Ok(BoundSocket {
        listener,
        claim: SocketClaim {
            path: path.to_owned(),
            _lock: lock,
        },
    })
}

/// The lock beside a socket.
pub fn lock_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Makes the socket's folder if need be, and refuses one that another user could tamper with.
pub fn prepare_folder(path: &Path) -> Result<(), SocketError> {
    let unsafe_ = |path: &Path, problem| SocketError::Unsafe {
        path: path.to_owned(),
        problem,
    };
    if path.as_os_str().len() > PATH_MAX {
        return Err(unsafe_(
            path,
            "is too long for a socket; choose a shorter path with --socket",
        ));
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let refused = |source| SocketError::Refused {
        path: folder.to_owned(),
        source,
    };
    match DirBuilder::new().mode(0o700).recursive(true).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refused(error)),
    }
    let found = fs::symlink_metadata(folder).map_err(refused)?;
    if !found.is_dir() {
        return Err(unsafe_(
            folder,
            "is not a folder (a symbolic link is not followed)",
        ));
    }
    if found.uid() != own_uid() {
        return Err(unsafe_(folder, "belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(unsafe_(
            folder,
            "can be written by others; run chmod 700 on it",
        ));
    }
    let is_ours = folder
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"springline"));
    if is_ours && found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(refused)?;
    }
    Ok(())
}

/// The user that this process acts as.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
