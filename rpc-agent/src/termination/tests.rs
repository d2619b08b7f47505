//! Coordinated shutdown of workers that are threads, over in-process and TCP stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

use c10d_store::{HashStore, PrefixStore, ServerOptions, StoreExt, TcpStore, TcpStoreServer};

use super::*;
use crate::directory::publish_failure;
use crate::sync::Lock;

/// Timeout of all waits in the tests; reached only if a test hangs.
const PATIENCE: Duration = Duration::from_secs(30);

fn patience() -> Deadline {
    Deadline::after(Instant::now(), PATIENCE)
}

fn soon() -> Deadline {
    Deadline::after(Instant::now(), Duration::from_millis(20))
}

fn workers(count: u32) -> Vec<WorkerInfo> {
    (0..count)
        .map(|id| WorkerInfo::new(&format!("w{id}"), id).unwrap())
        .collect()
}

/// Ends a worker that has no calls.
fn end_idle(end: &mut Termination, by: Deadline) -> Result<(), TerminationError> {
    end.run(&Calls::default(), by, &Cancel::NEVER)
}

fn termination(store: &Arc<dyn Store>, workers: &[WorkerInfo], id: usize) -> Termination {
    let store = store.clone_store().unwrap();
    Termination::new(store, 0, workers[id].clone(), workers.to_vec())
}

/// One store of each kind, and the server of the TCP store.
fn stores() -> (Vec<Arc<dyn Store>>, TcpStoreServer) {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let tcp = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
    let prefixed = PrefixStore::new("rpc_prefix_0", Arc::new(HashStore::new()));
    let stores: Vec<Arc<dyn Store>> = vec![
        Arc::new(HashStore::new()),
        Arc::new(tcp),
        Arc::new(prefixed),
    ];
    (stores, server)
}

/// A worker with a number of unanswered calls, which are never answered.
#[derive(Debug, Default)]
struct Calls {
    out: usize,
    is_asked: AtomicBool,
    is_interrupted: Mutex<bool>,
    interrupted: Condvar,
    dead: Mutex<Vec<WorkerInfo>>,
    news: Lock<Option<Cancel>>,
}

impl Calls {
    fn interrupt(&self) {
        *self.is_interrupted.lock().unwrap() = true;
        self.interrupted.notify_all();
        self.end_store_wait();
    }

    fn end_store_wait(&self) {
        if let Some(news) = &*self.news.lock() {
            news.cancel();
        }
    }
}

impl Activity for Calls {
    fn wait_idle(&self, by: Deadline, _: &Cancel) -> Result<(), WaitEnd> {
        self.is_asked.store(true, Ordering::SeqCst);
        if self.out == 0 {
            return Ok(());
        }
        let left = by.remaining(Instant::now()).unwrap_or(PATIENCE);
        let is_interrupted = self.is_interrupted.lock().unwrap();
        let waited = self
            .interrupted
            .wait_timeout_while(is_interrupted, left, |is_interrupted| !*is_interrupted);
        let (is_interrupted, _) = waited.unwrap();
        Err(if *is_interrupted {
            WaitEnd::Cancelled
        } else {
            WaitEnd::Late
        })
    }

    fn calls_started(&self) -> u64 {
        self.out as u64
    }

    fn calls_out(&self) -> usize {
        self.out
    }

    fn is_interrupted(&self) -> bool {
        *self.is_interrupted.lock().unwrap()
    }

    fn begin_store_wait(&self) -> Cancel {
        self.news.lock().insert(Cancel::new()).clone()
    }

    fn dead(&self) -> Dead {
        Dead {
            workers: self.dead.lock().unwrap().clone(),
            is_any_lost: false,
        }
    }
}

#[test]
fn an_idle_group_shuts_down_in_two_rounds() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(5);
        thread::scope(|scope| {
            let ends: Vec<_> = (0..workers.len())
                .map(|id| {
                    let mut end = termination(store, &workers, id);
                    scope.spawn(move || end_idle(&mut end, patience()).map(|()| end.core.round()))
                })
                .collect();
            for end in ends {
                assert_eq!(end.join().unwrap().unwrap(), 2);
            }
        });
        assert_eq!(store.get("shutdown/0/left").unwrap(), b"5");
    }
}

#[test]
fn a_timeout_lists_the_absent_workers_and_shutdown_can_continue_later() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(3);
        let mut first = termination(store, &workers, 0);
        let error = end_idle(&mut first, soon()).unwrap_err().to_string();
        let error_text = "in round 1, w1 (id 1), w2 (id 2) had not arrived (0 calls of this worker are unanswered)";
        assert!(error.ends_with(error_text), "{error}");

        thread::scope(|scope| {
            let ends: Vec<_> = (1..3)
                .map(|id| {
                    let mut end = termination(store, &workers, id);
                    scope.spawn(move || end_idle(&mut end, patience()))
                })
                .collect();
            end_idle(&mut first, patience()).unwrap();
            for end in ends {
                end.join().unwrap().unwrap();
            }
        });
        assert_eq!(first.core.round(), 2);
    }
}

#[test]
fn a_busy_worker_reports_its_unanswered_calls() {
    let (stores, _server) = stores();
    let calls = Calls {
        out: 1,
        ..Calls::default()
    };
    let mut end = termination(&stores[0], &workers(2), 1);
    let error = end
        .run(&calls, soon(), &Cancel::NEVER)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("WorkerInfo(id=1, name=w1) was still busy"),
        "{error}"
    );
    assert!(error.contains("1 of its calls are unanswered"), "{error}");
}

#[test]
fn a_dead_worker_ends_the_wait_without_a_deadline() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(3);
        let calls = Calls::default();
        *calls.dead.lock().unwrap() = vec![workers[2].clone()];
        let mut end = termination(store, &workers, 0);
        let error = end
            .run(&calls, Deadline::NEVER, &Cancel::NEVER)
            .unwrap_err();
        let error_text = "w2 (id 2) died before arriving in round 1";
        assert!(error.to_string().contains(error_text), "{error}");
    }
}

#[test]
fn a_death_and_a_cancel_end_the_wait_for_the_sum() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(2);
        let (calls, cancel) = (Calls::default(), Cancel::new());
        let mut end = termination(store, &workers, 0);
        thread::scope(|scope| {
            let end = scope.spawn(|| {
                let dead = end.run(&calls, Deadline::NEVER, &cancel).unwrap_err();
                calls.dead.lock().unwrap().clear();
                (dead, end.run(&calls, Deadline::NEVER, &cancel).unwrap_err())
            });
            while calls.news.lock().is_none() {
                thread::yield_now();
            }
            calls.dead.lock().unwrap().push(workers[1].clone());
            calls.end_store_wait();
            while !calls.dead.lock().unwrap().is_empty() {
                thread::yield_now();
            }
            cancel.cancel();
            let (dead, cancelled) = end.join().unwrap();
            assert!(
                matches!(dead, TerminationError::WorkersDead { .. }),
                "{dead}"
            );
            let is_interrupted = matches!(cancelled, TerminationError::Interrupted { .. });
            assert!(is_interrupted, "{cancelled}");
        });
    }
}

#[test]
fn a_worker_that_died_after_it_arrived_does_not_block_the_others() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(2);
        let calls = Calls::default();
        *calls.dead.lock().unwrap() = vec![workers[1].clone()];
        // The dead worker arrived in both rounds, and would have published the sum of the second one.
        for round in 1..=2 {
            store
                .set(&format!("shutdown/0/{round}/here/1"), b"")
                .unwrap();
            store.add(&format!("shutdown/0/{round}/count"), 1).unwrap();
        }
        store.add("shutdown/0/left", 1).unwrap();
        termination(store, &workers, 0)
            .run(&calls, patience(), &Cancel::NEVER)
            .unwrap();
    }
}

/// While it waits for its calls, and while it waits for the other worker.
#[test]
fn shutdown_can_be_interrupted_in_either_phase() {
    let (stores, _server) = stores();
    for store in &stores {
        let workers = workers(2);
        for out in [1, 0] {
            let calls = Calls {
                out,
                ..Calls::default()
            };
            let mut end = termination(store, &workers, out);
            thread::scope(|scope| {
                let calls = &calls;
                let end = scope.spawn(move || end.run(calls, Deadline::NEVER, &Cancel::NEVER));
                while !calls.is_asked.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                calls.interrupt();
                let error = end.join().unwrap().unwrap_err();
                assert!(
                    matches!(error, TerminationError::Interrupted { .. }),
                    "{error}"
                );
            });
        }
    }
}

#[test]
fn a_single_worker_shuts_down_at_once() {
    let (stores, _server) = stores();
    for store in &stores {
        let mut end = termination(store, &workers(1), 0);
        end_idle(&mut end, patience()).unwrap();
        // A second run returns at once and changes nothing.
        end_idle(&mut end, patience()).unwrap();
        assert_eq!(store.get("shutdown/0/left").unwrap(), b"1");
    }
}

#[test]
fn a_stopped_store_is_an_error_at_once() {
    let (stores, server) = stores();
    let store = &stores[1];
    let mut end = termination(store, &workers(2), 0);
    thread::scope(|scope| {
        let ended = scope.spawn(move || end_idle(&mut end, Deadline::NEVER));
        store
            .wait_timeout(&["shutdown/0/1/here/0"], Some(PATIENCE))
            .unwrap();
        server.shutdown();
        let error = ended.join().unwrap().unwrap_err();
        assert!(matches!(error, TerminationError::Store { .. }), "{error}");
    });
}

#[test]
fn an_invalid_sum_is_an_error_with_its_key() {
    let (stores, _server) = stores();
    let store = &stores[2];
    store.set("shutdown/0/1/ready", b"many").unwrap();
    let mut end = termination(store, &workers(2), 0);
    let error = end_idle(&mut end, patience()).unwrap_err().to_string();
    let error_text = "graceful shutdown: \"rpc_prefix_0/shutdown/0/1/ready\" at hash store is not a number: \
                \"many\"";
    assert_eq!(error, error_text);
}

/// The worker fails before the other workers shut down, and while they shut down.
#[test]
fn a_worker_that_could_not_start_ends_the_shutdown_of_the_others() {
    let (stores, _server) = stores();
    for store in stores {
        for is_before in [true, false] {
            let store: Arc<dyn Store> =
                Arc::new(PrefixStore::new(format!("{is_before}"), Arc::clone(&store)));
            let workers = workers(3);
            let fail = || {
                let why = "cannot start a thread";
                publish_failure(&store, &workers[2], 1, why, FIRST_SUM_KEY);
            };
            let error = thread::scope(|scope| {
                if is_before {
                    fail();
                }
                let waits = scope.spawn(|| {
                    let mut end = termination(&store, &workers, 0);
                    end_idle(&mut end, patience())
                });
                if !is_before {
                    store.wait(&["shutdown/0/1/here/0"]).unwrap();
                    fail();
                }
                waits.join().unwrap().unwrap_err()
            });
            assert!(
                matches!(error, TerminationError::WorkerFailed { .. }),
                "{error}"
            );
            let text = error.to_string();
            assert!(
                text.contains("could not start: cannot start a thread") && text.contains("w2"),
                "{text}"
            );
        }
    }
}
