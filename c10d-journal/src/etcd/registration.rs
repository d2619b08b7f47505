//! Announces a candidate, and the versions of the journal that it reads: the leader writes no other version while the
//! candidate is listed. Its position is updated at each renewal; for the current position, `life_line` answers
//! requests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, sleep};

use super::gateway::{CallError, Gateway};
use super::layout::{Layout, Registered};
use super::message::{Answer, Op, Request, Txn, code};

/// How long a candidate that has exited without a notice is still listed. Long, because each renewal is a request to
/// etcd.
const LEASE_TTL_SECONDS: u64 = 60;

/// The time between two renewals. Three candidates at rest make at most 108 requests a minute: 100 are the leader's keepalives, and
/// its looks at its key.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(45);

/// The pause after a renewal that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the revocation of the lease waits for etcd. Without an answer, the lease expires after its time to live.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// A candidate's key, and the thread `c10d-etcd-listed` that keeps it. Dropping it removes the key.
#[derive(Debug)]
pub(super) struct Registration {
    cancel: Cancel,
    thread: Option<JoinHandle<()>>,
}

impl Registration {
    /// `position` is the position of the log's last batch that the candidate has. Does not block.
    pub(super) fn start(
        me: Registered,
        gateway: &Gateway,
        layout: &Layout,
        position: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let cancel = Cancel::new();
        let keeper = Keeper {
            key: layout.candidate(me.leader.writer),
            me,
            position,
            lease: None,
            gateway: gateway.another(cancel.clone()),
        };
        let ends = cancel.clone();
        let thread = thread::Builder::new()
            .name("c10d-etcd-listed".to_owned())
            .spawn(move || keeper.run(&ends))?;
        Ok(Self {
            cancel,
            thread: Some(thread),
        })
    }

    /// Begins to remove the key, which dropping it waits for.
    pub(super) fn end(&self) {
        self.cancel.cancel();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that lists a candidate in etcd panicked");
        }
    }
}

struct Keeper {
    key: String,
    me: Registered,
    position: Arc<AtomicU64>,
    /// The lease, and the time when it is due to be renewed.
    lease: Option<(u64, Instant)>,
    gateway: Gateway,
}

impl Keeper {
    fn run(mut self, cancel: &Cancel) {
        let mut is_answered = true;
        loop {
            let renewed = self.renew();
            is_answered = match renewed {
                Ok(()) => true,
                Err(CallError::Cancelled) => is_answered,
                Err(error) => {
                    log::debug!("cannot list this candidate: {error}");
                    false
                }
            };
            let due = self.lease.map(|(_, due)| due);
            let pause = due.map_or(Duration::ZERO, |due| {
                due.saturating_duration_since(Instant::now())
            });
            if sleep(pause.max(RETRY_PAUSE), [cancel]).is_err() {
                break;
            }
        }
        if let Some((lease, _)) = self.lease
            && is_answered
        {
            let deadline = Deadline::after(Instant::now(), REVOKE_TIMEOUT);
            let mut gateway = self.gateway.another(Cancel::NEVER);
            if let Err(error) = gateway.call(&Request::Revoke { lease }, deadline) {
                log::debug!("this candidate is listed until its lease expires: {error}");
            }
        }
    }

    fn renew(&mut self) -> Result<(), CallError> {
        let now = Instant::now();
        let deadline = Deadline::after(now, CALL_TIMEOUT);
        if let Some((lease, due)) = self.lease
            && now >= due
        {
            let kept = self.gateway.call(&Request::KeepAlive { lease }, deadline);
            self.lease = match kept {
                Ok(Answer::Lease {
                    ttl_seconds: 1.., ..
                }) => Some((lease, now + RENEWAL_INTERVAL)),
                Ok(_) => None,
                Err(CallError::Refused { code, .. }) if code == code::NOT_FOUND => None,
                Err(error) => return Err(error),
            };
        }
        let position = self.position.load(Ordering::Relaxed);
        if self.lease.is_some() && self.me.position == position {
            return Ok(());
        }
        let (lease, due) = match self.lease {
            Some(lease) => lease,
            None => {
                let ttl_seconds = LEASE_TTL_SECONDS;
                let granted = self
                    .gateway
                    .call(&Request::Grant { ttl_seconds }, deadline)?;
                let Answer::Lease { id, .. } = granted else {
                    return Err(CallError::Unknown("no lease".to_owned()));
                };
                (id, now + RENEWAL_INTERVAL)
            }
        };
        let me = Registered {
            position,
            ..self.me.clone()
        };
        let put = Request::Txn(Txn {
            compare: Vec::new(),
            success: vec![Op::Put {
                key: self.key.clone(),
                value: me.encode(),
                lease,
            }],
            failure: Vec::new(),
        });
        let put = self.gateway.call(&put, deadline);
        if let Err(error) = put {
            // The lease may have expired: get a new lease next time.
            self.lease = None;
            return Err(error);
        }
        self.lease = Some((lease, due));
        self.me = me;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The position of a candidate whose life port cannot be reached is as old as its last renewal.
    #[test]
    fn the_documents_name_the_age_of_a_position() {
        let page = include_str!("../../../docs/how-to/etcd-operate.md");
        let seconds = RENEWAL_INTERVAL.as_secs();
        let sentence = format!("positions that are up to {seconds} s old");
        assert!(page.contains(&sentence), "{sentence}");
        assert!(seconds < LEASE_TTL_SECONDS);
    }
}
