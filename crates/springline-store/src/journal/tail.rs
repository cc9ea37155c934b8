//! The end of a segment that grows, as memory shared with the kernel.
//!
//! Owns the mapping of the part of the file that is written now, the space that the file has ahead of
//! it, and the order of stores. What is stored is the kernel's at once, and survives the process; the
//! kernel's own writes and a sync of the file take it to the disk. Must not know what a record says.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use super::form::WORD_LEN;

/// The file gets its space in such steps, and about so much of it is mapped: some 5,400 records, and
/// no more of a gateway's memory.
pub(super) const STEP: u64 = 256 << 10;

/// Where a segment grows. Many may claim and store at once.
#[derive(Debug)]
pub(crate) struct Tail {
    file: Arc<File>,
    window: MmapRaw,
    /// Where in the file the window begins.
    start: u64,
    /// Where the window ends, and the space of the file.
    end: u64,
    /// The first byte that nobody has claimed.
    next: AtomicU64,
}

impl Tail {
    /// The beginning of an empty file, with room for `len` bytes. Blocks while the system finds the
    /// space.
    ///
    /// # Errors
    /// The disk is full, or the system cannot map the file.
    pub(crate) fn new(file: File, len: u64) -> io::Result<Self> {
        let end = len.next_multiple_of(STEP);
        allocate(&file, 0, end)?;
        Ok(Self {
            window: map(&file, 0, end)?,
            file: Arc::new(file),
            start: 0,
            end,
            next: AtomicU64::new(0),
        })
    }

    /// Moves on so that there is room for `len` bytes more. A full disk is an error here, before a
    /// byte is claimed: a store to space that the file does not have would end the process.
    ///
    /// # Errors
    /// As for [`Tail::new`]; then all is as it was.
    pub(super) fn grow(&mut self, len: u64) -> io::Result<()> {
        let start = self.len();
        let end = (start + len).next_multiple_of(STEP).max(self.end);
        allocate(&self.file, self.end, end - self.end)?;
        self.window = map(&self.file, start, end)?;
        (self.start, self.end) = (start, end);
        Ok(())
    }

    /// Takes the next `len` bytes, which are then the caller's to store to; `None` if there is no
    /// room for them.
    pub(super) fn claim(&self, len: u64) -> Option<u64> {
        // The file's own order is all that counts; who reads it does so after a lock or a crash.
        let claimed = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                next.checked_add(len).filter(|after| *after <= self.end)
            });
        claimed.ok()
    }

    /// Stores whole words where they were claimed, the last one after all others: a kill in between
    /// leaves it zero.
    pub(crate) fn store(&self, at: u64, bytes: &[u8]) {
        let words = self.words();
        let first = usize::try_from((at - self.start) / WORD_LEN as u64).unwrap_or(usize::MAX);
        let (chunks, _) = bytes.as_chunks::<WORD_LEN>();
        let Some((last, others)) = chunks.split_last() else {
            return;
        };
        let words = &words[first..=first + others.len()];
        for (word, chunk) in words.iter().zip(others) {
            word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
        }
        words[others.len()].store(u64::from_ne_bytes(*last), Ordering::Release);
    }

    /// Whole words that were stored.
    pub(crate) fn load(&self, at: u64, len: u64) -> Vec<u8> {
        let word = |at: u64| usize::try_from(at / WORD_LEN as u64).unwrap_or(usize::MAX);
        let words = &self.words()[word(at - self.start)..word(at - self.start + len)];
        let loaded = words.iter().map(|word| word.load(Ordering::Acquire));
        loaded.flat_map(u64::to_ne_bytes).collect()
    }

    /// How much was claimed, from the beginning of the file.
    pub(super) fn len(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// What a full disk does to it.
    #[cfg(test)]
    pub(super) fn stop_growing(&mut self, path: &std::path::Path) {
        // Open for reading only.
        self.file = Arc::new(File::open(path).unwrap_or_else(|error| panic!("{error}")));
    }

    #[expect(
        unsafe_code,
        clippy::cast_ptr_alignment,
        reason = "a mapping is memory that no safe type of ours can be made of"
    )]
    fn words(&self) -> &[AtomicU64] {
        let first = self.window.as_mut_ptr().cast::<AtomicU64>();
        let len = self.window.len() / WORD_LEN;
        // SAFETY: the mapping is readable and writable for its whole length and lives as long as
        // `self`. It begins at a multiple of a word, of a page at first and of whole records after
        // that. Any bits are an AtomicU64, and nothing refers to the mapping but such slices.
        unsafe { std::slice::from_raw_parts(first, len) }
    }
}

fn map(file: &File, start: u64, end: u64) -> io::Result<MmapRaw> {
    let len = usize::try_from(end - start).map_err(io::Error::other)?;
    MmapOptions::new().offset(start).len(len).map_raw(file)
}

#[cfg(test)]
thread_local! {
    static FULL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Runs something on a disk that is full for its thread.
#[cfg(test)]
pub(crate) fn on_full_disk<T>(run: impl FnOnce() -> T) -> T {
    FULL.set(true);
    let result = run();
    FULL.set(false);
    result
}

/// Gives a file space that is really there, and reads as zeros.
fn allocate(file: &File, from: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    #[cfg(test)]
    if FULL.get() {
        return Err(Errno::NOSPC.into());
    }
    let result = retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, len));
    match result {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => fill(file, from, len),
        other => Ok(other?),
    }
}

/// The same where the file system cannot do so by itself.
fn fill(file: &File, from: u64, len: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.write_all_at(&zeros, from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_stored_is_in_the_file_at_once_and_the_rest_is_zero() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tail = Tail::new(file.reopen().unwrap(), 64).unwrap();
        let mut expected = Vec::new();
        for round in 1..=20_u8 {
            let bytes = vec![round; 16 << 10];
            let at = tail.claim(bytes.len() as u64).unwrap_or_else(|| {
                tail.grow(bytes.len() as u64).unwrap();
                tail.claim(bytes.len() as u64).unwrap()
            });
            assert_eq!(at, expected.len() as u64);
            tail.store(at, &bytes);
            expected.extend(bytes);
            let mut found = fs::read(file.path()).unwrap();
            assert_eq!(found.len() as u64 % STEP, 0);
            assert!(
                found
                    .split_off(expected.len())
                    .iter()
                    .all(|byte| *byte == 0)
            );
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn space_that_the_file_system_does_not_allocate_is_filled_with_zeros() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fill(file.as_file(), 0, STEP).unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), vec![0; 256 << 10]);
    }

    #[test]
    fn what_cannot_grow_stays_as_it_was() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tail = Tail::new(file.reopen().unwrap(), STEP).unwrap();
        tail.stop_growing(file.path());
        tail.claim(STEP).unwrap();
        assert!(tail.grow(64).is_err());
        assert_eq!((tail.claim(8), tail.len()), (None, STEP));
        assert_eq!(fs::metadata(file.path()).unwrap().len(), STEP);
    }
}
