//! A worker with an RPC agent and references, as a process that a test can kill, stop and restart.
//!
//! `rpc-worker NAME RANK WORLD_SIZE STORE_PORT LIFE`. A world size of 0 means a group whose members
//! come and go. Prints `started` when its agent runs. Ends when `end` is called: prints what came of its
//! part of the shutdown, as JSON, and exits with 0.
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
    let [name, rank, world_size, port, life] = &arguments[..] else {
        return Err(format!("not understood: {arguments:?}").into());
    };
    let (end, on_end) = mpsc::channel();
    let functions = WorkerFunctions::new(life.parse()?, move |timeout| _ = end.send(timeout))?;
    let member = Member::start(
        name,
        rank.parse()?,
        world_size.parse()?,
        port.parse()?,
        functions,
    )?;
    println!("started");
    let timeout = on_end.recv()?;
    println!("{}", member.end(timeout));
    Ok(())
}
