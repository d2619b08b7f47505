//! PBS (OpenPBS, PBS Professional, Torque): launchers that a script starts on each host of the host file, with pbsdsh
//! or ssh.
//!
//! Variables: "Environment Variables" of qsub(1B), and those of a task, in the PBS Programmer's Guide.

use std::time::Duration;

use super::found::{Finding, Found, Sourced};
use super::site::{Site, Variables, is_same_host};

/// The default of a queue's `kill_delay`.
const KILL_DELAY: Duration = Duration::from_secs(10);

/// More hosts than any cluster has.
const HOSTS_MAX: usize = 65_536;

/// The job of the script, or of one of the processes that it started.
pub(super) fn find(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    let run_id = variables.first(&["PBS_JOBID"])?;
    let task = variables.number(&["PBS_TASKNUM"]).map(|task| task.value);
    let is_spawned = task.as_ref().is_ok_and(|task| *task > 1);
    if !variables.has("PBS_NODEFILE") && !is_spawned {
        return None;
    }
    let run_id = Ok(run_id);
    let hosts = hosts(variables, site);
    let found = Found {
        nodes: count(&hosts),
        node_rank: hosts.clone().and_then(|hosts| rank(&hosts, site)),
        endpoint: hosts.clone().and_then(|hosts| {
            let first = hosts.value.into_iter().next().unwrap_or_default();
            variables.endpoint_on(Sourced::new(first, hosts.from), &run_id)
        }),
        has_several_hosts: hosts.is_ok_and(|hosts| hosts.value.len() > 1),
        run_id,
        grace_period: Some(KILL_DELAY),
        ..Found::by("PBS")
    };
    let is_script = task == Ok(1) || (task.is_err() && variables.has("PBS_ENVIRONMENT"));
    if is_script && let Ok(Sourced { value: 2.., .. }) = &found.nodes {
        let why = "the job has several hosts (PBS_NODEFILE), and this launcher was started by the job's script, so \
                   that the other hosts may have none; start one on each host, as with \
                   mpirun --map-by ppr:1:node c10d run";
        return Some(Found {
            nodes: Err(why.to_owned()),
            ..found
        });
    }
    Some(found)
}

/// The different hosts of the job, in the order of the host file, which has a line for each slot.
pub(super) fn hosts(variables: Variables<'_>, site: &Site<'_>) -> Finding<Vec<String>> {
    let Some(path) = variables.text("PBS_NODEFILE") else {
        return Err("PBS_NODEFILE is not set".to_owned());
    };
    let text = (site.read_file)(&path)
        .map_err(|error| format!("the file {path:?} of PBS_NODEFILE cannot be read: {error}"))?;
    let mut known = std::collections::BTreeSet::new();
    let mut hosts = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_name = line.len() <= 255
            && line
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if !is_name || hosts.len() == HOSTS_MAX {
            return Err(format!(
                "the file {path:?} of PBS_NODEFILE is not a list of hosts"
            ));
        }
        if known.insert(line) {
            hosts.push(line.to_owned());
        }
    }
    match hosts.is_empty() {
        true => Err(format!("the file {path:?} of PBS_NODEFILE names no host")),
        false => Ok(Sourced::new(hosts, "PBS_NODEFILE")),
    }
}

fn count(hosts: &Finding<Vec<String>>) -> Finding<usize> {
    let hosts = hosts.as_ref().map_err(Clone::clone)?;
    Ok(Sourced::new(hosts.value.len(), hosts.from.clone()))
}

fn rank(hosts: &Sourced<Vec<String>>, site: &Site<'_>) -> Finding<usize> {
    let own = (site.host_name)();
    let position = hosts.value.iter().position(|host| is_same_host(host, &own));
    match position {
        Some(rank) => Ok(Sourced::new(
            rank,
            format!("{} and the host name", hosts.from),
        )),
        None => Err(format!("this host, {own:?}, is not in {}", hosts.from)),
    }
}
