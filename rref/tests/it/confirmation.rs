//! The future of a creation: `RRef::confirmation`.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rref::{RRef, RRefOptions};

use crate::common::{Gate, PATIENCE, end, group, group_of, remote_number};
use crate::fault_plan::FaultPlan;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Awaits a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Pending until the owner has answered, which is before the function has returned; awaited, waited for, and called back.
#[test]
fn a_confirmation_completes_when_the_owner_has_accepted_the_creation() {
    let gate = Gate::new();
    let plan = FaultPlan::new(1).delay("rref/create", Duration::from_millis(500));
    let workers = group_of(2, &RRefOptions::new(), plan.of_rank(0), |_, functions| {
        gate.register(functions, "slow");
    });
    let rrefs = &workers[0].rrefs;
    let slow: RRef<i64> = rrefs.call("worker1", "slow").remote(()).unwrap();
    let confirmation = slow.confirmation().unwrap();
    assert!(!confirmation.is_complete(), "the creation is delayed");
    assert!(confirmation.wait_timeout(Duration::ZERO).is_none());
    let (send, called) = mpsc::channel();
    confirmation.on_complete(move |confirmed| send.send(confirmed.is_ok()).unwrap());
    block_on(confirmation.clone()).unwrap();
    assert!(confirmation.is_complete() && slow.is_confirmed());
    assert!(called.recv_timeout(PATIENCE).unwrap());
    confirmation.wait().unwrap();
    // A second future of a confirmed reference is complete at once.
    assert!(slow.confirmation().unwrap().is_complete());
    assert!(
        slow.wait_ready(Some(Duration::ZERO)).is_err(),
        "its function runs"
    );
    gate.open();
    assert_eq!(slow.to_here(Some(PATIENCE)).unwrap(), 1);
    let own = rrefs.rref(1_i64).unwrap();
    assert!(own.confirmation().unwrap().is_complete());
    drop((slow, confirmation, own));
    end(&workers);
}

/// The future keeps the reference, so that its result is the owner's answer and not the deletion.
#[test]
fn a_confirmation_keeps_its_reference_until_it_completes() {
    let workers = group(2);
    let number = remote_number(&workers, 1);
    let confirmation = number.confirmation().unwrap();
    drop(number);
    confirmation.wait_timeout(PATIENCE).unwrap().unwrap();
    drop(confirmation);
    end(&workers);
}
