//! The thread with a service of this process, which simulates a worker.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use c10d_inspect::nccl::ProblemKind;
use c10d_inspect::{AnnouncedProcess, AnnouncedWorker};

use super::*;

const BEHIND: &str = include_str!("../../../../c10d-inspect/testdata/ras/2.30-half-behind");

/// Answers each connection as the service does, until the listener is dropped with the process.
fn serve(answer: &'static str) -> HostPort {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
            while lines
                .next()
                .is_some_and(|line| line.unwrap() != "VERBOSE STATUS")
            {}
            // It may have disconnected already.
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    HostPort::new("127.0.0.1", address.port())
}

fn node_with(pid: u32) -> AnnouncedNode {
    let mut process = AnnouncedProcess::default();
    process.pid = pid;
    let mut worker = AnnouncedWorker::default();
    worker.processes = vec![process];
    let mut node = AnnouncedNode::default();
    node.workers = vec![worker];
    node.node_rank = Some(0);
    node
}

fn thread_of(service: HostPort) -> Thread {
    Thread {
        service,
        cancel: Cancel::new(),
        scanner: Scanner::new("/proc"),
        watch: NcclWatch::default(),
        epoch: Instant::now(),
        reads_json: true,
        had_answer: false,
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_worker_is_asked_and_another_program_gets_no_byte() {
    let mut thread = thread_of(serve(BEHIND));
    let own = node_with(std::process::id());
    // A busy machine can take longer than a question may.
    let nccl = std::iter::repeat_with(|| thread.ask(&own)).take(60);
    let nccl = nccl.flatten().next().expect("an answer");
    assert_eq!(nccl.version, "2.30.7+cuda13.3");
    let [problem] = &nccl.problems[..] else {
        panic!("{nccl:?}");
    };
    assert_eq!(
        (problem.kind, problem.members.count),
        (ProblemKind::Behind, 4)
    );

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // Process 1 is none of this test.
    let answer = thread_of(HostPort::new("127.0.0.1", port)).ask(&node_with(1));
    assert_eq!(answer, None);
    let (mut taken, _) = listener.accept().unwrap();
    let mut received = Vec::new();
    Read::read_to_end(&mut taken, &mut received).unwrap();
    assert_eq!(received, b"");
}

#[test]
#[cfg(target_os = "linux")]
fn a_service_that_says_nothing_costs_a_second() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let silent = thread::spawn(move || listener.accept().unwrap());
    let begun = Instant::now();
    let mut thread = thread_of(HostPort::new("127.0.0.1", port));
    assert_eq!(thread.ask(&node_with(std::process::id())), None);
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(1) || silent.is_finished(),
        "{took:?}"
    );
    drop(silent.join().unwrap());
}

#[test]
fn an_asker_ends_at_once_in_a_pause() {
    let (notes, noted) = mpsc::channel();
    let note = move |nccl: Option<AnnouncedNccl>| notes.send(nccl).unwrap();
    let asker = NcclAsker::start(HostPort::new("127.0.0.1", 9), AnnouncedNode::default, note);
    drop(asker.unwrap());
    // The thread has ended, and has said nothing.
    assert_eq!(noted.recv(), Err(mpsc::RecvError));
}

#[test]
fn the_address_is_that_of_the_workers_environment() {
    let of = |variables: &[(&str, &str)]| {
        let variables = variables.iter();
        let variables: Vec<_> = variables
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        service(&variables).map(|it| it.to_string())
    };
    assert_eq!(of(&[]).as_deref(), Some("localhost:28028"));
    assert_eq!(
        of(&[("NCCL_RAS_ADDR", "[::1]:7000")]).as_deref(),
        Some("[::1]:7000")
    );
    for off in [
        ("NCCL_RAS_ENABLE", "0"),
        ("NCCL_RAS_ADDR", "nowhere"),
        ("NCCL_RAS_ADDR", "a:0"),
    ] {
        assert_eq!(of(&[off]), None, "{off:?}");
    }
}
