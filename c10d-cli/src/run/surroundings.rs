//! The inputs of the plan besides the options: the environment, devices and names of this machine.

use std::io::{self, IsTerminal};
use std::net::IpAddr;
use std::path::Path;
#[cfg(feature = "etcd")]
use std::sync::Arc;
use std::time::{Duration, Instant};

#[cfg(feature = "etcd")]
use c10d_journal::{EtcdAddressError, EtcdDirectory, EtcdJournal};
use c10d_socket::{Deadline, host_name};
use elastic_agent::devices::{self, Cpus};
use elastic_agent::scheduler::Site;
#[cfg(feature = "etcd")]
use elastic_rendezvous::StoreDirectory;
use elastic_rendezvous::this_host::{self, Resolver, SystemResolver};

use super::interpreter;
use super::options::{DEBUGGER, RunOptions, RunPlan, Surroundings};
use crate::ephemeral_ports::EphemeralPorts;
#[cfg(feature = "etcd")]
use crate::etcd::{EtcdAccessArgs, EtcdCandidateArgs};
use crate::failure::Failure;

/// The limit for looking up the host of an endpoint, which is the rendezvous' limit.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The plan of this node. May block for 2 s, to ask for names.
pub(crate) fn plan(options: RunOptions) -> Result<RunPlan, Failure> {
    let credentials = options.credentials()?;
    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings {
        variable: &variable,
        environment: std::env::vars_os()
            .filter(|(name, _)| name != interpreter::OWN && name != DEBUGGER)
            .collect(),
        interpreter: interpreter::find(interpreter::called_command().as_deref(), &|name| {
            std::env::var_os(name)
        }),
        credentials,
        ephemeral_ports: EphemeralPorts::of_this_system(),
        count_devices: &|kind| devices::count(kind, Path::new("/"), &variable),
        count_cpus: &|| Cpus::here(Path::new("/")).ok(),
        seed: fastrand::u64(..),
        site: &Site {
            host_name: &host_name,
            full_name: &this_host::full_name,
            has_address: &has_address,
            is_interactive: io::stdin().is_terminal(),
        },
    };
    #[cfg(feature = "etcd")]
    let (access, candidate) = options.etcd_args();
    let plan = options
        .resolve(&surroundings)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    #[cfg(feature = "etcd")]
    let plan = with_store_in_etcd(plan, &access, &candidate)?;
    Ok(plan)
}

/// Reads the files that etcd's options name.
#[cfg(feature = "etcd")]
fn with_store_in_etcd(
    mut plan: RunPlan,
    access: &EtcdAccessArgs,
    candidate: &EtcdCandidateArgs,
) -> Result<RunPlan, Failure> {
    let Some(candidates) = plan.store_candidates else {
        return Ok(plan);
    };
    let parsed = plan.launcher.rendezvous.endpoint().parse();
    let etcd = parsed.map_err(|error: EtcdAddressError| Failure::Usage(error.to_string()))?;
    let etcd = candidate.of(access.of(etcd)?);
    let network = etcd.members()[0].clone();
    let lookup = Arc::new(EtcdDirectory::new(etcd.clone()));
    let journal = move |address| EtcdJournal::source(etcd.clone(), address);
    let store = StoreDirectory::new(lookup, network).with_candidates(candidates, journal);
    let store = match plan.store_port {
        Some(port) => store.with_port(port),
        None => store,
    };
    plan.launcher.rendezvous = plan.launcher.rendezvous.with_store(store);
    Ok(plan)
}

/// Whether this name is this machine's. May block for 2 s.
pub(super) fn is_this_host(host: &str) -> bool {
    let deadline = Deadline::after(Instant::now(), LOOKUP_TIMEOUT);
    this_host::is_this_host(host, &SystemResolver::new(deadline))
}

fn has_address(address: IpAddr) -> bool {
    SystemResolver::new(Deadline::at(Instant::now())).has_address(address)
}
