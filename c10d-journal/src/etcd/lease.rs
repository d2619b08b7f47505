//! Keeps the leader's lease, and with it the right to answer.
//!
//! A keepalive that succeeds gives the right until its lease could end: counted from before it was sent, less a margin.
//! A commit gives none: that the leader's key was there when it was carried out says nothing about the time after.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, sleep};
use c10d_store::journal::Authority;

use super::gateway::{CallError, Gateway};
use super::layout::Layout;
use super::message::{Answer, Request, code};
use super::options::read_leader;

/// How long a look at who leads now may take, for a message.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the end of a lease waits for etcd. Else the lease ends by itself.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a keepalive that etcd refuses without an end of the lease.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// When a process that has a lease may answer. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    ttl: Duration,
}

impl Guard {
    pub(crate) const fn new(ttl_seconds: u64) -> Self {
        Self {
            ttl: Duration::from_secs(ttl_seconds),
        }
    }

    /// Until when, if a keepalive succeeded that was sent then, or the grant. The margin is for clocks that differ in
    /// speed, and for the time between the check and the system call.
    pub(crate) fn until<T: std::ops::Add<Duration, Output = T>>(self, sent: T) -> T {
        sent + self.ttl * 9 / 10
    }

    /// The time from one keepalive to the next: it leaves time for an attempt at another member. At etcd's shortest
    /// lease it is less than one request a second.
    fn interval(self) -> Duration {
        self.ttl * 6 / 10
    }
}

/// A lease, and the thread `c10d-etcd-lease` that keeps it. Dropping it joins the thread and ends the lease.
#[derive(Debug)]
pub(super) struct Lease {
    id: u64,
    authority: Authority,
    cancel: Cancel,
    gateway: Gateway,
    is_lost: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Keeps a lease that was asked for at this time.
    pub(super) fn keep(
        id: u64,
        ttl_seconds: u64,
        asked: Instant,
        gateway: &Gateway,
        layout: &Layout,
    ) -> io::Result<Self> {
        let guard = Guard::new(ttl_seconds);
        let authority = Authority::none();
        authority.extend(guard.until(asked));
        let cancel = Cancel::new();
        let is_lost = Arc::new(AtomicBool::new(false));
        let keeper = Keeper {
            id,
            guard,
            authority: authority.clone(),
            gateway: gateway.another(cancel.clone()),
            cancel: cancel.clone(),
            layout: layout.clone(),
            is_lost: Arc::clone(&is_lost),
        };
        let thread = thread::Builder::new()
            .name("c10d-etcd-lease".to_owned())
            .spawn(move || keeper.run(asked))?;
        Ok(Self {
            id,
            authority,
            cancel,
            gateway: gateway.another(Cancel::NEVER),
            is_lost,
            thread: Some(thread),
        })
    }

    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }

    #[cfg(test)]
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Whether etcd has said that it has ended.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that keeps a lease of etcd panicked");
        }
        // Before another process can lead.
        self.authority.withdraw();
        if !self.is_lost() {
            let revoke = Request::Revoke { lease: self.id };
            let deadline = Deadline::after(Instant::now(), REVOKE_TIMEOUT);
            if let Err(error) = self.gateway.call(&revoke, deadline) {
                log::info!("cannot end a lease of etcd, which so expires by itself: {error}");
            }
        }
    }
}

struct Keeper {
    id: u64,
    guard: Guard,
    authority: Authority,
    gateway: Gateway,
    cancel: Cancel,
    layout: Layout,
    is_lost: Arc<AtomicBool>,
}

impl Keeper {
    fn run(mut self, asked: Instant) {
        let mut sent = asked;
        loop {
            let next = sent + self.guard.interval();
            let pause = next.saturating_duration_since(Instant::now());
            if sleep(pause, [&self.cancel]).is_err() {
                return;
            }
            sent = Instant::now();
            let keep = Request::KeepAlive { lease: self.id };
            let deadline = Deadline::at(sent + self.guard.ttl);
            match self.gateway.call(&keep, deadline) {
                Ok(Answer::Lease { ttl_seconds, .. }) if ttl_seconds > 0 => {
                    let guard = Guard::new(ttl_seconds.min(self.guard.ttl.as_secs()));
                    self.authority.extend(guard.until(sent));
                }
                Ok(_) => return self.lost(),
                Err(CallError::Refused {
                    code: code::NOT_FOUND,
                    ..
                }) => return self.lost(),
                Err(CallError::Cancelled) => return,
                Err(CallError::Unknown(error)) => {
                    log::warn!(
                        "the store answers nothing while etcd does not confirm that this process leads: {error}"
                    );
                }
                Err(error) => {
                    log::error!("cannot keep the lease of {}: {error}", self.layout.place());
                    if sleep(REFUSED_PAUSE, [&self.cancel]).is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn lost(&mut self) {
        self.is_lost.store(true, Ordering::SeqCst);
        let deadline = Deadline::after(Instant::now(), LOOK_TIMEOUT);
        let leader = read_leader(&mut self.gateway, &self.layout, deadline);
        let reason = match leader {
            Ok((Some(leader), _)) => format!("{leader} leads now"),
            _ => "its lease has expired".to_owned(),
        };
        self.authority.end(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_answer_ends_before_the_lease_can() {
        for seconds in [1, 2, 5, 60] {
            let guard = Guard::new(seconds);
            let until = guard.until(Duration::ZERO);
            assert!(until + Duration::from_millis(99) < Duration::from_secs(seconds));
            // A keepalive has time to fail once and to be repeated.
            assert!(guard.interval() < until);
        }
    }
}
