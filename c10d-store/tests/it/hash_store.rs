//! Tests of `HashStore`.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use c10d_store::{DEFAULT_TIMEOUT, HashStore, Store, StoreExt, StoreHandle};

use crate::store_contract::{self, Features, LONG};

#[test]
fn store_contract_holds() {
    store_contract::all(&|| Arc::new(HashStore::new()), Features::LOCAL);
}

#[test]
fn a_new_store_has_the_default_timeout() {
    assert_eq!(HashStore::new().timeout(), Some(DEFAULT_TIMEOUT));
}

#[test]
fn debug_output_shows_no_contents() {
    let store = HashStore::new();
    store.set("secret", b"secret").unwrap();
    assert!(!format!("{store:?}").contains("secret"));
}

/// PyTorch's `HashStore` raises "queue is empty" at once instead.
#[test]
fn a_pop_waits_for_an_element_even_if_the_name_has_a_value() {
    let store = HashStore::new();
    store.set("q", b"value").unwrap();
    store.set_timeout(Some(Duration::from_millis(20)));
    let started = Instant::now();
    assert!(store.queue_pop("q").unwrap_err().is_timeout());
    assert!(started.elapsed() >= Duration::from_millis(20));

    store.set_timeout(Some(LONG));
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(store.queue_pop("q").unwrap(), b"element"));
        store.queue_push("q", b"element").unwrap();
    });
}

/// A `multi_get` sees all writes of a `multi_set` or none.
#[test]
fn multi_get_is_a_snapshot() {
    let store = HashStore::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2000_u32 {
                let value = round.to_string();
                let pairs = [("a", value.as_bytes()), ("b", value.as_bytes())];
                store.multi_set(&pairs).unwrap();
            }
        });
        for _ in 0..2000 {
            let values = store.multi_get(&["a", "b"]).unwrap();
            assert_eq!(values[0], values[1]);
        }
    });
}

#[test]
fn a_thousand_waiting_threads_are_all_woken() {
    let store = HashStore::new();
    store.set_timeout(Some(LONG));
    thread::scope(|scope| {
        for i in 0..1000 {
            let store = &store;
            scope.spawn(move || store.get(&format!("k{}", i % 10)).unwrap());
        }
        for key in 0..10 {
            store.set(&format!("k{key}"), b"1").unwrap();
        }
    });
}
