//! Keeps the leader's lease, and with it the right to answer.
//!
//! A successful keepalive gives the right until its lease could expire: counted from before it was sent, less a
//! margin. It does not cover the leader's key and the log, which can be deleted or overwritten despite the lease: so
//! they are read after it. A commit does not give the right: it proves that the leader's key existed when it was
//! carried out, but not later.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, Deadline, Moment, sleep};
use c10d_store::journal::{Authority, JournalError};

use super::gateway::{CallError, Gateway};
use super::layout::Layout;
use super::loss::{Memory, Unfit, glimpse, judge_leader, mark};
use super::message::{Answer, Request, Txn, code};
use super::options::EtcdOptions;

/// How long the lookup of the present leader may take, for a message.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the revocation of a lease waits for etcd. Without an answer, the lease expires after its time to live.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause after a keepalive that etcd refuses without an end of the lease.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Decides until when a process with a lease may answer. Pure.
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

    /// Returns until when the process may answer, if the keepalive or the grant that was sent at `sent` has
    /// succeeded. The margin is for clocks that differ in speed, and for the time between the check and the system
    /// call.
    pub(crate) fn until<T: std::ops::Add<Duration, Output = T>>(self, sent: T) -> T {
        sent + self.ttl * 9 / 10
    }

    /// The time from one keepalive to the next: it leaves time for an attempt at another member. At etcd's shortest
    /// lease it is less than one request a second.
    fn interval(self) -> Duration {
        self.ttl * 6 / 10
    }
}

/// A lease, and the thread `c10d-etcd-lease` that renews it. Dropping it joins the thread and revokes the lease.
#[derive(Debug)]
pub(super) struct Lease {
    id: u64,
    authority: Authority,
    cancel: Cancel,
    gateway: Gateway,
    is_lost: Arc<AtomicBool>,
    writer: Arc<OnceLock<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Lease {
    /// Keeps a lease that was asked for at this time.
    pub(super) fn keep(
        id: u64,
        ttl_seconds: u64,
        asked: Moment,
        gateway: &Gateway,
        options: &EtcdOptions,
    ) -> io::Result<Self> {
        let guard = Guard::new(ttl_seconds);
        let authority = Authority::none();
        authority.extend(guard.until(asked));
        let cancel = Cancel::new();
        let is_lost = Arc::new(AtomicBool::new(false));
        let writer = Arc::new(OnceLock::new());
        let keeper = Keeper {
            id,
            guard,
            authority: authority.clone(),
            gateway: gateway.another(cancel.clone()),
            cancel: cancel.clone(),
            layout: options.layout.clone(),
            memory: options.memory.clone(),
            is_lost: Arc::clone(&is_lost),
            writer: Arc::clone(&writer),
        };
        let thread = thread::Builder::new()
            .name("c10d-etcd-lease".to_owned())
            .spawn(move || keeper.run())?;
        Ok(Self {
            id,
            authority,
            cancel,
            gateway: gateway.another(Cancel::NEVER),
            is_lost,
            writer,
            thread: Some(thread),
        })
    }

    /// The process leads as this writer: its key is there from now on.
    pub(super) fn leads(&self, writer: u64) {
        // Once.
        let _ = self.writer.set(writer);
    }

    pub(super) const fn authority(&self) -> &Authority {
        &self.authority
    }

    #[cfg(test)]
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Whether etcd has reported that it has expired.
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
                log::info!("cannot revoke a lease of etcd, so it will expire on its own: {error}");
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
    memory: Memory,
    is_lost: Arc<AtomicBool>,
    writer: Arc<OnceLock<u64>>,
}

impl Keeper {
    fn run(mut self) {
        let mut began = Instant::now();
        loop {
            let next = began + self.guard.interval();
            let pause = next.saturating_duration_since(Instant::now());
            if sleep(pause, [&self.cancel]).is_err() {
                return;
            }
            began = Instant::now();
            let sent = Moment::now();
            let keep = Request::KeepAlive { lease: self.id };
            let deadline = Deadline::at(began + self.guard.ttl);
            match self.gateway.call(&keep, deadline) {
                Ok(Answer::Lease { ttl_seconds, .. }) if ttl_seconds > 0 => {
                    match self.look(deadline) {
                        Ok(Ok(())) => {
                            let guard = Guard::new(ttl_seconds.min(self.guard.ttl.as_secs()));
                            self.authority.extend(guard.until(sent));
                        }
                        Ok(Err(unfit)) => return self.end(unfit),
                        Err(error) => {
                            if !self.goes_on(error) {
                                return;
                            }
                        }
                    }
                }
                Ok(_)
                | Err(CallError::Refused {
                    code: code::NOT_FOUND,
                    ..
                }) => return self.lost(),
                Err(error) => {
                    if !self.goes_on(error) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether to try again after a call that has confirmed nothing.
    fn goes_on(&self, error: CallError) -> bool {
        match error {
            CallError::Cancelled => false,
            CallError::Unknown(error) => {
                log::warn!(
                    "the store does not answer until etcd confirms that this process leads: {error}"
                );
                true
            }
            error => {
                log::error!("cannot keep the lease of {}: {error}", self.layout.place());
                sleep(REFUSED_PAUSE, [&self.cancel]).is_ok()
            }
        }
    }

    /// Whether etcd has the key of this process, if it leads, and every batch of it.
    fn look(&mut self, deadline: Deadline) -> Result<Result<(), Unfit>, CallError> {
        // Before etcd is asked: it may have more.
        let known = self.memory.get();
        let Some(writer) = self.writer.get() else {
            return Ok(Ok(()));
        };
        let look = Request::Txn(Txn {
            compare: Vec::new(),
            success: glimpse(&self.layout, known.as_ref()),
            failure: Vec::new(),
        });
        let ranges = match self.gateway.call(&look, deadline)? {
            Answer::Txn { ranges, .. } => ranges,
            _ => Vec::new(),
        };
        Ok(judge_leader(&self.layout, known.as_ref(), *writer, &ranges))
    }

    /// The lease has ended.
    fn lost(&mut self) {
        self.is_lost.store(true, Ordering::SeqCst);
        let deadline = Deadline::after(Instant::now(), LOOK_TIMEOUT);
        let unfit = match self.look(deadline) {
            Ok(Err(unfit)) => unfit,
            Ok(Ok(())) | Err(_) => Unfit::Deposed(None),
        };
        self.end(unfit);
    }

    fn end(&mut self, unfit: Unfit) {
        match unfit {
            Unfit::Lost(what) => {
                // The end of the server cancels the call.
                self.authority.withdraw();
                let deadline = Deadline::after(Instant::now(), LOOK_TIMEOUT);
                if let Err(error) = self.gateway.call(&mark(&self.layout, &what), deadline) {
                    log::warn!("cannot report a loss in etcd to the other servers: {error}");
                }
                self.authority.end_damaged(what);
            }
            Unfit::Deposed(Some(leader)) => self.authority.end(format!("{leader} leads now")),
            Unfit::Deposed(None) if self.is_lost.load(Ordering::SeqCst) => {
                self.authority.end("its lease has expired");
            }
            Unfit::Deposed(None) => {
                let key = self.layout.leader();
                self.authority.end(format!("the key {key} was deleted"));
            }
            Unfit::Other(JournalError::Damaged { what, .. }) => self.authority.end_damaged(what),
            Unfit::Other(error) => self.authority.end_damaged(error.to_string()),
        }
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
