//! `c10d doctor` on machines with their own names and networks.

use std::time::Duration;

use integration_tests::hosts::{HostProcess, HostSetup, Hosts};
use integration_tests::launcher::c10d;

const LIMIT: Duration = Duration::from_secs(90);

/// The names of two hosts, with the same addresses that DNS would return.
const NAMES: &str = "127.0.0.1 localhost\n10.8.8.1 node0\n10.8.8.2 node1\n10.8.8.3 node2\n";

fn start(hosts: &Hosts, host: usize, nodes: &str, options: &[&str]) -> HostProcess {
    let mut command = hosts.command(host, c10d());
    command.env("PET_NO_SCHEDULER", "1");
    let words = [
        "doctor",
        "--nnodes",
        nodes,
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.8.8.1:29500",
    ];
    command.args(words).args(options);
    hosts.start_process(&format!("doctor{host}"), &mut command)
}

/// The exit code and the output of `c10d doctor` on each host.
fn check(hosts: &Hosts, count: usize, options: &[&str]) -> Vec<(i32, String)> {
    let nodes = count.to_string();
    let all: Vec<HostProcess> = (0..count)
        .map(|host| start(hosts, host, &nodes, options))
        .collect();
    all.into_iter()
        .map(|mut node| (node.wait(LIMIT), node.output()))
        .collect()
}

fn named(count: usize) -> Vec<HostSetup> {
    let setup = |number| HostSetup::new(&format!("node{number}"), NAMES);
    (0..count).map(setup).collect()
}

#[test]
fn healthy_machines_pass_every_check() {
    let Some(hosts) = Hosts::start(named(3)) else {
        return;
    };
    // Like a job whose port is open in a firewall.
    for (code, output) in check(&hosts, 3, &["--workers-port=29600-29609"]) {
        assert_eq!(code, 0, "{output}");
        for text in ["10.8.8.1", "10.8.8.2", "10.8.8.3", "All checks passed."] {
            assert!(output.contains(text), "{text}: {output}");
        }
    }
}

#[test]
fn names_that_lead_to_loopback_are_a_warning() {
    let localhost = || HostSetup::new("localhost", "127.0.0.1 localhost\n");
    let Some(hosts) = Hosts::start([localhost(), localhost()]) else {
        return;
    };
    for (code, output) in check(&hosts, 2, &[]) {
        assert_eq!(code, 0, "{output}");
        for text in [
            "warning: nodes 0, 1 have the same host name \"localhost\"",
            "warning: the host name of node 0 (localhost) leads to 127.0.0.1 there",
            "Let the name lead to 10.8.8.1 on all nodes",
            "warning: the host name of node 1 (localhost) leads to 127.0.0.1 there",
        ] {
            assert!(output.contains(text), "{text}: {output}");
        }
    }
}

#[test]
fn stale_and_unknown_names_are_a_warning() {
    let setups = [
        HostSetup::new("node0", "127.0.0.1 localhost\n10.8.8.1 node0\n"),
        HostSetup::new(
            "node1",
            "127.0.0.1 localhost\n192.168.77.5 node0\n10.8.8.2 node1\n",
        ),
    ];
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    for (code, output) in check(&hosts, 2, &[]) {
        assert_eq!(code, 0, "{output}");
        for text in [
            "finds another address for",
            "cannot look up the host name of",
        ] {
            assert!(output.contains(text), "{text}: {output}");
        }
    }
}

#[test]
fn a_host_whose_own_name_leads_to_loopback_is_reached() {
    let setups = [
        HostSetup::new("node0", "127.0.0.1 localhost\n127.0.1.1 node0\n"),
        HostSetup::new("node1", NAMES),
    ];
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    for (code, output) in check(&hosts, 2, &["--rdzv-endpoint=node0:29500"]) {
        assert_eq!(code, 0, "{output}");
        let text = "the host name of node 0 (node0) leads to 127.0.1.1 there";
        assert!(output.contains(text), "{output}");
        assert!(output.contains("  0     node0  10.8.8.1 "), "{output}");
    }
}

#[test]
fn an_unreachable_pair_fails_on_both_nodes_only() {
    let mut setups = named(3);
    // The network between two of the nodes is cut; both reach the host.
    setups[1] = setups[1]
        .clone()
        .with_script("ip route add blackhole 10.8.8.3/32");
    setups[2] = setups[2]
        .clone()
        .with_script("ip route add blackhole 10.8.8.2/32");
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    let ended = check(&hosts, 3, &[]);
    let codes: Vec<i32> = ended.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [0, 1, 1], "{ended:?}");
    for (_, output) in ended {
        assert_eq!(output.matches("\nFAILED: ").count(), 2, "{output}");
        assert!(output.contains("cannot reach node"), "{output}");
        assert!(
            output.contains("Open the port between the nodes (--workers-port fixes it)"),
            "{output}"
        );
    }
}

#[test]
fn a_missing_node_and_a_missing_host_have_their_own_exit_code() {
    let Some(hosts) = Hosts::start(named(2)) else {
        return;
    };
    let mut alone = start(&hosts, 0, "2", &["--timeout=8s"]);
    assert_eq!(alone.wait(LIMIT), 3, "{}", alone.output());
    let text = "1 of 2 nodes of run \"none\" have reported at 10.8.8.1:29500";
    assert!(alone.output().contains(text), "{}", alone.output());
    let mut alone = start(&hosts, 1, "2", &["--timeout=8s"]);
    assert_eq!(alone.wait(LIMIT), 3, "{}", alone.output());
}

#[test]
fn a_job_that_runs_at_the_endpoint_is_named_and_left_alone() {
    let Some(hosts) = Hosts::start(named(2)) else {
        return;
    };
    let mut command = hosts.command(0, c10d());
    command.env("PET_NO_SCHEDULER", "1").args([
        "run",
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.8.8.1:29500",
        "--rdzv-id=theirs",
        "--no-python",
        "true",
    ]);
    let _job = hosts.start_process("job", &mut command);
    let keys = || {
        let mut command = hosts.command(1, c10d());
        command.args(["store", "keys", "--connect=10.8.8.1:29500", "--timeout=20s"]);
        let mut process = hosts.start_process("keys", &mut command);
        assert_eq!(process.wait(LIMIT), 0, "{}", process.output());
        process.output()
    };
    let before = keys();
    for host in 0..2 {
        let mut doctor = start(&hosts, host, "2", &["--rdzv-id=mine"]);
        assert_eq!(doctor.wait(LIMIT), 1, "{}", doctor.output());
        let output = doctor.output();
        let text = "a store of another job, \"theirs\"";
        assert!(output.contains(text), "{output}");
        assert_eq!(output.contains("(process "), host == 0, "{output}");
    }
    let of_doctor = |keys: &str| keys.lines().filter(|key| key.contains("doctor")).count();
    assert_eq!(of_doctor(&keys()), of_doctor(&before));
}
