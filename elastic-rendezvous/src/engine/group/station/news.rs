//! A node's sources for the writes of the holder: its answer, and the summary.

use std::time::Duration;

use super::{
    LeaseView, MarkStatus, Membership, Phase, Role, Standing, Station, TenurePhase, Timer,
};
use crate::engine::group::ask::Ending;
use crate::engine::group::message::{Answer, AnswerKind, RequestKind, Summary};
use crate::values::timestamp::Now;

/// The additional time in which joined nodes set their marks, for each node that may take part. Each node opens a
/// connection for its mark.
const MARK_INTERVAL_PER_NODE: Duration = Duration::from_millis(1);

/// How long a holder that has closed the rendezvous answers other nodes that also close it.
const CLOSING_MAX: Duration = Duration::from_secs(2);

impl Station {
    pub(super) fn on_answer(&mut self, text: Vec<u8>, now: Now) {
        let answer = Answer::from_text(&text);
        self.known.answer = text;
        let Some(answer) = answer else { return };
        if matches!(answer.kind, AnswerKind::NewHolder { .. }) {
            // This message may have replaced an answer.
            if let Role::Follower(view) = &mut self.role {
                *view = LeaseView::Unknown;
            }
            return self.repeat();
        }
        let since = match &self.phase {
            Phase::Requesting(posting) | Phase::Member(posting) => posting.since,
            Phase::Idle | Phase::Ended { .. } => self.number,
        };
        let ends = answer.number >= since && answer.kind.ends_every_request();
        if answer.number != self.number && !ends {
            return;
        }
        if let AnswerKind::Evicted { round } = answer.kind {
            if let Some(membership) = self.membership.as_mut().filter(|it| it.round == round) {
                membership.standing = Standing::Evicted;
            }
            return self.repeat();
        }
        let Phase::Requesting(posting) = &mut self.phase else {
            return;
        };
        let is_join = posting.kind.is_join();
        let (result, epoch) = match answer.kind {
            AnswerKind::Spare => return self.timers.cancel(Timer::Deadline),
            AnswerKind::NoLongerSpare => {
                let timeout = self.settings.join_timeout;
                self.timers.set_in(Timer::Deadline, now.monotonic, timeout);
                if let RequestKind::JoinLate { after } = posting.kind {
                    self.number += 1;
                    posting.replace(RequestKind::Join { after }, self.number);
                }
                return;
            }
            AnswerKind::Joined(place) if is_join => {
                self.membership = Some(Membership {
                    round: place.round,
                    rank: place.rank,
                    size: place.size,
                    standing: Standing::Sure,
                });
                (Ok(Some(place)), posting.epoch)
            }
            AnswerKind::Done if !is_join => (Ok(None), None),
            AnswerKind::Closed => (Err(Ending::Closed), None),
            AnswerKind::NotNeeded => (Err(Ending::NotNeeded), None),
            AnswerKind::TimedOut => (Err(Ending::TimedOut), None),
            _ => return,
        };
        let leaves = posting.kind.leaves_round();
        if posting.kind == RequestKind::Close {
            let until = now.monotonic.saturating_add(CLOSING_MAX);
            self.retire(TenurePhase::Closing {
                until,
                has_taken: false,
            });
        }
        if epoch.is_none() && (is_join || leaves) {
            self.membership = None;
            self.retire(TenurePhase::Leaving);
        }
        self.phase = Phase::Ended { result, epoch };
        if self.membership.is_some() && self.own_mark.status == MarkStatus::Unset {
            let pause = self.staggered(Duration::ZERO, self.per_node(MARK_INTERVAL_PER_NODE));
            self.timers.set_in(Timer::Mark, now.monotonic, pause);
        }
    }

    /// Repeats the request with a new number, because the holder has dropped it.
    fn repeat(&mut self) {
        if let Phase::Requesting(posting) = &mut self.phase {
            self.number += 1;
            posting.replace(posting.kind, self.number);
        }
    }

    pub(super) fn on_summary(&mut self, text: Vec<u8>, now: Now) {
        let is_first = self.known.summary_text.is_empty();
        let known = self.known.summary.clone();
        self.adopt_summary(text);
        if !is_first
            && self.own_mark.status == MarkStatus::Set
            && self.known.summary.calls(self.index, &known)
        {
            self.timers.set(Timer::Mark, now.monotonic);
        }
        if let Role::Follower(view) = &mut self.role
            && view.epoch().unwrap_or(0) < self.known.summary.epoch
        {
            *view = LeaseView::Unknown;
        }
        let summary = &self.known.summary;
        if let Some(membership) = &mut self.membership
            && membership.standing != Standing::Evicted
        {
            let is_same = summary.round == membership.round && summary.is_complete;
            membership.standing = if is_same && summary.joined == membership.size {
                Standing::Sure
            } else {
                Standing::Doubtful
            };
        }
    }

    pub(super) fn adopt_summary(&mut self, text: Vec<u8>) {
        if let Some(summary) = Summary::from_text(&text) {
            self.known.summary = summary;
        }
        self.known.summary_text = text;
    }
}
