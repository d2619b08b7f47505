//! The processors that this process may use: its affinity, and the quota of its control group.
//!
//! A container on a large machine usually has a quota of a few processors, and its affinity still has all of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The number of processors that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// The processors on which it may run, at least one.
    pub allowed: usize,
    /// The time that its control group gets, in processors, rounded up; `None` without a quota.
    pub quota: Option<usize>,
}

impl Cpus {
    /// Asks the system. `root` is the root of the file system (`/`, except in tests), whose control groups are read
    /// (Linux, version 1 and 2). Without them there is no quota.
    ///
    /// # Errors
    /// An error if the operating system does not report the processors on which this process may run.
    pub fn here(root: &Path) -> io::Result<Self> {
        Ok(Self {
            allowed: allowed()?.max(1),
            quota: quota(root),
        })
    }

    /// The number of workers that can compute at the same time: at least one.
    #[must_use]
    pub fn usable(&self) -> usize {
        let quota = self.quota.unwrap_or(self.allowed);
        self.allowed.min(quota).max(1)
    }
}

#[cfg(target_os = "linux")]
fn allowed() -> io::Result<usize> {
    // Unlike `available_parallelism` this ignores quotas, which are counted separately here. It fails on a machine with
    // more processors than the set can hold.
    match rustix::thread::sched_getaffinity(None) {
        Ok(allowed) => Ok(allowed.count() as usize),
        Err(_) => std::thread::available_parallelism().map(usize::from),
    }
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> io::Result<usize> {
    std::thread::available_parallelism().map(usize::from)
}

/// The smallest quota of the control group of this process and of those above it.
fn quota(root: &Path) -> Option<usize> {
    let read = |path: &Path| {
        let path = path.strip_prefix("/").unwrap_or(path);
        fs::read_to_string(root.join(path)).ok()
    };
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let quotas = folders(&groups, &mounts).into_iter();
    let quotas = quotas.filter_map(|(version, folder)| match version {
        Version::One => {
            let quota = read(&folder.join("cpu.cfs_quota_us"))?;
            let period = read(&folder.join("cpu.cfs_period_us"))?;
            processors(&quota, &period)
        }
        Version::Two => {
            let text = read(&folder.join("cpu.max"))?;
            let (quota, period) = text.trim().split_once(' ')?;
            processors(quota, period)
        }
    });
    quotas.min()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A quota in processors, rounded up; `None` for `max`, -1 and anything that is not a quota.
fn processors(quota: &str, period: &str) -> Option<usize> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|period| *period > 0)?;
    usize::try_from(quota.div_ceil(period).max(1)).ok()
}

/// The folders of the control group that limits processors, and of those above it, from /proc/self/cgroup and
/// /proc/self/mountinfo.
fn folders(groups: &str, mounts: &str) -> Vec<(Version, PathBuf)> {
    let mut all = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
            continue;
        };
        let version = match controllers {
            "" => Version::Two,
            some if some.split(',').any(|name| name == "cpu") => Version::One,
            _ => continue,
        };
        let Some((above, place)) = mounts.lines().find_map(|line| mount(line, version)) else {
            continue;
        };
        // A container may see only its own group, or the path that its group has on the host.
        let below = Path::new(group)
            .strip_prefix(above)
            .unwrap_or(Path::new(""));
        let is_inside = below
            .components()
            .all(|it| matches!(it, std::path::Component::Normal(_)));
        let group = if is_inside {
            place.join(below)
        } else {
            place.clone()
        };
        let inside = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&place));
        all.extend(inside.map(|folder| (version, folder.to_owned())));
    }
    all
}

/// The group and the folder of a line of mountinfo, if groups of this version with the controller for processors are mounted
/// there.
fn mount(line: &str, version: Version) -> Option<(&Path, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (group, place) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1).unwrap_or_default());
    let is_wanted = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
        Version::Two => kind == "cgroup2",
    };
    is_wanted.then(|| (Path::new(group), place.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn quota_on(files: &[(&str, &str)]) -> Option<usize> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        quota(root.path())
    }

    const TWO: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ONE: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn the_smallest_quota_of_a_group_and_its_parents_counts_in_version_2() {
        let groups = ("proc/self/cgroup", "0::/a/b\n");
        let mounts = ("proc/self/mountinfo", TWO);
        for (own, parent, expected) in [
            ("200000 100000", "max 100000", Some(2)),
            ("max 100000", "150000 100000", Some(2)),
            ("400000 100000", "150000 50000", Some(3)),
            ("50000 100000", "max 100000", Some(1)),
            ("max 100000", "max 100000", None),
            ("100001 100000", "", Some(2)),
            ("", "nonsense", None),
            ("100000 0", "-5 100000", None),
            ("99999999999999999999 1", "max", None),
        ] {
            let own_file = ("sys/fs/cgroup/a/b/cpu.max", own);
            let parent_file = ("sys/fs/cgroup/a/cpu.max", parent);
            let found = quota_on(&[groups, mounts, own_file, parent_file]);
            assert_eq!(found, expected, "{own:?} {parent:?}");
        }
    }

    #[test]
    fn the_smallest_quota_of_a_group_and_its_parents_counts_in_version_1() {
        let groups = (
            "proc/self/cgroup",
            "5:cpuset:/x\n4:cpu,cpuacct:/a/b\n0::/c\n",
        );
        let mounts = ("proc/self/mountinfo", ONE);
        let folder = "sys/fs/cgroup/cpu,cpuacct/a";
        for (own, parent, expected) in [
            ("250000", "-1", Some(3)),
            ("-1", "100000", Some(1)),
            ("-1", "-1", None),
            ("800000", "400000", Some(4)),
        ] {
            let paths = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
                .map(|name| [format!("{folder}/b/{name}"), format!("{folder}/{name}")]);
            let found = quota_on(&[
                groups,
                mounts,
                (&paths[0][0], own),
                (&paths[1][0], "100000\n"),
                (&paths[0][1], parent),
                (&paths[1][1], "100000\n"),
            ]);
            assert_eq!(found, expected, "{own:?} {parent:?}");
        }
    }

    #[test]
    fn a_container_whose_mount_or_path_is_its_own_group_reads_that_group() {
        let v1 = "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        for (groups, mounts, file) in [
            // A separate namespace.
            ("0::/\n", TWO, "sys/fs/cgroup/cpu.max"),
            // The path of the host, and a mount of the group.
            (
                "4:cpu:/docker/abc\n",
                v1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
            ),
            (
                "4:cpu:/docker/abc/job\n",
                v1,
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us",
            ),
            // A process that was moved here from outside.
            ("0::/../other\n", TWO, "sys/fs/cgroup/cpu.max"),
            (
                "4:cpu:/elsewhere\n",
                v1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
            ),
        ] {
            let period = file.replace("quota", "period");
            let quota = if file.ends_with("max") {
                "200000 100000"
            } else {
                "200000"
            };
            let mut files = vec![
                ("proc/self/cgroup", groups),
                ("proc/self/mountinfo", mounts),
                (file, quota),
            ];
            if period != file {
                files.push((&period, "100000"));
            }
            assert_eq!(quota_on(&files), Some(2), "{groups}");
        }
        assert_eq!(quota_on(&[("proc/self/cgroup", "0::/\n")]), None);
        assert_eq!(quota_on(&[]), None);
    }

    #[test]
    fn workers_are_limited_by_the_affinity_and_the_quota_and_are_at_least_one() {
        for (allowed, quota, usable) in [
            (64, Some(2), 2),
            (2, Some(64), 2),
            (4, None, 4),
            (1, Some(0), 1),
        ] {
            assert_eq!(Cpus { allowed, quota }.usable(), usable);
        }
        let here = Cpus::here(Path::new("/")).unwrap();
        assert!(here.allowed >= 1 && here.usable() <= here.allowed);
    }
}
