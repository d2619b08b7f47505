//! Kubernetes: one launcher in each pod of an Indexed Job, of a JobSet or LeaderWorkerSet, or of an operator that sets
//! PyTorch's variables.
//!
//! Variables: "Indexed Job" in Kubernetes' documentation; the API of LeaderWorkerSet (`LWS_...`); the Kubeflow
//! training operator's PyTorchJob. Kubeflow's TrainJob sets torchrun's `PET_...`, which count as given options.

use std::time::Duration;

use super::site::{Found, Site, Sourced, Variables};

/// The default of a pod's `terminationGracePeriodSeconds`.
const GRACE_PERIOD: Duration = Duration::from_secs(30);

/// torchrun's port of a c10d rendezvous. Each pod has its own ports.
const PORT: u16 = 29400;

/// Finds the group of pods that this pod is a part of.
pub(super) fn find(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    leader_worker_set(variables)
        .or_else(|| indexed_job(variables, site))
        .or_else(|| operator(variables))
}

fn leader_worker_set(variables: Variables<'_>) -> Option<Found> {
    let leader = variables.first(&["LWS_LEADER_ADDRESS"])?;
    let nodes = variables.count(&["LWS_GROUP_SIZE"]);
    // The leader's pod is named after its group: `NAME-GROUP.NAME.NAMESPACE`.
    let group = leader.value.split('.').next().unwrap_or_default();
    Some(Found {
        nodes,
        node_rank: variables.number(&["LWS_WORKER_INDEX"]),
        run_id: Ok(Sourced::new(group.to_owned(), leader.from.clone())),
        endpoint: Ok(Sourced::new(
            format!("{}:{PORT}", leader.value),
            leader.from,
        )),
        ..pods("LeaderWorkerSet")
    })
}

fn indexed_job(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    let index = variables.first(&["JOB_COMPLETION_INDEX"])?;
    let name = pod_name(&index, site);
    let run_id = name
        .clone()
        .map(|(job, _)| Sourced::new(job, "the host name"));
    let by_name = name.and_then(|(job, domain)| match domain {
        Some(domain) => Ok(Sourced::new(
            format!("{job}-0.{domain}:{PORT}"),
            format!("the full host name, {}", index.from),
        )),
        None => Err(
            "this pod's name has no domain, so other pods cannot reach it; create a headless Service, and name it in \
             the pods' `subdomain`"
                .to_owned(),
        ),
    });
    let scheduler = match variables.has("JOBSET_NAME") {
        true => "JobSet",
        false => "Kubernetes Job",
    };
    Some(Found {
        nodes: Err(
            "JOB_COMPLETION_INDEX is set, but the environment of an Indexed Job does not have the number of pods; set \
             PET_NNODES to the job's `completions`, or to 1 for pods that work alone"
                .to_owned(),
        ),
        node_rank: variables.number(&["JOB_COMPLETION_INDEX"]),
        endpoint: match master(variables) {
            Some(given) => Ok(given),
            None => by_name,
        },
        run_id,
        ..pods(scheduler)
    })
}

/// The training operator before it set `PET_...`, and others with the same variables.
fn operator(variables: Variables<'_>) -> Option<Found> {
    let names = [
        "KUBERNETES_SERVICE_HOST",
        "MASTER_PORT",
        "WORLD_SIZE",
        "RANK",
    ];
    if !variables.has_all(&names) {
        return None;
    }
    let endpoint = master(variables)?;
    let host = variables.first(&["MASTER_ADDR"])?;
    Some(Found {
        nodes: variables.count(&["WORLD_SIZE"]),
        node_rank: variables.number(&["RANK"]),
        endpoint: Ok(endpoint),
        run_id: Ok(host),
        ..pods("PyTorchJob")
    })
}

fn pods(scheduler: &'static str) -> Found {
    Found {
        has_several_hosts: true,
        grace_period: Some(GRACE_PERIOD),
        ..Found::by(scheduler)
    }
}

/// The endpoint in MASTER_ADDR and MASTER_PORT.
fn master(variables: Variables<'_>) -> Option<Sourced<String>> {
    let host = variables.first(&["MASTER_ADDR"])?;
    Some(match variables.text("MASTER_PORT") {
        Some(port) => Sourced::new(
            format!("{}:{port}", host.value),
            format!("{}, MASTER_PORT", host.from),
        ),
        None => Sourced::new(format!("{}:{PORT}", host.value), host.from),
    })
}

/// The name of the job and the domain of its pods, from this pod's name, `JOB-INDEX.DOMAIN`. Kubernetes writes the
/// domain to the hosts file if the pod has a subdomain.
fn pod_name(index: &Sourced<String>, site: &Site<'_>) -> Result<(String, Option<String>), String> {
    let full = (site.full_name)();
    let (name, domain) = match full.split_once('.') {
        Some((name, domain)) => (name, Some(domain.to_owned())),
        None => (full.as_str(), None),
    };
    let job = name
        .strip_suffix(index.value.trim())
        .and_then(|name| name.strip_suffix('-'));
    match job.filter(|job| !job.is_empty()) {
        Some(job) => Ok((job.to_owned(), domain)),
        None => Err(format!(
            "this pod's host name, {name:?}, must have its index, {:?} ({}), as its last part",
            index.value, index.from
        )),
    }
}
