//! The server against the cases of `c10d-conform`, over TCP.

use c10d_conform::{COLUMNS, Column, Report, ServerRun, Verdict};
use c10d_socket::HostPort;
use c10d_store::{ServerOptions, TcpStoreServer};

fn run(column: Column) -> Report {
    let server = TcpStoreServer::bind("127.0.0.1:0", ServerOptions::default());
    let server = server.expect("a free port");
    let target = HostPort::new("127.0.0.1", server.local_addr().port());
    let report = ServerRun::new(target, column).run(1).expect("it listens");
    assert!(report.is_conforming(), "{}", report.to_text());
    report
}

#[test]
fn the_server_passes_its_own_column() {
    let report = run("c10d".parse().expect("a column"));
    let is_other = |verdict: &Verdict| *verdict != Verdict::Same;
    assert!(
        !report.outcomes().iter().any(|it| is_other(&it.verdict)),
        "{}",
        report.to_text()
    );
}

#[test]
fn the_server_passes_as_pytorch_without_its_weaknesses() {
    let report = run(COLUMNS[0]);
    let better = |it: &&c10d_conform::Outcome| it.verdict == Verdict::Fixed;
    let better = report.outcomes().iter().filter(better);
    assert!(
        better.clone().all(|it| it.name.starts_with("q_")),
        "{}",
        report.to_text()
    );
    assert_eq!(better.count(), 8, "{}", report.to_text());
}
