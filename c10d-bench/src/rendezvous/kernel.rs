//! Figures of the system: a clock for all processes, bytes on the loopback device, open connections, memory.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How long the other traffic on the loopback device is measured.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// The time of a monotonic clock that all processes of this machine share, unlike [`Instant`].
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock starts at 0, so the conversions succeed.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes on the loopback device, with the headers and acknowledgements of TCP/IP.
#[derive(Debug)]
pub(super) struct Loopback {
    /// What other programs move, in bytes a second; `None` without /proc.
    pub(super) idle_rate: Option<f64>,
}

/// The counter of the device at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoopbackStart {
    bytes: Option<u64>,
    at: Instant,
}

impl Loopback {
    /// Measures the traffic of other programs for a second.
    pub(super) fn measure_idle() -> Self {
        let unadjusted = Self {
            idle_rate: Some(0.0),
        };
        let start = unadjusted.start();
        if start.bytes.is_some() {
            thread::sleep(IDLE_TIME);
        }
        let seconds = start.at.elapsed().as_secs_f64();
        Self {
            idle_rate: unadjusted.moved_since(start).map(|bytes| bytes / seconds),
        }
    }

    pub(super) fn start(&self) -> LoopbackStart {
        LoopbackStart {
            bytes: loopback_bytes(),
            at: Instant::now(),
        }
    }

    /// The bytes moved since then, without those of other programs. `None` without /proc.
    pub(super) fn moved_since(&self, start: LoopbackStart) -> Option<f64> {
        let moved = loopback_bytes()?.saturating_sub(start.bytes?);
        let idle = self.idle_rate? * start.at.elapsed().as_secs_f64();
        Some((moved as f64 - idle).max(0.0))
    }
}

/// The bytes received on the loopback device of this network namespace.
fn loopback_bytes() -> Option<u64> {
    received_on_loopback(&fs::read_to_string("/proc/self/net/dev").ok()?)
}

fn received_on_loopback(devices: &str) -> Option<u64> {
    let counters = devices
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("lo:"))?;
    counters.split_ascii_whitespace().next()?.parse().ok()
}

/// The memory that the system can give to new processes, in bytes; `None` without /proc.
pub(super) fn available_memory() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// The number of open connections to a server on this machine; `None` without /proc.
pub(super) fn connections_to(port: u16) -> Option<usize> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(fs::read_to_string);
    let [Ok(ipv4), ipv6] = tables else {
        return None;
    };
    // Columns: number, own address, peer's address, state, all in hex; 01 is an open connection.
    let suffix = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        columns.next().is_some_and(|own| own.ends_with(&suffix)) && columns.nth(1) == Some("01")
    };
    // A system without IPv6 has no second table.
    let lines = ipv4.lines().chain(ipv6.as_deref().unwrap_or("").lines());
    Some(lines.filter(is_one).count())
}

#[cfg(test)]
mod tests {
    use c10d_store::{ServerOptions, StoreExt, TcpStore, TcpStoreServer};

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn only_connections_of_one_server_are_counted() {
        let bind = || TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let connect = |server: &TcpStoreServer| {
            let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
            // The answer proves that the server has accepted.
            store.ping().unwrap();
            store
        };
        let (counted, other) = (bind(), bind());
        let port = counted.local_addr().port();
        assert_eq!(connections_to(port), Some(0));
        let _stores = [&counted, &counted, &other].map(connect);
        assert_eq!(connections_to(port), Some(2));
    }

    #[test]
    fn the_loopback_device_is_found_among_others() {
        let devices = "Inter-|   Receive\n face |bytes    packets\n\
                       eth0: 77 1 0 0 0 0 0 0 88 1\n    lo: 684186396708 188684342 0 4496\n";
        assert_eq!(received_on_loopback(devices), Some(684_186_396_708));
        // A large counter follows the colon without a space.
        assert_eq!(received_on_loopback("lo:12345 6\n"), Some(12_345));
        assert_eq!(received_on_loopback("eth0: 77 1\n"), None);
        assert_eq!(received_on_loopback(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn traffic_is_counted_without_that_of_other_programs() {
        // A device that has just started to count has less traffic than is claimed below.
        let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
        let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
        store.set("k", [0; 2000]).unwrap();
        let moved = |idle_rate, bytes: u64| {
            let start = LoopbackStart {
                bytes: Some(loopback_bytes()?.checked_sub(bytes)?),
                at: Instant::now().checked_sub(Duration::from_secs(2))?,
            };
            Loopback { idle_rate }.moved_since(start)
        };
        assert!(moved(Some(0.0), 1000).unwrap() >= 1000.0);
        assert_eq!(moved(Some(1e15), 1000), Some(0.0));
        assert_eq!(moved(None, 1000), None);
    }
}
