//! `c10d run` on a terminal: the live line, the log, and the output of workers.

use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use rustix::process::Signal;

use crate::process::{Running, Server, command, until};
use crate::pty::terminal;
use crate::run_explain::{Job, WAITS_FOR_RANK_1};

/// A minimal terminal: printable characters, CR, LF, and "erase to the end of the line". Skips colors; any
/// other byte fails the test.
#[derive(Debug, Default)]
struct Screen {
    /// The cursor is in the last line.
    lines: Vec<Vec<u8>>,
    column: usize,
    escape: Option<Vec<u8>>,
}

impl Screen {
    fn take(&mut self, byte: u8) {
        if self.lines.is_empty() {
            self.lines.push(Vec::new());
        }
        if let Some(escape) = &mut self.escape {
            escape.push(byte);
            if escape.len() > 1 && byte.is_ascii_alphabetic() {
                let line = self.lines.last_mut().unwrap();
                match escape.as_slice() {
                    b"[K" => line.truncate(self.column),
                    [b'[', .., b'm'] => {}
                    other => panic!("unknown escape {other:?}"),
                }
                self.escape = None;
            }
            return;
        }
        let line = self.lines.last_mut().unwrap();
        match byte {
            b'\x1b' => self.escape = Some(Vec::new()),
            b'\r' => self.column = 0,
            b'\n' => self.lines.push(Vec::new()),
            _ => {
                if line.len() <= self.column {
                    line.resize(self.column + 1, b' ');
                }
                line[self.column] = byte;
                self.column += 1;
            }
        }
    }

    fn text(&self) -> Vec<String> {
        let lines = self.lines.iter();
        lines
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect()
    }
}

/// A node with a terminal as standard output and standard error.
struct Node {
    running: Running,
    screen: Arc<Mutex<Screen>>,
    reader: JoinHandle<()>,
}

impl Node {
    fn start(mut command: std::process::Command) -> Self {
        let (near, far) = terminal(100, 50);
        command
            .env("TERM", "xterm")
            .stdout(far.try_clone().unwrap());
        command.stderr(far);
        let running = Running::start(command);
        let screen = Arc::<Mutex<Screen>>::default();
        let shown = Arc::clone(&screen);
        // Ends when the last process has closed the terminal.
        let reader = thread::spawn(move || {
            let mut near = File::from(near);
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = near.read(&mut buffer) {
                let mut screen = shown.lock().unwrap();
                buffer[..count].iter().for_each(|byte| screen.take(*byte));
            }
        });
        Self {
            running,
            screen,
            reader,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.screen.lock().unwrap().text()
    }

    /// The exit code, and the final lines of the terminal.
    fn end(self) -> (Option<i32>, Vec<String>) {
        let code = self.running.end().code;
        self.reader.join().unwrap();
        let lines = self.screen.lock().unwrap().text();
        (code, lines)
    }
}

fn node(server: &Server, options: &[&str], script: &str) -> std::process::Command {
    let dynamic = ["--rdzv-backend=c10d", "--rdzv-conf=is_host=0"];
    node_of(server, &[&dynamic, options].concat(), script)
}

fn node_of(server: &Server, options: &[&str], script: &str) -> std::process::Command {
    let endpoint = format!("--rdzv-endpoint={}", server.address);
    let common = ["run", "--nnodes=2", "--local-addr=127.0.0.1", &endpoint];
    let mut command = command(common);
    command
        .args(options)
        .args(["--no-python", "sh", "-c", script])
        .env("OMP_NUM_THREADS", "1");
    command
}

fn is_log(line: &str) -> bool {
    line.starts_with('[')
        && ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"]
            .iter()
            .any(|level| line.contains(level))
}

#[test]
fn log_lines_and_output_of_workers_go_above_the_live_line() {
    let server = Server::start();
    let script = "echo a line of a worker; echo another line of a worker >&2";
    let options = ["--nnodes=3"];
    let mut first = node(&server, &options, script);
    // Makes the rendezvous log each step.
    first.env("RUST_LOG", "trace");
    let first = Node::start(first);
    let shows = |live: &str| {
        let lines = first.lines();
        let (last, above) = lines.split_last()?;
        let logged = above.iter().filter(|line| is_log(line)).count();
        last.starts_with(live).then_some((lines.clone(), logged))
    };
    let mut before = None;
    until("the join is shown", || {
        before = shows("1 of 3 nodes: waiting up to ");
        before.is_some()
    });
    let second = Running::start(node(&server, &options, "exit 0"));
    let mut after = None;
    until("more is logged while the join is shown", || {
        after = shows("2 of 3 nodes: waiting up to ")
            .filter(|(_, logged)| *logged > before.as_ref().unwrap().1);
        after.is_some()
    });
    let (lines, _) = after.unwrap();
    let (live, above) = lines.split_last().unwrap();
    assert!(live.contains("; joined: 127.0.0.1 ("), "{live}");
    assert!(above.iter().all(|line| is_log(line)), "{above:#?}");

    let third = Running::start(node(&server, &options, "exit 0"));
    let (code, lines) = first.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert_eq!([second.end().code, third.end().code], [Some(0); 2]);
    let of_workers: Vec<&String> = lines.iter().filter(|line| !is_log(line)).collect();
    assert_eq!(of_workers.len(), 3, "{of_workers:#?}");
    for text in ["a line of a worker", "another line of a worker", ""] {
        assert!(
            of_workers.iter().any(|line| *line == text),
            "{of_workers:#?}"
        );
    }
}

/// The test serves the store instead of node rank 0, which does not join.
#[test]
fn a_static_rendezvous_shows_which_node_rank_is_missing() {
    let server = Server::start();
    let options = ["--rdzv-backend=static", "--node-rank=1"];
    let node = Node::start(node_of(&server, &options, "exit 0"));
    until("the missing rank is shown", || {
        let lines = node.lines();
        let live = lines.last().map_or("", String::as_str);
        live.starts_with("1 of 2 nodes: waiting up to ")
            && live.contains("; missing node ranks: 0; joined: 1 ")
    });
}

#[test]
fn ctrl_c_names_the_workers_it_waits_for_and_a_second_one_kills_them() {
    let server = Server::start();
    let script = "trap '' INT TERM; echo ready; while :; do sleep 0.01; done";
    let options = ["--nnodes=1", "--nproc-per-node=2"];
    let node = Node::start(node(&server, &options, script));
    let count = |text: &str| {
        node.lines()
            .iter()
            .filter(|line| line.contains(text))
            .count()
    };
    until("both workers ignore the signals", || count("ready") == 2);
    node.running.signal(Signal::INT);
    until("the log names the workers", || {
        count("still waiting for local rank 0 (pid ") == 1
    });
    node.running.signal(Signal::INT);
    let (code, lines) = node.end();
    assert_eq!(code, Some(1), "{lines:#?}");
    let line = |text: &str| {
        let found = lines.iter().find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("no {text:?} in {lines:#?}"))
    };
    let first = line("received SIGINT: passed it to the workers; ");
    assert!(
        first.contains("SIGKILL follows after 30 s, or at once"),
        "{first}"
    );
    let waiting = line("still waiting for");
    assert!(
        waiting.contains("to exit after SIGINT; SIGKILL in 2"),
        "{waiting}"
    );
    line("received SIGINT while stopping: killed the workers");
}

#[test]
fn the_live_line_names_the_rank_that_the_others_wait_for() {
    let job = Job::new();
    let options = ["--nproc-per-node=2", "--explain-after=1s"];
    let node = Node::start(job.command(&options, WAITS_FOR_RANK_1, "log"));
    until("the missing rank is named", || {
        let lines = node.lines();
        lines
            .last()
            .is_some_and(|live| live.starts_with("Waiting for rank 1 ("))
    });
    job.go();
    let (code, lines) = node.end();
    assert_eq!(code, Some(0), "{lines:#?}");
    let last = lines.iter().rfind(|line| !line.is_empty());
    let is_live = last.is_some_and(|line| line.starts_with("Waiting for"));
    assert!(!is_live, "{lines:#?}");
}
