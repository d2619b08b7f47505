//! The memory that idle connections cost a server, which runs in a separate process: this binary again, with
//! [`CHILD`] set.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::unstable::RequestBuf;
use c10d_store::{Opcode, ServerOptions, TcpStoreServer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

const TEST: &str = "an_idle_connection_costs_at_most_768_bytes";

/// Set in the process that only runs a server.
const CHILD: &str = "C10D_TEST_IDLE_MEMORY";

const CONNECTIONS: u64 = 16_000;

/// The server's memory for one connection, in bytes.
const BYTES_MAX: u64 = 768;

/// A timeout that only a hang reaches, even on a loaded machine.
const LONG: Duration = Duration::from_secs(30);

/// Raises the limit on open files to the maximum. Returns how many connections it allows.
fn connections_possible() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may be raised");
    maximum.unwrap_or(u64::MAX).saturating_sub(100)
}

fn serve() {
    connections_possible();
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default());
    let server = server.expect("a free port");
    writeln!(io::stdout(), "port {}", server.local_addr().port()).expect("a pipe");
    let _ = io::stdin().read(&mut [0]);
}

/// Memory without files and shared memory.
fn anonymous_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.expect("a size").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") << 10
}

/// Connects like a rank, with the handshake and an ADD. Uses several addresses, because the search for a free port of
/// one address takes long beyond 14,000.
fn join(index: u64, port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = Ipv4Addr::new(127, 0, 0, 1 + (index / 4000) as u8);
    let from = SocketAddr::new(IpAddr::V4(from), 0);
    socket.bind(&from.into()).expect("a port");
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect(&to.into()).expect("the server accepts");
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).expect("an option");
    let mut request = RequestBuf::new();
    request.hello();
    request.opcode(Opcode::Add).user_key("init/").i64(1);
    stream
        .write_all(&request.to_bytes())
        .expect("the server reads");
    stream
        .read_exact(&mut [0; 4 + 8])
        .expect("the server replies");
    stream
}

/// All ranks wait for a key, like at a barrier, until it is set.
fn meet(ranks: &mut [TcpStream], key: &str) {
    let (last, others) = ranks.split_last_mut().expect("some ranks");
    for rank in &mut *others {
        let mut request = RequestBuf::new();
        request.opcode(Opcode::Wait).u64(1).user_key(key);
        rank.write_all(&request.to_bytes()).expect("it reads");
    }
    let mut request = RequestBuf::new();
    request.opcode(Opcode::Set).user_key(key).value(b"1");
    last.write_all(&request.to_bytes()).expect("it reads");
    for rank in others {
        rank.read_exact(&mut [0]).expect("the wait ends");
    }
}

#[test]
fn an_idle_connection_costs_at_most_768_bytes() {
    if env::var_os(CHILD).is_some() {
        return serve();
    }
    let count = connections_possible().min(CONNECTIONS);
    let mut process = Command::new(env::current_exe().expect("a test program"))
        .args([TEST, "--exact", "--nocapture"])
        .env(CHILD, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut printed = BufReader::new(process.stdout.take().expect("a pipe")).lines();
    let port = printed.by_ref().map_while(Result::ok).find_map(|line| {
        let (_, port) = line.split_once("port ")?;
        port.parse().ok()
    });
    let port = port.expect("the server listens");
    drop(join(0, port));
    let before = anonymous_bytes(process.id());
    // Memory that the server frees after its last reply counts as freed.
    let check = |what: &str| {
        let each = || anonymous_bytes(process.id()).saturating_sub(before) / count;
        let deadline = Instant::now() + LONG;
        while each() > BYTES_MAX {
            let each = each();
            assert!(
                Instant::now() < deadline,
                "{what}: {each} bytes for each of {count}"
            );
            thread::sleep(Duration::from_millis(1));
        }
        let _ = writeln!(io::stderr(), "{what}: {} bytes for each of {count}", each());
    };
    let join_all = || -> Vec<_> { (0..count).map(|index| join(index, port)).collect() };
    let mut ranks = join_all();
    check("after the handshake");
    meet(&mut ranks, "barrier");
    check("after a wait");
    drop(ranks);
    // With the records of those that have left.
    let ranks = join_all();
    check("after others have left");
    drop(ranks);
    drop(process.stdin.take());
    assert!(process.wait().expect("the server's process").success());
}
