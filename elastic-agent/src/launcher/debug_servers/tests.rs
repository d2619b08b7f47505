use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use crate::agent::StartedWorker;
use c10d_inspect::http::{HttpRequest, fetch};
use c10d_inspect::stacks::RankAnswer;
use c10d_socket::HostPort;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

const DUMP: &str = "Thread 0x01 (most recent call first):\n  File \"train.py\", line 12 in load\n";

/// A debug server that answers `count` requests.
fn serve(
    path: &Path,
    count: usize,
    status: &'static str,
    body: &'static str,
) -> thread::JoinHandle<()> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let mut served = 0;
        while served < count {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            // A connection that only asks who listens sends nothing.
            if head.is_empty() {
                continue;
            }
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).unwrap();
            served += 1;
        }
    })
}

/// The address of the proxy of these workers.
fn start(servers: &DebugServers, workers: Vec<StartedWorker>) -> SocketAddr {
    let master = HostPort::new("127.0.0.1", 29500);
    assert_eq!(servers.proxy_address().get(), None);
    let workers = StartedWorkers::alone(master, workers);
    servers.agent_listener().unwrap()(&AgentEvent::WorkersStarted(&workers));
    servers.proxy_address().get().unwrap()
}

#[test]
fn the_launcher_answers_for_its_workers() {
    let servers = DebugServers::prepare(None).unwrap();
    let own = std::process::id();
    let workers = vec![StartedWorker::new(4, 0, own), StartedWorker::new(5, 1, own)];
    let address = start(&servers, workers);
    assert!(address.ip().is_loopback());
    let get = |path: &str| fetch(&HttpRequest::get(Target::Tcp(address), path), PATIENCE).unwrap();
    let socket = |local_rank| AgentOptions::debug_socket(servers.sockets(), 0, local_rank);
    let sockets = [socket(0), socket(1)];

    let server = serve(&sockets[0], 1, "200 OK", DUMP);
    let answer: RankAnswer = serde_json::from_slice(&get("/stacks?rank=4").body).unwrap();
    assert_eq!(
        answer.stacks.unwrap().position().unwrap(),
        "train.py:12 in load"
    );
    server.join().unwrap();

    // Rank 5 has not imported torch yet.
    let answer: RankAnswer = serde_json::from_slice(&get("/stacks?rank=5").body).unwrap();
    assert!(answer.error.unwrap().contains("cannot connect to"));
    assert_eq!(answer.process.unwrap().pid, own);
    assert_eq!(get("/flight?rank=5").status, 504);
    let server = serve(&sockets[1], 1, "200 OK", "{}");
    assert_eq!(get("/flight?rank=5").body, b"{}");
    server.join().unwrap();

    assert_eq!(get("/stacks?rank=0").status, 404);
    assert_eq!(get("/").status, 404);
}

#[test]
fn workers_that_are_being_stopped_are_not_asked() {
    let servers = DebugServers::prepare(None).unwrap();
    let address = start(&servers, vec![StartedWorker::new(0, 0, 7)]);
    servers.agent_listener().unwrap()(&AgentEvent::Stopping);
    let request = HttpRequest::get(Target::Tcp(address), "/stacks?rank=0");
    assert_eq!(fetch(&request, PATIENCE).unwrap().status, 404);
    drop(servers);
    assert!(fetch(&request, PATIENCE).is_err());
}
