//! The groups of a server, if it has some, and the marks of their last effects in the journal.

use std::collections::HashMap;
use std::sync::Arc;

use super::recorder::Mark;
use crate::groups::{Groups, RequestKind};
use crate::journal::batch::{BatchWriter, Effect};
use crate::message::ConnId;
use crate::moment::Moment;
use crate::snapshot::GroupRecord;
use crate::state::hashing::KeyHash;

/// The groups of a server, if it has some, and the marks of their last effects in the journal.
#[derive(Debug, Default)]
pub(super) struct ServedGroups {
    pub(super) groups: Option<Box<dyn Groups>>,
    /// The mark of each group's last effect in the journal; the keys are the names of the groups.
    pub(super) recorded: HashMap<Arc<[u8]>, Mark, KeyHash>,
}

impl ServedGroups {
    pub(super) fn new(groups: Option<Box<dyn Groups>>) -> Self {
        Self {
            groups,
            ..Self::default()
        }
    }

    pub(super) const fn is_some(&self) -> bool {
        self.groups.is_some()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.groups.as_ref().map_or(0, |it| it.memory_bytes())
    }

    /// The memory that a request may need.
    pub(super) fn growth_of(&self, request: &[u8]) -> usize {
        let kind = self.groups.as_ref().map(|it| it.kind_of(request));
        match kind {
            Some(RequestKind::Adds(bytes)) => bytes,
            _ => 0,
        }
    }

    /// Whether a silence of the connection would end members of a group.
    pub(super) fn is_speaker(&self, conn: ConnId) -> bool {
        self.groups.as_ref().is_some_and(|it| it.is_speaker(conn))
    }

    /// The wait of a connection for news has ended.
    pub(super) fn wait_ended(&mut self, conn: ConnId) {
        if let Some(groups) = &mut self.groups {
            groups.wait_ended(conn);
        }
    }

    /// Returns all groups, for a snapshot.
    pub(super) fn records(&self, now: Moment) -> Vec<GroupRecord> {
        let groups = self.groups.as_ref();
        groups.map_or_else(Vec::new, |it| it.records(now.since_start()))
    }

    /// Writes all groups, for a snapshot of the journal.
    pub(super) fn write(&self, writer: &mut BatchWriter) {
        let Some(groups) = &self.groups else {
            return;
        };
        for name in groups.names() {
            if let Some(bytes) = groups.image(&name) {
                writer.push(Effect::Group {
                    group: &name,
                    bytes: &bytes,
                });
            }
        }
    }

    /// Carries out `Effect::Group`. Returns `false` if the bytes are not a group.
    pub(super) fn recover(&mut self, name: &[u8], bytes: &[u8]) -> bool {
        self.groups
            .as_mut()
            .is_some_and(|it| it.restore(name, bytes))
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        if let Some(groups) = &self.groups {
            groups.check_invariants();
        }
    }
}
