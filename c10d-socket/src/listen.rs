//! Listens on all interfaces, on one address, on a host name, or on an inherited socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::addr::is_localhost;
use crate::resolve::Resolver;
use crate::{Cancel, Deadline, HostPort, ListenError, SocketOptions, sys};

/// The time limit for looking up a name: a resolver that needs longer is broken, and a hanging start is worse than a
/// failing start.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Address and socket options of [`listen`]. By default all interfaces, IPv6 and IPv4, on a
/// port that the system picks.
///
/// ```
/// use c10d_socket::ListenOptions;
///
/// let options = ListenOptions::default().with_host("localhost").with_port(29500);
/// # let _ = options;
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct ListenOptions {
    host: Option<String>,
    port: u16,
    cancel: Cancel,
    socket: SocketOptions,
}

impl ListenOptions {
    /// Listens on this host only: a literal address (`::` accepts IPv4 as well), or a name, which means all of its
    /// addresses that this machine has. `localhost` always means `::1` and 127.0.0.1, so that clients can use either.
    ///
    /// Default: all interfaces, like PyTorch. PyTorch's protocols have no authentication, so a machine with untrusted
    /// networks should name the address of its cluster's network.
    pub fn with_host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the port. Default 0: the system picks one port for all addresses.
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the [`Cancel`] that interrupts the lookup of the host. Default [`Cancel::NEVER`].
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets the TCP options of accepted connections; see [`configure_accepted`](crate::configure_accepted). Default
    /// [`SocketOptions::default`].
    pub fn with_socket_options(mut self, socket: SocketOptions) -> Self {
        self.socket = socket;
        self
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            host: None,
            port: 0,
            cancel: Cancel::NEVER,
            socket: SocketOptions::default(),
        }
    }
}

/// Opens one listener for each address, at least one, all non-blocking and on the same port.
///
/// For all interfaces this is one listener on `[::]`, which accepts IPv4 as well, or on 0.0.0.0 without IPv6.
/// SO_REUSEADDR is set, so a port is available right after its server has stopped. Blocks only to look up a name, for
/// at most 10 s.
///
/// ```
/// use c10d_socket::{ListenOptions, listen};
///
/// let listeners = listen(&ListenOptions::default().with_host("127.0.0.1"))?;
/// assert_ne!(listeners[0].local_addr()?.port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A [`ListenError`]: the port is in use, this machine has none of the addresses, or the name has no address.
/// Addresses that this machine does not have are skipped as long as it has another address of the list.
pub fn listen(options: &ListenOptions) -> Result<Vec<TcpListener>, ListenError> {
    let Some(host) = &options.host else {
        return Ok(vec![listen_on_all(options)?]);
    };
    let addresses = if is_localhost(host) {
        [
            IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V4(Ipv4Addr::LOCALHOST),
        ]
        .map(|ip| SocketAddr::new(ip, options.port))
        .to_vec()
    } else {
        let deadline = Deadline::after(Instant::now(), Some(LOOKUP_TIMEOUT));
        let target = HostPort::new(host.as_str(), options.port);
        lookup(&target, deadline, &options.cancel)?
    };
    listen_on_each(&addresses, options)
}

/// Opens one listener for each of these addresses, all on one port, or like [`listen`] for all interfaces if there
/// are no addresses. Does not block.
///
/// ```
/// let listeners = c10d_socket::listen_at(&["127.0.0.1".parse()?], 0)?;
/// assert_ne!(listeners[0].local_addr()?.port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The errors of [`listen`]. Addresses that this machine does not have, such as the address of a gateway in front of
/// it, are skipped if this machine has another address of the list.
pub fn listen_at(ips: &[IpAddr], port: u16) -> Result<Vec<TcpListener>, ListenError> {
    let options = ListenOptions::default().with_port(port);
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for ip in ips {
        let address = SocketAddr::new(*ip, port);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    // A socket on all addresses of a family takes the port of each of them. A socket on all addresses of IPv6 does the same
    // for IPv4.
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    let has = |ip: IpAddr| ips.contains(&ip);
    addresses.retain(|it| match it.ip() {
        _ if has(v6) => it.ip() == v6,
        IpAddr::V4(_) if has(v4) => it.ip() == v4,
        _ => true,
    });
    match addresses[..] {
        [] => listen(&options),
        _ => listen_on_each(&addresses, &options),
    }
}

/// Listens on an inherited TCP socket that is bound, and may listen already. The returned listener is
/// non-blocking, has the default [`SocketOptions`] (see [`SocketOptions::apply`]), and owns the
/// descriptor, which is closed on failure. Does not block.
///
/// The socket must be bound to `expected_port`; 0 allows any. A parent process can so pick a port and
/// pass it on without a moment in which another process could take it.
///
/// ```
/// use c10d_socket::adopt_listener;
/// use std::net::TcpListener;
///
/// let bound = TcpListener::bind("127.0.0.1:0")?;
/// let port = bound.local_addr()?.port();
/// let listener = adopt_listener(bound.into(), port)?;
/// assert_eq!(listener.local_addr()?.port(), port);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ListenError::Descriptor`] if `fd` is not a bound TCP socket that can listen,
/// [`ListenError::WrongPort`] if it is bound to another port.
pub fn adopt_listener(fd: OwnedFd, expected_port: u16) -> Result<TcpListener, ListenError> {
    let number = fd.as_raw_fd();
    adopt(Socket::from(fd), number, expected_port)
}

/// [`adopt_listener`] for a descriptor that is only known by its number, for example from a command line.
///
/// A number does not show who owns the descriptor, so this listens on a duplicate and leaves the original open and
/// inheritable. The port stays in use until both are closed: for a descriptor inherited from the parent process,
/// until this process exits. A caller that owns the descriptor uses [`adopt_listener`] instead. Does not block.
///
/// # Errors
/// The errors of [`adopt_listener`], and [`ListenError::Descriptor`] if the descriptor is not open.
pub fn adopt_listener_raw(fd: RawFd, expected_port: u16) -> Result<TcpListener, ListenError> {
    let copy = sys::duplicate(fd).map_err(|source| ListenError::Descriptor { fd, source })?;
    adopt(Socket::from(copy), fd, expected_port)
}

/// Returns the addresses of a host that belong to this machine, with the host's port. Empty for the name of another
/// machine: a server for that host cannot run here.
///
/// An address counts as local if a socket can be bound to it. The unspecified address (0.0.0.0, `::`)
/// always can, and on a machine configured for non-local binding every address can. Blocks only to
/// look up a name, until `deadline` or a cancel.
///
/// ```
/// use c10d_socket::{Cancel, Deadline, HostPort, resolve_local};
///
/// let here = resolve_local(&HostPort::new("127.0.0.1", 29500), Deadline::NEVER, &Cancel::NEVER)?;
/// assert_eq!(here, ["127.0.0.1:29500".parse().unwrap()]);
/// let documentation = HostPort::new("198.51.100.1", 29500);
/// assert!(resolve_local(&documentation, Deadline::NEVER, &Cancel::NEVER)?.is_empty());
/// # Ok::<(), c10d_socket::ListenError>(())
/// ```
///
/// # Errors
/// [`ListenError::Lookup`] when the name has no address or the lookup does not finish in time.
pub fn resolve_local(
    target: &HostPort,
    deadline: Deadline,
    cancel: &Cancel,
) -> Result<Vec<SocketAddr>, ListenError> {
    let mut addresses = lookup(target, deadline, cancel)?;
    addresses.retain(|address| {
        let mut any_port = *address;
        any_port.set_port(0);
        let bound = Socket::new(Domain::for_address(any_port), Type::STREAM, None)
            .and_then(|socket| socket.bind(&any_port.into()));
        bound.is_ok()
    });
    Ok(addresses)
}

/// How often the system may pick another port, when the one it picked for the first address is in use
/// on the second. Few ports are in use, so two attempts nearly always suffice.
const PORT_PICKS_MAX: usize = 16;

fn lookup(
    target: &HostPort,
    deadline: Deadline,
    cancel: &Cancel,
) -> Result<Vec<SocketAddr>, ListenError> {
    Resolver::new(target.clone())
        .lookup(deadline, cancel)
        .map_err(|source| ListenError::Lookup {
            host: target.host().to_owned(),
            source,
        })
}

fn listen_on_all(options: &ListenOptions) -> Result<TcpListener, ListenError> {
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), options.port);
    match listen_on(v6, options) {
        Err(ListenError::Address { source, .. }) if is_absent(&source) => {
            log::debug!("listening on IPv4 only, no IPv6: {source}");
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.port);
            listen_on(v4, options)
        }
        result => result,
    }
}

fn listen_on_each(
    addresses: &[SocketAddr],
    options: &ListenOptions,
) -> Result<Vec<TcpListener>, ListenError> {
    let mut picks_left = PORT_PICKS_MAX;
    loop {
        picks_left -= 1;
        match listen_on_one_port(addresses, options) {
            Err(error) if options.port == 0 && picks_left > 0 && error.is_address_in_use() => {
                log::debug!("picking another port: {error}");
            }
            result => return result,
        }
    }
}

/// Listens on each address that this machine has; for port 0, all on the port of the first.
fn listen_on_one_port(
    addresses: &[SocketAddr],
    options: &ListenOptions,
) -> Result<Vec<TcpListener>, ListenError> {
    let mut port = options.port;
    let mut listeners = Vec::with_capacity(addresses.len());
    let mut absent = None;
    for &address in addresses {
        let mut address = address;
        address.set_port(port);
        match listen_on(address, options) {
            Ok(listener) => {
                port = bound_port(&listener, address)?;
                listeners.push(listener);
            }
            Err(ListenError::Address { address, source }) if is_absent(&source) => {
                log::debug!("not listening on {address}: {source}");
                absent = Some(ListenError::Address { address, source });
            }
            Err(error) => return Err(error),
        }
    }
    match absent {
        Some(error) if listeners.is_empty() => Err(error),
        _ => Ok(listeners),
    }
}

fn listen_on(address: SocketAddr, options: &ListenOptions) -> Result<TcpListener, ListenError> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        if let SocketAddr::V6(v6) = address {
            // A literal address means only itself, the unspecified one means all addresses.
            socket.set_only_v6(!v6.ip().is_unspecified())?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        start_listening(socket, &options.socket)
    };
    bind().map_err(|source| ListenError::Address { address, source })
}

fn start_listening(socket: Socket, options: &SocketOptions) -> io::Result<TcpListener> {
    options.apply(&socket)?;
    socket.set_nonblocking(true)?;
    // The system's maximum (somaxconn on Linux): a whole job connects at once, and a full queue delays a connection by a second
    // or more.
    socket.listen(i32::MAX)?;
    Ok(socket.into())
}

fn bound_port(listener: &TcpListener, address: SocketAddr) -> Result<u16, ListenError> {
    match listener.local_addr() {
        Ok(bound) => Ok(bound.port()),
        Err(source) => Err(ListenError::Address { address, source }),
    }
}

/// Whether the machine lacks the address or its address family.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)
    )
}

fn adopt(socket: Socket, fd: RawFd, expected: u16) -> Result<TcpListener, ListenError> {
    let failed = |source| ListenError::Descriptor { fd, source };
    let refused = |what: &str| failed(io::Error::new(io::ErrorKind::InvalidInput, what));

    let kind = socket.r#type().map_err(failed)?;
    let address = socket.local_addr().map_err(failed)?.as_socket();
    let (Type::STREAM, Some(address)) = (kind, address) else {
        return Err(refused("not a TCP socket"));
    };
    let actual = address.port();
    if actual == 0 {
        return Err(refused("not bound to a port"));
    }
    if expected != 0 && actual != expected {
        return Err(ListenError::WrongPort {
            fd,
            actual,
            expected,
        });
    }
    socket.set_cloexec(true).map_err(failed)?;
    start_listening(socket, &SocketOptions::default()).map_err(failed)
}
