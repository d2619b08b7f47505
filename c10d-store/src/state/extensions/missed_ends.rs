//! END_WAITS that sessions may have missed, since they had no link when it was carried out: their waits, which were pending at
//! an earlier server of the journal, or which clients have sent since, arrive later (docs/spec/wire-extensions.md, END_WAITS 4).

use std::collections::VecDeque;

use crate::journal::batch::{BatchWriter, Effect};
use crate::moment::Moment;
use crate::session::ResentWait;

/// The most prefixes that are remembered, and the most bytes of them. Beyond that, the oldest are forgotten.
const ENDS_MAX: usize = 1024;
const PREFIX_BYTES_MAX: usize = 1 << 20;

/// The memory of a prefix besides its bytes.
const END_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct MissedEnds {
    /// There are sessions, which may lose their links to this server.
    has_sessions: bool,
    /// The number of this server, while sessions of earlier servers may come back.
    server: Option<u32>,
    /// The oldest first.
    ends: VecDeque<End>,
    prefix_bytes: usize,
}

#[derive(Debug)]
struct End {
    prefix: Box<[u8]>,
    /// The server that has carried it out; 0 for this server, if no session of an earlier server may come back.
    server: u32,
    /// The time, if that is this server.
    at: Moment,
}

/// Prefixes in their order. No prefix begins with another prefix, so that a search finds the only candidate of a name: a wait can
/// have thousands of names.
#[derive(Debug)]
pub(super) struct Missed<'a>(Vec<&'a [u8]>);

impl Missed<'_> {
    /// Whether a wait for this name should have ended.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        // A text between a prefix and a name with this prefix begins with the prefix.
        let after = self.0.partition_point(|prefix| *prefix <= name);
        let prefix = after.checked_sub(1).map(|at| self.0[at]);
        prefix.is_some_and(|prefix| name.starts_with(prefix))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl MissedEnds {
    /// This server has this number, and sessions of earlier servers may come back.
    pub(super) const fn expect_sessions(&mut self, server: u32) {
        self.server = Some(server);
    }

    /// There are sessions.
    pub(super) const fn remember(&mut self) {
        self.has_sessions = true;
    }

    pub(super) const fn has_sessions(&self) -> bool {
        self.has_sessions
    }

    /// No session of an earlier server can come back any more.
    pub(super) fn forget(&mut self) {
        let this = self.server.take().filter(|_| self.has_sessions);
        self.ends
            .retain(|end| end.server == 0 || Some(end.server) == this);
        for end in &mut self.ends {
            end.server = 0;
        }
        self.count();
    }

    /// This server carries out END_WAITS. Returns its number if the journal has to keep that.
    pub(super) fn add(&mut self, prefix: &[u8], at: Moment) -> Option<u32> {
        if self.has_sessions || self.server.is_some() {
            self.insert(prefix, self.server.unwrap_or(0), at);
        }
        self.server
    }

    /// An earlier server has carried out END_WAITS.
    pub(super) fn recover(&mut self, prefix: &[u8], server: u32) {
        self.insert(prefix, server, Moment::default());
    }

    /// The ends that a wait may have missed. Its session was accepted at this time.
    pub(super) fn missed_by(&self, wait: ResentWait, accepted: Moment) -> Missed<'_> {
        let this = self.server.unwrap_or(0);
        let first_server = this.saturating_sub(wait.starts_ago);
        let began = accepted.since_start().saturating_sub(wait.age);
        let is_later = |end: &&End| {
            if end.server == this {
                began <= end.at.since_start()
            } else {
                // All that an earlier server has done was before the start of this one.
                began.is_zero() && first_server < end.server
            }
        };
        let later = self.ends.iter().filter(is_later);
        let mut prefixes: Vec<_> = later.map(|end| &*end.prefix).collect();
        prefixes.sort_unstable();
        // Prefixes that begin with a shorter prefix follow it.
        prefixes.dedup_by(|next, prefix| next.starts_with(prefix));
        Missed(prefixes)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// About the memory of all, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ends.len() * END_BYTES + self.prefix_bytes
    }

    /// Writes all prefixes into a snapshot of the journal.
    pub(super) fn write(&self, writer: &mut BatchWriter) {
        let kept = self.ends.iter().filter(|end| end.server > 0);
        for End { prefix, server, .. } in kept {
            let server = *server;
            writer.push(Effect::EndWaits { prefix, server });
        }
    }

    fn insert(&mut self, prefix: &[u8], server: u32, at: Moment) {
        // END_WAITS of the new prefix also ends these waits.
        self.ends.retain(|end| !end.prefix.starts_with(prefix));
        self.ends.push_back(End {
            prefix: prefix.into(),
            server,
            at,
        });
        self.count();
        while self.ends.len() > ENDS_MAX || self.prefix_bytes > PREFIX_BYTES_MAX {
            self.ends.pop_front();
            self.count();
        }
    }

    fn count(&mut self) {
        self.prefix_bytes = self.ends.iter().map(|end| end.prefix.len()).sum();
    }
}
