//! The first bytes of a connection.

use super::SimServer;
use crate::wire::Opcode;

const CONN: u64 = 3;
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
/// CHECK of no keys, which is answered with 0.
const MARK: [u8; 9] = [5, 0, 0, 0, 0, 0, 0, 0, 0];

/// docs/spec/wire.md, VALIDATE 2 and 4, PING 2.
#[test]
fn a_connection_begins_with_validate_in_any_pieces() {
    for piece in 1..=VALIDATE.len() {
        let mut server = SimServer::default();
        for bytes in VALIDATE.chunks(piece) {
            server.send(CONN, bytes);
            assert!(server.take(CONN).is_empty());
        }
        server.send(CONN, &MARK);
        assert_eq!(server.take(CONN), [0]);
        server.send(CONN, &[0x0d, 1, 2, 3, 4]);
        assert_eq!(server.take(CONN), [1, 2, 3, 4], "a late PING");
        assert!(!server.is_closed(CONN));
    }
}

/// docs/spec/wire.md, VALIDATE 1 and 3.
#[test]
fn any_other_first_command_is_refused_on_arrival() {
    for first in 1..=u8::MAX {
        let mut server = SimServer::default();
        server.send(CONN, &[first]);
        assert!(server.is_closed(CONN), "{first:#x}");
        assert!(server.take(CONN).is_empty());
    }
    assert_eq!(Opcode::Validate as u8, 0);
}

/// docs/spec/wire.md, VALIDATE 1 and 3.
#[test]
fn a_wrong_magic_number_or_a_second_validate_is_refused_once_it_is_complete() {
    for (before, refused) in [
        (&[][..], [0, 0xce, 0xf7, 0x85, 0x3d]),
        (&VALIDATE, VALIDATE),
    ] {
        let mut server = SimServer::default();
        server.send(CONN, before);
        server.send(CONN, &refused[..4]);
        assert!(!server.is_closed(CONN));
        server.send(CONN, &refused[4..]);
        assert!(server.is_closed(CONN));
        assert!(server.take(CONN).is_empty());
    }
}

/// [`SimServer::open`] checks the nonce, which shows no capability.
#[cfg(not(feature = "extensions"))]
#[test]
fn a_server_without_extensions_announces_none_and_refuses_their_commands() {
    for command in 0x80..=u8::MAX {
        let mut server = SimServer::default();
        server.open(CONN);
        server.send(CONN, &[command]);
        assert!(server.is_closed(CONN), "{command:#x}");
        assert!(server.take(CONN).is_empty());
    }
}
