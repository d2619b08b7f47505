//! The threads that read and write one connection, and the events that the poller watches it for.
//!
//! Reading and writing happen without a lock: a thread takes the decoder or a batch out, and gives it back. A thread
//! that finds it taken leaves a note to the thread that has it. A caller that waits for an answer may borrow the
//! connection from the poller, which saves waking a second thread for the answer.

use std::io;
use std::net::SocketAddr;

use super::incoming::Incoming;

/// One of the connections that a [`Peer`](super::Peer) has had, numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConnectionId(pub(super) u64);

/// The events that the poller watches a socket for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Watch {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// A connection in use. `S` is the shell's handle of its socket.
pub(crate) struct Connection<S> {
    pub(super) id: ConnectionId,
    pub(crate) socket: S,
    pub(super) address: SocketAddr,
    reader: Reader,
    pub(super) writer: Writer,
    /// Why a write has failed.
    pub(super) write_failure: Option<io::Error>,
    waiter: Waiter,
    /// The poller has reported the end of the stream, perhaps with the event of its last byte: no further event will.
    pub(crate) is_read_closed: bool,
    pub(super) watched: Watch,
}

/// The thread that has the decoder.
enum Reader {
    /// There is no reading thread. Events start a read.
    Idle(Box<Incoming>),
    /// One is reading.
    Busy {
        /// More bytes have arrived in the meantime: the thread reads again before it stops.
        again: bool,
    },
}

/// The thread that has the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    Idle,
    /// A thread is writing, and will also send messages that are queued in the meantime.
    Busy,
    /// There is no writing thread: the socket takes no more bytes until it is writable.
    Blocked,
    /// There is no writing thread: the connection is over once all received bytes are read.
    Failed,
}

/// The thread that waits for the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiter {
    Poller,
    /// A caller that waits for its answer, instead of the poller.
    Caller {
        /// Whether it also waits until the socket is writable.
        for_output: bool,
    },
}

/// The party for which a thread reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reads {
    ForPoller,
    ForCaller,
}

/// The next step of a reading thread.
pub(crate) enum ReadNext {
    /// Stop: the decoder was taken back.
    Stop,
    /// More bytes have arrived: continue to read. `to_end` is described at [`Connection::take_reader`].
    Again {
        decoder: Box<Incoming>,
        to_end: bool,
    },
}

impl<S> Connection<S> {
    pub(super) fn new(id: ConnectionId, socket: S, address: SocketAddr, decoder: Incoming) -> Self {
        Self {
            id,
            socket,
            address,
            reader: Reader::Idle(Box::new(decoder)),
            writer: Writer::Idle,
            write_failure: None,
            waiter: Waiter::Poller,
            is_read_closed: false,
            watched: Watch::default(),
        }
    }

    /// Gives the decoder to a thread that is to read, and whether the end of the stream was reported: then a short
    /// read does not mean that no more bytes will arrive. `None` when another thread reads.
    pub(crate) fn take_reader(&mut self, reads: Reads) -> Option<(Box<Incoming>, bool)> {
        if self.waiter != Waiter::Poller && reads == Reads::ForPoller {
            // An event from before the connection was lent. Reading now would take the answer from the caller that
            // waits for the socket.
            return None;
        }
        match &mut self.reader {
            Reader::Busy { again } => {
                *again = true;
                None
            }
            reader @ Reader::Idle(_) => {
                let Reader::Idle(decoder) =
                    std::mem::replace(reader, Reader::Busy { again: false })
                else {
                    return None;
                };
                Some((decoder, self.is_read_closed))
            }
        }
    }

    /// Takes the decoder back from a thread that has read all there was (`is_drained`), or gave way to others.
    pub(crate) fn give_back_reader(
        &mut self,
        decoder: Box<Incoming>,
        is_drained: bool,
    ) -> ReadNext {
        if let Reader::Busy { again } = &mut self.reader
            && std::mem::take(again)
            && is_drained
        {
            return ReadNext::Again {
                decoder,
                to_end: self.is_read_closed,
            };
        }
        self.reader = Reader::Idle(decoder);
        ReadNext::Stop
    }

    /// Lends the connection to a caller that waits for an answer. Fails while another caller has it or a thread
    /// reads.
    pub(super) fn lend(&mut self) -> bool {
        let is_free = self.waiter == Waiter::Poller && matches!(self.reader, Reader::Idle(_));
        if is_free {
            self.waiter = Waiter::Caller { for_output: false };
        }
        is_free
    }

    /// Returns, before the borrowing caller waits, whether it must also wait until the socket is writable.
    pub(crate) fn waits_for_output(&mut self) -> bool {
        let for_output = self.writer == Writer::Blocked;
        self.waiter = Waiter::Caller { for_output };
        for_output
    }

    /// Takes the connection back from the caller.
    pub(crate) fn end_lending(&mut self) {
        self.waiter = Waiter::Poller;
    }

    /// The new events for the poller to watch, if they change: before and after.
    pub(super) fn watch_change(&mut self) -> Option<(Watch, Watch)> {
        let is_lent_for_output = self.waiter == Waiter::Caller { for_output: true };
        let wanted = Watch {
            readable: self.waiter == Waiter::Poller,
            writable: self.writer == Writer::Blocked && !is_lent_for_output,
        };
        let before = std::mem::replace(&mut self.watched, wanted);
        (before != wanted).then_some((before, wanted))
    }
}
