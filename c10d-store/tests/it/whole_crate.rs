//! A program that imports the whole crate can call everything: no two traits have a method of the same name.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::*;

#[test]
fn a_program_may_import_everything() -> Result<(), StoreError> {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default())?;
    let options = TcpStoreOptions::default().with_timeout(Duration::from_secs(60));
    let store = TcpStore::open("127.0.0.1", server.local_addr().port(), options.clone())?;
    store.set("a", "b")?;
    store.append("a", "c")?;
    assert_eq!(store.get("a")?, b"bc");
    assert_eq!(store.get_timeout("a", Duration::from_secs(60))?, b"bc");
    assert_eq!(store.add("n", 1)?, 1);
    store.multi_set(&[("a", b"b")])?;
    assert_eq!(store.multi_get(&["a", "n"])?, [b"b", b"1"]);
    assert_eq!(store.compare_set("a", "b", "c")?.value(), b"c");
    assert_eq!(store.try_get("a")?.as_deref(), Some(&b"c"[..]));
    store.wait(&["n"])?;
    store.wait_timeout(&["n"], Duration::ZERO)?;
    assert!(store.check(&["n"])? && store.delete_key("a")?);
    assert_eq!((store.list_keys()?.len(), store.num_keys()?), (1, 1));
    store.queue_push("q", "1")?;
    assert_eq!(store.queue_pop("q")?, b"1");
    assert_eq!(
        (store.try_queue_pop("q")?, store.queue_len("q")?),
        (None, 0)
    );
    store.barrier("b", 1)?;
    if cfg!(feature = "extensions") {
        store.set_ephemeral("e", "v", None)?;
        assert!(store.keep_alive(None)?);
        assert_eq!(store.end_waits("")?, 0);
        assert_eq!(store.delete_prefix("x", Duration::ZERO)?, 0);
    }

    // A clone is the same handle.
    let same = store.clone();
    same.set_timeout(Some(Duration::from_secs(7)));
    assert_eq!(
        (store.timeout(), same.label()),
        (Some(Duration::from_secs(7)), store.label())
    );
    let other = store.clone_store()?;
    store.close();
    assert!(matches!(same.get("n"), Err(StoreError::Closed { .. })));
    assert_eq!(other.get("n")?, b"1");
    let prefixed = PrefixStore::nest("p", other)?;
    prefixed.set("a", "b")?;
    let hash = HashStore::new();
    hash.set("a", "b")?;
    assert_eq!(hash.get("a")?, b"b");
    Ok(())
}

/// The same calls on a store of any kind: a trait object, a reference to one, and a shared one.
#[test]
fn a_program_may_import_everything_and_use_any_store() -> Result<(), StoreError> {
    fn every_call<S: Store + ?Sized>(store: &S) -> Result<(), StoreError> {
        store.set("a", "b")?;
        store.append("a", "c")?;
        assert_eq!(store.get("a")?, b"bc");
        assert_eq!(store.add("n", 1)?, 1);
        store.multi_set(&[("a", b"b")])?;
        assert_eq!(store.multi_get(&["a", "n"])?, [b"b", b"1"]);
        assert_eq!(store.compare_set("a", "b", "c")?.value(), b"c");
        assert_eq!(store.try_get("a")?.as_deref(), Some(&b"c"[..]));
        store.wait(&["n"])?;
        assert!(store.check(&["n"])? && store.delete_key("a")? && store.delete_key("n")?);
        assert_eq!(store.num_keys()?, 0);
        store.set_timeout(Some(Duration::from_secs(60)));
        assert_eq!(store.timeout(), Some(Duration::from_secs(60)));
        assert!(!store.label().is_empty());
        Ok(())
    }
    let shared: Arc<dyn Store> = Arc::new(HashStore::new());
    shared.set("a", "b")?;
    shared.append("a", "c")?;
    assert_eq!(shared.get("a")?, b"bc");
    shared.wait(&["a"])?;
    assert_eq!(shared.compare_set("a", "bc", "d")?.value(), b"d");
    assert!(shared.delete_key("a")?);
    let other = shared.clone_store()?;
    let boxed: Box<dyn Store> = Box::new(HashStore::new());
    boxed.set("a", "b")?;
    assert!(boxed.delete_key("a")?);
    let nested = PrefixStore::nest("p", Arc::clone(&shared))?;
    let named = PrefixStore::new("q", Arc::clone(&shared));
    every_call(&*shared)?;
    every_call(&*other)?;
    every_call(&*boxed)?;
    every_call(&nested)?;
    every_call(&named)?;
    every_call(&HashStore::new())
}
