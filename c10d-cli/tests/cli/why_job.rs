//! One answer for a job, whichever of its two stores is asked: the store where its nodes meet, or its workers'
//! store.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pages::{Pages, stuck_report};
use crate::process::{Ended, Running, Server, refusing_address, run, until};
use crate::run_explain::{Job, WAITS_FOR_RANK_1};

fn why(address: SocketAddr, words: &[&str]) -> Ended {
    let address = address.to_string();
    run([&["why", "--connect", &address], words].concat())
}

/// The answer of the rendezvous of workers that use the store at `address`.
fn rendezvous_of(addresses: &[&str]) -> Value {
    let stores = addresses
        .iter()
        .map(|address| json!({ "run_id": "job", "round": 3, "address": address }));
    let stores: Vec<Value> = stores.collect();
    json!({ "headline": "The workers use another store.", "workers_stores": stores })
}

#[test]
fn the_rendezvous_leads_to_the_store_of_the_workers() {
    let (rendezvous, workers) = (Pages::start(), Pages::start());
    rendezvous.set("/why.json", &rendezvous_of(&[&workers.address.to_string()]));
    workers.set("/why.json", &stuck_report());
    let ended = why(rendezvous.address, &[]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(4), ""),
        "{ended:?}"
    );
    let text = ended.stdout_text();
    assert!(text.starts_with("Waiting for rank 2 (1 of 4)"), "{text}");
    let store = format!(
        "\nThis is the store of the workers of run \"job\", {}, which the rendezvous at {} names.\n",
        workers.address, rendezvous.address
    );
    assert!(text.ends_with(&store), "{text}");
    let ended = why(rendezvous.address, &["--json"]);
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let json: Value = serde_json::from_str(ended.stdout_text()).unwrap();
    assert_eq!(json["store"], workers.address.to_string());
    assert_eq!(json["a_field_of_a_newer_version"], 7);
}

#[test]
fn a_workers_store_that_does_not_answer_is_named_with_exit_code_3() {
    let (_kept, gone) = refusing_address();
    let rendezvous = Pages::start();
    rendezvous.set("/why.json", &rendezvous_of(&[&gone]));
    for words in [&[][..], &["--json"]] {
        let ended = why(rendezvous.address, words);
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(
            ended
                .stdout_text()
                .contains("The workers use another store.")
        );
        let text = format!(
            "the workers of run \"job\" use the store {gone}, which the rendezvous at {} names, and it cannot be \
             asked: cannot connect to {gone}",
            rendezvous.address
        );
        assert!(ended.stderr.contains(&text), "{}", ended.stderr);
    }
    // The store of a finished run is skipped.
    let workers = Pages::start();
    workers.set("/why.json", &stuck_report());
    let both = [gone, workers.address.to_string()];
    rendezvous.set("/why.json", &rendezvous_of(&[&both[0], &both[1]]));
    assert_eq!(why(rendezvous.address, &[]).code, Some(4));
}

#[test]
fn a_node_that_is_absent_is_missing_at_the_endpoint() {
    let job = Job::new();
    let server = Server::start();
    let endpoint = format!("--rdzv-endpoint={}", server.address);
    let options = [
        "--nnodes=2",
        "--rdzv-backend=c10d",
        "--rdzv-conf=is_host=0",
        "--local-addr=127.0.0.1",
        "--explain-after=1s",
        &endpoint,
    ];
    let first = Running::start(job.command(&options, WAITS_FOR_RANK_1, "first"));
    until("a node that waits", || {
        why(server.address, &[]).code == Some(4)
    });
    let ended = why(server.address, &[]);
    let text = ended.stdout_text();
    let pid = first.id();
    let named = format!("of run \"none\": 127.0.0.1 (pid {pid}).\n");
    assert!(text.starts_with("Waiting for 1 node for "), "{text}");
    assert!(
        text.contains("1 of 2 nodes has joined round 0 of run \"none\""),
        "{text}"
    );
    assert!(text.ends_with(&named), "{text}");

    // With both nodes the same endpoint answers for the ranks.
    let second = Running::start(job.command(&options, WAITS_FOR_RANK_1, "second"));
    // In its first seconds rank 1 reads its program.
    let mut ended = why(server.address, &[]);
    until("rank 0 waits for rank 1, which is quiet", || {
        ended = why(server.address, &[]);
        ended.code == Some(4) && ended.stdout_text().starts_with("Waiting for rank 1 ")
    });
    let store = format!(", which the rendezvous at {} names.\n", server.address);
    assert!(ended.stdout_text().ends_with(&store), "{ended:?}");
    job.go();
    assert_eq!([first, second].map(|node| node.end().code), [Some(0); 2]);
}

#[test]
fn a_node_rank_that_is_absent_is_missing_at_the_static_endpoint() {
    let job = Job::new();
    let server = Server::start();
    let port = server.address.port().to_string();
    let options = [
        "--nnodes=3",
        "--node-rank=1",
        "--master-addr=127.0.0.1",
        "--master-port",
        &port,
    ];
    let node = Running::start(job.command(&options, "exit 0", "log"));
    until("a node that waits", || {
        why(server.address, &[]).code == Some(4)
    });
    let ended = why(server.address, &[]);
    let text = ended.stdout_text();
    assert!(text.starts_with("Waiting for 2 nodes for "), "{text}");
    assert!(text.contains("missing: node ranks 0, 2"), "{text}");
    node.signal(Signal::TERM);
    assert_ne!(node.end().code, Some(0));
    until("the launcher is forgotten", || {
        why(server.address, &[]).code == Some(0)
    });
}
