//! Connects to a server that may not have started yet: `cargo run --example dial -- node0:29500`.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::error::Error;
use std::time::{Duration, Instant};

use c10d_socket::{ConnectOptions, Deadline, HostPort, connect};

fn main() -> Result<(), Box<dyn Error>> {
    let target: HostPort = std::env::args()
        .nth(1)
        .ok_or("usage: dial HOST:PORT")?
        .parse()?;
    let deadline = Deadline::after(Instant::now(), Duration::from_secs(10));
    let stream = connect(&target, &ConnectOptions::default(), deadline)?;
    println!(
        "connected: {} -> {}",
        stream.local_addr()?,
        stream.peer_addr()?
    );
    Ok(())
}
