//! The carrier of a lane's bytes in a client without sessions: its connection.

use super::stream::Stream;

pub(super) type Channel = Stream;

impl Stream {
    /// The connection.
    pub(super) const fn link(&self) -> &Self {
        self
    }

    /// The connection.
    pub(super) const fn link_mut(&mut self) -> &mut Self {
        self
    }
}
