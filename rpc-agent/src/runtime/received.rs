//! What one receive from a socket gives.

use std::io;

/// What one receive gave.
#[derive(Debug)]
pub(super) struct Received {
    /// Bytes on the wire. 0 if there are none for now, or the connection has failed.
    pub(super) count: usize,
    /// The most bytes on the wire that could have been received.
    pub(super) bytes_max: usize,
    /// Bytes for the decoder.
    pub(super) plain_bytes: usize,
    /// The connection has failed, or the bytes break the protocol after the messages before.
    pub(super) failure: Option<io::Error>,
}

/// The count of a receive, 0 without input, and why the connection has failed.
pub(super) fn received(result: io::Result<usize>) -> (usize, Option<io::Error>) {
    match result {
        Ok(0) => {
            let text = "closed by the peer";
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, text);
            (0, Some(error))
        }
        Ok(count) => (count, None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, None),
        Err(error) => (0, Some(error)),
    }
}

pub(super) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
