//! The actions that are due at a time: deadlines, probes, messages to resend, ids to forget.

use std::time::Instant;

use super::error::FetchError;
use super::probe::PROBES_MAX;
use super::state::{RRefContext, has_elapsed};

impl<V: Clone> RRefContext<V> {
    /// Does what is due. Call it at [`RRefContext::next_tick`], or more often.
    pub(crate) fn tick(&mut self, now: Instant) {
        while let Some(&(deadline, token)) = self.deadlines.first()
            && deadline <= now
        {
            let Some(rref) = self.waiting.get(&token).map(|waiting| waiting.rref) else {
                self.deadlines.remove(&(deadline, token));
                continue;
            };
            self.fail_fetch(now, token, FetchError::TimedOut(rref));
        }
        self.tombstones.expire(now);
        self.resend_overdue(now);
        while let Some(&(since, rref, fork)) = self.under_way.first()
            && self.outbox.probes < PROBES_MAX
            && has_elapsed(since, self.timing.probe_after, now)
        {
            self.probe(now, rref, fork);
        }
    }

    /// Returns when [`RRefContext::tick`] is due; `None` while nothing waits.
    #[must_use]
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let deadline = self.deadlines.first().map(|&(deadline, _)| deadline);
        let probe = match self.under_way.first() {
            Some((since, ..)) if self.outbox.probes < PROBES_MAX => {
                since.checked_add(self.timing.probe_after)
            }
            // At the limit, the answer to a probe sends the next one.
            _ => None,
        };
        let resend = self.outbox.oldest_stall();
        let resend = resend.and_then(|since| since.checked_add(self.timing.resend_after));
        let expiry = self.tombstones.next_expiry();
        [deadline, probe, resend, expiry]
            .into_iter()
            .flatten()
            .min()
    }
}
