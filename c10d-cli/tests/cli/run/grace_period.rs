//! `c10d run --grace-period`: workers and the launcher end before a scheduler kills them.

use std::time::{Duration, Instant};

use super::*;

/// Shorter than the default shutdown timeout, and far longer than the grace periods of the tests.
const WITHOUT_THE_DEFAULT: Duration = Duration::from_secs(25);

/// Announces itself with the world size, and runs until it is killed, or until SIGTERM if it is of the node `polite`.
const STUBBORN: &str = "\
trap 'echo term > $C10D_TEST_FOLDER/term-$NODE; [ $NODE != polite ] || exit 0' TERM
echo up > $C10D_TEST_FOLDER/$NODE-$WORLD_SIZE
while :; do sleep 0.1; done";

fn node(job: &Job, name: &str, arguments: &[&str], script: &str) -> Running {
    let endpoint = format!("--rdzv-endpoint={}", job.server().address);
    let common = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0,last_call_timeout=2",
        "--local-addr=127.0.0.1",
        &endpoint,
    ];
    let mut command = job.command(&[&common, arguments].concat(), script);
    command.env("NODE", name);
    Running::start(command)
}

#[test]
fn a_stubborn_worker_is_killed_in_time_and_the_other_node_goes_on() {
    let job = Job::with_server();
    let other = node(&job, "polite", &[], STUBBORN);
    let evicted = node(&job, "evicted", &["--grace-period=8s"], STUBBORN);
    job.line("polite-2");
    job.line("evicted-2");
    let start = Instant::now();
    evicted.signal(Signal::TERM);
    let ended = evicted.end();
    assert!(start.elapsed() < WITHOUT_THE_DEFAULT, "{ended:?}");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("sent SIGKILL to worker"), "{ended:?}");
    assert!(
        !ended.stderr.contains("cannot leave the rendezvous"),
        "{ended:?}"
    );
    // This is printed in a separate round.
    job.line("polite-1");
    other.signal(Signal::TERM);
    let ended = other.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("restarting the workers: "),
        "{ended:?}"
    );
    job.assert_nothing_runs();
}

#[test]
fn a_signal_while_workers_are_stopped_for_a_new_round_keeps_the_grace_period() {
    let job = Job::with_server();
    let other = node(&job, "other", &["--grace-period=8s"], STUBBORN);
    let polite = node(&job, "polite", &[], STUBBORN);
    job.line("polite-2");
    job.line("other-2");
    polite.signal(Signal::TERM);
    assert_eq!(polite.end().code, Some(1));
    // The other node has begun to stop its worker, and would wait 30 s for it.
    job.line("term-other");
    let start = Instant::now();
    other.signal(Signal::TERM);
    let ended = other.end();
    assert!(start.elapsed() < WITHOUT_THE_DEFAULT, "{ended:?}");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("sent SIGKILL to worker"), "{ended:?}");
    assert!(!ended.stderr.contains("does not respond"), "{ended:?}");
    job.assert_nothing_runs();
}
