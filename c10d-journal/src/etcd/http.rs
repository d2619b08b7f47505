//! A client for HTTP/1.1 exchanges with etcd's gateway: one connection that is kept, one request at a time.
//!
//! It knows what etcd's gateway sends: a body with a length, in chunks, or up to the end of the connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use c10d_socket::{
    Cancel, ConnectOptions, Deadline, Dialer, HostPort, TlsClient, TlsLayer, wait_for_input,
    wait_for_output,
};

use super::body::{Body, Head, HttpError, parse_head};

/// What is received by one system call.
const RECEIVE_BYTES: usize = 64 << 10;

/// A connection to one member of etcd.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    tls: Option<TlsLayer>,
    host: String,
    cancel: Cancel,
    wire: Box<[u8]>,
    /// Received and not decoded.
    received: Vec<u8>,
}

/// An answer of which the body has not been read.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    body: Body,
    is_kept: bool,
}

impl Connection {
    /// Connects once. Blocks until the deadline at most.
    pub(crate) fn open(
        target: &HostPort,
        tls: Option<&TlsClient>,
        deadline: Deadline,
        cancel: &Cancel,
    ) -> io::Result<Self> {
        let once = ConnectOptions::default().with_rounds_max(1);
        let socket = Dialer::new(target, &once, deadline)
            .with_cancel(cancel.clone())
            .connect()
            .map_err(|error| io::Error::other(error.to_string()))?;
        socket.set_nonblocking(true)?;
        let tls = tls.map(TlsClient::start).transpose();
        let mut connection = Self {
            socket,
            tls: tls.map_err(|error| io::Error::other(error.to_string()))?,
            host: target.to_string(),
            cancel: cancel.clone(),
            wire: vec![0; RECEIVE_BYTES].into_boxed_slice(),
            received: Vec::new(),
        };
        while let Some(tls) = &connection.tls
            && tls.is_handshaking()
        {
            connection.flush(deadline)?;
            if !connection.receive(deadline)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        connection.flush(deadline)?;
        Ok(connection)
    }

    /// Sends a request and receives the head of its answer.
    pub(crate) fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        deadline: Deadline,
    ) -> Result<Answered, HttpError> {
        let mut head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
            self.host,
            body.len()
        );
        for (name, value) in headers {
            head.push_str(name);
            head.push_str(": ");
            head.push_str(value);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.write_all(&request, deadline)?;
        loop {
            if let Some((head, used)) = parse_head(&self.received)? {
                self.received.drain(..used);
                if head.status == 100 {
                    continue;
                }
                let Head {
                    status,
                    body,
                    is_kept,
                } = head;
                return Ok(Answered {
                    status,
                    body,
                    is_kept,
                });
            }
            if !self.receive(deadline)? {
                return Err(HttpError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads all of a body of at most this many bytes. Returns whether the connection takes another request.
    pub(crate) fn read_all(
        &mut self,
        mut answered: Answered,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<(Vec<u8>, bool), HttpError> {
        let mut body = Vec::new();
        answered.body.check_length(bytes_max)?;
        while self.read_some(&mut answered, &mut body, deadline)? {
            if body.len() > bytes_max {
                return Err(HttpError::TooLarge { bytes_max });
            }
        }
        Ok((body, answered.is_kept))
    }

    /// Appends what has arrived of a body to `out`, at least a byte; `false` at its end.
    pub(crate) fn read_some(
        &mut self,
        answered: &mut Answered,
        out: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<bool, HttpError> {
        let before = out.len();
        loop {
            let used = answered.body.decode(&self.received, out)?;
            self.received.drain(..used);
            if out.len() > before {
                return Ok(true);
            }
            if answered.body.is_complete() {
                return Ok(false);
            }
            if !self.receive(deadline)? {
                return answered.body.ended().map(|()| false);
            }
        }
    }

    pub(crate) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Receives some bytes; `false` at the end of the connection.
    fn receive(&mut self, deadline: Deadline) -> io::Result<bool> {
        loop {
            match self.socket.read(&mut self.wire) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    let bytes = &self.wire[..count];
                    match &mut self.tls {
                        None => self.received.extend_from_slice(bytes),
                        Some(tls) => {
                            let result = tls.receive(bytes, &mut self.received);
                            if result.is_err() {
                                // Tells the peer why, if the system takes it at once.
                                let _ = tls.send(&mut self.socket);
                            }
                            result?;
                        }
                    }
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.remaining(Instant::now());
                    if !wait_for_input(&self.socket, left, &self.cancel)? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        while !bytes.is_empty() {
            let result = match &mut self.tls {
                None => self.socket.write(bytes),
                Some(tls) => tls.sealing(&mut self.socket).write(bytes),
            };
            match result {
                // TLS takes none while much is unsent.
                Ok(0) if self.tls.is_some() => self.wait_to_write(deadline)?,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_to_write(deadline)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.flush(deadline)
    }

    /// Sends what TLS has sealed.
    fn flush(&mut self, deadline: Deadline) -> io::Result<()> {
        while let Some(tls) = &mut self.tls
            && !tls.send(&mut self.socket)?
        {
            self.wait_to_write(deadline)?;
        }
        Ok(())
    }

    fn wait_to_write(&self, deadline: Deadline) -> io::Result<()> {
        let left = deadline.remaining(Instant::now());
        if wait_for_output(&self.socket, left, &self.cancel)? {
            return Ok(());
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
