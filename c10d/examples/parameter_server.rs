//! A parameter server with three trainers, each in its own process, started by `c10d::init_rpc`.
//!
//! The server holds the parameters, and sends a reference to them to each trainer. A trainer has its gradients
//! applied where the parameters are. It keeps its losses in a value, and returns a reference to that value. When all
//! references have been dropped, no value is alive anywhere. Each worker prints this.
//!
//! Run it with `cargo run -p c10d --features rpc --example parameter_server`, or let a launcher start each worker.
#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use std::env;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use c10d::rpc::{AgentOptions, Functions, HandlerError, RRef, RRefFuture, RRefs};
use c10d::{Rpc, RpcOptions};
use serde::Serialize;

/// How long a worker waits for the other workers: at the start, for a value, and at the end.
const PATIENCE: Duration = Duration::from_secs(30);

const TRAINERS: u32 = 3;
const STEPS: u32 = 20;

/// The environment variable with the number of the trainer and the port of the store.
const TRAINER: &str = "PARAMETER_SERVER_TRAINER";

/// The parameters that the server holds. Several trainers change them at a time, hence the lock.
type Parameters = Mutex<Vec<f64>>;

/// The losses that a trainer keeps.
#[derive(Serialize)]
struct History {
    losses: Vec<f64>,
}

/// The values that the parameters should reach.
const TARGET: [f64; 4] = [1.0, -2.0, 3.0, 0.5];

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    if let Ok(part) = env::var(TRAINER) {
        let (rank, port) = part.split_once(' ').ok_or("a rank and a port")?;
        return serve_trainer(rank.parse()?, port.parse()?);
    }
    // Free until the server hosts its store there.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let trainers = (1..=TRAINERS)
        .map(|rank| {
            Command::new(env::current_exe()?)
                .env(TRAINER, format!("{rank} {port}"))
                .spawn()
        })
        .collect::<Result<Vec<Child>, _>>()?;
    serve(port)?;
    for mut trainer in trainers {
        let ended = trainer.wait()?;
        if !ended.success() {
            return Err(format!("a trainer has failed: {ended}").into());
        }
    }
    Ok(())
}

/// The functions that workers may run on each other: all know the same here.
fn functions() -> Result<Functions, Failure> {
    let mut functions = Functions::new();
    functions.register_method("read", |_, parameters: &Parameters, ()| {
        Ok(lock(parameters)?.clone())
    })?;
    functions.register_method("descend", |_, parameters: &Parameters, step: Vec<f64>| {
        let mut parameters = lock(parameters)?;
        parameters
            .iter_mut()
            .zip(step)
            .for_each(|(value, by)| *value -= by);
        Ok(())
    })?;
    functions.register_method("losses", |_, history: &History, ()| {
        Ok(history.losses.clone())
    })?;
    functions.register("train", |context, (parameters, rank)| {
        train(context.rrefs(), &parameters, rank)
    })?;
    Ok(functions)
}

/// The work of a trainer, once it has received the parameters.
fn train(
    rrefs: &RRefs,
    parameters: &RRef<Parameters>,
    rank: u32,
) -> Result<RRef<History>, HandlerError> {
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let values: Vec<f64> = parameters.call("read").run(())?;
        let errors: Vec<f64> = values.iter().zip(TARGET).map(|(is, to)| is - to).collect();
        losses.push(errors.iter().map(|error| error * error).sum());
        let rate = 0.05 * f64::from(rank);
        let step: Vec<f64> = errors.iter().map(|error| rate * error).collect();
        parameters.call("descend").run::<_, ()>(step)?;
    }
    // Stays here; the server gets a reference.
    Ok(rrefs.rref(History { losses })?)
}

fn lock(parameters: &Parameters) -> Result<MutexGuard<'_, Vec<f64>>, HandlerError> {
    let poisoned = |_| HandlerError::new("a thread has panicked while it changed the parameters");
    parameters.lock().map_err(poisoned)
}

/// Starts a worker of the group.
fn start(name: &str, rank: usize, port: u16) -> Result<Rpc, Failure> {
    let rpc = RpcOptions::default()
        .with_init_method(
            format!("tcp://127.0.0.1:{port}"),
            rank,
            1 + TRAINERS as usize,
        )
        .with_agent(AgentOptions::new(name, 0).with_host("127.0.0.1"))
        .with_timeout(PATIENCE);
    Ok(rpc.init(name, functions()?)?)
}

fn serve(port: u16) -> Result<(), Failure> {
    let rpc = start("server", 0, port)?;
    let rrefs = rpc.rrefs();
    // A value of this worker's own, and a reference to it for each trainer.
    let parameters = rrefs.rref(Mutex::new(vec![0.0_f64; TARGET.len()]))?;
    let trained = (1..=TRAINERS)
        .map(|rank| {
            let trainer = format!("trainer{rank}");
            rrefs
                .call(trainer.as_str(), "train")
                .with_timeout(PATIENCE)
                .send((&parameters, rank))
        })
        .collect::<Result<Vec<RRefFuture<RRef<History>>>, _>>()?;
    for (rank, trained) in (1..=TRAINERS).zip(trained) {
        let history = trained.wait()?;
        let losses: Vec<f64> = history.call("losses").run(())?;
        if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
            let steps = losses.len();
            println!("trainer{rank}: {steps} steps, loss {first:.4} to {last:.4}");
        }
    }
    println!(
        "parameters {:?}",
        parameters.call("read").run::<_, Vec<f64>>(())?
    );
    drop(parameters);
    end(rpc)
}

fn serve_trainer(rank: usize, port: u16) -> Result<(), Failure> {
    end(start(&format!("trainer{rank}"), rank, port)?)
}

/// Shuts a worker down together with all other workers.
fn end(rpc: Rpc) -> Result<(), Failure> {
    let rrefs = rpc.rrefs().clone();
    let report = rpc.shutdown()?;
    let alive = rrefs.sizes()?.owners;
    println!(
        "{}: {} values at the end, {alive} after it",
        report.worker,
        report.values.len()
    );
    Ok(())
}
