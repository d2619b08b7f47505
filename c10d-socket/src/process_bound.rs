//! Connections, threads and servers belong to the process that made them.

use std::fmt;
use std::mem;
use std::process;

/// A value that only the process that made it uses and drops.
///
/// A forked child has a copy: its sockets are the parent's, its threads do not exist, and its locks may be held by
/// them. So the child gets [`OtherProcess`] instead of the value, and forgets its copy without dropping it.
#[derive(Debug)]
pub struct ProcessBound<T> {
    process: u32,
    what: &'static str,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> ProcessBound<T> {
    /// Binds `value` to this process. Errors call it `what`, such as `store`.
    pub fn new(what: &'static str, value: T) -> Self {
        Self {
            process: process::id(),
            what,
            value: Some(value),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// In a forked child of the process that made it.
    pub fn get(&self) -> Result<&T, OtherProcess> {
        let process = process::id();
        match &self.value {
            Some(value) if self.process == process => Ok(value),
            _ => Err(OtherProcess {
                what: self.what,
                owner: self.process,
                process,
            }),
        }
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(self.value.take());
        }
    }
}

/// A forked child used a value of its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherProcess {
    what: &'static str,
    owner: u32,
    process: u32,
}

impl fmt::Display for OtherProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            owner,
            process,
        } = self;
        write!(
            f,
            "process {owner} opened this {what}, and its forked child {process} cannot use it: open another one after \
             the fork"
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
        let bound = ProcessBound::new("store", Rc::clone(&value));
        assert_eq!(**bound.get().expect("of this process"), 7);
        drop(bound);
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn another_process_neither_uses_nor_drops_it() {
        let value = Rc::new(7);
        let mut bound = ProcessBound::new("store", Rc::clone(&value));
        // A process without an id: as if this one were forked.
        bound.process = 0;
        let refused = bound.get().expect_err("of another process").to_string();
        let this = process::id();
        let expected =
            format!("process 0 opened this store, and its forked child {this} cannot use it");
        assert!(refused.starts_with(&expected), "{refused}");
        drop(bound);
        assert_eq!(Rc::strong_count(&value), 2);
    }
}
