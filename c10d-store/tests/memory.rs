//! What a server's process does with the memory of removed keys. A process of its own, since it measures the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::wire::{Opcode, RequestBuf};
use c10d_store::{ServerOptions, TcpStoreServer};

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(30);

const KEYS: usize = 300_000;
const KEYS_PER_WRITE: usize = 10_000;

/// The resident memory of this process in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.expect("a size").trim().trim_end_matches(" kB");
    kib.parse().expect("a number")
}

/// Sends a request for each key, then reads as many bytes as the replies have.
fn for_each_key(
    socket: &mut TcpStream,
    reply_bytes: usize,
    build: impl Fn(&mut RequestBuf<'_>, &str),
) {
    for start in (0..KEYS).step_by(KEYS_PER_WRITE) {
        let mut requests = Vec::new();
        for key in start..start + KEYS_PER_WRITE {
            let mut request = RequestBuf::new();
            build(&mut request, &format!("key{key:09}"));
            requests.extend(request.to_bytes());
        }
        socket.write_all(&requests).expect("the server reads");
        let mut replies = vec![0; reply_bytes * KEYS_PER_WRITE];
        socket.read_exact(&mut replies).expect("the server replies");
    }
}

#[test]
fn memory_of_many_small_values_is_returned_to_the_system() {
    let server =
        TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port");
    let mut socket = TcpStream::connect(server.local_addr()).expect("the server accepts");
    let mut request = RequestBuf::new();
    request.hello();
    socket.write_all(&request.to_bytes()).expect("a handshake");
    socket.read_exact(&mut [0; 4]).expect("a handshake");
    let before = resident_kib();
    for_each_key(&mut socket, 8, |request, key| {
        request.opcode(Opcode::Add).user_key(key).i64(1);
    });
    let full = resident_kib();
    for_each_key(&mut socket, 8, |request, key| {
        request.opcode(Opcode::DeleteKey).user_key(key);
    });
    let grown = full - before;
    assert!(grown > 30_000, "{KEYS} keys take {grown} KiB");
    // The last reply precedes the last release.
    let deadline = Instant::now() + LONG;
    let kept = || resident_kib().saturating_sub(before);
    while kept() >= grown / 4 {
        let kept = kept();
        assert!(
            Instant::now() < deadline,
            "{kept} of {grown} KiB are still there"
        );
        thread::sleep(Duration::from_millis(1));
    }
}
