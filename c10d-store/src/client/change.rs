//! Waiting until a value differs from what is known: by WAIT_CHANGE where the server has it, else by
//! looking now and then.

use std::time::{Duration, Instant};

use c10d_socket::Deadline;

use super::call::{ANSWER_TIMEOUT_MIN, Call};
use super::connection::{Follows, Waited};
use super::pool::Lease;
use crate::error::StoreError;
use crate::known::Known;
use crate::wire::Opcode;

/// How often a value is looked at where the server cannot tell that it has changed: as often as
/// PyTorch's rendezvous looks (`dynamic_rendezvous.py`), so that a node costs such a server no more
/// than one of PyTorch's.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

impl<'c> Call<'c> {
    /// The value of `key`, as soon as there is one that differs from what is known.
    pub(super) fn wait_for_change(
        &self,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let lease = self.lease(timeout)?;
        if lease.has_wait_change() {
            self.wait_change_on(lease, key, known, timeout)
        } else {
            self.look_until_changed(lease, key, known, timeout)
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
        let waited = self.wait_on(&mut lease, timeout, follows, |request| {
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

    fn look_until_changed(
        &self,
        mut lease: Lease<'c>,
        key: &str,
        known: Known<'_>,
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, StoreError> {
        let deadline = self.deadline(timeout);
        loop {
            let now = Instant::now();
            let next_look = Deadline::after(now, LOOK_INTERVAL).min(deadline);
            if let Some(value) = self.look_on(&mut lease, key, next_look, timeout)?
                && known.differs_from(&value)
            {
                return Ok(value);
            }
            if deadline.has_passed(now) {
                return Err(self.timed_out(lease, timeout));
            }
            // Others may have the connection meanwhile.
            drop(lease);
            self.sleep_until(next_look, timeout)?;
            lease = self.lease_again(timeout)?;
        }
    }

    /// A connection for the next look. Others may keep all of them for longer than one answer may take,
    /// which is no reason to give up early.
    fn lease_again(&self, timeout: Option<Duration>) -> Result<Lease<'c>, StoreError> {
        let deadline = self.deadline(timeout);
        loop {
            match self.lease_by(self.answer_deadline(timeout), timeout) {
                Err(StoreError::Timeout { .. }) if !deadline.has_passed(Instant::now()) => {}
                result => return result,
            }
        }
    }

    /// The value of `key`, which is waited for until the deadline if it is missing: a server that wakes
    /// for it makes that look an early one. (PyTorch's older one does not wake for every write.)
    fn look_on(
        &self,
        lease: &mut Lease<'_>,
        key: &str,
        deadline: Deadline,
        timeout: Option<Duration>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let waited = self.wait_by(lease, deadline, timeout, Follows::Nothing, |request| {
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

    /// Until when what is asked now has to be answered: a call that lasts for hours must notice a server
    /// that hangs, and a short one must not wait for it for longer than its own time and a moment.
    fn answer_deadline(&self, timeout: Option<Duration>) -> Deadline {
        let now = Instant::now();
        let moment = Deadline::after(now, ANSWER_TIMEOUT_MIN);
        let rest = self.deadline(timeout).at_least(moment);
        Deadline::after(now, self.answer_timeout()).min(rest)
    }
}

/// The shorter of two timeouts, of which `None` is the longest.
fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
