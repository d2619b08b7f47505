//! A worker with an RPC agent and references, as a process that a test can kill, stop and restart.
//!
//! `rpc-worker NAME RANK WORLD_SIZE STORE_PORT INCARNATION`. A world size of 0 means a group whose members
//! join and leave at any time. Prints `started` when its agent runs. When `shutdown` is called, it shuts down,
//! prints the report as JSON and exits with 0.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a test reads what it prints")]

use std::env;
use std::error::Error;
use std::sync::mpsc;

use integration_tests::rpc_group::{Member, WorkerFunctions};
use rustix::process::{Signal, set_parent_process_death_signal};

fn main() -> Result<(), Box<dyn Error>> {
    // A test that is killed leaves no process behind, not even a stopped one.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [name, rank, world_size, port, incarnation] = &arguments[..] else {
        return Err(format!("not understood: {arguments:?}").into());
    };
    let (shutdown, on_shutdown) = mpsc::channel();
    let functions = WorkerFunctions::new(incarnation.parse()?, move |timeout| {
        _ = shutdown.send(timeout)
    })?;
    let member = Member::start(
        name,
        rank.parse()?,
        world_size.parse()?,
        port.parse()?,
        functions,
    )?;
    println!("started");
    let timeout = on_shutdown.recv()?;
    println!("{}", member.shutdown(timeout));
    Ok(())
}
