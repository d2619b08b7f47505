//! Finds out from the environment which job this launcher belongs to: its nodes, this node's rank, where nodes meet.
//!
//! Pure: the environment and files are arguments. The innermost program that started this process decides: mpirun in a
//! job of Slurm, and Slurm in a pod of Kubernetes.

mod kubernetes;
mod mpi;
mod site;
mod slurm;

use self::site::Variables;
pub use self::site::{Finding, Found, Site, Sourced};

/// The job of this process, `None` outside of any, and in a worker of a launcher; and warnings about values that cannot
/// be right.
pub fn find(
    variable: &dyn Fn(&str) -> Option<String>,
    site: &Site<'_>,
) -> (Option<Found>, Vec<String>) {
    let variables = Variables(variable);
    // The scheduler started the launcher of this worker.
    if variables.has("TORCHELASTIC_RUN_ID") {
        return (None, Vec::new());
    }
    let mut found = find_job(variables, site);
    let doubts = doubts(variables, found.as_ref());
    if let Some(found) = &mut found
        && let Some(why) = contradiction(found)
    {
        found.node_rank = Err(why.clone());
        found.contradiction = Some(why);
    }
    (found, doubts)
}

fn find_job(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    mpi::find(variables, site)
        .or_else(|| slurm::find_step(variables, site))
        .or_else(|| mpi::find_pals(variables, site))
        .or_else(|| slurm::find_batch(variables))
        .or_else(|| kubernetes::find(variables, site))
}

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

/// Returns a text for each value that is not a number, and for a rank that is too high for the number of nodes.
fn doubts(variables: Variables<'_>, found: Option<&Found>) -> Vec<String> {
    let numbers = NUMBERS.iter().filter(|name| variables.has(name));
    let mut doubts: Vec<String> = numbers
        .filter_map(|name| variables.number(&[name]).err())
        .collect();
    doubts.extend(slurm::gpus(variables).err());
    doubts.extend(found.and_then(contradiction));
    doubts
}

/// Returns a text if the rank is not below the number of nodes.
fn contradiction(found: &Found) -> Option<String> {
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

#[cfg(test)]
mod tests;
