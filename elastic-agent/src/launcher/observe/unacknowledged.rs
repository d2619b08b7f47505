//! Connections whose data stays unacknowledged. Pure.

use std::cmp::Reverse;

use c10d_inspect::UnacknowledgedData;

use crate::launcher::processes::TcpSocket;

/// The most connections of a worker that are announced.
const CONNECTIONS_MAX: usize = 4;

/// Returns the connections whose data is unacknowledged now and was some seconds before, the largest queues first. After
/// a lost packet alone, the data is sent again and acknowledged within a second.
pub(super) fn still_unacknowledged(
    now: &[TcpSocket],
    before: &[TcpSocket],
) -> Vec<UnacknowledgedData> {
    // The inode of a closed socket can be used again.
    let is_same = |a: &TcpSocket, b: &TcpSocket| (a.inode, a.remote) == (b.inode, b.remote);
    let was_seen = |socket: &&TcpSocket| before.iter().any(|it| is_same(it, socket));
    let mut still: Vec<&TcpSocket> = now.iter().filter(was_seen).collect();
    still.sort_by_key(|socket| (Reverse(socket.repeated_bytes), socket.remote));
    still.truncate(CONNECTIONS_MAX);
    let announced = still.into_iter().map(|socket| UnacknowledgedData {
        remote: socket.remote,
        bytes: socket.repeated_bytes.into(),
    });
    announced.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(inode: u64, port: u16, repeated_bytes: u32) -> TcpSocket {
        TcpSocket::established(([10, 0, 0, 2], port).into(), repeated_bytes, inode)
    }

    #[test]
    fn only_the_same_connection_in_both_samples_counts() {
        let before: Vec<_> = (1..9).map(|port| socket(port.into(), port, 10)).collect();
        let now = [
            socket(1, 1, 10),
            socket(2, 2, 30),
            // Another connection with the inode of a closed one, and a new one.
            socket(3, 99, 50),
            socket(77, 4, 50),
        ];
        let found = still_unacknowledged(&now, &before);
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.remote.port(), it.bytes))
            .collect();
        assert_eq!(found, [(2, 30), (1, 10)]);
        assert_eq!(still_unacknowledged(&now, &[]), []);
        assert_eq!(
            still_unacknowledged(&before, &before).len(),
            CONNECTIONS_MAX
        );
    }
}
