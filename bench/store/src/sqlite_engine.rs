//! SQLite as the product uses it: no sync in a commit, the log moved by a second connection.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::Result;
use rusqlite::{Connection, params};

use super::Engine;

struct Sqlite {
    connection: Connection,
    keeper: Connection,
    wal: File,
}

pub(super) fn normal(folder: &Path) -> Result<Box<dyn Engine>> {
    open(folder, "NORMAL")
}

pub(super) fn full(folder: &Path) -> Result<Box<dyn Engine>> {
    open(folder, "FULL")
}

fn open(folder: &Path, synchronous: &str) -> Result<Box<dyn Engine>> {
    let path = folder.join("records.db");
    let connection = Connection::open(&path)?;
    connection.execute_batch(&format!(
        "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL;
         PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 8388608;
         CREATE TABLE IF NOT EXISTS record (
             id INTEGER PRIMARY KEY, kind INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
             UNIQUE (kind, key)) STRICT;"
    ))?;
    connection.query_row("PRAGMA quick_check(1)", [], |_| Ok(()))?;
    let keeper = Connection::open(&path)?;
    keeper.execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;")?;
    let wal = File::options()
        .write(true)
        .open(folder.join("records.db-wal"))?;
    Ok(Box::new(Sqlite {
        connection,
        keeper,
        wal,
    }))
}

impl Engine for Sqlite {
    fn apply(&mut self, batch: &[(u64, Vec<u8>)]) -> Result<()> {
        const PUT: &str = "INSERT INTO record (kind, key, value) VALUES (?1, ?2, ?3) \
            ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value";
        if let [(key, value)] = batch {
            let mut put = self.connection.prepare_cached(PUT)?;
            put.execute(params![1, &key.to_be_bytes()[..], value])?;
            return Ok(());
        }
        let transaction = self.connection.transaction()?;
        for (key, value) in batch {
            let mut put = transaction.prepare_cached(PUT)?;
            put.execute(params![1, &key.to_be_bytes()[..], value])?;
        }
        Ok(transaction.commit()?)
    }

    fn load(&mut self) -> Result<BTreeMap<u64, Vec<u8>>> {
        let mut load = self
            .connection
            .prepare("SELECT key, value FROM record WHERE kind = 1 ORDER BY key")?;
        let rows = load.query_map([], |row| Ok((row.get::<_, [u8; 8]>(0)?, row.get(1)?)))?;
        rows.map(|row| row.map(|(key, value)| (u64::from_be_bytes(key), value)))
            .collect::<Result<_, _>>()
            .map_err(Into::into)
    }

    fn sync(&mut self) -> Result<()> {
        self.wal.sync_data()?;
        if self.wal.metadata()?.len() >= 8 << 20 {
            self.keeper
                .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        }
        Ok(())
    }
}
