//! Requests that the server answers later: the wait for the reply, its deadline, and its early end for
//! another call or a cancel.
//!
//! A wait ends early by CANCEL_WAIT. If the reply crosses the cancel, it is the result of the wait. After
//! it has given way to other calls, a wait is sent again; its caller does not notice.

use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline};

use super::connection::{ANSWER_TIMEOUT_MIN, CANCEL_GRACE, Connection, Failure, Follows, Waited};
use super::lanes::GRACE;
use super::pool::{Called, Lease, PoolError};
use super::stream::CHECK_INTERVAL;
use crate::wire::RequestBuf;

/// How long a cancelled call waits until the server confirms what it has taken from the queue: as short as people
/// bear, and long for a server.
const CONFIRM_GRACE: Duration = Duration::from_secs(2);

/// How a wait may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The wait changes nothing: it gives way to other calls.
    Free,
    /// The reply takes something away from the server: the wait gives way only after the server has
    /// confirmed the cancel, for which it has this time; `None` is unlimited.
    Confirmed(Option<Duration>),
    /// A second request is not the same as one: the wait does not give way.
    Never,
}

/// One wait of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    pub(super) follows: Follows,
    pub(super) repeat: Repeat,
    pub(super) deadline: Deadline,
}

impl Wait {
    /// The time limit for the reply to CANCEL_WAIT.
    fn cancel_deadline(&self) -> Deadline {
        let now = Instant::now();
        let grace = Deadline::after(now, CANCEL_GRACE);
        match self.repeat {
            Repeat::Confirmed(timeout) => Deadline::after(now, timeout).at_least(grace),
            Repeat::Free | Repeat::Never => grace,
        }
    }

    fn gives_way(&self) -> bool {
        self.repeat != Repeat::Never
    }
}

impl Lease<'_> {
    /// Sends a request that the server answers later, and waits for the reply. Moves to another lane if
    /// the call of another wait has left this one for a moment.
    pub(super) fn wait<'v>(
        &mut self,
        wait: &Wait,
        build: impl Fn(&mut RequestBuf<'v>),
    ) -> Result<Waited, PoolError> {
        let since = Instant::now();
        if self.is_inside_a_wait() {
            if wait.gives_way() {
                let waited = self.check_once(wait, &build)?;
                if waited != Waited::TimedOut || wait.deadline.has_passed(Instant::now()) {
                    return Ok(waited);
                }
            } else {
                self.exchange(|connection| {
                    connection.acknowledge(wait.cancel_deadline().at_least(wait.deadline))
                })?;
            }
            let answer = Deadline::after(Instant::now(), ANSWER_TIMEOUT_MIN);
            self.move_to_wait(wait.deadline.at_least(answer))?;
        }
        loop {
            let called = self.start_waiting(since, wait.gives_way());
            let ended = self.wait_until_called(wait, called, &build);
            self.stop_waiting();
            let (waited, called) = ended?;
            if let Some(Waited::Done(values)) = waited {
                return Ok(Waited::Done(values));
            }
            if self.take_wait_ended() {
                return Err(PoolError::WaitEnded);
            }
            if waited.is_none() && matches!(wait.repeat, Repeat::Confirmed(_)) {
                return Err(self.fail(match called {
                    Some(Called::Cancelled) => Failure::Interrupted,
                    _ => Failure::NoReply,
                }));
            }
            match called {
                Some(Called::Cancelled) => return Err(PoolError::Interrupted),
                Some(Called::GiveWay) if !wait.deadline.has_passed(Instant::now()) => {}
                Some(Called::GiveWay) | None => return Ok(Waited::TimedOut),
            }
            // With time for a last check after the deadline.
            let deadline = wait.deadline.instant();
            let deadline = deadline.map_or(Deadline::NEVER, |at| Deadline::after(at, CANCEL_GRACE));
            match self.give_way(deadline) {
                Err(PoolError::TimedOut) => return Ok(Waited::TimedOut),
                result => result?,
            }
            if !self.is_connected() {
                // A request of another call has failed. This wait loses nothing with the connection.
                let grace = Deadline::after(Instant::now(), ANSWER_TIMEOUT_MIN);
                self.reconnect(deadline.at_least(grace))?;
            }
            // The calls for which it gave way may have ended without a reply to its cancel.
            if !self.exchange(|connection| connection.settle(deadline))? {
                return Ok(Waited::TimedOut);
            }
        }
    }

    /// Sends the request and waits for the reply, until the deadline or until the wait is called to end,
    /// for the reason that is returned. If it is called already, the server checks once.
    fn wait_until_called<'v>(
        &mut self,
        wait: &Wait,
        mut called: Option<Called>,
        build: &impl Fn(&mut RequestBuf<'v>),
    ) -> Result<(Option<Waited>, Option<Called>), PoolError> {
        let grace = Deadline::after(Instant::now(), CANCEL_GRACE);
        let ends_at_once = called.is_some();
        self.exchange(|connection| {
            let by = wait.deadline.at_least(grace);
            // A wait that gives way leaves its lane to the calls that would wait for a mark.
            let marks = !wait.gives_way();
            connection.start_wait(build, wait.follows, ends_at_once, marks, by)
        })?;
        let mut pause = GRACE;
        while called.is_none() {
            let until = if self.is_wakeable() {
                wait.deadline
            } else {
                // Most waits end at once and need no waker.
                wait.deadline.min(Deadline::after(Instant::now(), pause))
            };
            let waited = self.exchange_waiting(|connection, acknowledged| {
                connection.await_reply(until, acknowledged)
            })?;
            if waited.is_some() {
                return Ok((waited, None));
            }
            if wait.deadline.has_passed(Instant::now()) {
                break;
            }
            self.make_wakeable();
            pause = CHECK_INTERVAL;
            called = self.called();
        }
        let deadline = if called == Some(Called::Cancelled) {
            self.set_cancel(Cancel::NEVER);
            let grace = match wait.repeat {
                Repeat::Confirmed(_) => CONFIRM_GRACE,
                Repeat::Free | Repeat::Never => CANCEL_GRACE,
            };
            Deadline::after(Instant::now(), grace)
        } else {
            wait.cancel_deadline()
        };
        if !ends_at_once {
            self.exchange(Connection::cancel_wait)?;
        }
        let waited = self.exchange_waiting(|connection, acknowledged| {
            connection.await_reply(deadline, acknowledged)
        });
        self.set_cancel(self.cancel().clone());
        Ok((waited?, called))
    }

    /// Checks once without waiting.
    fn check_once<'v>(
        &mut self,
        wait: &Wait,
        build: &impl Fn(&mut RequestBuf<'v>),
    ) -> Result<Waited, PoolError> {
        let deadline = wait.cancel_deadline().at_least(wait.deadline);
        self.exchange(|connection| {
            connection.start_wait(build, wait.follows, true, false, deadline)?;
            connection
                .await_reply(deadline, &mut || {})?
                .ok_or(Failure::NoReply)
        })
    }
}
