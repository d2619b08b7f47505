//! Timeouts that are too long to have an effect.

use super::*;

const ELASTIC: &str = "--nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=j";

#[test]
fn a_timeout_that_cannot_fire_is_a_warning_with_both_options() {
    let silence = "keep_alive_interval x keep_alive_max_attempt of";
    let in_join = "is longer than join_timeout of";
    for (options, warning) in [
        (
            "--rdzv-conf=heartbeat_timeout=16,keep_alive_interval=5",
            format!("heartbeat_timeout of 16s is longer than {silence} 15s, so a slow store"),
        ),
        (
            "--rdzv-conf=keep_alive_interval=201,join_timeout=600",
            format!("{silence} 603s {in_join} 600s, so a join fails"),
        ),
        (
            "--rdzv-conf=last_call_timeout=700,join_timeout=600",
            format!("last_call_timeout of 700s {in_join} 600s, so a round below MAX"),
        ),
        (
            "--spare-wait=601s --rdzv-conf=join_timeout=600",
            format!("--spare-wait of 601s {in_join} 600s, so a spare never"),
        ),
        (
            "--health-check=true --health-check-timeout=601s --rdzv-conf=join_timeout=600",
            format!("--health-check-timeout of 601s {in_join} 600s, so a check"),
        ),
        (
            "--rdzv-conf=read_timeout=20,join_timeout=10",
            format!("read_timeout of 20s {in_join} 10s, so one lost"),
        ),
        (
            "--progress-timeout=14s --rdzv-conf=keep_alive_max_attempt=3",
            format!("{silence} 15s is longer than --progress-timeout of 14s, so a lost node"),
        ),
        (
            "--progress-timeout=10m --first-progress-timeout=5m",
            "--progress-timeout of 600s is longer than --first-progress-timeout of 300s, so imports".to_owned(),
        ),
        (
            "--progress-timeout=1m --explain-after=61s",
            "--explain-after of 61s is longer than --progress-timeout of 60s, so a hang".to_owned(),
        ),
        (
            "--progress-timeout=361s --restart-budget=10/1h",
            "--progress-timeout, times the restarts of --restart-budget, of 3610s is longer than the period of \
             --restart-budget of 3600s, so a job that always hangs restarts forever"
                .to_owned(),
        ),
    ] {
        let warnings = plan(&format!("{ELASTIC} {options} s.py"), &[]).warning_texts();
        assert_eq!(warnings.len(), 1, "{options}: {warnings:#?}");
        assert!(warnings[0].starts_with(&warning), "{options}: {warnings:#?}");
    }
    let line = "--nnodes=2 --master-addr=h --rdzv-conf=timeout=60 --health-check=true --health-check-timeout=61s s.py";
    let warnings = plan(line, &[]).warning_texts();
    assert!(
        warnings[0].starts_with("--health-check-timeout of 61s is longer than timeout of 60s"),
        "{warnings:?}"
    );
}

#[test]
fn timeouts_in_order_are_no_warning() {
    let elastic = |options: &str| format!("{ELASTIC} {options} s.py");
    for line in [
        "s.py".to_owned(),
        "--standalone --health-check=true --health-check-timeout=1h s.py".to_owned(),
        elastic("--relay --health-check=true"),
        elastic("--nnodes=4 --rdzv-conf=last_call_timeout=700"),
        elastic(
            "--rdzv-conf=heartbeat_timeout=600,keep_alive_interval=200,last_call_timeout=600,read_timeout=600 \
             --spare-wait=600s --health-check=true --health-check-timeout=600s",
        ),
        elastic(
            "--progress-timeout=10m --first-progress-timeout=10m --explain-after=10m --restart-budget=10/1h \
             --max-restarts=100",
        ),
        elastic("--explain-after=never"),
        // One timeout is given, so the defaults of the other timeouts fit it.
        elastic("--rdzv-conf=join_timeout=10 --health-check=true"),
        elastic("--rdzv-conf=join_timeout=1"),
        elastic("--rdzv-conf=keep_alive_interval=1"),
        elastic("--rdzv-conf=keep_alive_interval=201"),
        elastic("--rdzv-conf=last_call_timeout=700"),
        elastic("--spare-wait=601s"),
        elastic("--rdzv-conf=read_timeout=1200"),
        elastic("--health-check=true --health-check-timeout=601s"),
        elastic("--progress-timeout=3s"),
        "--nnodes=2 --master-addr=h --health-check=true --health-check-timeout=1h s.py".to_owned(),
    ] {
        assert_eq!(plan(&line, &[]).warning_texts(), [""; 0], "{line}");
    }
}
