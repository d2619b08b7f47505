use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::launcher::processes::{Scanner, StoreAddress};
use crate::launcher::stacks::StackThread;
use c10d_inspect::http::{HttpRequest, Target, fetch};
use c10d_inspect::stacks::RankAnswer;
use c10d_inspect::{AnnouncedNode, AnnouncedWorker, WorkerEnd};
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
            // A connection that only checks for a listener sends nothing.
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

/// The port and its address, for these workers.
struct Asked {
    answers: Answers,
    address: SocketAddr,
}

/// A worker whose debug server, if any, has this socket.
fn worker(rank: usize, pid: u32, socket: Option<&Path>) -> AnnouncedWorker {
    let mut worker = AnnouncedWorker::default();
    worker.rank = rank;
    worker.pid = pid;
    worker.debug_socket = socket.map(Path::to_owned);
    worker
}

/// The workers with their current processes.
fn announced(mut workers: Vec<AnnouncedWorker>) -> AnnouncedNode {
    let pids: Vec<u32> = workers.iter().map(|worker| worker.pid).collect();
    let found = Scanner::new("/proc").look(&pids, &StoreAddress::default());
    for (worker, processes) in workers.iter_mut().zip(found) {
        worker.processes = processes;
    }
    let mut node = AnnouncedNode::default();
    node.workers = workers;
    node
}

fn start(stacks: Option<StackThread>, workers: Vec<AnnouncedWorker>) -> Asked {
    let answers = Answers::new(None);
    let port = answers.port();
    let node = move || announced(workers.clone());
    answer_questions(&port, node, stacks.map(Arc::new));
    assert_eq!(port.address(), None);
    open(&answers);
    let address = port.address().unwrap();
    Asked { answers, address }
}

fn open(answers: &Answers) {
    let workers = StartedWorkers::alone(HostPort::new("127.0.0.1", 29500), Vec::new());
    answers.agent_listener().unwrap()(&AgentEvent::WorkersStarted(&workers));
}

impl Asked {
    fn get(&self, path: &str) -> HttpResponse {
        let request = HttpRequest::get(Target::Tcp(self.address), path);
        fetch(&request, PATIENCE).unwrap()
    }

    fn stacks(&self, rank: usize) -> RankAnswer {
        let answer = self.get(&format!("/stacks?rank={rank}"));
        serde_json::from_slice(&answer.body).unwrap()
    }
}

#[test]
fn the_launcher_answers_for_debug_servers() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::process::id();
    let sockets = ["0-0", "0-1"].map(|name| folder.path().join(name));
    let [first, second] = &sockets;
    let workers = vec![worker(4, own, Some(first)), worker(5, own, Some(second))];
    let asked = start(None, workers);
    assert!(asked.address.ip().is_loopback());

    let server = serve(&sockets[0], 1, "200 OK", DUMP);
    let stacks = asked.stacks(4).stacks.unwrap();
    assert_eq!(stacks.position().unwrap(), "train.py:12 in load");
    server.join().unwrap();

    // Rank 5 has not imported torch yet.
    let answer = asked.stacks(5);
    assert!(answer.error.unwrap().contains("cannot connect to"));
    assert_eq!(answer.process.unwrap().pid, own);
    assert_eq!(asked.get("/flight?rank=5").status, 504);
    let server = serve(&sockets[1], 1, "200 OK", "{}");
    assert_eq!(asked.get("/flight?rank=5").body, b"{}");
    server.join().unwrap();

    for path in ["/stacks?rank=0", "/stacks", "/", "/stacks/x?rank=4"] {
        assert_eq!(asked.get(path).status, 404, "{path}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn stacks_that_cannot_be_read_come_from_the_debug_server_or_have_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let mut sleep = std::process::Command::new("sleep")
        .arg("600")
        .spawn()
        .unwrap();
    let socket = folder.path().join("0-0");
    let thread = StackThread::start().unwrap();
    let asked = start(Some(thread), vec![worker(0, sleep.id(), Some(&socket))]);
    let server = serve(&socket, 1, "200 OK", DUMP);
    let answer = asked.stacks(0);
    assert_eq!((answer.stacks.is_some(), answer.error), (true, None));
    server.join().unwrap();
    drop(asked);

    let thread = StackThread::start().unwrap();
    let asked = start(Some(thread), vec![worker(0, sleep.id(), None)]);
    let answer = asked.stacks(0);
    let text = answer.explanation();
    let expected = "its stacks cannot be read: the process is not a Python program. The process sleeps (state S";
    assert!(text.contains(expected), "{text}");
    assert!(text.ends_with(" It runs: sleep 600"), "{text}");
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}

/// The script's process is below a shell.
#[test]
#[cfg(all(target_os = "linux", feature = "stacks"))]
fn the_stacks_of_a_python_worker_are_read() {
    use std::io::BufRead as _;

    let script = "import sys; print('ready', flush=True); sys.stdin.read()";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "python3 -c \"$0\"; exit 0", script]);
    let command = command.stdin(std::process::Stdio::piped());
    let mut shell = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = io::BufReader::new(shell.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let thread = StackThread::start().unwrap();
    let asked = start(Some(thread), vec![worker(0, shell.id(), None)]);
    let stacks = asked.stacks(0).stacks.unwrap();
    assert_eq!(stacks.position().unwrap(), "<string>:1 in <module>");
    assert_eq!(stacks.threads[0].name, None);
    // The end of its input.
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

/// Its process id may belong to another process by now.
#[test]
fn the_process_of_a_worker_that_has_ended_is_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("0-0");
    let _server = UnixListener::bind(&socket).unwrap();
    let mut ended = worker(0, std::process::id(), Some(&socket));
    ended.end = Some(WorkerEnd::default());
    let thread = StackThread::start().unwrap();
    let asked = start(Some(thread), vec![ended]);
    let answer = asked.stacks(0);
    assert_eq!(
        answer.explanation(),
        "Rank 0: its stacks cannot be read: the process has ended."
    );
    drop(asked.answers);
    let request = HttpRequest::get(Target::Tcp(asked.address), "/stacks?rank=0");
    assert!(fetch(&request, PATIENCE).is_err());
}

#[test]
fn each_path_has_its_handler_and_requests_need_the_token() {
    let answers = Answers::new(Some("token".to_owned()));
    let port = answers.port();
    port.answer("/echo", Arc::new(|path| HttpResponse::new(200, path)));
    open(&answers);
    let request = HttpRequest::get(Target::Tcp(port.address().unwrap()), "/echo?a=b");
    assert_eq!(fetch(&request, PATIENCE).unwrap().status, 401);
    let answer = fetch(&request.with_token(Some("token")), PATIENCE).unwrap();
    assert_eq!(answer.body, b"/echo?a=b");
}
