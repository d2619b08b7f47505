//! The user at the other end of a loopback connection.

use std::io;
use std::net::SocketAddr;

/// Returns the user id of the process at the other end of a TCP connection within this machine, by its two addresses
/// as seen from this end: both are loopback, or the same address of this machine. `None` for any other connection,
/// and for a closed connection. Takes about 13 us.
///
/// Asks the kernel (sock_diag(7)) for the one socket, which works for any user. It distinguishes users, not the
/// processes of one user.
///
/// ```
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let near = TcpStream::connect(listener.local_addr()?)?;
/// let (far, peer) = listener.accept()?;
/// let user = c10d_socket::loopback_user(far.local_addr()?, peer);
/// # #[cfg(target_os = "linux")]
/// assert_eq!(user?, Some(c10d_socket::own_user()));
/// # drop(near);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] on systems other than Linux; the system's error, for instance in a sandbox without
/// netlink.
pub fn loopback_user(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    let (local, peer) = (canonical(local), canonical(peer));
    if !peer.ip().is_loopback() && peer.ip() != local.ip() {
        return Ok(None);
    }
    query(local, peer)
}

/// Returns the user id of this process.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks that [`loopback_user`] can distinguish the user of this process from other users. It cannot in a user
/// namespace whose user is the kernel's overflow user: the kernel reports this user for each user without an id in
/// the namespace.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`], with the reason.
pub fn check_own_user() -> io::Result<()> {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
    let ids = std::fs::read_to_string("/proc/self/uid_map");
    let user = own_user();
    if stands_for_others(
        user,
        overflow.unwrap_or(OVERFLOW_USER_DEFAULT),
        &ids.unwrap_or_default(),
    ) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "this process runs as user {user}, which in its user namespace is also the id of all users without an id \
                 there (see /proc/self/uid_map), so it cannot tell its own user's connections from others': run it as \
                 another user, as root of the container for instance"
            ),
        ));
    }
    Ok(())
}

/// The kernel's default, in case /proc is missing.
const OVERFLOW_USER_DEFAULT: u32 = 65534;

/// Whether the kernel may report this user for another user: it is the overflow user, and some ids of the machine
/// have no id in the namespace. Each line of `uid_map` is the first id here, the first id outside, and the count
/// (user_namespaces(7)).
fn stands_for_others(user: u32, overflow: u32, uid_map: &str) -> bool {
    let counts = uid_map.lines().map(|line| {
        let count = line.split_whitespace().nth(2);
        count.and_then(|count| count.parse::<u64>().ok())
    });
    let mapped: u64 = counts.map(Option::unwrap_or_default).sum();
    // The id 2^32 - 1 is not a user.
    user == overflow && mapped < u64::from(u32::MAX)
}

/// Clients of IPv4 often use IPv6 sockets.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(not(target_os = "linux"))]
fn query(_: SocketAddr, _: SocketAddr) -> io::Result<Option<u32>> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn query(local: SocketAddr, peer: SocketAddr) -> io::Result<Option<u32>> {
    use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request(local, peer), SendFlags::empty(), &kernel)?;
    let mut reply = [0; 512];
    // The kernel has answered before the send returned: this never waits.
    let (count, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::DONTWAIT)?;
    user_of(&reply[..count])
}

/// The length of `struct nlmsghdr`.
const HEAD_BYTES: usize = 16;

/// The length of it and of `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 72;

/// Asks for the socket at the other end (linux/inet_diag.h).
#[expect(
    clippy::host_endian_bytes,
    clippy::big_endian_bytes,
    reason = "netlink has the machine's order, and addresses have the network's"
)]
fn request(local: SocketAddr, peer: SocketAddr) -> [u8; REQUEST_BYTES] {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLM_F_REQUEST: u16 = 1;
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    const IPPROTO_TCP: u8 = 6;
    let mut bytes = [0; REQUEST_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &(REQUEST_BYTES as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(
        16,
        &[if peer.is_ipv4() { AF_INET } else { AF_INET6 }, IPPROTO_TCP],
    );
    // Sockets in any state match: the reply contains the state.
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &peer.port().to_be_bytes());
    put(26, &local.port().to_be_bytes());
    for (at, address) in [(28, peer), (44, local)] {
        match address {
            SocketAddr::V4(address) => put(at, &address.ip().octets()),
            SocketAddr::V6(address) => put(at, &address.ip().octets()),
        }
    }
    // No cookie.
    put(64, &[0xff; 8]);
    bytes
}

/// Reads `struct inet_diag_msg`, or an error.
#[expect(clippy::host_endian_bytes, reason = "netlink has the machine's order")]
fn user_of(reply: &[u8]) -> io::Result<Option<u32>> {
    const NLMSG_ERROR: u16 = 2;
    const ENOENT: i32 = 2;
    const TCP_ESTABLISHED: u8 = 1;
    let number = |at: usize| {
        let bytes = reply.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let short = || io::Error::new(io::ErrorKind::InvalidData, "a short reply of netlink");
    let kind = reply.get(4..6).ok_or_else(short)?;
    if kind == NLMSG_ERROR.to_ne_bytes() {
        let errno = number(HEAD_BYTES).ok_or_else(short)?.cast_signed();
        return match errno.wrapping_neg() {
            ENOENT => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    let state = *reply.get(HEAD_BYTES + 1).ok_or_else(short)?;
    let user = number(HEAD_BYTES + 64).ok_or_else(short)?;
    Ok((state == TCP_ESTABLISHED).then_some(user))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_connection_is_found_until_it_is_closed() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(address).expect("a port");
            let port = listener.local_addr().expect("bound").port();
            let target = if address.contains("::1") {
                "::1"
            } else {
                "127.0.0.1"
            };
            let near = TcpStream::connect((target, port)).expect("connected");
            let (far, peer) = listener.accept().expect("accepted");
            let local = far.local_addr().expect("open");
            let found = loopback_user(local, peer).expect("netlink");
            assert_eq!(found, Some(own_user()), "{address}");
            drop(far);
            drop(near);
            let gone = loopback_user(local, peer).expect("netlink");
            assert_eq!(gone, None, "{address}");
        }
    }

    #[test]
    fn the_overflow_user_stands_for_others_where_some_have_no_id() {
        let all = "         0          0 4294967295\n";
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        let table = [
            // `nobody` of the machine itself is one user.
            (65534, all, false),
            (0, all, false),
            (65534, rootless, true),
            (0, rootless, false),
            (1000, rootless, false),
            // unshare --user: no id is mapped.
            (65534, "", true),
            (65534, "65534 0 1\n", true),
            (65534, "0 0 65536\n", true),
            (65534, "0 0 1000\n1000 1000 4294966295\n", false),
            (65534, "nonsense", true),
        ];
        for (user, uid_map, expected) in table {
            assert_eq!(
                stands_for_others(user, 65534, uid_map),
                expected,
                "{user} {uid_map}"
            );
        }
        assert!(stands_for_others(99, 99, rootless));
        assert!(!stands_for_others(65534, 99, rootless));
    }

    #[test]
    fn an_address_of_another_machine_has_no_user_here() {
        let local = "10.0.0.1:5".parse().expect("an address");
        let peer = "10.0.0.2:5".parse().expect("an address");
        assert_eq!(loopback_user(local, peer).expect("not asked"), None);
        // It looks like a socket of this machine, but there is no such socket.
        let own = "10.0.0.1:6".parse().expect("an address");
        assert_eq!(loopback_user(local, own).expect("netlink"), None);
    }

    #[test]
    fn a_damaged_reply_is_an_error() {
        for length in 0..84 {
            let mut reply = vec![0; length];
            if length > 5 {
                reply[4] = 20;
            }
            assert_eq!(user_of(&reply).is_err(), length < 84, "{length}");
        }
    }
}
