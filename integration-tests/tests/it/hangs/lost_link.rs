//! A node whose network is cut, or only the network of its collectives. Needs root.

#![expect(clippy::print_stdout, reason = "the outputs for the manual")]

use std::thread;
use std::time::{Duration, Instant};

use integration_tests::hosts::{HostProcess, HostSetup, Hosts};
use integration_tests::launcher::c10d;
use integration_tests::torch::{PYTHON_VARIABLE, script};
use integration_tests::watchdog::Watchdog;

use super::expected::{Expected, SCRIPT, Verdict};
use super::mode::Mode;
use super::{LIMIT, mode};

const START_LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn lost_link() {
    let _watchdog = Watchdog::start("lost_link", LIMIT);
    let names = "127.0.0.1 localhost\n10.8.8.1 node0\n10.8.8.2 node1\n";
    let Some(mode) = mode().filter(|mode| *mode != Mode::Torchrun) else {
        return;
    };
    let Some(hosts) = Hosts::start(["node0", "node1"].map(|name| HostSetup::new(name, names)))
    else {
        return;
    };
    let nodes = start_and_cut(&hosts, mode, "eth0");
    // The cause is known, and no rank or line of the script is.
    let parts = [
        "lost node node1 (",
        "no answer from the store at 10.8.8.1:29500 ",
    ];
    for (node, part) in nodes.iter().zip(parts) {
        let report = node.wait_for_output(mode.report_limit(), |text| text.contains(part));
        println!("{report}");
    }
    // The launchers stop their workers first, and a node may be late. The ranks that survive others keep running.
    let code = match mode {
        Mode::Keep => Verdict::PartlyObserved.exit_code(),
        _ => Verdict::NoProgress.exit_code(),
    };
    let started = Instant::now();
    let text = loop {
        let mut why = hosts.command(0, c10d());
        let why = why.args(["why", "--connect", "10.8.8.1:29500"]).output();
        let why = why.expect("c10d can be run");
        let text = String::from_utf8_lossy(&why.stdout).into_owned();
        if why.status.code() == Some(code) && text.contains("node1") {
            break text;
        }
        assert!(started.elapsed() < mode.report_limit(), "{text}");
        thread::sleep(Duration::from_millis(200));
    };
    println!("c10d why:\n{text}");
    assert!(!text.contains("because of: rank"), "{text}");
}

/// The launchers keep their connections, so that they and `c10d why` name the hosts between which data is lost.
#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn lost_data_link() {
    let _watchdog = Watchdog::start("lost_data_link", LIMIT);
    let Some(mode) = mode().filter(|mode| *mode != Mode::Torchrun) else {
        return;
    };
    let setups = ["node0", "node1"].into_iter().zip(1..).map(|(name, number)| {
        let hosts_file = "127.0.0.1 localhost\n10.8.8.1 node0\n10.8.8.2 node1\n";
        HostSetup::new(name, hosts_file).with_script(&format!(
            "ip link add link eth0 name data type macvlan mode bridge; ip addr add 10.9.9.{number}/24 dev data; \
             ip link set data up"
        ))
    });
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    let nodes = start_and_cut(&hosts, mode, "data");
    let cut = Instant::now();
    let place = Expected::of("lost_link", Verdict::NoProgress, &[]).places;
    let parts = [
        format!(
            "All ranks are in all_reduce ({}), so the network or the transport",
            place[0]
        ),
        "Host node".to_owned(),
        ") has not acknowledged ".to_owned(),
    ];
    let has_all = |text: &str| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        parts.iter().all(|part| text.contains(part))
            && (text.contains("Host node1 (10.9.9.2)") || text.contains("Host node0 (10.9.9.1)"))
    };
    let report = nodes[0].wait_for_output(mode.report_limit(), has_all);
    println!(
        "reported {} ms after the cut:\n{report}",
        cut.elapsed().as_millis()
    );
    let mut why = hosts.command(0, c10d());
    let why = why.args(["why", "--connect", "10.8.8.1:29500"]).output();
    let why = why.expect("c10d can be run");
    let text = String::from_utf8_lossy(&why.stdout);
    println!("c10d why:\n{text}");
    assert_eq!(
        why.status.code(),
        Some(Verdict::NoProgress.exit_code()),
        "{text}"
    );
    assert!(has_all(&text), "{text}");
}

/// Starts the job, and takes this link of the second host down when all ranks are in their loop.
fn start_and_cut(hosts: &Hosts, mode: Mode, link: &str) -> [HostProcess; 2] {
    let nodes = [0, 1].map(|host| start(hosts, host, mode, link));
    let started = Instant::now();
    while !(0..4).all(|rank| hosts.folder().join(format!("stalled.{rank}")).exists()) {
        let outputs = nodes.each_ref().map(HostProcess::output);
        assert!(started.elapsed() < START_LIMIT, "{outputs:?}");
        thread::sleep(Duration::from_millis(50));
    }
    let mut cut = hosts.command(1, "ip");
    let cut = cut.args(["link", "set", link, "down"]).status();
    assert!(cut.expect("ip can be run").success());
    nodes
}

/// The collectives use this link.
fn start(hosts: &Hosts, host: usize, mode: Mode, link: &str) -> HostProcess {
    let mut command = hosts.command(host, c10d());
    command
        .args([
            "run",
            "--nnodes=2",
            "--nproc-per-node=2",
            "--rdzv-backend=c10d",
        ])
        .args(["--rdzv-id=job", "--rdzv-endpoint=10.8.8.1:29500"])
        .args(mode.options())
        .arg(script(SCRIPT))
        .arg("lost_link")
        .arg(hosts.folder())
        .env(
            "PYTHON_EXEC",
            std::env::var_os(PYTHON_VARIABLE).unwrap_or_default(),
        )
        .env("GLOO_SOCKET_IFNAME", link)
        .env("OMP_NUM_THREADS", "1");
    if let Some(after) = mode.explain_after() {
        command.env("PET_EXPLAIN_AFTER", after);
    }
    hosts.start_process(&format!("node{host}"), &mut command)
}
