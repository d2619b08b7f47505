//! Waits until a value differs from the known one: with WAIT_CHANGE if the server has it, otherwise by
//! polling.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::call::Call;
use super::connection::ANSWER_TIMEOUT_MIN;
use super::connection::{Follows, Waited};
use super::pool::Lease;
use super::waiting::{Repeat, Wait};
use crate::error::StoreError;
use crate::known::Known;
use crate::wire::{Opcode, capability};

/// The polling interval on servers without WAIT_CHANGE: PyTorch's rendezvous polls at the same interval
/// (`dynamic_rendezvous.py`), so that a node causes no more load than a PyTorch node.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl<'c> Call<'c> {
    /// The value of `key`, as soon as it differs from `known`.
    pub(super) fn wait_for_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let lease = self.lease(timeout)?;
        if lease.has(capability::WAIT_CHANGE) {
            self.wait_change_on(lease, key, known, timeout)
        } else {
            self.poll_until_changed(lease, key, known, timeout)
        }
    }

    fn wait_change_on(
        &self,
        mut lease: Lease<'_>,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let follows = Follows::Values(1);
        let waited = self.wait_on(&mut lease, timeout, Repeat::Free, follows, |request| {
            request
                .opcode(Opcode::WaitChange)
                .user_key(key)
                .known(known);
        })?;
        match waited {
            Waited::Done(mut values) => Ok(values.pop().unwrap_or_default()),
            Waited::TimedOut => Err(self.timed_out(lease, timeout)),
        }
    }

    fn poll_until_changed(
        &self,
        mut lease: Lease<'c>,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let deadline = self.deadline(timeout);
        loop {
            let now = Instant::now();
            let next_poll = Deadline::after(now, POLL_INTERVAL).min(deadline);
            if let Some(value) = self.read_on(&mut lease, key, next_poll, timeout)?
                && known.is_outdated_by(&value)
            {
                return Ok(value);
            }
            if deadline.has_passed(now) {
                return Err(self.timed_out(lease, timeout));
            }
            // Other calls may use the connection in the meantime.
            drop(lease);
            self.sleep_until(next_poll, timeout)?;
            lease = self.lease_again(timeout)?;
        }
    }

    /// A connection for the next poll. Keeps waiting while other calls use all connections for longer
    /// than the time limit for one reply.
    fn lease_again(&self, timeout: Option<Duration>) -> Result<Lease<'c>, StoreError> {
        let deadline = self.deadline(timeout);
        loop {
            match self.lease_by(self.answer_deadline(timeout), timeout) {
                Err(StoreError::Timeout { .. }) if !deadline.has_passed(Instant::now()) => {}
                result => return result,
            }
        }
    }

    /// Reads the value of `key`. Waits for a missing key until the deadline, so that it is noticed before
    /// the next poll. (PyTorch's older server does not wake waits on every write.)
    fn read_on(
        &self,
        lease: &mut Lease<'_>,
        key: &str,
        deadline: Deadline,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let wait = Wait {
            follows: Follows::Nothing,
            repeat: Repeat::Free,
            deadline,
        };
        let waited = self.wait_by(lease, &wait, timeout, |request| {
            request.opcode(Opcode::Wait).user_keys(&[key]);
        })?;
        if waited == Waited::TimedOut {
            return Ok(None);
        }
        self.ask_by(
            lease,
            self.answer_deadline(timeout),
            shorter(timeout, self.answer_timeout()),
            |request| {
                request.opcode(Opcode::Get).user_key(key);
            },
            |connection, deadline| connection.read_blob(deadline).map(Some),
        )
    }

    /// The deadline of a request sent now: a call that lasts for hours must notice a server that hangs,
    /// and a short call must not wait much longer than its timeout.
    fn answer_deadline(&self, timeout: Option<Duration>) -> Deadline {
        let now = Instant::now();
        let moment = Deadline::after(now, ANSWER_TIMEOUT_MIN);
        let rest = self.deadline(timeout).at_least(moment);
        Deadline::after(now, self.answer_timeout()).min(rest)
    }
}

/// The shorter of two timeouts, where `None` is the longest.
fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
