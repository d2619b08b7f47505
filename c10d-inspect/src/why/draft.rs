//! A finding before it is known what explains it.

use std::time::Duration;

use crate::report::{Finding, FindingKind, RankSet};

/// The most findings of a report, and of one kind of many groups or keys.
pub(super) const DRAFTS_MAX: usize = 32;

/// A finding and what orders it.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) finding: Finding,
    /// When the problem began, counted from the server's start.
    pub(super) since: Duration,
    /// Whether a process waits because of this problem now.
    pub(super) is_stall: bool,
    /// Whether another finding is known to explain it.
    pub(super) is_explained: bool,
}

impl Draft {
    pub(super) fn new(kind: FindingKind, text: String, since: Duration) -> Self {
        Self {
            finding: Finding::new(kind, text),
            since,
            is_stall: true,
            is_explained: false,
        }
    }

    /// Whether a mix-up of addresses in the default group can be its cause.
    pub(super) fn is_about_default_group(&self) -> bool {
        use FindingKind as Kind;
        matches!(
            self.finding.kind,
            Kind::NeverConnected
                | Kind::NotPublished
                | Kind::LostInInit
                | Kind::LostLater
                | Kind::StaleAddresses
                | Kind::Frozen
                | Kind::GaveUp
        )
    }

    pub(super) fn caused_by(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.finding.culprits = RankSet(ranks.into_iter().collect());
        self
    }

    pub(super) fn waited_by(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.finding.waiting = RankSet(ranks.into_iter().collect());
        self
    }
}
