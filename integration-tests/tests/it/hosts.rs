//! The hosts that other tests use: their names, addresses and processes.

use std::time::Duration;

use integration_tests::hosts::{HostSetup, Hosts};
use integration_tests::launcher::c10d;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn hosts_have_their_own_names_and_reach_each_other() {
    let extra = "ip addr add 192.168.77.5/32 dev lo";
    let setups = [
        HostSetup::new("node0", "127.0.0.1 localhost node0\n").with_script(extra),
        HostSetup::new("node1", "10.8.8.1 node0\n").with_own_pids(),
    ];
    let Some(hosts) = Hosts::start(setups) else {
        return;
    };
    let mut command = hosts.command(0, c10d());
    command.args(["store", "serve", "--host", "10.8.8.1"]);
    let mut server = hosts.start_process("server", &mut command);
    let mut command = hosts.command(1, "sh");
    let ping = format!(
        "hostname; echo pid $$; {} store ping --connect node0:29500",
        c10d().display()
    );
    let mut client = hosts.start_process("client", command.args(["-c", &ping]));
    let code = client.wait(LIMIT);
    let output = client.output();
    assert_eq!(code, 0, "{output}");
    assert!(output.starts_with("node1\npid 1\n"), "{output}");
    let mut command = hosts.command(0, "ip");
    let mut addresses = hosts.start_process("addresses", command.args(["-4", "addr"]));
    assert_eq!(addresses.wait(LIMIT), 0);
    for address in ["192.168.77.5/32", "10.8.8.1/24"] {
        assert!(addresses.output().contains(address), "{address}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait(LIMIT), 0, "{}", server.output());
}
