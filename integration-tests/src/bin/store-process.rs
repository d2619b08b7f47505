//! One user of a store, or its server, as a process that a test can kill.
//!
//! `serve` prints its address and serves until its input ends. The others use the server at the port
//! given on 127.0.0.1: `get PORT KEY`, `queue-pop PORT KEY`, `barrier PORT KEY WORLD_SIZE`,
//! `add PORT KEY TIMES`; each prints what it got.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a test reads what it prints")]

use std::env;
use std::error::Error;
use std::io;

use c10d_store::{ServerOptions, Store, StoreExt, TcpStore, TcpStoreServer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve"] => serve(),
        ["get", port, key] => show(&connect(port)?.get(key)?),
        ["queue-pop", port, key] => show(&connect(port)?.queue_pop(key)?),
        ["barrier", port, key, world_size] => {
            connect(port)?.barrier(key, world_size.parse()?)?;
            show(b"met")
        }
        ["add", port, key, times] => {
            let store = connect(port)?;
            for _ in 0..times.parse()? {
                store.add(key, 1)?;
            }
            Ok(())
        }
        _ => Err(format!("not understood: {arguments:?}").into()),
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let server = TcpStoreServer::bind(
        "127.0.0.1:0",
        ServerOptions::default().with_groups(c10d_membership::groups),
    )?;
    println!("{}", server.local_addr());
    io::copy(&mut io::stdin(), &mut io::sink())?;
    server.shutdown();
    Ok(())
}

fn connect(port: &str) -> Result<TcpStore, Box<dyn Error>> {
    Ok(TcpStore::connect("127.0.0.1", port.parse()?)?)
}

fn show(bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    println!("{}", String::from_utf8_lossy(bytes));
    Ok(())
}
