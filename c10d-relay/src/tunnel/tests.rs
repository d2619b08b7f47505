use std::collections::VecDeque;

use c10d_socket::HostPort;

use super::*;

/// A side in memory.
#[derive(Default)]
struct Memory {
    /// Its input: bytes, the end (no bytes), or an error. Without more, reading would block.
    arrives: VecDeque<Result<Vec<u8>, io::ErrorKind>>,
    sent: Vec<u8>,
    /// How many bytes it takes.
    room: usize,
    fails_to_take: bool,
    is_shut: bool,
}

impl Memory {
    fn that_sends(pieces: &[&[u8]]) -> Self {
        Self {
            arrives: pieces.iter().map(|piece| Ok(piece.to_vec())).collect(),
            room: usize::MAX,
            ..Self::default()
        }
    }
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut piece = match self.arrives.pop_front() {
            None => return Err(io::ErrorKind::WouldBlock.into()),
            Some(piece) => piece?,
        };
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        let rest = piece.split_off(count);
        if !rest.is_empty() {
            self.arrives.push_front(Ok(rest));
        }
        Ok(count)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fails_to_take {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.room -= count;
        self.sent.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Side for Memory {
    fn shut(&mut self) {
        self.is_shut = true;
    }
}

struct Test {
    tunnel: Tunnel<Memory>,
    now: Instant,
}

impl Test {
    fn new(client: Memory, store: Memory) -> Self {
        let now = Instant::now();
        let target = HostPort::new("node0", 29_500).into();
        let tunnel = Tunnel::new(client, b"GET ", target, Ok(store), now);
        Self { tunnel, now }
    }

    /// Serves the tunnel until nothing moves. Returns whether it is open.
    fn pump(&mut self) -> bool {
        self.tunnel.on_event();
        while self.tunnel.is_ready {
            if !self.tunnel.serve(&mut [0; 4096], self.now) {
                return false;
            }
        }
        true
    }

    fn store(&mut self) -> &mut Memory {
        self.tunnel.store.as_mut().expect("it can be reached")
    }

    fn client(&mut self) -> &mut Memory {
        &mut self.tunnel.client
    }
}

#[test]
fn bytes_pass_in_both_directions_until_both_sides_have_ended() {
    let client = Memory::that_sends(&[b"/ HTTP/1.1", b"\r\n\r\n", b""]);
    let mut test = Test::new(client, Memory::that_sends(&[b"HTTP/1.1 ", b"200 OK"]));
    assert!(test.pump());
    assert_eq!(test.store().sent, b"GET / HTTP/1.1\r\n\r\n");
    assert!(test.store().is_shut, "a half-closed client");
    assert_eq!(test.client().sent, b"HTTP/1.1 200 OK");
    assert!(!test.client().is_shut);
    test.store()
        .arrives
        .extend([Ok(b"\r\n".into()), Ok(vec![])]);
    assert!(!test.pump());
    assert_eq!(test.client().sent, b"HTTP/1.1 200 OK\r\n");
    assert!(test.client().is_shut);
}

#[test]
fn a_side_that_takes_nothing_stops_the_other_one() {
    let mut test = Test::new(Memory::that_sends(&[&[b'c'; 1 << 20]]), Memory::default());
    assert!(test.pump());
    assert_eq!(test.tunnel.to_store.unsent.unsent_bytes(), UNSENT_BYTES_MAX);

    let store = Memory::that_sends(&[&[b's'; 300_000], b""]);
    let mut test = Test::new(Memory::default(), store);
    assert!(test.pump());
    assert_eq!(
        test.tunnel.to_client.unsent.unsent_bytes(),
        UNSENT_BYTES_MAX
    );
    test.client().room = 299_999;
    assert!(test.pump());
    assert!(!test.client().is_shut);
    let nearly = test.tunnel.close_at;
    test.now += Duration::from_secs(1);
    assert!(test.pump());
    assert_eq!(test.tunnel.close_at, nearly, "nothing has moved");
    test.client().room = 1;
    assert!(test.pump());
    assert!(test.client().is_shut);
    assert_eq!(test.client().sent.len(), 300_000);
    test.client()
        .arrives
        .extend([Ok(vec![b'x'; 10]), Ok(vec![])]);
    assert!(!test.pump());
    assert_eq!(test.store().sent, b"GET ", "the store had ended");
}

#[test]
fn a_turn_is_bounded() {
    let client = Memory::that_sends(&[&[b'c'; 100_000]]);
    let mut test = Test::new(client, Memory::that_sends(&[]));
    assert!(test.tunnel.serve(&mut [0; 4096], test.now));
    assert_eq!(test.store().sent.len(), 4 + 4096);
    assert!(test.tunnel.is_ready(), "there is more");
    assert!(test.pump());
    assert_eq!(test.store().sent.len(), 4 + 100_000);
    assert!(!test.tunnel.is_ready());
}

#[test]
fn an_answer_before_a_reset_reaches_the_client() {
    let mut test = Test::new(Memory::that_sends(&[b"A: b\r\n"]), Memory::that_sends(&[]));
    assert!(test.pump());
    test.store().fails_to_take = true;
    let reset = Err(io::ErrorKind::ConnectionReset);
    test.store()
        .arrives
        .extend([Ok(b"HTTP/1.1 431".into()), reset]);
    test.client().arrives.push_back(Ok(b"more".into()));
    assert!(test.pump());
    assert_eq!(test.client().sent, b"HTTP/1.1 431");
    assert!(test.client().is_shut);
    assert!(test.tunnel.close_at <= test.now + CLOSING_TIMEOUT);
    test.now += CLOSING_TIMEOUT;
    assert!(!test.pump());
}

/// Otherwise the client gets a reset, which may discard the answer.
#[test]
fn bytes_for_a_store_that_has_ended_are_read_without_an_event() {
    let client = Memory::that_sends(&[&[b'c'; 1 << 20]]);
    let mut test = Test::new(client, Memory::default());
    assert!(test.pump());
    assert_eq!(test.tunnel.to_store.unsent.unsent_bytes(), UNSENT_BYTES_MAX);
    test.store().arrives.extend([Ok(b"413".into()), Ok(vec![])]);
    assert!(test.pump());
    assert_eq!(test.client().sent, b"413");
    assert!(test.client().is_shut && test.client().arrives.is_empty());
}

#[test]
fn a_store_that_cannot_be_reached_is_an_answer() {
    let refused = Memory {
        arrives: [Err(io::ErrorKind::ConnectionRefused)].into(),
        ..Memory::default()
    };
    let mut test = Test::new(Memory::that_sends(&[b"/ HTTP"]), refused);
    assert!(test.pump());
    let text = String::from_utf8(test.client().sent.clone()).expect("text");
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    let body = "\r\n\r\nthis is a relay of the store at node0:29500, and it cannot be connected: connection refused\n";
    assert!(text.ends_with(body), "{text}");
    assert!(test.client().is_shut);
    test.client()
        .arrives
        .extend([Ok(b"/1.1\r\n".into()), Ok(vec![])]);
    assert!(!test.pump());
}

#[test]
fn a_store_that_does_not_accept_has_a_deadline_and_so_has_an_idle_tunnel() {
    let silent = Memory {
        arrives: [Err(io::ErrorKind::NotConnected)].into(),
        ..Memory::default()
    };
    let mut test = Test::new(Memory::that_sends(&[b"/"]), silent);
    assert!(test.pump());
    assert_eq!(test.tunnel.close_at, test.now + CONNECT_TIMEOUT);
    test.now += CONNECT_TIMEOUT;
    assert!(test.pump());
    let text = String::from_utf8_lossy(&test.client().sent).into_owned();
    assert!(text.starts_with("HTTP/1.1 503 ") && text.ends_with("within 3s\n"));
    test.now += CLOSING_TIMEOUT;
    assert!(!test.pump());

    let mut test = Test::new(Memory::that_sends(&[b"/"]), Memory::that_sends(&[]));
    assert!(test.pump());
    assert_eq!(test.tunnel.close_at, test.now + IDLE_TIMEOUT);
    test.now += IDLE_TIMEOUT;
    assert!(!test.pump());
    assert!(
        test.client().sent.is_empty(),
        "there is no request to answer"
    );
}

/// A stopped store: the system accepts the connection and takes the request.
#[test]
fn a_store_that_takes_a_request_and_does_not_answer_is_an_answer() {
    let client = Memory::that_sends(&[b"/ HTTP/1.1\r", b"\n\r", b"\n"]);
    let mut test = Test::new(client, Memory::that_sends(&[]));
    assert!(test.pump());
    test.now += IDLE_TIMEOUT;
    assert!(test.pump());
    let text = String::from_utf8_lossy(&test.client().sent).into_owned();
    assert!(text.starts_with("HTTP/1.1 504 "), "{text}");
    let body = "the store at node0:29500, and it has not answered this request within 15s\n";
    assert!(text.ends_with(body), "{text}");
    test.now += CLOSING_TIMEOUT;
    assert!(!test.pump());
}

#[test]
fn a_tunnel_is_busy_from_its_request_until_its_answer_has_been_taken() {
    let mut test = Test::new(
        Memory::that_sends(&[b"/ HTTP/1.1\r\n"]),
        Memory::that_sends(&[]),
    );
    assert!(test.pump());
    assert!(!test.tunnel.is_busy(), "the head is not complete");
    test.client().arrives.push_back(Ok(b"\r\n".into()));
    assert!(test.pump());
    assert!(test.tunnel.is_busy());
    test.client().room = 0;
    test.store()
        .arrives
        .push_back(Ok(b"HTTP/1.1 200 OK".into()));
    assert!(test.pump());
    assert!(test.tunnel.is_busy(), "the client has not taken the answer");
    test.client().room = usize::MAX;
    assert!(test.pump());
    assert!(!test.tunnel.is_busy());
    for (head, is_request) in [("\r\n\n\r\n", false), ("a\r\r\n\r\n", true)] {
        test.client().arrives.push_back(Ok(head.into()));
        assert!(test.pump());
        assert_eq!(test.tunnel.is_busy(), is_request, "{head:?}");
    }
}

/// Like with a store without pages: the client finds out the kind of the listener.
#[test]
fn a_store_that_closes_without_an_answer_closes_the_client() {
    for end in [Ok(vec![]), Err(io::ErrorKind::ConnectionReset)] {
        let mut test = Test::new(Memory::that_sends(&[]), Memory::that_sends(&[]));
        assert!(test.pump());
        test.store().arrives.push_back(end);
        assert!(test.pump());
        assert!(test.client().is_shut && test.client().sent.is_empty());
    }
}

#[test]
fn a_client_that_fails_ends_its_tunnel() {
    let mut test = Test::new(Memory::that_sends(&[]), Memory::that_sends(&[b"HTTP"]));
    test.client().fails_to_take = true;
    assert!(!test.pump());
    let mut test = Test::new(Memory::that_sends(&[]), Memory::that_sends(&[]));
    let reset = Err(io::ErrorKind::ConnectionReset);
    test.client().arrives.push_back(reset);
    assert!(!test.pump());
}
