//! Jobs on the agent's threads; callbacks for lost peers, departed peers and shutdown.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rpc_agent::{Agent, WorkerId};

use crate::common::{PATIENCE, group, group_with, options, pair, registry, shared_store, until};

fn shut_down_pair(agents: [&Agent; 2]) {
    thread::scope(|scope| {
        for agent in agents {
            scope.spawn(|| agent.shutdown(PATIENCE).unwrap());
        }
    });
}

#[test]
fn jobs_run_on_the_pool_when_they_are_due_and_not_before() {
    let agents = group(1);
    let began = Instant::now();
    let (sender, ran) = mpsc::channel();
    for after_ms in [40, 0, 20] {
        let sender = sender.clone();
        agents[0]
            .handle()
            .spawn_at(began + Duration::from_millis(after_ms), move || {
                let thread = thread::current().name().unwrap_or_default().to_owned();
                sender.send((after_ms, began.elapsed(), thread)).unwrap();
            });
    }
    drop(sender);
    let mut ran: Vec<_> = ran.iter().collect();
    ran.sort();
    let due: Vec<u64> = ran.iter().map(|(after_ms, ..)| *after_ms).collect();
    assert_eq!(due, [0, 20, 40], "each job runs once");
    for (after_ms, ran_after, thread) in ran {
        assert!(
            ran_after >= Duration::from_millis(after_ms),
            "{ran_after:?}"
        );
        assert!(thread.starts_with("rpc-"), "on {thread}");
    }
}

/// All of them want one lock, so that more threads do no more work.
#[test]
fn a_burst_of_short_jobs_starts_few_threads() {
    const THREADS_MAX: u64 = 100;
    let agents = group_with(1, |_, options| options.with_threads_max(1000), |_, _| {});
    let agent = agents[0].handle();
    let sum = Arc::new(Mutex::new(0_u64));
    let (done, all_done) = mpsc::channel::<()>();
    let mut threads = 0;
    for number in 0..50_000_u64 {
        let (sum, done) = (Arc::clone(&sum), done.clone());
        agent.spawn(move || {
            *sum.lock().unwrap() += number;
            drop(done);
        });
        if number % 100 == 0 {
            threads = threads.max(agent.metrics().threads);
        }
    }
    drop(done);
    while all_done.recv_timeout(Duration::from_millis(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
        threads = threads.max(agent.metrics().threads);
    }
    assert_eq!(*sum.lock().unwrap(), 49_999 * 25_000);
    assert!(threads <= THREADS_MAX, "{threads} threads");
}

/// Each job waits for the next one, which the agent does not know.
#[test]
fn jobs_that_block_do_not_keep_others_from_running() {
    let agents = group(1);
    let (first, ran) = mpsc::channel();
    let mut next = first;
    for _ in 0..40 {
        let (sender, woken) = mpsc::channel();
        let wakes = next;
        agents[0].handle().spawn(move || {
            woken.recv_timeout(PATIENCE).unwrap();
            wakes.send(()).unwrap();
        });
        next = sender;
    }
    agents[0].handle().spawn(move || next.send(()).unwrap());
    ran.recv_timeout(PATIENCE).expect("the first job ends last");
}

#[test]
fn a_job_that_is_due_before_those_that_wait_runs_in_time() {
    let agents = group(1);
    let (sender, ran) = mpsc::channel();
    for minutes in [60, 30, 0] {
        let sender = sender.clone();
        let at = Instant::now() + Duration::from_secs(60 * minutes);
        let job = move || sender.send(minutes).unwrap();
        agents[0].handle().spawn_at(at, job);
    }
    assert_eq!(ran.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn a_job_can_make_calls_and_a_panicking_job_does_not_affect_others() {
    let (caller, server) = pair(|_| {});
    let (sender, ran) = mpsc::channel();
    caller.handle().spawn(|| panic!("a bad job"));
    let handle = caller.handle().clone();
    caller.handle().spawn(move || {
        let echo = handle
            .call(1, "echo")
            .with_timeout(PATIENCE)
            .send_bytes("x")
            .wait();
        sender.send(echo.unwrap()).unwrap();
    });
    assert_eq!(ran.recv_timeout(PATIENCE).unwrap(), "x");
    shut_down_pair([&caller, &server]);
}

#[test]
fn coordinated_shutdown_waits_for_a_running_job_and_not_for_a_later_one() {
    let agents = group(1);
    let (has_begun, has_ended) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (begun, ended) = (Arc::clone(&has_begun), Arc::clone(&has_ended));
    let (open, gate) = mpsc::channel::<()>();
    agents[0].handle().spawn(move || {
        begun.store(true, Ordering::SeqCst);
        gate.recv_timeout(PATIENCE).unwrap();
        ended.store(true, Ordering::SeqCst);
    });
    let never = Arc::new(());
    let held = Arc::clone(&never);
    agents[0]
        .handle()
        .spawn_at(Instant::now() + Duration::from_secs(3600), move || {
            drop(held)
        });
    until("the job is running", || has_begun.load(Ordering::SeqCst));
    thread::scope(|scope| {
        scope.spawn(|| {
            agents[0].shutdown(PATIENCE).unwrap();
            assert!(has_ended.load(Ordering::SeqCst));
        });
        open.send(()).unwrap();
    });
    assert_eq!(Arc::strong_count(&never), 1, "it was dropped");
}

#[test]
fn jobs_after_shutdown_are_dropped() {
    let agents = group(1);
    agents[0].shutdown_now();
    let ran = Arc::new(AtomicUsize::new(0));
    for at in [None, Some(Instant::now())] {
        let ran = Arc::clone(&ran);
        let job = move || {
            ran.fetch_add(1, Ordering::SeqCst);
        };
        match at {
            Some(at) => agents[0].handle().spawn_at(at, job),
            None => agents[0].handle().spawn(job),
        }
    }
    assert_eq!(Arc::strong_count(&ran), 1, "they were dropped");
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn on_end_runs_once_after_all_threads_have_exited() {
    let agents = group(1);
    let (sender, receiver) = mpsc::channel();
    let handle = agents[0].handle().clone();
    agents[0].handle().on_end(|| panic!("a bad callback"));
    agents[0]
        .handle()
        .on_end(move || sender.send(handle.metrics().threads).unwrap());
    agents[0].shutdown(PATIENCE).unwrap();
    agents[0].shutdown_now();
    assert_eq!(receiver.recv(), Ok(0));
    assert!(receiver.recv().is_err(), "on_end ran twice");
    // Registering after the shutdown drops the callback.
    let token = Arc::new(());
    let held = Arc::clone(&token);
    agents[0].handle().on_end(move || drop(held));
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn a_worker_that_shuts_down_is_reported_as_left_and_not_as_lost() {
    let store = shared_store();
    let stays = Agent::start(options(0), registry(|_| {}), store.clone_store().unwrap()).unwrap();
    let leaves = Agent::start(options(1), registry(|_| {}), store.clone_store().unwrap()).unwrap();
    let (sender, left) = mpsc::channel();
    stays
        .handle()
        .on_peer_lost(|worker, cause| panic!("{worker} was lost: {cause}"));
    stays
        .handle()
        .on_peer_left(move |worker, _| sender.send(worker.clone()).unwrap());
    stays
        .handle()
        .call(1, "echo")
        .with_timeout(PATIENCE)
        .send_bytes("x")
        .wait()
        .unwrap();
    let worker = leaves.handle().me().clone();
    leaves.shutdown(PATIENCE).unwrap();
    assert_eq!(left.recv_timeout(PATIENCE).unwrap(), worker);
}

#[test]
fn an_incarnation_belongs_to_one_start_of_a_worker() {
    let store = shared_store();
    let start = |rank| {
        let store = store.clone_store().unwrap();
        Agent::start(options(rank), registry(|_| {}), store).unwrap()
    };
    let (caller, server) = (start(0), start(1));
    let id = WorkerId::new(1).unwrap();
    assert_eq!(caller.handle().incarnation_of(id), None);
    assert_eq!(
        caller.handle().incarnation_of(caller.handle().me().id),
        Some(caller.handle().incarnation())
    );
    caller
        .handle()
        .call(1, "echo")
        .with_timeout(PATIENCE)
        .send_bytes("x")
        .wait()
        .unwrap();
    assert_eq!(
        caller.handle().incarnation_of(id),
        Some(server.handle().incarnation())
    );
    server.shutdown(PATIENCE).unwrap();
    // The caller keeps the last known incarnation until the worker restarts.
    assert_eq!(
        caller.handle().incarnation_of(id),
        Some(server.handle().incarnation())
    );
    let next = start(1);
    assert_ne!(next.handle().incarnation(), server.handle().incarnation());
    until("the new process is found", || {
        caller
            .handle()
            .call(1, "echo")
            .with_timeout(PATIENCE)
            .send_bytes("x")
            .wait()
            .is_ok()
    });
    assert_eq!(
        caller.handle().incarnation_of(id),
        Some(next.handle().incarnation())
    );
}
