//! The state folder: who may read it, and what happens to files that are not ours.
//!
//! Owns the rules for every file in it: the folder is 0700 and ours, files are 0600, regular and
//! ours, symlinks are never followed, and what breaks a rule is renamed to `NAME.set-aside-N` and
//! reported. Must not know what the files hold.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tells that the folder is ours, and in which layout.
pub(crate) const FORMAT_FILE: &str = "format";
const FORMAT: &[u8] = b"springline state 1\n";
/// What the layout named above consists of; it is set aside as a whole if the layout is not ours.
const CONTENT: [&str; 7] = [
    FORMAT_FILE,
    "digest-key",
    "records.db",
    "records.db-wal",
    "records.db-shm",
    "journal",
    "results",
];
const SET_ASIDE_MAX: u32 = 99;
/// The start of the name of an empty file that holds an ordinal.
const MARK: &str = "start-";
/// Written and removed to find out whether the folder takes writes.
const PROBE_FILE: &str = "probe";
const PROBE_LEN: usize = 1 << 20;

/// A state folder that was checked.
#[derive(Clone, Debug)]
pub struct StateFolder {
    /// Without symlinks.
    path: PathBuf,
}

/// What a look at a small file finds.
#[derive(Debug)]
pub(crate) enum Look {
    Absent,
    Content(Vec<u8>),
    /// It breaks a rule, and nothing of it was read.
    Breach(Reason),
}

/// Something in the state folder that was not as it should be. It never stops the gateway.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Finding {
    /// The file.
    pub file: PathBuf,
    /// Where it is now, if it was set aside.
    pub kept: Option<PathBuf>,
    /// What was wrong with it.
    pub reason: Reason,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)?;
        match &self.kept {
            Some(kept) => write!(f, "; kept as {}", kept.display()),
            None => Ok(()),
        }
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Reason {
    /// A symlink is not followed.
    #[error("is a symlink")]
    Symlink,
    /// A folder or device stands where a file should, or a file where a folder should.
    #[error("is not of the right type")]
    Type,
    /// It belongs to someone else.
    #[error("belongs to user {uid}")]
    Owner {
        /// The owner.
        uid: u32,
    },
    /// Others could read or write it; its mode was mended.
    #[error("was open to others (mode {mode:o}), which was mended")]
    Mode {
        /// The mode that was found.
        mode: u32,
    },
    /// It is longer than anything that we write.
    #[error("has {len} bytes, more than {max}")]
    Oversized {
        /// Its length.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// We did not write it.
    #[error("was not written by Springline")]
    Foreign,
    /// Another version of Springline wrote it.
    #[error("has format {found}, which this version does not read")]
    Version {
        /// The format's number.
        found: u32,
    },
    /// Part of it does not pass its checks.
    #[error("is damaged ({detail})")]
    Damaged {
        /// Which check, in words.
        detail: Arc<str>,
    },
    /// Writes were cut short; all others are whole.
    #[error("has {len} bytes of torn writes, which were ignored")]
    Torn {
        /// How much was ignored.
        len: u64,
    },
}

/// Why the state folder cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder itself is a symlink.
    #[error("the state folder {} is a symlink", path.display())]
    Symlink {
        /// The folder.
        path: PathBuf,
    },
    /// The folder belongs to someone else.
    #[error("the state folder {} belongs to user {uid}", path.display())]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// The system has no randomness.
    #[error("the system gives no random bytes")]
    NoRandom,
    /// The system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl StateFolder {
    /// Makes the folder if need be, and checks it. The caller holds its lock.
    ///
    /// # Errors
    /// The folder is a symlink, belongs to someone else, or cannot be made or written.
    pub fn open(path: &Path) -> Result<(Self, Vec<Finding>), FolderError> {
        let failed = failure("open", path);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)
            .map_err(&failed)?;
        let meta = fs::symlink_metadata(path).map_err(&failed)?;
        if meta.is_symlink() {
            return Err(FolderError::Symlink { path: path.into() });
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(FolderError::Owner {
                path: path.into(),
                uid: meta.uid(),
            });
        }
        let mut findings = Vec::new();
        findings.extend(mend_mode(path, &meta, 0o700).map_err(&failed)?);
        let folder = Self {
            path: path.canonicalize().map_err(&failed)?,
        };
        folder.check_format(&mut findings)?;
        Ok((folder, findings))
    }

    /// Where it is, without symlinks.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Renames files that belong together, with one ordinal for all, and tells of the first.
    ///
    /// # Errors
    /// A file cannot be renamed.
    pub fn set_aside(&self, names: &[&str], reason: Reason) -> Result<Finding, FolderError> {
        let aside = |name: &str, n: u32| self.join(&format!("{name}.set-aside-{n}"));
        let free = |n: &u32| {
            names
                .iter()
                .all(|name| fs::symlink_metadata(aside(name, *n)).is_err())
        };
        // When all ordinals are taken the last one is written over: the folder stays bounded.
        let n = (1..SET_ASIDE_MAX).find(free).unwrap_or(SET_ASIDE_MAX);
        for name in names {
            let from = self.join(name);
            match fs::rename(&from, aside(name, n)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failure("set aside", &from)(error)),
            }
        }
        let first = names.first().copied().unwrap_or_default();
        Ok(Finding {
            file: self.join(first),
            kept: Some(aside(first, n)),
            reason,
        })
    }

    /// Whether a file is there. One that breaks the rules is set aside, with those that belong to
    /// it, and is then not there.
    pub(crate) fn admit(
        &self,
        names: &[&str],
        len_max: u64,
        findings: &mut Vec<Finding>,
    ) -> Result<bool, FolderError> {
        for name in names {
            if let Some(reason) = self.breach(name, len_max, findings)? {
                let mut finding = self.set_aside(names, reason)?;
                finding.file = self.join(name);
                findings.push(finding);
                return Ok(false);
            }
        }
        let first = names.first().copied().unwrap_or_default();
        Ok(fs::symlink_metadata(self.join(first)).is_ok())
    }

    fn breach(
        &self,
        name: &str,
        len_max: u64,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<Reason>, FolderError> {
        let path = self.join(name);
        let meta = match fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failure("check", &path)(error)),
        };
        if meta.is_symlink() {
            return Ok(Some(Reason::Symlink));
        }
        if !meta.is_file() {
            return Ok(Some(Reason::Type));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Ok(Some(Reason::Owner { uid: meta.uid() }));
        }
        if meta.len() > len_max {
            return Ok(Some(Reason::Oversized {
                len: meta.len(),
                max: len_max,
            }));
        }
        findings.extend(mend_mode(&path, &meta, 0o600).map_err(failure("check", &path))?);
        Ok(None)
    }

    /// A folder within this one, by the same rules; a file or link of its name is set aside. A new
    /// one is power-durable with [`Self::settle`].
    pub(crate) fn inner(
        &self,
        name: &str,
        findings: &mut Vec<Finding>,
    ) -> Result<Self, FolderError> {
        let path = self.join(name);
        let failed = failure("open", &path);
        let breach = match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => Some(Reason::Symlink),
            Ok(meta) if !meta.is_dir() => Some(Reason::Type),
            Ok(meta) if meta.uid() != rustix::process::geteuid().as_raw() => {
                Some(Reason::Owner { uid: meta.uid() })
            }
            Ok(meta) => {
                findings.extend(mend_mode(&path, &meta, 0o700).map_err(&failed)?);
                return Ok(Self { path });
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(reason) = breach {
            findings.push(self.set_aside(&[name], reason)?);
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(&failed)?;
        Ok(Self { path })
    }

    /// The content of a small file; `None` if there is none, or if it was set aside.
    pub(crate) fn read(
        &self,
        name: &str,
        len_max: u64,
        findings: &mut Vec<Finding>,
    ) -> Result<Option<Vec<u8>>, FolderError> {
        match self.look(name, len_max, findings)? {
            Look::Content(bytes) => Ok(Some(bytes)),
            Look::Absent => Ok(None),
            Look::Breach(reason) => {
                findings.push(self.set_aside(&[name], reason)?);
                Ok(None)
            }
        }
    }

    /// As [`Self::read`], but a file that breaks the rules stays where it is.
    pub(crate) fn look(
        &self,
        name: &str,
        len_max: u64,
        findings: &mut Vec<Finding>,
    ) -> Result<Look, FolderError> {
        if let Some(reason) = self.breach(name, len_max, findings)? {
            return Ok(Look::Breach(reason));
        }
        let path = self.join(name);
        let mut bytes = Vec::new();
        let read = open_options()
            .read(true)
            .open(&path)
            .and_then(|file| file.take(len_max + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => Ok(Look::Content(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Look::Absent),
            Err(error) => Err(failure("read", &path)(error)),
        }
    }

    /// Replaces a small file: after a crash or a power cut it is the old one or the new one, whole.
    /// Where there was none, a start does not wait for the disk: it is there after a crash, and after
    /// a power cut once [`Self::settle`] was called.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), FolderError> {
        let path = self.join(name);
        let temporary = self.join(&format!("{name}.new"));
        let is_new = !path.exists();
        let write = || {
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let mut file = self.create(&format!("{name}.new"))?;
            file.write_all(bytes)?;
            if is_new {
                return fs::rename(&temporary, &path);
            }
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            self.sync()
        };
        write().map_err(failure("write", &path))
    }

    /// A new file, private to us, to be written and mapped.
    pub(crate) fn create(&self, name: &str) -> io::Result<File> {
        open_options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.join(name))
    }

    /// Makes files that are new, and their names, power-durable. Blocks on the disk.
    pub(crate) fn settle(&self, names: &[&str]) -> io::Result<()> {
        for name in names {
            match open_options().read(true).open(self.join(name)) {
                Ok(file) => file.sync_all()?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.sync()
    }

    /// Finds out whether the folder takes writes, of more than the few bytes with which a full disk would
    /// be full again at once. Blocks on the disk.
    pub(crate) fn probe(&self) -> Result<(), FolderError> {
        let path = self.join(PROBE_FILE);
        let remove = || match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        let write = || {
            remove()?;
            let mut file = self.create(PROBE_FILE)?;
            let zeros = vec![0; PROBE_LEN];
            file.write_all(&zeros)?;
            file.sync_data()
        };
        let written = write();
        written
            .and(remove())
            .map_err(failure("write to", &self.path))
    }

    /// The highest ordinal that was marked in this folder with [`Self::mark`], 0 without one.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn marked(&self) -> Result<u64, FolderError> {
        Ok(self.marks()?.into_iter().max().unwrap_or(0))
    }

    fn marks(&self) -> Result<Vec<u64>, FolderError> {
        let failed = failure("read", &self.path);
        let mut marks = Vec::new();
        for file in fs::read_dir(&self.path).map_err(&failed)? {
            let name = file.map_err(&failed)?.file_name();
            let ordinal = name.to_str().and_then(|name| name.strip_prefix(MARK));
            marks.extend(ordinal.and_then(|text| text.parse::<u64>().ok()));
        }
        Ok(marks)
    }

    /// Notes an ordinal that must not come twice by the name of an empty file: a full disk mostly has room
    /// for a name. Blocks on the disk.
    ///
    /// # Errors
    /// The name cannot be made.
    pub fn mark(&self, ordinal: u64) -> Result<(), FolderError> {
        let before = self.marks()?;
        let name = |ordinal: u64| format!("{MARK}{ordinal}");
        let write = || {
            self.create(&name(ordinal))?;
            self.sync()?;
            for old in before.into_iter().filter(|old| *old < ordinal) {
                match fs::remove_file(self.join(&name(old))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(())
        };
        write().map_err(failure("write to", &self.path))
    }

    /// Makes new names and removals power-durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn check_format(&self, findings: &mut Vec<Finding>) -> Result<(), FolderError> {
        let found = self.read(FORMAT_FILE, FORMAT.len() as u64 + 16, findings)?;
        let reason = match found.as_deref() {
            Some(FORMAT) => return Ok(()),
            Some(other) => {
                version(other).map_or(Reason::Foreign, |found| Reason::Version { found })
            }
            None => return self.replace(FORMAT_FILE, FORMAT),
        };
        findings.push(self.set_aside(&CONTENT, reason)?);
        self.replace(FORMAT_FILE, FORMAT)
    }
}

fn version(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_prefix("springline state ")?.trim().parse().ok()
}

/// Never follows a symlink in the last part of a path.
pub(crate) fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    options.custom_flags(flags.bits().cast_signed());
    options
}

pub(crate) fn failure(
    action: &'static str,
    path: &Path,
) -> impl Fn(io::Error) -> FolderError + use<> {
    let path = path.to_path_buf();
    move |source| FolderError::Io {
        action,
        path: path.clone(),
        source,
    }
}

fn mend_mode(path: &Path, meta: &fs::Metadata, wanted: u32) -> io::Result<Option<Finding>> {
    let mode = meta.permissions().mode() & 0o7777;
    let others = mode & 0o077;
    if others == 0 {
        return Ok(None);
    }
    fs::set_permissions(path, fs::Permissions::from_mode(wanted))?;
    Ok(Some(Finding {
        file: path.into(),
        kept: None,
        reason: Reason::Mode { mode },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, StateFolder) {
        let home = tempfile::tempdir().unwrap();
        let (folder, _) = StateFolder::open(&home.path().join("state")).unwrap();
        (home, folder)
    }

    #[test]
    fn a_folder_is_made_private_and_marked() {
        let (_home, folder) = folder();
        let mode = fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let (_, findings) = StateFolder::open(folder.path()).unwrap();
        assert_eq!(findings, []);
    }

    #[test]
    fn a_folder_that_others_could_read_is_mended_and_reported() {
        let (_home, folder) = folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (_, findings) = StateFolder::open(folder.path()).unwrap();
        assert_eq!(findings[0].reason, Reason::Mode { mode: 0o755 });
        let mode = fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_folder_that_is_a_symlink_is_refused() {
        let (home, folder) = folder();
        let link = home.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let refused = StateFolder::open(&link);
        assert!(matches!(refused, Err(FolderError::Symlink { .. })));
    }

    #[test]
    fn a_layout_of_another_version_is_set_aside_whole() {
        let (_home, folder) = folder();
        fs::write(folder.join(FORMAT_FILE), "springline state 7\n").unwrap();
        fs::write(folder.join("records.db"), "from the future").unwrap();
        let (_, findings) = StateFolder::open(folder.path()).unwrap();
        assert_eq!(findings[0].reason, Reason::Version { found: 7 });
        assert!(!folder.join("records.db").exists());
        assert!(folder.join("records.db.set-aside-1").exists());

        fs::write(folder.join(FORMAT_FILE), "who knows").unwrap();
        let (_, findings) = StateFolder::open(folder.path()).unwrap();
        assert_eq!(findings[0].reason, Reason::Foreign);
        assert!(folder.join("format.set-aside-2").exists());
        let (_, findings) = StateFolder::open(folder.path()).unwrap();
        assert_eq!(findings, []);
    }

    #[test]
    fn symlinks_folders_and_large_files_are_set_aside_and_their_content_is_not_touched() {
        let (home, folder) = folder();
        let foreign = home.path().join("foreign");
        fs::write(&foreign, "precious").unwrap();
        std::os::unix::fs::symlink(&foreign, folder.join("a")).unwrap();
        fs::create_dir(folder.join("b")).unwrap();
        fs::write(folder.join("c"), "12345").unwrap();
        let mut findings = Vec::new();
        for name in ["a", "b", "c"] {
            assert!(!folder.admit(&[name], 4, &mut findings).unwrap());
        }
        let reasons: Vec<_> = findings.iter().map(|found| found.reason.clone()).collect();
        let oversized = Reason::Oversized { len: 5, max: 4 };
        assert_eq!(reasons, [Reason::Symlink, Reason::Type, oversized]);
        assert_eq!(fs::read(&foreign).unwrap(), b"precious");
        assert!(findings[0].to_string().ends_with("a.set-aside-1"));
    }

    #[test]
    fn a_probe_leaves_nothing_behind_and_fails_where_nothing_can_be_written() {
        let (_home, folder) = folder();
        fs::write(folder.join(PROBE_FILE), "left by a crash").unwrap();
        folder.probe().unwrap();
        assert!(!folder.join(PROBE_FILE).exists());
        // Even root cannot write a file where a folder stands.
        fs::create_dir(folder.join(PROBE_FILE)).unwrap();
        assert!(folder.probe().is_err());
    }

    #[test]
    fn a_marked_ordinal_is_the_highest_one_and_leaves_one_name() {
        let (_home, folder) = folder();
        assert_eq!(folder.marked().unwrap(), 0);
        for ordinal in [3, 12, 13] {
            folder.mark(ordinal).unwrap();
            assert_eq!(folder.marked().unwrap(), ordinal);
        }
        assert!(folder.mark(13).is_err(), "it does not come twice");
        assert!(!folder.join("start-12").exists());
    }

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_beside_it() {
        let (_home, folder) = folder();
        fs::write(folder.join("a.new"), "left by a crash").unwrap();
        folder.replace("a", b"1").unwrap();
        folder.replace("a", b"2").unwrap();
        let mut findings = Vec::new();
        let read = folder.read("a", 10, &mut findings).unwrap();
        assert_eq!(read.as_deref(), Some(&b"2"[..]));
        assert_eq!(findings, []);
        assert!(!folder.join("a.new").exists());
    }
}
