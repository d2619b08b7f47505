//! Jobs on the agent's threads; callbacks for lost peers, departed peers and shutdown.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rpc_agent::WorkerId;

use crate::common::{
    PATIENCE, ask, group, options, pair, shared_store, shut_down_all, start_one, until,
};

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

#[test]
fn a_job_can_make_calls_and_a_panicking_job_does_not_affect_others() {
    let (caller, server) = pair(|_| {});
    let (sender, ran) = mpsc::channel();
    caller.handle().spawn(|| panic!("a bad job"));
    let handle = caller.handle().clone();
    caller.handle().spawn(move || {
        let echo = ask(&handle, 1, "echo", "x");
        sender.send(echo.unwrap()).unwrap();
    });
    assert_eq!(ran.recv_timeout(PATIENCE).unwrap(), "x");
    shut_down_all([&caller, &server]);
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
    // A job of the distant future does not delay a job that is due now.
    let (sender, ran) = mpsc::channel();
    let due_now = move || sender.send(()).unwrap();
    agents[0].handle().spawn_at(Instant::now(), due_now);
    ran.recv_timeout(PATIENCE).unwrap();
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
    let [stays, leaves] = [0, 1].map(|rank| start_one(&store, options(rank), |_| {}));
    let (sender, left) = mpsc::channel();
    stays
        .handle()
        .on_peer_lost(|worker, cause| panic!("{worker} was lost: {cause}"));
    stays
        .handle()
        .on_peer_left(move |worker, _| sender.send(worker.clone()).unwrap());
    ask(stays.handle(), 1, "echo", "x").unwrap();
    let worker = leaves.handle().me().clone();
    leaves.shutdown(PATIENCE).unwrap();
    assert_eq!(left.recv_timeout(PATIENCE).unwrap(), worker);
}

#[test]
fn an_incarnation_belongs_to_one_start_of_a_worker() {
    let store = shared_store();
    let start = |rank| start_one(&store, options(rank), |_| {});
    let (caller, server) = (start(0), start(1));
    let id = WorkerId::new(1).unwrap();
    assert_eq!(caller.handle().incarnation_of(id), None);
    assert_eq!(
        caller.handle().incarnation_of(caller.handle().me().id),
        Some(caller.handle().incarnation())
    );
    ask(caller.handle(), 1, "echo", "x").unwrap();
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
        ask(caller.handle(), 1, "echo", "x").is_ok()
    });
    assert_eq!(
        caller.handle().incarnation_of(id),
        Some(next.handle().incarnation())
    );
}
