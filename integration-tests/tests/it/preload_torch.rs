//! `c10d run --preload torch,torch._dynamo` with workers that train: `python/train.py`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use integration_tests::launcher::{Job, Launcher};
use integration_tests::torch::{Feature, Release};
use integration_tests::watchdog::Watchdog;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(580);

/// For one start of PyTorch on a busy machine.
const STEP_LIMIT: Duration = Duration::from_secs(180);

const PRELOAD: &str = "--preload=torch,torch._dynamo,numpy";

/// What the ranks of a job have computed.
fn sums(options: &[&str], threads: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(folder.path());
    let common = ["--nproc-per-node=2", "--max-restarts=1"];
    let variables = [("OMP_NUM_THREADS", threads)];
    let mut launcher = job.start_training("sums", [&common, options].concat(), &variables);
    let code = launcher.wait(STEP_LIMIT);
    assert_eq!(code, Some(0), "{}", launcher.process().stderr());
    assert!(launcher.processes().is_empty(), "{launcher:?}");
    (0..2)
        .map(|rank| job.read(&format!("sums.{rank}")).unwrap())
        .collect()
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn training_has_the_same_losses_with_and_without_preload() {
    let _watchdog = Watchdog::start("training_has_the_same_losses", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    for threads in ["1", "2"] {
        let fresh = sums(&[], threads);
        let forked = sums(&[PRELOAD, "--preload-required"], threads);
        let mut unseeded = BTreeSet::new();
        for (fresh, forked) in fresh.iter().zip(&forked) {
            for name in ["losses", "total", "products", "threads", "parameters"] {
                assert_eq!(fresh[name], forked[name], "{name} with {threads} threads");
            }
            assert_eq!(fresh["losses"].as_array().unwrap().len(), 6);
            // No generator has the numbers of another worker.
            for each in [&fresh["unseeded"], &forked["unseeded"]] {
                unseeded.extend(each.as_array().unwrap().iter().map(Value::to_string));
            }
        }
        assert_eq!(unseeded.len(), 8, "{unseeded:?}");
        assert_eq!(fresh[0]["parameters"], fresh[1]["parameters"]);
    }
}

#[test]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn forked_workers_have_a_debug_server_each() {
    let _watchdog = Watchdog::start("forked_workers_have_a_debug_server_each", LIMIT);
    if !Release::tested().allows(Feature::ErrorTexts) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(folder.path());
    let options = [
        "--nproc-per-node=2",
        "--debug-server",
        PRELOAD,
        "--preload-required",
    ];
    let mut launcher = job.start_training("server", options, &[]);
    let code = launcher.wait(STEP_LIMIT);
    assert_eq!(code, Some(0), "{}", launcher.process().stderr());
    for rank in 0..2 {
        let expected = json!([0, format!("0-{rank}")]);
        assert_eq!(job.read(&format!("server.{rank}")), Some(expected));
    }
}

/// What may leak, of a process: open files, threads, memory without pages of files.
#[derive(Debug)]
struct Held {
    files: usize,
    threads: usize,
    memory_mib: f64,
}

impl Held {
    fn of(pid: i32) -> Self {
        let entries = |name| fs::read_dir(format!("/proc/{pid}/{name}")).unwrap().count();
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
        let kib = |name: &str| -> f64 {
            let line = rollup.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self {
            files: entries("fd"),
            threads: entries("task"),
            memory_mib: kib("Anonymous:") / 1024.0,
        }
    }
}

fn template(launcher: &Launcher) -> Option<i32> {
    launcher.processes().into_iter().find(|pid| {
        let title = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        title.starts_with(b"c10d-preload\0")
    })
}

/// The processes of the workers of a start, when all have made a step.
#[track_caller]
fn workers(job: &Job, launcher: &mut Launcher, restarts: usize, count: usize) -> Vec<i32> {
    let began = Instant::now();
    loop {
        let found: Option<Vec<i32>> = (0..count)
            .map(|rank| {
                let pid = job.read(&format!("cycle.{restarts}.{rank}"))?.as_i64()?;
                i32::try_from(pid).ok()
            })
            .collect();
        if let Some(found) = found {
            return found;
        }
        if began.elapsed() > STEP_LIMIT || launcher.process().try_wait().is_some() {
            panic!("start {restarts}: {}", launcher.process().stderr());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "what was measured")]
#[ignore = "needs PyTorch: run with C10D_TORCH_PYTHON=... -- --ignored"]
fn a_hundred_killed_workers_leave_no_memory_files_or_processes() {
    const CYCLES: usize = 100;
    const RANKS: usize = 4;
    let _watchdog = Watchdog::start("a_hundred_killed_workers", LIMIT);
    if !Release::tested().allows(Feature::ElasticJobs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let job = Job::new(folder.path());
    let restarts = format!("--max-restarts={CYCLES}");
    let ranks = format!("--nproc-per-node={RANKS}");
    let options = vec![ranks.as_str(), &restarts, PRELOAD, "--preload-required"];
    let mut launcher = job.start_training("cycle", options, &[("OMP_NUM_THREADS", "1")]);
    let mut random = fastrand::Rng::with_seed(c10d_sim::seed());
    let own = i32::try_from(launcher.process().id()).unwrap();
    let mut first_template = None;
    let mut before = None;
    for cycle in 0..CYCLES {
        let running = workers(&job, &mut launcher, cycle, RANKS);
        let found = template(&launcher).unwrap();
        if *first_template.get_or_insert(found) != found {
            panic!("cycle {cycle}: {}", launcher.process().stderr());
        }
        if cycle == 10 {
            before = Some((Held::of(own), Held::of(found)));
        }
        kill_process(
            Pid::from_raw(running[random.usize(..RANKS)]).unwrap(),
            Signal::KILL,
        )
        .unwrap();
    }
    let running = workers(&job, &mut launcher, CYCLES, RANKS);
    let after = (Held::of(own), Held::of(first_template.unwrap()));
    let (launcher_before, template_before) = before.unwrap();
    eprintln!("{launcher_before:?} {template_before:?} {after:?}");
    for (before, after) in [(&launcher_before, &after.0), (&template_before, &after.1)] {
        // A store may still have connections of workers that were killed.
        assert!(
            after.files < before.files + 2 * RANKS,
            "{before:?} {after:?}"
        );
        assert_eq!(before.threads, after.threads);
        let more = after.memory_mib - before.memory_mib;
        assert!(more < 3.0, "{more} MiB more after {CYCLES} cycles");
    }
    // Launcher, template, workers with a data loader each; the guardian has an environment of its own.
    let processes = launcher.processes();
    assert_eq!(processes.len(), 2 + 2 * RANKS, "{processes:?}");
    assert!(running.iter().all(|pid| processes.contains(pid)));
    fs::write(Path::new(folder.path()).join("end"), "").unwrap();
    let code = launcher.wait(STEP_LIMIT);
    assert_eq!(code, Some(0), "{}", launcher.process().stderr());
    assert!(launcher.processes().is_empty(), "{launcher:?}");
}
