//! Mistakes of this server that the cases of `c10d-conform` find, each by a named one. A proxy in front of the server makes
//! them: it changes requests of a command, or replies.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use byteorder::{ByteOrder, LittleEndian};
use c10d_conform::{Column, Report, ServerRun};
use c10d_socket::{Cancel, wait_for_input, wait_for_input_of};
use c10d_store::unstable::{RawRequests, ReplyScan, RequestBuf, VALIDATION_MAGIC};
use c10d_store::{Opcode, ServerOptions, TcpStoreServer, WireLimits};

/// Longer than any answer of a healthy server.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Request,
    /// Empty for a command without one.
    Reply,
}

/// Changes the requests of a command, or the replies to it.
#[derive(Clone, Copy)]
struct Mistake {
    opcode: Opcode,
    part: Part,
    change: fn(&mut Vec<u8>),
}

impl Mistake {
    fn make(self, opcode: Opcode, part: Part, bytes: &mut Vec<u8>) {
        if (opcode, part) == (self.opcode, self.part) {
            (self.change)(bytes);
        }
    }
}

/// The requests of a command are changed.
fn requests(opcode: Opcode, change: fn(&mut Vec<u8>)) -> Mistake {
    let part = Part::Request;
    Mistake {
        opcode,
        part,
        change,
    }
}

/// The replies to a command are changed.
fn replies(opcode: Opcode, change: fn(&mut Vec<u8>)) -> Mistake {
    let part = Part::Reply;
    Mistake {
        opcode,
        part,
        change,
    }
}

/// The column that the mistakes are judged by.
const COLUMN: &str = "c10d";

/// Runs a case against the server behind a proxy that makes this mistake.
fn run(case: &str, mistake: Mistake) -> Report {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default());
    let server = server.expect("a free port");
    let (listener, stop) = (TcpListener::bind("127.0.0.1:0"), Cancel::new());
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let target = address.parse().expect("an address");
    let behind = server.local_addr();
    thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            while wait_for_input(&listener, None, stop).is_ok() {
                let (client, _) = listener.accept().expect("a connection");
                scope.spawn(move || pass_on(&client, behind, mistake, stop));
            }
        });
        let column: Column = COLUMN.parse().expect("a column");
        let run = ServerRun::new(target, column).with_only(vec![case.to_owned()]);
        let report = run.run(1);
        stop.cancel();
        report.expect("it listens")
    })
}

#[track_caller]
fn is_found_by(case: &str, mistake: Mistake) {
    let without = run(case, replies(Opcode::Ping, |_| {}));
    assert!(without.is_conforming(), "{}", without.to_text());
    let text = run(case, mistake).to_text();
    let is_named = |what: &str| text.contains(&format!("{what}: {case}: "));
    assert!(is_named("differs") || is_named("hangs"), "{text}");
}

/// Runs until either side closes the connection.
fn pass_on(client: &TcpStream, server: SocketAddr, mistake: Mistake, stop: &Cancel) {
    let server = TcpStream::connect(server).expect("it listens");
    for stream in [client, &server] {
        let timeout = stream.set_read_timeout(Some(PATIENCE));
        timeout.expect("a socket");
    }
    let proxy = Proxy {
        client,
        server: &server,
        mistake,
        waits: None,
    };
    // The client ends connections in the middle of replies.
    let _ = proxy.run(stop);
}

struct Proxy<'c> {
    client: &'c TcpStream,
    server: &'c TcpStream,
    mistake: Mistake,
    /// The command of the wait that the server has not answered.
    waits: Option<Opcode>,
}

impl Proxy<'_> {
    fn run(mut self, stop: &Cancel) -> io::Result<()> {
        let mut requests = RawRequests::default();
        let mut buffer = [0; 64 << 10];
        let mut handshake = RequestBuf::new();
        handshake.opcode(Opcode::Validate).u32(VALIDATION_MAGIC);
        self.server.write_all(&handshake.to_bytes())?;
        loop {
            wait_for_input_of([self.client.as_fd(), self.server.as_fd()], None, stop)?;
            if wait_for_input(self.server, Duration::ZERO, stop)? {
                let count = self.server.read(&mut buffer)?;
                match self.waits.take() {
                    Some(opcode) if count > 0 => {
                        self.answer(opcode, buffer[..count].to_vec())?;
                        continue;
                    }
                    _ => return Ok(()),
                }
            }
            let count = self.client.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            let mut whole = Vec::new();
            let parsed = requests.receive(&buffer[..count], &WireLimits::default(), |it| {
                whole.push((it.opcode, it.key_count, it.bytes.to_vec()));
                true
            });
            parsed.map_err(io::Error::other)?;
            for (opcode, key_count, bytes) in whole {
                self.request(opcode, key_count, bytes)?;
            }
        }
    }

    /// Sends a request, and passes its reply on if it has one at once.
    fn request(&mut self, opcode: Opcode, keys: usize, mut bytes: Vec<u8>) -> io::Result<()> {
        self.mistake.make(opcode, Part::Request, &mut bytes);
        self.server.write_all(&bytes)?;
        let mut reply = Vec::new();
        match opcode {
            Opcode::Wait | Opcode::Barrier => {
                // The reply to a PING behind it shows whether it waits.
                let mut ping = RequestBuf::new();
                ping.opcode(Opcode::Ping).u32(u32::MAX);
                self.server.write_all(&ping.to_bytes())?;
                while !reply.ends_with(&[0xff; 4]) {
                    reply.push(self.byte()?);
                }
                reply.truncate(reply.len() - 4);
                if reply.is_empty() {
                    self.waits = Some(opcode);
                    return Ok(());
                }
            }
            _ => {
                if opcode == Opcode::CancelWait {
                    self.waits = None;
                }
                if let Some(mut scan) = ReplyScan::new(opcode, keys) {
                    loop {
                        let byte = self.byte()?;
                        reply.push(byte);
                        if scan.advance(&mut &[byte][..]).map_err(io::Error::other)? {
                            break;
                        }
                    }
                }
            }
        }
        self.answer(opcode, reply)
    }

    fn byte(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.server.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    fn answer(&mut self, opcode: Opcode, mut reply: Vec<u8>) -> io::Result<()> {
        self.mistake.make(opcode, Part::Reply, &mut reply);
        self.client.write_all(&reply)
    }
}

#[test]
fn sums_in_big_endian() {
    is_found_by("add_missing", replies(Opcode::Add, |it| it.reverse()));
}

#[test]
fn lengths_of_four_bytes() {
    is_found_by("set_get", replies(Opcode::Get, |it| drop(it.drain(4..8))));
}

#[test]
fn check_replies_with_a_bool() {
    is_found_by(
        "check_present",
        replies(Opcode::Check, |it| it[0] = 1 - it[0]),
    );
}

#[test]
fn delete_replies_that_there_was_a_key() {
    is_found_by("delete_missing", replies(Opcode::DeleteKey, |it| it[0] = 1));
}

#[test]
fn compare_set_of_a_missing_key_replies_with_nothing() {
    let mistake = replies(Opcode::CompareSet, |it| *it = vec![0; 8]);
    is_found_by("cas_missing_nonempty_expected", mistake);
}

#[test]
fn multi_get_replies_with_the_number_of_values() {
    let mistake = replies(Opcode::MultiGet, |it| {
        drop(it.splice(..0, [2, 0, 0, 0, 0, 0, 0, 0]))
    });
    is_found_by("multi_set_get", mistake);
}

#[test]
fn set_replies() {
    is_found_by("set_no_reply", replies(Opcode::Set, |it| it.push(0)));
}

#[test]
fn ping_replies_with_another_byte_order() {
    let mistake = replies(Opcode::Ping, |it| it.reverse());
    is_found_by("handshake_validate_then_ping", mistake);
}

#[test]
fn a_key_too_many_is_counted() {
    is_found_by(
        "num_keys_three",
        replies(Opcode::GetNumKeys, |it| it[0] += 1),
    );
}

#[test]
fn append_replaces() {
    let mistake = requests(Opcode::Append, |it| it[0] = Opcode::Set as u8);
    is_found_by("append_existing", mistake);
}

#[test]
fn a_cancel_is_answered_twice() {
    let mistake = replies(Opcode::CancelWait, |it| it.push(1));
    is_found_by("cancel_pending_wait", mistake);
}

#[test]
fn a_wait_that_ends_replies_as_one_that_is_cancelled() {
    is_found_by("wait_present", replies(Opcode::Wait, |it| it[0] = 1));
}

#[test]
fn a_wait_for_several_keys_looks_at_the_first() {
    let mistake = requests(Opcode::Wait, |it| {
        let first_bytes = LittleEndian::read_u64(&it[9..17]) as usize;
        LittleEndian::write_u64(&mut it[1..9], 1);
        it.truncate(17 + first_bytes);
    });
    is_found_by("m_wait_two_keys_two_setters", mistake);
}

#[test]
fn a_barrier_ends_one_too_early() {
    let mistake = requests(Opcode::Barrier, |it| {
        let size_at = it.len() - 8;
        let size = LittleEndian::read_i64(&it[size_at..]);
        LittleEndian::write_i64(&mut it[size_at..], size - 1);
    });
    is_found_by("barrier_two_first_is_silent", mistake);
}

#[test]
fn the_length_of_a_queue_counts_an_element_that_was_taken() {
    is_found_by(
        "queue_push_len_pop",
        replies(Opcode::QueueLen, |it| it[0] += 1),
    );
}
