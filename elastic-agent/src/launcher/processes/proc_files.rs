//! The files of Linux's /proc that tell about processes and their connections. Pure: text in, values out.
//!
//! The formats are in proc_pid_status(5), proc_pid_fd(5), and in the kernel's
//! Documentation/networking/proc_net_tcp.rst.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A line of `/proc/PID/net/tcp` or `tcp6`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::launcher) struct TcpSocket {
    pub(super) local: SocketAddr,
    pub(in crate::launcher) remote: SocketAddr,
    pub(super) state: TcpState,
    /// The bytes in the send queue if the kernel sends them again because the peer has not acknowledged them, otherwise
    /// 0. A peer that acknowledges data but does not read it is probed instead.
    pub(in crate::launcher) repeated_bytes: u32,
    pub(in crate::launcher) inode: u64,
}

/// The timer of a connection that waits for an acknowledgement.
const RETRANSMIT_TIMER: &str = "01";

/// The states that matter here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::launcher) enum TcpState {
    Established,
    SynSent,
}

#[cfg(test)]
impl TcpSocket {
    /// A connection of any local address.
    pub(in crate::launcher) fn established(
        remote: SocketAddr,
        repeated_bytes: u32,
        inode: u64,
    ) -> Self {
        Self {
            local: SocketAddr::from(([0; 4], 0)),
            remote,
            state: TcpState::Established,
            repeated_bytes,
            inode,
        }
    }
}

/// The process id in the process's own namespace, from `/proc/PID/status`.
pub(super) fn inner_pid(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let ids = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    str::from_utf8(ids)
        .ok()?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()
}

/// The inode of a socket, from the target of a link in `/proc/PID/fd`.
pub(super) fn socket_inode(target: &[u8]) -> Option<u64> {
    let number = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// The established sockets and those that try to connect. Skips what it cannot parse.
pub(super) fn tcp_sockets(table: &str) -> impl Iterator<Item = TcpSocket> {
    table.lines().skip(1).filter_map(tcp_socket)
}

fn tcp_socket(line: &str) -> Option<TcpSocket> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (fields.next()?, fields.next()?);
    let state = match fields.next()? {
        "01" => TcpState::Established,
        "02" => TcpState::SynSent,
        _ => return None,
    };
    let (send_queue, _) = fields.next()?.split_once(':')?;
    let (timer, _) = fields.next()?.split_once(':')?;
    let retransmits = fields.next()?;
    let is_repeating = timer == RETRANSMIT_TIMER && hexadecimal(retransmits)? > 0;
    let send_queue = hexadecimal(send_queue)?;
    // After the user and the timeout.
    let inode = fields.nth(2)?.parse().ok()?;
    Some(TcpSocket {
        local: address(local)?,
        remote: address(remote)?,
        state,
        repeated_bytes: if is_repeating { send_queue } else { 0 },
        inode,
    })
}

fn hexadecimal(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits, 16).ok()
}

/// `0100007F:BC8F`, or 32 digits before the colon. IPv4 in IPv6 becomes IPv4.
fn address(text: &str) -> Option<SocketAddr> {
    let (digits, port) = text.split_once(':')?;
    if !digits.is_ascii() || !matches!(digits.len(), 8 | 32) {
        return None;
    }
    let mut bytes = [0; 16];
    let count = digits.len() / 2;
    for (index, word) in bytes[..count].chunks_mut(4).enumerate() {
        let number = hexadecimal(&digits[index * 8..][..8])?;
        word.copy_from_slice(&in_memory_order(number));
    }
    let ip = match <[u8; 4]>::try_from(&bytes[..count]) {
        Ok(bytes) => IpAddr::V4(Ipv4Addr::from(bytes)),
        Err(_) => IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel prints the four bytes of an address as one number of the host"
)]
const fn in_memory_order(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_process_id_is_the_last() {
        let status = b"Name:\tpython\nTgid:\t30168\nNSpid:\t30168\t1\nNSpgid:\t30168\t1\n";
        assert_eq!(inner_pid(status), Some(1));
        assert_eq!(inner_pid(b"NSpid:\t7\n"), Some(7));
        for other in [
            &b""[..],
            b"NSpid:\n",
            b"NSpid:\t\xff\n",
            b"Name:\tNSpid: 7\n",
        ] {
            assert_eq!(inner_pid(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn only_links_to_sockets_have_an_inode() {
        assert_eq!(socket_inode(b"socket:[81234]"), Some(81234));
        for other in [
            &b"pipe:[1]"[..],
            b"socket:[",
            b"socket:[x]",
            b"/tmp/socket:[1]",
        ] {
            assert_eq!(socket_inode(other), None);
        }
    }

    /// Recorded on Linux 6, x86-64.
    #[cfg(target_endian = "little")]
    #[test]
    fn sockets_that_are_connected_or_connecting_are_listed() {
        let v4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 70001 1 \
            0000000000000000 100 0 0 10 0\n   \
            1: 0100007F:BC8F 0100007F:733C 01 00000000:00000000 02:0000A2D5 00000000  1000        0 70002 2 \
            0000000000000000 20 4 30 10 -1\n   \
            2: 0500000A:BC90 0101FF0A:733C 02 00000001:00000000 01:00000063 00000002  1000        0 70003 2 \
            0000000000000000 200 0 0 1 7\n";
        let socket = |local: &str, remote: &str, state, inode| TcpSocket {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            state,
            repeated_bytes: u32::from(state == TcpState::SynSent),
            inode,
        };
        let expected = [
            socket(
                "127.0.0.1:48271",
                "127.0.0.1:29500",
                TcpState::Established,
                70002,
            ),
            socket(
                "10.0.0.5:48272",
                "10.255.1.1:29500",
                TcpState::SynSent,
                70003,
            ),
        ];
        assert_eq!(tcp_sockets(v4).collect::<Vec<_>>(), expected);
        let v6 = "  sl  local_address                         remote_address                        st tx_queue \
            rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0000000000000000FFFF00000100007F:9C4A 0000000000000000FFFF00000100007F:733C 01 \
            00000000:00000000 02:00000F5C 00000000  1000        0 70010 2 0000000000000000 20 4 26 10 -1\n   \
            1: B80D0120000000000000000001000000:9C4B B80D0120000000000000000002000000:733C 01 \
            00000000:00000000 02:00000F5C 00000000  1000        0 70011 2 0000000000000000 20 4 26 10 -1\n";
        let expected = [
            socket(
                "127.0.0.1:40010",
                "127.0.0.1:29500",
                TcpState::Established,
                70010,
            ),
            socket(
                "[2001:db8::1]:40011",
                "[2001:db8::2]:29500",
                TcpState::Established,
                70011,
            ),
        ];
        assert_eq!(tcp_sockets(v6).collect::<Vec<_>>(), expected);
    }

    /// Recorded on Linux 6, x86-64: the link of the peer went down after the first connection had sent data, and the peer
    /// of the second connection does not read.
    #[cfg(target_endian = "little")]
    #[test]
    fn bytes_that_are_sent_again_are_told_from_a_full_receiver() {
        let v4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0108080A:CA78 0208080A:C351 01 00001040:00000000 01:0000000D 00000003     0        0 2823501 2 \
            000000008c1fa976 163 0 0 1 -1\n   \
            1: 0108080A:CA80 0208080A:C351 01 00008358:00000000 04:000000DE 00000000     0        3 2823503 2 \
            00000000d5a65f27 21 0 0 100 -1\n";
        let v6 = "  sl  local_address                         remote_address                        st tx_queue \
            rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 080000FD000000000000000001000000:866C 080000FD000000000000000002000000:C352 01 \
            00001040:00000000 01:000000F4 00000004     0        0 2823502 2 00000000df582efc 326 0 0 1 -1\n";
        let found = [v4, v6].into_iter().flat_map(tcp_sockets);
        let found: Vec<_> = found
            .map(|it| (it.remote.to_string(), it.repeated_bytes, it.inode))
            .collect();
        let expected = [
            ("10.8.8.2:50001", 0x1040, 2_823_501),
            ("10.8.8.2:50001", 0, 2_823_503),
            ("[fd00:8::2]:50002", 0x1040, 2_823_502),
        ];
        assert_eq!(
            found,
            expected.map(|(remote, bytes, inode)| (remote.to_owned(), bytes, inode))
        );
    }

    /// The kernel prints the four bytes of an address as one number, so the digits depend on the host's byte order.
    #[test]
    fn an_address_has_the_byte_order_of_the_host() {
        let (little, big) = ("0208080A:0050", "0A080802:0050");
        let expected = "10.8.8.2:80".parse().ok();
        let (own, other) = if cfg!(target_endian = "little") {
            (little, big)
        } else {
            (big, little)
        };
        assert_eq!(address(own), expected);
        assert_ne!(address(other), expected);
    }

    #[test]
    fn a_malformed_line_is_skipped() {
        for line in [
            "",
            "0:",
            "0: 0100007F:733C 0100007F 01 0:0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100007F:1 01 0:0 0:0 0 0 0",
            "0: 0100007F:733C 0100007:1 01 0:0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100\u{e9}7F:1 01 0:0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100007F:10000 01 0:0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100007F:1 01 0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100007F:1 01 x:0 0:0 0 0 0 7",
            "0: 0100007F:733C 0100007F:1 01 100000000:0 01:0 1 0 0 7",
            "0: 0100007F:733C 0100007F:1 01 1:0 01:0 -1 0 0 7",
        ] {
            let table = format!("header\n{line}\n");
            assert_eq!(tcp_sockets(&table).count(), 0, "{line}");
        }
    }
}
