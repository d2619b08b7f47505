//! Tests of `PrefixStore`.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{HashStore, Known, PrefixStore, Store, StoreError, StoreExt, StoreHandle};

use crate::store_contract::{self, Features};

#[test]
fn store_contract_holds_over_a_shared_store_and_nested() {
    let make = || -> Arc<dyn Store> {
        let shared: Arc<dyn Store> = Arc::new(HashStore::new());
        Arc::new(PrefixStore::new(
            "",
            Arc::new(PrefixStore::new("a/b", shared)),
        ))
    };
    store_contract::all(&make, Features::LOCAL);
}

#[test]
fn wrapped_stores_are_accessible_through_the_trait() {
    let base: Arc<dyn Store> = Arc::new(HashStore::new());
    let nested: Arc<dyn Store> = Arc::new(PrefixStore::new(
        "b",
        Arc::new(PrefixStore::new("a", Arc::clone(&base))),
    ));
    let below = nested.underlying_store().expect("it wraps a store");
    assert_eq!(below.full_key("k"), "a/k");
    below.set("k", "1").unwrap();
    let innermost = below.underlying_store().expect("it wraps a store");
    assert_eq!(innermost.full_key("k"), "k");
    assert_eq!(innermost.get("a/k").unwrap(), b"1");
    assert!(innermost.underlying_store().is_none());
    assert!(base.underlying_store().is_none());
}

#[test]
fn the_innermost_prefix_comes_first_in_a_key() {
    let base = Arc::new(HashStore::new());
    let a = PrefixStore::new("a", base.clone());
    let ab = PrefixStore::new("b", Arc::new(a.clone()));
    let empty = PrefixStore::new("", base.clone());

    ab.set("k", b"1").unwrap();
    ab.add("n", 2).unwrap();
    ab.append("log", b"x").unwrap();
    ab.compare_set("c", b"", b"y").unwrap();
    ab.multi_set(&[("m1", b"1"), ("m2", b"2")]).unwrap();
    ab.queue_push("q", b"e").unwrap();
    empty.set("k", b"2").unwrap();

    let mut keys = base.list_keys().unwrap();
    keys.sort();
    assert_eq!(
        keys,
        [
            "/k", "a/b/c", "a/b/k", "a/b/log", "a/b/m1", "a/b/m2", "a/b/n"
        ]
    );
    assert_eq!(base.queue_len("a/b/q").unwrap(), 1);
    assert_eq!(a.multi_get(&["b/m2", "b/k"]).unwrap(), [b"2", b"1"]);
    assert!(ab.delete_key("k").unwrap());
    assert!(!base.check(&["a/b/k"]).unwrap());
    assert_eq!(ab.num_keys().unwrap(), base.num_keys().unwrap());
}

/// PyTorch's `PrefixStore` ignores the separator here and would list `ab` as an empty key.
#[test]
fn only_keys_below_the_prefix_are_listed() {
    let base = HashStore::new();
    for key in ["a", "a/", "a/k", "a/k/l", "ab", "abc/d", "/a/k", "b/a/k"] {
        base.set(key, b"").unwrap();
    }
    let mut keys = PrefixStore::new("a", Arc::new(base)).list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["", "k", "k/l"]);
}

#[test]
fn errors_name_the_full_key() {
    let base: Arc<dyn Store> = Arc::new(HashStore::new());
    let store = PrefixStore::new("b", Arc::new(PrefixStore::new("a", base)));
    store.set_timeout(Some(Duration::ZERO));
    store.set("n", b"x").unwrap();
    let errors = [
        store.get("k").unwrap_err(),
        store.wait(&["k"]).unwrap_err(),
        store
            .wait_change("k", Known::nothing(), Some(Duration::ZERO))
            .unwrap_err(),
        store.barrier("k", 2).unwrap_err(),
        store.barrier("k", 0).unwrap_err(),
        store.add("n", 1).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("\"a/b/"), "{error}");
    }
    let StoreError::BarrierTimeout { context, .. } = store.barrier("m", 2).unwrap_err() else {
        panic!("a barrier of two with one worker times out");
    };
    assert_eq!(context.keys, "\"a/b/m\"");
}

#[test]
fn the_timeout_is_that_of_the_wrapped_store() {
    let base: Arc<dyn Store> = Arc::new(HashStore::new());
    let inner = PrefixStore::new("a", Arc::clone(&base));
    let outer = PrefixStore::new("b", Arc::new(inner.clone()));
    outer.set_timeout(Some(Duration::from_millis(7)));
    assert_eq!(base.timeout(), Some(Duration::from_millis(7)));
    assert_eq!(inner.timeout(), Some(Duration::from_millis(7)));
    assert_eq!(outer.label(), base.label());
    assert_eq!(outer.has_prompt_watch(), base.has_prompt_watch());
}

#[test]
fn closing_closes_the_wrapped_handle() {
    let other = HashStore::new();
    let base: Arc<dyn Store> = Arc::new(other.clone());
    let store = PrefixStore::new("b", Arc::new(PrefixStore::new("a", Arc::clone(&base))));
    let clone = store.clone_store().unwrap();
    store.close();
    let error = base.get("k").unwrap_err();
    assert!(matches!(error, StoreError::Closed { .. }), "{error}");
    let error = store.get("k").unwrap_err();
    assert!(error.to_string().contains("\"a/b/k\""), "{error}");
    clone.set("k", b"1").unwrap();
    assert_eq!(other.get("a/b/k").unwrap(), b"1");
}

/// Our workers and PyTorch's can meet in one barrier only if both write the same keys.
#[test]
fn the_barrier_writes_the_keys_of_pytorch() {
    let base = Arc::new(HashStore::new());
    PrefixStore::new("p", base.clone()).barrier("b", 1).unwrap();
    let mut keys = base.list_keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["p/b/last_member", "p/b/num_members"]);
    assert_eq!(base.get("p/b/num_members").unwrap(), b"1");
    assert_eq!(base.get("p/b/last_member").unwrap(), b"1");
}
