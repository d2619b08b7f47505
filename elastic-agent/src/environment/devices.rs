//! One visible device for each worker (`--virtual-local-rank`).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

pub(super) const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
pub(super) const HIP_VISIBLE_DEVICES: &str = "HIP_VISIBLE_DEVICES";

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

c10d_socket::debug_as_display!(EnvironmentError);

/// Makes one of the devices that the agent may use the only visible one.
pub(super) fn show_one_device(
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
