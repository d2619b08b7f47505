//! Peers that do not complete the handshake. The tests of `c10d-relay` also use this file.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Peers that are silent, and those that have sent a part of the handshake, are closed after the time limit and without
/// an answer.
pub(crate) fn are_closed_after(limit: Duration, address: SocketAddr) {
    let started = Instant::now();
    let strangers = [&[][..], &[0], &[0, 0xce, 0xf7]].map(|sent| {
        let mut stranger = TcpStream::connect(address).expect("the server listens");
        stranger.write_all(sent).expect("it is accepted");
        stranger
    });
    for mut stranger in strangers {
        let patience = stranger.set_read_timeout(Some(PATIENCE));
        patience.expect("a socket option");
        let mut answer = Vec::new();
        if let Err(error) = stranger.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        assert_eq!(answer, b"");
        assert!(started.elapsed() >= limit);
    }
}
