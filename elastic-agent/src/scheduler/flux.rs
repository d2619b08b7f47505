//! Flux: `flux run c10d run` starts one launcher on each node.
//!
//! Variables: "JOB ENVIRONMENT" of flux-environment(7). The environment has no list of hosts. Batch scripts and shells
//! have none of these variables, which Flux unsets there.

use std::time::Duration;

use super::found::Found;
use super::site::Variables;

/// Flux's default of `kill-timeout` in the table `exec`.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The job of which this process is a task.
pub(super) fn find(variables: Variables<'_>) -> Option<Found> {
    if !variables.has_all(&["FLUX_JOB_ID", "FLUX_TASK_RANK"]) {
        return None;
    }
    let run_id = variables
        .first(&["FLUX_JOB_ID"])
        .ok_or_else(|| "FLUX_JOB_ID is not set".to_owned());
    let nodes = variables.count(&["FLUX_JOB_NNODES"]);
    let tasks = variables.count(&["FLUX_JOB_SIZE"]);
    let found = Found {
        node_rank: variables.number(&["FLUX_TASK_RANK"]),
        endpoint: match variables.first(&["MASTER_ADDR"]) {
            Some(host) => variables.endpoint_on(host, &run_id),
            None => Err(
                "the environment has no list of hosts; set MASTER_ADDR to the host of rank 0, as printed by \
                 `flux hostlist --nth=0 local` in the job"
                    .to_owned(),
            ),
        },
        has_several_hosts: nodes.as_ref().is_ok_and(|nodes| nodes.value > 1),
        nodes,
        run_id,
        grace_period: Some(KILL_TIMEOUT),
        ..Found::by("Flux")
    };
    match (&found.nodes, &tasks) {
        (Ok(nodes), Ok(tasks)) if tasks.value > nodes.value => {
            let why = format!(
                "flux starts {} launchers on {} nodes (FLUX_JOB_SIZE, FLUX_JOB_NNODES), and each would start all \
                 workers of its node; use flux run --nodes={1} --ntasks={1}",
                tasks.value, nodes.value,
            );
            Some(found.refuse_launchers(&why))
        }
        _ => Some(found),
    }
}
