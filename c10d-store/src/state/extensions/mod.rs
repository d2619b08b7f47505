//! Our extensions of PyTorch's store (docs/spec/wire-extensions.md): the state's part that exists only with the feature
//! `extensions`. Requests arrive in `dispatch.rs`. The rest of the state imports only the items that are listed here.
//!
//! Without the feature, `plain.rs` has stand-ins for the items and methods that the rest of the state uses.

mod activity;
mod announcements;
mod closed;
mod copies;
#[cfg(test)]
mod crash_tests;
mod delete_prefix;
mod directory;
mod dispatch;
mod end_waits;
mod ephemeral;
#[cfg(test)]
mod ephemeral_tests;
mod groups;
mod image;
mod missed_ends;
#[cfg(test)]
mod missed_ends_tests;
mod outcomes;
mod owners;
mod pending_wait;
mod queue_take;
mod recorder;
mod recovery;
#[cfg(test)]
mod snapshot_tests;
mod snapshots;
#[cfg(test)]
mod sweep_tests;
mod sweeps;
mod wait_change;
mod wait_get;

use std::collections::HashSet;

use super::hashing::ConnHash;
use super::slot::Stored;
pub(super) use crate::journal::batch::Effect;
use crate::message::ConnId;
use announcements::Announcements;
use directory::Directory;
use groups::ServedGroups;
use image::SnapshotInProgress;
use missed_ends::MissedEnds;
use owners::Owners;
use sweeps::Sweeps;
pub(super) use {
    copies::Copying,
    image::KeysImage,
    owners::Ownership,
    pending_wait::{KnownValue, WantedKeys},
    recorder::Mark,
    sweeps::{Sweep, Sweeping},
};
pub(crate) use {image::Image, owners::KeptClient, recorder::Recorder, snapshots::SNAPSHOT_SLICE};

/// What the state has for extensions only.
#[derive(Debug, Default)]
pub(super) struct Extensions {
    directory: Directory,
    announcements: Announcements,
    owners: Owners,
    sweeps: Sweeps,
    groups: ServedGroups,
    /// The memory of the journal's state of sessions.
    carried_bytes: usize,
    /// Connections whose wait END_WAITS has ended, and that have not sent their next request.
    ended_waits: HashSet<ConnId, ConnHash>,
    missed_ends: MissedEnds,
    snapshot: Option<Box<SnapshotInProgress>>,
}

impl Extensions {
    /// Records that a connection has read a value.
    #[inline(always)] // Most requests.
    pub(super) fn note_read(&mut self, conn: ConnId, read: &Stored) {
        self.directory.note_read(conn, read.written.version.get());
    }
}
