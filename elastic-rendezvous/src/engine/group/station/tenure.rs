//! The operations of a node while it holds the lease.

use std::time::Duration;

use c10d_socket::Silence;

use super::{Phase, Role, Standing, Station, Tenure, TenurePhase, Timer};
use crate::engine::group::ask::{Ask, Reply};
use crate::engine::group::holder::{Holder, Task};
use crate::engine::group::message::Request;
use crate::values::timestamp::Now;

/// How often the holder renews the lease.
const RENEWAL: Duration = Duration::from_millis(500);

/// A holder that leaves its round first waits for other nodes that leave too, for example because a signal stops the job: until
/// no node has asked for this time, which is twenty exchanges with the store. Each node would otherwise wait for the next holder.
const LEAVING_QUIET: Duration = Duration::from_millis(200);

/// The total time in which the holder does so.
const LEAVING_MAX: Duration = Duration::from_secs(2);

impl Station {
    /// The next operation of a holder that gives the lease back.
    pub(super) fn next_of_release(&mut self, now: Now) -> Option<Ask> {
        let Role::Holder(tenure) = &mut self.role else {
            return None;
        };
        match tenure.phase {
            TenurePhase::Checking | TenurePhase::Serving | TenurePhase::Closing { .. } => {
                return None;
            }
            TenurePhase::Evicted => {}
            TenurePhase::Leaving => {
                // Other nodes may have left by the same write.
                let answers = tenure.holder.take_answers();
                if let Some(ask) = self.answer(answers, now) {
                    return Some(ask);
                }
                if let Some(text) = self.holder_mut().and_then(Holder::take_unsent_summary) {
                    self.adopt_summary(text.clone());
                    return Some(Ask::WriteSummary(text));
                }
            }
        }
        self.release()
    }

    /// The next operation of a holder that has closed the rendezvous, before it ends.
    pub(super) fn next_of_closing(&mut self, now: Now) -> Option<Ask> {
        let at = now.monotonic;
        let Role::Holder(tenure) = &mut self.role else {
            return None;
        };
        let TenurePhase::Closing { until, has_taken } = tenure.phase else {
            return None;
        };
        if at >= until || (has_taken && !tenure.holder.is_busy()) {
            tenure.phase = TenurePhase::Serving;
            return None;
        }
        Some(match self.next_as_holder(now) {
            Ask::TakeRequests { until: wake } => {
                let has_taken_now = TenurePhase::Closing {
                    until,
                    has_taken: true,
                };
                self.retire(has_taken_now);
                let until = if has_taken { wake } else { at };
                Ask::TakeRequests { until }
            }
            ask => ask,
        })
    }

    pub(super) fn next_as_holder(&mut self, now: Now) -> Ask {
        let at = now.monotonic;
        let Role::Holder(tenure) = &mut self.role else {
            return Ask::Idle;
        };
        let epoch = tenure.holder.epoch();
        if self.timers.is_due(Timer::Renewal, at) {
            self.timers.set_in(Timer::Renewal, at, RENEWAL);
            tenure.renewals += 1;
            let (expected, renewals) = (tenure.lease.clone(), tenure.renewals);
            let generation = self.leases.generation.unwrap_or_default();
            let lease = self.lease(epoch, Some(renewals), generation);
            return Ask::Claim { expected, lease };
        }
        if std::mem::take(&mut tenure.drains_queue) {
            return Ask::TakeRequests { until: at };
        }
        if self.timers.is_due(Timer::Mark, at) {
            return Ask::SetMark;
        }
        let mut leaves_at = Duration::MAX;
        if let Phase::Requesting(posting) | Phase::Member(posting) = &mut self.phase
            && posting.epoch != Some(epoch)
        {
            if posting.kind.leaves_round() {
                leaves_at = tenure.leaves_at(at, self.timers.at(Timer::Deadline));
            }
            if at >= leaves_at || !posting.kind.leaves_round() {
                posting.epoch = Some(epoch);
                let request = posting.request(&self.me, self.index);
                tenure.holder.on_requests([request], now);
            }
        }
        if tenure.phase == TenurePhase::Checking {
            tenure.phase = TenurePhase::Serving;
            return Ask::ReadSummary;
        }
        match tenure.holder.task(now) {
            Task::CountNodes => Ask::CountNodes,
            Task::ReadState => Ask::ReadState,
            Task::CheckState => {
                if tenure.phase == TenurePhase::Serving {
                    tenure.phase = TenurePhase::Checking;
                }
                Ask::CheckState
            }
            Task::WriteState => Ask::WriteState,
            Task::Answer(answers) => match self.answer(answers, now) {
                Some(ask) => ask,
                None => self.next(now),
            },
            Task::WriteSummary(text) => {
                self.adopt_summary(text.clone());
                Ask::WriteSummary(text)
            }
            Task::ReadHeartbeats(mut indices) => {
                indices.retain(|index| *index != self.index);
                Ask::ReadHeartbeats(indices)
            }
            Task::ReadMarks(nodes) => Ask::ReadMarks(nodes),
            Task::Wait(until) => {
                let timers = self
                    .timers
                    .at(Timer::Renewal)
                    .min(self.timers.at(Timer::Mark));
                Ask::TakeRequests {
                    until: until.min(timers).min(leaves_at),
                }
            }
        }
    }

    /// Takes its own answer, and returns the operation that writes the answers of the other nodes.
    fn answer(&mut self, mut answers: Vec<(u32, Vec<u8>)>, now: Now) -> Option<Ask> {
        let own = answers.iter().position(|(index, _)| *index == self.index);
        if let Some(own) = own {
            let (_, text) = answers.swap_remove(own);
            self.on_answer(text, now);
        }
        (!answers.is_empty()).then_some(Ask::WriteAnswers(answers))
    }

    pub(super) fn on_reply_to_holder(&mut self, asked: Ask, reply: Reply, now: Now) {
        let Some(holder) = self.holder_mut() else {
            return;
        };
        match (asked, reply) {
            (Ask::ReadState, Reply::State(stored)) => holder.on_state(stored, now),
            (Ask::CheckState, Reply::IsSame(is_same)) => holder.on_checked(is_same, now),
            (Ask::CountNodes, Reply::Count(count)) => holder.on_count(count),
            (Ask::WriteState, Reply::Written(written)) => holder.on_written(written, now),
            (Ask::ReadHeartbeats(indices), Reply::Heartbeats(values)) => {
                holder.on_heartbeats(&indices, &values, now);
            }
            (Ask::ReadMarks(_), Reply::Marks(marks)) => holder.on_marks(marks.as_ref(), now),
            _ => {}
        }
        // A holder that is on no list cannot prevent the writes of an earlier holder.
        let has_lost = self.holder().is_some_and(|it| it.has_lost(&self.me));
        if has_lost && !self.is_joining() {
            if let Some(membership) = &mut self.membership {
                membership.standing = Standing::Evicted;
            }
            self.retire(match self.phase {
                Phase::Member(_) => TenurePhase::Evicted,
                _ => TenurePhase::Leaving,
            });
        }
    }

    pub(super) fn on_requests(&mut self, texts: &[Vec<u8>], now: Now) {
        let Role::Holder(tenure) = &mut self.role else {
            return;
        };
        let epoch = tenure.holder.epoch();
        let requests = texts.iter().filter_map(|text| Request::from_text(text));
        let (later, own): (Vec<_>, Vec<_>) = requests.partition(|request| request.epoch > epoch);
        if own.iter().any(|request| request.kind.leaves_round()) {
            tenure.put_off_leaving(now.monotonic);
        }
        tenure.holder.on_requests(own, now);
        if !later.is_empty() {
            self.misdirected = later.iter().map(Request::to_text).collect();
            // The renewal fails if there is a later holder.
            self.timers.set(Timer::Renewal, now.monotonic);
        }
    }

    pub(super) fn hold(&mut self, lease: Vec<u8>, epoch: u64, now: Now) {
        let mut holder = Holder::new(self.me.clone(), self.settings.clone(), epoch, now);
        let connected_for = now.monotonic.saturating_sub(self.exchange.connected_since);
        if connected_for >= self.settings.dead_after() {
            // The connections did not close because the store was out of reach, so the nodes are not about to return.
            holder.count_found_marks();
        }
        self.role = Role::Holder(Box::new(Tenure {
            holder,
            lease,
            renewals: 0,
            silence: Silence::new(self.exchange.asked_at, self.lease_timeout()),
            drains_queue: false,
            // The summary of the holder before names the nodes that have left.
            phase: if epoch > 1 {
                TenurePhase::Checking
            } else {
                TenurePhase::Serving
            },
            leaves: None,
        }));
        // The other nodes observe this lease since that time.
        self.timers
            .set_in(Timer::Renewal, self.exchange.asked_at, RENEWAL);
    }
}

impl Tenure {
    /// When the holder leaves its round. It wants to leave since the first call of this function, and must have left by `deadline`.
    fn leaves_at(&mut self, at: Duration, deadline: Duration) -> Duration {
        let (quiet, latest) = self.leaves.get_or_insert((
            at.saturating_add(LEAVING_QUIET),
            at.saturating_add(LEAVING_MAX.min(deadline.saturating_sub(at) / 2)),
        ));
        *latest.min(quiet)
    }

    /// Another node leaves.
    const fn put_off_leaving(&mut self, at: Duration) {
        if let Some((quiet, _)) = &mut self.leaves {
            *quiet = at.saturating_add(LEAVING_QUIET);
        }
    }
}
