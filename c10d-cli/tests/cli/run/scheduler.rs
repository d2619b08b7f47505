//! `c10d run` without options under a simulated scheduler, and `--dry-run`.

use super::*;

/// Node `rank` of two in step 0 of a job of Slurm.
fn in_slurm(command: &mut Command, job: u32, nodelist: &str, rank: &str) {
    command
        .env_remove("PET_NO_SCHEDULER")
        .env("SLURM_JOB_ID", job.to_string())
        .env("SLURM_STEP_ID", "0")
        .env("SLURM_STEP_NODELIST", nodelist)
        .env("SLURM_STEP_NUM_NODES", "2")
        .env("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
        .env("SLURM_NODEID", rank)
        .env("SLURM_PROCID", rank)
        .env("SLURM_GPUS_ON_NODE", "2")
        .env_remove("SLURM_RESTART_COUNT")
        .env_remove("TORCHELASTIC_RUN_ID")
        // One visible GPU of a developer's machine would be the number of workers.
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("HIP_VISIBLE_DEVICES", "");
}

fn dry_run(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> Ended {
    let mut command = command(["run", "--dry-run"].iter().chain(arguments));
    command.env("OMP_NUM_THREADS", "1");
    prepare(&mut command);
    Running::start(command).end()
}

#[test]
fn a_dry_run_prints_the_plan_and_its_sources() {
    let ended = dry_run(
        &["--max-restarts=3", "-m", "train", "--lr", "1"],
        |command| {
            in_slurm(command, 1234, "node[001-002]", "0");
            command.env("TMPDIR", "/scratch");
        },
    );
    ended.assert_prints(
        "\
scheduler         Slurm
nodes             2:2 (SLURM_STEP_NUM_NODES)
node rank         0 (SLURM_NODEID)
backend           c10d
endpoint          node001:26139 (SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID)
is host           yes
run id            1234.0 (SLURM_JOB_ID, SLURM_STEP_ID)
workers           2 (SLURM_GPUS_ON_NODE)
command           python3 -u -m train --lr 1
log dir           a new directory in /scratch
environment       LOCAL_WORLD_SIZE=2
environment       ROLE_NAME=default
environment       TORCHELASTIC_RUN_ID=1234.0
environment       TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT
max restarts      3
shutdown timeout  27s
grace period      30s
timeout           5s (heartbeat_timeout)
timeout           15s (--spare-wait)
timeout           15s (keep_alive_interval x keep_alive_max_attempt)
timeout           30s (--explain-after)
timeout           60s (read_timeout)
timeout           600s (join_timeout)
",
    );
}

#[test]
fn a_dry_run_prints_the_plan_as_json() {
    let arguments = ["--json", "--nnodes=1:2", "--rdzv-id=j", "--no-python", "sh"];
    let ended = dry_run(&arguments, |command| {
        in_slurm(command, 1234, "node[001-002]", "1");
    });
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    let plan: Value = serde_json::from_str(ended.stdout_text()).unwrap();
    let expected = json!({
        "scheduler": "Slurm",
        "sources": {
            "nodes": "--nnodes",
            "node_rank": "SLURM_NODEID",
            "endpoint": "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID",
            "run_id": "--rdzv-id",
            "workers": "SLURM_GPUS_ON_NODE",
        },
        "min_nodes": 1,
        "max_nodes": 2,
        "node_rank": 1,
        "backend": "c10d",
        "endpoint": "node001:26139",
        "is_host": false,
        "run_id": "j",
        "workers": 2,
        "command": ["sh"],
        "log_dir": null,
        "redirects": "0",
        "tee": "0",
        "health_check": null,
        "restart_rules": {},
        "preload": [],
        "store_candidates": null,
        "store_port": null,
        "store_dir": null,
        "workers_store": "agent",
        "relay": false,
        "environment": {
            "LOCAL_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": "j",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        },
        "max_restarts": 0,
        "shutdown_timeout": 27.0,
        "grace_period": 30.0,
        "timeouts": {
            "heartbeat_timeout": 5.0,
            "--spare-wait": 15.0,
            "keep_alive_interval x keep_alive_max_attempt": 15.0,
            "--explain-after": 30.0,
            "last_call_timeout": 30.0,
            "read_timeout": 60.0,
            "join_timeout": 600.0,
        },
        "debug_rank": null,
        "warnings": [],
    });
    assert_eq!(plan, expected);
}

/// The id of a job whose endpoint has a free port, and this port. Outgoing connections do not get it, because it is not
/// from the range of the system.
fn job_with_free_port() -> (u32, u16) {
    let mut jobs = 0..1000_u32;
    let free = jobs.find_map(|_| {
        let job = fastrand::u32(1..1_000_000);
        let ended = dry_run(&["--json", "s.py"], |command| {
            in_slurm(command, job, "localhost,localhost", "0");
        });
        let plan: Value = serde_json::from_str(ended.stdout_text()).unwrap();
        let (_, port) = plan["endpoint"].as_str()?.rsplit_once(':')?;
        let port: u16 = port.parse().unwrap();
        let is_free = TcpListener::bind(("0.0.0.0", port)).is_ok();
        is_free.then_some((job, port))
    });
    free.unwrap()
}

#[test]
fn two_nodes_of_slurm_form_a_job_without_options() {
    let job = Job::new();
    let (id, _) = job_with_free_port();
    let script = format!("{RANKS}; echo $TORCHELASTIC_RUN_ID >> $C10D_TEST_FOLDER/id$RANK");
    // The node that connects starts first.
    let nodes = ["1", "0"].map(|rank| {
        let mut command = job.command(&["--local-addr=127.0.0.1"], &script);
        in_slurm(&mut command, id, "localhost,localhost", rank);
        command.env("RUST_LOG", "info,elastic_rendezvous=debug,c10d::run=debug");
        Running::start(command)
    });
    let ended = nodes.map(Running::end);
    ended.iter().for_each(assert_succeeded);
    assert_eq!(lines(&ended), RANKS_OF_2_NODES);
    assert_eq!(job.line("id3"), format!("{id}.0"));
    let [second, first] = &ended;
    for (ended, rank) in [(first, 0), (second, 1)] {
        let line = ended
            .stderr
            .lines()
            .find(|line| line.contains("found Slurm: "));
        let line = line.unwrap_or_else(|| panic!("{ended:?}"));
        for value in [
            "nodes 2 (SLURM_STEP_NUM_NODES)".to_owned(),
            format!("node rank {rank} (SLURM_NODEID)"),
            format!("run id {id}.0 (SLURM_JOB_ID, SLURM_STEP_ID)"),
            "workers 2 (SLURM_GPUS_ON_NODE)".to_owned(),
        ] {
            assert!(line.contains(&value), "{line}");
        }
    }
    assert!(
        first.stderr.contains("hosts the rendezvous store"),
        "{first:?}"
    );
    assert!(
        !second.stderr.contains("hosts the rendezvous store"),
        "{second:?}"
    );
}
