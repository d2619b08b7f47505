//! Panics of the program's code whose payload panics again when it is dropped.

use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rref::{RRef, RRefError};
use serde::{Serialize, Serializer};

use crate::common::{PATIENCE, end, group_with, until};

/// More than there are threads that run functions.
const MANY: usize = 40;

/// Its destructor panics, and so does the destructor of that panic's payload.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Self);
    }
}

/// A value whose encoding and destructor panic.
struct Fragile(Arc<AtomicUsize>);

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic_any(Bomb)
    }
}

impl Drop for Fragile {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic_any(Bomb)
    }
}

#[test]
fn functions_encodings_and_destructors_that_panic_so_cost_no_thread() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let workers = group_with(
        2,
        |_, options| options.with_handler_threads(4),
        |_, functions| {
            functions
                .register("bomb", |_, ()| -> Result<i64, _> { panic_any(Bomb) })
                .unwrap();
            functions
                .register_method("bomb of", |_, _: &i64, ()| -> Result<i64, _> {
                    panic_any(Bomb)
                })
                .unwrap();
            let dropped = Arc::clone(&dropped);
            functions
                .register("fragile", move |_, ()| Ok(Fragile(Arc::clone(&dropped))))
                .unwrap();
        },
    );
    let rrefs = &workers[0].rrefs;
    let is_bomb = |error: &RRefError| error.to_string().contains("panicked");
    let number: RRef<i64> = rrefs.call("worker1", "number").remote(1_i64).unwrap();
    for to in ["worker0", "worker1"] {
        let made: Vec<RRef<i64>> = (0..MANY)
            .map(|_| rrefs.call(to, "bomb").remote(()).unwrap())
            .collect();
        for rref in made {
            let error = rref.to_here(Some(PATIENCE)).unwrap_err();
            assert!(is_bomb(&error), "{error}");
        }
        let fragile: Vec<RRef<Fragile>> = (0..MANY)
            .map(|_| rrefs.call(to, "fragile").remote(()).unwrap())
            .collect();
        for rref in fragile {
            rref.wait_ready(Some(PATIENCE)).unwrap();
        }
    }
    for _ in 0..MANY {
        let called = rrefs.call("worker1", "bomb").run::<_, i64>(());
        assert!(called.is_err());
        let called = number.call("bomb of").run::<_, i64>(());
        assert!(called.is_err());
    }
    until("all values were dropped", || {
        dropped.load(Ordering::SeqCst) == 2 * MANY
    });
    assert_eq!(number.to_here(Some(PATIENCE)).unwrap(), 1);
    let list: RRef<Mutex<Vec<i64>>> = rrefs.call("worker1", "list").remote(vec![1_i64]).unwrap();
    assert_eq!(list.call("sum").run::<_, i64>(()).unwrap(), 1);
    drop((number, list));
    end(&workers);
}
