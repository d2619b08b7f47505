//! Stores opened by a URL: PyTorch's results match the recorded ones, and Python and Rust ranks share a store.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use c10d_store::{RendezvousOptions, StoreExt};
use integration_tests::torch::{Torch, python};
use integration_tests::watchdog::Watchdog;

const LIMIT: Duration = Duration::from_secs(180);

/// Compares PyTorch with the recording that c10d-store's tests use.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn the_recorded_results_match_pytorch() {
    let _watchdog = Watchdog::start("the_recorded_results_match_pytorch", LIMIT);
    if !Torch::shared().version().starts_with("2.15.") {
        // Earlier releases use the launcher's store differently.
        return;
    }
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../c10d-store/testdata");
    let output = run(python().arg(testdata.join("rendezvous_urls.py")));
    let recorded = fs::read_to_string(testdata.join("rendezvous-urls.jsonl")).expect("a recording");
    assert!(recorded.lines().count() > 100);
    for (ours, theirs) in recorded.lines().zip(output.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(recorded.lines().count(), output.lines().count());
}

/// Rank 1 is a Python process. Rank 0 is ours, and hosts the store of the `tcp://` URL.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_python_rank_and_a_rust_rank_share_a_url() {
    const RANK_1: &str = "
import sys, torch.distributed as dist
store, rank, world_size = next(dist.rendezvous(sys.argv[1], 1, 2))
store.set('from python', str(rank))
print(store.get('from rust').decode(), rank, world_size)
";
    let _watchdog = Watchdog::start("a_python_rank_and_a_rust_rank_share_a_url", LIMIT);
    let folder = tempfile::tempdir().expect("a folder");
    // No other test uses this address, so the port stays free.
    let probe = TcpListener::bind("127.0.0.78:0").expect("a free port");
    let port = probe.local_addr().expect("bound").port();
    drop(probe);
    let urls = [
        format!("tcp://127.0.0.78:{port}"),
        format!("file://{}/store", folder.path().display()),
    ];
    for url in urls {
        thread::scope(|scope| {
            let python = scope.spawn(|| run(python().args(["-c", RANK_1, &url])));
            let ours = RendezvousOptions::default()
                .with_rank(0)
                .with_world_size(2)
                .with_timeout(LIMIT)
                .open(&url)
                .unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!((ours.rank, ours.world_size), (0, Some(2)));
            ours.store.set("from rust", "0").expect("set");
            assert_eq!(ours.store.get("from python").expect("get"), b"1", "{url}");
            assert_eq!(python.join().expect("no panic"), "0 1 2\n", "{url}");
        });
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("text")
}
