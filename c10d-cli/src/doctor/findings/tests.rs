use crate::doctor::facts::{Address, Clock, Link};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Node `number` at 10.8.8.(number + 1), as its peers of `count` see it if all is well.
fn node(number: usize, count: usize) -> Node {
    let address = |number: usize| format!("10.8.8.{}", number + 1);
    let link = |to: usize| Link {
        to,
        took_us: Ok(300),
        name_leads_to: Some(vec![ip(&address(to))]),
    };
    Node {
        facts: NodeFacts {
            host: format!("node{number}"),
            node_rank: None,
            nodes: (count, count),
            version: "0.3.0".to_owned(),
            address: Address {
                host: address(number),
                port: 4711,
            },
            name: format!("node{number}"),
            name_leads_to: vec![ip(&address(number))],
            open_files: Some(1 << 20),
            shared_memory: Some(8 << 30),
            ephemeral_ports: Some((32768, 60999)),
            ports_at_risk: Vec::new(),
        },
        measured: Some(Measured {
            round_trip_us: Some(200),
            clock: (number > 0).then_some(Clock {
                ahead_ms: 3,
                within_ms: 1,
            }),
            links: targets(number, count).into_iter().map(link).collect(),
        }),
    }
}

fn nodes(count: usize) -> Vec<Node> {
    (0..count).map(|number| node(number, count)).collect()
}

/// The findings of three nodes, after `change` has changed the second node.
fn found(change: impl FnOnce(&mut Node)) -> Vec<Finding> {
    let mut nodes = nodes(3);
    change(&mut nodes[1]);
    findings(&nodes)
}

fn measured(node: &mut Node) -> &mut Measured {
    node.measured.as_mut().expect("it has measured")
}

#[track_caller]
fn assert_one(found: &[Finding], is_failure: bool, nodes: &[usize], problem: &str, cure: &str) {
    let [finding] = found else {
        panic!("{found:?}");
    };
    assert_eq!(finding.is_failure, is_failure, "{finding:?}");
    assert_eq!(finding.nodes, nodes, "{finding:?}");
    assert_eq!(finding.problem, problem);
    assert!(finding.cure.contains(cure), "{finding:?}");
}

#[test]
fn healthy_nodes_have_no_findings() {
    for count in [1, 2, 32, 33, 100] {
        assert_eq!(findings(&nodes(count)), [], "{count}");
    }
    assert_eq!(findings(&[]), []);
}

#[test]
fn each_node_of_a_large_job_tries_the_host_and_eight_neighbours() {
    assert_eq!(targets(1, 3), [0, 2]);
    assert_eq!(targets(31, 32).len(), 31);
    assert_eq!(targets(0, 33), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(targets(30, 33), [0, 31, 32, 1, 2, 3, 4, 5]);
    // Every node is tried.
    for count in [33, 40, 1000] {
        let mut tried: Vec<usize> = (0..count).flat_map(|own| targets(own, count)).collect();
        tried.sort_unstable();
        tried.dedup();
        assert_eq!(tried.len(), count);
    }
}

#[test]
fn an_unreachable_pair_is_a_failure_of_both_nodes() {
    let found = found(|node| {
        measured(node).links[1].took_us = Err("connection refused\x1b".to_owned());
    });
    let problem = "node 1 (node1) cannot reach node 2 (node2) at 10.8.8.3 port 4711: connection refused\\u{1b}";
    assert_one(&found, true, &[1, 2], problem, "--local-addr");
}

#[test]
fn nodes_with_other_options_fail() {
    let found_nodes = found(|node| node.facts.nodes = (2, 2));
    let problem = "node 1 has another --nnodes than node 0, which has 3:3";
    assert_one(&found_nodes, true, &[1], problem, "same --nnodes");

    let mut nodes = nodes(3);
    for (node, rank) in nodes.iter_mut().zip([0, 2, 2]) {
        node.facts.node_rank = Some(rank);
    }
    let problem = "nodes 1, 2 have the same --node-rank 2";
    assert_one(
        &findings(&nodes),
        true,
        &[1, 2],
        problem,
        "its own --node-rank",
    );
}

#[test]
fn another_version_is_a_warning() {
    let found = found(|node| node.facts.version = "0.2.0".to_owned());
    let problem = "node 1 runs c10d 0.2.0, and node 0 runs 0.3.0";
    assert_one(&found, false, &[1], problem, "the same release");
}

#[test]
fn a_clock_that_differs_is_a_warning() {
    for (ahead_ms, within_ms, problem) in [
        (1_000, 1, None),
        (
            -62_500,
            2,
            Some("the clock of node 1 (node1) is 62.5 s behind that of node 0"),
        ),
        (
            9_000,
            2,
            Some("the clock of node 1 (node1) is 9.0 s ahead of that of node 0"),
        ),
        // A slow store proves nothing.
        (3_000, 2_500, None),
        (
            i64::MIN,
            0,
            Some("the clock of node 1 (node1) is 9223372036854776.0 s behind that of node 0"),
        ),
    ] {
        let found = found(|node| {
            measured(node).clock = Some(Clock {
                ahead_ms,
                within_ms,
            });
        });
        match problem {
            Some(problem) => assert_one(&found, false, &[1], problem, "NTP"),
            None => assert_eq!(found, [], "{ahead_ms}"),
        }
    }
}

#[test]
fn a_name_that_leads_to_loopback_is_a_warning() {
    let found = found(|node| node.facts.name_leads_to = vec![ip("127.0.1.1")]);
    let problem = "the host name of node 1 (node1) leads to 127.0.1.1 there, which gloo and torchrun's nodes would advertise";
    assert_one(
        &found,
        false,
        &[1],
        problem,
        "let the name lead to 10.8.8.2 on all nodes",
    );
}

#[test]
fn a_name_that_other_nodes_do_not_know_is_a_warning() {
    let mut unknown = nodes(3);
    for other in [0, 2] {
        let links = &mut measured(&mut unknown[other]).links;
        let link = links.iter_mut().find(|link| link.to == 1);
        link.expect("it tries node 1").name_leads_to = None;
    }
    let problem = "nodes 0, 2 cannot look up the host name of node 1 (node1)";
    assert_one(&findings(&unknown), false, &[0, 2, 1], problem, "10.8.8.2");

    let mut stale = nodes(2);
    measured(&mut stale[0]).links[0].name_leads_to = Some(vec![ip("192.168.77.5")]);
    let problem = "node 0 finds another address for the host name of node 1 (node1)";
    assert_one(&findings(&stale), false, &[0, 1], problem, "DNS");
}

#[test]
fn names_on_one_machine_are_not_judged() {
    let mut nodes = nodes(2);
    for node in &mut nodes {
        node.facts.address.host = "127.0.0.1".to_owned();
        node.facts.name_leads_to = vec![ip("127.0.1.1")];
    }
    assert_eq!(findings(&nodes), []);
}

#[test]
fn equal_names_are_a_warning() {
    let found = found(|node| node.facts.host = "node0".to_owned());
    let problem = "nodes 0, 1 have the same host name \"node0\"";
    assert_one(&found, false, &[0, 1], problem, "its own host name");
}

#[test]
fn limits_are_checked() {
    let files = found(|node| node.facts.open_files = Some(100));
    let problem = "node 1 (node1) may open 100 files, and a store for 3 nodes needs about 112";
    assert_one(&files, true, &[1], problem, "LimitNOFILE");
    let files = found(|node| node.facts.open_files = None);
    assert_eq!(files, []);

    let memory = found(|node| node.facts.shared_memory = Some(64 << 20));
    let problem = "node 1 (node1) has 64 MiB of shared memory";
    assert_one(&memory, false, &[1], problem, "--shm-size");

    let ports = found(|node| node.facts.ports_at_risk = vec![("--workers-port".to_owned(), 40000)]);
    let problem = "port 40000 (--workers-port) of node 1 (node1) can be taken by an outgoing connection of the system (32768-60999)";
    assert_one(&ports, false, &[1], problem, "ip_local_reserved_ports");
}

#[test]
fn failures_come_first_and_a_node_without_measurements_is_left_out() {
    let mut nodes = nodes(3);
    nodes[0].facts.shared_memory = Some(0);
    nodes[2].facts.open_files = Some(0);
    nodes[2].measured = None;
    let found = findings(&nodes);
    let kinds: Vec<bool> = found.iter().map(|finding| finding.is_failure).collect();
    assert_eq!(kinds, [true, true, false], "{found:?}");
    let silent = &found[..2];
    assert!(
        silent
            .iter()
            .any(|it| it.problem.contains("did not finish")),
        "{found:?}"
    );
}
