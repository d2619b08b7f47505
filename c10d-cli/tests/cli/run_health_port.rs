//! `TORCHELASTIC_HEALTH_CHECK_PORT`: the launcher answers whether it is alive.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{PATIENCE, Running, free_port, until};
use crate::run::Job;

const PORT: &str = "TORCHELASTIC_HEALTH_CHECK_PORT";

/// The status and the body of the answer to a request; `None` while the port is closed.
fn ask(port: u16, method: &str, host: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} /health HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    Some((status, body.to_owned()))
}

#[track_caller]
fn assert_alive((status, body): (u16, String)) {
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["alive"], true, "{body}");
    assert!(
        body["last_progress"].as_u64().unwrap() > 1_700_000_000,
        "{body}"
    );
}

#[test]
fn a_launcher_answers_while_it_waits_for_others_and_while_workers_run() {
    let job = Job::with_server();
    let port = free_port();
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let options = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0",
        &endpoint,
    ];
    let script = "
        echo > $C10D_TEST_FOLDER/ready.$RANK
        while ! [ -e $C10D_TEST_FOLDER/end ]; do sleep 0.01; done";
    let mut command = job.command(&options, script);
    command.env(PORT, port.to_string());
    command.env("TORCHELASTIC_ENABLE_FILE_TIMER", "1");
    let node = Running::start(command);
    let mut first = None;
    until("the port is open", || {
        first = ask(port, "GET", "10.0.0.7:8080");
        first.is_some()
    });
    assert_alive(first.unwrap());

    let other = job.start(&options, script);
    for name in ["ready.0", "ready.1"] {
        job.line(name);
    }
    for _ in 0..3 {
        assert_alive(ask(port, "GET", "localhost").unwrap());
    }
    assert_eq!(ask(port, "POST", "localhost").unwrap().0, 405);
    // A page of a stranger in a browser of this network.
    assert_eq!(ask(port, "GET", "example.org").unwrap().0, 421);

    fs::write(job.path("end"), "").unwrap();
    for node in [node, other] {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    assert_eq!(ask(port, "GET", "localhost"), None);
}

#[test]
fn a_port_that_is_in_use_is_an_error_before_anything_starts() {
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let taken = taken.unwrap();
    let job = Job::new();
    let mut command = job.command(&["--standalone"], "echo > $C10D_TEST_FOLDER/started");
    command.env(PORT, taken.local_addr().unwrap().port().to_string());
    Running::start(command)
        .end()
        .assert_fails(3, "cannot answer health checks on port");
    assert!(!job.exists("started"));
}

#[test]
fn a_probe_during_the_shutdown_of_workers_is_answered() {
    let job = Job::new();
    let port = free_port();
    let script = "
        trap 'echo > $C10D_TEST_FOLDER/stopping' TERM
        echo > $C10D_TEST_FOLDER/ready
        while ! [ -e $C10D_TEST_FOLDER/end ]; do sleep 0.01; done";
    let mut command = job.command(&["--standalone"], script);
    command.env(PORT, port.to_string());
    let node = Running::start(command);
    job.line("ready");
    node.signal(Signal::TERM);
    job.line("stopping");
    assert_alive(ask(port, "GET", "localhost").unwrap());
    fs::write(job.path("end"), "").unwrap();
    assert_eq!(node.end().code, Some(1));
}
