//! redb in its two grades of durability, and with a file that does not sync.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use anyhow::Result;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase as _, ReadableTable as _, StorageBackend,
    TableDefinition,
};

use super::Engine;

const RECORDS: TableDefinition<'_, (u8, &[u8]), &[u8]> = TableDefinition::new("record");

struct Redb {
    database: Database,
    durability: Durability,
    /// For the syncs that the engine itself was told to leave out.
    file: Option<File>,
}

pub(super) fn immediate(folder: &Path) -> Result<Box<dyn Engine>> {
    open(folder, Durability::Immediate)
}

pub(super) fn none(folder: &Path) -> Result<Box<dyn Engine>> {
    open(folder, Durability::None)
}

fn open(folder: &Path, durability: Durability) -> Result<Box<dyn Engine>> {
    ready(Redb {
        database: Database::create(folder.join("records.redb"))?,
        durability,
        file: None,
    })
}

/// Commits are handed to the kernel, in the engine's order, and synced outside.
pub(super) fn unsynced(folder: &Path) -> Result<Box<dyn Engine>> {
    let path = folder.join("records.redb");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(&path)?;
    let backend = Unsynced(FileBackend::new(file.try_clone()?)?);
    ready(Redb {
        database: Builder::new().create_with_backend(backend)?,
        durability: Durability::Immediate,
        file: Some(file),
    })
}

fn ready(engine: Redb) -> Result<Box<dyn Engine>> {
    let transaction = engine.database.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.commit()?;
    Ok(Box::new(engine))
}

impl Engine for Redb {
    fn apply(&mut self, batch: &[(u64, Vec<u8>)]) -> Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(self.durability)?;
        {
            let mut table = transaction.open_table(RECORDS)?;
            for (key, value) in batch {
                table.insert((1, &key.to_be_bytes()[..]), value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn load(&mut self) -> Result<BTreeMap<u64, Vec<u8>>> {
        let transaction = self.database.begin_read()?;
        let table = transaction.open_table(RECORDS)?;
        let mut found = BTreeMap::new();
        for row in table.iter()? {
            let (key, value) = row?;
            let key = u64::from_be_bytes(key.value().1.try_into()?);
            found.insert(key, value.value().to_vec());
        }
        Ok(found)
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(file) = &self.file {
            file.sync_data()?;
        } else if matches!(self.durability, Durability::None) {
            self.database.begin_write()?.commit()?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Unsynced(FileBackend);

impl StorageBackend for Unsynced {
    fn len(&self) -> Result<u64, io::Error> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.0.write(offset, data)
    }

    fn close(&self) -> Result<(), io::Error> {
        self.0.close()
    }
}
