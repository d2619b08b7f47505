//! Prevents a server from sending bytes when its right to answer may have passed.

use std::io::{self, IoSlice, Write};

use c10d_socket::Moment;

use crate::journal::Authority;

/// A socket that takes nothing while the authority is not valid. The clock is read immediately before each write: the
/// process may have been stopped since the request was carried out.
pub(super) struct Gate<'g, W> {
    writer: &'g mut W,
    authority: &'g Authority,
    is_shut: &'g mut bool,
}

impl<'g, W> Gate<'g, W> {
    /// Sets `is_shut` once it takes something no more.
    pub(super) fn new(writer: &'g mut W, authority: &'g Authority, is_shut: &'g mut bool) -> Self {
        Self {
            writer,
            authority,
            is_shut,
        }
    }

    fn check(&mut self) -> io::Result<()> {
        if self.authority.is_valid(Moment::now()) {
            return Ok(());
        }
        *self.is_shut = true;
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl<W: Write> Write for Gate<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.writer.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check()?;
        self.writer.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
