//! Tests that the `Debug` output of public types contains no stored values.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use c10d_store::Opcode;
use c10d_store::unstable::RequestBuf;
use c10d_store::{HashStore, Known, PrefixStore, ServerOptions, Store, StoreExt, StoreHandle};
use c10d_store::{TcpStore, TcpStoreServer};

/// Easy to find in output, as text and as a list of byte values.
const SECRET: &[u8] = b"QZQZQZ";

fn assert_shows_no_secret(object: &impl Debug) {
    for shown in [format!("{object:?}"), format!("{object:#?}")] {
        let packed: String = shown.split_whitespace().collect();
        assert!(!packed.contains("QZQZ"), "{shown}");
        assert!(!packed.contains("81,90,81"), "{shown}");
        assert!(packed.len() < 4096, "{} bytes: {shown}", packed.len());
    }
}

fn store_secrets(store: &dyn Store) {
    let large = SECRET.repeat(10_000);
    store.set("small", SECRET).unwrap();
    store.set("large", &large[..]).unwrap();
    assert_eq!(store.get("small").unwrap(), SECRET);
    assert_eq!(store.get("large").unwrap(), large);
}

#[test]
fn stores_show_no_values() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let tcp = TcpStore::connect("127.0.0.1", server.local_addr().port()).unwrap();
    store_secrets(&tcp);
    assert_shows_no_secret(&tcp);
    assert_shows_no_secret(&server);

    let hash = HashStore::new();
    store_secrets(&hash);
    assert_shows_no_secret(&hash);

    assert_shows_no_secret(&PrefixStore::new("p", Arc::new(tcp)));
}

#[cfg(feature = "file")]
#[test]
fn a_file_store_shows_no_values() {
    let directory = tempfile::tempdir().unwrap();
    let file = c10d_store::FileStore::open(directory.path().join("store"), None).unwrap();
    store_secrets(&file);
    assert_shows_no_secret(&file);
}

#[test]
fn arguments_and_results_show_no_values() {
    let mut request = RequestBuf::new();
    let large = SECRET.repeat(10_000);
    request.opcode(Opcode::Set).raw_key(b"k").value(SECRET);
    request.opcode(Opcode::Set).raw_key(b"k").value(&large);
    assert_shows_no_secret(&request);
    assert_shows_no_secret(&Known::whole(SECRET));

    let store = HashStore::new();
    store.set_timeout(Some(Duration::ZERO));
    let written = store.compare_set("k", b"", SECRET).unwrap();
    assert_shows_no_secret(&written);
}
