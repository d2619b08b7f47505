//! One question to the service, within a second.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use c10d_inspect::nccl::{ANSWER_BYTES_MAX, GREETING, question};
use c10d_socket::{
    Cancel, ConnectOptions, Deadline, Dialer, HostPort, resolve, sleep, wait_for_input,
};

/// How long a question may take. The service waits for silent processes for a second, but only for those that it does not
/// know to be silent: the next question has an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long a worker may take to accept a connection.
const PATIENCE: Duration = Duration::from_millis(125);

/// How often it is looked meanwhile whether it has: the system tells nobody.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

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
    let deadline = Deadline::after(Instant::now(), TIMEOUT);
    let options = ConnectOptions::default().with_rounds_max(1);
    let addresses = resolve(service, deadline, cancel)?;
    for _ in 0..ATTEMPTS {
        let mut is_refused = true;
        for address in &addresses {
            let target = HostPort::new(address.ip().to_string(), address.port());
            let dialer = Dialer::new(&target, &options, deadline);
            let Ok(stream) = dialer.with_cancel(cancel.clone()).connect() else {
                continue;
            };
            is_refused = false;
            let until = Deadline::after(Instant::now(), PATIENCE).min(deadline);
            if is_taken_by_worker(&stream, is_ours, until, cancel)? {
                return exchange(stream, as_json, deadline, cancel).map(Some);
            }
        }
        if is_refused {
            break;
        }
    }
    Ok(None)
}

/// Whether a worker has accepted the connection. Its process has it a moment after the system has.
fn is_taken_by_worker(
    stream: &TcpStream,
    is_ours: &dyn Fn(SocketAddr, SocketAddr) -> bool,
    until: Deadline,
    cancel: &Cancel,
) -> io::Result<bool> {
    let (theirs, own) = (stream.peer_addr()?, stream.local_addr()?);
    loop {
        if is_ours(theirs, own) {
            return Ok(true);
        }
        if until.has_passed(Instant::now()) {
            return Ok(false);
        }
        sleep(LOOK_INTERVAL, [cancel])?;
    }
}

fn exchange(
    mut stream: TcpStream,
    as_json: bool,
    deadline: Deadline,
    cancel: &Cancel,
) -> io::Result<Vec<u8>> {
    // A new connection takes so little at once.
    stream.write_all(format!("{GREETING}{}", question(as_json)).as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16 << 10];
    while answer.len() < ANSWER_BYTES_MAX {
        let left = deadline.remaining(Instant::now());
        if !wait_for_input(&stream, left, cancel)? {
            return Err(ErrorKind::TimedOut.into());
        }
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if deadline.has_passed(Instant::now()) {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(answer)
}
