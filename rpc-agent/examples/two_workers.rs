//! Two workers that call each other with serde types, retries and timeouts.
//!
//! Both run in this process and share a `HashStore`. In a job each worker is a separate process, and the store is a
//! `TcpStore`.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use c10d_store::{HashStore, Store};
use rpc_agent::{Agent, AgentOptions, HandlerError, Registry, RetryOptions};

/// How long a worker waits for the other worker at shutdown.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let server_store = Arc::clone(&store);
    let server = thread::spawn(move || serve(server_store).map_err(|error| error.to_string()));
    train(store)?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}

/// Worker 0 keeps a parameter, and lets other workers read and write it.
fn serve(store: Arc<dyn Store>) -> Result<(), Box<dyn Error>> {
    let parameter = Arc::new(AtomicI64::new(0));
    let mut registry = Registry::new();

    let read = Arc::clone(&parameter);
    registry.register_typed("read", move |_, ()| Ok(read.load(Ordering::SeqCst)))?;

    // Called with retries, so it may run twice: it sets a value, because an increment would not be idempotent.
    registry.register_typed("write", move |context, value: i64| {
        if value < 0 {
            return Err(HandlerError::new(format!("{value} is negative")));
        }
        println!("{} writes {value}", context.caller());
        parameter.store(value, Ordering::SeqCst);
        Ok(())
    })?;

    let agent = Agent::start(options("server", 0), registry, store)?;
    // Serves until the other worker shuts down as well.
    agent.shutdown(TIMEOUT)?;
    Ok(())
}

/// Worker 1 calls the functions of worker 0.
fn train(store: Arc<dyn Store>) -> Result<(), Box<dyn Error>> {
    let agent = Agent::start(options("trainer", 1), Registry::new(), store)?;
    let calls = agent.handle();

    // Caller and callee must use the same types.
    let before: i64 = calls.call("server", "read").run(())?;

    // At most two retries, 100 ms and 150 ms after the failure before.
    let retries = RetryOptions::default()
        .with_max_retries(2)
        .with_retry_duration(Duration::from_millis(100));
    let written = calls
        .call("server", "write")
        .with_retries(&retries)
        .send::<i64, ()>(before + 1);
    written.wait()?;

    // Concurrent calls, each with its own timeout.
    let soon = Duration::from_secs(5);
    let reads = [(); 3].map(|()| {
        calls
            .call("server", "read")
            .with_timeout(soon)
            .send::<(), i64>(())
    });
    for read in reads {
        println!("read {}", read.wait()?);
    }

    // An error names the call, and reports whether the function ran.
    if let Err(error) = calls.call("server", "write").run::<i64, ()>(-1) {
        println!("{error} ({:?})", error.outcome());
    }

    for (name, value) in calls.metrics().debug_info() {
        println!("{name}: {value}");
    }
    // Coordinated shutdown: no worker leaves while another worker still needs it.
    agent.shutdown(TIMEOUT)?;
    Ok(())
}

fn options(name: &str, rank: u32) -> AgentOptions {
    AgentOptions::new(name, rank)
        .with_world_size(2)
        .with_host("127.0.0.1")
}
