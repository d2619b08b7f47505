//! Stores of other projects, and secrets.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use c10d_relay::{HostPort, Relay, RelayError, RelayOptions};
#[cfg(feature = "tls")]
use c10d_store::Store;
use c10d_store::{SessionError, StoreError, StoreExt, TcpStore, TcpStoreOptions};

use crate::basics::{rank_of, relay_to, server, soon, wait_until};
use crate::few_descriptors::{self, Attacked};
use crate::slow_strangers;

fn failure(options: RelayOptions, port: u16) -> SessionError {
    let relay = relay_to(port, options);
    let rank_port = relay.local_addrs()[0].port();
    let error = relay
        .wait_until_connected(soon(), &c10d_socket::Cancel::NEVER)
        .expect_err("no session");
    let RelayError::Session { source } = error else {
        panic!("{error}");
    };
    // The connection of a rank is closed, so that the rank does not hang.
    let options = TcpStoreOptions::default().with_timeout(Duration::from_millis(300));
    let rank = TcpStore::open("127.0.0.1", rank_port, options);
    assert!(matches!(rank, Err(StoreError::Connect { .. })), "{rank:?}");
    drop(relay);
    std::sync::Arc::into_inner(source).expect("the relay is gone")
}

/// A server like PyTorch's: it echoes the nonce. docs/spec/wire-extensions.md, SESSION 1.
#[test]
fn a_store_without_sessions_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let server = thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            // SESSION arrives with the handshake.
            let mut hello = [0; 10 + 53];
            if stream.read_exact(&mut hello).is_err() {
                return;
            }
            let _ = stream.write_all(&hello[6..10]);
        }
    });
    let error = failure(RelayOptions::default(), port);
    assert!(matches!(error, SessionError::Unsupported { .. }), "{error}");
    drop(std::net::TcpStream::connect(("127.0.0.1", port)));
    server.join().expect("no panic");
}

/// In a user namespace, the overflow user represents all users without an id there.
#[cfg(target_os = "linux")]
#[test]
fn a_user_that_stands_for_others_runs_no_relay() {
    use std::process::Command;

    const TEST: &str = "strangers::a_user_that_stands_for_others_runs_no_relay";
    const IN_NAMESPACE: &str = "C10D_RELAY_TEST_IN_NAMESPACE";
    if std::env::var_os(IN_NAMESPACE).is_some() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let upstream = HostPort::new("127.0.0.1", 1);
        let relay = Relay::start(upstream, vec![listener], RelayOptions::default());
        let error = relay.expect_err("it cannot tell its user from others");
        let text = "is also the id of all users without an id there";
        assert!(error.to_string().contains(text), "{error}");
        return;
    }
    let can = Command::new("unshare").args(["--user", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        let _ = writeln!(
            io::stderr(),
            "skipped in {TEST}: this system gives no user namespace"
        );
        return;
    }
    let status = Command::new("unshare")
        .arg("--user")
        .arg(std::env::current_exe().expect("a test program"))
        .args([TEST, "--exact", "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .status();
    assert!(status.expect("unshare runs").success());
}

/// Needs root, which differs from every other user; otherwise the test reports that and ends.
#[cfg(target_os = "linux")]
#[test]
fn another_user_of_the_machine_is_not_served() {
    use rustix::process::Uid;

    if c10d_socket::own_user() != 0 {
        // libtest discards what a test that passes prints.
        let _ = writeln!(
            io::stderr(),
            "skipped in another_user_of_the_machine_is_not_served: only root can become another user"
        );
        return;
    }
    let server = server();
    let relay = relay_to(server.local_addr().port(), RelayOptions::default());
    let port = relay.local_addrs()[0].port();
    let open = move || {
        let options = TcpStoreOptions::default().with_timeout(Duration::from_millis(300));
        TcpStore::open("127.0.0.1", port, options)
    };
    open().expect("this user");
    let of_other = thread::spawn(move || {
        // Of this thread only.
        let nobody = Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        open()
    });
    assert!(of_other.join().expect("no panic").is_err(), "another user");
    assert_eq!(relay.connection_count(), 0);
}

#[test]
fn a_peer_without_a_handshake_is_disconnected_after_the_timeout() {
    let (server, timeout) = (server(), Duration::from_millis(150));
    let options = RelayOptions::default().with_handshake_timeout(timeout);
    let relay = relay_to(server.local_addr().port(), options);
    let rank = rank_of(&relay);
    slow_strangers::are_closed_after(timeout, relay.local_addrs()[0]);
    rank.set("k", b"v").expect("set");
    assert_eq!(rank.get("k").expect("get"), b"v");
    wait_until("the rank is left", || relay.connection_count() == 1);
}

/// Strangers of the same user that hold all descriptors of a relay, and take each free descriptor, do not keep its
/// ranks out.
#[test]
fn strangers_make_room_for_ranks_when_descriptors_run_out() {
    const TEST: &str = "strangers::strangers_make_room_for_ranks_when_descriptors_run_out";
    if let Some(port) = few_descriptors::told() {
        let relay = relay_to(port.parse().expect("a port"), RelayOptions::default());
        relay
            .wait_until_connected(soon(), &c10d_socket::Cancel::NEVER)
            .expect("a session");
        return few_descriptors::serve(relay.local_addrs()[0]);
    }
    let server = server();
    let relay = Attacked::start(TEST, &server.local_addr().port().to_string());
    // They are silent, or have sent a part of the handshake or of an HTTP request.
    for first_bytes in [&b""[..], &[0, 0xce], b"GET /"] {
        let served = relay.besieged(first_bytes, || -> Result<_, StoreError> {
            let rank = TcpStore::connect("127.0.0.1", relay.address.port())?;
            rank.set("k", b"v")?;
            rank.get("k")
        });
        assert_eq!(served.expect("the rank is served"), b"v");
    }
    relay.end();
}

#[cfg(feature = "tls")]
mod with_a_secret {
    use c10d_sim::Proxy;
    use c10d_store::{Secret, ServerOptions, TcpStoreServer};

    use super::*;

    fn server(secret: &Secret) -> TcpStoreServer {
        let options = ServerOptions::default().with_secret(secret.clone());
        TcpStoreServer::bind("127.0.0.1:0", options).expect("a server")
    }

    #[test]
    fn ranks_without_the_secret_reach_a_store_with_one_and_survive_cuts() {
        let secret = Secret::random().expect("random numbers");
        let server = server(&secret);
        let proxy = Proxy::to(server.local_addr());
        let relay = relay_to(proxy.port(), RelayOptions::default().with_secret(secret));
        let rank = rank_of(&relay);
        let value: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        for round in 1..=20 {
            proxy.cut(false);
            assert_eq!(rank.add("rounds", 1).expect("add"), round);
        }
        rank.set("big", &value).expect("set");
        proxy.cut(false);
        assert!(rank.get("big").expect("get") == value);
    }

    #[test]
    fn another_secret_and_none_are_refused_by_the_store() {
        let server = server(&Secret::random().expect("random numbers"));
        let port = server.local_addr().port();
        let other = Secret::random().expect("random numbers");
        let error = failure(RelayOptions::default().with_secret(other), port);
        assert!(matches!(error, SessionError::Refused { .. }), "{error}");
        let options = RelayOptions::default().with_resume_timeout(Duration::from_millis(200));
        let error = failure(options, port);
        assert!(matches!(error, SessionError::Lost { .. }), "{error}");
    }
}
