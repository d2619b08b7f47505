//! Blobs of any length in rows of a table: each under a number, cut into rows of at most [`ROW_BYTES_MAX`].
//!
//! A row of exactly that length is continued by the next one, so that a missing end is found.

use std::ops::Range;

use rusqlite::{CachedStatement, Connection, params};

pub(crate) const SCHEMA: &str = "
    CREATE TABLE chunks(row INTEGER PRIMARY KEY, number INTEGER NOT NULL, bytes BLOB NOT NULL);
    CREATE TABLE batches(row INTEGER PRIMARY KEY, position INTEGER NOT NULL, bytes BLOB NOT NULL);";

/// SQLite holds a row in memory as a whole.
pub(crate) const ROW_BYTES_MAX: usize = 1 << 20;

/// Rows that one step of [`Table::delete_some`] looks at.
const DELETED_ROWS_MAX: i64 = 1024;

/// A table with such blobs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Table {
    insert: &'static str,
    select: &'static str,
    lengths: &'static str,
    delete: &'static str,
    bounds: &'static str,
}

/// The chunks of a snapshot.
pub(crate) const CHUNKS: Table = Table {
    insert: "INSERT INTO chunks VALUES(?, ?, ?)",
    select: "SELECT row, number, bytes FROM chunks WHERE row >= ? AND row < ? ORDER BY row",
    lengths: "SELECT row, length(bytes) FROM chunks WHERE row >= ? AND row < ? ORDER BY row LIMIT ?",
    delete: "DELETE FROM chunks WHERE row >= ? AND row < ?",
    bounds: "SELECT ifnull((SELECT min(row) FROM chunks), 1), ifnull((SELECT max(row) FROM chunks), 0)",
};

/// The appended batches.
pub(crate) const BATCHES: Table = Table {
    insert: "INSERT INTO batches VALUES(?, ?, ?)",
    select: "SELECT row, position, bytes FROM batches WHERE row >= ? AND row < ? ORDER BY row",
    lengths: "SELECT row, length(bytes) FROM batches WHERE row >= ? AND row < ? ORDER BY row LIMIT ?",
    delete: "DELETE FROM batches WHERE row >= ? AND row < ?",
    bounds: "SELECT ifnull((SELECT min(row) FROM batches), 1), ifnull((SELECT max(row) FROM batches), 0)",
};

/// Why blobs could not be read.
#[derive(Debug)]
pub(crate) enum ReadError<E> {
    Engine(rusqlite::Error),
    /// The row with this number is missing, or is not what was written.
    Row(i64),
    /// The receiver of the blobs ended it.
    Visit(E),
}

impl<E> From<rusqlite::Error> for ReadError<E> {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// Whether a blob needs more than one row.
pub(crate) const fn is_cut(blob: &[u8]) -> bool {
    blob.len() >= ROW_BYTES_MAX
}

impl Table {
    /// The rows that exist.
    pub(crate) fn bounds(&self, connection: &Connection) -> rusqlite::Result<Range<i64>> {
        connection.query_row(self.bounds, [], |row| {
            Ok(row.get(0)?..row.get::<_, i64>(1)?.saturating_add(1))
        })
    }

    /// Adds a blob in rows from this one on, and returns the row after them. A blob that [is cut](is_cut) needs a
    /// transaction.
    pub(crate) fn insert(
        &self,
        connection: &Connection,
        mut row: i64,
        number: u64,
        mut blob: &[u8],
    ) -> rusqlite::Result<i64> {
        let mut insert = connection.prepare_cached(self.insert)?;
        loop {
            let (part, rest) = blob.split_at(blob.len().min(ROW_BYTES_MAX));
            insert.execute(params![row, number, part])?;
            row += 1;
            if part.len() < ROW_BYTES_MAX {
                return Ok(row);
            }
            blob = rest;
        }
    }

    /// Reads the blobs in these rows, in order. All rows must exist. Returns the number of the last blob.
    pub(crate) fn read<E>(
        &self,
        connection: &Connection,
        rows: Range<i64>,
        mut number: u64,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<u64, ReadError<E>> {
        let mut select: CachedStatement<'_> = connection.prepare_cached(self.select)?;
        let mut found = select.query(params![rows.start, rows.end])?;
        let mut parts = Vec::new();
        let mut is_continued = false;
        for expected in rows {
            let row = found.next()?.ok_or(ReadError::Row(expected))?;
            let part = row
                .get_ref(2)?
                .as_blob()
                .map_err(|_| ReadError::Row(expected))?;
            let next = number + u64::from(!is_continued);
            if row.get::<_, i64>(0)? != expected || row.get::<_, u64>(1)? != next {
                return Err(ReadError::Row(expected));
            }
            number = next;
            let has_rest = part.len() == ROW_BYTES_MAX;
            if has_rest || is_continued {
                parts.extend_from_slice(part);
            }
            if !has_rest {
                let blob = if is_continued { &parts[..] } else { part };
                visit(number, blob).map_err(ReadError::Visit)?;
                parts.clear();
            }
            is_continued = has_rest;
        }
        if is_continued {
            return Err(ReadError::Row(i64::MAX));
        }
        Ok(number)
    }

    /// Deletes the first of these rows, about `bytes` of them, and returns the remaining rows.
    pub(crate) fn delete_some(
        &self,
        connection: &Connection,
        rows: Range<i64>,
        bytes: &mut i64,
    ) -> rusqlite::Result<Range<i64>> {
        let mut end = rows.end;
        {
            let mut lengths = connection.prepare_cached(self.lengths)?;
            let mut found = lengths.query(params![rows.start, rows.end, DELETED_ROWS_MAX])?;
            let mut count = 0;
            while let Some(row) = found.next()? {
                count += 1;
                *bytes -= row.get::<_, i64>(1)?;
                if *bytes <= 0 || count == DELETED_ROWS_MAX {
                    end = row.get::<_, i64>(0)? + 1;
                    break;
                }
            }
        }
        let mut delete = connection.prepare_cached(self.delete)?;
        delete.execute(params![rows.start, end])?;
        Ok(end..rows.end)
    }
}
