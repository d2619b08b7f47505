//! Counts processors and accelerators.
//!
//! Reads only the file system and the environment, and loads no vendor library. So a device that is listed
//! but broken counts.

mod cpus;

use std::fs;
use std::io;
use std::path::Path;

pub use cpus::Cpus;

/// The kinds of devices that `--nproc-per-node` can count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// Processors on which this process may run, up to the quota of its control group.
    Cpu,
    /// GPUs of NVIDIA, or of AMD if there are none.
    Gpu,
    /// GPUs of Intel, named `xpu` in PyTorch.
    Xpu,
    /// GPUs of NVIDIA or AMD, or processors if there are none. GPUs of Intel are not counted, because most
    /// of them are part of a processor and unfit for training.
    Auto,
}

impl DeviceKind {
    /// The kind of a word on the command line, in lower case as with torchrun.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "cpu" => Some(Self::Cpu),
            "gpu" => Some(Self::Gpu),
            "xpu" => Some(Self::Xpu),
            "auto" => Some(Self::Auto),
            _ => None,
        }
    }
}

/// The reason why devices could not be counted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// GPUs were requested, but no GPU of NVIDIA or AMD is visible on this node.
    #[error("no NVIDIA or AMD GPU is visible on this machine{}", by(.variables))]
    NoGpu {
        /// The variables that are set and may hide devices.
        variables: Vec<&'static str>,
    },
    /// Intel GPUs were requested, but none of them is visible on this node.
    #[error("no Intel GPU is visible on this machine{}", by(.variables))]
    NoXpu {
        /// The variables that are set and may hide devices.
        variables: Vec<&'static str>,
    },
    /// The operating system does not report the number of processors.
    #[error("cannot count processors: {0}")]
    Cpu(#[source] io::Error),
}

fn by(variables: &[&str]) -> String {
    if variables.is_empty() {
        return String::new();
    }
    format!(" (see {})", variables.join(", "))
}

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const HIP: &str = "HIP_VISIBLE_DEVICES";
const ROCR: &str = "ROCR_VISIBLE_DEVICES";
const LEVEL_ZERO: &str = "ZE_AFFINITY_MASK";

/// Counts devices, at least one. `root` is the root of the file system (`/`, except in tests), and
/// `variable` reads the environment.
///
/// # Errors
/// [`DevicesError`] if this node has no visible device of this kind, or its processors cannot be counted.
pub fn count(
    kind: DeviceKind,
    root: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<usize, DevicesError> {
    let set = |names: &[&'static str]| {
        let names = names.iter().copied();
        names.filter(|name| variable(name).is_some()).collect()
    };
    match kind {
        DeviceKind::Cpu => cpus(root),
        DeviceKind::Gpu => match gpus(root, variable) {
            0 => Err(DevicesError::NoGpu {
                variables: set(&[CUDA, HIP, ROCR]),
            }),
            number => Ok(number),
        },
        DeviceKind::Xpu => match xpus(root, variable) {
            0 => Err(DevicesError::NoXpu {
                variables: set(&[LEVEL_ZERO]),
            }),
            number => Ok(number),
        },
        DeviceKind::Auto => match gpus(root, variable) {
            0 => cpus(root),
            number => Ok(number),
        },
    }
}

fn cpus(root: &Path) -> Result<usize, DevicesError> {
    let here = Cpus::here(root).map_err(DevicesError::Cpu)?;
    Ok(here.usable())
}

fn gpus(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> usize {
    let nvidia = nvidia_gpus(root, variable);
    if nvidia > 0 {
        return nvidia;
    }
    amd_gpus(root, variable)
}

/// Counts device files: in a container the driver's list may show the whole machine. Device files may be
/// missing until a program has used the driver; then counts its list.
fn nvidia_gpus(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> usize {
    let files = count_entries(&root.join("dev"), |name| {
        let number = name.strip_prefix("nvidia").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let present = match files {
        0 => count_entries(&root.join("proc/driver/nvidia/gpus"), |_| true),
        files => files,
    };
    match variable(CUDA) {
        // AMD's runtime reads CUDA_VISIBLE_DEVICES as well.
        Some(_) if present == 0 && has_kfd(root) => 0,
        // Devices without any of these files exist under the Windows Subsystem for Linux.
        Some(list) if present == 0 => visible(&list, usize::MAX),
        Some(list) => visible(&list, present),
        None => present,
    }
}

/// AMD's runtime applies ROCR_VISIBLE_DEVICES first. HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, has
/// indices into the remaining devices.
fn amd_gpus(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> usize {
    let nodes = root.join(KFD_NODES);
    // Processors are nodes without SIMD units.
    let mut number = count_entries(&nodes, |name| {
        let properties = nodes.join(name).join("properties");
        fs::read_to_string(properties).is_ok_and(|text| simd_count(&text) > 0)
    });
    if let Some(list) = variable(ROCR) {
        number = visible(&list, number);
    }
    if let Some(list) = variable(HIP).or_else(|| variable(CUDA)) {
        number = visible(&list, number);
    }
    number
}

const KFD_NODES: &str = "sys/class/kfd/kfd/topology/nodes";

fn has_kfd(root: &Path) -> bool {
    root.join(KFD_NODES).is_dir()
}

fn simd_count(properties: &str) -> u64 {
    properties
        .lines()
        .find_map(|line| line.strip_prefix("simd_count "))
        .and_then(|number| number.trim().parse().ok())
        .unwrap_or(0)
}

fn xpus(root: &Path, variable: &dyn Fn(&str) -> Option<String>) -> usize {
    const INTEL: &str = "0x8086";
    let drm = root.join("sys/class/drm");
    let present = count_entries(&drm, |name| {
        let vendor = fs::read_to_string(drm.join(name).join("device/vendor"));
        name.starts_with("renderD") && vendor.is_ok_and(|vendor| vendor.trim() == INTEL)
    });
    match variable(LEVEL_ZERO) {
        // Level Zero ignores an empty mask.
        Some(mask) if !mask.trim().is_empty() => visible(&mask, present),
        _ => present,
    }
}

/// How many of `present` devices a list makes visible: indices or ids separated by commas, up to the first
/// invalid one, such as -1. A list with a duplicate makes none visible, like in the vendors' runtimes.
fn visible(list: &str, present: usize) -> usize {
    let mut seen: Vec<&str> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let is_id = ["GPU-", "MIG-"].iter().any(|kind| entry.starts_with(kind));
        let digits_until = entry
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(entry.len());
        let is_index = entry[..digits_until]
            .parse()
            .is_ok_and(|index: usize| index < present);
        if !is_id && !is_index {
            break;
        }
        if seen.contains(&entry) {
            return 0;
        }
        seen.push(entry);
    }
    seen.len()
}

/// How many entries of a directory match; 0 if it cannot be read.
fn count_entries(directory: &Path, matches_name: impl Fn(&str) -> bool) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter(|name| name.to_str().is_some_and(&matches_name))
        .count()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A fake machine: files with their contents, and directories, whose names end with `/`.
    fn machine(paths: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, contents) in paths {
            let path_here = root.path().join(path);
            if path.ends_with('/') {
                fs::create_dir_all(path_here).unwrap();
            } else {
                fs::create_dir_all(path_here.parent().unwrap()).unwrap();
                fs::write(path_here, contents).unwrap();
            }
        }
        root
    }

    fn count_on(
        root: &TempDir,
        kind: DeviceKind,
        variables: &[(&str, &str)],
    ) -> Result<usize, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        count(kind, root.path(), &variable).map_err(|error| error.to_string())
    }

    fn gpus_on(root: &TempDir, variables: &[(&str, &str)]) -> usize {
        count_on(root, DeviceKind::Gpu, variables).unwrap_or(0)
    }

    #[test]
    fn processors_are_those_on_which_this_process_may_run() {
        let nothing = machine(&[]);
        let cpus = count_on(&nothing, DeviceKind::Cpu, &[]).unwrap();
        assert!(cpus >= 1);
        assert_eq!(count_on(&nothing, DeviceKind::Auto, &[]), Ok(cpus));
    }

    #[test]
    fn processors_are_no_more_than_the_quota_of_the_control_group() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let limited = machine(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/cpu.max", "100000 100000"),
        ]);
        for kind in [DeviceKind::Cpu, DeviceKind::Auto] {
            assert_eq!(count_on(&limited, kind, &[]), Ok(1));
        }
    }

    #[test]
    fn an_error_for_no_device_names_the_variables_that_may_hide_it() {
        let nothing = machine(&[]);
        assert_eq!(
            count_on(&nothing, DeviceKind::Gpu, &[]).unwrap_err(),
            "no NVIDIA or AMD GPU is visible on this machine"
        );
        assert_eq!(
            count_on(&nothing, DeviceKind::Gpu, &[(CUDA, ""), (ROCR, "x")]).unwrap_err(),
            "no NVIDIA or AMD GPU is visible on this machine \
             (see CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES)"
        );
        assert_eq!(
            count_on(&nothing, DeviceKind::Xpu, &[]).unwrap_err(),
            "no Intel GPU is visible on this machine"
        );
    }

    #[test]
    fn nvidia_gpus_are_device_files_or_else_the_drivers_list() {
        let files = machine(&[
            ("dev/nvidia0", ""),
            ("dev/nvidia10", ""),
            ("dev/nvidiactl", ""),
            ("dev/nvidia-uvm", ""),
            ("dev/nvidia", ""),
            ("proc/driver/nvidia/gpus/0000:01:00.0/", ""),
            ("proc/driver/nvidia/gpus/0000:02:00.0/", ""),
            ("proc/driver/nvidia/gpus/0000:03:00.0/", ""),
        ]);
        assert_eq!(gpus_on(&files, &[]), 2);
        assert_eq!(count_on(&files, DeviceKind::Auto, &[]), Ok(2));
        let list = machine(&[("proc/driver/nvidia/gpus/0000:01:00.0/", "")]);
        assert_eq!(gpus_on(&list, &[]), 1);
    }

    #[test]
    fn a_list_of_visible_devices_is_parsed_as_by_the_runtimes() {
        let four = machine(&[
            ("dev/nvidia0", ""),
            ("dev/nvidia1", ""),
            ("dev/nvidia2", ""),
            ("dev/nvidia3", ""),
        ]);
        for (list, number) in [
            ("", 0),
            ("-1", 0),
            ("2", 1),
            ("0,3", 2),
            (" 1 , 2 ", 2),
            ("0,-1,1", 1),
            ("0,4,1", 1),
            ("0,,1", 1),
            ("1,1", 0),
            ("none", 0),
            ("99999999999999999999", 0),
            ("GPU-8932f937,GPU-1d2a5b3c", 2),
            ("MIG-1/0/0", 1),
        ] {
            assert_eq!(gpus_on(&four, &[(CUDA, list)]), number, "{list:?}");
        }
    }

    #[test]
    fn without_device_files_the_list_is_counted() {
        assert_eq!(gpus_on(&machine(&[]), &[(CUDA, "0,1,2")]), 3);
    }

    #[test]
    fn amd_gpus_are_the_nodes_with_simd_units() {
        let two = machine(&[
            (
                "sys/class/kfd/kfd/topology/nodes/0/properties",
                "cpu_cores_count 8\nsimd_count 0\n",
            ),
            (
                "sys/class/kfd/kfd/topology/nodes/1/properties",
                "cpu_cores_count 0\nsimd_count 256\n",
            ),
            (
                "sys/class/kfd/kfd/topology/nodes/2/properties",
                "simd_count 256\n",
            ),
            ("sys/class/kfd/kfd/topology/nodes/3/", ""),
        ]);
        for (variables, number) in [
            (&[][..], 2),
            (&[(ROCR, "1")], 1),
            (&[(HIP, "0,1")], 2),
            (&[(ROCR, "1"), (HIP, "1")], 0),
            (&[(HIP, "0"), (CUDA, "0,1")], 1),
            (&[(CUDA, "0")], 1),
            (&[(CUDA, "")], 0),
        ] {
            assert_eq!(gpus_on(&two, variables), number, "{variables:?}");
        }
    }

    #[test]
    fn intel_gpus_are_counted_only_as_xpu() {
        let mixed = machine(&[
            ("sys/class/drm/renderD128/device/vendor", "0x8086\n"),
            ("sys/class/drm/renderD129/device/vendor", "0x8086\n"),
            ("sys/class/drm/renderD130/device/vendor", "0x10de\n"),
            ("sys/class/drm/card0/device/vendor", "0x8086\n"),
        ]);
        assert_eq!(count_on(&mixed, DeviceKind::Xpu, &[]), Ok(2));
        assert_eq!(
            count_on(&mixed, DeviceKind::Xpu, &[(LEVEL_ZERO, "1")]),
            Ok(1)
        );
        assert_eq!(
            count_on(&mixed, DeviceKind::Xpu, &[(LEVEL_ZERO, "")]),
            Ok(2)
        );
        assert_eq!(
            count_on(&mixed, DeviceKind::Xpu, &[(LEVEL_ZERO, "0.0,0.1")]),
            Ok(2)
        );
        assert_eq!(gpus_on(&mixed, &[]), 0);
    }
}
