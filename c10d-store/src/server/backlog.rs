//! The bytes that a session's link has delivered after the session's turn was over.

use crate::session::Group;

/// A part of a session's stream that waits for the session's next turn. At most a group and the bytes of one read,
/// since the link is not read before these are carried out.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// A group, and how many of its clients have had their bytes.
    group: Option<Box<(Group, usize)>>,
    /// The bytes after the group.
    bytes: Vec<u8>,
}

impl Backlog {
    pub(super) const fn is_empty(&self) -> bool {
        self.group.is_none() && self.bytes.is_empty()
    }

    /// The memory of what waits.
    pub(super) fn memory_bytes(&self) -> usize {
        let group = self.group.as_ref();
        self.bytes.capacity() + group.map_or(0, |waiting| waiting.0.memory_bytes())
    }

    /// Keeps the clients of a group from this one on. There must be no other group.
    pub(super) fn keep_group(&mut self, group: Group, next: usize) {
        debug_assert!(
            self.is_empty(),
            "a group is kept before the bytes that follow"
        );
        self.group = Some(Box::new((group, next)));
    }

    pub(super) fn keep_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the group with the position of its next client, and the bytes that follow it.
    pub(super) fn take(&mut self) -> (Option<(Group, usize)>, Vec<u8>) {
        let group = self.group.take().map(|group| *group);
        (group, std::mem::take(&mut self.bytes))
    }
}
