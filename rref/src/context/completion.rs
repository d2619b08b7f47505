//! How a value becomes ready or failed: its function has finished, or the program sets it.

use std::sync::Arc;
use std::time::Instant;

use super::effect::Effect;
use super::error::{FetchError, SetValueError};
use super::state::{Phase, RRefContext};
use super::values::Value;
use crate::id::RRefId;

impl<V: Clone> RRefContext<V> {
    /// The function that makes a value has returned or failed.
    pub(crate) fn function_finished(
        &mut self,
        now: Instant,
        rref: RRefId,
        result: Result<V, Arc<str>>,
    ) {
        match self.owned.get(&rref) {
            Some(owned) if matches!(owned.value, Value::Running) => {
                self.complete_with(now, rref, result);
            }
            // The entry was removed in the meantime, so no worker has a reference.
            _ => self.effects.extend(result.ok().map(Effect::Free)),
        }
    }

    fn complete_with(&mut self, now: Instant, rref: RRefId, result: Result<V, Arc<str>>) {
        let value = match result {
            Ok(value) => Value::Ready(value),
            Err(error) => Value::Failed {
                error,
                is_abandoned: false,
            },
        };
        self.complete(rref, value);
        self.settle_owned(now, rref);
    }

    /// Sets the value, or the error, of a reference made by [`RRefContext::create_promised`], once. A refused value
    /// is freed.
    pub(crate) fn set_value(
        &mut self,
        now: Instant,
        rref: RRefId,
        result: Result<V, Arc<str>>,
    ) -> Result<(), SetValueError> {
        let given = match self.owned.get(&rref) {
            None => Err(SetValueError::ShutDown),
            Some(_) if self.phase == Phase::Sweeping => Err(SetValueError::ShutDown),
            Some(owned) => match owned.value {
                Value::Promised => Ok(()),
                Value::Ready(_) | Value::Failed { .. } => Err(SetValueError::AlreadySet),
                Value::Uncreated | Value::Running => Err(SetValueError::MadeByFunction),
            },
        };
        match (given, result) {
            (Ok(()), result) => {
                self.complete_with(now, rref, result);
            }
            // An effect, because a destructor must not run under the caller's lock.
            (Err(_), result) => self.effects.extend(result.ok().map(Effect::Free)),
        }
        given
    }

    /// Stores a value, and answers the requests that wait for it.
    pub(super) fn complete(&mut self, rref: RRefId, value: Value<V>) {
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if matches!(owned.value, Value::Uncreated) {
            self.uncreated -= 1;
        }
        owned.value = value;
        let Some(result) = owned.value.result() else {
            return;
        };
        for token in self.waiters_of(rref) {
            let result = result.clone().map_err(FetchError::Failed);
            self.answer_fetch(token, result);
        }
    }

    /// Fails a promised value, as the shutdown leaves no handle that could set it.
    pub(super) fn fail_promise(&mut self, rref: RRefId) {
        let owned = self.owned.get(&rref);
        if owned.is_some_and(|owned| matches!(owned.value, Value::Promised)) {
            let why = "its owner was shut down before it set the value";
            let value = Value::Failed {
                error: why.into(),
                is_abandoned: false,
            };
            self.complete(rref, value);
        }
    }
}
