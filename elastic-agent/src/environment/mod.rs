//! The environment variables of a worker.
//!
//! Reads no environment: the agent's own is an argument. `OMP_NUM_THREADS` is passed on like any other
//! variable; the launcher decides on it.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use c10d_socket::HostPort;

use crate::places;
use crate::ranks::Assignment;

/// Names the unix socket on which the worker's debug server should listen.
const DEBUG_SOCKET: &str = "C10D_DEBUG_SOCKET";
/// Names the file in which the worker reports its progress.
const PROGRESS_FILE: &str = "C10D_PROGRESS_FILE";
/// Names the pipe into which the worker writes timers, as in PyTorch.
const TIMER_FILE: &str = "TORCHELASTIC_TIMER_FILE";
/// The address of the store itself, for workers that reach it through a relay.
const STORE_ADDR: &str = "C10D_MASTER_ADDR";
const STORE_PORT: &str = "C10D_MASTER_PORT";
/// `1`: checkpoints in a process of their own use a prefix of the store at MASTER_ADDR, instead of another store there.
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

/// What a worker learns from its environment.
///
/// ```
/// use elastic_agent::{Assignment, HostPort, RankBlock, WorkerEnvironment};
///
/// let ranks: Assignment = RankBlock::identical(1, 2, 4).assignment(1, 2, 4, 3);
/// let master = HostPort::new("node0", 29500);
/// let variables = WorkerEnvironment::new(ranks, "job", &master).variables([])?;
/// assert!(variables.contains(&("RANK".into(), "7".into())));
/// assert!(variables.contains(&("MASTER_PORT".into(), "29500".into())));
/// # Ok::<(), elastic_agent::EnvironmentError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct WorkerEnvironment<'a> {
    assignment: Assignment,
    run_id: &'a str,
    master: &'a HostPort,
    relay: Option<&'a HostPort>,
    role: &'a str,
    restart_count: usize,
    max_restarts: usize,
    use_agent_store: bool,
    error_file: Option<&'a Path>,
    virtual_local_rank: bool,
    debug_socket: Option<&'a Path>,
    progress_file: Option<&'a Path>,
    timer_file: Option<&'a Path>,
    gloo_interface: Option<&'a str>,
    membership: Option<GroupMember<'a>>,
    has_breakpoints: bool,
}

/// What a worker is in the membership group, whose survivors go on when another worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupMember<'a> {
    /// The group's name on the workers' store.
    pub(crate) group: &'a str,
    /// A number that no other process of the group ever has.
    pub(crate) serial: u64,
    /// How many members the group had at first.
    pub(crate) members_first: usize,
    /// With fewer members the group does no work.
    pub(crate) members_min: usize,
}

impl<'a> WorkerEnvironment<'a> {
    /// The environment of a worker with these ranks, in the job `run_id`, whose workers meet at `master`.
    pub const fn new(assignment: Assignment, run_id: &'a str, master: &'a HostPort) -> Self {
        Self {
            assignment,
            run_id,
            master,
            relay: None,
            role: "default",
            restart_count: 0,
            max_restarts: 0,
            use_agent_store: false,
            error_file: None,
            virtual_local_rank: false,
            debug_socket: None,
            progress_file: None,
            timer_file: None,
            gloo_interface: None,
            membership: None,
            has_breakpoints: true,
        }
    }

    /// The role of the worker. The default is PyTorch's, `default`.
    pub const fn with_role(mut self, role: &'a str) -> Self {
        self.role = role;
        self
    }

    /// How often this node has restarted its workers after a failure, and how often it may. The default
    /// is 0 of 0.
    pub const fn with_restarts(mut self, count: usize, max: usize) -> Self {
        self.restart_count = count;
        self.max_restarts = max;
        self
    }

    /// Whether a store server already runs at the master address, so that the worker with rank 0 connects
    /// to it instead of starting one. Off by default: then no agent has to serve one.
    pub const fn with_agent_store(mut self, is_running: bool) -> Self {
        self.use_agent_store = is_running;
        self
    }

    /// The relay on this node through which the worker reaches the store: MASTER_ADDR and MASTER_PORT name it, and
    /// `C10D_MASTER_ADDR` and `C10D_MASTER_PORT` the store itself. None by default.
    pub fn with_relay(mut self, relay: impl Into<Option<&'a HostPort>>) -> Self {
        self.relay = relay.into();
        self
    }

    /// The file in which the worker may leave its exception. None by default: then it cannot.
    pub fn with_error_file(mut self, path: impl Into<Option<&'a Path>>) -> Self {
        self.error_file = path.into();
        self
    }

    /// Whether the worker sees one device and local rank 0 (`--virtual-local-rank`). Off by default, as
    /// with torchrun.
    pub const fn with_virtual_local_rank(mut self, is_virtual: bool) -> Self {
        self.virtual_local_rank = is_virtual;
        self
    }

    /// The unix socket on which a debug server in the worker should listen, as `C10D_DEBUG_SOCKET`. None by
    /// default: then the variable is inherited.
    pub fn with_debug_socket(mut self, path: impl Into<Option<&'a Path>>) -> Self {
        self.debug_socket = path.into();
        self
    }

    /// The file in which the worker reports its progress, as `C10D_PROGRESS_FILE`. None by default: then the variable
    /// is inherited.
    pub fn with_progress_file(mut self, path: impl Into<Option<&'a Path>>) -> Self {
        self.progress_file = path.into();
        self
    }

    /// The network interface for gloo, as `GLOO_SOCKET_IFNAME` unless that is inherited. None by default.
    pub fn with_gloo_interface(mut self, interface: impl Into<Option<&'a str>>) -> Self {
        self.gloo_interface = interface.into();
        self
    }

    /// The pipe of the watchdog, as `TORCHELASTIC_TIMER_FILE`. None by default: then the variable is inherited.
    pub fn with_timer_file(mut self, path: impl Into<Option<&'a Path>>) -> Self {
        self.timer_file = path.into();
        self
    }

    /// Whether Python's `breakpoint()` has an effect. True by default. Otherwise PYTHONBREAKPOINT is 0, unless it is inherited.
    pub(crate) const fn with_breakpoints(mut self, has_breakpoints: bool) -> Self {
        self.has_breakpoints = has_breakpoints;
        self
    }

    /// What the worker is in the membership group, as `C10D_MEMBER_ID`, its rank, and other variables: docs/reference/keep-workers.md.
    /// None by default.
    pub(crate) const fn with_membership(mut self, membership: Option<GroupMember<'a>>) -> Self {
        self.membership = membership;
        self
    }

    /// All variables: `inherited`, the agent's own, with PyTorch's set. Sorted by name, each name once.
    ///
    /// In PyTorch: `_start_workers` (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
    ///
    /// # Errors
    /// [`EnvironmentError::TooFewDevices`], only with a [virtual local
    /// rank](Self::with_virtual_local_rank).
    pub fn variables(
        &self,
        inherited: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
        let mut variables: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
        let ranks = &self.assignment;
        let master = self.relay.unwrap_or(self.master);
        let numbers = [
            ("RANK", ranks.rank),
            ("GROUP_RANK", ranks.group_rank),
            ("ROLE_RANK", ranks.role_rank),
            ("LOCAL_WORLD_SIZE", ranks.local_world_size),
            ("WORLD_SIZE", ranks.world_size),
            ("GROUP_WORLD_SIZE", ranks.group_world_size),
            ("ROLE_WORLD_SIZE", ranks.role_world_size),
            ("MASTER_PORT", usize::from(master.port())),
            ("TORCHELASTIC_RESTART_COUNT", self.restart_count),
            ("TORCHELASTIC_MAX_RESTARTS", self.max_restarts),
        ];
        for (name, number) in numbers {
            variables.insert(name.into(), number.to_string().into());
        }
        // PyTorch compares with Python's spelling.
        let use_agent_store = match self.use_agent_store {
            true => "True",
            false => "False",
        };
        let error_file = self.error_file.map_or(OsStr::new(""), Path::as_os_str);
        let texts = [
            ("ROLE_NAME", OsStr::new(self.role)),
            ("MASTER_ADDR", OsStr::new(master.host())),
            ("TORCHELASTIC_RUN_ID", OsStr::new(self.run_id)),
            ("TORCHELASTIC_USE_AGENT_STORE", OsStr::new(use_agent_store)),
            ("TORCHELASTIC_ERROR_FILE", error_file),
        ];
        for (name, text) in texts {
            variables.insert(name.into(), text.into());
        }
        let paths = [
            (DEBUG_SOCKET, self.debug_socket),
            (PROGRESS_FILE, self.progress_file),
            (TIMER_FILE, self.timer_file),
        ];
        let paths = paths.into_iter();
        variables.extend(paths.filter_map(|(name, path)| Some((name.into(), path?.into()))));
        self.set_store(&mut variables);
        self.set_membership(&mut variables);
        // A collective that hangs then ends its worker instead of hanging the job.
        set_default(&mut variables, NCCL_ASYNC_ERROR_HANDLING, "1");
        if !self.has_breakpoints {
            set_default(&mut variables, "PYTHONBREAKPOINT", "0");
        }
        if let Some(interface) = self.gloo_interface {
            set_default(&mut variables, GLOO_SOCKET_IFNAME, interface);
        }
        if self.virtual_local_rank {
            show_one_device(&mut variables, ranks.local_rank)?;
        } else {
            let local_rank = ranks.local_rank.to_string();
            variables.insert("LOCAL_RANK".into(), local_rank.into());
        }
        Ok(variables.into_iter().collect())
    }

    /// Names the store if the worker reaches it through a relay. The variables of an outer launcher name another store.
    fn set_store(&self, variables: &mut BTreeMap<OsString, OsString>) {
        if self.relay.is_some() {
            variables.insert(STORE_ADDR.into(), self.master.host().into());
            let port = self.master.port().to_string();
            variables.insert(STORE_PORT.into(), port.into());
            // At 127.0.0.1 of rank 0's node no other node reaches a second store.
            set_default(variables, DCP_USE_PREFIX_STORE, "1");
        } else {
            variables.remove(OsStr::new(STORE_ADDR));
            variables.remove(OsStr::new(STORE_PORT));
        }
    }

    /// Names the membership group of the worker, if it has one. The variables of an outer launcher name another group.
    fn set_membership(&self, variables: &mut BTreeMap<OsString, OsString>) {
        variables.retain(|name, _| {
            !name.as_encoded_bytes().starts_with(b"C10D_MEMBER") && name != KEEP_WORKERS
        });
        let Some(membership) = &self.membership else {
            return;
        };
        let incarnation = places::incarnation(membership.serial);
        let texts = [
            (KEEP_WORKERS, "1".to_owned()),
            ("C10D_MEMBERSHIP_GROUP", membership.group.to_owned()),
            ("C10D_MEMBER_ID", self.assignment.rank.to_string()),
            ("C10D_MEMBER_INCARNATION", incarnation.to_string()),
            ("C10D_MEMBER_SERIAL", membership.serial.to_string()),
            ("C10D_MEMBERS_FIRST", membership.members_first.to_string()),
            ("C10D_MEMBERS_MIN", membership.members_min.to_string()),
        ];
        variables.extend(texts.map(|(name, text)| (name.into(), text.into())));
    }
}

/// Sets a variable unless it is inherited.
fn set_default(variables: &mut BTreeMap<OsString, OsString>, name: &str, value: &str) {
    let variable = variables.entry(name.into());
    variable.or_insert_with(|| value.into());
}

/// What all workers of a node have in their environment in all rounds, and the variables in which they differ, as
/// [`VARYING`]. `inherited` is the agent's own.
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

/// Why the environment of a worker could not be composed.
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

/// Makes one of the devices that the agent may use the only visible one.
fn show_one_device(
    variables: &mut BTreeMap<OsString, OsString>,
    local_rank: usize,
) -> Result<(), EnvironmentError> {
    variables.insert("LOCAL_RANK".into(), "0".into());
    // ROCm reads both variables, and HIP_VISIBLE_DEVICES takes precedence.
    let has_hip = variables
        .get(OsStr::new(HIP_VISIBLE_DEVICES))
        .is_some_and(|devices| !devices.is_empty());
    let variable = if has_hip {
        HIP_VISIBLE_DEVICES
    } else {
        CUDA_VISIBLE_DEVICES
    };
    let device = match variables.get(OsStr::new(variable)) {
        None => local_rank.to_string(),
        Some(devices) => {
            let devices = devices.to_string_lossy();
            match devices.split(',').nth(local_rank) {
                Some(device) => device.trim().to_owned(),
                None => {
                    return Err(EnvironmentError::TooFewDevices {
                        local_rank,
                        variable,
                        devices: devices.into_owned(),
                    });
                }
            }
        }
    };
    if has_hip {
        variables.insert(HIP_VISIBLE_DEVICES.into(), device.clone().into());
    }
    variables.insert(CUDA_VISIBLE_DEVICES.into(), device.into());
    Ok(())
}
