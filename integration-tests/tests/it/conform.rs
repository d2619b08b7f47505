//! PyTorch's servers and clients, and ours, against the suite that says what they do: they keep it honest.

use std::path::Path;
use std::time::Duration;

use c10d_conform::{ClientRun, Column, Report, ServerRun};
use c10d_socket::HostPort;
use integration_tests::torch::{Torch, python};
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

const CLIENT: &str = env!("CARGO_BIN_EXE_conform-client");

fn run_client(arguments: &[&str], only: &[&str]) -> Report {
    let command = [CLIENT].iter().chain(arguments).map(Into::into).collect();
    let only = only.iter().map(ToString::to_string).collect();
    let run = ClientRun::new(command)
        .with_only(only)
        .with_start_timeout(None);
    run.run().expect("the command starts")
}

#[test]
fn our_client_and_a_small_one_conform() {
    for client in ["ours", "small"] {
        let report = run_client(&[client], &[]);
        assert!(report.is_conforming(), "{}", report.to_text());
    }
}

#[test]
fn each_mistake_of_a_client_is_found_by_a_scenario() {
    for (mistake, scenario, sentence) in [
        ("big endian", "every_operation", "little endian"),
        (
            "lengths of four bytes",
            "every_operation",
            "lengths and counts have 8 bytes",
        ),
        (
            "no validate",
            "every_operation",
            "first on a connection: PyTorch's server wants VALIDATE",
        ),
        (
            "validate in two writes",
            "every_operation",
            "sent VALIDATE in two writes",
        ),
        (
            "no slash",
            "every_operation",
            "PyTorch's clients put a / before each",
        ),
        (
            "check is a bool",
            "every_operation",
            "check greeting n printed false instead of true",
        ),
        (
            "unsigned sums",
            "every_operation",
            "add n -9 printed 18446744073709551614 instead of -2",
        ),
        (
            "one read for a reply",
            "short_and_late_reads",
            "get k printed",
        ),
        (
            "get without a wait",
            "keys_that_arrive_later",
            "get late2 printed \"\" instead of late",
        ),
        ("no cancel", "timeouts", "CANCEL_WAIT comes first"),
        (
            "one byte after a cancel",
            "answer_crosses_cancel",
            "add n 5 printed",
        ),
        ("an end is no error", "close_in_reply", " instead of error"),
    ] {
        let report = run_client(&["small", mistake], &[scenario]);
        let text = report.to_text();
        assert!(
            text.contains(&format!("wrong: {scenario}: the client ")),
            "{mistake}: {text}"
        );
        assert!(text.contains(sentence), "{mistake}: {text}");
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn pytorchs_client_conforms() {
    let _watchdog = Watchdog::start("pytorchs_client_conforms", Duration::from_secs(180));
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/conform_client.py");
    let command = vec![python().get_program().to_owned(), example.into()];
    let report = ClientRun::new(command)
        .with_start_timeout(Duration::from_secs(120))
        .run();
    let report = report.expect("the command starts");
    assert!(report.is_conforming(), "{}", report.to_text());
}
