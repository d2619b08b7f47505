//! The one row that identifies the store of a journal, and the rows of the other tables that are its contents.

use std::hash::Hasher;
use std::ops::Range;

use byteorder::{BE, ByteOrder as _};
use rusqlite::{Connection, params};
use siphasher::sip::SipHasher13;

use crate::newest::Newest;

pub(crate) const SCHEMA: &str = "
    CREATE TABLE header(store BLOB NOT NULL, epoch INTEGER NOT NULL, is_open INTEGER NOT NULL, position INTEGER NOT NULL,
        first_chunk INTEGER NOT NULL, end_chunk INTEGER NOT NULL, first_batch INTEGER NOT NULL, checksum INTEGER NOT NULL);";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    pub(crate) store: [u8; 16],
    pub(crate) epoch: i64,
    /// A server has the journal open, or has ended without closing it: the write-ahead log is not empty.
    pub(crate) is_open: bool,
    /// The position of the snapshot; 0 without a snapshot.
    pub(crate) position: u64,
    /// The rows of the snapshot's chunks.
    pub(crate) chunks: Range<i64>,
    /// The row of the first batch after the snapshot.
    pub(crate) first_batch: i64,
}

impl Header {
    /// The header of a new store.
    pub(crate) const fn new(store: [u8; 16]) -> Self {
        Self {
            store,
            epoch: 0,
            is_open: false,
            position: 0,
            chunks: 1..1,
            first_batch: 1,
        }
    }

    /// Returns the newest state of the journal with this last position and this last row of the batches.
    pub(crate) fn newest(&self, position: u64, row: i64) -> Newest {
        Newest {
            epoch: self.epoch as u64,
            position,
            row,
            store: BE::read_u128(&self.store),
        }
    }

    /// `None` if it is not as it was written.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Option<Self>> {
        connection.query_row("SELECT * FROM header", [], |row| {
            let header = Self {
                store: row.get("store")?,
                epoch: row.get("epoch")?,
                is_open: row.get("is_open")?,
                position: row.get("position")?,
                chunks: row.get("first_chunk")?..row.get("end_chunk")?,
                first_batch: row.get("first_batch")?,
            };
            let checksum: i64 = row.get("checksum")?;
            Ok((header.checksum() == checksum).then_some(header))
        })
    }

    pub(crate) fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch("INSERT INTO header VALUES(x'', 0, 0, 0, 0, 0, 0, 0)")?;
        self.write(connection)
    }

    pub(crate) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        let sql = "UPDATE header SET (store, epoch, is_open, position, first_chunk, end_chunk, first_batch, checksum)
            = (?, ?, ?, ?, ?, ?, ?, ?)";
        let values = params![
            self.store,
            self.epoch,
            self.is_open,
            self.position,
            self.chunks.start,
            self.chunks.end,
            self.first_batch,
            self.checksum()
        ];
        let changed = connection.execute(sql, values)?;
        assert_eq!(changed, 1, "a journal has one header");
        Ok(())
    }

    /// SQLite has no checksum of a page.
    fn checksum(&self) -> i64 {
        let mut hasher = SipHasher13::new();
        hasher.write(&self.store);
        hasher.write_u8(u8::from(self.is_open));
        let position = self.position as i64;
        let numbers = [
            self.epoch,
            position,
            self.chunks.start,
            self.chunks.end,
            self.first_batch,
        ];
        for number in numbers {
            // Of the same bytes on machines of both byte orders.
            hasher.write(&numbered(number));
        }
        hasher.finish() as i64
    }
}

fn numbered(number: i64) -> [u8; 8] {
    let mut bytes = [0; 8];
    <byteorder::LE as byteorder::ByteOrder>::write_i64(&mut bytes, number);
    bytes
}
