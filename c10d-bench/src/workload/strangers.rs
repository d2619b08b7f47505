//! What strangers cost those who have the secret: the latency of a client while others try to get in.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use c10d_socket::{Credentials, CredentialsError, Protocol, Secret};
use socket2::{Domain, Socket, Type};

use super::requests;
use super::setting::Setting;
use crate::failure::{Context as _, Failure};
use crate::fleet::SILENCE_MAX;
use crate::latency::{percentiles, repeat};
use crate::report::{Goal, Row, Unit};
use crate::store_server::{Access, StoreServer};
use crate::workload::setting::open_store;

/// How many connections strangers open in a second.
const ATTEMPTS_PER_SECOND: u32 = 10_000;

/// The strangers' address: failed handshakes count for each address.
const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// What a stranger sends first, and what it may get.
struct Attempt {
    name: &'static str,
    bytes: Vec<u8>,
    /// The first byte of an answer, if any comes.
    answer: Option<u8>,
}

const ALERT: u8 = 0x15;
const HANDSHAKE: u8 = 0x16;

/// Alternates between quiet rounds and rounds with strangers; the floor is the quiet one.
pub(crate) fn strangers(setting: &Setting) -> Result<[Row; 3], Failure> {
    let server = StoreServer::start(setting.cores, Access::Secret)?;
    let address = server.address();
    let attempts = attempts(&server)?;
    let store = open_store(address, server.credentials())?;
    let ping = || -> Result<[f64; 2], Failure> {
        let mut times = repeat(setting.round_time, || store.ping().map(drop))?;
        Ok(percentiles(&mut times))
    };
    ping()?;
    let mut median = Row::new("ping p50 flooded", Unit::Microseconds);
    median.goal = Some(Goal::RatioAtMost(2.0));
    let mut tail = Row::new("ping p99 flooded", Unit::Microseconds);
    let mut rate = Row::new("refused", Unit::OperationsPerSecond);
    for _ in 0..setting.rounds {
        let [p50, p99] = ping()?;
        median.floor.push(p50);
        tail.floor.push(p99);
        let is_over = AtomicBool::new(false);
        let ([p50, p99], refused) = thread::scope(|scope| {
            let flood = scope.spawn(|| flood(address, &attempts, &is_over));
            let measured = ping();
            is_over.store(true, Ordering::Relaxed);
            let panicked = |_| Err(Failure::new("the strangers' thread panicked"));
            let refused = flood.join().unwrap_or_else(panicked);
            Ok::<_, Failure>((measured?, refused?))
        })?;
        median.samples.push(p50);
        tail.samples.push(p99);
        rate.samples.push(refused);
    }
    Ok([median, tail, rate])
}

/// A client without a secret, one with another, one that has heard the name of the key, and noise.
fn attempts(server: &StoreServer) -> Result<[Attempt; 4], Failure> {
    let host = server.address().ip().to_string();
    let hello_of = |credentials: &Credentials| -> Result<Vec<u8>, CredentialsError> {
        let mut layer = credentials.client(Protocol::Store, &host)?.start()?;
        layer.seal(&[IoSlice::new(&requests::hello())]);
        let mut hello = Vec::new();
        // Writing to memory cannot fail.
        let _ = layer.send(&mut hello);
        Ok(hello)
    };
    let wrong = Credentials::from(Secret::random()?);
    let right = server.credentials().unwrap_or(&wrong);
    Ok([
        Attempt {
            name: "a client without a secret",
            bytes: requests::hello(),
            answer: None,
        },
        Attempt {
            name: "a client with another secret",
            bytes: hello_of(&wrong)?,
            answer: Some(ALERT),
        },
        Attempt {
            name: "noise",
            bytes: vec![HANDSHAKE; 100],
            answer: Some(ALERT),
        },
        Attempt {
            name: "a replayed hello",
            bytes: hello_of(right)?,
            answer: Some(HANDSHAKE),
        },
    ])
}

/// Tries to get in until told to end. Returns the attempts a second.
fn flood(address: SocketAddr, attempts: &[Attempt], is_over: &AtomicBool) -> Result<f64, Failure> {
    let failed = || format!("cannot connect to {address}");
    let started = Instant::now();
    let mut made = 0_u32;
    loop {
        let due = Duration::from_secs(1) / ATTEMPTS_PER_SECOND * made;
        if let Some(early) = due.checked_sub(started.elapsed()) {
            // A sleep is longer than one attempt: several follow at once.
            thread::sleep(early.max(Duration::from_millis(1)));
        }
        let attempt = &attempts[made as usize % attempts.len()];
        let answer = try_once(address, &attempt.bytes).with_context(failed)?;
        if answer.is_some() && answer != attempt.answer {
            let detail = format!("{} got {answer:02x?}", attempt.name);
            return Err(Failure::wrong_answer(
                address,
                "a stranger's first bytes",
                detail,
            ));
        }
        made += 1;
        // At least one: the thread may start late.
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(f64::from(made) / started.elapsed().as_secs_f64())
}

/// Connects and sends; returns the first byte of the answer, and `None` if the server closes.
fn try_once(address: SocketAddr, bytes: &[u8]) -> io::Result<Option<u8>> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.ip() == Ipv4Addr::LOCALHOST {
        socket.bind(&SocketAddr::from((SOURCE, 0)).into())?;
    }
    // Frees the port at once.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    socket.connect(&address.into())?;
    let mut stream = TcpStream::from(socket);
    let mut first = [0];
    // The server may have closed already.
    match stream
        .write_all(bytes)
        .and_then(|()| stream.read(&mut first))
    {
        Ok(1) => Ok(Some(first[0])),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(None),
    }
}
