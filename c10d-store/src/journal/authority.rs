//! The time-limited permission of a server to answer, for a journal that several processes may serve, one at a time.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Duration;

use c10d_socket::Moment;

/// Permission of the leading process to send replies, limited in time. Clones share it: the engine extends it, and
/// the server checks it.
///
/// An engine takes the time before it sends a request, and extends the authority once the answer has confirmed that
/// this process leads: until a time before which no other process can lead, less a margin. The server checks it
/// before each write to a socket, so the margin must cover the time of one system call. The authority ends early if
/// the machine is suspended after the engine has taken the time: the length of the suspension is not known exactly,
/// so the engine sends another request first.
#[derive(Clone)]
pub struct Authority(Arc<Shared>);

struct Shared {
    /// The end of the authority, in nanoseconds since the machine started; 0 without an authority.
    until: AtomicU64,
    /// How long the machine had been suspended when the authority was requested, in nanoseconds.
    asleep: AtomicU64,
    /// The reason why the authority will never be extended again.
    ended: OnceLock<End>,
    /// The server has found it passed.
    is_awaited: AtomicBool,
    /// The waker of the server.
    waker: Mutex<Option<Waker>>,
}

/// The reason why the authority will never be extended again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// The engine has lost what it had kept: no other process leads.
    pub(crate) is_damage: bool,
}

impl Authority {
    /// Creates an authority that has not been granted yet. Until it is [extended](Self::extend), the server sends no
    /// replies.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(Shared {
            until: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
            ended: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            waker: Mutex::default(),
        }))
    }

    /// Extends the authority until this moment, which counts from a moment before the engine has sent its request. A
    /// time before the present end changes nothing. Does not block.
    pub fn extend(&self, until: Moment) {
        let shared = &self.0;
        let (time, (_, asleep_max)) = until.parts();
        shared.until.fetch_max(nanos(time), Ordering::SeqCst);
        // After it: a reader in between takes the machine for suspended.
        shared.asleep.fetch_max(nanos(asleep_max), Ordering::SeqCst);
        if shared.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Ends the authority, because another process leads, or may lead: the server stops without a reply to its
    /// clients. Does not block.
    pub fn end(&self, reason: impl Into<String>) {
        self.end_as(End {
            reason: reason.into(),
            is_damage: false,
        });
    }

    /// Ends the authority, because the engine has lost data that it had kept: the server stops with
    /// [`JournalError::Damaged`](super::JournalError::Damaged). Does not block.
    pub fn end_damaged(&self, what: impl Into<String>) {
        self.end_as(End {
            reason: what.into(),
            is_damage: true,
        });
    }

    fn end_as(&self, end: End) {
        // The first reason is the cause.
        let _ = self.0.ended.set(end);
        self.wake();
    }

    /// Suspends replies until the authority is extended again. Called when a peer has seen a later run of the store,
    /// so that this process may no longer be the leader. Does not block.
    pub fn withdraw(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Returns whether the server may answer at this moment.
    #[must_use]
    pub fn is_valid(&self, now: Moment) -> bool {
        let shared = &self.0;
        let (time, (asleep_min, _)) = now.parts();
        // The latest value is read first, because it is written last.
        let is_awake = nanos(asleep_min) <= shared.asleep.load(Ordering::SeqCst);
        is_awake
            && nanos(time) < shared.until.load(Ordering::SeqCst)
            && shared.ended.get().is_none()
    }

    /// Returns why the authority has [ended](Self::end); `None` while it has not.
    #[must_use]
    pub fn end_reason(&self) -> Option<&str> {
        self.ended().map(|end| &*end.reason)
    }

    pub(crate) fn ended(&self) -> Option<&End> {
        self.0.ended.get()
    }

    /// Has the server woken when the authority ends, and when it is extended after [`await_extension`](Self::await_extension).
    pub(crate) fn set_waker(&self, waker: Waker) {
        let mut slot = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(waker);
    }

    /// The server is woken by the next extension, unless the authority is valid now: then it returns true.
    pub(crate) fn await_extension(&self, now: impl FnOnce() -> Moment) -> bool {
        self.0.is_awaited.store(true, Ordering::SeqCst);
        self.is_valid(now())
    }

    fn wake(&self) {
        let slot = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner);
        let waker = slot.clone();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("is_valid", &self.is_valid(Moment::now()))
            .field("end_reason", &self.end_reason())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_lasts_until_the_latest_time_and_never_after_its_end() {
        let authority = Authority::none();
        let start = Moment::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!authority.is_valid(start));
        authority.extend(at(3));
        authority.extend(at(2));
        assert!(authority.is_valid(at(2)));
        assert!(!authority.is_valid(at(3)));
        authority.withdraw();
        assert!(!authority.is_valid(at(1)));
        authority.extend(at(3));
        assert!(authority.is_valid(at(1)));
        authority.end("another process leads");
        authority.end("later");
        authority.extend(at(9));
        assert!(!authority.is_valid(at(1)));
        assert_eq!(authority.end_reason(), Some("another process leads"));
    }

    #[test]
    fn it_ends_when_the_machine_was_suspended_until_the_engine_has_asked_again() {
        let clocks = |awake, time| {
            Moment::from_clocks(Duration::from_millis(awake), Duration::from_millis(time))
        };
        let ttl = Duration::from_millis(1800);
        let authority = Authority::none();
        authority.extend(clocks(1000, 5000) + ttl);
        assert!(authority.is_valid(clocks(1100, 5100)));
        // Suspended for 300 ms; and for longer than the lease.
        for (awake, time) in [(1100, 5400), (1100, 9000)] {
            assert!(!authority.is_valid(clocks(awake, time)));
        }
        // Asked before, answered afterwards.
        authority.extend(clocks(1050, 5050) + ttl);
        assert!(!authority.is_valid(clocks(1100, 5400)));
        authority.extend(clocks(1100, 5400) + ttl);
        assert!(authority.is_valid(clocks(2000, 6300)));
        assert!(!authority.is_valid(clocks(3000, 7300)));
    }

    #[test]
    fn an_extension_wakes_only_a_server_that_awaits_it() {
        let authority = Authority::none();
        let count = Arc::new(Count::default());
        authority.set_waker(Arc::clone(&count).into());
        let woken = || count.0.load(Ordering::Relaxed);
        let start = Moment::now();
        let later = start + Duration::from_secs(60);
        authority.extend(later);
        assert_eq!(woken(), 0);
        assert!(authority.await_extension(|| start));
        authority.withdraw();
        assert!(!authority.await_extension(|| start));
        authority.extend(later);
        authority.extend(later);
        assert_eq!(woken(), 1);
        authority.end("it");
        assert_eq!(woken(), 2);
    }
}
