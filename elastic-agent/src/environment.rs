//! The environment variables of a worker.
//!
//! Reads no environment itself: what the agent's own is comes as an argument. Whether and how
//! `OMP_NUM_THREADS` is set is the launcher's business; it is passed on like everything else.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::assignment::Assignment;

const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const HIP_VISIBLE_DEVICES: &str = "HIP_VISIBLE_DEVICES";
const NCCL_ASYNC_ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// What a worker is told through its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerEnvironment<'a> {
    /// Its ranks.
    pub assignment: Assignment,
    /// The name of its role.
    pub role: &'a str,
    /// The host at which the workers meet.
    pub master_addr: &'a str,
    /// The port at which the workers meet.
    pub master_port: u16,
    /// How often this node has restarted its workers after a failure.
    pub restart_count: usize,
    /// How often it may.
    pub max_restarts: usize,
    /// The job.
    pub run_id: &'a str,
    /// Whether a store server is already running at the master address, so that workers connect to it
    /// instead of starting one.
    pub use_agent_store: bool,
    /// Where the worker may leave what its exception was; nowhere without.
    pub error_file: Option<&'a Path>,
    /// Whether the worker sees one device only and takes itself for local rank 0
    /// (`--virtual-local-rank`).
    pub virtual_local_rank: bool,
}

/// Why there is no environment for a worker.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// Each worker is to have one device of its own, and there are fewer devices than workers.
    #[error("local rank {local_rank} has no device in {variable}={devices}")]
    TooFewDevices {
        /// The first worker without a device.
        local_rank: usize,
        /// The variable that lists the devices.
        variable: &'static str,
        /// What it lists.
        devices: String,
    },
}

/// The text of `Display`: what `unwrap` shows, and a `main` that returns the error.
impl std::fmt::Debug for EnvironmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The whole environment of a worker: `inherited`, the agent's own, with PyTorch's variables set.
/// Sorted by name, each name once.
///
/// In PyTorch: `_start_workers` (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).
///
/// # Errors
/// [`EnvironmentError::TooFewDevices`] with [`virtual_local_rank`](WorkerEnvironment) only.
pub fn worker_environment(
    worker: &WorkerEnvironment<'_>,
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(OsString, OsString)>, EnvironmentError> {
    let mut variables: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
    let ranks = &worker.assignment;
    let numbers = [
        ("RANK", ranks.rank),
        ("GROUP_RANK", ranks.group_rank),
        ("ROLE_RANK", ranks.role_rank),
        ("LOCAL_WORLD_SIZE", ranks.local_world_size),
        ("WORLD_SIZE", ranks.world_size),
        ("GROUP_WORLD_SIZE", ranks.group_world_size),
        ("ROLE_WORLD_SIZE", ranks.role_world_size),
        ("MASTER_PORT", usize::from(worker.master_port)),
        ("TORCHELASTIC_RESTART_COUNT", worker.restart_count),
        ("TORCHELASTIC_MAX_RESTARTS", worker.max_restarts),
    ];
    for (name, number) in numbers {
        variables.insert(name.into(), number.to_string().into());
    }
    // Workers compare with Python's spelling.
    let use_agent_store = if worker.use_agent_store {
        "True"
    } else {
        "False"
    };
    let error_file = worker.error_file.map_or(OsStr::new(""), Path::as_os_str);
    let texts = [
        ("ROLE_NAME", OsStr::new(worker.role)),
        ("MASTER_ADDR", OsStr::new(worker.master_addr)),
        ("TORCHELASTIC_RUN_ID", OsStr::new(worker.run_id)),
        ("TORCHELASTIC_USE_AGENT_STORE", OsStr::new(use_agent_store)),
        ("TORCHELASTIC_ERROR_FILE", error_file),
    ];
    for (name, text) in texts {
        variables.insert(name.into(), text.into());
    }
    // A hung collective ends its worker instead of hanging the job, unless the user knows better.
    variables
        .entry(NCCL_ASYNC_ERROR_HANDLING.into())
        .or_insert_with(|| "1".into());
    if worker.virtual_local_rank {
        show_one_device(&mut variables, ranks.local_rank)?;
    } else {
        let local_rank = ranks.local_rank.to_string();
        variables.insert("LOCAL_RANK".into(), local_rank.into());
    }
    Ok(variables.into_iter().collect())
}

/// Leaves the worker one of the devices that the agent may use, as its first and only one.
fn show_one_device(
    variables: &mut BTreeMap<OsString, OsString>,
    local_rank: usize,
) -> Result<(), EnvironmentError> {
    variables.insert("LOCAL_RANK".into(), "0".into());
    // ROCm heeds the second name as well, and the first one before it.
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

    fn worker() -> WorkerEnvironment<'static> {
        WorkerEnvironment {
            assignment: Assignment {
                rank: 5,
                local_rank: 1,
                group_rank: 2,
                role_rank: 3,
                local_world_size: 4,
                world_size: 16,
                group_world_size: 6,
                role_world_size: 8,
            },
            role: "trainer",
            master_addr: "node0",
            master_port: 29500,
            restart_count: 1,
            max_restarts: 9,
            run_id: "job",
            use_agent_store: true,
            error_file: Some(Path::new("/logs/error.json")),
            virtual_local_rank: false,
        }
    }

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
    fn every_variable_of_pytorch_is_set_and_the_others_are_passed_on() {
        let inherited = pairs(&[("PATH", "/bin"), ("RANK", "77"), ("OMP_NUM_THREADS", "2")]);
        let environment = worker_environment(&worker(), inherited).unwrap();
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
        let plain = WorkerEnvironment {
            error_file: None,
            use_agent_store: false,
            ..worker()
        };
        let inherited = pairs(&[
            ("TORCHELASTIC_ERROR_FILE", "/the/agent's/own"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ]);
        let environment = worker_environment(&plain, inherited).unwrap();
        assert_eq!(value(&environment, "TORCHELASTIC_ERROR_FILE"), Some(""));
        assert_eq!(
            value(&environment, "TORCHELASTIC_USE_AGENT_STORE"),
            Some("False")
        );
        let nccl = value(&environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING");
        assert_eq!(nccl, Some("3"));
    }

    #[test]
    fn a_virtual_local_rank_sees_one_device_of_the_agents() {
        let alone = WorkerEnvironment {
            virtual_local_rank: true,
            ..worker()
        };
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
            let environment = worker_environment(&alone, pairs(&inherited)).unwrap();
            assert_eq!(value(&environment, "LOCAL_RANK"), Some("0"));
            assert_eq!(value(&environment, CUDA_VISIBLE_DEVICES), cuda);
            assert_eq!(value(&environment, HIP_VISIBLE_DEVICES), hip);
        }
        for variable in [CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES] {
            let error = worker_environment(&alone, pairs(&[(variable, "7")])).unwrap_err();
            let expected = format!("local rank 1 has no device in {variable}=7");
            assert_eq!(error.to_string(), expected);
        }
    }
}
