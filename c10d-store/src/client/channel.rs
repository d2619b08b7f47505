//! The carrier of a lane's bytes: a connection, or a session that survives the loss of its connection.

use std::io::{self, IoSlice};

use c10d_socket::{Cancel, Deadline};

use super::resumed::Resumed;
use super::stream::Stream;

#[derive(Debug)]
pub(super) enum Channel {
    Plain(Stream),
    Resumed(Box<Resumed>),
}

impl Channel {
    /// See [`Stream::shake_hands`].
    pub(super) fn shake_hands(&mut self, deadline: Deadline) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.shake_hands(deadline),
            // Each link has shaken hands.
            Self::Resumed(_) => Ok(()),
        }
    }

    /// The connection. For a session, it is the last link.
    pub(super) const fn link(&self) -> &Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Resumed(resumed) => resumed.link(),
        }
    }

    /// As [`link`](Self::link).
    pub(super) const fn link_mut(&mut self) -> &mut Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Resumed(resumed) => resumed.link_mut(),
        }
    }

    /// See [`Stream::set_cancel`].
    pub(super) fn set_cancel(&mut self, cancel: Cancel) {
        match self {
            Self::Plain(stream) => stream.set_cancel(cancel),
            Self::Resumed(resumed) => resumed.set_cancel(cancel),
        }
    }

    /// See [`Stream::read_by`].
    pub(super) fn read_by(&mut self, buf: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read_by(buf, deadline),
            Self::Resumed(resumed) => resumed.read_by(buf, deadline),
        }
    }

    /// See [`Stream::read_exact_into_vec_by`].
    pub(super) fn read_exact_into_vec_by(
        &mut self,
        buf: &mut Vec<u8>,
        len: usize,
        deadline: Deadline,
    ) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.read_exact_into_vec_by(buf, len, deadline),
            Self::Resumed(resumed) => resumed.read_exact_into_vec_by(buf, len, deadline),
        }
    }

    /// See [`Stream::write_all_by`].
    pub(super) fn write_all_by(
        &mut self,
        pieces: &mut [IoSlice<'_>],
        deadline: Deadline,
    ) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all_by(pieces, deadline),
            Self::Resumed(resumed) => resumed.write_all_by(pieces, deadline),
        }
    }
}
