//! `c10d run`: when workers are restarted, when the job stops instead, and the records about it.

use std::fs;
use std::io::{BufRead, BufReader};

use serde_json::Value;

use crate::process::{Ended, Running, command, run};
use crate::run::Job;

/// Each start of a worker adds a line to the file.
const START: &str = "echo $RANK >> $C10D_TEST_FOLDER/starts; ";

/// Rank 0 waits until rank 1 has started. Rank 1 waits to be stopped.
const MEET: &str = "echo $RANK >> $C10D_TEST_FOLDER/starts
    [ $RANK = 0 ] || { touch $C10D_TEST_FOLDER/there; exec sleep 1000; }
    until [ -e $C10D_TEST_FOLDER/there ]; do sleep 0.01; done; ";

fn starts(job: &Job) -> usize {
    let text = fs::read_to_string(job.path("starts")).unwrap_or_default();
    text.lines().count()
}

#[track_caller]
fn assert_says(ended: &Ended, text: &str) {
    assert!(ended.stderr.contains(text), "no {text:?} in {ended:?}");
}

fn events(job: &Job) -> Vec<Value> {
    let text = fs::read_to_string(job.path("events")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// docs/spec/rendezvous.md, END 1.
#[test]
fn an_exit_code_of_the_list_ends_all_nodes_and_each_names_the_rank() {
    let job = Job::with_server();
    let options = ["--max-restarts=3", "--no-restart-exit-codes=7,93", "--json"];
    let script = format!("{MEET} exit 93");
    let ended = [(); 2]
        .map(|()| job.start_node(&options, &script))
        .map(Running::end);
    assert_eq!([ended[0].code, ended[1].code], [Some(1); 2], "{ended:?}");
    let reason =
        "worker with rank 0 ended with exit code 93, after which the job is not to be restarted";
    for ended in &ended {
        assert_says(ended, reason);
        let last = ended.stdout_text().lines().last().unwrap();
        let json: Value = serde_json::from_str(last).unwrap();
        assert_eq!(json["outcome"], "failed", "{json}");
        assert!(json["reason"].as_str().unwrap().contains(reason), "{json}");
    }
    let told = ended
        .iter()
        .filter(|it| it.stderr.contains(" ended the job: worker"))
        .count();
    assert_eq!(told, 1, "{ended:?}");
    assert_eq!(starts(&job), 2);
    job.assert_nothing_runs();
}

#[test]
fn workers_that_are_stuck_are_reported_and_restarted() {
    let job = Job::new();
    let options = [
        "--max-restarts=1",
        "--progress-timeout=8s",
        "--nproc-per-node=2",
    ];
    let script = r#"
        [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
        [ $RANK = 0 ] || { echo 12 > "$C10D_PROGRESS_FILE"; exec sleep 1000; }
        "$C10D" progress 17; exec sleep 1000"#;
    let mut command = job.command(&options, script);
    command.env("C10D", env!("CARGO_BIN_EXE_c10d"));
    let ended = Running::start(command).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for text in [
        "no worker of this node has made progress for ",
        " s: rank 0 was at step 17, rank 1 was at step 12",
        "c10d run: when the workers were found stuck: ",
        "restarting the workers after they were stuck: 0 of 1 restarts left",
    ] {
        assert_says(&ended, text);
    }
    let (_, silent) = ended.stderr.split_once(" made progress for ").unwrap();
    let silent: f64 = silent.split(' ').next().unwrap().parse().unwrap();
    assert!(silent >= 8.0, "{ended:?}");
    job.assert_nothing_runs();
}

#[test]
fn each_round_has_a_line_whose_phases_add_up() {
    let job = Job::new();
    let events_option = format!("--events={}", job.path("events").display());
    let options = ["--max-restarts=1", "--nproc-per-node=2", &events_option];
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0
        [ $RANK = 0 ] && { echo hello >&2; echo 3 > $C10D_PROGRESS_FILE; exit 7; }
        exec sleep 1000";
    let ended = job.run(&options, script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let events = events(&job);
    let rounds: Vec<&Value> = events.iter().filter(|it| it["event"] == "round").collect();
    let [first, second] = rounds[..] else {
        panic!("{events:?}");
    };
    assert_eq!(
        (&first["began"], &first["ended"]),
        (&"start".into(), &"failed".into())
    );
    assert_eq!(
        (&second["began"], &second["ended"]),
        (&"failure".into(), &"succeeded".into())
    );
    assert_eq!(first["exit_codes"]["0"], 7);
    assert_eq!(first["exit_codes"]["1"], -15);
    assert_eq!(
        (&first["last_step"], &second["last_step"]),
        (&3.into(), &Value::Null)
    );
    assert_eq!(
        (&first["restarts_left"], &second["restarts_used"]),
        (&0.into(), &1.into())
    );
    assert!(first["seconds"]["first_output"].is_number(), "{first}");
    assert!(second["seconds"]["first_output"].is_null(), "{second}");
    for round in rounds {
        let seconds = round["seconds"].as_object().unwrap();
        let parts = ["rendezvous", "ranks", "start", "run", "stop"];
        let sum: f64 = parts
            .iter()
            .map(|part| seconds[*part].as_f64().unwrap())
            .sum();
        let total = seconds["total"].as_f64().unwrap();
        assert!((sum - total).abs() < 1e-6, "{round}");
        assert_eq!(round["ranks"], serde_json::json!([0, 1]));
    }
    let states = |source: &str| -> Vec<String> {
        let of_source = events.iter().filter(|it| it["source"] == source);
        let states = of_source.map(|it| it["metadata"]["state"].as_str().unwrap().to_owned());
        states.collect()
    };
    assert_eq!(
        states("WORKER"),
        ["START", "START", "START", "START", "SUCCEEDED", "SUCCEEDED"]
    );
    let phases = ["RENDEZVOUS", "ASSIGN_WORKER_RANKS"];
    assert_eq!(
        states("AGENT"),
        [&phases[..], &phases, &["SUCCEEDED"]].concat()
    );
    let metrics = events.last().unwrap();
    assert_eq!(
        metrics["metrics"]["workers.default.run_success_with_retries"],
        1
    );
    assert_eq!(metrics["metrics"]["workers.default.flakiness"], 50);
}

#[test]
fn a_rendezvous_that_cannot_be_opened_is_an_event() {
    let job = Job::new();
    let events_option = format!("--events={}", job.path("events").display());
    let options = [
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:1",
        "--rdzv-id=job",
        "--rdzv-conf=is_host=0,join_timeout=1",
        &events_option,
    ];
    let ended = job.run(&options, "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let events = events(&job);
    let [event] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(event["node_state"], "FAILED");
    assert_eq!(event["run_id"], "job");
    assert_eq!(event["name"], "c10d_rendezvous_backend.py:create_backend");
    let message = event["message"].as_str().unwrap();
    assert!(
        message.starts_with("RendezvousConnectionError: ") && message.contains("127.0.0.1:1"),
        "{message}"
    );
}

#[test]
fn a_failure_is_an_event_with_the_fields_of_pytorch() {
    let job = Job::new();
    let events_option = format!("--events={}", job.path("events").display());
    let ended = job.run(&[&events_option], "exit 3");
    assert_eq!(ended.code, Some(1));
    let events = events(&job);
    let failed = "torchelastic.worker.status.FAILED";
    let failed = events.iter().find(|it| it["name"] == failed).unwrap();
    let failed = &failed["metadata"];
    let error: Value = serde_json::from_str(failed["raw_error"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&error["message"], &failed["global_rank"]),
        (&"<NONE>".into(), &0.into())
    );
    let details: Value = serde_json::from_str(failed["metadata"].as_str().unwrap()).unwrap();
    assert_eq!(details["exit_code"], serde_json::json!([3]));
}

#[test]
fn a_step_outside_of_a_job_is_refused() {
    let mut progress = command(["progress", "5"]);
    progress.env_remove("C10D_PROGRESS_FILE");
    Running::start(progress)
        .end()
        .assert_fails(2, "C10D_PROGRESS_FILE is not set");
    assert_eq!(run(["progress", "-5"]).code, Some(2));
    let mut progress = command(["progress", "5"]);
    progress.env("C10D_PROGRESS_FILE", "/nonexistent/file");
    Running::start(progress)
        .end()
        .assert_fails(3, "cannot write /nonexistent/file: No such file");
}

/// docs/reference/restarts.md, "When to restart".
#[test]
fn a_restart_without_its_log_directory_is_tried_again() {
    let job = Job::new();
    let logs = job.path("logs");
    let options = [
        "--standalone",
        "--max-restarts=1000000",
        "--log-dir",
        logs.to_str().unwrap(),
    ];
    // The first worker replaces the directory of the run by a file.
    let script = format!(
        r#"{START} [ -e "$C10D_TEST_FOLDER/back" ] && exit 0
        run=$(dirname "$(dirname "$(dirname "$TORCHELASTIC_ERROR_FILE")")")
        mv "$run" "$C10D_TEST_FOLDER/run" && : > "$run"; exit 1"#
    );
    let mut node = job.start(&options, &script);
    let mut log = BufReader::new(node.stderr()).lines();
    assert!(log.any(|line| line.unwrap().contains("trying again, with ")));
    let run = fs::read_dir(&logs).unwrap().next().unwrap().unwrap().path();
    fs::write(job.path("back"), "").unwrap();
    fs::remove_file(&run).unwrap();
    fs::rename(job.path("run"), &run).unwrap();
    // Until its end.
    log.for_each(drop);
    assert_eq!(node.end().code, Some(0));
    assert_eq!(starts(&job), 2);
}

/// Without log files, standard output goes to the terminal and not through the launcher.
#[test]
#[cfg(target_os = "linux")]
fn the_line_about_a_restart_shows_the_first_output_without_log_files() {
    let job = Job::new();
    let script = "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7; sleep 0.5; echo out; sleep 5";
    let ended = job.run(&["--standalone", "--max-restarts=1"], script);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_says(&ended, "restarted the workers in ");
    assert_says(&ended, ", first output ");
}
