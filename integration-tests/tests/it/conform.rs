//! PyTorch's servers against the cases that were recorded from them.

use std::time::Duration;

use c10d_conform::{Column, ServerRun};
use c10d_socket::HostPort;
use integration_tests::torch::Torch;
use integration_tests::watchdog::Watchdog;

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorch_passes_its_columns() {
    let _watchdog = Watchdog::start("pytorch_passes_its_columns", Duration::from_secs(90));
    let torch = Torch::shared();
    let version = torch
        .version()
        .split('.')
        .take(2)
        .collect::<Vec<_>>()
        .join(".");
    for (use_libuv, suffix) in [(true, ""), (false, "-poll")] {
        let column: Column = format!("torch-{version}{suffix}")
            .parse()
            .expect("a column");
        let server = torch.tcp_server(use_libuv);
        let target = HostPort::new("127.0.0.1", server.port());
        let report = ServerRun::new(target, column).run(1);
        let report = report.expect("it listens");
        assert!(report.is_conforming(), "{}", report.to_text());
        server.close();
    }
}
