//! Keys deleted by their prefix, and how long another connection waits meanwhile.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::error::BenchError;
use super::super::report::{Goal, Row, Unit};
use super::requests;
use super::setting::Setting;

const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The keys of a MULTI_SET.
const KEYS_AT_ONCE: usize = 10_000;

/// Measures a DELETE_PREFIX of so many keys until its reply, and the longest of the PINGs meanwhile.
pub(in super::super) fn prefix(setting: &Setting, keys: usize) -> Result<[Row; 2], BenchError> {
    let mut deletion = Row::new(format!("delete {keys} keys by prefix"), Unit::Milliseconds);
    let mut ping = Row::new("longest ping meanwhile", Unit::Milliseconds);
    ping.goal = Some(Goal::AtMost(5.0));
    let address = setting.server;
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        exchange(&mut stream, &requests::hello())?;
        Ok(stream)
    };
    let failed = |source| BenchError::Connect { address, source };
    let mut asker = connect().map_err(failed)?;
    let mut other = connect().map_err(failed)?;
    let lost = |source| BenchError::ConnectionLost {
        address,
        link: 0,
        source,
    };
    let delete = requests::delete_prefix("bench/prefix/");
    for _ in 0..setting.rounds {
        for start in (0..keys).step_by(KEYS_AT_ONCE) {
            let end = keys.min(start + KEYS_AT_ONCE);
            let names = (start..end).map(|key| format!("bench/prefix/{key}"));
            let set = requests::multi_set(names, b"value");
            exchange(&mut asker, &[set, requests::ping()].concat()).map_err(lost)?;
        }
        let start = Instant::now();
        asker.write_all(&delete).map_err(lost)?;
        asker.set_nonblocking(true).map_err(lost)?;
        let mut longest = Duration::ZERO;
        let mut reply = [0; 8];
        while !has_arrived(&asker, &mut reply).map_err(lost)? {
            let start = Instant::now();
            exchange(&mut other, &requests::ping()).map_err(lost)?;
            longest = longest.max(start.elapsed());
        }
        let time = start.elapsed();
        asker.set_nonblocking(false).map_err(lost)?;
        asker.read_exact(&mut reply).map_err(lost)?;
        if requests::number(&reply) != i64::try_from(keys).ok() {
            return Err(BenchError::WrongAnswer {
                address,
                request: "DELETE_PREFIX",
                detail: format!("{reply:02x?}"),
            });
        }
        deletion.push(false, time.as_secs_f64() * 1e3);
        ping.push(false, longest.as_secs_f64() * 1e3);
    }
    Ok([deletion, ping])
}

/// Sends requests of which the last is a PING, and reads its reply.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut reply = requests::HELLO_REPLY;
    stream.read_exact(&mut reply)?;
    if reply == requests::HELLO_REPLY {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the reply to PING is {reply:02x?}"
    )))
}

fn has_arrived(stream: &TcpStream, reply: &mut [u8]) -> io::Result<bool> {
    match stream.peek(reply) {
        Ok(count) => Ok(count == reply.len()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
