//! Finds out from the environment which job this launcher belongs to: its nodes, this node's rank, where nodes meet.
//!
//! Pure: the environment and files are arguments. The innermost program that started this process decides: mpirun in a
//! job of Slurm, and Slurm in a pod of Kubernetes.

mod doubts;
mod found;
mod hostlist;
mod kubernetes;
mod mpi;
mod site;
mod slurm;

pub use found::{Finding, Found, Sourced};
pub use site::Site;
use site::Variables;

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
    let doubts = doubts::doubts(variables, found.as_ref());
    if let Some(found) = &mut found
        && let Some(why) = doubts::contradiction(found)
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

#[cfg(test)]
mod tests;
