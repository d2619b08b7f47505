//! Connections, threads and servers belong to the process that made them.
//!
//! A handle remembers its [`Process`] and compares it with the present one before each use. The comparison has to cost
//! next to nothing, because every call and every dropped reference makes it: it is a load of [`THIS`], which a handler
//! of pthread_atfork(3) changes in a forked child. Comparing process ids would be a system call each time (100 to 250 ns,
//! as much as queueing a call), and a grandchild can have the id of its grandparent. Children of a bare clone(2) are not
//! recognised: the C library's own threads and locks do not survive that either.

use std::fmt;
use std::mem;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::call_in_forked_children;

/// This process: the number of forks that led to it, and its id in the lower half. 0 before the first use.
static THIS: AtomicU64 = AtomicU64::new(0);

/// The identity of a process, to compare with the calling process: they differ in a forked child. Costs as much as a
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(u64);

impl Process {
    /// Returns the calling process.
    #[must_use]
    pub fn this() -> Self {
        match THIS.load(Ordering::Relaxed) {
            0 => Self::first(),
            this => Self(this),
        }
    }

    /// Returns whether this is the calling process.
    #[must_use]
    pub fn is_this(self) -> bool {
        self.check().is_ok()
    }

    /// Fails in a forked child of this process.
    ///
    /// # Errors
    /// [`OtherProcess`], which names both.
    pub fn check(self) -> Result<(), OtherProcess> {
        match Self::this() {
            this if this == self => Ok(()),
            this => Err(OtherProcess {
                owner: self.id(),
                process: this.id(),
            }),
        }
    }

    #[cold]
    fn first() -> Self {
        let this = u64::from(process::id());
        // Two threads at a time may register it twice, which only counts forks twice. Without a registration, which takes
        // memory, the ids are compared.
        if call_in_forked_children(forked) {
            // Unless a fork or another thread was faster.
            let _ = THIS.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
        }
        Self(this)
    }

    const fn id(self) -> u32 {
        (self.0 & u32::MAX as u64) as u32
    }
}

/// Runs in a forked child, before any other code of it.
extern "C" fn forked() {
    let forks = (THIS.load(Ordering::Relaxed) >> 32).wrapping_add(1);
    THIS.store(forks << 32 | u64::from(process::id()), Ordering::Relaxed);
}

/// A value that only the process that made it uses and drops. Clones belong to the same process.
///
/// A forked child has a copy: its sockets are the parent's, its threads do not exist, and its locks may be held by
/// them. So the child gets [`OtherProcess`] instead of the value, and forgets its copy without dropping it.
///
/// ```
/// use c10d_socket::ProcessBound;
///
/// let bound = ProcessBound::new(String::from("a handle"));
/// assert_eq!(bound.get()?, "a handle"); // an error in a forked child
/// # Ok::<(), c10d_socket::OtherProcess>(())
/// ```
#[derive(Debug, Clone)]
pub struct ProcessBound<T> {
    process: Process,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> ProcessBound<T> {
    /// Binds `value` to this process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self {
            process: Process::this(),
            value: Some(value),
        }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// [`OtherProcess`] in a forked child of the process that made the value.
    pub fn get(&self) -> Result<&T, OtherProcess> {
        self.process.check()?;
        Ok(self.get_anywhere())
    }

    /// Takes the value out; `None` in a forked child.
    #[must_use]
    pub fn into_inner(mut self) -> Option<T> {
        self.process.check().ok()?;
        self.value.take()
    }

    /// Returns the value in any process: for its parts that never change, such as a name, and that need no lock.
    pub fn get_anywhere(&self) -> &T {
        self.value.as_ref().expect("it is not dropped yet")
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            mem::forget(self.value.take());
        }
    }
}

/// A forked child used a handle that its parent had opened. The call had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherProcess {
    owner: u32,
    process: u32,
}

impl fmt::Display for OtherProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, process } = self;
        write!(
            f,
            "process {owner} opened it, and its forked child {process} cannot use it: open a new one after the fork"
        )
    }
}

impl std::error::Error for OtherProcess {}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn the_process_that_made_a_value_uses_and_drops_it() {
        let value = Rc::new(7);
        let bound = ProcessBound::new(Rc::clone(&value));
        let clone = bound.clone();
        assert_eq!(**clone.get().expect("of this process"), 7);
        drop((bound, clone));
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn another_process_neither_uses_nor_drops_it() {
        let value = Rc::new(7);
        let mut bound = ProcessBound::new(Rc::clone(&value));
        // As if this process were forked from one with the id 5.
        bound.process = Process(5);
        let clone = bound.clone();
        let refused = clone.get().expect_err("of another process").to_string();
        let this = process::id();
        let expected = format!("process 5 opened it, and its forked child {this} cannot use it");
        assert!(refused.starts_with(&expected), "{refused}");
        assert_eq!(**bound.get_anywhere(), 7);
        drop((bound, clone));
        assert_eq!(Rc::strong_count(&value), 3);
    }
}
