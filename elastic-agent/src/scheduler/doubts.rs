//! Values of a scheduler's environment that cannot be right. They are not used, and the user is told.

use super::found::Found;
use super::site::Variables;
use super::slurm;

/// Variables that are whole numbers, 0 or more, wherever they are set.
const NUMBERS: [&str; 16] = [
    "SLURM_STEP_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NODEID",
    "SLURM_RESTART_COUNT",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_SIZE",
    "PMI_RANK",
    "PMI_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "PALS_RANKID",
    "LWS_GROUP_SIZE",
    "LWS_WORKER_INDEX",
    "JOB_COMPLETION_INDEX",
];

/// One text for each value that is no number, and for a rank that the number of nodes excludes.
pub(super) fn doubts(variables: Variables<'_>, found: Option<&Found>) -> Vec<String> {
    let numbers = NUMBERS.iter().filter(|name| variables.has(name));
    let mut doubts: Vec<String> = numbers
        .filter_map(|name| variables.number(&[name]).err())
        .collect();
    doubts.extend(slurm::gpus(variables).err());
    doubts.extend(found.and_then(contradiction));
    doubts
}

/// That the rank is not one of as many nodes as there are.
pub(super) fn contradiction(found: &Found) -> Option<String> {
    let (nodes, rank) = (found.nodes.as_ref().ok()?, found.node_rank.as_ref().ok()?);
    (rank.value >= nodes.value).then(|| {
        format!(
            "{} is {}, but {} is {}, so that the highest rank is {}",
            rank.from,
            rank.value,
            nodes.from,
            nodes.value,
            nodes.value - 1
        )
    })
}
