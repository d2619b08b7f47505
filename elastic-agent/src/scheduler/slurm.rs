//! Slurm: `srun c10d run` starts one launcher on each node of a job step.
//!
//! Variables: "OUTPUT ENVIRONMENT VARIABLES" of srun(1) and sbatch(1).

use std::fmt;
use std::time::Duration;

use super::site::{Finding, Found, Site, Sourced, Variables};

const NAME: &str = "Slurm";

/// Slurm's default of `KillWait`.
const KILL_WAIT: Duration = Duration::from_secs(30);

/// From this number on, step ids have a special meaning, for example the batch script or an interactive shell.
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
            "srun starts several launchers on a node ({} is {:?}), and each would start all workers of the node \
             (use srun --ntasks-per-node=1)",
            tasks.from, tasks.value,
        )));
    }
    // `srun --pty` connects only the first task to the terminal. The other tasks run a shell that exits.
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
    // For a shell of salloc on a login node, the job's node is another machine.
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
         none (use srun --ntasks-per-node=1 c10d run)"
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

/// More hosts than any cluster has.
const HOSTS_MAX: usize = 65_536;

/// The longest host name (RFC 1123).
const NAME_BYTES_MAX: usize = 255;

/// The hosts of a list, in its order. Brackets of one name are expanded with the last bracket changing fastest, the same way
/// as `scontrol show hostnames` expands them.
///
/// # Errors
/// [`HostlistError`] for a malformed list and for one of more than 65,536 hosts.
fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    for pattern in patterns(list)? {
        let names = expand_pattern(pattern, HOSTS_MAX - hosts.len())?;
        hosts.extend(names);
    }
    match hosts.is_empty() {
        true => Err(HostlistError::Empty),
        false => Ok(hosts),
    }
}

/// The reason why a text is not a usable list of hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HostlistError {
    Empty,
    /// A bracket that is not closed, not opened, or inside another.
    Brackets,
    /// The text between brackets, which is not numbers and ranges.
    Range(String),
    /// The text in the place of a host name.
    Name(String),
    TooMany,
}

impl fmt::Display for HostlistError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("names no host"),
            Self::Brackets => f.write_str("has unpaired brackets"),
            Self::Range(range) => {
                write!(f, "has the range {range:?}, which is not of the form 1-8")
            }
            Self::Name(name) => write!(f, "has {name:?} in the place of a host name"),
            Self::TooMany => write!(f, "names more than {HOSTS_MAX} hosts"),
        }
    }
}

/// Splits a list at the commas outside of brackets. Like Slurm, this drops empty entries.
fn patterns(list: &str) -> Result<Vec<&str>, HostlistError> {
    let mut patterns = Vec::new();
    let mut is_inside = false;
    let mut start = 0;
    for (index, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if !is_inside => is_inside = true,
            b']' if is_inside => is_inside = false,
            b'[' | b']' => return Err(HostlistError::Brackets),
            b',' if !is_inside => {
                patterns.push(&list[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(HostlistError::Brackets);
    }
    patterns.push(&list[start..]);
    let trimmed = patterns.into_iter().map(str::trim);
    Ok(trimmed.filter(|pattern| !pattern.is_empty()).collect())
}

/// The names of one pattern with any number of brackets.
fn expand_pattern(pattern: &str, hosts_max: usize) -> Result<Vec<String>, HostlistError> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or(HostlistError::Brackets)?;
        let numbers = expand_ranges(ranges, hosts_max / names.len())?;
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        rest = after;
        // All names of a pattern are about as long as its first.
        check_length(names.first().map_or("", String::as_str))?;
    }
    for name in &mut names {
        name.push_str(rest);
        check_name(name)?;
    }
    match names.len() > hosts_max {
        true => Err(HostlistError::TooMany),
        false => Ok(names),
    }
}

/// The numbers of `001-003,7`, with the leading zeros of each range's start.
fn expand_ranges(ranges: &str, numbers_max: usize) -> Result<Vec<String>, HostlistError> {
    let mut numbers = Vec::new();
    for range in ranges.split(',').map(str::trim) {
        let malformed = || HostlistError::Range(shortened(range));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let low = number(first).ok_or_else(malformed)?;
        let high = number(last).ok_or_else(malformed)?;
        if low > high {
            return Err(malformed());
        }
        let left = numbers_max.saturating_sub(numbers.len());
        if usize::try_from(high - low).map_or(true, |more| more >= left) {
            return Err(HostlistError::TooMany);
        }
        let width = first.len();
        numbers.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

/// A number of at most 18 digits.
fn number(digits: &str) -> Option<u64> {
    let is_number = (1..=18).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

fn check_length(name: &str) -> Result<(), HostlistError> {
    match name.len() > NAME_BYTES_MAX {
        true => Err(HostlistError::Name(shortened(name))),
        false => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), HostlistError> {
    check_length(name)?;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_part) {
        true => Ok(()),
        false => Err(HostlistError::Name(shortened(name))),
    }
}

/// The start of a text, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
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

    fn expanded(list: &str) -> String {
        match expand(list) {
            Ok(hosts) => hosts.join(" "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_list_is_expanded_in_its_order() {
        for (list, hosts) in [
            ("node1", "node1"),
            ("b,a", "b a"),
            ("node[1-3]", "node1 node2 node3"),
            ("node[001-003,7]", "node001 node002 node003 node7"),
            ("node[09-11]", "node09 node10 node11"),
            ("n[1,3-4],gpu-[1-2]-ib", "n1 n3 n4 gpu-1-ib gpu-2-ib"),
            (
                "rack[0-1]node[1-2]",
                "rack0node1 rack0node2 rack1node1 rack1node2",
            ),
            (
                "r[1-2]n[1,3].site",
                "r1n1.site r1n3.site r2n1.site r2n3.site",
            ),
            ("a-[b]", "has the range \"b\", which is not of the form 1-8"),
            ("n[1-2],n[1-2]", "n1 n2 n1 n2"),
            (" n1 , n2,", "n1 n2"),
            ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
        ] {
            assert_eq!(expanded(list), hosts, "{list}");
        }
    }

    #[test]
    fn malformed_lists_are_refused() {
        for (list, error) in [
            ("", "names no host"),
            (",", "names no host"),
            ("n[1-2", "has unpaired brackets"),
            ("n1-2]", "has unpaired brackets"),
            ("n[[1]]", "has unpaired brackets"),
            ("n[]", "has the range \"\", which is not of the form 1-8"),
            (
                "n[3-1]",
                "has the range \"3-1\", which is not of the form 1-8",
            ),
            (
                "n[1-2-3]",
                "has the range \"1-2-3\", which is not of the form 1-8",
            ),
            (
                "n[-1]",
                "has the range \"-1\", which is not of the form 1-8",
            ),
            (
                "n[+1]",
                "has the range \"+1\", which is not of the form 1-8",
            ),
            ("n 1", "has \"n 1\" in the place of a host name"),
            ("nö", "has \"nö\" in the place of a host name"),
            ("n[1-2]$x", "has \"n1$x\" in the place of a host name"),
            ("(null)", "has \"(null)\" in the place of a host name"),
        ] {
            assert_eq!(expanded(list), error, "{list}");
        }
    }

    #[test]
    fn hostile_lists_are_refused_before_they_are_expanded() {
        let too_many = "names more than 65536 hosts";
        assert_eq!(expand("n[1-65536]").unwrap().len(), 65_536);
        for list in [
            "n[1-65537]",
            "n[0-999999999999999999]",
            "n[0-999][0-999][0-999][0-999][0-999][0-999]",
            "n[1-65536],m",
            "n[1-40000],m[1-40000]",
            "a[1-30000,1-30000,1-30000]",
        ] {
            assert_eq!(expanded(list), too_many, "{list}");
        }
        let many_brackets = format!("n{}", "[1]".repeat(10_000));
        assert!(matches!(
            expand(&many_brackets),
            Err(HostlistError::Name(_))
        ));
        let long = "x".repeat(100_000);
        assert!(matches!(expand(&long), Err(HostlistError::Name(text)) if text.len() == 64));
        assert!(matches!(
            expand("n[1234567890123456789]"),
            Err(HostlistError::Range(_))
        ));
    }
}
