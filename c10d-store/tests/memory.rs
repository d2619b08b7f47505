//! The memory of removed keys in a server's process. It is a separate test binary, because it measures the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::Opcode;
use c10d_store::unstable::RequestBuf;
use c10d_store::{ServerOptions, TcpStoreServer};

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(30);

/// The resident memory of this process in KiB.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.expect("a size").trim().trim_end_matches(" kB");
    kib.parse().expect("a number")
}

/// Sends a request for each key, then reads as many bytes as the replies have.
fn for_each_key<'v>(
    socket: &mut TcpStream,
    (keys, keys_per_write): (usize, usize),
    reply_bytes: usize,
    build: impl Fn(&mut RequestBuf<'v>, &str),
) {
    for start in (0..keys).step_by(keys_per_write) {
        let mut requests = Vec::new();
        let end = keys.min(start + keys_per_write);
        for key in start..end {
            let mut request = RequestBuf::new();
            build(&mut request, &format!("key{key:09}"));
            requests.extend(request.to_bytes());
        }
        socket.write_all(&requests).expect("the server reads");
        let mut replies = vec![0; reply_bytes * (end - start)];
        socket.read_exact(&mut replies).expect("the server replies");
    }
}

fn connect(server: &TcpStoreServer) -> TcpStream {
    let mut socket = TcpStream::connect(server.local_addr()).expect("the server accepts");
    let mut request = RequestBuf::new();
    request.hello();
    socket.write_all(&request.to_bytes()).expect("a handshake");
    socket.read_exact(&mut [0; 4]).expect("a handshake");
    socket
}

/// Both sizes in one test: they measure the same process.
#[test]
fn memory_of_removed_keys_is_returned_to_the_system() {
    let server =
        TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).expect("a free port");
    let mut socket = connect(&server);

    let before = resident_kib();
    for_each_key(&mut socket, (300_000, 10_000), 8, |request, key| {
        request.opcode(Opcode::Add).user_key(key).i64(1);
    });
    let full = resident_kib();
    assert!(full - before > 30_000, "{before} KiB, then {full}");
    for_each_key(&mut socket, (300_000, 10_000), 8, |request, key| {
        request.opcode(Opcode::DeleteKey).user_key(key);
    });
    until_released(before, full);

    let value = vec![b'x'; 1 << 20];
    let before = resident_kib();
    for_each_key(&mut socket, (512, 1), 8, |request, key| {
        // The reply to the ADD arrives when the value is set.
        request.opcode(Opcode::Set).user_key(key).value(&value);
        request.opcode(Opcode::Add).user_key("count").i64(1);
    });
    let full = resident_kib();
    assert!(full - before > 400_000, "{before} KiB, then {full}");
    for_each_key(&mut socket, (512, 1), 8, |request, key| {
        request.opcode(Opcode::DeleteKey).user_key(key);
    });
    until_released(before, full);
}

/// Waits until three quarters of the memory added to `before` are returned: glibc keeps up to 64 MiB at the end of a
/// thread's heap. The last reply precedes the last release.
fn until_released(before: usize, full: usize) {
    let grown = full - before;
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
