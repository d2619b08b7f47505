//! Carries out the search for the server that leads: the only way to reach a store that moves.

use std::error::Error;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::Instant;

use c10d_socket::{Cancel, Deadline, Process, sleep};

use crate::address::{DataLost, Leader, Lookup};
use crate::leader_search::{LOOKUP_INTERVAL, LeaderSearch, Step, is_other};

/// The error of a search that has reached no leading server.
#[derive(Debug)]
pub enum NotReached<E> {
    /// The directory did not answer.
    Lookup(Box<dyn Error + Send + Sync>),
    /// The directory reports that no process will serve the store.
    DataLost(DataLost),
    /// The directory names no server.
    NoLeader,
    /// The last attempt failed, at the server that the directory names.
    Attempt(E),
    /// The caller's [`Cancel`] has interrupted the search.
    Cancelled,
}

/// Reaches the server that leads: looks it up, makes an `attempt` to use it, and repeats both until an attempt succeeds or
/// fails with an error that `may_repeat` rejects, until the directory reports [`DataLost`], or until the deadline. While an
/// attempt lasts, the directory is asked every second. When it names another server, the attempt is cancelled, and an attempt to
/// use that server follows at once. So a stopped or isolated server delays the caller by at most a second after the takeover.
///
/// Blocks until the deadline at most. With a deadline that has passed, makes one lookup and one attempt without waiting. An
/// attempt gets the server, its deadline, and its [`Cancel`]. The thread `c10d-lookup`, which is joined, asks the directory
/// while the attempt lasts.
///
/// # Errors
/// [`NotReached`], of the last lookup or attempt.
pub fn at_leader<T, E: fmt::Display>(
    lookup: &Arc<dyn Lookup>,
    search: &mut LeaderSearch,
    deadline: Deadline,
    cancel: &Cancel,
    mut attempt: impl FnMut(&Leader, Deadline, &Cancel) -> Result<T, E>,
    may_repeat: impl Fn(&E) -> bool,
) -> Result<T, NotReached<E>> {
    let mut last = NotReached::NoLeader;
    search.start();
    loop {
        if cancel.is_cancelled() {
            return Err(NotReached::Cancelled);
        }
        match search.step(Instant::now(), deadline) {
            Step::LookUp { by } => {
                let found = match lookup.leader(by, cancel) {
                    Ok(Some(leader)) => Some(leader),
                    Ok(None) => {
                        last = NotReached::NoLeader;
                        None
                    }
                    Err(error) => match error.downcast() {
                        Ok(lost) => return Err(NotReached::DataLost(*lost)),
                        Err(error) => {
                            last = NotReached::Lookup(error);
                            None
                        }
                    },
                };
                search.looked_up(found, Instant::now());
            }
            Step::Try { leader, by } => {
                let (result, other) = with_any([cancel], |ends| {
                    watched(lookup, &leader, by, ends, |by| attempt(&leader, by, ends))
                });
                match result {
                    Ok(reached) => {
                        search.reached();
                        return Ok(reached);
                    }
                    Err(error) if other.is_none() && !may_repeat(&error) => {
                        return Err(NotReached::Attempt(error));
                    }
                    Err(error) => {
                        let (name, at) = (lookup.name(), &leader.address);
                        log::debug!("the store {name} is not reached at {at} yet: {error}");
                        last = NotReached::Attempt(error);
                        search.failed(other, Instant::now());
                    }
                }
            }
            Step::Pause { until } => {
                let pause = until.saturating_duration_since(Instant::now());
                // The next round looks why it has ended.
                let _ = sleep(pause, [cancel]);
            }
            Step::GiveUp => return Err(last),
        }
    }
}

/// Makes the attempt, which `ends` interrupts, while the directory is asked beside. When the directory names another server,
/// cancels `ends`, and returns that server.
fn watched<T>(
    lookup: &Arc<dyn Lookup>,
    tried: &Leader,
    by: Deadline,
    ends: &Cancel,
    attempt: impl FnOnce(Deadline) -> T,
) -> (T, Option<Leader>) {
    let done = Cancel::new();
    let watching = {
        let (lookup, tried) = (Arc::clone(lookup), tried.clone());
        let (ends, done) = (ends.clone(), done.clone());
        move || {
            while sleep(LOOKUP_INTERVAL, [&done]).is_ok() {
                let found = lookup.leader(by, &done).ok().flatten();
                if let Some(other) = found.filter(|found| is_other(&tried, found)) {
                    ends.cancel();
                    return Some(other);
                }
            }
            None
        }
    };
    let process = Process::this();
    let watcher = thread::Builder::new()
        .name("c10d-lookup".to_owned())
        .spawn(watching)
        .inspect_err(|error| log::debug!("cannot ask the directory beside: {error}"));
    let by = match watcher {
        Ok(_) => by,
        Err(_) => by.min(Deadline::after(Instant::now(), LOOKUP_INTERVAL)),
    };
    let result = attempt(by);
    if !process.is_this() {
        // A check of the caller's has forked: this child has no such thread.
        mem::forget(watcher);
        return (result, None);
    }
    done.cancel();
    let other = watcher
        .ok()
        .and_then(|watcher| watcher.join().unwrap_or_default());
    (result, other)
}

/// Makes a call with a [`Cancel`] that ends it when one of `cancels` does. It can also be cancelled itself.
pub(crate) fn with_any<const N: usize, T>(
    cancels: [&Cancel; N],
    call: impl FnOnce(&Cancel) -> T,
) -> T {
    let owned = cancels.map(Cancel::clone);
    let any = Cancel::with_check(move || owned.iter().any(Cancel::is_cancelled));
    let mut watches = cancels.map(Cancel::watch);
    for watch in &mut watches {
        // Leaves the waker only. The call asks.
        let _ = watch.ask(|| Waker::from(Arc::new(Wakes(any.clone()))));
    }
    call(&any)
}

/// Wakes those that wait on it.
struct Wakes(Cancel);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}
