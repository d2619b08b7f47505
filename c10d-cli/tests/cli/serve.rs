//! `c10d store serve`: its output, limits and end.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::Signal;

use crate::process::{Server, after, command, full_pipe, run, until};

/// Completes the handshake; returns whether the server answers a PING.
fn greet(stream: &mut TcpStream) -> bool {
    let hello = [0, 0xce, 0xf7, 0x85, 0x3c, 0x0d, 1, 2, 3, 4];
    let mut answer = [0; 4];
    let result = stream
        .write_all(&hello)
        .and_then(|()| stream.read_exact(&mut answer));
    result.is_ok() && answer == [1, 2, 3, 4]
}

#[test]
fn the_server_runs_until_sigterm_or_sigint_and_prints_one_line() {
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::INT, "SIGINT")] {
        let server = Server::start();
        assert!(server.address.ip().is_loopback());
        server.store(&["set", "k", "v"]).assert_prints("");
        server.store(&["get", "k"]).assert_prints("v");
        // A connected client does not delay the shutdown. The PING ensures that the server has accepted the
        // connection: the system resets connections that are still in the accept queue.
        let mut idle = server.connect();
        assert!(greet(&mut idle));
        server.running.signal(signal);
        let ended = server.end();
        assert_eq!(
            (ended.code, ended.stdout.as_slice()),
            (Some(0), &b""[..]),
            "{ended:?}"
        );
        assert!(!ended.stderr.contains("listening on"), "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("received {name}: stopping")),
            "{ended:?}"
        );
        assert_eq!(idle.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
}

#[test]
fn a_log_that_nobody_reads_stops_neither_clients_nor_the_end() {
    let (_reader, stderr) = full_pipe();
    let mut command = command(["store", "serve", "--port=0"]);
    command.stderr(stderr);
    let server = Server::start_command(command);
    // Each rejected peer has a line.
    for _ in 0..10 {
        let mut stranger = server.connect();
        stranger.write_all(b"\xff").unwrap();
        assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0);
    }
    server.store(&["set", "k", "v"]).assert_prints("");
    server.running.signal(Signal::TERM);
    assert_eq!(server.end().code, Some(0));
}

#[test]
fn the_log_has_the_number_of_possible_connections() {
    let log_of = |option| {
        let server = Server::start_with(["store", "serve", "--port=0", option]);
        server.running.signal(Signal::TERM);
        server.end().stderr
    };
    let log = log_of("--connections-max=7");
    let limit = "connection limit: 7 (--connections-max)";
    assert!(log.contains(limit) && !log.contains("WARN"), "{log}");
    let log = log_of("--world-size=1000000000");
    let warning = "1000000000 workers exceed the connection limit";
    assert!(log.contains(warning), "{log}");
    let is_named = !cfg!(target_os = "linux") || log.contains("net.core.somaxconn");
    assert!(is_named, "{log}");
}

/// Every limit, and the peer that exceeded it.
#[test]
fn each_rejected_request_is_logged_with_the_peers_address() {
    let server = Server::start_with([
        "store",
        "serve",
        "--port=0",
        "--key-bytes-max=10",
        "--value-bytes-max=2000",
        "--keys-per-request-max=100",
        "--request-bytes-max=3000",
        "--unsent-bytes-max=50000",
        "--hello-timeout=2s",
        "--no-status",
    ]);
    let hello = [0, 0xce, 0xf7, 0x85, 0x3c];
    let word = |number: u64| -> Vec<u8> { (0..8).map(|at| (number >> (8 * at)) as u8).collect() };
    let set = |value: usize| [&[1][..], &word(1), b"k", &word(value as u64)].concat();
    // MULTI_GET of a value of 2,000 bytes, 50 times.
    let many = [
        &[10][..],
        &word(50),
        &[word(1), b"k".to_vec()].concat().repeat(50),
    ]
    .concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            [&hello[..], &[3], &word(11)].concat(),
            "Get, byte 1: key of 11 bytes, limit 10",
        ),
        (
            [&hello[..], &set(2001)].concat(),
            "value of 2001 bytes, limit 2000",
        ),
        (
            [&hello[..], &[5], &word(101)].concat(),
            "101 keys, limit 100",
        ),
        (
            [
                &hello[..],
                &[2],
                &word(1),
                b"k",
                &word(2000),
                &[7; 2000],
                &word(1500),
            ]
            .concat(),
            "request of at least",
        ),
        (
            [&hello[..], &set(2000), &[7; 2000], &many].concat(),
            "exceed the limit of 50000 bytes",
        ),
        (
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            "first byte is 0x47, expected VALIDATE (0x00)",
        ),
        (vec![0, 1, 2, 3, 4], "wrong magic number 0x04030201"),
        ([hello, hello].concat(), "second VALIDATE"),
        ([&hello[..], &[19]].concat(), "unknown command 0x13"),
        (
            [&hello[..], &set(1), b"x", &[4], &word(1), b"k", &word(1)].concat(),
            "not a decimal number",
        ),
        (vec![], "no handshake within 2s"),
    ];
    let mut expected = Vec::new();
    for (host, (bytes, reason)) in (1..).zip(cases) {
        // Each from another address: the lines about one are limited.
        let mut stream = server.connect_from([127, 0, 1, host].into());
        stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        // The connection may be reset.
        let _ = stream.read_to_end(&mut rest);
        expected.push((stream.local_addr().unwrap(), reason));
    }
    server.running.signal(Signal::TERM);
    let log = server.end().stderr;
    for (address, reason) in expected {
        let about_it =
            |line: &&str| line.contains("refused") && line.contains(&address.to_string());
        let lines: Vec<&str> = log.lines().filter(about_it).collect();
        assert_eq!(lines.len(), 1, "{address}, {reason}: {log}");
        assert!(lines[0].contains(reason), "{reason}: {}", lines[0]);
    }
}

#[test]
fn a_connection_beyond_the_limit_is_logged_with_its_address() {
    let server = Server::start_with(["store", "serve", "--port=0", "--connections-max=1"]);
    let _first = server.connect();
    let mut second = server.connect();
    let address = second.local_addr().unwrap();
    assert_eq!(second.read(&mut [0]).unwrap_or(0), 0);
    server.running.signal(Signal::TERM);
    let log = server.end().stderr;
    assert!(
        log.contains(&format!(
            "refused {address}: the limit of 1 connections is reached"
        )),
        "{log}"
    );
}

/// Without a free descriptor the server rejects new connections at once, keeps serving the other connections,
/// and accepts again as soon as one disconnects. (PyTorch's older server aborts.)
#[test]
fn without_a_free_descriptor_new_connections_are_rejected_and_others_are_served() {
    let serve = command(["store", "serve", "--port=0"]);
    let server = Server::start_command(after("ulimit -n 40", &serve));
    let mut served = Vec::new();
    let mut rejected = 0;
    for _ in 0..60 {
        let mut stream = server.connect();
        if greet(&mut stream) {
            served.push(stream);
        } else {
            rejected += 1;
        }
    }
    assert!(served.len() >= 20 && rejected >= 20, "{rejected}");
    for stream in &mut served {
        stream.write_all(&[0x0d, 5, 6, 7, 8]).unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [5, 6, 7, 8]);
    }
    if cfg!(target_os = "linux") {
        // A server that retried `accept` in a loop would use the processor all the time.
        let processor_time = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", server.running.id())).unwrap();
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            [fields[11], fields[12]].map(|ticks| ticks.parse::<u64>().unwrap())
        };
        until("the server is idle", || {
            let before = processor_time();
            thread::sleep(Duration::from_millis(100));
            processor_time() == before
        });
    }
    drop(served);
    until("the server accepts again", || greet(&mut server.connect()));
    server.running.signal(Signal::TERM);
    let log = server.end().stderr;
    let about_limit = log.matches("no file descriptor left").count();
    assert_eq!(about_limit, 1, "{log}");
    assert!(log.contains("(its limit is "), "{log}");
}

#[test]
fn rust_log_sets_the_log_level() {
    let mut quiet = command(["store", "serve", "--port=0"]);
    quiet.env("RUST_LOG", "error");
    let server = Server::start_command(quiet);
    server.running.signal(Signal::TERM);
    assert_eq!(server.end().stderr, "");
}

#[test]
fn a_port_in_use_is_reported() {
    let server = Server::start();
    let port = format!("--port={}", server.address.port());
    let second = run(["store", "serve", &port]);
    assert_eq!(
        (second.code, second.stdout.as_slice()),
        (Some(3), &b""[..]),
        "{second:?}"
    );
    let last_line = second.stderr.lines().last().unwrap();
    assert!(
        last_line.starts_with("c10d: cannot listen on"),
        "{second:?}"
    );
    assert!(
        last_line.contains("stop the process that uses it"),
        "{second:?}"
    );
}

#[test]
fn a_listening_socket_of_the_parent_can_be_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    fcntl_setfd(&listener, FdFlags::empty()).unwrap();
    let fd = format!("--listen-fd={}", listener.as_raw_fd());
    let address = listener.local_addr().unwrap();

    let port = format!("--port={}", address.port());
    let wrong_port = format!("--port={}", address.port() ^ 1);
    for arguments in [vec![&fd], vec![&fd, &port]] {
        let words = ["store", "serve"].into_iter();
        let server = Server::start_with(words.chain(arguments.iter().map(|text| text.as_str())));
        assert_eq!(server.address, address);
        server.store(&["add", "k", "2"]).assert_prints("2\n");
    }

    let ended = run(["store", "serve", &fd, &wrong_port]);
    assert_eq!(ended.code, Some(3));
    assert!(
        ended.stderr.contains("expected to be bound to port"),
        "{ended:?}"
    );
}

#[test]
fn invalid_arguments_have_exit_code_2() {
    for arguments in [
        &["--no-such-flag"][..],
        &["--port=65536"],
        &["--value-bytes-max=lots"],
        &["--hello-timeout=soon"],
        &["--listen-fd=3", "--host=::1"],
        &["--listen-fd=-1"],
    ] {
        let ended = run(["store", "serve"].iter().chain(arguments));
        assert_eq!(
            (ended.code, ended.stdout.as_slice()),
            (Some(2), &b""[..]),
            "{arguments:?}"
        );
        assert!(!ended.stderr.is_empty());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_server_can_end_with_its_parent() {
    use std::process::Stdio;

    let script = "\"$0\" store serve --port 0 --end-with-parent & wait";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_c10d")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let server = Server::start_command(shell);
    assert!(TcpStream::connect(server.address).is_ok());
    server.running.signal(Signal::KILL);
    until("the server has ended", || {
        TcpStream::connect(server.address).is_err()
    });
}
