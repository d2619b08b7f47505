//! One question to the service, within a second.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use c10d_inspect::nccl::{ANSWER_BYTES_MAX, GREETING, question};
use c10d_socket::{Cancel, Deadline, HostPort, resolve};

/// How long a question may take. The service waits for silent processes for a second, but only for those that it does not
/// know to be silent: the next question has an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How often it is checked whether the question is cancelled, and who has taken the connection.
const STEP: Duration = Duration::from_millis(50);

/// How long a worker may take to accept a connection.
const PATIENCE: Duration = Duration::from_millis(125);

/// How often a connection is made anew that another program has taken: several can listen at the port.
const ATTEMPTS: u32 = 4;

/// The bytes of the answer; `None` if no worker listens there. Nothing is sent to other programs. `is_ours` tells whether
/// a worker holds the end of a connection with these addresses, its own first.
pub(super) fn ask(
    service: &HostPort,
    as_json: bool,
    is_ours: &dyn Fn(SocketAddr, SocketAddr) -> bool,
    cancel: &Cancel,
) -> io::Result<Option<Vec<u8>>> {
    let deadline = Instant::now() + TIMEOUT;
    let addresses = resolve(service, Deadline::at(deadline), cancel)?;
    for _ in 0..ATTEMPTS {
        let mut is_refused = true;
        for address in &addresses {
            let Ok(stream) = TcpStream::connect_timeout(address, left(deadline)?) else {
                continue;
            };
            is_refused = false;
            let until = Instant::now() + PATIENCE;
            if is_taken_by_worker(&stream, is_ours, until.min(deadline), cancel)? {
                return exchange(stream, as_json, deadline, cancel).map(Some);
            }
        }
        if is_refused || cancel.is_cancelled() {
            break;
        }
    }
    Ok(None)
}

/// Whether a worker has accepted the connection. Its process has it a moment after the system has.
fn is_taken_by_worker(
    stream: &TcpStream,
    is_ours: &dyn Fn(SocketAddr, SocketAddr) -> bool,
    until: Instant,
    cancel: &Cancel,
) -> io::Result<bool> {
    let (theirs, own) = (stream.peer_addr()?, stream.local_addr()?);
    loop {
        if is_ours(theirs, own) {
            return Ok(true);
        }
        if Instant::now() >= until || cancel.is_cancelled() {
            return Ok(false);
        }
        std::thread::sleep(STEP / 5);
    }
}

fn exchange(
    mut stream: TcpStream,
    as_json: bool,
    deadline: Instant,
    cancel: &Cancel,
) -> io::Result<Vec<u8>> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(format!("{GREETING}{}", question(as_json)).as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < ANSWER_BYTES_MAX {
        stream.set_read_timeout(Some(left(deadline)?.min(STEP)))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if is_pause(error.kind()) && !cancel.is_cancelled() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

fn is_pause(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(kind, Kind::WouldBlock | Kind::TimedOut | Kind::Interrupted)
}

/// The time that is left, not zero, which sockets refuse.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}
