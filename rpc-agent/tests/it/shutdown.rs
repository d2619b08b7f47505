//! Coordinated and immediate shutdown of agents, and the outcomes of their calls.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use c10d_store::{Store, StoreExt};
use rpc_agent::{
    Agent, AgentHandle, Context, FutureMessage, HandlerError, Outcome, Registry, Reply,
    RetryOptions, RpcError, TerminationError, WorkerInfo,
};

use crate::common::{
    Gate, Held, OpenAtEnd, PATIENCE, agent_and_raw, ask, assert_connection_lost, begin, group,
    group_with, options, pair, pair_with, registry, retry, shared_store, shut_down_all, start_all,
    start_one, until, wait,
};
use crate::fault_plan::FaultPlan;
use crate::own_process::in_own_process;
use crate::raw::{REQUEST, RawWorker, address_of, await_closed, read_frame};

fn call(agent: &AgentHandle, worker: &str, function: &str) -> FutureMessage {
    begin(agent, worker, function, "x")
}

/// Waits until a worker has arrived in the first round of the coordinated shutdown.
fn await_arrival(store: &dyn Store, rank: u32) {
    let key = format!("shutdown/0/1/here/{rank}");
    until("the worker has arrived", || store.check(&[&key]).unwrap());
}

#[track_caller]
fn assert_shutdown_error(error: &RpcError, outcome: Outcome) {
    assert!(matches!(error, RpcError::Shutdown { .. }), "{error:?}");
    assert_eq!(error.outcome(), outcome, "{error}");
}

fn start_group(
    store: &Arc<dyn Store>,
    world_size: u32,
    fill: impl Fn(u32, &mut Registry),
) -> Vec<Agent> {
    let workers = (0..world_size).map(|rank| {
        let options = options(rank).with_world_size(world_size);
        (options, registry(|registry| fill(rank, registry)))
    });
    let agents = start_all(store, workers.collect());
    agents.into_iter().map(Result::unwrap).collect()
}

#[test]
fn an_idle_group_shuts_down() {
    for world_size in 1..=5 {
        let agents = group(world_size);
        shut_down_all(&agents);
        for agent in &agents {
            assert_eq!(agent.handle().metrics().threads, 0);
            // A second shutdown does nothing.
            agent.shutdown(PATIENCE).unwrap();
            agent.shutdown_now();
            agent.shutdown(None).unwrap();
        }
    }
}

/// Worker 1 calls worker 2, in its function or after it, and worker 2 calls worker 0, while all workers shut down.
#[test]
fn a_worker_in_shutdown_still_serves_the_calls_of_functions_and_of_deferred_answers() {
    for function in ["nested", "deferred"] {
        let gate = Gate::new();
        let _open = OpenAtEnd(Arc::clone(&gate));
        let store = shared_store();
        let agents = start_group(&store, 3, |_, registry| {
            let (nested, deferred) = (Arc::clone(&gate), Arc::clone(&gate));
            let on = |gate: &Gate, agent: &AgentHandle, payload| {
                gate.pass();
                ask(agent, "worker2", "back", payload).map_err(HandlerError::from)
            };
            let back = |context: &Context, payload| Ok(ask(context.agent(), 0, "echo", payload)?);
            registry.register_bytes("back", back).unwrap();
            let run = move |context: &Context, payload| on(&nested, context.agent(), payload);
            registry.register_bytes("nested", run).unwrap();
            let run = move |context: &Context, payload, reply: Reply| {
                let (gate, agent) = (Arc::clone(&deferred), context.agent().clone());
                thread::spawn(move || reply.send(on(&gate, &agent, payload)));
            };
            registry.register_deferred("deferred", run).unwrap();
        });
        let call = call(agents[0].handle(), "worker1", function);
        thread::scope(|scope| {
            scope.spawn(|| shut_down_all(&agents));
            gate.await_inside(1);
            // Worker 2 is idle and waits for the other workers, but the call still needs it.
            await_arrival(&*store, 2);
            gate.open();
        });
        assert_eq!(call.try_get().unwrap().unwrap(), "x", "{function}");
    }
}

#[test]
fn shutdown_waits_for_calls_made_by_callbacks() {
    const STEPS: u64 = 50;
    fn step(agent: AgentHandle, left: u64, done: Arc<AtomicU64>) {
        if left == 0 {
            return;
        }
        let to = format!("worker{}", left % 3);
        let call = begin(&agent, &to, "echo", "x");
        call.on_complete(move |result| {
            assert!(result.is_ok(), "{result:?}");
            done.fetch_add(1, Ordering::SeqCst);
            step(agent, left - 1, done);
        });
    }
    let agents = group(3);
    let done = Arc::new(AtomicU64::new(0));
    for agent in &agents {
        step(agent.handle().clone(), STEPS, Arc::clone(&done));
    }
    shut_down_all(&agents);
    assert_eq!(done.load(Ordering::SeqCst), 3 * STEPS);
}

#[test]
fn shutdown_waits_for_queued_retries() {
    let faults = FaultPlan::new(1).fail("echo", 3);
    let (agent, other) = pair_with(|_, options| options.with_faults(faults.clone()), |_| {});
    let retries = RetryOptions::default().with_retry_duration(Duration::from_millis(10));
    let call = retry(agent.handle(), "worker1", "echo", &retries, "x");
    let has_run = Arc::new(AtomicU64::new(0));
    call.on_complete({
        let has_run = Arc::clone(&has_run);
        move |_| {
            has_run.fetch_add(1, Ordering::SeqCst);
        }
    });
    shut_down_all([&agent, &other]);
    assert_eq!(call.try_get().unwrap().unwrap(), "x");
    assert_eq!(has_run.load(Ordering::SeqCst), 1);
    assert_eq!(faults.injected().failed, 3);
}

#[test]
fn a_shutdown_timeout_reports_and_fails_unanswered_calls() {
    let held = Held::default();
    let (agent, _other) = pair(|registry| held.register(registry, "hold"));
    let calls: Vec<_> = (0..3)
        .map(|_| call(agent.handle(), "worker1", "hold"))
        .collect();
    held.await_len(3);
    let error = agent.shutdown(Duration::from_secs(1)).unwrap_err();
    assert!(
        matches!(&error, TerminationError::Busy { calls_out: 3, .. }),
        "{error:?}"
    );
    for call in &calls {
        assert_shutdown_error(&call.try_get().unwrap().unwrap_err(), Outcome::Unknown);
    }
    // The agent has stopped although the shutdown failed.
    assert_eq!(agent.handle().metrics().threads, 0);
}

#[test]
fn coordinated_shutdown_does_not_wait_for_a_worker_that_has_stopped() {
    let agents = group(2);
    let called = call(agents[0].handle(), "worker1", "nothing");
    assert!(
        wait(&called).is_err(),
        "the call fails, but makes a connection"
    );
    thread::scope(|scope| {
        // No timeout.
        let end = scope.spawn(|| agents[0].shutdown(None));
        agents[1].shutdown_now();
        let error = end.join().unwrap().unwrap_err();
        assert!(
            matches!(&error, TerminationError::WorkersDead { dead, .. }
                if dead.to_string().contains("worker1")),
            "{error:?}"
        );
    });
}

#[test]
fn a_lost_worker_that_refuses_a_dial_is_dead_for_coordinated_shutdown() {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let workers = [0, 2].map(|rank| (options(rank).with_world_size(3), registry(|_| {})));
    let agents = start_all(&store, workers.into());
    let agents: Vec<Agent> = agents.into_iter().map(Result::unwrap).collect();
    let links = agents.iter().map(|agent| {
        let call = call(agent.handle(), "worker1", "f");
        let mut link = raw.accept_link();
        assert_eq!(read_frame(&mut link).kind, REQUEST);
        (call, link)
    });
    let links: Vec<_> = links.collect();
    thread::scope(|scope| {
        // No timeouts.
        let ends: Vec<_> = agents
            .iter()
            .map(|agent| scope.spawn(|| agent.shutdown(None)))
            .collect();
        // The worker dies while the other workers wait for their calls.
        drop(raw);
        drop(links);
        for end in ends {
            let error = end.join().unwrap().unwrap_err();
            assert!(
                matches!(&error, TerminationError::WorkersDead { dead, .. }
                    if dead.first() == [WorkerInfo::new("worker1", 1).unwrap()]),
                "{error:?}"
            );
        }
    });
}

#[test]
fn a_lost_connection_alone_does_not_mean_a_dead_worker() {
    let (agent, raw, store) = agent_and_raw(|options| options);
    let link = raw.dial(&*store, 0, 0);
    drop(link);
    until("the connection is lost", || {
        agent.handle().metrics().connections_lost == 1
    });
    thread::scope(|scope| {
        let end = scope.spawn(|| agent.shutdown(PATIENCE));
        await_arrival(&*store, 0);
        // The agent dials the lost worker to find out whether it is dead. The worker accepts the
        // connection.
        let link = raw.accept_link();
        assert!(!end.is_finished());
        for round in 1..=2 {
            let key = |name: &str| format!("shutdown/0/{round}/{name}");
            until("the other worker has arrived", || {
                store.check(&[&key("here/0")]).unwrap()
            });
            store.set(&key("here/1"), b"").unwrap();
            store.set(&key("ready"), b"0").unwrap();
        }
        store.set("shutdown/0/all_left", b"").unwrap();
        end.join().unwrap().unwrap();
        drop(link);
    });
}

#[test]
fn two_threads_can_shut_down_an_agent_at_once() {
    for _ in 0..20 {
        let agents = group(2);
        let start = Barrier::new(2 * agents.len());
        thread::scope(|scope| {
            for agent in agents.iter().chain(&agents) {
                scope.spawn(|| {
                    start.wait();
                    agent.shutdown(PATIENCE).unwrap();
                });
            }
        });
    }
}

#[test]
fn shutdown_now_interrupts_a_coordinated_shutdown() {
    let store = shared_store();
    let agents = start_group(&store, 2, |_, _| {});
    thread::scope(|scope| {
        let end = scope.spawn(|| agents[0].shutdown(None));
        await_arrival(&*store, 0);
        agents[0].shutdown_now();
        let error = end.join().unwrap().unwrap_err();
        assert!(
            matches!(error, TerminationError::Interrupted { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn shutdown_now_interrupts_a_wait_for_a_deferred_answer() {
    let held = Held::default();
    let (agent, other) = pair(|registry| held.register(registry, "hold"));
    let _held_up = call(agent.handle(), "worker1", "hold");
    held.await_len(1);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        // `join` may start before or after the shutdown.
        scope.spawn(|| sender.send(other.join(None)).unwrap());
        other.shutdown_now();
        let ended = receiver.recv_timeout(PATIENCE);
        // Completes the call, so that the test ends even if `join` was not interrupted.
        held.take();
        let error = ended.expect("the wait was not interrupted").unwrap_err();
        assert!(
            matches!(error, TerminationError::Interrupted { .. }),
            "{error:?}"
        );
    });
}

#[test]
fn shutdown_now_fails_all_calls_with_their_outcome() {
    let store = shared_store();
    let raw = RawWorker::join(&*store, 1, "worker1", 5);
    let silent = RawWorker::join(&*store, 2, "worker2", 5);
    let agent = start_one(&store, options(0).with_world_size(3), |_| {});
    let sent: Vec<_> = (0..10)
        .map(|_| call(agent.handle(), "worker1", "f"))
        .collect();
    let mut link = raw.accept_link();
    for _ in &sent {
        assert_eq!(read_frame(&mut link).kind, REQUEST);
    }
    // Calls to a worker that sends no Welcome.
    let unsent: Vec<_> = (0..10)
        .map(|_| call(agent.handle(), "worker2", "f"))
        .collect();
    let waiting = silent.accept();
    // One thread waits for a call, and another call has a continuation.
    thread::scope(|scope| {
        let waits = scope.spawn(|| sent[0].wait());
        let chained = sent[1].then(|result| result.map(|answer| answer.len()));
        agent.shutdown_now();
        assert_shutdown_error(&waits.join().unwrap().unwrap_err(), Outcome::Unknown);
        assert_shutdown_error(&chained.try_get().unwrap().unwrap_err(), Outcome::Unknown);
    });
    for call in &sent {
        assert_shutdown_error(
            &call.try_get().expect("all calls complete").unwrap_err(),
            Outcome::Unknown,
        );
    }
    for call in &unsent {
        let error = call.try_get().expect("all calls complete").unwrap_err();
        assert_shutdown_error(&error, Outcome::NotExecuted);
        assert!(error.to_string().contains("never sent"), "{error}");
    }
    drop(waiting);
    let metrics = agent.handle().metrics();
    assert_eq!((metrics.calls_in_flight, metrics.threads), (0, 0));
}

#[test]
fn a_call_to_itself_that_runs_at_shutdown_is_not_reported_as_not_executed() {
    let gate = Gate::new();
    let _open = OpenAtEnd(Arc::clone(&gate));
    let agents = group_with(
        1,
        |_, options| options,
        |_, registry| gate.register(registry, "hold"),
    );
    let call = call(agents[0].handle(), "worker0", "hold");
    gate.await_inside(1);
    thread::scope(|scope| {
        scope.spawn(|| agents[0].shutdown_now());
        let ended = call.wait_timeout(PATIENCE);
        gate.open();
        assert_shutdown_error(
            &ended.expect("the call completes").unwrap_err(),
            Outcome::Unknown,
        );
    });
}

#[test]
fn calls_after_shutdown_fail_as_not_executed() {
    let (agent, _other) = pair(|_| {});
    let handle = agent.handle().clone();
    agent.shutdown_now();
    for to in ["worker1", "worker0"] {
        assert_shutdown_error(
            &wait(&call(agent.handle(), to, "echo")).unwrap_err(),
            Outcome::NotExecuted,
        );
        assert_shutdown_error(
            &wait(&call(&handle, to, "echo")).unwrap_err(),
            Outcome::NotExecuted,
        );
    }
    drop(agent);
    assert_shutdown_error(
        &wait(&call(&handle, "worker1", "echo")).unwrap_err(),
        Outcome::NotExecuted,
    );
    // Callbacks of such calls run as well.
    let (sender, receiver) = mpsc::channel();
    call(&handle, "worker1", "echo").on_complete(move |result| {
        let _ = sender.send(result.is_err());
    });
    assert_eq!(receiver.recv_timeout(PATIENCE), Ok(true));
}

/// The callee of a call that is under way ends, and its function still runs.
#[test]
fn a_worker_that_ends_while_a_function_runs_accepts_no_connection() {
    let store = shared_store();
    let gate = Gate::new();
    let _open = OpenAtEnd(Arc::clone(&gate));
    let agents = start_group(&store, 3, |_, registry| {
        gate.register(registry, "slow");
    });
    let under_way = call(agents[0].handle(), "worker1", "slow");
    gate.await_inside(1);
    let (address, _) = address_of(&*store, 1);
    // A connection that has not sent its Hello.
    let mut silent = TcpStream::connect(address).unwrap();
    thread::scope(|scope| {
        let end = scope.spawn(|| agents[1].shutdown_now());
        assert!(wait(&under_way).is_err());
        await_closed(&mut silent);
        // The first caller has lost its connection, the second caller had none.
        for caller in [0, 2] {
            let error = wait(&call(agents[caller].handle(), "worker1", "echo")).unwrap_err();
            assert!(error.to_string().contains("refused"), "{error}");
            assert_eq!(error.outcome(), Outcome::NotExecuted);
        }
        assert!(!end.is_finished());
        gate.open();
    });
    assert_eq!(agents[1].handle().metrics().threads, 0);
}

/// An agent whose function `function` runs `end` on the agent itself.
fn agent_that_ends_itself(
    function: &str,
    end: impl Fn(&Agent) -> Vec<u8> + Send + Sync + 'static,
) -> (Arc<Agent>, Agent) {
    let own: Arc<OnceLock<Arc<Agent>>> = Arc::default();
    let its_own = Arc::clone(&own);
    let end = Arc::new(end);
    let agents = group_with(
        2,
        |_, options| options,
        |rank, registry| {
            if rank == 0 {
                let (own, end) = (Arc::clone(&its_own), Arc::clone(&end));
                let run = move |_: &_, _: &[u8]| Ok(end(own.wait()));
                registry.register(function, run).unwrap();
            }
        },
    );
    let mut agents = agents.into_iter();
    let (agent, other) = (Arc::new(agents.next().unwrap()), agents.next().unwrap());
    let _ = own.set(Arc::clone(&agent));
    (agent, other)
}

#[test]
fn a_function_can_call_shutdown_now_on_its_own_agent() {
    let (agent, other) = agent_that_ends_itself("end", |agent| {
        agent.shutdown_now();
        b"ended".to_vec()
    });
    // After the shutdown, the function's answer cannot be sent.
    let error = wait(&call(other.handle(), "worker0", "end")).unwrap_err();
    assert_connection_lost(&error);
    until("all threads have exited", || {
        agent.handle().metrics().threads == 0
    });
    assert_shutdown_error(
        &wait(&call(agent.handle(), "worker1", "echo")).unwrap_err(),
        Outcome::NotExecuted,
    );
}

#[test]
fn a_function_that_requests_coordinated_shutdown_fails_as_busy() {
    let (agent, other) = agent_that_ends_itself("end", |agent| {
        // A wait for the shutdown would deadlock, because the shutdown waits for this function.
        let error = agent.shutdown(None).unwrap_err();
        assert!(matches!(error, TerminationError::Busy { .. }), "{error:?}");
        Vec::new()
    });
    let error = wait(&call(other.handle(), "worker0", "end")).unwrap_err();
    assert_connection_lost(&error);
    until("all threads have exited", || {
        agent.handle().metrics().threads == 0
    });
    assert_eq!(agent.handle().metrics().handler_panics, 0);
}

#[test]
fn a_callback_can_shut_down_its_own_agent() {
    let agents = group(2);
    let mut agents = agents.into_iter().map(Arc::new);
    let (agent, _other) = (agents.next().unwrap(), agents.next().unwrap());
    let (sender, receiver) = mpsc::channel();
    let own = Arc::clone(&agent);
    call(agent.handle(), "worker1", "echo").on_complete(move |_| {
        own.shutdown_now();
        let _ = sender.send(());
    });
    receiver.recv_timeout(PATIENCE).unwrap();
    until("all threads have exited", || {
        agent.handle().metrics().threads == 0
    });
    // A callback may also drop the last reference to its agent.
    let agents = group(2);
    let mut agents = agents.into_iter();
    let (agent, _other) = (agents.next().unwrap(), agents.next().unwrap());
    let (sender, receiver) = mpsc::channel();
    let handle = agent.handle().clone();
    let first = call(&handle, "worker1", "echo");
    first.on_complete(move |_| {
        drop(agent);
        let _ = sender.send(());
    });
    receiver.recv_timeout(PATIENCE).unwrap();
    until("all threads have exited", || handle.metrics().threads == 0);
}

#[test]
fn a_member_of_a_dynamic_group_leaves_when_its_calls_have_ended() {
    let store = shared_store();
    let gate = Gate::new();
    let _open = OpenAtEnd(Arc::clone(&gate));
    let start = |rank| {
        start_one(&store, options(rank), |registry| {
            gate.register(registry, "slow");
        })
    };
    let (first, second) = (start(0), start(1));
    let call = call(first.handle(), "worker1", "slow");
    gate.await_inside(1);
    thread::scope(|scope| {
        let end = scope.spawn(|| first.shutdown(PATIENCE));
        gate.open();
        end.join().unwrap().unwrap();
    });
    assert_eq!(call.try_get().unwrap().unwrap(), "x");
    // The other worker neither shuts down nor waits.
    second.shutdown(PATIENCE).unwrap();
}

#[test]
fn a_worker_that_stops_right_after_an_answer_has_left_and_is_not_lost() {
    // The thread that wrote the answer may still hold the connection when the Goodbye is due. Without a
    // wait for that thread, about 1 round in 100 fails on a loaded machine, and 1 in 1000 with a single
    // pair.
    const PAIRS: usize = 4;
    const ROUNDS: usize = 300;
    thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(|| {
                let store = shared_store();
                let start = |rank| start_one(&store, options(rank), |_| {});
                let stays = start(0);
                for round in 0..ROUNDS {
                    let leaves = start(1);
                    // A call may reach the previous incarnation and fail because that has left.
                    until("the call is answered", || {
                        wait(&call(stays.handle(), "worker1", "echo")).is_ok()
                    });
                    leaves.shutdown(PATIENCE).unwrap();
                    assert_eq!(
                        stays.handle().metrics().connections_lost,
                        0,
                        "round {round}"
                    );
                }
            });
        }
    });
}

#[test]
fn a_group_can_join_and_continue() {
    let agents = group(3);
    for _ in 0..3 {
        thread::scope(|scope| {
            for agent in &agents {
                scope.spawn(|| {
                    let next = (agent.handle().me().id.get() + 1) % 3;
                    let call = begin(agent.handle(), next, "echo", "x");
                    agent.join(PATIENCE).unwrap();
                    assert_eq!(call.try_get().unwrap().unwrap(), "x");
                });
            }
        });
    }
    shut_down_all(&agents);
}

#[test]
fn no_thread_outlives_its_agent() {
    // Other tests start agents as well.
    if !in_own_process("shutdown::no_thread_outlives_its_agent") {
        return;
    }
    for round in 0..200 {
        let agents = group(2);
        // Each thread sets its own name, after its start.
        until("each agent has three threads", || agent_threads() >= 6);
        let mut calls = Vec::new();
        if round % 2 == 0 {
            for number in 0..20 {
                let (from, to) = (&agents[number % 2], format!("worker{}", number / 2 % 2));
                calls.push(call(from.handle(), &to, "echo"));
            }
        }
        match round % 4 {
            0 | 1 => shut_down_all(&agents),
            2 => agents[0].shutdown_now(),
            _ => {}
        }
        drop(agents);
        assert!(calls.iter().all(FutureMessage::is_complete));
        // The operating system may list a joined thread for a moment longer.
        until("no thread is left", || agent_threads() == 0);
    }
}

/// Number of threads of this process that belong to agents.
fn agent_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("rpc-")).count()
}
