//! The values that the server's thread shares with other threads: counters that they read, and a limit that they set.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

#[cfg(feature = "extensions")]
use {super::http::InstalledHandler, crate::journal::JournalError};

/// The most addresses of other hosts that are remembered.
const PEERS_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicUsize,
    /// Connections that wait for a key, a barrier or an element of a queue.
    pub(super) waiting: AtomicUsize,
    /// The most memory of the data in bytes; 0 for no limit.
    pub(super) memory_max: AtomicUsize,
    /// Another process leads, or may.
    pub(super) is_standby: AtomicBool,
    /// The address at which the first client of another host has reached this host.
    pub(super) reached_at: OnceLock<IpAddr>,
    /// The addresses of the clients of other hosts, each once, the latest last.
    peers: Mutex<Vec<IpAddr>>,
    /// Why the server has stopped because of its journal.
    #[cfg(feature = "extensions")]
    pub(super) journal_failure: OnceLock<JournalError>,
    /// The handler of connections that speak HTTP.
    #[cfg(feature = "extensions")]
    pub(super) http_handler: InstalledHandler,
}

impl Counts {
    pub(super) fn peers(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        // The code that holds the lock does not panic.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a client of another host, which has reached this host at `local`.
    pub(super) fn note_peer(&self, peer: IpAddr, local: IpAddr) {
        let _ = self.reached_at.set(local);
        let mut peers = self.peers();
        peers.retain(|known| *known != peer);
        if peers.len() == PEERS_MAX {
            peers.remove(0);
        }
        peers.push(peer);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn the_latest_hosts_are_remembered_once_each() {
        let counts = Counts::default();
        let ip = |last| IpAddr::from(Ipv4Addr::new(10, 8, 8, last));
        for last in [9, 1, 2, 3, 4, 9, 5, 6, 7, 8, 8] {
            counts.note_peer(ip(last), ip(100 + last));
        }
        assert_eq!(*counts.peers(), [2, 3, 4, 9, 5, 6, 7, 8].map(ip));
        assert_eq!(counts.reached_at.get(), Some(&ip(109)));
    }
}
