//! The memory that ranks which do not read cost a relay. The relay runs in a separate process: this binary again,
//! with [`CHILD`] set.
#![cfg(target_os = "linux")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{HostPort, Relay, RelayOptions};
use c10d_store::unstable::RequestBuf;
use c10d_store::{Opcode, Store, StoreExt};
use c10d_store::{ServerOptions, TcpStore, TcpStoreServer};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// Set in a process that only runs a relay, to the port of its store.
const CHILD: &str = "C10D_TEST_RELAY";

const RANKS: usize = 400;
const MIB: u64 = 1 << 20;

/// The budget of the relay, with its own memory.
const PEAK_MAX: u64 = 85 * MIB;

/// The child processes of the other tests run this. Without the variable it does nothing.
#[test]
fn child() {
    let Some(port) = std::env::var(CHILD).ok().and_then(|it| it.parse().ok()) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // The memory of the system for connections is not what is measured.
    set_socket_send_buffer_size(&listener, 4096).expect("an option");
    let store = HostPort::new("127.0.0.1", port);
    let relay = Relay::start(store, vec![listener], RelayOptions::default()).expect("a relay");
    let address = relay.local_addrs()[0];
    writeln!(io::stdout(), "listening on {address}").expect("a pipe");
    let _ = io::stdin().read_to_end(&mut Vec::new());
}

fn peak_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.expect("a peak").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") * 1024
}

/// Starts a relay in a child process, which exits when its standard input is closed.
fn start_relay(port: u16) -> (Child, SocketAddr) {
    let mut relay = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut stdout = BufReader::new(relay.stdout.take().expect("a pipe"));
    let address = stdout
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("listening on ")?.1.parse().ok())
        .expect("it listens");
    // It stays open until the process has exited.
    relay.stdout = Some(stdout.into_inner());
    (relay, address)
}

/// Has many ranks ask for the same reply of this many bytes and not read it, then asserts that the relay keeps to its budget,
/// and that all replies arrive at ranks that read again.
fn withstands(store: &TcpStore, request: &[u8], reply_bytes: usize) {
    let (mut relay, address) = start_relay(store.port());
    let stdin = relay.stdin.take();
    let mut ranks: Vec<TcpStream> = (0..RANKS)
        .map(|_| {
            let mut rank = TcpStream::connect(address).expect("the relay listens");
            set_socket_recv_buffer_size(&rank, 4096).expect("an option");
            rank.set_read_timeout(Some(Duration::from_secs(60)))
                .expect("an option");
            rank.write_all(request).expect("the relay reads");
            rank
        })
        .collect();
    // Until the relay takes no more: the replies are where they fit. Its received bytes do not show that, because a reply to
    // several ranks travels once.
    let started = Instant::now();
    let mut before = (0, started);
    while before.0 < 40 * MIB || before.1.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(10));
        let now = peak_bytes(relay.id());
        if now != before.0 {
            before = (now, Instant::now());
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{now} bytes");
    }
    assert!(before.0 < PEAK_MAX, "{} MiB", before.0 / MIB);

    // Some ranks close their connections, and the remaining ranks read: all replies arrive.
    ranks.truncate(100);
    for rank in &ranks {
        set_socket_recv_buffer_size(rank, 1 << 20).expect("an option");
    }
    let mut missing = vec![4 + reply_bytes; ranks.len()];
    let mut bytes = vec![0; 1 << 20];
    while missing.iter().any(|missing| *missing > 0) {
        for (rank, missing) in ranks.iter_mut().zip(&mut missing) {
            if *missing > 0 {
                let count = rank.read(&mut bytes).expect("replies");
                assert!(count > 0, "the relay has closed a connection");
                *missing -= count;
            }
        }
    }
    let peak = peak_bytes(relay.id());
    let _ = writeln!(io::stderr(), "{} MiB", peak / MIB);
    assert!(peak < PEAK_MAX, "{} MiB", peak / MIB);
    drop((ranks, stdin));
    relay.wait().expect("it ends");
}

fn serve() -> (TcpStoreServer, TcpStore) {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let store = TcpStore::connect("127.0.0.1", server.local_addr().port()).expect("a client");
    (server, store)
}

/// The store sends the list once for all ranks.
#[test]
fn ranks_that_do_not_read_share_a_budget() {
    let (_server, store) = serve();
    // Each reply fits into the window of a rank.
    for number in 0..250 {
        store.set(&format!("{number:0>999}"), b"").expect("set");
    }
    let mut request = RequestBuf::new();
    request.hello();
    request.opcode(Opcode::ListKeys);
    withstands(&store, &request.to_bytes(), 8 + 250 * (8 + 1000));
}

/// The store sends short values to each rank.
#[test]
fn replies_that_are_not_shared_have_the_same_budget() {
    let (_server, store) = serve();
    store.set("k", [7; 15_000]).expect("set");
    let mut request = RequestBuf::new();
    request.hello();
    for _ in 0..17 {
        request.opcode(Opcode::Get).user_key("k");
    }
    withstands(&store, &request.to_bytes(), 17 * (8 + 15_000));
}

/// The ranks together send more than the store's clients may take, so their requests arrive one after another.
#[test]
fn long_requests_of_many_ranks_are_not_refused() {
    let options = ServerOptions::default().with_memory_max(128 << 20);
    let server = TcpStoreServer::bind("127.0.0.1:0", options).expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = HostPort::new("127.0.0.1", server.local_addr().port());
    let relay = Relay::start(upstream, vec![listener], RelayOptions::default()).expect("a relay");
    let port = relay.local_addrs()[0].port();
    thread::scope(|scope| {
        for rank in 0..32 {
            scope.spawn(move || {
                let store = TcpStore::connect("127.0.0.1", port).expect("a client");
                store.set("k", vec![rank; 8 << 20]).expect("a set");
                assert!(store.num_keys().expect("an answer") > 0);
            });
        }
    });
    let store = TcpStore::connect("127.0.0.1", port).expect("a client");
    assert_eq!(store.get("k").expect("a value").len(), 8 << 20);
}
