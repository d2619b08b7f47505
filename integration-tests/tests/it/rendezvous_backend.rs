//! The backend of a rendezvous over each store that can hold its state: docs/spec/rendezvous.md, section 4.

use std::sync::Arc;
use std::time::Duration;

use c10d_store::{FileStore, HashStore, Store, StoreExt, TcpStore, TcpStoreOptions};
use elastic_rendezvous::{C10dBackend, RendezvousBackend, RendezvousError, SetState};
use integration_tests::torch::Torch;
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(90);

const KEY: &str = "torch.rendezvous.job";

fn backend(store: &Arc<dyn Store>) -> C10dBackend {
    C10dBackend::new(Arc::clone(store), "job").expect("a backend")
}

fn written(result: Result<Option<SetState>, RendezvousError>) -> SetState {
    result.expect("no error").expect("a state")
}

/// `store` is empty.
/// docs/spec/rendezvous.md, BACKEND 1 to 4.
fn every_rule(store: &Arc<dyn Store>) {
    let (first, second) = (backend(store), backend(store));

    // BACKEND 1, BACKEND 4: opening it creates the key.
    assert_eq!(store.get(KEY).expect("the sentinel"), b"Y2FuaW1hZGFt");
    assert!(first.get_state().expect("a read").is_none());

    // BACKEND 3: without a token, only the first write succeeds.
    let one = written(first.set_state(b"one", None));
    assert!(one.is_ours);
    let refused = written(second.set_state(b"two", None));
    assert!(!refused.is_ours);
    assert_eq!(refused.stored.state, b"one");
    assert_eq!(refused.stored.token, one.stored.token);

    // BACKEND 2: only the current token replaces the state.
    let two = written(second.set_state(b"two", Some(&refused.stored.token)));
    assert!(two.is_ours);
    let stale = written(first.set_state(b"three", Some(&one.stored.token)));
    assert!(!stale.is_ours);
    assert_eq!(stale.stored.state, b"two");
    let stored = first.get_state().expect("a read").expect("a state");
    assert_eq!(stored.state, b"two");
    assert_eq!(stored.token, two.stored.token);
    assert!(first.is_current(Some(&two.stored.token)).expect("a read"));
    assert!(!first.is_current(Some(&one.stored.token)).expect("a read"));

    // A foreign value stays, and both ways of finding it say so.
    store.set(KEY, "not base64!").expect("a write");
    for result in [
        first.get_state().map(|_| ()),
        first.set_state(b"three", None).map(|_| ()),
        first
            .set_state(b"three", Some(&two.stored.token))
            .map(|_| ()),
    ] {
        let error = result.expect_err("no state");
        assert!(
            matches!(error, RendezvousError::CorruptState { .. }),
            "{error}"
        );
    }
    assert_eq!(store.get(KEY).expect("a value"), b"not base64!");
}

/// docs/spec/rendezvous.md, BACKEND 5. The store's timeout is longer than this test may take.
fn a_lost_state(store: &Arc<dyn Store>) {
    let backend = backend(store);
    let one = written(backend.set_state(b"one", None));
    assert!(store.delete_key(KEY).expect("a deletion"));
    for result in [
        backend.get_state().map(|_| ()),
        backend.set_state(b"two", None).map(|_| ()),
        backend
            .set_state(b"two", Some(&one.stored.token))
            .map(|_| ()),
    ] {
        let error = result.expect_err("the state is lost");
        assert!(
            matches!(error, RendezvousError::StateLost { .. }),
            "{error}"
        );
    }
    assert!(
        !store.check(&[KEY]).expect("an answer"),
        "nothing was written"
    );
}

fn every_rule_and_a_lost_state(name: &'static str, open: impl Fn() -> Arc<dyn Store>) {
    let _watchdog = Watchdog::start(name, LIMIT);
    every_rule(&open());
    let store = open();
    store.set_timeout(Some(LIMIT * 2));
    a_lost_state(&store);
}

#[test]
fn in_memory() {
    every_rule_and_a_lost_state("in_memory", || Arc::new(HashStore::new()));
}

#[test]
fn in_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let number = std::cell::Cell::new(0);
    every_rule_and_a_lost_state("in_a_file", || {
        number.set(number.get() + 1);
        let file = folder.path().join(number.get().to_string());
        Arc::new(FileStore::open(file, None).expect("a store"))
    });
}

#[test]
fn on_our_server() {
    every_rule_and_a_lost_state("on_our_server", || {
        let options = TcpStoreOptions::default().with_master(true);
        Arc::new(TcpStore::open("127.0.0.1", 0, options).expect("a store"))
    });
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn on_pytorchs_servers() {
    for is_libuv in [true, false] {
        let servers = std::cell::RefCell::new(Vec::new());
        every_rule_and_a_lost_state("on_pytorchs_servers", || {
            let server = Torch::shared().tcp_server(is_libuv);
            let store = TcpStore::connect("127.0.0.1", server.port()).expect("it listens");
            servers.borrow_mut().push(server);
            Arc::new(store)
        });
        for server in servers.into_inner() {
            server.close();
        }
    }
}
