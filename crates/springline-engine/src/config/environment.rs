//! The seam to the process: variables, files and the user id.
//!
//! Owns the only reads of the configuration that touch the machine, so that tests need none.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::Path;

/// What the configuration asks of the machine.
pub trait Environment: Send + Sync {
    /// The value of an environment variable, if it is set.
    fn var(&self, name: &str) -> Option<OsString>;

    /// The content of a file of at most `max` bytes. Blocks on the disk.
    fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ReadError>;

    /// The user that we run as.
    fn uid(&self) -> u32;
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is larger than the caller takes.
    #[error("the file is too large")]
    TooLarge,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The process's own environment. `SPRINGLINE_EXE`, unless it is set, is the running program, so
/// that an entry can name it wherever it is installed.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn var(&self, name: &str) -> Option<OsString> {
        let itself = || {
            let path = std::env::current_exe()
                .ok()
                .filter(|_| name == "SPRINGLINE_EXE")?;
            Some(path.into_os_string())
        };
        std::env::var_os(name).or_else(itself)
    }

    fn read(&self, path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?
            .take(max.saturating_add(1))
            .read_to_end(&mut bytes)?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > max {
            Err(ReadError::TooLarge)
        } else {
            Ok(bytes)
        }
    }

    fn uid(&self) -> u32 {
        rustix::process::getuid().as_raw()
    }
}
