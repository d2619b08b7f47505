//! Carries out the orders of trials: moves bytes and keeps the time. The meaning of the bytes is in `trial`.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use c10d_socket::{
    Cancel, ConnectError, ConnectOptions, Deadline, HostPort, connect, sleep, wait_for_input,
};

use crate::column::Column;
use crate::fence::{Exchange, fence, handshake, reset};
use crate::script::Script;
use crate::trial::{Event, Order, Trial};
use crate::verdict::Verdict;

/// A server answers at once. More than this, on a busy machine, is a hang.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// A server that answers no client for this long does not only look up a name: PyTorch's servers do so for each
/// connection, and wait 5 s for a name server that has lost the query.
const STALL_TIME_MAX: Duration = Duration::from_secs(6);

const NO_TIME: &str = "no time was left";

const READ_BYTES: usize = 1 << 16;

/// The settings that the workers of a run share.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) target: HostPort,
    pub(crate) column: Column,
    /// A key that no case uses.
    pub(crate) fence_key: String,
    /// The deadline of all waits.
    pub(crate) deadline: Deadline,
}

/// One thread's connections. Cases share them one after the other, since a connection is what costs a server most.
#[derive(Debug)]
pub(crate) struct Worker<'r> {
    setting: &'r Setting,
    fence: Exchange,
    idle: Vec<TcpStream>,
    /// A connection that only checks whether the server answers any client.
    witness: Option<TcpStream>,
}

impl<'r> Worker<'r> {
    pub(crate) fn new(setting: &'r Setting) -> Self {
        let mut worker = Self {
            setting,
            fence: fence(setting.column, &setting.fence_key),
            idle: Vec::new(),
            witness: None,
        };
        let witness = worker.connect().ok();
        let hello = handshake(&worker.fence);
        worker.witness = witness.filter(|it| worker.is_answered(it, &hello, STALL_TIME_MAX));
        worker
    }

    /// Whether the server has answered the witness so far.
    pub(crate) fn is_answered_at_all(&self) -> bool {
        self.witness.is_some()
    }

    /// Plays a script to its end. If `is_tidy`, the next script can use the same connections.
    pub(crate) fn play(&mut self, script: &Script, is_tidy: bool) -> Verdict {
        if self.setting.deadline.has_passed(Instant::now()) {
            return Verdict::NotRun {
                why: NO_TIME.to_owned(),
            };
        }
        let mut trial = Trial::new(script, &self.fence);
        let mut open: HashMap<usize, TcpStream> = HashMap::new();
        let mut event = Event::Done;
        let verdict = loop {
            event = match trial.next(event) {
                Order::End(verdict) => break verdict,
                Order::Open(number, has_handshake) => {
                    match self.idle.pop().filter(|_| has_handshake) {
                        Some(connection) => {
                            open.insert(number, connection);
                            Event::Reused
                        }
                        None => match self.connect() {
                            Ok(connection) => {
                                open.insert(number, connection);
                                Event::Done
                            }
                            Err(error) => Event::Refused(error.to_string()),
                        },
                    }
                }
                Order::Close(number) => {
                    open.remove(&number);
                    Event::Done
                }
                Order::Release(number) => {
                    if let Some(connection) = open.remove(&number) {
                        self.release(connection);
                    }
                    Event::Done
                }
                Order::Pause(pause) => match sleep(pause, []) {
                    Ok(()) => Event::Done,
                    Err(error) => Event::Refused(error.to_string()),
                },
                Order::Send(number, bytes) => match open.get(&number) {
                    Some(connection) => self.write(connection, bytes),
                    None => Event::Ended,
                },
                Order::Read(number) => match open.get(&number) {
                    Some(connection) => self.read(connection),
                    None => Event::Ended,
                },
                Order::Watch(number, time) => match open.get(&number) {
                    Some(connection) => self.watch(connection, time),
                    None => Event::Ended,
                },
            };
        };
        if is_tidy && verdict == Verdict::Same {
            open.into_values().for_each(|it| self.release(it));
        }
        verdict
    }

    fn connect(&self) -> Result<TcpStream, ConnectError> {
        let deadline = Deadline::after(Instant::now(), ANSWER_TIME_MAX).min(self.setting.deadline);
        let options = ConnectOptions::default().with_rounds_max(1);
        let connection = connect(&self.setting.target, &options, deadline)?;
        // Fails only for a time of zero.
        let _ = connection.set_write_timeout(Some(ANSWER_TIME_MAX));
        Ok(connection)
    }

    fn write(&self, mut connection: &TcpStream, mut bytes: &[u8]) -> Event {
        while !bytes.is_empty() {
            if self.setting.deadline.has_passed(Instant::now()) {
                return Event::Refused(NO_TIME.to_owned());
            }
            match connection.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Event::Silent,
                // A broken connection shows at the next read, behind the last bytes of the server.
                Err(_) => break,
            }
        }
        Event::Done
    }

    /// Keeps a connection for the next case, if nothing is under way on it.
    fn release(&mut self, connection: TcpStream) {
        if self.is_answered(&connection, &reset(&self.fence), ANSWER_TIME_MAX) {
            self.idle.push(connection);
        }
    }

    fn read(&mut self, connection: &TcpStream) -> Event {
        received(connection, self.wait_for_input(connection))
    }

    fn watch(&self, connection: &TcpStream, time: Duration) -> Event {
        received(connection, wait_for_input(connection, time, &Cancel::NEVER))
    }

    /// The time in which the server answers no client does not count.
    fn wait_for_input(&mut self, connection: &TcpStream) -> io::Result<bool> {
        let deadline = self.setting.deadline;
        let left = |limit: Duration| {
            Deadline::after(Instant::now(), limit)
                .min(deadline)
                .remaining(Instant::now())
        };
        if wait_for_input(connection, left(ANSWER_TIME_MAX), &Cancel::NEVER)? {
            return Ok(true);
        }
        let witness = self.witness.take();
        self.witness = witness.filter(|it| self.is_answered(it, &self.fence, STALL_TIME_MAX));
        let has_input = wait_for_input(connection, left(ANSWER_TIME_MAX / 4), &Cancel::NEVER)?;
        match !has_input && deadline.has_passed(Instant::now()) {
            true => Err(io::Error::other(NO_TIME)),
            false => Ok(has_input),
        }
    }

    fn is_answered(&self, connection: &TcpStream, exchange: &Exchange, limit: Duration) -> bool {
        let deadline = Deadline::after(Instant::now(), limit).min(self.setting.deadline);
        let mut stream = connection;
        let mut reply = Vec::new();
        if stream.write_all(&exchange.request).is_err() {
            return false;
        }
        while exchange.reply.starts_with(&reply) && reply.len() < exchange.reply.len() {
            let left = deadline.remaining(Instant::now());
            if !wait_for_input(stream, left, &Cancel::NEVER).unwrap_or(false) {
                return false;
            }
            let mut buffer = [0; 64];
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return false,
                Ok(length) => reply.extend(&buffer[..length]),
            }
        }
        reply == exchange.reply
    }
}

/// The event after a wait for input.
fn received(connection: &TcpStream, has_input: io::Result<bool>) -> Event {
    match has_input {
        Ok(true) => {}
        Ok(false) => return Event::Silent,
        Err(error) => return Event::Refused(error.to_string()),
    }
    let mut buffer = vec![0; READ_BYTES];
    match (&mut &*connection).read(&mut buffer) {
        Ok(0) | Err(_) => Event::Ended,
        Ok(length) => {
            buffer.truncate(length);
            Event::Bytes(buffer)
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
