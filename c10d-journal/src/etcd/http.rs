//! A client for HTTP/1.1 exchanges with etcd's gateway: one connection that is reused, one request at a time.
//!
//! `ureq-proto`, the protocol of `ureq` without its sockets, composes requests and parses responses. The sockets are
//! this project's, because a watch must end when another socket can be read, at its deadline, or when it is
//! cancelled.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use c10d_socket::{
    Cancel, ConnectOptions, Deadline, Dialer, HostPort, TlsClient, TlsLayer, wait_for_input,
    wait_for_output,
};
use ureq_proto::client::state::{RecvBody, RecvResponse};
use ureq_proto::client::{Call, RecvBodyResult, RecvResponseResult, SendRequestResult};
use ureq_proto::http::Request;
use ureq_proto::{BodyMode, Error as ProtocolError};

/// The number of bytes that one system call receives at most.
const RECEIVE_BYTES: usize = 64 << 10;

/// The most bytes of a request or status line with its headers.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The most bytes of a line with the size of a chunk, or of a line after the last chunk.
const LINE_BYTES_MAX: usize = 1 << 10;

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The connection failed, or the request reached its deadline or was cancelled.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The response breaks the rules of HTTP.
    #[error("does not answer with HTTP: {0}")]
    NotHttp(#[from] ProtocolError),
    /// A line, or the head of a request or response, is longer than any of etcd's.
    #[error("the {0} is too long for an exchange with etcd")]
    TooLong(&'static str),
    /// The body is larger than the caller accepts.
    #[error("the answer has more than {bytes_max} bytes")]
    TooLarge {
        /// The size that the caller accepts.
        bytes_max: usize,
    },
}

/// A connection to one member of etcd.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: TcpStream,
    tls: Option<TlsLayer>,
    host: String,
    cancel: Cancel,
    wire: Box<[u8]>,
    /// Received bytes that are not decoded yet.
    received: Vec<u8>,
}

/// A response whose body is not read yet.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// `None` at its end.
    body: Option<Call<RecvBody>>,
    /// Whether the connection accepts another request. Known at the end of the body.
    is_reusable: bool,
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

    /// Sends a request and receives the head of its response.
    pub(crate) fn post(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        deadline: Deadline,
    ) -> Result<Response, HttpError> {
        let (head, mut call) = compose(&self.host, path, headers, body.len())?;
        self.write_all(&[&head, body].concat(), deadline)?;
        loop {
            if let Some(status) = parse_head(&mut call, &mut self.received)? {
                return Ok(Response::new(status, call));
            }
            if !self.receive(deadline)? {
                return Err(HttpError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads all of a body of at most this many bytes. Returns whether the connection accepts another request.
    pub(crate) fn read_all(
        &mut self,
        mut response: Response,
        bytes_max: usize,
        deadline: Deadline,
    ) -> Result<(Vec<u8>, bool), HttpError> {
        let mut body = Vec::new();
        response.check_length(bytes_max)?;
        while self.read_some(&mut response, &mut body, deadline)? {
            if body.len() > bytes_max {
                return Err(HttpError::TooLarge { bytes_max });
            }
        }
        Ok((body, response.is_reusable))
    }

    /// Appends the received bytes of a body to `out`, at least one; returns `false` at the end of the body.
    pub(crate) fn read_some(
        &mut self,
        response: &mut Response,
        out: &mut Vec<u8>,
        deadline: Deadline,
    ) -> Result<bool, HttpError> {
        let before = out.len();
        loop {
            response.decode(&mut self.received, out)?;
            if out.len() > before {
                return Ok(true);
            }
            if response.body.is_none() {
                return Ok(false);
            }
            if !self.receive(deadline)? {
                return response.end().map(|()| false);
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
                                // Sends the reason to the peer, if the system takes it at once.
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

/// Returns the head of a request, and the state that awaits its response.
fn compose(
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body_bytes: usize,
) -> Result<(Vec<u8>, Call<RecvResponse>), HttpError> {
    let mut request = Request::post(path)
        .header("Host", host)
        .header("Content-Type", "application/json")
        .header("Content-Length", body_bytes);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(()).map_err(io::Error::other)?;
    let mut call = Call::new(request)?.proceed();
    let mut head = vec![0; HEAD_BYTES_MAX];
    let count = call.write(&mut head)?;
    head.truncate(count);
    match call.proceed()? {
        Some(SendRequestResult::SendBody(mut call)) => {
            call.consume_direct_write(body_bytes)?;
            let call = call.proceed().expect("all of its length is consumed");
            Ok((head, call))
        }
        // It has a body because it has a length, but the head did not fit: the token is etcd's.
        _ => Err(HttpError::TooLong("head of a request")),
    }
}

/// Returns the status of a response, and removes its head from the received bytes, once all of the head has arrived.
fn parse_head(
    call: &mut Call<RecvResponse>,
    received: &mut Vec<u8>,
) -> Result<Option<u16>, HttpError> {
    loop {
        let (used, response) = call.try_response(received, false)?;
        received.drain(..used);
        match response {
            Some(response) => return Ok(Some(response.status().as_u16())),
            None if used == 0 && received.len() > HEAD_BYTES_MAX => {
                return Err(HttpError::TooLong("head of its response"));
            }
            None if used == 0 => return Ok(None),
            // An informational response.
            None => {}
        }
    }
}

impl Response {
    fn new(status: u16, call: Call<RecvResponse>) -> Self {
        let mut this = Self {
            status,
            body: None,
            is_reusable: false,
        };
        match call.proceed() {
            Some(RecvResponseResult::RecvBody(call)) => this.body = Some(call),
            Some(RecvResponseResult::Cleanup(call)) => {
                this.is_reusable = !call.must_close_connection();
            }
            // etcd sends no redirects, and the caller rejects the status.
            Some(RecvResponseResult::Redirect(_)) | None => {}
        }
        this
    }

    /// Refuses a body whose length is known to be larger than the caller accepts.
    fn check_length(&self, bytes_max: usize) -> Result<(), HttpError> {
        match self.body.as_ref().map(Call::body_mode) {
            Some(BodyMode::LengthDelimited(length)) if length > bytes_max as u64 => {
                Err(HttpError::TooLarge { bytes_max })
            }
            _ => Ok(()),
        }
    }

    /// Moves the received part of the body to `out`.
    fn decode(&mut self, received: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<(), HttpError> {
        while let Some(call) = &mut self.body {
            let before = out.len();
            out.resize(before + received.len(), 0);
            let (used, count) = call.read(received, &mut out[before..])?;
            out.truncate(before + count);
            received.drain(..used);
            if call.can_proceed() && call.body_mode() != BodyMode::CloseDelimited {
                return self.end();
            }
            if used == 0 && received.len() > LINE_BYTES_MAX {
                return Err(HttpError::TooLong("line of a chunk"));
            }
            if used == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Ends the body, because all of it was read or the connection has ended.
    fn end(&mut self) -> Result<(), HttpError> {
        if let Some(call) = self.body.take() {
            match call.proceed() {
                Some(RecvBodyResult::Cleanup(call)) => {
                    self.is_reusable = !call.must_close_connection();
                }
                Some(RecvBodyResult::Redirect(_)) => {}
                None => return Err(HttpError::Io(io::ErrorKind::UnexpectedEof.into())),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wire: &[u8], step: usize) -> Result<(u16, Vec<u8>, bool), HttpError> {
        let (_, mut call) = compose("etcd:2379", "/v3/kv/range", &[], 2)?;
        let (mut received, mut status, mut out) = (Vec::new(), None, Vec::new());
        let mut chunks = wire.chunks(step);
        while status.is_none() {
            received.extend_from_slice(
                chunks
                    .next()
                    .ok_or(HttpError::TooLong("head of its response"))?,
            );
            status = parse_head(&mut call, &mut received)?;
        }
        let mut response = Response::new(status.unwrap_or_default(), call);
        response.check_length(1 << 20)?;
        response.decode(&mut received, &mut out)?;
        for bytes in chunks {
            received.extend_from_slice(bytes);
            response.decode(&mut received, &mut out)?;
        }
        response.end()?;
        Ok((response.status, out, response.is_reusable))
    }

    #[test]
    fn a_request_has_its_headers_and_its_length() {
        let headers = [
            ("Authorization", "token"),
            ("Grpc-Metadata-hasleader", "true"),
        ];
        let (head, _) = compose("[::1]:2379", "/v3/watch", &headers, 17).expect("HTTP");
        let head = String::from_utf8(head).expect("text").to_lowercase();
        assert!(head.starts_with("post /v3/watch http/1.1\r\n"), "{head}");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        for line in [
            "host: [::1]:2379",
            "content-length: 17",
            "authorization: token",
            "grpc-metadata-hasleader: true",
        ] {
            assert!(head.contains(&format!("\r\n{line}\r\n")), "{head}");
        }
    }

    #[test]
    fn every_split_gives_the_same_answer() {
        let cases: [(&[u8], u16, &[u8], bool); 6] = [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello", true),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 1\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n",
                200,
                b"hello!",
                true,
            ),
            (b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\nnone", 404, b"none", false),
            (
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1",
                200,
                b"1",
                true,
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", true),
            (b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", 503, b"", true),
        ];
        for (wire, status, body, is_kept) in cases {
            for step in 1..=wire.len() {
                let (its_status, its_body, its_kept) = read(wire, step).expect("HTTP");
                assert_eq!((its_status, &*its_body, its_kept), (status, body, is_kept));
            }
        }
    }

    #[test]
    fn what_is_not_http_is_an_error_and_takes_no_memory() {
        let many = [b"HTTP/1.1 200 OK\r\n".as_slice(), &[b'a'; HEAD_BYTES_MAX]].concat();
        let long_line = [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".as_slice(),
            &[b'1'; LINE_BYTES_MAX],
        ]
        .concat();
        let cases: [&[u8]; 9] = [
            b"SSH-2.0-OpenSSH\r\n\r\n",
            b"\x15\x03\x01\0\x02\x02",
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            &many,
            &long_line,
        ];
        for wire in cases {
            read(wire, wire.len()).expect_err("not HTTP");
            read(wire, 1).expect_err("not HTTP");
        }
    }
}
