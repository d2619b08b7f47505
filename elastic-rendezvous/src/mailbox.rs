//! The messages from a handler to its loop. In a group a message also ends the loop's wait on the store.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::RendezvousError;
use crate::goal::{Answer, Goal};
use crate::group_store::GroupStore;
use crate::watcher::Found;

/// A message to the loop.
#[derive(Debug)]
pub(crate) enum Message {
    Run(Job),
    /// The number and the result of a request to the watcher.
    Found(u64, Found),
    Interrupt,
    /// The handler has agreed with the others on the workers' store, or failed, and waits on the store no longer.
    Settled,
    Stop,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) goal: Goal,
    pub(crate) reply: Sender<Result<Answer, RendezvousError>>,
}

/// The handler's end.
#[derive(Debug)]
pub(crate) struct Mailbox {
    sender: Sender<Message>,
    bell: Arc<Bell>,
}

/// The loop's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<Message>,
    bell: Arc<Bell>,
}

/// Ends a wait of the loop on the store.
#[derive(Debug)]
struct Bell {
    group: Option<GroupStore>,
    state: Mutex<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    No,
    /// In a join, which an interrupt ends.
    ToJoin(ThreadId),
    Otherwise(ThreadId),
    /// The store was interrupted.
    Rung,
}

/// Creates both ends. With a group, a message interrupts the waits that the loop [announces](Inbox::wait).
pub(crate) fn open_mailbox(group: Option<&GroupStore>) -> (Mailbox, Inbox) {
    let (sender, receiver) = channel();
    let bell = Arc::new(Bell {
        group: group.cloned(),
        state: Mutex::new(Waiting::No),
    });
    let mailbox = Mailbox {
        sender,
        bell: Arc::clone(&bell),
    };
    (mailbox, Inbox { receiver, bell })
}

impl Mailbox {
    /// Never blocks.
    pub(crate) fn send(&self, message: Message) -> Result<(), SendError<Message>> {
        let ends_only_joins = matches!(message, Message::Interrupt);
        self.sender.send(message)?;
        self.bell.ring(ends_only_joins);
        Ok(())
    }

    /// A sender that ends no wait, for a loop without a group.
    pub(crate) fn sender(&self) -> Sender<Message> {
        self.sender.clone()
    }
}

impl Inbox {
    /// Waits for a message for at most `timeout`; `None` is unlimited.
    pub(crate) fn receive(&self, timeout: Option<Duration>) -> Result<Message, RecvTimeoutError> {
        match timeout {
            None => {
                let received = self.receiver.recv();
                received.map_err(|_| RecvTimeoutError::Disconnected)
            }
            Some(timeout) => self.receiver.recv_timeout(timeout),
        }
    }

    pub(crate) fn try_receive(&self) -> Result<Message, TryRecvError> {
        self.receiver.try_recv()
    }

    /// Calls `wait`, which waits on the group's store, unless there is a message; then returns that. A message that
    /// arrives meanwhile interrupts the store: the second result is true.
    pub(crate) fn wait<T>(
        &self,
        is_join: bool,
        wait: impl FnOnce() -> T,
    ) -> Result<(T, bool), Message> {
        let this = thread::current().id();
        self.bell.set(if is_join {
            Waiting::ToJoin(this)
        } else {
            Waiting::Otherwise(this)
        });
        // A message that was sent before has interrupted nothing.
        let result = self.receiver.try_recv().map_or_else(|_| Ok(wait()), Err);
        let was_rung = self.bell.set(Waiting::No) == Waiting::Rung;
        result.map(|result| (result, was_rung))
    }
}

impl Bell {
    /// Returns the value before.
    fn set(&self, waiting: Waiting) -> Waiting {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut state, waiting)
    }

    fn ring(&self, only_joins: bool) {
        let Some(group) = &self.group else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = match *state {
            Waiting::ToJoin(thread) => thread,
            Waiting::Otherwise(thread) if !only_joins => thread,
            Waiting::No | Waiting::Rung | Waiting::Otherwise(_) => return,
        };
        *state = Waiting::Rung;
        // Does not block. An interrupt without a wait would end a later one.
        group.interrupt(thread);
    }
}
