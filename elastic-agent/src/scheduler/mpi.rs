//! MPI: `mpirun c10d run` starts one launcher on each node.
//!
//! Variables: "Environment variables set for MPI applications" of Open MPI; the variables of MPICH's Hydra, which
//! Intel MPI also uses; the variables of HPE's PALS. They lack a list of hosts, which the surrounding scheduler has.

use super::site::{Finding, Found, Site, Sourced, Variables, is_same_host};
use super::slurm;

/// The variables of one implementation.
struct Dialect {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// The number of processes on this node.
    local_size: &'static str,
    /// The option for one process on each node.
    one_per_node: &'static str,
}

const OPEN_MPI: Dialect = Dialect {
    name: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    one_per_node: "--map-by ppr:1:node",
};

const HYDRA: Dialect = Dialect {
    name: "MPI (Hydra)",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    local_size: "MPI_LOCALNRANKS",
    one_per_node: "-ppn 1",
};

const PALS: Dialect = Dialect {
    name: "MPI (PALS)",
    rank: "PALS_RANKID",
    size: "PMI_SIZE",
    local_size: "PMI_LOCAL_SIZE",
    one_per_node: "--ppn 1",
};

/// A job of Open MPI or Hydra.
pub(super) fn find(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    let mut dialects = [OPEN_MPI, HYDRA].into_iter();
    dialects.find_map(|dialect| find_in(&dialect, variables, site))
}

/// Finds a job of PALS. Slurm can also set its variables.
pub(super) fn find_pals(variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    find_in(&PALS, variables, site)
}

fn find_in(dialect: &Dialect, variables: Variables<'_>, site: &Site<'_>) -> Option<Found> {
    if !variables.has_all(&[dialect.rank, dialect.size, dialect.local_size]) {
        return None;
    }
    let rank = variables.number(&[dialect.rank]);
    let size = variables.count(&[dialect.size]);
    let run_id = run_id(variables);
    let is_first = rank.as_ref().is_ok_and(|rank| rank.value == 0);
    let host = host_of_first(variables, site, is_first);
    let found = Found {
        endpoint: host.and_then(|host| variables.endpoint_on(host, &run_id)),
        has_several_hosts: size.as_ref().is_ok_and(|size| size.value > 1),
        nodes: size,
        node_rank: rank,
        run_id,
        ..Found::by(dialect.name)
    };
    match variables.count(&[dialect.local_size]) {
        Ok(Sourced { value: 1, .. }) => Some(found),
        Ok(Sourced { value, from }) => Some(found.refuse_launchers(&format!(
            "mpirun starts {value} launchers on this node ({from}), and each would start all workers of the node \
             (use mpirun {})",
            dialect.one_per_node,
        ))),
        Err(why) => Some(found.refuse_launchers(&why)),
    }
}

fn run_id(variables: Variables<'_>) -> Finding<String> {
    let job = slurm::id_of_job(variables);
    let namespace = variables.first(&["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]);
    match (job, namespace) {
        (Some(job), Some(namespace)) => Ok(Sourced::new(
            format!("{}.{}", job.value, namespace.value),
            format!("{}, {}", job.from, namespace.from),
        )),
        (Some(id), None) | (None, Some(id)) => Ok(id),
        (None, None) => Ok(Sourced::new("mpi".to_owned(), "a fixed name")),
    }
}

/// The host of rank 0, by the surest source. On that host itself, checks the source as far as possible.
fn host_of_first(variables: Variables<'_>, site: &Site<'_>, is_first: bool) -> Finding<String> {
    if let Some(host) = variables.first(&["MASTER_ADDR"]) {
        return Ok(host);
    }
    let advice = "set MASTER_ADDR on all nodes to the host of rank 0";
    if let Some(listed) = slurm::hosts_of_job(variables) {
        let hosts = listed.map_err(|why| format!("{why}; {advice}"))?;
        let first = hosts.value.first().cloned().unwrap_or_default();
        let own = (site.host_name)();
        let is_elsewhere = |host: &String| is_same_host(host, &own);
        // Mapped by mpirun's own list of hosts.
        if is_first && !is_same_host(&first, &own) && hosts.value.iter().any(is_elsewhere) {
            return Err(format!(
                "rank 0 runs on {own}, and not on {first}, the first host in {}; {advice}",
                hosts.from
            ));
        }
        return Ok(Sourced::new(first, hosts.from));
    }
    // Open MPI 4. In 5, only the process on the same machine is named.
    let name = "OMPI_MCA_orte_hnp_uri";
    let uri = variables.text(name);
    let Some(address) = uri.as_deref().and_then(first_address) else {
        return Err(format!(
            "the environment does not name the host of rank 0; {advice}"
        ));
    };
    if is_first && !(site.has_address)(address.into()) {
        return Err(format!(
            "mpirun runs on another machine ({address} in {name}) than rank 0; {advice}"
        ));
    }
    Ok(Sourced::new(address.to_string(), name))
}

/// The first IPv4 address in `1531576320.0;tcp://10.96.0.1,10.148.0.1:34911` that other machines can use to reach
/// mpirun.
fn first_address(uri: &str) -> Option<std::net::Ipv4Addr> {
    let contacts = uri
        .split(';')
        .filter_map(|part| part.strip_prefix("tcp://"));
    let addresses = contacts.flat_map(|contact| {
        let addresses = contact
            .split_once(':')
            .map_or(contact, |(hosts, _port)| hosts);
        addresses.split(',')
    });
    addresses
        .filter_map(|address| address.parse().ok())
        .find(|address: &std::net::Ipv4Addr| !address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpiruns_address_is_the_first_that_is_no_loopback_address() {
        for (uri, address) in [
            (
                "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
                Some("10.96.0.1"),
            ),
            ("7.0;tcp://127.0.0.1,172.20.1.82:33559", Some("172.20.1.82")),
            (
                "7.0;tcp://172.20.1.82:33559;tcp://172.40.1.82:33559",
                Some("172.20.1.82"),
            ),
            ("7.0;tcp6://[fe80::b9b:ac5d]:43370", None),
            ("7.0;usock", None),
            ("", None),
        ] {
            let found = first_address(uri).map(|address| address.to_string());
            assert_eq!(found.as_deref(), address, "{uri}");
        }
    }
}
