//! Serves a [`Service`] on a port of the loopback interface, from one thread that looks each millisecond.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use c10d_socket::{Cancel, sleep};

use crate::client::service::{Effect, Service};

const TICK: Duration = Duration::from_millis(1);

/// At most this much of a connection in a tick.
const READ_BYTES: usize = 1 << 16;

/// More connections are closed at once.
const CONNECTIONS_MAX: usize = 256;

/// A service in progress.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    cancel: Cancel,
    thread: JoinHandle<Service>,
}

impl Serving {
    /// `read_late` is how long bytes wait until they are read, for the clients' writes to be short.
    pub(crate) fn start(service: Service, read_late: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let cancel = Cancel::new();
        let mut shell = Shell {
            listener,
            service,
            read_late,
            connections: BTreeMap::new(),
            accepted: 0,
        };
        let ends = cancel.clone();
        let thread = thread::Builder::new()
            .name("conform-store".to_owned())
            .spawn(move || {
                while sleep(TICK, [&ends]).is_ok() {
                    shell.tick(Instant::now());
                }
                shell.service
            })?;
        Ok(Self {
            address,
            cancel,
            thread,
        })
    }

    /// Closes all connections. Returns the service with what it has noted; `None` if it has panicked.
    pub(crate) fn stop(self) -> Option<Service> {
        self.cancel.cancel();
        self.thread.join().ok()
    }
}

struct Shell {
    listener: TcpListener,
    service: Service,
    read_late: Duration,
    connections: BTreeMap<u64, Connection>,
    accepted: u64,
}

struct Connection {
    stream: TcpStream,
    unsent: Vec<u8>,
    closes: bool,
    /// When it is read again.
    reads_at: Option<Instant>,
}

impl Shell {
    fn tick(&mut self, now: Instant) {
        while let Ok((stream, _)) = self.listener.accept() {
            let is_ready = stream
                .set_nonblocking(true)
                .and(stream.set_nodelay(true))
                .is_ok();
            if is_ready && self.connections.len() < CONNECTIONS_MAX {
                self.accepted += 1;
                let connection = Connection {
                    stream,
                    unsent: Vec::new(),
                    closes: false,
                    reads_at: None,
                };
                self.connections.insert(self.accepted, connection);
            }
        }
        self.read(now);
        for effect in self.service.due(now) {
            match effect {
                Effect::Send(number, bytes) => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.unsent.extend(bytes);
                        connection.write();
                    }
                }
                Effect::Close(number) => {
                    if let Some(connection) = self.connections.get_mut(&number) {
                        connection.closes = true;
                    }
                }
            }
        }
        self.connections.retain(|number, connection| {
            connection.write();
            let is_closed = connection.closes && connection.unsent.is_empty();
            if is_closed {
                self.service.ended(*number);
            }
            !is_closed
        });
    }

    fn read(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (number, connection) in &mut self.connections {
            if connection.reads_at.is_some_and(|at| now < at) {
                continue;
            }
            let mut buffer = vec![0; READ_BYTES];
            match connection.stream.read(&mut buffer) {
                Ok(0) => ended.push(*number),
                Ok(length) => {
                    // A full buffer: the client is in the middle of a long request.
                    let is_long = length == buffer.len();
                    connection.reads_at = is_long.then_some(now + self.read_late);
                    self.service.received(*number, &buffer[..length], now);
                }
                Err(error) if is_later(&error) => {}
                Err(_) => ended.push(*number),
            }
        }
        for number in ended {
            self.service.ended(number);
            self.connections.remove(&number);
        }
    }
}

impl Connection {
    /// A broken connection shows at the next read.
    fn write(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(error) if is_later(&error) => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
