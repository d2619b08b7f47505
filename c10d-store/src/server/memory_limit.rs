//! The memory that a server may use for its data on this machine.

use std::fs;
use std::path::Path;

/// Returns a [memory limit](crate::ServerOptions::memory_max) that fits this machine, in bytes: four fifths of its
/// memory or, if that is less, of the limit of this process's control group. The rest is for requests and replies
/// under way. `None` where the system does not report them.
///
/// `c10d store serve` and the servers of `c10d run` use it: a server at its limit refuses writes, whereas the system
/// kills a server without a limit, and the data of all jobs is lost.
///
/// ```
/// use c10d_store::{ServerOptions, recommended_memory_max};
///
/// let options = match recommended_memory_max() {
///     Some(bytes) => ServerOptions::default().with_memory_max(bytes),
///     None => ServerOptions::default(),
/// };
/// assert_eq!(options.memory_max(), recommended_memory_max());
/// ```
#[must_use]
pub fn recommended_memory_max() -> Option<usize> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&cgroup)
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    memory_max(&meminfo, limits)
}

/// Four fifths of the least of the total in /proc/meminfo and these limits. A limit may be `max`.
fn memory_max(meminfo: &str, limits: impl Iterator<Item = String>) -> Option<usize> {
    let total = meminfo.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
        kib.parse::<usize>().ok()?.checked_mul(1024)
    })?;
    let limits = limits.filter_map(|limit| limit.trim().parse::<usize>().ok());
    Some(limits.fold(total, usize::min) / 5 * 4)
}

/// The files with the limits of a group and of those that contain it, from /proc/self/cgroup.
fn limit_files(cgroup: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|it| it == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for group in Path::new(group).ancestors() {
            let group = group.to_string_lossy();
            files.push(format!("{root}{}/{file}", group.trim_end_matches('/')));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_counts() {
        let meminfo = "MemTotal:       1000 kB\nMemFree: 10 kB\n";
        let of = |limits: &[&str]| memory_max(meminfo, limits.iter().map(|it| (*it).to_owned()));
        assert_eq!(of(&[]), Some(819_200));
        assert_eq!(of(&["max\n", "9223372036854771712\n"]), Some(819_200));
        assert_eq!(of(&["max\n", "500000\n", "600000\n"]), Some(400_000));
        assert_eq!(memory_max("", std::iter::empty()), None);
    }

    #[test]
    fn the_limits_of_all_groups_around_the_process_are_found() {
        assert_eq!(
            limit_files("0::/a/b\n"),
            [
                "/sys/fs/cgroup/a/b/memory.max",
                "/sys/fs/cgroup/a/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(
            limit_files("5:cpu:/a\n4:memory:/\n"),
            ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
    }
}
