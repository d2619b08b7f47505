//! Connections that have too many unsent replies.

use super::*;

const UNSENT_BYTES_MAX: usize = 1 << 10;

/// A connection whose replies were too many, at this position of the journal.
fn overflowed(position: u64) -> (Connections, Token) {
    let mut connections = Connections::new(UNSENT_BYTES_MAX);
    let token = connections.insert_client(Client::new(0, 0));
    assert!(connections.may_continue(token));
    connections.depend_on(position);
    connections.reply(conn_id_of(token), Reply::Bytes(&[7; UNSENT_BYTES_MAX + 1]));
    let connection = connections.get(token).expect("it is open");
    assert!(connection.has_overflowed());
    assert_eq!(connection.unsent_bytes(), 0, "they are dropped");
    (connections, token)
}

/// Otherwise the peer would match a later reply to the request whose reply was dropped.
#[test]
fn nothing_is_carried_out_for_a_peer_whose_replies_were_dropped() {
    for position in [0, 7] {
        let (connections, token) = overflowed(position);
        assert!(!connections.may_continue(token), "position {position}");
    }
}

#[test]
fn a_short_output_does_not_undo_an_overflow() {
    for position in [0, 7] {
        let (mut connections, token) = overflowed(position);
        connections.send_after(token, position, b"short");
        let connection = connections.get(token).expect("it is open");
        assert!(connection.has_overflowed(), "position {position}");
        assert!(!connections.may_continue(token), "position {position}");
    }
}
