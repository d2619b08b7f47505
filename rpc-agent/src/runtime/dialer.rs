//! One attempt to connect to a peer: its address, the connection, the client's side of the handshake.
//!
//! Whether and when an attempt is made, and what follows from its result, is decided by `peer`.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use c10d_socket::{
    ConnectOptions, Deadline, SocketOptions, connect, recv_into_spare, wait_for_input,
    wait_for_output,
};

use super::dial_threads::Attempt;
use super::driver::Driver;
use super::entry::PeerEntry;
use super::socket::NOT_SENT_LOW_WATER_BYTES;
use crate::directory::Directory;
use crate::peer::{
    AttemptFailure, Expects, FunctionId, Functions, Incoming, IncomingLimits, Message, Recipient,
    Watch, Welcomed,
};
use crate::wire::{Frame, Hello};
use crate::worker::Destination;

/// How long one attempt may take, from the address to the Welcome.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

pub(super) struct Dialer {
    pub(super) driver: Arc<Driver>,
    pub(super) directory: Arc<Directory>,
    pub(super) socket_options: SocketOptions,
    pub(super) limits: IncomingLimits,
    /// Whether workers may leave the group: then one without an address does not come back.
    pub(super) is_dynamic_group: bool,
}

impl Attempt for Dialer {
    fn attempt(&self, peer: &Arc<PeerEntry>, dial: u64) {
        let driver = &self.driver;
        let began = Instant::now();
        if !driver.change(peer, |core| core.begin_attempt(dial, began)) {
            return;
        }
        if let Err(failure) = self.connect(peer, dial, Deadline::after(began, ATTEMPT_MAX)) {
            driver.step(peer, |core, effects| {
                core.attempt_failed(dial, failure, Instant::now(), effects);
            });
        }
    }
}

impl Dialer {
    fn connect(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        deadline: Deadline,
    ) -> Result<(), AttemptFailure> {
        let again = |cause: String| AttemptFailure::Again(cause.into());
        let address = match self.directory.address_of(&peer.info, deadline) {
            Ok(Some(address)) => address,
            Ok(None) if self.is_dynamic_group => {
                let error = self.driver.no_such_worker(&Destination::Info(&peer.info));
                return Err(AttemptFailure::Hopeless {
                    cause: error.to_string().into(),
                    is_dead: false,
                });
            }
            Ok(None) => return Err(again("the worker has not published its address".to_owned())),
            Err(error) => return Err(again(error.to_string())),
        };
        let options = ConnectOptions::default()
            .with_rounds_max(1)
            .with_socket_options(self.socket_options.clone());
        let stream = connect(&address.host_port, &options, deadline).map_err(|error| {
            let cause = error.to_string().into();
            if error.is_refused() {
                // A worker listens from before its address is published until it ends.
                let is_dead = true;
                AttemptFailure::Hopeless { cause, is_dead }
            } else {
                AttemptFailure::Again(cause)
            }
        })?;
        let incarnation = address.incarnation;
        let hello = self
            .driver
            .change(peer, |core| core.hello(dial, incarnation));
        let Some(hello) = hello else {
            return Ok(());
        };
        self.shake_hands(peer, dial, stream, hello, deadline)
            .map_err(|error| again(format!("{}: no welcome: {error}", address.host_port)))
    }

    /// Sends the Hello, and reports the answer.
    fn shake_hands(
        &self,
        peer: &Arc<PeerEntry>,
        dial: u64,
        stream: TcpStream,
        hello: Hello,
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        Frame::Hello(hello).encode(&mut bytes);
        stream.set_nonblocking(true)?;
        write_all_by(&stream, &bytes, deadline)?;
        let mut decoder = Incoming::new(Expects::WelcomeOrRefuse, self.limits);
        let mut answers = Answers {
            functions: &self.driver.config.functions,
            first: None,
            rest: Vec::new(),
        };
        while answers.first.is_none() {
            if !wait_for_input(&stream, deadline.remaining(Instant::now()))? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let (buffer, bytes_max) = decoder.spare();
            match recv_into_spare(&stream, buffer, bytes_max) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            }
            decoder
                .received(&mut answers)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
        let (driver, now) = (&self.driver, Instant::now());
        match answers.first {
            Some(Message::Welcome(welcome)) => {
                let stream = mio::net::TcpStream::from_std(stream);
                let _ =
                    socket2::SockRef::from(&stream).set_tcp_notsent_lowat(NOT_SENT_LOW_WATER_BYTES);
                let socket = driver.sockets.adopt(stream, Some(peer))?;
                let connection = (Arc::clone(&socket), socket.address);
                let welcomed = driver.step(peer, |core, effects| {
                    let rest = answers.rest;
                    core.welcomed(dial, &welcome, connection, decoder, rest, now, effects)
                });
                if welcomed != Welcomed::Established {
                    driver.sockets.release(&socket, Watch::default());
                }
                Ok(())
            }
            Some(Message::Refuse(refuse)) => {
                driver.step(peer, |core, effects| {
                    core.refused(dial, &refuse, now, effects);
                });
                Ok(())
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The first answer to a Hello, and the messages right behind it.
struct Answers<'a> {
    functions: &'a Functions,
    first: Option<Message>,
    rest: Vec<Message>,
}

impl Recipient for Answers<'_> {
    fn find_function(&mut self, name: &str) -> Option<FunctionId> {
        self.functions.find(name)
    }

    fn wants_response(&mut self, _: u64) -> bool {
        // No call has been sent on this connection yet.
        false
    }

    fn take(&mut self, message: Message) {
        if self.first.is_none() {
            self.first = Some(message);
        } else {
            self.rest.push(message);
        }
    }
}

fn write_all_by(mut stream: &TcpStream, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !wait_for_output(stream, deadline.remaining(Instant::now()))? {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
