//! `c10d run --keep-workers` with its store in etcd: the remaining workers survive the process that serves their
//! group. Needs etcd: `C10D_ETCD`.

use serde_json::Value;

use rustix::process::Signal;

use crate::candidates::Candidate;
use crate::etcd::Etcd;
use crate::process::{Running, until};
use crate::run::Job;
use crate::run_candidates::store;
use crate::run_keep::{Members, assert_kept, kill, start_node_at};

fn start(etcd: &Etcd, job: &Job, nodes: &str, options: &[&str]) -> Running {
    start_node_at(&etcd.place("job"), job, nodes, options)
}

/// Whether the launcher serves the store at the moment.
fn serves(etcd: &Etcd, launcher: &Running) -> bool {
    let status = store(&etcd.place("job"), &[], &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let process = status["leader"]["process"].as_str().unwrap_or_default();
    process.starts_with(&format!("process {} ", launcher.id()))
}

/// While the group is at rest, and in the middle of a change.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn workers_survive_that_another_server_takes_over_their_group() {
    let etcd = Etcd::start();
    let mut serving = Candidate::start(&etcd);
    serving.store();
    let job = Job::new();
    let options = ["--store-candidates=0"];
    let [launcher, other] = [(), ()].map(|()| start(&etcd, &job, "--nnodes=2", &options));
    let members = Members {
        job,
        launcher: Some(launcher),
    };
    let mut now = members.generation(4, &[]);
    let mut dead = Vec::new();
    for (victim, kills_server_first) in [(3, true), (0, false)] {
        let mut next = Candidate::start(&etcd);
        if kills_server_first {
            drop(std::mem::replace(&mut serving, next));
            serving.store();
            kill(now[&victim]);
        } else {
            kill(now[&victim]);
            std::mem::swap(&mut serving, &mut next);
            drop(next);
            serving.store();
        }
        dead.push(now[&victim]);
        let mut left = now;
        left.remove(&victim);
        now = members.generation(4, &dead);
        assert_kept(&left, &now);
    }
    members.finish_with([other]);
}

/// The node's workers die with it; then another node enters.
#[test]
#[ignore = "needs etcd (C10D_ETCD)"]
fn workers_survive_the_loss_of_the_node_that_serves_their_group() {
    let etcd = Etcd::start();
    let job = Job::new();
    let nodes = "--nnodes=2:3";
    let mut launchers: Vec<Running> = (0..3).map(|_| start(&etcd, &job, nodes, &[])).collect();
    let mut index = None;
    until("a launcher serves", || {
        index = launchers.iter().position(|it| serves(&etcd, it));
        index.is_some()
    });
    let serving = launchers.remove(index.unwrap());
    let [launcher, other]: [Running; 2] = launchers.try_into().unwrap();
    let members = Members {
        job,
        launcher: Some(launcher),
    };
    let six = members.generation(6, &[]);
    serving.signal(Signal::KILL);
    serving.end();
    let mut left = six.clone();
    until("its workers end with it", || {
        let live = members.job.processes();
        left.retain(|_, pid| live.contains(pid));
        left.len() == 4
    });
    let mut dead: Vec<i32> = six.into_values().collect();
    dead.retain(|pid| left.values().all(|it| it != pid));
    assert_eq!(members.generation(4, &dead), left);
    let new = start(&etcd, &members.job, nodes, &[]);
    let six = members.generation(6, &dead);
    assert_kept(&left, &six);
    members.finish_with([other, new]);
}
