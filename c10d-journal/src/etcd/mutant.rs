//! Defects of the code under test, for tests that show that each would be found.

use std::str::FromStr;

use super::layout::Layout;
use super::message::{Answer, Compare, Keys, Op, Range, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    /// The fence does not compare the leader.
    NoLeader,
    /// The fence does not compare the head.
    NoHead,
    /// The head is read before the leader's key is made.
    HeadBefore,
    /// A leader answers until it learns that it leads no more.
    NoGuard,
    /// A commit gives the right to answer as well.
    CommitGuards,
    /// The right to answer counts from the answer, not from the request.
    GuardFromAnswer,
    /// A standby takes silence for the end of the leader's process.
    SilenceIsDeath,
    /// A standby whose leader has ended also ends a later leader.
    EndsAnyLeader,
    /// A newer format is written although another candidate was listed in the meantime.
    NoListFence,
    /// A candidate leads whatever the head is.
    NoCampaignFence,
    /// A process drops its knowledge after a takeover.
    Forgets,
    /// A process that finds that etcd has lost something does not report it to other processes.
    NoMark,
}

impl Mutant {
    /// The request, without what this mutant does not compare.
    pub(crate) fn weakened(self, request: &Request, layout: &Layout) -> Request {
        let mut request = request.clone();
        if let Request::Txn(txn) = &mut request {
            let leader = layout.leader();
            let deletes_leader =
                matches!(&*txn.success, [Op::Delete { key, .. }] if *key == leader);
            let is_campaign = matches!(&*txn.success, [Op::Put { key, .. }] if *key == leader);
            txn.compare.retain(|compare| match (self, compare) {
                (Self::NoLeader, Compare::Created { revision, .. }) => *revision == 0,
                (Self::NoLeader, Compare::Value { key, .. }) => *key != leader,
                (Self::NoHead, Compare::Value { key, .. }) => *key == leader,
                (Self::NoHead, Compare::Modified { .. }) => false,
                (Self::EndsAnyLeader, Compare::Created { .. }) => !deletes_leader,
                (Self::NoListFence, Compare::NoneCreatedAfter { .. }) => false,
                (Self::NoCampaignFence, Compare::Modified { .. }) => !is_campaign,
                _ => true,
            });
        }
        request
    }
}

impl FromStr for Mutant {
    type Err = String;

    /// Parses the name of a mutant of a process.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let all = [
            Self::None,
            Self::NoLeader,
            Self::NoHead,
            Self::HeadBefore,
            Self::NoGuard,
        ];
        let found = all.into_iter().find(|it| format!("{it:?}") == name);
        found.ok_or_else(|| name.to_owned())
    }
}

/// A mutant for code that has no journal.
#[derive(Debug)]
pub(crate) struct Defect {
    pub(crate) mutant: Mutant,
    /// The head that the candidate has seen when it looked who leads.
    head: Option<Keys>,
}

impl Defect {
    pub(crate) const fn new(mutant: Mutant) -> Self {
        Self { mutant, head: None }
    }

    /// The answer that it takes for that of etcd.
    pub(crate) fn answer(&self, request: &Request, layout: &Layout) -> Option<Answer> {
        let is_head = *request == Request::Range(Range::key(layout.head()));
        (self.mutant == Mutant::HeadBefore && is_head).then(|| Answer::Range {
            revision: 0,
            keys: self.head.clone().unwrap_or_default(),
        })
    }

    /// Takes an answer of etcd.
    pub(crate) fn answered(&mut self, request: &Request, answer: &Answer) {
        if let (Request::Txn(txn), Answer::Txn { ranges, .. }) = (request, answer)
            && let ([Op::Range(_), Op::Range(_)], [_, head]) = (&*txn.success, &**ranges)
        {
            self.head = Some(head.clone());
        }
    }
}
