//! Connections without an accepted request yet, in the order in which they make room for others.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Connections that have not sent a request with the password, if the server has one. Such a connection costs nothing
/// to make, so it must not keep out one that has.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// In the order of their arrival; some have left, or are no newcomers any more.
    entries: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    is_accepted: Rc<Cell<bool>>,
    task: AbortHandle,
    arrived: Instant,
}

impl Entry {
    fn is_newcomer(&self) -> bool {
        !self.is_accepted.get() && !self.task.is_finished()
    }
}

impl Newcomers {
    /// Adds a connection, whose task sets `is_accepted` with its first accepted request. `connections_max` is how many
    /// the server has.
    pub(super) fn add(
        &mut self,
        is_accepted: Rc<Cell<bool>>,
        task: AbortHandle,
        connections_max: usize,
    ) {
        if self.entries.len() >= 2 * connections_max {
            self.entries.retain(Entry::is_newcomer);
        }
        self.entries.push_back(Entry {
            is_accepted,
            task,
            arrived: Instant::now(),
        });
    }

    /// When the oldest one arrived.
    pub(super) fn oldest_arrived(&mut self) -> Option<Instant> {
        while self.entries.front().is_some_and(|it| !it.is_newcomer()) {
            self.entries.pop_front();
        }
        self.entries.front().map(|oldest| oldest.arrived)
    }

    /// Ends the oldest one. Returns whether there is one.
    pub(super) fn end_oldest(&mut self) -> bool {
        while let Some(entry) = self.entries.pop_front() {
            if entry.is_newcomer() {
                entry.task.abort();
                return true;
            }
        }
        false
    }
}
