//! `c10d run` where something else than the job's store listens at the endpoint.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::process::{Running, command};

#[test]
fn each_node_of_a_static_job_says_who_listens_in_the_place_of_the_store() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let started = Instant::now();
    let nodes = ["0", "1"].map(|rank| {
        let options = [
            "run",
            "--nnodes=2",
            "--node-rank",
            rank,
            "--rdzv-endpoint",
            &endpoint,
        ];
        Running::start(command(options.into_iter().chain([
            "--rdzv-conf=timeout=8",
            "--no-python",
            "true",
        ])))
    });
    for node in nodes {
        let ended = node.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let warnings = || ended.stderr.lines().filter(|line| line.contains(" WARN "));
        let [warning] = warnings().collect::<Vec<_>>()[..] else {
            panic!("{ended:?}");
        };
        let text = "a program that never answers (process ";
        assert!(warning.contains(text), "{warning}");
        assert!(warning.contains(&endpoint), "{warning}");
        assert!(warning.chars().count() <= 190, "{warning}");
        let error = ended.stderr.lines().last().unwrap();
        assert!(error.starts_with("c10d: cannot meet"), "{error}");
        assert!(
            error.contains(text) && error.contains("--master-port"),
            "{error}"
        );
    }
    let elapsed = started.elapsed();
    assert!(elapsed >= Duration::from_secs(8), "{elapsed:?}");
}
