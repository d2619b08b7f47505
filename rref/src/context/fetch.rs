//! How requests for a value of this worker are answered, and how they wait.

use std::time::Instant;

use rpc_agent::WorkerId;

use super::effect::{Effect, RequestToken};
use super::error::FetchError;
use super::state::{Phase, RRefContext};
use super::values::{UNCREATED_MAX, Waiting};
use crate::id::RRefId;

impl<V: Clone> RRefContext<V> {
    /// Requests a value of this worker. [`Effect::AnswerFetch`] answers, by the deadline at the latest.
    pub(crate) fn fetch(
        &mut self,
        now: Instant,
        token: RequestToken,
        rref: RRefId,
        deadline: Option<Instant>,
    ) {
        self.fetch_for(now, token, self.me, rref, deadline);
    }

    pub(super) fn fetch_for(
        &mut self,
        now: Instant,
        token: RequestToken,
        from: WorkerId,
        rref: RRefId,
        deadline: Option<Instant>,
    ) {
        // During the sweep, an entry that does not exist will not be created.
        let has_ended = self.phase == Phase::Sweeping && !self.owned.contains_key(&rref);
        let error = if self.tombstones.contains(rref.0) || has_ended {
            FetchError::Deleted(rref)
        } else if self.mint.is_unissued(rref.0) {
            FetchError::UnknownId(rref)
        } else if let Some(result) = self.try_value(rref) {
            let result = result.map_err(FetchError::Failed);
            self.effects.push(Effect::AnswerFetch { token, result });
            return;
        } else if deadline.is_some_and(|deadline| deadline <= now) {
            FetchError::TimedOut(rref)
        } else if let Err(max) = self.waiting_places.check(from) {
            FetchError::TooMany { max }
        } else if let Some(owned) = self.entry(now, rref) {
            if let Some(result) = owned.value.result() {
                let result = result.map_err(FetchError::Failed);
                self.effects.push(Effect::AnswerFetch { token, result });
                self.settle_owned(now, rref);
                return;
            }
            self.waiters.insert((rref, token));
            let waiting = Waiting {
                rref,
                from,
                deadline,
            };
            self.waiting.insert(token, waiting);
            // There is one.
            let _ = self.waiting_places.take(from);
            self.deadlines
                .extend(deadline.map(|deadline| (deadline, token)));
            return;
        } else {
            FetchError::TooMany { max: UNCREATED_MAX }
        };
        let result = Err(error);
        self.effects.push(Effect::AnswerFetch { token, result });
    }

    /// The requests that wait for a value, in the order of their tokens.
    pub(super) fn waiters_of(&self, rref: RRefId) -> Vec<RequestToken> {
        let of_value = self.waiters.range((rref, 0)..=(rref, RequestToken::MAX));
        of_value.map(|&(_, token)| token).collect()
    }

    /// Whether a request waits for a value.
    pub(super) fn is_awaited(&self, rref: RRefId) -> bool {
        let mut of_value = self.waiters.range((rref, 0)..=(rref, RequestToken::MAX));
        of_value.next().is_some()
    }

    pub(super) fn answer_fetch(&mut self, token: RequestToken, result: Result<V, FetchError>) {
        if let Some(Waiting {
            rref,
            from,
            deadline,
        }) = self.waiting.remove(&token)
        {
            self.waiting_places.give_back(from);
            self.waiters.remove(&(rref, token));
            if let Some(deadline) = deadline {
                self.deadlines.remove(&(deadline, token));
            }
        }
        self.effects.push(Effect::AnswerFetch { token, result });
    }

    /// Ends a request that waits.
    pub(super) fn fail_fetch(&mut self, now: Instant, token: RequestToken, error: FetchError) {
        let Some(rref) = self.waiting.get(&token).map(|waiting| waiting.rref) else {
            return;
        };
        self.answer_fetch(token, Err(error));
        self.settle_owned(now, rref);
    }
}
