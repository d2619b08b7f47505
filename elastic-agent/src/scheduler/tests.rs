//! Recorded environments, in `fixtures`: each names the documentation that it follows.

use std::fs;
use std::path::Path;

use super::site::Finding;
use super::*;

/// An environment from a file: variables, and lines `#host NAME`, `#full NAME`, `#address ADDRESS` and
/// `#terminal`.
struct Recorded {
    lines: Vec<String>,
}

impl Recorded {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/scheduler/fixtures");
        let text = fs::read_to_string(folder.join(format!("{name}.env"))).unwrap();
        assert!(text.starts_with("# "), "{name} names no documentation");
        Self {
            lines: text.lines().map(str::to_owned).collect(),
        }
    }

    fn variable(&self, name: &str) -> Option<String> {
        let values = self.lines.iter().filter_map(|line| line.split_once('='));
        let mut values = values.filter(|(known, _)| *known == name);
        values.next().map(|(_, value)| value.to_owned())
    }

    fn note(&self, name: &str) -> Option<&str> {
        let mut lines = self.lines.iter();
        lines.find_map(|line| {
            line.strip_prefix('#')?
                .strip_prefix(name)?
                .strip_prefix(' ')
        })
    }

    fn find(&self) -> Option<Found> {
        let (found, doubts) = self.find_with_doubts();
        assert_eq!(doubts, [""; 0]);
        found
    }

    fn find_with_doubts(&self) -> (Option<Found>, Vec<String>) {
        let host_name = || self.note("host").unwrap_or_default().to_owned();
        let site = Site {
            host_name: &host_name,
            full_name: &|| self.note("full").map_or_else(host_name, str::to_owned),
            has_address: &|address| self.note("address") == Some(&address.to_string()),
            is_interactive: self.lines.iter().any(|line| line == "#terminal"),
        };
        find(&|name| self.variable(name), &site)
    }
}

fn shown<T: std::fmt::Display>(finding: &Finding<T>) -> String {
    match finding {
        Ok(Sourced { value, from }) => format!("{value} ({from})"),
        Err(why) => format!("? {why}"),
    }
}

fn found(name: &str) -> Found {
    let found = Recorded::read(name).find();
    found.unwrap_or_else(|| panic!("nothing found in {name}"))
}

/// Whether a text starts with another, which shows the whole text otherwise.
#[track_caller]
fn assert_starts(text: &str, start: &str, name: &str) {
    assert!(text.starts_with(start), "{name}: {text}");
}

#[test]
fn each_scheduler_is_found_with_its_nodes_rank_endpoint_and_id() {
    let step = "SLURM_JOB_ID, SLURM_STEP_ID";
    for (name, scheduler, nodes, rank, endpoint, run_id) in [
        (
            "slurm-step-0",
            "Slurm",
            "2 (SLURM_STEP_NUM_NODES)",
            "0 (SLURM_NODEID)",
            format!("node001:26139 (SLURM_STEP_NODELIST, {step})"),
            format!("1234.0 ({step})"),
        ),
        (
            "slurm-step-1",
            "Slurm",
            "2 (SLURM_STEP_NUM_NODES)",
            "1 (SLURM_NODEID)",
            format!("node001:26139 (SLURM_STEP_NODELIST, {step})"),
            format!("1234.0 ({step})"),
        ),
        (
            "slurm-requeued",
            "Slurm",
            "2 (SLURM_STEP_NUM_NODES)",
            "1 (SLURM_NODEID)",
            format!("node001:PORT (SLURM_STEP_NODELIST, {step}, SLURM_RESTART_COUNT)"),
            format!("1234.3-r2 ({step}, SLURM_RESTART_COUNT)"),
        ),
        (
            "slurm-batch-one-node",
            "Slurm",
            "1 (SLURM_JOB_NUM_NODES)",
            "0 (the only node)",
            "?".to_owned(),
            "1234 (SLURM_JOB_ID)".to_owned(),
        ),
        // The innermost program decides: srun in a pod, mpirun in a job of Slurm.
        (
            "slinky-1",
            "Slurm",
            "2 (SLURM_STEP_NUM_NODES)",
            "1 (SLURM_NODEID)",
            format!("node001:26139 (SLURM_STEP_NODELIST, {step})"),
            format!("1234.0 ({step})"),
        ),
        (
            "openmpi-in-slurm-0",
            "Open MPI",
            "2 (OMPI_COMM_WORLD_SIZE)",
            "0 (OMPI_COMM_WORLD_RANK)",
            "node001:PORT (SLURM_JOB_NODELIST, SLURM_JOB_ID, PMIX_NAMESPACE)".to_owned(),
            "1234.prterun-node001-4711@1 (SLURM_JOB_ID, PMIX_NAMESPACE)".to_owned(),
        ),
        (
            "openmpi-in-slurm-1",
            "Open MPI",
            "2 (OMPI_COMM_WORLD_SIZE)",
            "1 (OMPI_COMM_WORLD_RANK)",
            "node001:PORT (SLURM_JOB_NODELIST, SLURM_JOB_ID, PMIX_NAMESPACE)".to_owned(),
            "1234.prterun-node001-4711@1 (SLURM_JOB_ID, PMIX_NAMESPACE)".to_owned(),
        ),
        (
            "openmpi-4-hostfile-0",
            "Open MPI",
            "2 (OMPI_COMM_WORLD_SIZE)",
            "0 (OMPI_COMM_WORLD_RANK)",
            "10.96.0.1:PORT (OMPI_MCA_orte_hnp_uri, PMIX_NAMESPACE)".to_owned(),
            "1531576321 (PMIX_NAMESPACE)".to_owned(),
        ),
        (
            "openmpi-4-hostfile-1",
            "Open MPI",
            "2 (OMPI_COMM_WORLD_SIZE)",
            "1 (OMPI_COMM_WORLD_RANK)",
            "10.96.0.1:PORT (OMPI_MCA_orte_hnp_uri, PMIX_NAMESPACE)".to_owned(),
            "1531576321 (PMIX_NAMESPACE)".to_owned(),
        ),
        (
            "openmpi-master-addr-1",
            "Open MPI",
            "2 (OMPI_COMM_WORLD_SIZE)",
            "1 (OMPI_COMM_WORLD_RANK)",
            "node001:PORT (MASTER_ADDR, PMIX_NAMESPACE)".to_owned(),
            "prterun-node001-4711@1 (PMIX_NAMESPACE)".to_owned(),
        ),
        (
            "hydra-in-slurm-1",
            "MPI (Hydra)",
            "2 (PMI_SIZE)",
            "1 (PMI_RANK)",
            "node001:PORT (SLURM_JOB_NODELIST, SLURM_JOB_ID)".to_owned(),
            "1234 (SLURM_JOB_ID)".to_owned(),
        ),
        (
            "pals-0",
            "MPI (PALS)",
            "2 (PMI_SIZE)",
            "0 (PALS_RANKID)",
            "x1000c0s0b0n0.hsn:PORT (MASTER_ADDR, a fixed name)".to_owned(),
            "mpi (a fixed name)".to_owned(),
        ),
        (
            "lws-0",
            "LeaderWorkerSet",
            "3 (LWS_GROUP_SIZE)",
            "0 (LWS_WORKER_INDEX)",
            "llm-1.llm.default:29400 (LWS_LEADER_ADDRESS)".to_owned(),
            "llm-1 (LWS_LEADER_ADDRESS)".to_owned(),
        ),
        (
            "lws-2",
            "LeaderWorkerSet",
            "3 (LWS_GROUP_SIZE)",
            "2 (LWS_WORKER_INDEX)",
            "llm-1.llm.default:29400 (LWS_LEADER_ADDRESS)".to_owned(),
            "llm-1 (LWS_LEADER_ADDRESS)".to_owned(),
        ),
        (
            "kubernetes-job-0",
            "Kubernetes Job",
            "? JOB_COMPLETION_INDEX is set, but",
            "0 (JOB_COMPLETION_INDEX)",
            "train-job-0.headless-svc.default.svc.cluster.local:29400 (the full host name, JOB_COMPLETION_INDEX)"
                .to_owned(),
            "train-job (the host name)".to_owned(),
        ),
        (
            "kubernetes-job-3",
            "Kubernetes Job",
            "? JOB_COMPLETION_INDEX is set, but",
            "3 (JOB_COMPLETION_INDEX)",
            "train-job-0.headless-svc.default.svc.cluster.local:29400 (the full host name, JOB_COMPLETION_INDEX)"
                .to_owned(),
            "train-job (the host name)".to_owned(),
        ),
        (
            "jobset-1",
            "JobSet",
            "? JOB_COMPLETION_INDEX is set, but",
            "1 (JOB_COMPLETION_INDEX)",
            "pytorch-workers-0-0.pytorch:3389 (MASTER_ADDR, MASTER_PORT)".to_owned(),
            "pytorch-workers-0 (the host name)".to_owned(),
        ),
        (
            "pytorchjob-1",
            "PyTorchJob",
            "3 (WORLD_SIZE)",
            "1 (RANK)",
            "job-master-0:23456 (MASTER_ADDR, MASTER_PORT)".to_owned(),
            "job-master-0 (MASTER_ADDR)".to_owned(),
        ),
    ] {
        let found = found(name);
        assert_eq!(found.scheduler, scheduler, "{name}");
        assert_starts(&shown(&found.nodes), nodes, name);
        assert_eq!(shown(&found.node_rank), rank, "{name}");
        assert_eq!(shown(&found.run_id), run_id, "{name}");
        let port = found.run_id.as_ref().map(|id| site::port_of(&id.value));
        let endpoint = endpoint.replace(":PORT", &format!(":{}", port.unwrap()));
        assert_starts(&shown(&found.endpoint), &endpoint, name);
        assert!(found.is_alone_on_node, "{name}");
        let is_one = nodes.starts_with('1');
        assert_eq!(found.has_several_hosts, !is_one, "{name}");
    }
}

#[test]
fn the_innermost_program_that_started_this_process_decides() {
    let order = [
        "worker-in-slurm",
        "openmpi-master-addr-1",
        "hydra-in-slurm-1",
        "slurm-step-1",
        "pals-0",
        "slurm-batch-one-node",
        "lws-2",
        "kubernetes-job-3",
        "pytorchjob-1",
    ];
    for (index, inner) in order.iter().enumerate() {
        let alone = Recorded::read(inner).find();
        for outer in &order[index + 1..] {
            // A batch script has fewer variables than a step, which would only hide them.
            if alone.is_some() && inner.starts_with("slurm") && outer.starts_with("slurm") {
                continue;
            }
            let mut both = Recorded::read(inner);
            both.lines.extend(Recorded::read(outer).lines);
            let found = both.find().map(|found| found.scheduler);
            let expected = alone.as_ref().map(|found| found.scheduler);
            assert_eq!(found, expected, "{inner} in {outer}");
        }
    }
}

#[test]
fn launchers_that_would_disturb_or_miss_each_other_are_refused() {
    for (name, why) in [
        (
            "slurm-many-tasks",
            "srun starts several launchers on a node (SLURM_STEP_TASKS_PER_NODE is \"8(x2)\"), and each would start all \
             workers of the node (use srun --ntasks-per-node=1)",
        ),
        (
            "slurm-batch",
            "the job has several nodes (SLURM_JOB_NUM_NODES), and srun did not start this launcher, so that the other \
             nodes have none (use srun --ntasks-per-node=1 c10d run)",
        ),
        (
            "slurm-pty",
            "the job has several nodes (SLURM_STEP_NUM_NODES), and",
        ),
        (
            "slurm-interactive-step",
            "the job has several nodes (SLURM_JOB_NUM_NODES), and",
        ),
        (
            "openmpi-many-tasks",
            "mpirun starts 4 launchers on this node (OMPI_COMM_WORLD_LOCAL_SIZE), and each would start all workers of \
             the node (use mpirun --map-by ppr:1:node)",
        ),
    ] {
        let found = found(name);
        assert_starts(&found.nodes.unwrap_err(), why, name);
        let shares_node = name.ends_with("many-tasks");
        assert_eq!(found.is_alone_on_node, !shares_node, "{name}");
        assert!(!shares_node || found.node_rank.is_err(), "{name}");
    }
}

#[test]
fn an_unknown_endpoint_or_rank_has_a_reason_and_advice() {
    for (name, why) in [
        (
            "openmpi-5-hostfile-1",
            "the environment does not name the host of rank 0; set MASTER_ADDR on all nodes to the host of rank 0",
        ),
        (
            "openmpi-4-elsewhere",
            "mpirun runs on another machine (10.96.0.1 in OMPI_MCA_orte_hnp_uri) than rank 0; set MASTER_ADDR",
        ),
        (
            "openmpi-other-first-host",
            "rank 0 runs on node002, and not on node001, the first host in SLURM_JOB_NODELIST; set MASTER_ADDR",
        ),
        (
            "kubernetes-job-no-subdomain",
            "this pod's name has no domain, so other pods cannot reach it; create a headless Service",
        ),
    ] {
        assert_starts(&found(name).endpoint.unwrap_err(), why, name);
    }
}

#[test]
fn a_shell_on_a_login_node_and_a_worker_belong_to_no_scheduler() {
    for name in ["slurm-salloc-login", "worker-in-slurm"] {
        assert_eq!(Recorded::read(name).find(), None, "{name}");
    }
    let nothing = Recorded { lines: Vec::new() };
    assert_eq!(nothing.find(), None);
}

#[test]
fn gpus_and_grace_periods_are_those_of_the_scheduler() {
    for (name, gpus, grace_secs) in [
        ("slurm-step-1", Some(8), Some(30)),
        ("openmpi-in-slurm-1", None, None),
        ("lws-2", None, Some(30)),
        ("kubernetes-job-3", None, Some(30)),
    ] {
        let found = found(name);
        assert_eq!(found.gpus.map(|gpus| gpus.value), gpus, "{name}");
        let grace = found.grace_period.map(|grace| grace.as_secs());
        assert_eq!(grace, grace_secs, "{name}");
    }
}

#[test]
fn hostile_values_are_errors() {
    for (changed, value) in [
        ("SLURM_STEP_NODELIST", "n[0-999999999999]"),
        ("SLURM_STEP_NODELIST", "n[1-2],$(reboot)"),
        ("SLURM_NODEID", "-1"),
        ("SLURM_NODEID", "99999999999999999999999"),
        ("SLURM_STEP_NUM_NODES", "0"),
        ("SLURM_STEP_NUM_NODES", "two"),
    ] {
        let mut recorded = Recorded::read("slurm-step-1");
        for line in &mut recorded.lines {
            if line
                .split_once('=')
                .is_some_and(|(name, _)| name == changed)
            {
                *line = format!("{changed}={value}");
            }
        }
        let (found, doubts) = recorded.find_with_doubts();
        let found = found.unwrap();
        let is_number = value != "0" && changed != "SLURM_STEP_NODELIST";
        assert_eq!(doubts.len(), usize::from(is_number), "{doubts:?}");
        let why = match changed {
            "SLURM_STEP_NODELIST" => found.endpoint.unwrap_err(),
            "SLURM_NODEID" => found.node_rank.unwrap_err(),
            _ => found.nodes.unwrap_err(),
        };
        assert_starts(&why, changed, value);
    }
}
