//! One large value, written and read back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::super::error::BenchError;
use super::super::report::{Row, Unit};
use super::requests;
use super::setting::Setting;

const VALUE_BYTES: usize = 4 << 20;
const KEY: &str = "bench/large";
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Measures a SET until the answer to a PING behind it, as the protocol does not answer SET, and a GET until
/// its last byte; each as often as fits in a round.
pub(in super::super) fn large_values(setting: &Setting) -> Result<[Row; 2], BenchError> {
    let address = setting.server;
    let connect = || {
        let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        Ok(stream)
    };
    let mut stream = connect().map_err(|source| BenchError::Connect { address, source })?;
    let value: Vec<u8> = (0..VALUE_BYTES).map(|index| (index % 251) as u8).collect();
    let set = [requests::set(KEY, &value), requests::ping()].concat();
    let get = requests::get(KEY);
    let expected = requests::blob(&value);
    let mut received = vec![0; expected.len()];

    let mut exchange = |request: &[u8], expected: &[u8]| {
        let received = &mut received[..expected.len()];
        stream
            .write_all(request)
            .and_then(|()| stream.read_exact(received))
            .map_err(|source| BenchError::ConnectionLost {
                address,
                link: 0,
                source,
            })
            .map(|()| received == expected)
    };
    let mut checked = |request: &[u8], expected: &[u8], name| {
        if exchange(request, expected)? {
            return Ok(());
        }
        Err(BenchError::WrongAnswer {
            address,
            request: name,
            detail: "the bytes differ from those that were set".to_owned(),
        })
    };

    checked(&requests::hello(), &requests::HELLO_REPLY, "PING")?;
    let mut set_row = Row::new("large set 4 MiB", Unit::GigabytesPerSecond);
    let mut get_row = Row::new("large get 4 MiB", Unit::GigabytesPerSecond);
    for round in 0..=setting.rounds {
        let mut set_time = Duration::ZERO;
        let mut get_time = Duration::ZERO;
        let mut count = 0.0;
        while set_time + get_time < setting.round_time / 2 {
            let start = Instant::now();
            checked(&set, &requests::HELLO_REPLY, "PING")?;
            let middle = Instant::now();
            checked(&get, &expected, "GET")?;
            set_time += middle - start;
            get_time += middle.elapsed();
            count += 1.0;
        }
        // Round 0 is the warm-up.
        if round > 0 {
            let gigabytes = count * VALUE_BYTES as f64 / 1e9;
            set_row.samples.push(gigabytes / set_time.as_secs_f64());
            get_row.samples.push(gigabytes / get_time.as_secs_f64());
        }
    }
    checked(
        &requests::delete(KEY),
        &[1, 0, 0, 0, 0, 0, 0, 0],
        "DELETE_KEY",
    )?;
    Ok([set_row, get_row])
}
