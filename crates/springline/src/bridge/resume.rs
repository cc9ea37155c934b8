//! `bridge --resume NAME`: what is kept under the name, and who may use it.
//!
//! Owns the folder of the name and its lock, and what is said of a session that cannot be gone on
//! with. It must not know what is kept, nor when a session may be used again: the engine decides.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use springline_engine::downstream::socket::{self, PidLock};
use springline_engine::gateway::{Gateway, Rest, RestError};
use springline_engine::{clock, spawn};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;

use crate::stdio::complain;

/// Characters that a name may have: those of a server's name.
const NAME_MAX: usize = 32;

/// How long the bridge before this one may take to end: a client that starts anew closes the old one
/// and opens the new one in the same moment.
const HANDOVER: Duration = Duration::from_secs(3);

/// The pause between two looks at its lock.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Whether something can be kept under this name.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Why what is kept under a name cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResumeError {
    /// Another process has it.
    #[error(
        "--resume {name}: another bridge with this name runs{by}; end it, or choose another name"
    )]
    Taken {
        /// The name.
        name: String,
        /// Its number, if that is known.
        by: String,
    },
    /// The folder is not safe.
    #[error("--resume: {} is not a folder of this user", .0.display())]
    Foreign(PathBuf),
    /// The system refused.
    #[error("--resume: the folder {}: {cause}; make it writable for this user, or choose another with --state-dir", path.display())]
    Io {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// What is in it cannot be opened.
    #[error("--resume: {0}")]
    Rest(#[from] RestError),
}

/// The right to what is kept under a name; given back when dropped.
pub(super) struct Claim {
    _lock: PidLock,
}

/// Takes what is kept under `name`, for this process alone. Cancel safe.
pub(super) async fn claim(state: &Path, name: &str) -> Result<(Claim, Rest), ResumeError> {
    let folder = state.join("bridge").join(name);
    let failed = |cause| ResumeError::Io {
        path: folder.clone(),
        cause,
    };
    DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(&folder)
        .map_err(failed)?;
    let found = fs::symlink_metadata(&folder).map_err(failed)?;
    if !found.is_dir() || found.uid() != socket::own_uid() {
        return Err(ResumeError::Foreign(folder));
    }
    let until = clock::now() + HANDOVER;
    let lock = loop {
        match PidLock::acquire(&folder.join("lock")).map_err(failed)? {
            Ok(lock) => break lock,
            Err(_) if clock::now() < until => sleep(LOOK_PAUSE).await,
            Err(pid) => {
                let by = pid.map(|pid| format!(" as process {pid}"));
                return Err(ResumeError::Taken {
                    name: name.to_owned(),
                    by: by.unwrap_or_default(),
                });
            }
        }
    };
    let (rest, findings) = Rest::open_for_pipe(&folder)?;
    for finding in findings {
        complain("bridge", &format!("what was kept: {finding}"));
    }
    Ok((Claim { _lock: lock }, rest))
}

/// Says on standard error what becomes of a session that was kept, where it is not gone on with, and
/// when nothing can be kept.
pub(super) fn tell(gateway: &Gateway, name: &str) {
    let (before, mut news) = gateway.events().follow();
    let name = name.to_owned();
    spawn::named("bridge events", async move {
        for record in before {
            say(&name, &record.body);
        }
        loop {
            match news.recv().await {
                Ok(record) => say(&name, &record.body),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
}

fn say(name: &str, event: &str) {
    let Ok(event) = serde_json::from_str::<Value>(event) else {
        return;
    };
    let fact = |key: &str| event.get(key).and_then(Value::as_str).unwrap_or_default();
    match fact("event") {
        "session.left_to_expire" => {
            let (server, reason) = (fact("server"), fact("reason"));
            let text = format!(
                "the session with {server} that --resume {name} kept is left to expire: {reason}"
            );
            complain("bridge", &text);
        }
        "store.failed" | "record.removal_failed" => {
            let text = format!("--resume {name} cannot keep the session: {}", fact("cause"));
            complain("bridge", &text);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_servers() {
        for good in ["a", "my-name_1", &"x".repeat(32)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", "-\0", &"x".repeat(33)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_name_belongs_to_one_process_at_a_time() {
        let state = tempfile::tempdir().unwrap();
        let (first, _rest) = claim(state.path(), "n").await.unwrap();
        let folder = state.path().join("bridge/n");
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        let refused = claim(state.path(), "n").await.err().unwrap().to_string();
        assert!(
            refused.contains(&std::process::id().to_string()),
            "{refused}"
        );
        claim(state.path(), "other").await.unwrap();
        drop(first);
        claim(state.path(), "n").await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_is_a_symlink_is_refused() {
        let state = tempfile::tempdir().unwrap();
        fs::create_dir_all(state.path().join("bridge")).unwrap();
        fs::create_dir(state.path().join("elsewhere")).unwrap();
        let symlink = state.path().join("bridge/n");
        std::os::unix::fs::symlink(state.path().join("elsewhere"), symlink).unwrap();
        let refused = claim(state.path(), "n").await.err().unwrap();
        assert!(matches!(refused, ResumeError::Foreign(_)), "{refused}");
    }
}
