//! Ranks that coordinate by libraries.

use crate::report::FindingKind;
use crate::sim::Script;
use crate::{Finding, Report};

/// The report on 4 ranks that are idle, of which these wait for these keys.
fn waiting_for(waits: &[(usize, &str)]) -> Report {
    let mut script = Script::new();
    let ranks = script.run_all(4);
    for (rank, key) in waits {
        let connection = ranks[*rank].connection.unwrap();
        assert!(!script.store.wait(connection, &[(*key).to_owned()]));
    }
    script.pass(20.0);
    script.report()
}

#[track_caller]
fn only(report: &Report) -> &Finding {
    match &report.findings[..] {
        [finding] => finding,
        findings => panic!("{findings:#?}"),
    }
}

/// Each rank's monitor waits for a restart as long as the job runs.
#[test]
fn ranks_that_can_restart_in_the_process_do_not_stand_still() {
    let key = "/_inprocess_0/any_rank_interrupted";
    let report = waiting_for(&[(0, key), (1, key), (2, key), (3, key)]);
    assert!(!report.is_stuck, "{:#?}", report.findings);
}

#[test]
fn a_barrier_of_restarts_in_the_process_is_one() {
    let key =
        "/_inprocess_0/inprocess_barrier_prefix:barrier:iteration_barrier:last_worker_arrived";
    let report = waiting_for(&[(0, key), (1, key), (3, key)]);
    let finding = only(&report);
    assert_eq!(finding.kind, FindingKind::Barrier);
    assert_eq!(
        finding.text,
        "Ranks 0, 1 and 3 wait at the barrier iteration_barrier of nvidia-resiliency-ext for 20 s: 3 arrived."
    );
}

#[test]
fn an_object_that_a_rank_of_vllm_broadcasts_is_named() {
    let report = waiting_for(&[(1, "/broadcast_from/0/17")]);
    let finding = only(&report);
    assert_eq!(finding.kind, FindingKind::Key);
    assert_eq!(
        finding.text,
        "Rank 1 (pid 4101 on vm) waits for an object that rank 0 of its group broadcasts (as of vLLM) for 20 s."
    );
    assert!(finding.culprits.0.is_empty());
}
