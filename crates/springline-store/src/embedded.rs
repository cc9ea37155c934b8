//! The store on disk: SQLite with a write-ahead log (docs/decisions/0001-embedded-store.md).
//!
//! Owns `records.db` and the files that SQLite keeps beside it. A commit hands its pages to the
//! kernel and waits for nothing; a thread syncs the log for groups of commits and moves it into the
//! database when it has grown. Must not know what a record means.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};

use crate::beat::Beat;
use crate::folder::{Finding, FolderError, Reason, StateFolder, failure, open_options};
use crate::record::{Kind, Loaded, Op, Record, Seq, Store, StoreError};
use crate::{digest, folder};

const FILE: &str = "records.db";
const WAL: &str = "records.db-wal";
/// The database and what belongs to it.
const FILES: [&str; 3] = [FILE, WAL, "records.db-shm"];
/// "SPRS": tells our database from another program's.
const APPLICATION_ID: i32 = 0x5350_5253;
/// The format of the tables and of a stored value.
const FORMAT: i32 = 1;
/// In pages of 4 KiB: 2 GiB. 10,000 sessions of 64 KiB and all kept results are half of it.
const PAGES_MAX: u32 = 512 << 10;
const FILE_LEN_MAX: u64 = 4096 * PAGES_MAX as u64;
/// From this length on the log is moved into the database, while writers go on.
const WAL_LEN: u64 = 8 << 20;
/// Writers that go on keep the log from beginning anew. From this length on they wait for the last of
/// the move: a start after a kill reads all of the log, some 15 ms for so much (I8).
const WAL_LEN_MAX: u64 = 16 << 20;
/// So much of the database is mapped while all of it is read.
const MAPPED_MAX: u64 = 256 << 20;
/// A value ends in this many bytes of checksum.
const CHECKSUM_LEN: usize = 4;

const PUT: &str = "INSERT INTO record (kind, key, value) VALUES (?1, ?2, ?3) \
    ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value";
const REMOVE: &str = "DELETE FROM record WHERE kind = ?1 AND key = ?2";
const GET: &str = "SELECT value FROM record WHERE kind = ?1 AND key = ?2";
const LOAD: &str = "SELECT key, value FROM record WHERE kind = ?1 ORDER BY key";

/// Keeps records in the state folder.
#[derive(Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    beat: Beat,
}

#[derive(Debug)]
struct Shared {
    /// Held for the length of one batch or read.
    writer: Mutex<Writer>,
    /// The last batch that was handed to the kernel.
    written: AtomicU64,
}

#[derive(Debug)]
struct Writer {
    connection: Connection,
    poison: Option<Arc<str>>,
}

impl EmbeddedStore {
    /// Opens the database of a state folder, or makes one. Files that are not ours, or damaged, are
    /// set aside and an empty database takes their place.
    ///
    /// # Errors
    /// The folder cannot be written, or the database cannot be opened for a reason that lies not in
    /// its content.
    pub fn open(folder: &StateFolder) -> Result<(Self, Vec<Finding>), StoreError> {
        let mut findings = Vec::new();
        let connection = connect(folder, &mut findings)?;
        let keeper = Keeper::new(folder)?;
        let shared = Arc::new(Shared {
            writer: Mutex::new(Writer {
                connection,
                poison: None,
            }),
            written: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        let beat = Beat::start("springline-store", move || keeper.sync(&own))
            .map_err(|error| failed("open", &error))?;
        Ok((Self { shared, beat }, findings))
    }
}

#[cfg(test)]
impl EmbeddedStore {
    /// Lets the next write fail that needs more room.
    pub(crate) fn narrow(&self) {
        let writer = self.shared.writer.lock();
        let narrow = writer.connection.execute_batch("PRAGMA max_page_count = 1");
        narrow.expect("it can be told");
    }
}

impl Store for EmbeddedStore {
    fn apply(&self, batch: &[Op]) -> Result<Seq, StoreError> {
        batch.iter().try_for_each(Op::check)?;
        let mut writer = self.shared.writer.lock();
        if writer.poison.is_none() {
            writer.poison = self.beat.failure();
        }
        if let Some(cause) = &writer.poison {
            return Err(StoreError::Poisoned {
                cause: Arc::clone(cause),
            });
        }
        if let Err(error) = write(&mut writer.connection, batch) {
            // Another program holds the database, so nothing was tried: the next write may go well.
            let busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
            let error = failed("write", &error);
            if !busy {
                writer.poison = Some(error.to_string().into());
            }
            return Err(error);
        }
        // Within the lock, so that the ordinals follow the order of the writes.
        let seq = self.shared.written.fetch_add(1, Ordering::AcqRel) + 1;
        drop(writer);
        self.beat.mark(seq);
        Ok(Seq(seq))
    }

    fn get(&self, kind: Kind, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let writer = self.shared.writer.lock();
        let stored = writer
            .connection
            .prepare_cached(GET)
            .and_then(|mut get| {
                get.query_row(params![kind.code(), key], |row| row.get::<_, Vec<u8>>(0))
                    .optional()
            })
            .map_err(|error| failed("read", &error))?;
        drop(writer);
        Ok(stored.and_then(|stored| unseal(kind, key, stored)))
    }

    fn load(&self, kind: Kind) -> Result<Loaded, StoreError> {
        let writer = self.shared.writer.lock();
        let loaded = mapped(&writer.connection, |connection| load(connection, kind));
        loaded.map_err(|error| failed("read", &error))
    }

    fn sync(&self) -> Result<Seq, StoreError> {
        match self.beat.sync() {
            Ok(seq) => Ok(Seq(seq)),
            Err(cause) => Err(StoreError::Poisoned { cause }),
        }
    }

    fn synced(&self) -> Seq {
        Seq(self.beat.synced())
    }
}

/// Makes the log durable, on the thread of the beat.
#[derive(Debug)]
struct Keeper {
    /// A second connection: it moves the log into the database while the writer goes on.
    connection: Connection,
    wal: File,
    /// Until the first sync: the folder, whose files may be new.
    unsettled: Mutex<Option<StateFolder>>,
}

impl Keeper {
    fn new(folder: &StateFolder) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(folder.join(FILE), flags())
            .map_err(|error| failed("open", &error))?;
        // FULL for the move itself: the log is synced before it and the database after it.
        connection
            .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;")
            .map_err(|error| failed("open", &error))?;
        // SQLite locks the database and its index, never the log: closing this handle drops no lock.
        let wal = open_options()
            .read(true)
            .write(true)
            .open(folder.join(WAL))
            .map_err(|error| failed("open", &error))?;
        Ok(Self {
            connection,
            wal,
            unsettled: Mutex::new(Some(folder.clone())),
        })
    }

    fn sync(&self, shared: &Shared) -> Result<u64, Arc<str>> {
        let told = |error: &dyn std::error::Error| Arc::from(error.to_string());
        let written = shared.written.load(Ordering::Acquire);
        if let Some(folder) = self.unsettled.lock().take() {
            // The key and the database before any record that needs them.
            let names = [folder::FORMAT_FILE, digest::FILE, FILE];
            folder.settle(&names).map_err(|error| told(&error))?;
        }
        self.wal.sync_data().map_err(|error| told(&error))?;
        let len = self.wal.metadata().map_err(|error| told(&error))?.len();
        // One that began anew keeps this length.
        if len > WAL_LEN {
            self.checkpoint("PRAGMA wal_checkpoint(PASSIVE)")
                .map_err(|error| told(&error))?;
        }
        if len >= WAL_LEN_MAX {
            // What was written during the move is little.
            let _writer = shared.writer.lock();
            self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")
                .map_err(|error| told(&error))?;
        }
        Ok(written)
    }

    /// The row says how far it came; what is left is done the next time.
    fn checkpoint(&self, pragma: &str) -> rusqlite::Result<()> {
        self.connection.query_row(pragma, [], |_| Ok(()))
    }
}

/// Why a database was not taken.
enum Refusal {
    /// Its content is at fault: it is set aside.
    Content(Reason),
    /// Something else is.
    Other(StoreError),
}

fn connect(folder: &StateFolder, findings: &mut Vec<Finding>) -> Result<Connection, StoreError> {
    let fault = |error: FolderError| StoreError::Failed {
        action: "open",
        cause: error.to_string().into(),
    };
    if !folder
        .admit(&FILES, FILE_LEN_MAX, findings)
        .map_err(fault)?
    {
        create(folder, findings).map_err(fault)?;
    }
    match connect_once(folder) {
        Ok(connection) => return Ok(connection),
        Err(Refusal::Other(error)) => return Err(error),
        Err(Refusal::Content(reason)) => {
            findings.push(folder.set_aside(&FILES, reason).map_err(fault)?);
        }
    }
    create(folder, findings).map_err(fault)?;
    connect_once(folder).map_err(|refusal| match refusal {
        Refusal::Other(error) => error,
        Refusal::Content(reason) => StoreError::Failed {
            action: "create",
            cause: reason.to_string().into(),
        },
    })
}

/// An empty private file: SQLite gives the files beside it the same mode. A log without a database
/// is not read.
fn create(folder: &StateFolder, findings: &mut Vec<Finding>) -> Result<(), FolderError> {
    let orphan = FILES[1..].iter().any(|name| folder.join(name).exists());
    if orphan {
        let detail = "a log without its database".into();
        findings.push(folder.set_aside(&FILES, Reason::Damaged { detail })?);
    }
    let path = folder.join(FILE);
    folder
        .create(FILE)
        .map(drop)
        .map_err(failure("create", &path))
}

fn connect_once(folder: &StateFolder) -> Result<Connection, Refusal> {
    let mut connection =
        Connection::open_with_flags(folder.join(FILE), flags()).map_err(|e| judge(&e))?;
    // An empty database has nothing to lose: a start does not wait while it is laid out.
    if fs::metadata(folder.join(FILE)).is_ok_and(|meta| meta.len() == 0) {
        connection
            .execute_batch("PRAGMA synchronous = OFF;")
            .map_err(|e| judge(&e))?;
    }
    connection
        .execute_batch(&format!(
            "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; \
             PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = {WAL_LEN}; \
             PRAGMA temp_store = MEMORY; PRAGMA max_page_count = {PAGES_MAX};"
        ))
        .map_err(|e| judge(&e))?;
    let identity = (
        pragma(&connection, "application_id")?,
        pragma(&connection, "user_version")?,
    );
    match identity {
        (0, 0) if is_empty(&connection)? => lay_out(&mut connection).map_err(|e| judge(&e))?,
        (APPLICATION_ID, FORMAT) => {}
        (APPLICATION_ID, other) => {
            return Err(Refusal::Content(Reason::Version {
                found: other.cast_unsigned(),
            }));
        }
        _ => return Err(Refusal::Content(Reason::Foreign)),
    }
    mapped(&connection, check)?;
    // NORMAL: a commit syncs nothing; only the first one after the log was moved syncs its header,
    // without which a power cut could mix two logs.
    connection
        .execute_batch("PRAGMA synchronous = NORMAL;")
        .map_err(|e| judge(&e))?;
    Ok(connection)
}

fn lay_out(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};
         CREATE TABLE record (
             id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
             UNIQUE (kind, key)) STRICT;"
    ))?;
    transaction.commit()
}

/// Walks all pages: what is damaged must be known before anybody relies on it.
fn check(connection: &Connection) -> Result<(), Refusal> {
    let told: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|e| judge(&e))?;
    if told != "ok" {
        let detail = told.into();
        return Err(Refusal::Content(Reason::Damaged { detail }));
    }
    // The columns, as the statements need them.
    for statement in [PUT, REMOVE, GET, LOAD] {
        connection
            .prepare_cached(statement)
            .map_err(|_| Refusal::Content(Reason::Foreign))?;
    }
    Ok(())
}

/// Reads much. Meanwhile the database is mapped: its pages are not copied, which halves the time.
fn mapped<T>(connection: &Connection, read: impl FnOnce(&Connection) -> T) -> T {
    // Where there is no mapping, all is read as ever.
    let map = |len: u64| {
        let pragma = format!("PRAGMA mmap_size = {len}");
        connection.query_row(&pragma, [], |_| Ok(())).is_ok()
    };
    map(MAPPED_MAX);
    let result = read(connection);
    map(0);
    result
}

fn pragma(connection: &Connection, name: &str) -> Result<i32, Refusal> {
    connection
        .query_row(&format!("PRAGMA {name}"), [], |row| row.get(0))
        .map_err(|e| judge(&e))
}

fn is_empty(connection: &Connection) -> Result<bool, Refusal> {
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(|e| judge(&e))?;
    Ok(tables == 0)
}

fn judge(error: &rusqlite::Error) -> Refusal {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Refusal::Content(Reason::Foreign),
        Some(ErrorCode::DatabaseCorrupt) => Refusal::Content(Reason::Damaged {
            detail: error.to_string().into(),
        }),
        _ => Refusal::Other(failed("open", error)),
    }
}

fn flags() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE
}

fn write(connection: &mut Connection, batch: &[Op]) -> rusqlite::Result<()> {
    match batch {
        [] => Ok(()),
        // A statement of its own is atomic, and cheaper than a transaction around it.
        [op] => write_one(connection, op),
        _ => {
            let transaction = connection.transaction()?;
            for op in batch {
                write_one(&transaction, op)?;
            }
            transaction.commit()
        }
    }
}

fn write_one(connection: &Connection, op: &Op) -> rusqlite::Result<()> {
    match op {
        Op::Put { kind, key, value } => {
            let sealed = seal(*kind, key, value);
            connection
                .prepare_cached(PUT)?
                .execute(params![kind.code(), &key[..], sealed])?;
        }
        Op::Remove { kind, key } => {
            connection
                .prepare_cached(REMOVE)?
                .execute(params![kind.code(), &key[..]])?;
        }
    }
    Ok(())
}

fn load(connection: &Connection, kind: Kind) -> rusqlite::Result<Loaded> {
    let mut statement = connection.prepare_cached(LOAD)?;
    let mut rows = statement.query(params![kind.code()])?;
    let mut loaded = Loaded::default();
    while let Some(row) = rows.next()? {
        let key: Vec<u8> = row.get(0)?;
        match unseal(kind, &key, row.get(1)?) {
            Some(value) => loaded.records.push(Record {
                key: key.into(),
                value,
            }),
            None => loaded.damaged += 1,
        }
    }
    Ok(loaded)
}

/// SQLite's pages carry no checksum once they have left the log, so each value does.
fn seal(kind: Kind, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::with_capacity(value.len() + CHECKSUM_LEN);
    sealed.extend_from_slice(value);
    sealed.extend_from_slice(&checksum(kind, key, value).to_le_bytes());
    sealed
}

fn unseal(kind: Kind, key: &[u8], mut sealed: Vec<u8>) -> Option<Bytes> {
    let (value, stored) = sealed.split_last_chunk::<CHECKSUM_LEN>()?;
    if checksum(kind, key, value) != u32::from_le_bytes(*stored) {
        return None;
    }
    sealed.truncate(sealed.len() - CHECKSUM_LEN);
    Some(sealed.into())
}

fn checksum(kind: Kind, key: &[u8], value: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[kind.code()]);
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    hasher.finalize()
}

fn failed(action: &'static str, error: &dyn std::error::Error) -> StoreError {
    StoreError::Failed {
        action,
        cause: error.to_string().into(),
    }
}

#[cfg(test)]
mod tests;
