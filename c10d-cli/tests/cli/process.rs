//! Child processes that do not outlive their test.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{self, Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

/// Far longer than any step takes: ends a test that hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_c10d");

pub(crate) fn command<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    command_of(PROGRAM, arguments)
}

/// Returns a command of another release of the program.
pub(crate) fn command_of<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    prepared(command)
}

/// A command without the variables of this environment, and with captured output.
pub(crate) fn prepared(mut command: Command) -> Command {
    command
        .env_remove("MASTER_ADDR")
        .env_remove("MASTER_PORT")
        .env_remove("RUST_LOG")
        // The tests themselves may run in a job.
        .env("PET_NO_SCHEDULER", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns `outer` with the words of `inner` behind its own, and with the variables of `inner`. The output is captured.
pub(crate) fn within(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    let mut outer = prepared(outer);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Returns a shell that runs `before`, and then replaces itself by the command.
pub(crate) fn after(before: &str, command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]);
    within(shell, command)
}

/// The exit code and the output of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn assert_prints(&self, stdout: impl AsRef<[u8]>) {
        let expected = stdout.as_ref().to_vec();
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        assert_eq!(self.stdout, expected, "{self:?}");
    }

    /// Asserts the exit code, and one line on standard error with the command's name and `text`.
    #[track_caller]
    pub(crate) fn assert_fails(&self, code: i32, text: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.starts_with("c10d: "), "{self:?}");
        assert_eq!(self.stderr.matches('\n').count(), 1, "{self:?}");
        assert!(self.stderr.contains(text), "{self:?}");
    }

    pub(crate) fn stdout_text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// A running process; killed on drop.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Standard output, which [`end`](Self::end) then leaves out.
    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().unwrap()
    }

    /// Returns the first line on standard error. The rest of standard error cannot be read afterwards.
    pub(crate) fn line_of_stderr(&mut self) -> String {
        let mut line = String::new();
        let stderr = self.0.stderr.take().unwrap();
        BufReader::new(stderr).read_line(&mut line).unwrap();
        line
    }

    /// Standard error, which [`end`](Self::end) then leaves out.
    pub(crate) fn stderr(&mut self) -> ChildStderr {
        self.0.stderr.take().unwrap()
    }

    pub(crate) fn end(mut self) -> Ended {
        let status = self.exit_status();
        let mut stdout = Vec::new();
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_end(&mut stdout).unwrap();
        }
        let mut stderr = String::new();
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_string(&mut stderr).unwrap();
        }
        Ended {
            code: status.code(),
            stdout,
            stderr,
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Waits for the end, and returns the exit code; -1 if a signal ended it.
    pub(crate) fn exit_code(&mut self) -> i32 {
        self.exit_status().code().unwrap_or(-1)
    }

    fn exit_status(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command until it ends. Its output must fit into a pipe.
pub(crate) fn run<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Ended {
    Running::start(command(arguments)).end()
}

pub(crate) fn run_with_input<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    input: &[u8],
) -> Ended {
    let mut command = command(arguments);
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let mut stdin = running.0.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    drop(stdin);
    running.end()
}

/// A running server with a known address.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) address: SocketAddr,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `c10d store serve` on a free port.
    pub(crate) fn start() -> Self {
        Self::start_with(["store", "serve", "--port", "0"])
    }

    pub(crate) fn start_with<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::start_command(command(arguments))
    }

    pub(crate) fn start_command(command: Command) -> Self {
        let mut running = Running::start(command);
        let mut stdout = BufReader::new(running.0.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.strip_suffix('\n'))
            .unwrap_or_else(|| panic!("the server wrote {line:?}"));
        Self {
            address: address.parse().unwrap(),
            running,
            stdout,
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Connects from this address of the loopback interface.
    pub(crate) fn connect_from(&self, host: Ipv4Addr) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    }

    /// `c10d store WORD --connect ADDRESS WORDS`.
    pub(crate) fn store(&self, words: &[&str]) -> Ended {
        run(self.arguments(words))
    }

    pub(crate) fn arguments(&self, words: &[&str]) -> Vec<String> {
        let address = self.address.to_string();
        let words = [&["store", words[0], "--connect", &address], &words[1..]].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    /// The exit code, and the output after the first line.
    pub(crate) fn end(mut self) -> Ended {
        let mut rest = Vec::new();
        let mut ended = self.running.end();
        self.stdout.read_to_end(&mut rest).unwrap();
        ended.stdout = rest;
        ended
    }
}

/// A pipe that is full, and its reader, which does not read.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    for chunk in [&[b'x'; 4096][..], b"x"] {
        while writer.write(chunk).map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
    }
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "timed out: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a free port of 127.0.0.1, for a server that cannot report its own port. The port stays free until it
/// is used, because the system assigns other ports (above 32767 on Linux), and each port is returned only once.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let first = process::id().wrapping_mul(64);
    let mut ports = (0..10_000).filter_map(|_| {
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        u16::try_from(10_000 + first.wrapping_add(call) % 10_000).ok()
    });
    ports
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// An address that refuses connections while the socket exists: bound, so that no other process gets the
/// port, but not listening. Afterwards its port is a [`free_port`].
pub(crate) fn refusing_address() -> (Socket, String) {
    // Closed connections keep some ports from a socket that does not share its port.
    let bound = (0..1000).find_map(|_| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let is_bound = socket.bind(&address.into()).is_ok();
        is_bound.then(|| (socket, address.to_string()))
    });
    bound.expect("one of a thousand ports")
}
