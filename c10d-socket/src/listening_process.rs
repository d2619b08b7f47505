//! Finds the process of this machine that listens on a port. Works on Linux only, which lists sockets and descriptors
//! in `/proc`.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::printable;

/// The most characters of a command line that are shown.
const COMMAND_CHARS_MAX: usize = 32;

/// The state of a listening socket in /proc/net/tcp.
const LISTEN: &str = "0A";

/// A process that listens on a port of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListeningProcess {
    /// The process id, in the namespace of this process.
    pub pid: u32,
    /// The program without the directory, and its arguments, with printable characters only and shortened.
    pub command: String,
}

impl ListeningProcess {
    /// Finds the process that accepts the connections to `address`, which is an address of this machine. `None` if there is
    /// no such process, or the system does not show it: another user's processes are visible to root only, and processes
    /// in other containers are not visible. Does not block; reads the descriptors of all visible processes.
    ///
    /// ```
    /// use c10d_socket::ListeningProcess;
    /// use std::net::TcpListener;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # #[cfg(target_os = "linux")]
    /// let process = ListeningProcess::at(listener.local_addr()?).expect("this process");
    /// # #[cfg(target_os = "linux")]
    /// assert_eq!(process.pid, std::process::id());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn at(address: SocketAddr) -> Option<Self> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
        let inodes: Vec<u64> = (tables.iter())
            .flat_map(|table| table.lines())
            .filter_map(|line| inode_of_listener(line, address))
            .collect();
        if inodes.is_empty() {
            return None;
        }
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pid = pids.find(|&pid| has_socket(pid, &inodes))?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = short_command(&String::from_utf8_lossy(&command));
        Some(Self {
            pid,
            command: printable(&command, COMMAND_CHARS_MAX).to_string(),
        })
    }
}

impl fmt::Display for ListeningProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        match self.command.as_str() {
            "" => Ok(()),
            command => write!(f, ", `{command}`"),
        }
    }
}

/// The program without its directory, and its arguments.
fn short_command(command_line: &str) -> String {
    let (program, arguments) = command_line.split_once('\0').unwrap_or((command_line, ""));
    let name = program.rsplit('/').next().unwrap_or_default();
    format!("{name} {}", arguments.replace('\0', " "))
        .trim()
        .to_owned()
}

/// Whether the process has one of the sockets.
fn has_socket(pid: u32, inodes: &[u64]) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors.flatten().any(|entry| {
        let link = fs::read_link(entry.path()).ok();
        let inode = link.and_then(|link| {
            let inode = link.to_str()?.strip_prefix("socket:[")?;
            inode.strip_suffix(']')?.parse().ok()
        });
        inode.is_some_and(|inode| inodes.contains(&inode))
    })
}

/// The inode of the socket in a line of /proc/net/tcp or tcp6, if it accepts connections to `address`.
fn inode_of_listener(line: &str, address: SocketAddr) -> Option<u64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (&local, &state, &inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
    let (ip, port) = local.split_once(':')?;
    let ip = ip_of_hex(ip)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let accepts = ip == address.ip().to_canonical()
        || ip == Ipv6Addr::UNSPECIFIED
        || (ip == Ipv4Addr::UNSPECIFIED && address.is_ipv4());
    (state == LISTEN && port == address.port() && accepts).then(|| inode.parse().ok())?
}

/// An address in /proc/net/tcp: 32-bit numbers in the machine's order, in hexadecimal.
#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel prints the numbers as the machine reads them"
)]
fn ip_of_hex(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at..at + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let mut octets = [0; 16];
            octets.copy_from_slice(words.as_flattened());
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_is_found_on_its_addresses_only() {
        for (bound, asked, is_found) in [
            ("127.0.0.1:0", "127.0.0.1", true),
            ("127.0.0.1:0", "127.0.0.2", false),
            ("0.0.0.0:0", "127.0.0.2", true),
            ("[::]:0", "127.0.0.1", true),
            ("[::1]:0", "::1", true),
            ("[::1]:0", "127.0.0.1", false),
        ] {
            let listener = TcpListener::bind(bound).expect("a port");
            let port = listener.local_addr().expect("bound").port();
            let asked = SocketAddr::new(asked.parse().expect("an address"), port);
            let found = ListeningProcess::at(asked).map(|process| process.pid);
            let expected = is_found.then(std::process::id);
            assert_eq!(found, expected, "{bound} {asked}");
        }
    }

    #[test]
    fn a_command_is_shown_without_its_directory() {
        for (line, shown) in [
            (
                "/usr/bin/python3\0-m\0http.server\0",
                "python3 -m http.server",
            ),
            ("sleep\0", "sleep"),
            ("", ""),
        ] {
            assert_eq!(short_command(line), shown);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_line_is_parsed_and_a_damaged_line_is_skipped() {
        let line = "   1: 0108080A:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
        let address = "10.8.8.1:29500".parse().expect("an address");
        assert_eq!(inode_of_listener(line, address), Some(4711));
        let connected = line.replace(" 0A ", " 01 ");
        assert_eq!(inode_of_listener(&connected, address), None);
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(inode_of_listener(head, address), None);
        for length in 0..line.len() {
            let _ = inode_of_listener(&line[..length], address);
        }
    }
}
