//! What ranks that do not read cost a relay, which runs in a process of its own: this binary again, with [`CHILD`] set.
#![cfg(target_os = "linux")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_relay::{HostPort, Relay, RelayOptions};
use c10d_store::unstable::RequestBuf;
use c10d_store::{Opcode, StoreExt};
use c10d_store::{ServerOptions, TcpStore, TcpStoreServer};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// Set in a process that only runs a relay, to the port of its store.
const CHILD: &str = "C10D_TEST_RELAY";

const RANKS: usize = 400;
const MIB: u64 = 1 << 20;

/// Whether this process only had to run a relay.
fn relay_if_child() -> bool {
    let Some(port) = std::env::var(CHILD).ok().and_then(|it| it.parse().ok()) else {
        return false;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // The memory of the system for connections is not what is measured.
    set_socket_send_buffer_size(&listener, 4096).expect("an option");
    let store = HostPort::new("127.0.0.1", port);
    let relay = Relay::start(store, vec![listener], RelayOptions::default()).expect("a relay");
    let address = relay.local_addrs()[0];
    writeln!(io::stdout(), "listening on {address}").expect("a pipe");
    let _ = io::stdin().read_to_end(&mut Vec::new());
    true
}

fn peak_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.expect("a peak").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") * 1024
}

#[test]
fn ranks_that_do_not_read_share_a_budget() {
    if relay_if_child() {
        return;
    }
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a server");
    let port = server.local_addr().port();
    let store = TcpStore::connect("127.0.0.1", port).expect("a client");
    // Each reply fits into the window of a rank.
    for number in 0..250 {
        store.set(&format!("{number:0>999}"), b"").expect("set");
    }
    let listing = 8 + 250 * (8 + 1000);

    let mut relay = Command::new(std::env::current_exe().expect("this binary"))
        .args([
            "--exact",
            "ranks_that_do_not_read_share_a_budget",
            "--nocapture",
        ])
        .env(CHILD, port.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let stdin = relay.stdin.take();
    let mut stdout = BufReader::new(relay.stdout.take().expect("a pipe"));
    let address: SocketAddr = stdout
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("listening on ")?.1.parse().ok())
        .expect("it listens");

    let mut request = RequestBuf::new();
    request.hello();
    request.opcode(Opcode::ListKeys);
    let request = request.to_bytes();
    let mut ranks: Vec<TcpStream> = (0..RANKS)
        .map(|_| {
            let mut rank = TcpStream::connect(address).expect("the relay listens");
            set_socket_recv_buffer_size(&rank, 4096).expect("an option");
            rank.set_read_timeout(Some(Duration::from_secs(60)))
                .expect("an option");
            rank.write_all(&request).expect("the relay reads");
            rank
        })
        .collect();
    // Until nothing is sent any more: the replies are where they fit.
    let sent = || {
        let counters = server.observer().counters(Duration::from_secs(60));
        counters.expect("counters").sent_bytes
    };
    let mut before = (sent(), Instant::now());
    while before.0 < 30 * MIB || before.1.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(10));
        let now = sent();
        if now != before.0 {
            before = (now, Instant::now());
        }
        assert!(before.1.elapsed() < Duration::from_secs(60), "{now} bytes");
    }
    let peak = peak_bytes(relay.id());
    assert!(peak < 85 * MIB, "{} MiB", peak / MIB);

    // Some close their connections, and the others read: all replies come.
    ranks.truncate(100);
    for rank in &ranks {
        set_socket_recv_buffer_size(rank, 1 << 20).expect("an option");
    }
    let mut missing = vec![4 + listing; ranks.len()];
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
    assert!(peak < 85 * MIB, "{} MiB", peak / MIB);
    drop((ranks, stdin));
    relay.wait().expect("it ends");
}
