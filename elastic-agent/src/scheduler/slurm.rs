//! Slurm: `srun c10d run` starts one launcher on each node of a job step.
//!
//! Variables: "OUTPUT ENVIRONMENT VARIABLES" of srun(1) and sbatch(1).

use std::time::Duration;

use super::hostlist::expand;
use super::site::{Finding, Found, Site, Sourced, Variables};

const NAME: &str = "Slurm";

/// Slurm's default of `KillWait`.
const KILL_WAIT: Duration = Duration::from_secs(30);

/// From this number on, step ids have a meaning of their own: the batch script, an interactive shell.
const SPECIAL_STEPS_FROM: u64 = 0xffff_fff0;

const NODELISTS_OF_STEP: [&str; 2] = ["SLURM_STEP_NODELIST", "SLURM_NODELIST"];
const NODELISTS_OF_JOB: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// The step that srun started this process in.
pub(super) fn find_step(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    let job = job_id(variables)?;
    let step = variables.first(&["SLURM_STEP_ID", "SLURM_STEPID"])?;
    if step
        .value
        .parse::<u64>()
        .is_ok_and(|id| id >= SPECIAL_STEPS_FROM)
    {
        return None;
    }
    let run_id = Ok(with_restarts(
        variables,
        Sourced::new(
            format!("{}.{}", job.value, step.value),
            format!("{}, {}", job.from, step.from),
        ),
    ));
    let hosts = hosts(variables, &NODELISTS_OF_STEP);
    let first = hosts.clone().map(first_host);
    let found = Found {
        nodes: variables.count(&[
            "SLURM_STEP_NUM_NODES",
            "SLURM_NNODES",
            "SLURM_JOB_NUM_NODES",
        ]),
        node_rank: variables.number(&["SLURM_NODEID"]),
        endpoint: first.and_then(|host| variables.endpoint_on(host, &run_id)),
        run_id,
        // A value that cannot be right is a doubt.
        gpus: gpus(variables).unwrap_or_default(),
        has_several_hosts: hosts.is_ok_and(|hosts| has_different(&hosts.value)),
        grace_period: Some(KILL_WAIT),
        ..Found::by(NAME)
    };
    let tasks = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
    if let Some(tasks) = variables.first(&tasks)
        && most_tasks(&tasks.value).is_some_and(|most| most > 1)
    {
        return Some(found.refuse_launchers(&format!(
            "srun starts several launchers on a node ({} is {:?}), and each would start all workers of the node; use \
             srun --ntasks-per-node=1",
            tasks.from, tasks.value,
        )));
    }
    // `srun --pty` connects only the first task to the terminal. The others run a shell that ends.
    if site.is_interactive
        && variables.has("SLURM_PTY_PORT")
        && let Ok(Sourced { value: 2.., from }) = &found.nodes
    {
        let why = no_launchers(from);
        return Some(Found {
            nodes: Err(why),
            ..found
        });
    }
    Some(found)
}

/// The job whose batch script or shell this process was started from, without srun.
pub(super) fn find_batch(variables: Variables<'_>) -> Option<Found> {
    let job = job_id(variables)?;
    let nodes = variables
        .count(&["SLURM_JOB_NUM_NODES", "SLURM_NNODES"])
        .ok()?;
    let is_one = nodes.value == 1;
    // Of a shell of salloc on a login node, the job's node is another machine.
    if is_one && !variables.has("SLURM_PROCID") {
        return None;
    }
    let why = no_launchers(&nodes.from);
    Some(Found {
        nodes: if is_one { Ok(nodes) } else { Err(why) },
        node_rank: Ok(Sourced::new(0, "the only node")),
        run_id: Ok(with_restarts(variables, job)),
        // A value that cannot be right is a doubt.
        gpus: gpus(variables).unwrap_or_default(),
        grace_period: Some(KILL_WAIT),
        ..Found::by(NAME)
    })
}

/// The first host of the job and all of its hosts, for a program such as mpirun that runs inside the job.
pub(super) fn hosts_of_job(variables: Variables<'_>) -> Option<Finding<Vec<String>>> {
    job_id(variables)?;
    Some(hosts(variables, &NODELISTS_OF_JOB))
}

/// The id of the job and how often it was restarted.
pub(super) fn id_of_job(variables: Variables<'_>) -> Option<Sourced<String>> {
    Some(with_restarts(variables, job_id(variables)?))
}

fn job_id(variables: Variables<'_>) -> Option<Sourced<String>> {
    variables.first(&["SLURM_JOB_ID", "SLURM_JOBID"])
}

fn with_restarts(variables: Variables<'_>, id: Sourced<String>) -> Sourced<String> {
    match variables.number(&["SLURM_RESTART_COUNT"]) {
        Ok(restarts) if restarts.value > 0 => Sourced::new(
            format!("{}-r{}", id.value, restarts.value),
            format!("{}, {}", id.from, restarts.from),
        ),
        _ => id,
    }
}

fn no_launchers(source: &str) -> String {
    format!(
        "the job has several nodes ({source}), and srun did not start this launcher, so that the other nodes have \
         none; use srun --ntasks-per-node=1 c10d run"
    )
}

fn hosts(variables: Variables<'_>, names: &[&str]) -> Finding<Vec<String>> {
    let Some(list) = variables.first(names) else {
        return Err(format!("{} is not set", names.first().unwrap_or(&"")));
    };
    match expand(&list.value) {
        Ok(hosts) => Ok(Sourced::new(hosts, list.from)),
        Err(error) => Err(format!("{} {error}", list.from)),
    }
}

fn first_host(hosts: Sourced<Vec<String>>) -> Sourced<String> {
    let first = hosts.value.into_iter().next();
    Sourced::new(first.unwrap_or_default(), hosts.from)
}

fn has_different(hosts: &[String]) -> bool {
    hosts.iter().any(|host| Some(host) != hosts.first())
}

/// The largest number in `2(x3),1`: three nodes with two tasks each, then one with one.
fn most_tasks(tasks: &str) -> Option<usize> {
    let counts = tasks.split(',').map(|entry| {
        let count = entry.split_once('(').map_or(entry, |(count, _)| count);
        count.trim().parse().ok()
    });
    counts.max().flatten()
}

/// More than any machine has.
const GPUS_MAX: usize = 1024;

/// The number of GPUs of one node: `8`, or with types, `a100:4,v100:4`; `None` for no number and for 0.
///
/// # Errors
/// Why the value is no such number.
pub(super) fn gpus(variables: Variables<'_>) -> Result<Option<Sourced<usize>>, String> {
    let names = [
        "SLURM_GPUS_ON_NODE",
        "SLURM_GPUS_PER_TASK",
        "SLURM_GPUS_PER_NODE",
    ];
    let Some(text) = variables.first(&names) else {
        return Ok(None);
    };
    let counts = text.value.split(',').map(|entry| {
        let count = entry.rsplit_once(':').map_or(entry, |(_, count)| count);
        let count = count.trim().parse::<usize>().ok();
        count.filter(|count| *count <= GPUS_MAX)
    });
    match counts.sum::<Option<usize>>() {
        Some(sum) => Ok((sum > 0).then(|| Sourced::new(sum, text.from))),
        None => Err(format!(
            "{} is {:?}, which is not a number of GPUs",
            text.from, text.value
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_with_most_tasks_counts() {
        for (tasks, most) in [
            ("1", Some(1)),
            ("1(x4)", Some(1)),
            ("2(x3),1", Some(2)),
            ("1,8(x2)", Some(8)),
            ("x", None),
        ] {
            assert_eq!(most_tasks(tasks), most, "{tasks}");
        }
    }

    #[test]
    fn gpus_are_counted_over_all_types() {
        for (name, value, number) in [
            ("SLURM_GPUS_ON_NODE", "8", Ok(Some(8))),
            ("SLURM_GPUS_PER_NODE", "a100:4", Ok(Some(4))),
            ("SLURM_GPUS_PER_NODE", "a100:4,v100:2", Ok(Some(6))),
            ("SLURM_GPUS_ON_NODE", "0", Ok(None)),
            ("SLURM_GPUS_ON_NODE", "many", Err(())),
            ("SLURM_GPUS_ON_NODE", "1025", Err(())),
            ("SLURM_GPUS_ON_NODE", "18446744073709551616", Err(())),
        ] {
            let read = |asked: &str| (asked == name).then(|| value.to_owned());
            let found = gpus(Variables(&read));
            let found = found.map(|gpus| gpus.map(|gpus| gpus.value)).map_err(drop);
            assert_eq!(found, number, "{name}={value}");
        }
    }
}
