//! How many files the process may have open, and what of that goes to connections of clients and to
//! children.
//!
//! Owns the soft limit of the process, which it raises once, and the limit that children get instead:
//! the one that the gateway was started with, since some programs cannot deal with a large one. It
//! must not know who opens what.

use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::lane::LANES_MAX;

/// The most that the limit is raised to: descriptors for some 10,000 sessions with a stream and a
/// call each, and children.
const FILES_MAX: u64 = 65_536;

/// Connections of clients that there may be without a setting, whatever the limit: two for each of
/// 10,000 sessions would not be more than memory allows, but are more than ever come at once.
const CONNECTIONS_MAX: usize = 16_384;

/// Files that neither connections from the network nor children ever get: the state, the listeners,
/// the unix socket and its connections, a few servers over HTTP, and what a start needs for a moment.
const RESERVE: usize = 56;

/// Files of a lane's reactor.
const LANE_FILES: usize = 4;

/// Files of a child: three pipes and a handle.
const CHILD_FILES: usize = 4;

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

/// How many of `files` there are for connections and children, beside what the gateway needs itself.
pub fn spare(files: usize, lanes: usize) -> usize {
    let reserve = RESERVE + LANE_FILES * lanes.min(LANES_MAX);
    files.saturating_sub(reserve).max(files / 4)
}

/// How many connections of clients there may be: as many as the setting says, else half of the spare
/// files, and never so many that nothing is left for children.
pub fn connections_max(setting: Option<usize>, spare: usize) -> usize {
    let most = spare / 4 * 3;
    setting
        .unwrap_or_else(|| (spare / 2).min(CONNECTIONS_MAX))
        .clamp(1, most.max(1))
}

/// How many children there may be: as many as the setting says, and never more than have files beside
/// the connections.
pub fn children_max(setting: usize, spare: usize, connections: usize) -> usize {
    let most = spare.saturating_sub(connections) / CHILD_FILES;
    setting.clamp(1, most.max(1))
}

/// Whether the system refused for want of files.
pub(crate) fn is_out(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        Some(Errno::MFILE | Errno::NFILE)
    )
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
    use super::{children_max, connections_max, spare};

    #[test]
    fn connections_and_children_leave_files_for_everything_else() {
        for (files, left, connections, children) in [
            (64, 16, 8, 2),
            (128, 64, 32, 8),
            (1024, 960, 480, 120),
            (65_536, 65_472, 16_384, 256),
            (1, 0, 1, 1),
        ] {
            let spare = spare(files, 2);
            assert_eq!(spare, left, "{files}");
            assert_eq!(connections_max(None, spare), connections, "{files}");
            assert_eq!(children_max(256, spare, connections), children, "{files}");
        }
        assert_eq!(spare(1024, 1000), 904);
        assert_eq!(connections_max(Some(100), 65_472), 100);
        assert_eq!(connections_max(Some(1_000_000), 960), 720);
        assert_eq!(children_max(256, 960, 720), 60);
        assert_eq!(children_max(3, 960, 720), 3);
    }
}
