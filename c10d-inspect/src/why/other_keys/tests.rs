//! Ranks that coordinate by libraries.

use crate::report::FindingKind;
use crate::sim::Script;
use crate::{Finding, Report};

/// Returns the report on 4 idle ranks, some of them waiting for these keys.
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
        "Ranks 0, 1 and 3 have waited at the barrier iteration_barrier of nvidia-resiliency-ext for 20 s: 3 arrived."
    );
}

#[test]
fn an_object_that_a_rank_of_vllm_broadcasts_is_named() {
    let report = waiting_for(&[(1, "/broadcast_from/0/17")]);
    let finding = only(&report);
    assert_eq!(finding.kind, FindingKind::Key);
    assert_eq!(
        finding.text,
        "Rank 1 (pid 4101 on vm) has waited for an object that rank 0 of its group broadcasts (as of vLLM) for 20 s."
    );
    assert!(finding.culprits.0.is_empty());
}

/// The number of a key of a program is no rank.
#[test]
fn a_key_of_a_program_is_shown_as_it_is() {
    let report = waiting_for(&[(0, "/default_pg/0//batch/7")]);
    let finding = only(&report);
    assert!(
        finding.text.starts_with(
            "Rank 0 (pid 4100 on vm) has waited for the key /default_pg/0//batch/7 for 20 s."
        ),
        "{}",
        finding.text
    );
    assert_eq!(report.waits[0].meaning, "the key /default_pg/0//batch/7");
}

/// Whatever ranks wait for, a report names no rank that the job does not have.
#[test]
fn no_report_names_a_rank_that_cannot_exist() {
    let keys = [
        "/default_pg/0//cpu//0/{}",
        "/default_pg/0//{}",
        "/default_pg/0//x/{}",
        "/default_pg/0//1//cpu//0/{}",
        "/default_pg/debug_server/rank{}",
        "/default_pg/0//cuda//0:{}",
        "/send_to/{}/3",
        "/rpc_prefix_0/names/{}",
        "/_inprocess_0/state_{}",
    ];
    for (place, key) in keys.iter().enumerate() {
        for rank in [4, 7, 99, 4095, 70_000] {
            let key = key.replace("{}", &rank.to_string());
            let report = waiting_for(&[(place % 4, &key)]);
            let json = serde_json::to_string(&report).unwrap();
            // A key is shown as it is, and is no name of a rank.
            let rest = json.replace(&key, "");
            let named = [
                format!("rank {rank}"),
                format!("member {rank}"),
                format!("worker {rank}"),
            ];
            assert!(named.iter().all(|it| !rest.contains(it)), "{key}: {json}");
            for finding in &report.findings {
                let mut ranks = finding.culprits.0.iter().chain(&finding.waiting.0);
                assert!(ranks.all(|rank| *rank < 4), "{key}: {finding:?}");
            }
            assert_eq!(report.ranks.len(), 4, "{key}");
        }
    }
}
