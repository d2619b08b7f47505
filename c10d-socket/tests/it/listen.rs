//! Listening over loopback, and inherited listeners.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::peers::{LONG, bound, has_ipv6};
use c10d_socket::{
    Cancel, Deadline, HostPort, ListenError, ListenOptions, SocketOptions, adopt_listener,
    adopt_listener_raw, configure_accepted, listen, resolve_local, wait_for_input,
};
use socket2::SockRef;

fn port(listener: &TcpListener) -> u16 {
    listener.local_addr().unwrap().port()
}

/// Connects to `address` and accepts the connection on one of the listeners.
fn accept_from(listeners: &[TcpListener], address: SocketAddr) -> TcpStream {
    let client = TcpStream::connect(address).unwrap();
    let own = client.local_addr().unwrap();
    let listener = listeners
        .iter()
        .find(|it| {
            let bound = it.local_addr().unwrap();
            bound.ip() == address.ip() || bound.ip().is_unspecified()
        })
        .unwrap();
    assert!(wait_for_input(listener, LONG, &Cancel::NEVER).unwrap());
    let (accepted, peer) = listener.accept().unwrap();
    assert_eq!(
        (peer.ip().to_canonical(), peer.port()),
        (own.ip(), own.port())
    );
    accepted
}

#[test]
fn all_interfaces_accept_both_families() {
    let listeners = listen(&ListenOptions::default()).unwrap();
    assert_eq!(listeners.len(), 1);
    let port = port(&listeners[0]);
    assert_ne!(port, 0);
    accept_from(&listeners, SocketAddr::from(([127, 0, 0, 1], port)));
    if has_ipv6() {
        accept_from(&listeners, format!("[::1]:{port}").parse().unwrap());
    }
}

#[test]
fn localhost_listens_on_both_families_and_one_port() {
    let listeners = listen(&ListenOptions::default().with_host("LocalHost")).unwrap();
    let port = port(&listeners[0]);
    for listener in &listeners {
        let address = listener.local_addr().unwrap();
        assert_eq!(address.port(), port);
        assert!(address.ip().is_loopback());
        accept_from(&listeners, address);
    }
    if has_ipv6() {
        assert_eq!(listeners.len(), 2);
    }
}

#[test]
fn a_literal_address_means_only_itself() {
    for host in ["127.0.0.1", "::1"] {
        if host == "::1" && !has_ipv6() {
            continue;
        }
        let listeners = listen(&ListenOptions::default().with_host(host)).unwrap();
        assert_eq!(listeners.len(), 1);
        assert_eq!(listeners[0].local_addr().unwrap().ip().to_string(), host);
    }
}

#[test]
fn listeners_are_nonblocking_and_connections_have_their_options() {
    let listeners = listen(&ListenOptions::default().with_host("127.0.0.1")).unwrap();
    let empty = listeners[0].accept().unwrap_err();
    assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    let accepted = accept_from(&listeners, listeners[0].local_addr().unwrap());
    configure_accepted(&accepted, &SocketOptions::default()).unwrap();
    let socket = SockRef::from(&accepted);
    assert!(socket.tcp_nodelay().unwrap());
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_retries().unwrap(), 6);
}

#[test]
fn a_port_in_use_is_named_in_the_error() {
    for host in [None, Some("127.0.0.1"), Some("localhost")] {
        let mut options = ListenOptions::default();
        if let Some(host) = host {
            options = options.with_host(host);
        }
        let listeners = listen(&options).unwrap();
        let port = port(&listeners[0]);
        let error = listen(&options.with_port(port)).unwrap_err();
        assert!(error.is_address_in_use(), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!(":{port}: ")), "{text}");
        assert!(text.contains("stop the process that uses it"), "{text}");
    }
}

#[test]
fn a_port_is_available_right_after_its_server_stopped() {
    let listeners = listen(&ListenOptions::default().with_host("127.0.0.1")).unwrap();
    let address = listeners[0].local_addr().unwrap();
    // The accepting end closes first, so the port is in TIME_WAIT.
    drop(accept_from(&listeners, address));
    drop(listeners);
    let again = ListenOptions::default()
        .with_host("127.0.0.1")
        .with_port(address.port());
    listen(&again).unwrap();
}

#[test]
fn an_address_of_another_machine_is_an_error() {
    // RFC 5737: a documentation address, which no machine has.
    let error = listen(&ListenOptions::default().with_host("198.51.100.1")).unwrap_err();
    assert!(matches!(error, ListenError::Address { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("this machine does not have the address"),
        "{error}"
    );
    let error = listen(&ListenOptions::default().with_host("x".repeat(64))).unwrap_err();
    assert!(matches!(error, ListenError::Lookup { .. }), "{error}");
}

#[test]
fn a_bound_socket_is_adopted_whether_or_not_it_listens() {
    for listens in [false, true] {
        for any_port in [false, true] {
            let (socket, address) = bound();
            if listens {
                socket.listen(1).unwrap();
            }
            let expected = if any_port { 0 } else { address.port() };
            let listener = adopt_listener(socket.into(), expected).unwrap();
            assert!(SockRef::from(&listener).nonblocking().unwrap());
            accept_from(&[listener], address);
        }
    }
}

#[test]
fn a_descriptor_passed_by_number_stays_open() {
    let (socket, address) = bound();
    let listener = adopt_listener_raw(socket.as_raw_fd(), address.port()).unwrap();
    assert_ne!(listener.as_raw_fd(), socket.as_raw_fd());
    accept_from(std::slice::from_ref(&listener), address);
    drop(listener);
    let still = socket.local_addr().unwrap().as_socket();
    assert_eq!(still, Some(address));
}

#[test]
fn sockets_that_cannot_listen_are_refused() {
    let (socket, address) = bound();
    let fd = socket.as_raw_fd();
    let other = address.port().wrapping_add(1).max(1);
    // The text is PyTorch's.
    assert_eq!(
        adopt_listener(socket.into(), other)
            .unwrap_err()
            .to_string(),
        format!(
            "listen fd {fd} is bound to port {}, expected to be bound to port {other}",
            address.port()
        )
    );

    let refused = |fd: OwnedFd, what: &str| {
        let error = adopt_listener(fd, 0).unwrap_err();
        assert!(matches!(error, ListenError::Descriptor { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let errno = |code| io::Error::from_raw_os_error(code).to_string();
    refused(
        std::fs::File::open("/dev/null").unwrap().into(),
        &errno(libc::ENOTSOCK),
    );
    refused(
        std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        "not a TCP socket",
    );
    refused(
        std::os::unix::net::UnixStream::pair().unwrap().0.into(),
        "not a TCP socket",
    );
    let unbound = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    refused(unbound.unwrap().into(), "not bound");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    refused(connected.into(), &errno(libc::EINVAL));

    for fd in [-1, i32::MAX] {
        let error = adopt_listener_raw(fd, 0).unwrap_err();
        assert!(error.to_string().contains(&errno(libc::EBADF)), "{error}");
    }
}

#[test]
fn local_addresses_are_recognized() {
    let here = resolve_local(
        &HostPort::new("localhost", 7),
        Deadline::NEVER,
        &Cancel::NEVER,
    )
    .unwrap();
    assert!(!here.is_empty());
    assert!(
        here.iter()
            .all(|it| it.ip().is_loopback() && it.port() == 7)
    );
    let elsewhere = HostPort::new("198.51.100.1", 7);
    assert_eq!(
        resolve_local(&elsewhere, Deadline::NEVER, &Cancel::NEVER).unwrap(),
        []
    );
    let nowhere = HostPort::new("x".repeat(64), 7);
    let error = resolve_local(&nowhere, Deadline::NEVER, &Cancel::NEVER).unwrap_err();
    assert!(matches!(error, ListenError::Lookup { .. }), "{error}");
}

#[test]
fn all_addresses_of_a_family_include_each_of_them() {
    for (ips, count) in [
        (&["0.0.0.0", "127.0.0.1"][..], 1),
        (&["127.0.0.1", "::", "0.0.0.0"], 1),
        (&["127.0.0.1", "127.0.0.2"], 2),
    ] {
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        if ips.iter().any(IpAddr::is_ipv6) && !has_ipv6() {
            continue;
        }
        let listeners = c10d_socket::listen_at(&ips, 0).unwrap();
        assert_eq!(listeners.len(), count, "{ips:?}");
    }
}
