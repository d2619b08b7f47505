//! A worker whose every byte a test writes by hand: it pins the format, and does what no agent does.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian, WriteBytesExt};
use c10d_store::Store;

/// Longer than anything takes on a loaded machine: only a hang lasts as long.
const LONG: Duration = Duration::from_secs(60);

pub(crate) const HELLO: u8 = 1;
pub(crate) const WELCOME: u8 = 2;
pub(crate) const REFUSE: u8 = 3;
pub(crate) const REQUEST: u8 = 4;
pub(crate) const RESPONSE: u8 = 5;
pub(crate) const ERROR: u8 = 6;
pub(crate) const REQUEST_PART: u8 = 7;
pub(crate) const RESPONSE_PART: u8 = 8;
pub(crate) const GOODBYE: u8 = 9;

pub(crate) const LARGE: u8 = 1;

/// The default limit of a message, which each side tells the other.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 256 << 20;

/// A worker of a group of fixed size that listens, and is otherwise the test's to play.
#[derive(Debug)]
pub(crate) struct RawWorker {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) incarnation: u64,
    listener: TcpListener,
}

impl RawWorker {
    /// Takes its place in the group, with `incarnation`.
    pub(crate) fn join(store: &dyn Store, id: u16, name: &str, incarnation: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        publish(store, id, name, port, incarnation);
        Self {
            id,
            name: name.to_owned(),
            incarnation,
            listener,
        }
    }

    /// A connection that an agent dials, before anything is said on it.
    pub(crate) fn accept(&self) -> TcpStream {
        let (socket, _) = self.listener.accept().unwrap();
        limit_waits(&socket);
        socket
    }

    /// A connection that an agent dials, its Hello answered with a Welcome.
    pub(crate) fn accept_link(&self) -> TcpStream {
        let mut socket = self.accept();
        let hello = read_frame(&mut socket);
        assert_eq!(hello.kind, HELLO);
        let links = LittleEndian::read_u32(&hello.body[30..34]);
        send(&mut socket, &welcome(self.incarnation, links + 1));
        socket
    }

    /// A Hello of this worker to the worker `to`.
    pub(crate) fn hello(&self, to: u16, incarnation_wanted: u64, links: u32) -> Vec<u8> {
        let body = hello_body(
            self.id,
            to,
            self.incarnation,
            incarnation_wanted,
            links,
            &self.name,
        );
        frame(HELLO, 0, 0, 0, &body)
    }

    /// A connection to an agent, which has welcomed it.
    pub(crate) fn dial(&self, store: &dyn Store, to: u16, links: u32) -> TcpStream {
        let (address, incarnation) = address_of(store, to);
        let mut socket = connect(address);
        send(&mut socket, &self.hello(to, incarnation, links));
        let welcome = read_frame(&mut socket);
        assert_eq!(welcome.kind, WELCOME, "{welcome:?}");
        socket
    }
}

/// What a worker of a group of fixed size says of itself in the store.
pub(crate) fn publish(store: &dyn Store, id: u16, name: &str, port: u16, incarnation: u64) {
    let claim = format!("{name} tcp://127.0.0.1:{port}#{incarnation:016x}");
    store.set(&format!("names/{id}"), claim.as_bytes()).unwrap();
}

/// Where a worker of a group of fixed size listens, and its incarnation.
pub(crate) fn address_of(store: &dyn Store, id: u16) -> (SocketAddr, u64) {
    let claim = String::from_utf8(store.get(&format!("names/{id}")).unwrap()).unwrap();
    let (_, address) = claim.split_once(" tcp://").unwrap();
    let (address, incarnation) = address.split_once('#').unwrap();
    let incarnation = u64::from_str_radix(incarnation, 16).unwrap();
    (address.parse().unwrap(), incarnation)
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    limit_waits(&socket);
    socket
}

fn limit_waits(socket: &TcpStream) {
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.set_write_timeout(Some(LONG)).unwrap();
}

pub(crate) fn send(socket: &mut TcpStream, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

/// A frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) aux: u16,
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
}

/// The next frame; panics when there is none.
#[track_caller]
pub(crate) fn read_frame(socket: &mut TcpStream) -> RawFrame {
    let mut header = [0; 16];
    socket.read_exact(&mut header).expect("a frame");
    let mut body = vec![0; LittleEndian::read_u32(&header[..4]) as usize];
    socket.read_exact(&mut body).expect("the frame's body");
    RawFrame {
        kind: header[4],
        flags: header[5],
        aux: LittleEndian::read_u16(&header[6..8]),
        id: LittleEndian::read_u64(&header[8..]),
        body,
    }
}

/// Waits until the other side has closed the connection. What it sent before is skipped.
#[track_caller]
pub(crate) fn await_closed(socket: &mut TcpStream) {
    let mut skipped = [0; 4096];
    loop {
        match socket.read(&mut skipped) {
            Ok(0) => return,
            Ok(_) => {}
            // What it had not read makes of its close a reset.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

pub(crate) fn frame(kind: u8, flags: u8, aux: u16, id: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    let mut bytes = header(length, kind, flags, aux, id);
    bytes.extend_from_slice(body);
    bytes
}

/// A header that announces a body of any length.
pub(crate) fn header(length: u32, kind: u8, flags: u8, aux: u16, id: u64) -> Vec<u8> {
    let mut bytes = u32_bytes(length);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&u16_bytes(aux));
    bytes.extend_from_slice(&u64_bytes(id));
    bytes
}

pub(crate) fn hello_body(
    from: u16,
    to: u16,
    incarnation: u64,
    incarnation_wanted: u64,
    links: u32,
    name: &str,
) -> Vec<u8> {
    let name_length = u8::try_from(name.len()).unwrap();
    [
        b"C10DRPC\0".as_slice(),
        &[1, 0],
        &u16_bytes(from),
        &u16_bytes(to),
        &u64_bytes(incarnation),
        &u64_bytes(incarnation_wanted),
        &u32_bytes(links),
        &u64_bytes(MESSAGE_BYTES_MAX),
        &[name_length],
        name.as_bytes(),
    ]
    .concat()
}

pub(crate) fn welcome(incarnation: u64, links: u32) -> Vec<u8> {
    let body = [
        u64_bytes(incarnation),
        u32_bytes(links),
        u64_bytes(MESSAGE_BYTES_MAX),
    ]
    .concat();
    frame(WELCOME, 0, 0, 0, &body)
}

/// A request without a limit of time.
pub(crate) fn request(id: u64, function: &str, payload: &[u8]) -> Vec<u8> {
    let name_length = u16::try_from(function.len()).unwrap();
    let body = [&u32_bytes(0), function.as_bytes(), payload].concat();
    frame(REQUEST, 0, name_length, id, &body)
}

/// The start of a request whose payload follows in parts.
pub(crate) fn large_request(id: u64, function: &str, payload_bytes: u64) -> Vec<u8> {
    let name_length = u16::try_from(function.len()).unwrap();
    let body = [
        &u32_bytes(0),
        u64_bytes(payload_bytes).as_slice(),
        function.as_bytes(),
    ]
    .concat();
    frame(REQUEST, LARGE, name_length, id, &body)
}

pub(crate) fn u16_bytes(value: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.write_u16::<LittleEndian>(value).unwrap();
    bytes
}

pub(crate) fn u32_bytes(value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.write_u32::<LittleEndian>(value).unwrap();
    bytes
}

pub(crate) fn u64_bytes(value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.write_u64::<LittleEndian>(value).unwrap();
    bytes
}
