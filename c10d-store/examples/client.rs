//! Uses the store at the address given: `client [HOST [PORT]]`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example talks to its user"
)]

use std::error::Error;
use std::time::Duration;

use c10d_store::{Store, StoreExt, TcpStore, TcpStoreOptions};

/// Workers of a job wait for minutes, because the server may start after them. A user does not.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let host = arguments.next().unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = arguments.next().map_or(Ok(29500), |port| port.parse())?;

    eprintln!("connecting to {host}:{port} for at most {TIMEOUT:?} ...");
    let options = TcpStoreOptions::default().with_timeout(TIMEOUT);
    let store = TcpStore::open(&host, port, options).inspect_err(|_| {
        eprintln!("is a server running? `cargo run -p c10d-store --example server` starts one");
    })?;
    let visits = store.add("visits", 1)?;
    store.set("last_visitor", format!("process {}", std::process::id()))?;
    let last = store.get("last_visitor")?;
    println!("visit {visits}, by {}", String::from_utf8_lossy(&last));
    Ok(())
}
