//! Until when a server may answer, for a journal that several processes may serve, one at a time.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

/// The right to answer of the process that leads. Clones share it: the engine extends it, the server checks it.
///
/// An engine takes the time before it asks, and extends the authority once the answer has confirmed that this process
/// leads: until a time at which no other process can lead, less a margin. The server checks it before each write to a socket, so
/// the margin must cover the time of one system call. The system's monotonic clock stands still while the machine is
/// suspended, so an engine must not rely on this one where machines are.
#[derive(Clone)]
pub struct Authority(Arc<Shared>);

struct Shared {
    made: Instant,
    /// In nanoseconds since `made`; 0 if there is none.
    until: AtomicU64,
    /// Why there is never any again.
    ended: OnceLock<End>,
    /// The server has found it passed.
    is_awaited: AtomicBool,
    /// Of the server.
    waker: Mutex<Option<Waker>>,
}

/// Why there is never any authority again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) reason: String,
    /// The engine has lost what it had kept: no other process leads.
    pub(crate) is_damage: bool,
}

impl Authority {
    /// One that is still to be [extended](Self::extend): the server answers nothing.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(Shared {
            made: Instant::now(),
            until: AtomicU64::new(0),
            ended: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            waker: Mutex::default(),
        }))
    }

    /// The server may answer until then. An earlier time than before changes nothing. Does not block.
    pub fn extend(&self, until: Instant) {
        let shared = &self.0;
        shared.until.fetch_max(self.nanos(until), Ordering::SeqCst);
        if shared.is_awaited.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Another process leads, or may: the server stops, without a word to its clients. Does not block.
    pub fn end(&self, reason: impl Into<String>) {
        self.end_as(End {
            reason: reason.into(),
            is_damage: false,
        });
    }

    /// What the engine has kept is not what was written: the server stops with
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

    /// Nothing is answered until the authority is extended again: there is doubt, as a peer has seen a later run of the
    /// store. Does not block.
    pub fn withdraw(&self) {
        self.0.until.store(0, Ordering::SeqCst);
    }

    /// Whether the server may answer at this moment.
    #[must_use]
    pub fn is_valid(&self, now: Instant) -> bool {
        let shared = &self.0;
        self.nanos(now) < shared.until.load(Ordering::SeqCst) && shared.ended.get().is_none()
    }

    /// Why it has [ended](Self::end).
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
    pub(crate) fn await_extension(&self, now: impl FnOnce() -> Instant) -> bool {
        self.0.is_awaited.store(true, Ordering::SeqCst);
        self.is_valid(now())
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.0.made);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
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

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("is_valid", &self.is_valid(Instant::now()))
            .field("end_reason", &self.end_reason())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

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
        let start = Instant::now();
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
    fn an_extension_wakes_only_a_server_that_awaits_it() {
        let authority = Authority::none();
        let count = Arc::new(Count::default());
        authority.set_waker(Arc::clone(&count).into());
        let woken = || count.0.load(Ordering::Relaxed);
        let start = Instant::now();
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
