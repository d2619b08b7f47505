//! The thread that waits for the journal of a standby server, which can take days.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use c10d_socket::Cancel;
use mio::Waker;

use super::recover::OpenJournal;
use crate::groups::NewGroups;
use crate::journal::{JournalError, JournalSource};

type Outcome = Result<Box<OpenJournal>, JournalError>;

/// The server's side. Dropping it cancels the wait.
#[derive(Debug)]
pub(super) struct Standby {
    cancel: Cancel,
    outcome: Arc<Mutex<Option<Outcome>>>,
    thread: Option<JoinHandle<()>>,
}

impl Standby {
    /// `waker` wakes the event loop once there is an outcome.
    pub(super) fn start(
        source: JournalSource,
        groups: Option<NewGroups>,
        waker: Arc<Waker>,
    ) -> io::Result<Self> {
        let cancel = Cancel::new();
        let outcome = Arc::new(Mutex::new(None));
        let (of_thread, written) = (cancel.clone(), Arc::clone(&outcome));
        let thread = thread::Builder::new()
            .name("c10d-standby".to_owned())
            .spawn(move || {
                let result = OpenJournal::recover(&source, groups, &of_thread).map(Box::new);
                *written.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                if let Err(error) = waker.wake() {
                    log::error!("cannot wake a standby store server to lead: {error}");
                }
            })?;
        Ok(Self {
            cancel,
            outcome,
            thread: Some(thread),
        })
    }

    /// The journal, once this process leads, or why it never will.
    pub(super) fn take_outcome(&mut self) -> Option<Outcome> {
        let outcome = self.outcome.lock();
        let outcome = outcome.unwrap_or_else(PoisonError::into_inner).take();
        if outcome.is_some() {
            // The open journal continues with it.
            self.cancel = Cancel::NEVER;
        }
        outcome
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.cancel.cancel();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of a standby store server panicked");
        }
    }
}
