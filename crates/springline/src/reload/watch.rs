//! Noticing that a file of the configuration is another one now.
//!
//! Owns the watches on folders and the comparison of contents. Editors replace a file by renaming
//! another one over it, and mounted secrets change by a link: so folders are watched, not files, and
//! a change counts only if what can be read differs. Of a folder that is not there, the nearest one
//! above it is watched until it is.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use springline_engine::config::{Environment as _, ProcessEnvironment};
use tokio::sync::Notify;
use tokio::time::timeout;

/// The quiet after which a series of changes counts as over: editors write in several steps.
const QUIET: Duration = Duration::from_millis(200);

/// Changes that go on for longer are not waited out.
const SETTLE_ROUNDS_MAX: u32 = 10;

/// What each file held when it was read, with the most that is read of it; nothing where it could
/// not be read.
pub(crate) type Prints = BTreeMap<PathBuf, (u64, Option<u64>)>;

/// A number that tells contents apart; it never leaves the process.
pub(crate) fn print_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// The files of a configuration.
pub(super) struct Watch {
    prints: Prints,
    folders: BTreeSet<PathBuf>,
    /// None where the system has no watches left: then only reloads that are asked for happen.
    watcher: Option<RecommendedWatcher>,
    stirred: Arc<Notify>,
}

impl Watch {
    pub(super) fn new(prints: Prints) -> Self {
        let stirred = Arc::new(Notify::new());
        let told = Arc::clone(&stirred);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_read = event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_)));
            if !is_read {
                told.notify_one();
            }
        });
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "files are not watched"))
            .ok();
        let mut watch = Self {
            prints: Prints::new(),
            folders: BTreeSet::new(),
            watcher,
            stirred,
        };
        watch.replace(prints);
        watch
    }

    /// These are the files from now on.
    pub(super) fn replace(&mut self, prints: Prints) {
        self.prints = prints;
        self.cover();
    }

    /// These files were read, and the rest was not looked at.
    pub(super) fn add(&mut self, prints: Prints) {
        self.prints.extend(prints);
        self.cover();
    }

    fn cover(&mut self) {
        let mut wanted = BTreeSet::new();
        for path in self.prints.keys() {
            wanted.extend(folder_of(path));
            if let Ok(real) = path.canonicalize() {
                wanted.extend(folder_of(&real));
            }
        }
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        for folder in self.folders.difference(&wanted) {
            if let Err(error) = watcher.unwatch(folder) {
                tracing::debug!(%error, "a folder was watched no more");
            }
        }
        let mut covered = BTreeSet::new();
        for folder in wanted {
            // Also one that was watched: it may be another folder of that name by now, and to watch
            // the same one again changes nothing.
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    covered.insert(folder);
                }
                Err(error) => {
                    let folder = folder.display();
                    tracing::warn!(%folder, %error, "changes in a folder are not noticed");
                }
            }
        }
        self.folders = covered;
    }

    /// Until a file holds something else than when it was read. Cancel safe: what was stirred and
    /// not compared yet shows at the next change.
    pub(super) async fn changed(&mut self) {
        loop {
            self.stirred.notified().await;
            for _ in 0..SETTLE_ROUNDS_MAX {
                if timeout(QUIET, self.stirred.notified()).await.is_err() {
                    break;
                }
            }
            // Folders come and go as well.
            self.cover();
            let prints = self.prints.clone();
            let compared = tokio::task::spawn_blocking(move || differ(&prints)).await;
            if compared.unwrap_or(false) {
                return;
            }
        }
    }
}

fn differ(prints: &Prints) -> bool {
    prints.iter().any(|(path, (max, print))| {
        let now = ProcessEnvironment.read(path, *max).ok();
        now.map(|bytes| print_of(&bytes)) != *print
    })
}

/// The folder of a file, or the nearest one above it that is there.
fn folder_of(path: &Path) -> Option<PathBuf> {
    let above = path.ancestors().skip(1).map(|folder| {
        if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        }
    });
    above
        .into_iter()
        .find(|folder| folder.is_dir())
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_replaced_by_another_is_noticed_and_one_that_is_touched_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, "one").unwrap();
        let print = |text: &str| Some(print_of(text.as_bytes()));
        let mut watch = Watch::new(Prints::from([(path.clone(), (100, print("one")))]));
        std::fs::write(&path, "one").unwrap();
        assert!(!differ(&watch.prints));
        let other = folder.path().join("config.json~");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        watch.changed().await;
        assert!(differ(&watch.prints));
    }

    #[tokio::test]
    async fn a_file_is_noticed_that_appears_in_a_folder_that_was_not_there_or_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/config.json");
        let mut watch = Watch::new(Prints::from([(path.clone(), (100, None))]));
        for round in 0..2 {
            let parent = path.parent().unwrap();
            std::fs::create_dir_all(parent).unwrap();
            std::fs::write(&path, "one").unwrap();
            watch.changed().await;
            assert!(differ(&watch.prints), "round {round}");
            std::fs::remove_dir_all(folder.path().join("a")).unwrap();
            watch.replace(Prints::from([(path.clone(), (100, None))]));
        }
    }
}
