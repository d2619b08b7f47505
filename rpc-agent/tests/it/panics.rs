//! Panics of the program's code whose payload panics again when it is dropped.

use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use rpc_agent::{RpcError, RpcFuture};

use crate::common::{PATIENCE, ask, assert_reaches, group, group_with, until};

/// More than there are threads that run functions.
const MANY: usize = 40;

/// Its destructor panics, and so does the destructor of that panic's payload.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

#[test]
fn a_function_that_panics_so_costs_no_thread() {
    let agents = group_with(
        2,
        |_, options| options.with_handler_threads(4),
        |_, registry| {
            registry
                .register_bytes("bomb", |_, _| panic_any(Bomb))
                .unwrap();
            registry
                .register_deferred("later", |_, _, _reply| panic_any(Bomb))
                .unwrap();
        },
    );
    let caller = agents[0].handle();
    for to in ["worker0", "worker1"] {
        for function in ["bomb", "later"] {
            let calls: Vec<_> = (0..MANY)
                .map(|_| caller.call(to, function).send_bytes(""))
                .collect();
            for call in calls {
                let error = call.wait().unwrap_err();
                assert!(matches!(error, RpcError::Remote { .. }), "{error}");
            }
        }
        assert_eq!(ask(caller, to, "echo", "1").unwrap(), "1");
    }
    let panics = |rank: usize| agents[rank].handle().metrics().handler_panics;
    assert_eq!([panics(0), panics(1)], [2 * MANY as u64; 2]);
}

#[test]
fn callbacks_and_jobs_that_panic_so_cost_no_thread() {
    let agents = group(2);
    let agent = agents[0].handle();
    let ran = Arc::new(AtomicUsize::new(0));
    let bomb = |ran: &Arc<AtomicUsize>| {
        let ran = Arc::clone(ran);
        move || {
            ran.fetch_add(1, Ordering::SeqCst);
            panic_any(Bomb)
        }
    };
    for _ in 0..MANY {
        agent.spawn(bomb(&ran));
        agent.spawn_at(Instant::now(), bomb(&ran));
        let echo = agent.call("worker1", "echo").send_bytes("1");
        let callback = bomb(&ran);
        echo.on_complete(move |_| callback());
        let continuation = bomb(&ran);
        let broken = echo.then(move |_| {
            continuation();
            Ok(())
        });
        let error = broken.wait().unwrap_err();
        assert!(matches!(error, RpcError::Broken(_)), "{error}");
        let continuation = bomb(&ran);
        let broken = echo.then_async(move |_| {
            continuation();
            RpcFuture::ready(Ok(()))
        });
        assert!(broken.wait().is_err());
    }
    until("all have run", || ran.load(Ordering::SeqCst) == 5 * MANY);
    let (sender, done) = mpsc::channel();
    agent.spawn(move || sender.send(()).unwrap());
    done.recv_timeout(PATIENCE).unwrap();
}

/// The values that a callback has captured are dropped after its panic was contained.
#[test]
fn a_result_whose_destructor_panics_costs_no_thread() {
    #[derive(Clone)]
    struct Fragile(Arc<AtomicUsize>);
    impl Drop for Fragile {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("the destructor of a result");
        }
    }
    let agents = group(2);
    let agent = agents[0].handle();
    let dropped = Arc::new(AtomicUsize::new(0));
    for _ in 0..MANY {
        let result = Arc::clone(&dropped);
        let echo = agent.call("worker1", "echo").send_bytes("1");
        drop(echo.then(move |_| Ok(Fragile(result))));
    }
    until("all were dropped", || {
        dropped.load(Ordering::SeqCst) >= MANY
    });
    assert_eq!(ask(agent, "worker1", "echo", "1").unwrap(), "1");
}

#[test]
fn the_agents_events_may_panic_so() {
    let agents = group(2);
    let (sender, ended) = mpsc::channel();
    let (left, ended_too) = (sender.clone(), sender.clone());
    agents[0].handle().on_peer_left(move |_, _| {
        left.send("left").unwrap();
        panic_any(Bomb)
    });
    agents[0].handle().on_end(move || {
        ended_too.send("end").unwrap();
        panic_any(Bomb)
    });
    assert_reaches(&agents[0], "worker1");
    agents[1].shutdown_now();
    assert_eq!(ended.recv_timeout(PATIENCE), Ok("left"));
    agents[0].shutdown_now();
    assert_eq!(ended.recv_timeout(PATIENCE), Ok("end"));
}
