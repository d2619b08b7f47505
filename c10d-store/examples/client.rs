//! Uses the store at the address given: `client HOST PORT`.
#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;

use c10d_store::{Store, TcpStore};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let host = arguments.next().unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = arguments.next().map_or(Ok(29500), |port| port.parse())?;

    let store = TcpStore::connect(&host, port)?;
    let visits = store.add("visits", 1)?;
    store.set(
        "last_visitor",
        format!("process {}", std::process::id()).as_bytes(),
    )?;
    let last = store.get("last_visitor")?;
    println!("visit {visits}, by {}", String::from_utf8_lossy(&last));
    Ok(())
}
