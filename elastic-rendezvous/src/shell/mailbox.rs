//! The messages from a handler to its loop. A message also interrupts the loop's wait on the store.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d_socket::Cancel;

use crate::values::error::RendezvousError;
use crate::values::goal::{Answer, Goal};

/// A message to the loop.
#[derive(Debug)]
pub(crate) enum Message {
    Run(Job),
    Interrupt,
    /// The handler has agreed with the other nodes on the workers' store, or has failed, so it no longer waits on
    /// the store.
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
#[derive(Debug, Default)]
struct Bell(Mutex<Option<Waiting>>);

#[derive(Debug)]
struct Waiting {
    cancel: Cancel,
    /// An interrupt ends only joins.
    is_join: bool,
}

/// Creates both ends of a mailbox. A message interrupts the waits that the loop
/// [announces](Inbox::wait).
pub(crate) fn open_mailbox() -> (Mailbox, Inbox) {
    let (sender, receiver) = channel();
    let bell = Arc::<Bell>::default();
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

    /// Calls `wait` unless there is a message; then returns the message. A message that arrives during the wait
    /// interrupts it.
    pub(crate) fn wait<T>(
        &self,
        is_join: bool,
        wait: impl FnOnce(&Cancel) -> T,
    ) -> Result<T, Message> {
        let cancel = Cancel::new();
        self.bell.set(Some(Waiting {
            cancel: cancel.clone(),
            is_join,
        }));
        // A message that was sent before has ended nothing.
        let received = self.receiver.try_recv();
        let result = received.map_or_else(|_| Ok(wait(&cancel)), Err);
        self.bell.set(None);
        result
    }
}

impl Bell {
    fn set(&self, waiting: Option<Waiting>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    fn ring(&self, only_joins: bool) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = waiting.as_ref().filter(|it| it.is_join || !only_joins);
        let cancel = ends.map(|it| it.cancel.clone());
        drop(waiting);
        if let Some(cancel) = cancel {
            cancel.cancel();
        }
    }
}
