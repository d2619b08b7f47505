//! A server and clients that share a secret, and those that do not have it.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::Protocol;
use c10d_store::unstable::RequestBuf;
use c10d_store::{
    Credentials, Secret, ServerOptions, Store, StoreError, StoreExt, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};

use crate::few_descriptors::{self, Attacked};
use crate::log_lines;
use crate::raw::{LONG, Raw, wait_until};
use crate::store_contract::{self, Features};

fn secret() -> Secret {
    Secret::random().expect("random numbers")
}

fn serve(secret: &Secret) -> TcpStoreServer {
    let options = ServerOptions::default().with_secret(secret.clone());
    TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port")
}

fn open(
    server: SocketAddr,
    options: TcpStoreOptions,
    limit: Duration,
) -> Result<TcpStore, StoreError> {
    TcpStore::open("127.0.0.1", server.port(), options.with_timeout(limit))
}

fn client(server: &TcpStoreServer, secret: &Secret) -> TcpStore {
    let options = TcpStoreOptions::default().with_secret(secret.clone());
    open(server.local_addr(), options, LONG).expect("the secret is right")
}

#[test]
fn every_operation_works_with_a_secret() {
    let secret = secret();
    let make = || -> Arc<dyn Store> {
        let options = TcpStoreOptions::default()
            .with_master(true)
            .with_secret(secret.clone());
        Arc::new(TcpStore::open("127.0.0.1", 0, options).expect("a free port"))
    };
    let features = Features {
        adds_to_empty: false,
        refuses_empty_barrier: false,
        ..Features::LOCAL
    };
    store_contract::all(&make, features);
}

#[test]
fn long_values_and_many_threads_pass_through_one_connection() {
    let secret = secret();
    let server = serve(&secret);
    let store = client(&server, &secret);
    let value: Vec<u8> = (0..8_000_000_u32).map(|index| (index / 3) as u8).collect();
    store.set("long", &value).expect("set");
    assert!(store.get("long").expect("it is there") == value);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("late"));
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    store.add("count", 1).expect("a sum");
                }
            });
        }
        wait_until("all have added", || {
            store.add("count", 0).expect("a sum") == 1600
        });
        store.set("late", b"x").expect("set");
        assert_eq!(waiting.join().expect("no panic").expect("a value"), b"x");
    });
    assert_eq!(server.connection_count(), 1);
    // Values of many lengths, in one reply.
    let values: Vec<Vec<u8>> = (0..200).map(|index| vec![7; index * index]).collect();
    let keys: Vec<String> = (0..200).map(|index| format!("k{index}")).collect();
    for (key, value) in keys.iter().zip(&values) {
        store.set(key, value).expect("set");
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert!(store.multi_get(&keys).expect("they are there") == values);
}

#[test]
fn another_secret_fails_at_once() {
    log_lines::record();
    let server = serve(&secret());
    let options = TcpStoreOptions::default().with_secret(secret());
    let started = Instant::now();
    let error = open(server.local_addr(), options, LONG).expect_err("a stranger");
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
    assert!(
        error.to_string().contains("it has a different secret"),
        "{error}"
    );
    assert!(started.elapsed() < LONG / 2);
    let line = log_lines::wait_for("the peer has a different secret");
    assert!(line.starts_with("refused 127.0.0.1:"), "{line}");
    wait_until("it is closed", || server.connection_count() == 0);
}

/// docs/spec/handshake.md, SEC 6.
#[test]
fn a_client_without_the_secret_is_refused() {
    log_lines::record();
    let server = serve(&secret());
    let short = Duration::from_millis(500);
    let error = open(server.local_addr(), TcpStoreOptions::default(), short);
    let error = error.expect_err("a stranger").to_string();
    assert!(error.contains("it may require a secret"), "{error}");
    log_lines::wait_for("it does not use the secret of this server");
    // Not one byte is answered.
    let mut raw = Raw::connect(server.local_addr());
    let mut request = RequestBuf::new();
    request.hello();
    for piece in request.io_slices() {
        raw.0.write_all(&piece).expect("sent");
    }
    let mut reply = Vec::new();
    let _ = raw.0.read_to_end(&mut reply);
    assert!(reply.is_empty(), "{reply:?}");
}

#[test]
fn a_client_with_a_secret_does_not_talk_to_a_server_without() {
    let server =
        TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port");
    let options = TcpStoreOptions::default().with_secret(secret());
    let short = Duration::from_millis(500);
    let error = open(server.local_addr(), options, short).expect_err("no secret there");
    assert!(error.to_string().contains("may have no secret"), "{error}");
    // The client does not connect to a server that answers in clear text either, because that could be an attacker.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&[0; 64]);
        }
    });
    let options = TcpStoreOptions::default().with_secret(secret());
    let error = open(address, options, LONG).expect_err("no TLS");
    assert!(matches!(error, StoreError::Protocol { .. }), "{error}");
}

/// docs/spec/handshake.md, SEC 7.
#[cfg(target_os = "linux")]
#[test]
fn plain_connections_of_the_same_user_are_served_where_told_so() {
    let secret = secret();
    let options = ServerOptions::default()
        .with_secret(secret.clone())
        .with_plain_from_same_user(true);
    for address in ["127.0.0.1:0", "[::]:0"] {
        let server = TcpStoreServer::bind(address, options.clone()).expect("a free port");
        let plain = open(server.local_addr(), TcpStoreOptions::default(), LONG);
        let plain = plain.expect("the same user");
        plain.set("k", b"v").expect("set");
        plain.ping().expect("it is set");
        assert_eq!(client(&server, &secret).get("k").expect("a value"), b"v");
    }
}

#[test]
fn a_server_accepts_an_old_secret_beside_the_new_one() {
    let (new, old) = (secret(), secret());
    let both = Credentials::from_secrets(vec![new.clone(), old.clone()]).expect("two");
    let options = ServerOptions::default().with_credentials(both);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    client(&server, &old).set("k", b"v").expect("set");
    assert_eq!(client(&server, &new).get("k").expect("a value"), b"v");
}

/// docs/spec/handshake.md, SEC 6.
#[test]
fn other_protocols_and_trickled_handshakes_get_nothing() {
    let secret = secret();
    let server = serve(&secret);
    let bytes: [&[u8]; 7] = [
        b"\x16",
        b"\x16\x03\x01\x40\x00",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x80\x2e\x01\x00\x02",
    ];
    let mut open: Vec<Raw> = Vec::new();
    for bytes in bytes {
        let mut raw = Raw::connect(server.local_addr());
        let _ = raw.0.write_all(bytes);
        open.push(raw);
    }
    // They do not keep a client from its work.
    let store = client(&server, &secret);
    store.set("k", b"v").expect("set");
    assert_eq!(store.get("k").expect("a value"), b"v");
    drop(open);
    wait_until("the strangers are gone", || server.connection_count() == 1);
}

/// In a user namespace, the overflow user represents all users without an id there. docs/spec/handshake.md, SEC 7.
#[cfg(target_os = "linux")]
#[test]
fn a_user_that_stands_for_others_is_refused_at_start() {
    const TEST: &str = "secret::a_user_that_stands_for_others_is_refused_at_start";
    const IN_NAMESPACE: &str = "C10D_STORE_TEST_IN_NAMESPACE";
    if env::var_os(IN_NAMESPACE).is_some() {
        let options = ServerOptions::default().with_secret(secret());
        TcpStoreServer::bind("127.0.0.1:0", options.clone()).expect("no plain connections");
        let options = options.with_plain_from_same_user(true);
        let error = TcpStoreServer::bind("127.0.0.1:0", options).expect_err("not its user only");
        let text = "is also the id of all users without an id there";
        assert!(error.to_string().contains(text), "{error}");
        return;
    }
    let in_namespace = |program: &std::ffi::OsStr| {
        let mut command = Command::new("unshare");
        command.arg("--user").arg(program);
        command
    };
    let can = in_namespace("true".as_ref()).status();
    if !can.is_ok_and(|status| status.success()) {
        // libtest discards what a test that passes prints.
        let _ = writeln!(
            io::stderr(),
            "skipped in {TEST}: this system gives no user namespace"
        );
        return;
    }
    let program = env::current_exe().expect("a test program");
    let status = in_namespace(program.as_os_str())
        .args([TEST, "--exact", "--nocapture"])
        .env(IN_NAMESPACE, "1")
        .status();
    assert!(status.expect("unshare runs").success());
}

#[test]
fn a_silent_connection_has_less_time_where_there_is_a_secret() {
    let server = serve(&secret());
    let mut begun = Raw::connect(server.local_addr());
    begun.send(b"\x16");
    let mut silent = Raw::connect(server.local_addr());
    let began = Instant::now();
    // The time limit of the handshake is 60 s, the patience of this client 30 s.
    assert!(silent.read_to_close().is_empty());
    assert!(began.elapsed() > Duration::from_secs(4), "{began:?}");
    begun.send(b"\x03");
    // The peer notices the end before the server counts it.
    wait_until("only the silent one is closed", || {
        server.connection_count() == 1
    });
}

/// Strangers that hold all descriptors of a server, and take each free descriptor, do not keep its clients out.
#[test]
fn strangers_make_room_for_clients_when_descriptors_run_out() {
    const TEST: &str = "secret::strangers_make_room_for_clients_when_descriptors_run_out";
    if let Some(secret) = few_descriptors::told() {
        let server = serve(&Secret::from_text(&secret).expect("a secret"));
        return few_descriptors::serve(server.local_addr());
    }
    let secret = secret();
    let server = Attacked::start(TEST, &secret.to_text());
    // They are silent, or have begun a handshake, for which the server gives 60 s.
    for first_byte in [&[][..], b"\x16"] {
        let served = server.besieged(first_byte, || -> Result<_, StoreError> {
            let options = TcpStoreOptions::default().with_secret(secret.clone());
            let store = open(server.address, options, LONG)?;
            store.set("k", b"v")?;
            store.get("k")
        });
        assert_eq!(served.expect("the client is served"), b"v");
    }
    server.end();
}

/// A peer that replays the first message of a client costs the server public-key operations, and gets no further: its
/// address is soon refused, and open connections continue.
#[test]
fn an_address_whose_handshakes_fail_is_refused_for_a_while() {
    // It sends no more, or sends a bad record in the same segment.
    for after_hello in [&[][..], &[0x17, 3, 3, 0, 20]] {
        let secret = secret();
        let server = serve(&secret);
        let store = client(&server, &secret);
        let credentials = Credentials::from(secret);
        let layer = credentials.client(Protocol::Store, "127.0.0.1");
        let mut layer = layer.and_then(|client| client.start()).expect("a client");
        let mut bytes = Vec::new();
        layer.send(&mut bytes).expect("memory");
        if !after_hello.is_empty() {
            bytes.extend_from_slice(after_hello);
            bytes.extend_from_slice(&[7; 20]);
        }
        let replay = || {
            let mut raw = Raw::connect(server.local_addr());
            let mut first = [0];
            let answer = raw
                .0
                .write_all(&bytes)
                .and_then(|()| raw.0.read(&mut first));
            answer.is_ok_and(|count| count == 1)
        };
        let mut answered = 0;
        while replay() {
            answered += 1;
            assert!(answered < 1000, "it is never refused: {after_hello:?}");
        }
        assert!(answered >= 64, "refused after {answered}");
        store.set("k", b"v").expect("set");
        assert_eq!(store.get("k").expect("a value"), b"v");
        // After a while it may try again.
        wait_until("it is answered again", replay);
    }
}

/// Needs root, which differs from every other user; otherwise the test reports that and ends. docs/spec/handshake.md,
/// SEC 7.
#[cfg(target_os = "linux")]
#[test]
fn another_user_of_the_machine_is_a_stranger() {
    use rustix::process::Uid;

    if c10d_socket::own_user() != 0 {
        // libtest discards what a test that passes prints.
        let _ = writeln!(
            io::stderr(),
            "skipped in another_user_of_the_machine_is_a_stranger: only root can become another user"
        );
        return;
    }
    let options = ServerOptions::default()
        .with_secret(secret())
        .with_plain_from_same_user(true);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a free port");
    let address = server.local_addr();
    let answered = |address| {
        let mut raw = Raw::connect(address);
        let mut request = RequestBuf::new();
        request.hello();
        for piece in request.io_slices() {
            let _ = raw.0.write_all(&piece);
        }
        raw.0.read(&mut [0; 4]).is_ok_and(|count| count > 0)
    };
    assert!(answered(address), "this user");
    let of_other = thread::spawn(move || {
        // Of this thread only.
        let nobody = Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
        answered(address)
    });
    assert!(!of_other.join().expect("no panic"), "another user");
}
