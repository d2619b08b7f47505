//! The environment variables of a worker.
//!
//! Reads no environment: the environment of the agent is an argument. `OMP_NUM_THREADS` is passed on like any other
//! variable; the launcher decides on it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use c10d_socket::HostPort;

use crate::places::ProcessId;
use crate::ranks::Assignment;

/// Names the unix socket on which the worker's debug server should listen.
pub(crate) const DEBUG_SOCKET: &str = "C10D_DEBUG_SOCKET";
/// Names the file in which the worker reports its progress.
pub(crate) const PROGRESS_FILE: &str = "C10D_PROGRESS_FILE";
/// Names the pipe into which the worker writes timers, like in PyTorch.
pub(crate) const TIMER_FILE: &str = "TORCHELASTIC_TIMER_FILE";
const MASTER_ADDR: &str = "MASTER_ADDR";
const MASTER_PORT: &str = "MASTER_PORT";
/// The address of the store itself, for workers that reach it through a relay.
const STORE_ADDR: &str = "C10D_MASTER_ADDR";
const STORE_PORT: &str = "C10D_MASTER_PORT";
/// With `1`, checkpoints in a separate process use a prefix of the store at MASTER_ADDR, instead of another store on
/// that host.
const DCP_USE_PREFIX_STORE: &str = "DCP_USE_PREFIX_STORE";
/// `1` for workers that survive others.
const KEEP_WORKERS: &str = "C10D_KEEP_WORKERS";
/// Names the interface at whose address gloo listens.
pub(crate) const GLOO_SOCKET_IFNAME: &str = "GLOO_SOCKET_IFNAME";
const NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// The variables in which workers of a node differ, or those of two rounds: names, or prefixes with `*`.
const VARYING: [&str; 15] = [
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_*",
    "C10D_MASTER_*",
    "C10D_MEMBER*",
    GLOO_SOCKET_IFNAME,
];

/// The environment variables of a worker: the variables of the agent, and PyTorch's.
///
/// ```
/// use elastic_agent::{Assignment, HostPort, RankBlock, WorkerEnvironment};
///
/// let ranks: Assignment = RankBlock::identical(1, 2, 4).assignment(1, 2, 4, 3);
/// let master = HostPort::new("node0", 29500);
/// let environment = WorkerEnvironment::new(std::env::vars_os(), &ranks, "job", &master);
/// let variables = environment.with_role("trainer").into_variables();
/// assert!(variables.contains(&("RANK".into(), "7".into())));
/// assert!(variables.contains(&("MASTER_PORT".into(), "29500".into())));
/// ```
///
/// In PyTorch: `_start_workers` (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct WorkerEnvironment(BTreeMap<OsString, OsString>);

/// The identity of a worker in the membership group, whose survivors keep running when another worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupMember<'a> {
    /// The group's name on the workers' store.
    pub(crate) group: &'a str,
    pub(crate) process: ProcessId,
    /// The number of members that the group had at first.
    pub(crate) members_first: usize,
    /// The minimum number of members; with fewer, the group does no work.
    pub(crate) members_min: usize,
}

impl WorkerEnvironment {
    /// Creates the environment of a worker with these ranks, in the job `run_id`, whose workers meet at `master`, with
    /// PyTorch's defaults. `inherited` is the environment of the agent. Variables in it that an outer launcher has set
    /// for its own workers are replaced or removed.
    pub fn new(
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
        ranks: &Assignment,
        run_id: &str,
        master: &HostPort,
    ) -> Self {
        let mut variables: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
        variables.retain(|name, _| {
            !name.as_encoded_bytes().starts_with(b"C10D_MEMBER")
                && ![KEEP_WORKERS, STORE_ADDR, STORE_PORT].contains(&&*name.to_string_lossy())
        });
        let numbers = [
            ("RANK", ranks.rank),
            ("LOCAL_RANK", ranks.local_rank),
            ("GROUP_RANK", ranks.group_rank),
            ("ROLE_RANK", ranks.role_rank),
            ("LOCAL_WORLD_SIZE", ranks.local_world_size),
            ("WORLD_SIZE", ranks.world_size),
            ("GROUP_WORLD_SIZE", ranks.group_world_size),
            ("ROLE_WORLD_SIZE", ranks.role_world_size),
        ];
        let numbers = numbers.map(|(name, number)| (name.into(), number.to_string().into()));
        variables.extend(numbers);
        Self(variables)
            .with("TORCHELASTIC_RUN_ID", run_id)
            .with(MASTER_ADDR, master.host())
            .with(MASTER_PORT, master.port().to_string())
            // With this setting, a hanging collective stops its worker instead of the whole job making no progress.
            .with_default(NCCL_ASYNC_ERROR_HANDLING, "1")
            .with_role("default")
            .with_restarts(0, 0)
            .with_agent_store(false)
            .with_error_file(Path::new(""))
    }

    /// Sets the role of the worker. The default is PyTorch's, `default`.
    pub fn with_role(self, role: &str) -> Self {
        self.with("ROLE_NAME", role)
    }

    /// Sets how often this node has restarted its workers after a failure, and how often it may. The default
    /// is 0 of 0.
    pub fn with_restarts(self, count: usize, max: usize) -> Self {
        self.with("TORCHELASTIC_RESTART_COUNT", count.to_string())
            .with("TORCHELASTIC_MAX_RESTARTS", max.to_string())
    }

    /// Sets whether a store server already runs at the master address, so that the worker with rank 0 connects
    /// to it instead of starting one. Off by default: then no agent has to serve one.
    pub fn with_agent_store(self, is_running: bool) -> Self {
        // PyTorch compares with Python's spelling.
        let value = if is_running { "True" } else { "False" };
        self.with("TORCHELASTIC_USE_AGENT_STORE", value)
    }

    /// Sets the relay on this node through which the worker reaches the store: MASTER_ADDR and MASTER_PORT name the relay,
    /// and `C10D_MASTER_ADDR` and `C10D_MASTER_PORT` the store itself.
    pub fn with_relay(mut self, relay: &HostPort) -> Self {
        for (store, master) in [(STORE_ADDR, MASTER_ADDR), (STORE_PORT, MASTER_PORT)] {
            let value = self.0.get(OsStr::new(master)).cloned().unwrap_or_default();
            self.0.entry(store.into()).or_insert(value);
        }
        self.with(MASTER_ADDR, relay.host())
            .with(MASTER_PORT, relay.port().to_string())
            // At 127.0.0.1 of rank 0's node no other node reaches a second store.
            .with_default(DCP_USE_PREFIX_STORE, "1")
    }

    /// Sets the file in which the worker may write its exception. By default it cannot.
    pub fn with_error_file(self, path: &Path) -> Self {
        self.with("TORCHELASTIC_ERROR_FILE", path)
    }

    /// Makes one of the devices that the agent may use the only visible one, with local rank 0 (`--virtual-local-rank`).
    ///
    /// # Errors
    /// [`EnvironmentError::TooFewDevices`] if the agent's variables list too few devices for this local rank.
    pub fn with_one_device(self, local_rank: usize) -> Result<Self, EnvironmentError> {
        let devices = |name| self.0.get(OsStr::new(name));
        // ROCm reads both variables, and HIP_VISIBLE_DEVICES takes precedence.
        let has_hip = devices(HIP_VISIBLE_DEVICES).is_some_and(|devices| !devices.is_empty());
        let variable = if has_hip {
            HIP_VISIBLE_DEVICES
        } else {
            CUDA_VISIBLE_DEVICES
        };
        let device = match devices(variable).map(|devices| devices.to_string_lossy()) {
            None => local_rank.to_string(),
            Some(devices) => match devices.split(',').nth(local_rank) {
                Some(device) => device.trim().to_owned(),
                None => {
                    return Err(EnvironmentError::TooFewDevices {
                        local_rank,
                        variable,
                        devices: devices.into_owned(),
                    });
                }
            },
        };
        let environment = self
            .with("LOCAL_RANK", "0")
            .with(variable, &device)
            .with(CUDA_VISIBLE_DEVICES, &device);
        Ok(environment)
    }

    /// Sets the variables of the membership group of the worker: docs/how-to/keep-workers.md.
    pub(crate) fn with_membership(self, member: GroupMember<'_>) -> Self {
        let ProcessId { rank, start } = member.process;
        let incarnation = member.process.member().incarnation.0;
        self.with(KEEP_WORKERS, "1")
            .with("C10D_MEMBERSHIP_GROUP", member.group)
            .with("C10D_MEMBER_ID", rank.to_string())
            .with("C10D_MEMBER_INCARNATION", incarnation.to_string())
            .with("C10D_MEMBER_SERIAL", start.to_string())
            .with("C10D_MEMBERS_FIRST", member.members_first.to_string())
            .with("C10D_MEMBERS_MIN", member.members_min.to_string())
    }

    /// Sets a variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// Sets a variable if there is a value. Otherwise it stays as it is.
    pub(crate) fn with_some(self, name: &str, value: Option<impl Into<OsString>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Sets a variable unless it is inherited.
    pub(crate) fn with_default(mut self, name: &str, value: &str) -> Self {
        let variable = self.0.entry(name.into());
        variable.or_insert_with(|| value.into());
        self
    }

    /// Returns all variables, sorted by their names, each name once.
    #[must_use]
    pub fn into_variables(self) -> Vec<(OsString, OsString)> {
        self.0.into_iter().collect()
    }
}

/// Returns the variables that are equal for all workers of a node in all rounds, and the names of the variables in
/// which they differ, in the form of [`VARYING`]. `inherited` is the environment of the agent.
pub(crate) fn common(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    has_virtual_local_rank: bool,
) -> (Vec<(OsString, OsString)>, Vec<String>) {
    let devices = [CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES];
    let devices = devices.into_iter().filter(|_| has_virtual_local_rank);
    let varying: Vec<String> = VARYING
        .into_iter()
        .chain(devices)
        .map(str::to_owned)
        .collect();
    let is_varying = |name: &OsStr| {
        varying
            .iter()
            .any(|varying| match varying.strip_suffix('*') {
                Some(prefix) => name.as_encoded_bytes().starts_with(prefix.as_bytes()),
                None => name == OsStr::new(varying),
            })
    };
    let mut variables: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
    variables.retain(|name, _| !is_varying(name) && name != DEBUG_SOCKET);
    variables
        .entry(NCCL_ASYNC_ERROR_HANDLING.into())
        .or_insert_with(|| "1".into());
    (variables.into_iter().collect(), varying)
}

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const HIP_VISIBLE_DEVICES: &str = "HIP_VISIBLE_DEVICES";

/// The reason why the environment of a worker could not be composed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Each worker needs its own device, and fewer devices than workers are visible.
    #[error("local rank {local_rank} has no device in {variable}={devices}")]
    TooFewDevices {
        /// The first worker without a device.
        local_rank: usize,
        /// The variable that lists the devices.
        variable: &'static str,
        /// The value of the variable.
        devices: String,
    },
}

c10d_socket::debug_as_display!(EnvironmentError);
