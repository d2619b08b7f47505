//! The address of the workers' store that the workers of a node get, on hosts that do not reach all addresses of each
//! other.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use integration_tests::hosts::{HostProcess, HostSetup, Hosts};
use integration_tests::launcher::{c10d, free_address};
use integration_tests::torch;

const LIMIT: Duration = Duration::from_secs(120);

/// Forwards connections to argument 2, an address with a port, from a port of all interfaces, argument 1.
const FORWARDER: &str = "\
import socket, sys, threading
host, port = sys.argv[2].rsplit(':', 1)
server = socket.create_server(('', int(sys.argv[1])))
def copy(a, b):
    try:
        while data := a.recv(65536): b.sendall(data)
    except OSError: pass
    for it in (a, b):
        try: it.shutdown(socket.SHUT_RDWR)
        except OSError: pass
print('forwarding', flush=True)
while True:
    near, _ = server.accept()
    try: far = socket.create_connection((host, int(port)))
    except OSError:
        near.close()
        continue
    for pair in ((near, far), (far, near)): threading.Thread(target=copy, args=pair, daemon=True).start()
";

/// Returns the command of each worker, which prints where its store is and sends it a request.
fn worker() -> String {
    format!(
        "echo M=$MASTER_ADDR:$MASTER_PORT G=$GLOO_SOCKET_IFNAME S=$C10D_MASTER_ADDR; \
         {} store ping --timeout 10s",
        c10d().display()
    )
}

/// Starts `c10d run` on one of two nodes.
fn node(
    hosts: &Hosts,
    host: usize,
    endpoint: &str,
    options: &[&str],
    program: &str,
) -> HostProcess {
    let mut command = node_command(hosts, host, endpoint, options, program);
    hosts.start_process(&format!("node{host}"), &mut command)
}

fn node_command(
    hosts: &Hosts,
    host: usize,
    endpoint: &str,
    options: &[&str],
    program: &str,
) -> Command {
    let mut command = hosts.command(host, c10d());
    command.args([
        "run",
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "job",
    ]);
    command.args(["--rdzv-endpoint", endpoint]);
    // A later value replaces this one.
    command
        .args(["--rdzv-conf", "join_timeout=40,read_timeout=40"])
        .args(options);
    command.args(["--no-python", "sh", "-c", program]);
    command.env_remove("GLOO_SOCKET_IFNAME");
    command
}

/// Waits for both nodes, which must succeed, and returns their outputs.
fn outputs(nodes: [HostProcess; 2]) -> [String; 2] {
    let ended = nodes.map(|mut node| (node.wait(LIMIT), node.output()));
    assert!(ended.iter().all(|(code, _)| *code == 0), "{ended:#?}");
    ended.map(|(_, output)| output)
}

fn assert_has(output: &str, parts: &[&str]) {
    for part in parts {
        assert!(output.contains(part), "{part:?} is not in:\n{output}");
    }
}

/// Host 0 advertises an address that no other host reaches.
fn hosts_with_an_unreachable_address() -> Option<Hosts> {
    let foreign = "ip addr add 192.168.77.5/32 dev lo";
    Hosts::start([
        HostSetup::new("node0", "127.0.0.1 localhost\n").with_script(foreign),
        HostSetup::new("node1", "127.0.0.1 localhost\n"),
    ])
}

/// The address of a gateway, which this host does not have, and which does not work in this network.
#[test]
fn a_local_address_of_a_gateway_is_replaced() {
    let Some(hosts) = hosts_with_an_unreachable_address() else {
        return;
    };
    let own = ["--local-addr", "203.0.113.9"];
    for endpoint in ["10.8.8.1:29500", "10.8.8.2:29500"] {
        let nodes = [
            node(&hosts, 0, endpoint, &own, &worker()),
            node(&hosts, 1, endpoint, &[], &worker()),
        ];
        let [first, second] = outputs(nodes);
        assert_has(&first, &["M=10.8.8.1:"]);
        assert_has(&second, &["M=10.8.8.1:", "does not answer at 203.0.113.9:"]);
    }
}

/// docs/spec/rendezvous.md, BOOT 15.
#[test]
fn an_advertised_address_that_does_not_work_is_replaced() {
    let Some(hosts) = hosts_with_an_unreachable_address() else {
        return;
    };
    let options = ["--workers-port", "29600-29609"];
    let own = [
        "--local-addr",
        "192.168.77.5",
        "--workers-port",
        "29600-29609",
    ];
    // The store of the rendezvous is on the host with rank 0, and on the other host.
    for endpoint in ["10.8.8.1:29500", "10.8.8.2:29500"] {
        let nodes = [
            node(&hosts, 0, endpoint, &own, &worker()),
            node(&hosts, 1, endpoint, &options, &worker()),
        ];
        let [first, second] = outputs(nodes);
        assert_has(&first, &["M=192.168.77.5:29600"]);
        assert_has(&second, &["M=10.8.8.1:29600"]);
        let line = second
            .lines()
            .find(|line| line.contains("does not answer at"));
        let line = line.unwrap_or_else(|| panic!("no line about it:\n{second}"));
        assert_has(line, &["192.168.77.5:29600", "10.8.8.1:29600", "INFO"]);
    }
}

#[test]
fn relays_with_a_secret_use_the_address_that_works() {
    let Some(hosts) = hosts_with_an_unreachable_address() else {
        return;
    };
    let secret = hosts.folder().join("secret");
    let made = format!(
        "umask 077; {} secret new > {}",
        c10d().display(),
        secret.display()
    );
    let made = Command::new("sh").args(["-c", &made]).status();
    assert!(made.expect("sh can be run").success());
    let secret = secret.to_str().expect("a text");
    let options = ["--relay", "--secret-file", secret];
    let own = [
        "--relay",
        "--secret-file",
        secret,
        "--local-addr",
        "192.168.77.5",
    ];
    let endpoint = "10.8.8.1:29500";
    let nodes = [
        node(&hosts, 0, endpoint, &own, &worker()),
        node(&hosts, 1, endpoint, &options, &worker()),
    ];
    let [_, second] = outputs(nodes);
    assert_has(&second, &["M=127.0.0.", "S=10.8.8.1"]);
}

/// Host 1 reaches host 0 only through host 2, which forwards these ports.
fn behind_a_gateway(ports: &[(u16, &str)]) -> Option<(Hosts, Vec<HostProcess>)> {
    let is_there = Command::new("python3")
        .arg("-V")
        .stdout(Stdio::null())
        .status();
    if !is_there.is_ok_and(|status| status.success()) {
        torch::print_skipped("python3 for the forwarder (LEFT OUT)");
        return None;
    }
    let hosts = Hosts::start([
        HostSetup::new("node0", "127.0.0.1 localhost\n"),
        HostSetup::new("node1", "127.0.0.1 localhost\n")
            .with_script("ip route add unreachable 10.8.8.1/32"),
        HostSetup::new("gateway", "127.0.0.1 localhost\n"),
    ])?;
    let forwarders = ports.iter().map(|(port, target)| {
        let mut command = hosts.command(2, "python3");
        command.args(["-c", FORWARDER, &port.to_string(), target]);
        let forwarder = hosts.start_process(&format!("forwarder{port}"), &mut command);
        forwarder.wait_for_output(LIMIT, |output| output.contains("forwarding"));
        forwarder
    });
    let forwarders = forwarders.collect();
    Some((hosts, forwarders))
}

#[test]
fn workers_behind_address_translation_get_the_endpoint_of_their_node() {
    let Some((hosts, _forwarders)) = behind_a_gateway(&[(30678, "10.8.8.1:29500")]) else {
        return;
    };
    let options = ["--workers-store", "rendezvous"];
    let nodes = [
        node(&hosts, 0, "10.8.8.1:29500", &options, &worker()),
        node(&hosts, 1, "10.8.8.3:30678", &options, &worker()),
    ];
    let [first, second] = outputs(nodes);
    assert_has(&first, &["M=10.8.8.1:29500"]);
    assert_has(&second, &["M=10.8.8.3:30678"]);
}

/// The forwarder accepts connections that lead nowhere after the exit of node 0, so asking node 0 again would last until a
/// timeout.
#[test]
fn the_last_node_to_succeed_does_not_ask_a_store_that_has_ended() {
    let Some((hosts, _forwarders)) = behind_a_gateway(&[(30678, "10.8.8.1:29500")]) else {
        return;
    };
    let options = |rank| {
        let options = ["--rdzv-backend", "static", "--node-rank", rank];
        [&options[..], &["--rdzv-conf", "timeout=40"]].concat()
    };
    let nodes = [
        node(&hosts, 0, "10.8.8.1:29500", &options("0"), "true"),
        node(&hosts, 1, "10.8.8.3:30678", &options("1"), "sleep 1"),
    ];
    for output in outputs(nodes) {
        assert!(!output.contains("not waiting"), "{output}");
    }
}

#[test]
fn a_given_workers_port_that_the_gateway_forwards_is_used() {
    let ports = [(30678, "10.8.8.1:29500"), (29501, "10.8.8.1:29501")];
    let Some((hosts, _forwarders)) = behind_a_gateway(&ports) else {
        return;
    };
    let options = ["--workers-port", "29501"];
    let nodes = [
        node(&hosts, 0, "10.8.8.1:29500", &options, &worker()),
        node(&hosts, 1, "10.8.8.3:30678", &options, &worker()),
    ];
    let [first, second] = outputs(nodes);
    assert_has(&first, &["M=10.8.8.1:29501"]);
    assert_has(&second, &["M=10.8.8.3:29501"]);
}

/// docs/spec/rendezvous.md, BOOT 16.
#[test]
fn a_node_that_reaches_no_address_fails_before_workers_start() {
    let Some((hosts, _forwarders)) = behind_a_gateway(&[(30678, "10.8.8.1:29500")]) else {
        return;
    };
    let options = [
        "--workers-port",
        "29501",
        "--rdzv-conf",
        "join_timeout=6,read_timeout=5",
    ];
    let _first = node(&hosts, 0, "10.8.8.1:29500", &options, &worker());
    let mut second = node(&hosts, 1, "10.8.8.3:30678", &options, &worker());
    let code = second.wait(LIMIT);
    let output = second.output();
    assert_eq!(code, 1, "{output}");
    let error = output.lines().find(|line| line.starts_with("c10d: "));
    let error = error.unwrap_or_else(|| panic!("no error:\n{output}"));
    let parts = [
        "node0",
        "10.8.8.1:29501 (",
        "10.8.8.3:29501 (refused)",
        "--workers-port",
        "--local-addr",
    ];
    assert_has(error, &parts);
    assert!(!output.contains("M="), "a worker has started:\n{output}");
}

/// Both hosts have the address of the endpoint, like hosts behind a virtual address, so each serves a store.
#[test]
fn a_store_that_no_other_host_reaches_is_reported_at_the_timeout() {
    let address = "ip addr add 10.8.8.100/32 dev lo";
    let setup = |name| HostSetup::new(name, "127.0.0.1 localhost\n").with_script(address);
    let Some(hosts) = Hosts::start(["node0", "node1"].map(setup)) else {
        return;
    };
    let options = ["--rdzv-conf", "join_timeout=4,read_timeout=4"];
    let both = [0, 1].map(|host| node(&hosts, host, "10.8.8.100:29500", &options, &worker()));
    for mut node in both {
        assert_eq!(node.wait(LIMIT), 1, "{}", node.output());
        let output = node.output();
        assert_has(
            &output,
            &[
                "no other host has connected to the store at 10.8.8.100:29500: set is_host ",
                "has this address\n",
            ],
        );
        assert!(!output.contains("M="), "a worker has started:\n{output}");
    }
}

/// Runs a job of one node on this machine, and returns its exit code and output.
fn alone(options: &[&str], program: &str) -> (Option<i32>, String) {
    let mut command = Command::new(c10d());
    command.args(["run", "--nnodes", "1", "--rdzv-backend", "c10d"]);
    command
        .args(["--rdzv-endpoint", "127.0.0.1:0"])
        .args(options);
    command.args(["--no-python", "sh", "-c", program]);
    let output = command.output().expect("c10d can be run");
    let text = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Returns a listener and its port. The next port is free, and neither the system nor another test takes it.
fn taken_port() -> (TcpListener, u16) {
    loop {
        let (taken, next) = (free_address(), free_address());
        if next.port() == taken.port() + 1
            && let Ok(listener) = TcpListener::bind(taken)
        {
            return (listener, taken.port());
        }
    }
}

/// docs/spec/rendezvous.md, BOOT 18.
#[test]
fn the_first_free_port_of_a_range_is_taken() {
    let (_listener, taken) = taken_port();
    let range = format!("{taken}-{}", taken + 1);
    let (code, output) = alone(&["--workers-port", &range], &worker());
    assert_eq!(code, Some(0), "{output}");
    assert_has(
        &output,
        &[&format!("M=127.0.0.1:{} G=\n", taken + 1).replace(" G=\n", "")],
    );
    for range in [taken.to_string(), format!("{taken}-{taken}")] {
        let (code, output) = alone(&["--workers-port", &range], &worker());
        assert_eq!(code, Some(1), "{output}");
        assert_has(
            &output,
            &[
                &format!("on port {taken} (--workers-port)"),
                "--workers-store rendezvous",
            ],
        );
        assert!(!output.contains("M="), "a worker has started:\n{output}");
    }
}

/// docs/spec/rendezvous.md, BOOT 18.
#[test]
fn a_worker_that_serves_the_store_gets_the_given_port() {
    let (_listener, taken) = taken_port();
    let range = format!("{taken}-{}", taken + 1);
    let options = ["--workers-port", &range, "--rdzv-conf", "share_store=0"];
    let (code, output) = alone(&options, "echo M=$MASTER_PORT");
    assert_eq!(code, Some(0), "{output}");
    assert_has(&output, &[&format!("M={}", taken + 1)]);
}

/// Two hosts with the name `localhost`, like containers without a name.
fn nameless_hosts() -> Option<Hosts> {
    let setup = || HostSetup::new("localhost", "127.0.0.1 localhost\n");
    Hosts::start([setup(), setup()])
}

#[test]
fn workers_of_nameless_hosts_get_an_interface_for_gloo_unless_they_have_one() {
    let Some(hosts) = nameless_hosts() else {
        return;
    };
    let endpoint = "10.8.8.1:29500";
    let program = worker();
    let both = [0, 1].map(|host| node(&hosts, host, endpoint, &[], &program));
    for output in outputs(both) {
        assert_has(&output, &["G=eth0"]);
    }
    // A user's value stays.
    let both = [0, 1].map(|host| {
        let mut command = hosts.command(host, "env");
        command.args(["GLOO_SOCKET_IFNAME=lo", c10d().to_str().expect("a text")]);
        command.args([
            "run",
            "--nnodes",
            "2",
            "--rdzv-backend",
            "c10d",
            "--rdzv-id",
            "other",
        ]);
        command.args([
            "--rdzv-endpoint",
            endpoint,
            "--no-python",
            "sh",
            "-c",
            &program,
        ]);
        hosts.start_process(&format!("given{host}"), &mut command)
    });
    for output in outputs(both) {
        assert_has(&output, &["G=lo"]);
        assert!(!output.contains("set GLOO_SOCKET_IFNAME"), "{output}");
    }
    // A job of one node does not need the variable.
    let mut command = hosts.command(0, c10d());
    command.args(["run", "--standalone", "--no-python", "sh", "-c", &program]);
    command.env_remove("GLOO_SOCKET_IFNAME");
    let mut single = hosts.start_process("single", &mut command);
    assert_eq!(single.wait(LIMIT), 0, "{}", single.output());
    assert_has(&single.output(), &["G= "]);
}

/// The script of a rank of a gloo group.
const GLOO_RANK: &str = "\
import datetime, torch.distributed as dist
dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=15))
dist.barrier()
print('passed the barrier', flush=True)
dist.destroy_process_group()
";

/// Writes a program that runs a rank in real PyTorch, with this variable for gloo.
fn gloo_program(folder: &Path, variable: &str) -> String {
    let script = folder.join("rank.py");
    fs::write(&script, GLOO_RANK).expect("a script");
    let python = torch::python();
    let python = python.get_program().to_string_lossy().into_owned();
    format!("{variable} exec {python} {}", script.display())
}

#[test]
#[ignore = "needs PyTorch, see integration-tests/README.md"]
fn gloo_of_nameless_hosts_forms_a_group() {
    // The texts of other releases differ.
    if !torch::Release::tested().allows(torch::Feature::ErrorTexts) {
        return;
    }
    let Some(hosts) = nameless_hosts() else {
        return;
    };
    let program = gloo_program(hosts.folder(), "");
    let both = [0, 1].map(|host| node(&hosts, host, "10.8.8.1:29500", &[], &program));
    for output in outputs(both) {
        assert_has(&output, &["passed the barrier"]);
    }
}

#[test]
#[ignore = "needs PyTorch, see integration-tests/README.md"]
fn gloo_that_advertises_loopback_is_explained() {
    // The texts of other releases differ.
    if !torch::Release::tested().allows(torch::Feature::ErrorTexts) {
        return;
    }
    let Some(hosts) = nameless_hosts() else {
        return;
    };
    for (variable, parts) in [
        (
            "GLOO_SOCKET_IFNAME=lo",
            &[
                "gloo advertises loopback",
                "rank 0 on node ",
                "rank 1 on node ",
                "GLOO_SOCKET_IFNAME=eth0",
            ][..],
        ),
        (
            "GLOO_SOCKET_IFNAME=^lo",
            &["GLOO_SOCKET_IFNAME has ^lo", "GLOO_SOCKET_IFNAME=eth0"],
        ),
    ] {
        let program = gloo_program(hosts.folder(), variable);
        let both = [0, 1].map(|host| node(&hosts, host, "10.8.8.1:29500", &[], &program));
        let outputs = both.map(|mut node| {
            assert_eq!(node.wait(LIMIT), 1, "{}", node.output());
            node.output()
        });
        // The node that has failed first explains the failure.
        let is_explained = |output: &String| parts.iter().all(|part| output.contains(part));
        assert!(
            outputs.iter().any(is_explained),
            "{}\n----\n{}",
            outputs[0],
            outputs[1]
        );
    }
}

#[test]
#[ignore = "needs PyTorch, see integration-tests/README.md"]
fn the_name_that_torchrun_publishes_is_replaced_where_it_does_not_work() {
    if !torch::Release::tested().allows(torch::Feature::AwareTimes) {
        return;
    }
    let setups = [
        HostSetup::new(
            "node0",
            "127.0.0.1 localhost\n127.0.1.1 node0.example node0\n",
        ),
        // An old address.
        HostSetup::new(
            "node1",
            "127.0.0.1 localhost\n10.8.8.9 node0.example node0\n",
        ),
    ];
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    let python = torch::python();
    let mut command = hosts.command(0, python.get_program());
    command.args([
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--rdzv-backend",
        "c10d",
    ]);
    command.args([
        "--rdzv-id",
        "job",
        "--rdzv-endpoint",
        "10.8.8.1:29500",
        "--rdzv-conf",
        "is_host=1",
    ]);
    command.args(["--no-python", "sh", "-c", "echo M=$MASTER_ADDR; sleep 3"]);
    let first = hosts.start_process("node0", &mut command);
    let second = node(&hosts, 1, "10.8.8.1:29500", &[], &worker());
    let [first, second] = outputs([first, second]);
    assert_has(&first, &["M=node0"]);
    assert_has(&second, &["M=10.8.8.1:", "does not answer at node0"]);
}
