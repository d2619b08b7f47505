//! The fields of the state that only extensions need.

use std::collections::HashSet;

use super::announcements::Announcements;
use super::directory::Directory;
use super::image::SnapshotInProgress;
use super::missed_ends::MissedEnds;
use super::owners::Owners;
use super::served_groups::ServedGroups;
use super::sweeps::Sweeps;
use crate::message::ConnId;
use crate::state::hashing::ConnHash;
use crate::state::slot::Stored;

/// The fields of the state that only extensions need.
#[derive(Debug, Default)]
pub(in crate::state) struct Extensions {
    pub(super) directory: Directory,
    pub(super) announcements: Announcements,
    pub(super) owners: Owners,
    pub(super) sweeps: Sweeps,
    pub(super) groups: ServedGroups,
    /// The memory of the journal's state of sessions.
    pub(super) carried_bytes: usize,
    /// Connections whose wait END_WAITS has ended, and that have not sent their next request.
    pub(super) ended_waits: HashSet<ConnId, ConnHash>,
    pub(super) missed_ends: MissedEnds,
    pub(super) snapshot: Option<Box<SnapshotInProgress>>,
}

impl Extensions {
    /// Records that a connection has read a value.
    #[inline(always)] // Most requests.
    pub(in crate::state) fn note_read(&mut self, conn: ConnId, read: &Stored) {
        self.directory.note_read(conn, read.written.version.get());
    }
}
