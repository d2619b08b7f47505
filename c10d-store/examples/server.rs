//! Serves a store on the address given (default 127.0.0.1:29500) until standard input ends.
#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use c10d_store::{ServerOptions, TcpStoreServer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:29500");
    let server = TcpStoreServer::bind(address, ServerOptions::default())?;
    println!("listening on {}", server.local_addr());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    server.shutdown();
    Ok(())
}
