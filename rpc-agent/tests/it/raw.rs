//! A raw worker whose bytes a test writes directly. It pins the wire format and can violate the protocol.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use byteorder::{ByteOrder, LittleEndian, WriteBytesExt};
use c10d_store::{Store, StoreExt};

/// Timeout of all waits in the tests; reached only if a test hangs.
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

/// Default limit of a message's length. Each side announces its limit in the handshake.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 256 << 20;

/// Store key of the member list of a dynamic group.
pub(crate) const MEMBER_LIST: &str = "names/_ALL_WORKER_INFOS";

/// A worker of a static group without an agent. The test accepts its connections and writes its frames.
#[derive(Debug)]
pub(crate) struct RawWorker {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) incarnation: u64,
    listener: TcpListener,
}

impl RawWorker {
    /// Registers the worker in a static group, with `incarnation`.
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

    /// Registers the worker in a dynamic group, and replaces a worker with its id. Other workers must not join or
    /// leave at the same time.
    pub(crate) fn join_list(store: &dyn Store, id: u16, name: &str, incarnation: u64) -> Self {
        let worker = Self::join(store, id, name, incarnation);
        let (version, mut members) = member_list(store);
        if let Some(start) = members.find(&format!("{id} ")) {
            let end = members[start..].find('\n').unwrap();
            members.replace_range(start..=start + end, "");
        }
        let record = String::from_utf8(store.get(&format!("names/{id}")).unwrap()).unwrap();
        let list = format!("version {}\n{members}{id} {record}\n", version + 1);
        store.set(MEMBER_LIST, list.as_bytes()).unwrap();
        worker
    }

    /// Accepts a connection from an agent before any byte is read or written.
    pub(crate) fn accept(&self) -> TcpStream {
        let (socket, _) = self.listener.accept().unwrap();
        limit_waits(&socket);
        socket
    }

    /// [`RawWorker::accept`] with a timeout.
    pub(crate) fn accept_within(&self, patience: Duration) -> Option<TcpStream> {
        let began = Instant::now();
        self.listener.set_nonblocking(true).unwrap();
        let accepted = loop {
            match self.listener.accept() {
                Ok((socket, _)) => break Some(socket),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
                Err(_) if began.elapsed() >= patience => break None,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        self.listener.set_nonblocking(false).unwrap();
        let socket = accepted?;
        socket.set_nonblocking(false).unwrap();
        limit_waits(&socket);
        Some(socket)
    }

    /// Accepts a connection from an agent, and answers its Hello with a Welcome.
    pub(crate) fn accept_link(&self) -> TcpStream {
        let mut socket = self.accept();
        let hello = read_frame(&mut socket);
        assert_eq!(hello.kind, HELLO);
        let links = links_of(&hello);
        send(&mut socket, &welcome(self.incarnation, links + 1));
        socket
    }

    /// Answers the next Hello with a Refuse for `reason`, and waits until the dialer has closed the
    /// connection.
    pub(crate) fn refuse(&self, reason: u8) {
        let mut socket = self.accept();
        assert_eq!(read_frame(&mut socket).kind, HELLO);
        let body = [&[reason][..], &u32_bytes(0), b"not now"].concat();
        // The dialer may have closed the connection already.
        let _ = socket.write_all(&frame(REFUSE, 0, 0, 0, &body));
        await_closed(&mut socket);
    }

    /// Encodes a Hello of this worker to the worker `to`.
    pub(crate) fn hello(&self, to: u16, expected_incarnation: u64, links: u32) -> Vec<u8> {
        let body = hello_body(
            self.id,
            to,
            self.incarnation,
            expected_incarnation,
            links,
            &self.name,
        );
        frame(HELLO, 0, 0, 0, &body)
    }

    /// Dials an agent and waits for its Welcome.
    pub(crate) fn dial(&self, store: &dyn Store, to: u16, links: u32) -> TcpStream {
        let (address, incarnation) = address_of(store, to);
        let mut socket = connect(address);
        send(&mut socket, &self.hello(to, incarnation, links));
        let welcome = read_frame(&mut socket);
        assert_eq!(welcome.kind, WELCOME, "{welcome:?}");
        socket
    }
}

#[cfg(feature = "tls")]
impl RawWorker {
    /// [`RawWorker::dial`] with a secret.
    pub(crate) fn dial_sealed(
        &self,
        store: &dyn Store,
        to: u16,
        secret: rpc_agent::Secret,
    ) -> crate::sealed::Sealed {
        let (address, incarnation) = address_of(store, to);
        let mut peer = crate::sealed::Sealed::new(connect(address), &secret.into());
        peer.shake_hands().unwrap();
        send(&mut peer, &self.hello(to, incarnation, 0));
        assert_eq!(read_frame(&mut peer).kind, WELCOME);
        peer
    }
}

/// Publishes the address and the incarnation of a worker of a static group in the store.
pub(crate) fn publish(store: &dyn Store, id: u16, name: &str, port: u16, incarnation: u64) {
    let record = format!("{name} tcp://127.0.0.1:{port}#{incarnation:016x}");
    store
        .set(&format!("names/{id}"), record.as_bytes())
        .unwrap();
}

/// Reads the address and the incarnation of a worker of a static group from the store.
pub(crate) fn address_of(store: &dyn Store, id: u16) -> (SocketAddr, u64) {
    let record = String::from_utf8(store.get(&format!("names/{id}")).unwrap()).unwrap();
    parse_record(&record)
}

/// Reads the address and the incarnation of a worker of a dynamic group from the store.
pub(crate) fn listed_address_of(store: &dyn Store, id: u16) -> (SocketAddr, u64) {
    let (_, members) = member_list(store);
    let line = members
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{id} ")));
    parse_record(line.unwrap())
}

/// Reads the version and the lines of the member list.
fn member_list(store: &dyn Store) -> (u64, String) {
    let list = String::from_utf8(store.get(MEMBER_LIST).unwrap()).unwrap();
    let (version, members) = list.split_once('\n').unwrap();
    let version = version.strip_prefix("version ").unwrap();
    (version.parse().unwrap(), members.to_owned())
}

fn parse_record(record: &str) -> (SocketAddr, u64) {
    let (_, address) = record.split_once(" tcp://").unwrap();
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

pub(crate) fn send(socket: &mut impl Write, bytes: &[u8]) {
    socket.write_all(bytes).unwrap();
}

/// A received frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) aux: u16,
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
}

/// Reads the next frame; panics if the stream has ended.
#[track_caller]
pub(crate) fn read_frame(socket: &mut impl Read) -> RawFrame {
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

/// Answers the next request.
#[track_caller]
pub(crate) fn answer_next(socket: &mut TcpStream, payload: &[u8]) {
    let id = read_frame(socket).id;
    send(socket, &frame(RESPONSE, 0, 0, id, payload));
}

/// Number of connections between the two workers that the sender of the Hello has counted.
pub(crate) fn links_of(hello: &RawFrame) -> u32 {
    LittleEndian::read_u32(&hello.body[30..34])
}

/// Waits until the peer has closed the connection. Skips the bytes that it sent before.
#[track_caller]
pub(crate) fn await_closed(socket: &mut TcpStream) {
    let mut skipped = [0; 4096];
    loop {
        match socket.read(&mut skipped) {
            Ok(0) => return,
            Ok(_) => {}
            // The close is a reset if the peer had not read all bytes.
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

/// A frame header that announces `length` bytes of body.
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
    expected_incarnation: u64,
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
        &u64_bytes(expected_incarnation),
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

/// A request without a timeout.
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
