//! The latency of a round trip on one connection.
//!
//! Reads and writes block on purpose: a poll in between would add to both sides of the ratio, in the server's
//! favour.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::super::child::ServerChild;
use super::super::error::BenchError;
use super::super::floor::{FloorArgs, FloorMode};
use super::super::latency::percentiles;
use super::super::report::{Goal, Row, Unit};
use super::requests;
use super::setting::Setting;

/// Longer than any answer to a PING takes.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Alternates PINGs to the server and an echo of the same bytes: the median and the 99th percentile of each
/// round.
pub(in super::super) fn ping(setting: &Setting) -> Result<[Row; 2], BenchError> {
    let mut server = RoundTrips::connect(setting.server)?;
    server.exchange(&requests::hello(), &requests::HELLO_REPLY)?;
    let echo_child = if setting.floor {
        let command = FloorArgs::command_line(FloorMode::Echo, 1, 1);
        Some(ServerChild::start(&command, setting.cores)?)
    } else {
        None
    };
    let mut echo = match &echo_child {
        Some(child) => Some(RoundTrips::connect(child.address())?),
        None => None,
    };

    let ping = requests::ping();
    let mut median = Row::new("ping p50", Unit::Microseconds);
    median.goal = Some(Goal::RatioAtMost(1.15));
    let mut tail = Row::new("ping p99", Unit::Microseconds);
    server.measure(&ping, &requests::HELLO_REPLY, setting.round_time / 4)?;
    for _ in 0..setting.rounds {
        let [p50, p99] = server.measure(&ping, &requests::HELLO_REPLY, setting.round_time / 2)?;
        median.samples.push(p50);
        tail.samples.push(p99);
        if let Some(echo) = &mut echo {
            let [p50, p99] = echo.measure(&ping, &ping, setting.round_time / 2)?;
            median.floor.push(p50);
            tail.floor.push(p99);
        }
    }
    Ok([median, tail])
}

#[derive(Debug)]
struct RoundTrips {
    stream: TcpStream,
    address: SocketAddr,
}

impl RoundTrips {
    fn connect(address: SocketAddr) -> Result<Self, BenchError> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE_MAX))?;
            Ok(stream)
        };
        match connect() {
            Ok(stream) => Ok(Self { stream, address }),
            Err(source) => Err(BenchError::Connect { address, source }),
        }
    }

    fn exchange(&mut self, request: &[u8], expected: &[u8]) -> Result<(), BenchError> {
        let mut reply = [0; 8];
        let reply = &mut reply[..expected.len()];
        self.stream
            .write_all(request)
            .and_then(|()| self.stream.read_exact(reply))
            .map_err(|source| BenchError::ConnectionLost {
                address: self.address,
                link: 0,
                source,
            })?;
        if reply == expected {
            return Ok(());
        }
        Err(BenchError::WrongAnswer {
            address: self.address,
            request: "PING",
            detail: format!("{reply:02x?}"),
        })
    }

    /// Makes round trips for `time`. Returns their median and 99th percentile in microseconds.
    fn measure(
        &mut self,
        request: &[u8],
        expected: &[u8],
        time: Duration,
    ) -> Result<[f64; 2], BenchError> {
        let mut times = Vec::new();
        let end = Instant::now() + time;
        let mut sent = Instant::now();
        while times.is_empty() || sent < end {
            self.exchange(request, expected)?;
            let answered = Instant::now();
            times.push(answered - sent);
            sent = answered;
        }
        Ok(percentiles(&mut times))
    }
}
