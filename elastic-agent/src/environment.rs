//! The environment variables of a worker.
//!
//! Reads no environment: the agent's own is an argument. `OMP_NUM_THREADS` is passed on like any other
//! variable; the launcher decides on it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use c10d_socket::HostPort;

use crate::assignment::Assignment;

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const HIP_VISIBLE_DEVICES: &str = "HIP_VISIBLE_DEVICES";
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
const NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// The variables in which workers of a node differ, or those of two rounds: names, or prefixes with `*`.
pub(crate) const VARYING: [&str; 13] = [
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
}

impl<'a> WorkerEnvironment<'a> {
    /// The environment of a worker with these ranks, in the job `run_id`, whose workers meet at `master`.
    #[must_use]
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
        }
    }

    /// The role of the worker. The default is PyTorch's, `default`.
    #[must_use]
    pub const fn with_role(mut self, role: &'a str) -> Self {
        self.role = role;
        self
    }

    /// How often this node has restarted its workers after a failure, and how often it may. The default
    /// is 0 of 0.
    #[must_use]
    pub const fn with_restarts(mut self, count: usize, max: usize) -> Self {
        self.restart_count = count;
        self.max_restarts = max;
        self
    }

    /// Whether a store server already runs at the master address, so that the worker with rank 0 connects
    /// to it instead of starting one. Off by default: then no agent has to serve one.
    #[must_use]
    pub const fn with_agent_store(mut self, is_running: bool) -> Self {
        self.use_agent_store = is_running;
        self
    }

    /// The relay on this node through which the worker reaches the store: MASTER_ADDR and MASTER_PORT name it, and
    /// `C10D_MASTER_ADDR` and `C10D_MASTER_PORT` the store itself. None by default.
    #[must_use]
    pub const fn with_relay(mut self, relay: &'a HostPort) -> Self {
        self.relay = Some(relay);
        self
    }

    /// The file in which the worker may leave its exception. None by default: then it cannot.
    #[must_use]
    pub const fn with_error_file(mut self, path: &'a Path) -> Self {
        self.error_file = Some(path);
        self
    }

    /// Whether the worker sees one device and local rank 0 (`--virtual-local-rank`). Off by default, as
    /// with torchrun.
    #[must_use]
    pub const fn with_virtual_local_rank(mut self, is_virtual: bool) -> Self {
        self.virtual_local_rank = is_virtual;
        self
    }

    /// The unix socket on which a debug server in the worker should listen, as `C10D_DEBUG_SOCKET`. None by
    /// default: then the variable is inherited.
    #[must_use]
    pub const fn with_debug_socket(mut self, path: &'a Path) -> Self {
        self.debug_socket = Some(path);
        self
    }

    /// The file in which the worker reports its progress, as `C10D_PROGRESS_FILE`. None by default: then the variable
    /// is inherited.
    #[must_use]
    pub const fn with_progress_file(mut self, path: &'a Path) -> Self {
        self.progress_file = Some(path);
        self
    }

    /// The pipe of the watchdog, as `TORCHELASTIC_TIMER_FILE`. None by default: then the variable is inherited.
    #[must_use]
    pub const fn with_timer_file(mut self, path: &'a Path) -> Self {
        self.timer_file = Some(path);
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
        let use_agent_store = if self.use_agent_store {
            "True"
        } else {
            "False"
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
        if self.relay.is_some() {
            variables.insert(STORE_ADDR.into(), self.master.host().into());
            let port = self.master.port().to_string();
            variables.insert(STORE_PORT.into(), port.into());
            // At 127.0.0.1 of rank 0's node no other node reaches a second store.
            variables
                .entry(DCP_USE_PREFIX_STORE.into())
                .or_insert_with(|| "1".into());
        } else {
            // Those of an outer launcher name another store.
            variables.remove(OsStr::new(STORE_ADDR));
            variables.remove(OsStr::new(STORE_PORT));
        }
        if let Some(path) = self.debug_socket {
            variables.insert(DEBUG_SOCKET.into(), path.into());
        }
        if let Some(path) = self.progress_file {
            variables.insert(PROGRESS_FILE.into(), path.into());
        }
        if let Some(path) = self.timer_file {
            variables.insert(TIMER_FILE.into(), path.into());
        }
        // A collective that hangs then ends its worker instead of hanging the job.
        variables
            .entry(NCCL_ASYNC_ERROR_HANDLING.into())
            .or_insert_with(|| "1".into());
        if self.virtual_local_rank {
            show_one_device(&mut variables, ranks.local_rank)?;
        } else {
            let local_rank = ranks.local_rank.to_string();
            variables.insert("LOCAL_RANK".into(), local_rank.into());
        }
        Ok(variables.into_iter().collect())
    }
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

/// Why the environment of a worker could not be composed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Each worker needs a device of its own, and fewer devices than workers are visible.
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

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for EnvironmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const RANKS: Assignment = Assignment {
        rank: 5,
        local_rank: 1,
        group_rank: 2,
        role_rank: 3,
        local_world_size: 4,
        world_size: 16,
        group_world_size: 6,
        role_world_size: 8,
    };

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs
            .iter()
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn value<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a str> {
        environment
            .iter()
            .find(|(found, _)| found == name)
            .and_then(|(_, value)| value.to_str())
    }

    #[test]
    fn every_variable_of_pytorch_is_set_and_others_are_passed_on() {
        let inherited = pairs(&[("PATH", "/bin"), ("RANK", "77"), ("OMP_NUM_THREADS", "2")]);
        let master = HostPort::new("node0", 29500);
        let environment = WorkerEnvironment::new(RANKS, "job", &master)
            .with_role("trainer")
            .with_restarts(1, 9)
            .with_agent_store(true)
            .with_error_file(Path::new("/logs/error.json"))
            .variables(inherited)
            .unwrap();
        let expected = pairs(&[
            ("GROUP_RANK", "2"),
            ("GROUP_WORLD_SIZE", "6"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("OMP_NUM_THREADS", "2"),
            ("PATH", "/bin"),
            ("RANK", "5"),
            ("ROLE_NAME", "trainer"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "8"),
            ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
            ("TORCHELASTIC_MAX_RESTARTS", "9"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_RUN_ID", "job"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "16"),
        ]);
        assert_eq!(environment, expected);
    }

    #[test]
    fn without_a_file_and_a_store_the_variables_are_empty_and_false() {
        let master = HostPort::new("node0", 29500);
        let plain = WorkerEnvironment::new(RANKS, "job", &master);
        let inherited = pairs(&[
            ("TORCHELASTIC_ERROR_FILE", "/the/agent's/own"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ]);
        let environment = plain.variables(inherited).unwrap();
        assert_eq!(value(&environment, "TORCHELASTIC_ERROR_FILE"), Some(""));
        assert_eq!(
            value(&environment, "TORCHELASTIC_USE_AGENT_STORE"),
            Some("False")
        );
        let nccl = value(&environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING");
        assert_eq!(nccl, Some("3"));
    }

    #[test]
    fn a_worker_with_a_relay_learns_the_address_of_the_store_too() {
        let (master, relay) = (
            HostPort::new("node0", 29500),
            HostPort::new("127.0.0.2", 31000),
        );
        let plain = WorkerEnvironment::new(RANKS, "job", &master);
        let relayed = plain.clone().with_relay(&relay);
        let names = [
            "MASTER_ADDR",
            "MASTER_PORT",
            "C10D_MASTER_ADDR",
            "C10D_MASTER_PORT",
            "DCP_USE_PREFIX_STORE",
        ];
        let outer = [
            ("C10D_MASTER_ADDR", "outer"),
            ("C10D_MASTER_PORT", "1"),
            ("DCP_USE_PREFIX_STORE", "0"),
        ];
        let (store, port) = (Some("node0"), Some("29500"));
        for (environment, inherited, expected) in [
            (&plain, &[][..], [store, port, None, None, None]),
            (&plain, &outer, [store, port, None, None, Some("0")]),
            (
                &relayed,
                &[],
                [Some("127.0.0.2"), Some("31000"), store, port, Some("1")],
            ),
            (
                &relayed,
                &outer,
                [Some("127.0.0.2"), Some("31000"), store, port, Some("0")],
            ),
        ] {
            let variables = environment.variables(pairs(inherited)).unwrap();
            assert_eq!(names.map(|name| value(&variables, name)), expected);
        }
    }

    #[test]
    fn a_debug_socket_replaces_that_of_an_outer_launcher() {
        let master = HostPort::new("node0", 29500);
        let environment = WorkerEnvironment::new(RANKS, "job", &master);
        let outer = pairs(&[("C10D_DEBUG_SOCKET", "/outer")]);
        let variables = environment.clone().variables(outer.clone()).unwrap();
        assert_eq!(value(&variables, "C10D_DEBUG_SOCKET"), Some("/outer"));
        let own = environment.with_debug_socket(Path::new("/own"));
        let variables = own.variables(outer).unwrap();
        assert_eq!(value(&variables, "C10D_DEBUG_SOCKET"), Some("/own"));
    }

    #[test]
    fn the_watchdogs_pipe_replaces_that_of_an_outer_launcher() {
        let master = HostPort::new("node0", 29500);
        let environment = WorkerEnvironment::new(RANKS, "job", &master);
        let outer = pairs(&[("TORCHELASTIC_TIMER_FILE", "/outer")]);
        let variables = environment.clone().variables(outer.clone()).unwrap();
        assert_eq!(value(&variables, "TORCHELASTIC_TIMER_FILE"), Some("/outer"));
        let own = environment.with_timer_file(Path::new("/own"));
        let variables = own.variables(outer).unwrap();
        assert_eq!(value(&variables, "TORCHELASTIC_TIMER_FILE"), Some("/own"));
    }

    #[test]
    fn a_virtual_local_rank_sees_one_of_the_agents_devices() {
        let master = HostPort::new("node0", 29500);
        let alone = WorkerEnvironment::new(RANKS, "job", &master).with_virtual_local_rank(true);
        let table = [
            (vec![], Some("1"), None),
            (vec![("CUDA_VISIBLE_DEVICES", "4, 5 ,6")], Some("5"), None),
            (vec![("HIP_VISIBLE_DEVICES", "")], Some("1"), Some("")),
            (
                vec![
                    ("CUDA_VISIBLE_DEVICES", "8"),
                    ("HIP_VISIBLE_DEVICES", "2,3"),
                ],
                Some("3"),
                Some("3"),
            ),
        ];
        for (inherited, cuda, hip) in table {
            let environment = alone.variables(pairs(&inherited)).unwrap();
            assert_eq!(value(&environment, "LOCAL_RANK"), Some("0"));
            assert_eq!(value(&environment, CUDA_VISIBLE_DEVICES), cuda);
            assert_eq!(value(&environment, HIP_VISIBLE_DEVICES), hip);
        }
        for variable in [CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES] {
            let error = alone.variables(pairs(&[(variable, "7")])).unwrap_err();
            let expected = format!("local rank 1 has no device in {variable}=7");
            assert_eq!(error.to_string(), expected);
        }
    }
}
