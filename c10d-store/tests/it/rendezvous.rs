//! Tests of stores that are opened by a URL.

use std::thread;
use std::time::Duration;

use c10d_store::{
    RendezvousOptions, ServerOptions, StoreError, StoreExt, TcpStoreServer, UrlError, rendezvous,
};

use crate::raw::LONG;

fn options() -> RendezvousOptions {
    RendezvousOptions::default().with_timeout(LONG)
}

/// No other test uses this address, so its free ports stay free.
const HOST: &str = "127.0.0.77";

/// A port of [`HOST`] on which nothing listens.
fn free_port() -> u16 {
    let server = TcpStoreServer::bind((HOST, 0), ServerOptions::default());
    server.expect("a free port").local_addr().port()
}

#[test]
fn ranks_of_a_tcp_url_share_the_store_that_rank_0_hosts() {
    let port = free_port();
    let opened: Vec<_> = thread::scope(|scope| {
        let ranks = [0, 1, 2].map(|rank| {
            scope.spawn(move || {
                let url = format!("tcp://{HOST}:{port}?rank={rank}&world_size=3");
                options().open(&url).unwrap()
            })
        });
        ranks.map(|rank| rank.join().unwrap()).into()
    });
    for (rank, opened) in opened.iter().enumerate() {
        assert_eq!((opened.rank, opened.world_size), (rank, Some(3)));
        assert_eq!(opened.hosts_store, rank == 0);
        assert_eq!(opened.store.add("arrived", 1).unwrap(), rank as i64 + 1);
        assert_eq!(opened.store.timeout(), Some(LONG));
    }
}

#[test]
fn no_rank_hosts_the_store_if_the_launcher_does() {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default()).unwrap();
    let port = server.local_addr().port().to_string();
    let environment = |name: &str| {
        let value = match name {
            "RANK" => "0",
            "WORLD_SIZE" => "1",
            "MASTER_ADDR" => "127.0.0.1",
            "MASTER_PORT" => &port,
            "TORCHELASTIC_USE_AGENT_STORE" => "True",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let opened = options().open_in("env://", &environment).unwrap();
    assert!(!opened.hosts_store);
    opened.store.set("k", "v").unwrap();
    assert_eq!(server.connection_count(), 1);
    // Without TORCHELASTIC_USE_AGENT_STORE rank 0 tries to host the store, and the port is in use.
    let without = |name: &str| environment(name).filter(|_| name != "TORCHELASTIC_USE_AGENT_STORE");
    let error = options().open_in("env://", &without).unwrap_err();
    assert!(
        matches!(&error, UrlError::Store(StoreError::Listen(error)) if error.is_address_in_use()),
        "{error}"
    );
}

#[cfg(feature = "file")]
#[test]
fn the_last_rank_removes_the_file_of_a_file_url() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a%20b");
    let open = |rank| {
        let url = format!("file://{}?rank={rank}&world_size=2", path.display());
        options().open(&url).unwrap()
    };
    let (a, b) = (open(0), open(1));
    a.store.set("k", "v").unwrap();
    assert_eq!(b.store.get("k").unwrap(), b"v");
    assert_eq!((b.rank, b.world_size), (1, Some(2)));
    assert_eq!(b.store.timeout(), Some(LONG));
    assert!(path.exists(), "the path is not percent-decoded");
    drop((a, b));
    assert!(!path.exists());
}

#[test]
fn a_url_that_cannot_be_opened_is_an_error() {
    let error = rendezvous("http://127.0.0.1:1?rank=0&world_size=1").unwrap_err();
    assert!(matches!(error, UrlError::Scheme { .. }), "{error}");
    #[cfg(not(feature = "file"))]
    {
        let error = rendezvous("file:///tmp/x?rank=0&world_size=1").unwrap_err();
        assert!(matches!(error, UrlError::Malformed { .. }), "{error}");
    }
    let url = format!("tcp://{HOST}:{}?rank=1&world_size=2", free_port());
    let options = RendezvousOptions::default().with_timeout(Duration::from_millis(50));
    let error = options.open(&url).unwrap_err();
    assert!(
        matches!(error, UrlError::Store(StoreError::Connect { .. })),
        "{error}"
    );
}
