//! The last bytes that a connection receives when it ends, and its effect on other connections.

use c10d_store::Opcode;
use c10d_store::{ServerOptions, TcpStoreServer, WireLimits};

use crate::raw::{Raw, serve, wait_until};

fn wait(peer: &mut Raw, key: &[u8]) {
    peer.request(|r| {
        r.opcode(Opcode::Wait).count(1).raw_key(key);
    });
    peer.fence();
}

const UNKNOWN_COMMAND: [u8; 1] = [0x7f];

/// docs/spec/wire.md, CLOSE 1 and 3. A close with unread input would reset the connection.
#[test]
fn a_refused_peer_that_goes_on_sending_gets_its_earlier_replies() {
    let server = serve();
    let mut peer = Raw::with_handshake(server.local_addr());
    let mut bytes = vec![0x0d, 9, 9, 9, 9];
    bytes.extend(UNKNOWN_COMMAND);
    bytes.resize(2 << 20, 7);
    peer.send(&bytes);
    assert_eq!(peer.read_to_close(), [9, 9, 9, 9]);
    wait_until("the peer does not close, but the server does", || {
        server.connection_count() == 0
    });
}

/// docs/spec/wire.md, CLOSE 2.
#[test]
fn a_refused_peer_leaves_no_wait_and_passes_its_wakeup_on() {
    let server = serve();
    let mut peers = [(); 4].map(|()| Raw::with_handshake(server.local_addr()));
    let [woken, next, waiting, other] = &mut peers;
    wait(woken, b"q");
    wait(next, b"q");
    wait(waiting, b"k");
    other.request(|r| {
        r.opcode(Opcode::QueuePush).raw_key(b"q").value(b"e");
    });
    woken.expect(&[0]);
    woken.send(&UNKNOWN_COMMAND);
    next.expect(&[0]);
    waiting.send(&UNKNOWN_COMMAND);
    wait_until("no wait is left", || server.waiting_count() == 0);
    // Its peers have not closed their ends.
    assert_eq!(waiting.read_to_close(), b"");
}

/// docs/spec/wire.md, WAIT 8 and CLOSE 6.
#[test]
fn a_peer_that_half_closes_gets_no_reply_to_its_wait() {
    let server = serve();
    let mut peer = Raw::with_handshake(server.local_addr());
    peer.send(&[0x0d, 9, 9, 9, 9]);
    peer.wait(b"k");
    peer.close_sending();
    assert_eq!(peer.read_to_close(), [9, 9, 9, 9]);
    wait_until("no wait is left", || server.waiting_count() == 0);
}

/// docs/spec/wire.md, ORDER 3 and 5, PING 2.
#[test]
fn a_reply_shows_that_others_see_what_was_sent_before_it() {
    let server = serve();
    let mut writer = Raw::with_handshake(server.local_addr());
    let mut reader = Raw::with_handshake(server.local_addr());
    for number in 1..=200 {
        let value = [number];
        writer.set(b"k", &value);
        writer.fence();
        reader.request(|r| {
            r.opcode(Opcode::Get).raw_key(b"k");
        });
        reader.expect(&[1, 0, 0, 0, 0, 0, 0, 0, number]);
        // The reply to a change follows after the change.
        writer.request(|r| {
            r.opcode(Opcode::Add).raw_key(b"n").i64(1);
        });
        writer.expect(&[number, 0, 0, 0, 0, 0, 0, 0]);
        reader.request(|r| {
            r.opcode(Opcode::Add).raw_key(b"n").i64(0);
        });
        reader.expect(&[number, 0, 0, 0, 0, 0, 0, 0]);
    }
}

/// docs/spec/wire.md, APPEND 2.
#[test]
fn an_appended_value_may_exceed_the_limit_of_a_request() {
    let mut limits = WireLimits::default();
    limits.value_bytes_max = 4;
    let options = ServerOptions::default().with_limits(limits);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    let mut peer = Raw::with_handshake(server.local_addr());
    for _ in 0..3 {
        peer.request(|r| {
            r.opcode(Opcode::Append).raw_key(b"k").value(b"1234");
        });
    }
    peer.request(|r| {
        r.opcode(Opcode::Get).raw_key(b"k");
    });
    peer.expect(&[12, 0, 0, 0, 0, 0, 0, 0]);
    peer.expect(b"123412341234");
}
