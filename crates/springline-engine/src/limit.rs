//! How many files the process may have open, and what of that goes to connections of clients.
//!
//! Owns the soft limit of the process, which it raises once, and the limit that children get instead:
//! the one that the gateway was started with, since some programs cannot deal with a large one. It
//! must not know who opens what.

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most that the limit is raised to: descriptors for some 10,000 sessions with a stream and a
/// call each, and children.
const FILES_MAX: u64 = 65_536;

/// Connections of clients that there may be without a setting, whatever the limit: two for each of
/// 10,000 sessions would not be more than memory allows, but are more than ever come at once.
const CONNECTIONS_MAX: usize = 16_384;

/// Descriptors that connections from the network never get: the unix socket and its connections, the
/// state, the reactors, and a few children or servers over HTTP.
const RESERVE: usize = 64;

/// What the process was started with; nothing until [`raise_files`] changed it.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit on open files towards the hard one, and says how many there may be now.
pub fn raise_files() -> usize {
    let before = getrlimit(Resource::Nofile);
    let wanted = before.maximum.map_or(FILES_MAX, |hard| hard.min(FILES_MAX));
    if let Some(soft) = before.current.filter(|soft| *soft < wanted) {
        let raised = Rlimit {
            current: Some(wanted),
            maximum: before.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            // Only the first one is what the process was started with.
            Ok(()) => drop(BEFORE.set(before)),
            Err(error) => {
                tracing::warn!(%error, "the limit on open files was not raised");
                return usize::try_from(soft).unwrap_or(usize::MAX);
            }
        }
    }
    let files = getrlimit(Resource::Nofile).current;
    files.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    })
}

/// How many connections of clients there may be: as many as the setting says, else half of the
/// files, and never so many that nothing is left for the rest.
pub fn connections_max(setting: Option<usize>, files: usize) -> usize {
    let most = files.saturating_sub(RESERVE).max(files / 2);
    setting
        .unwrap_or_else(|| (files / 2).min(CONNECTIONS_MAX))
        .clamp(1, most.max(1))
}

/// The limit that a child is to get back, if it was changed for the gateway.
pub(crate) fn before() -> Option<Rlimit> {
    BEFORE.get().copied()
}

/// Gives a process that is about to become a child its limit back. Does one system call: fit for the
/// moment between fork and exec.
pub(crate) fn restore(before: Option<Rlimit>) -> io::Result<()> {
    match before {
        Some(before) => Ok(setrlimit(Resource::Nofile, before)?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::connections_max;

    #[test]
    fn connections_leave_files_for_everything_else() {
        assert_eq!(connections_max(None, 1024), 512);
        assert_eq!(connections_max(None, 65_536), 16_384);
        assert_eq!(connections_max(Some(100), 65_536), 100);
        assert_eq!(connections_max(Some(1_000_000), 1024), 960);
        assert_eq!(connections_max(Some(1_000_000), 80), 40);
        assert_eq!(connections_max(None, 1), 1);
    }
}
