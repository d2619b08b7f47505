//! Hosts of a job: network namespaces on a bridge where this is possible, otherwise this machine's loopback interface.
//!
//! The names of namespaces, links and folders, and a variable in the environment of each process, contain the id of
//! this process. The next measurement removes the remains of a killed measurement.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::failure::{Context as _, Failure};
use crate::process::Process;
use crate::workload::etcd::Place;

/// A variable in the environment of all processes of a host.
const VARIABLE: &str = "C10D_GOODPUT_HOST";

/// The prefix of the names of namespaces and links, which have at most 15 characters.
const PREFIX: &str = "gp";

/// The prefix of the names of folders.
const FOLDER_PREFIX: &str = "c10d-goodput-";

/// The size of the file system for the checkpoint and the logs.
const DISK_BYTES: u64 = 16 << 20;

/// The rate of a slow link: a twenty-fifth of a gigabit.
const SLOW_RATE: &str = "40mbit";

/// Hosts by number. Everything ends when it is dropped.
#[derive(Debug)]
pub(super) struct Hosts {
    count: usize,
    has_namespaces: bool,
    folder: PathBuf,
}

impl Hosts {
    /// Starts hosts: on the loopback interface if this is requested, or if namespaces cannot be created.
    pub(super) fn start(count: usize, is_loopback: bool) -> Result<Self, Failure> {
        remove_leftovers();
        let pid = std::process::id();
        let mut hosts = Self {
            count,
            has_namespaces: false,
            folder: std::env::temp_dir().join(format!("{FOLDER_PREFIX}{pid}")),
        };
        hosts.make_folders()?;
        if !is_loopback {
            hosts.has_namespaces = true;
            if let Err(error) = hosts.add_namespaces().and_then(|()| hosts.mount_disk()) {
                log::warn!("all nodes share the loopback interface: {error}");
                remove(pid);
                hosts.has_namespaces = false;
                hosts.make_folders()?;
            }
        }
        Ok(hosts)
    }

    fn make_folders(&self) -> Result<(), Failure> {
        [self.ranks(), self.logs(), self.shared()]
            .into_iter()
            .try_for_each(|folder| fs::create_dir_all(folder).context("cannot make a folder"))
    }

    fn mount_disk(&self) -> Result<(), Failure> {
        let (size, shared) = (format!("size={DISK_BYTES}"), self.shared());
        let words = ["-t", "tmpfs", "-o", &size, "goodput"].map(OsStr::new);
        call("mount", words.into_iter().chain([shared.as_os_str()]))
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Whether links can be cut, and the disk filled. Without, a link always is up.
    pub(super) const fn has_namespaces(&self) -> bool {
        self.has_namespaces
    }

    /// The folder of files that the ranks write for the measurement.
    pub(super) fn ranks(&self) -> PathBuf {
        self.folder.join("ranks")
    }

    /// The folder of files that launchers and servers write.
    pub(super) fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// The checkpoint and the logs of ranks.
    pub(super) fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn address(&self, host: usize) -> IpAddr {
        match self.has_namespaces {
            true => address(host + 2),
            false => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// The name of the network interface of each host.
    pub(super) const fn interface(&self) -> &'static str {
        if self.has_namespaces { "eth0" } else { "lo" }
    }

    /// Returns where the processes of hosts run, from the host `first` on.
    pub(super) fn place(&self, first: usize) -> Place {
        let has_namespaces = self.has_namespaces;
        Box::new(move |host, program| command(has_namespaces, first + host, program))
    }

    /// The begin of a command that runs on this host.
    pub(super) fn command(&self, host: usize, program: &Path) -> Command {
        command(self.has_namespaces, host, program)
    }

    /// Whether a process runs on this host. Another process may have received the id of a process that has exited.
    pub(super) fn has(&self, host: usize, process: Process) -> bool {
        tag_of(process) == Some((std::process::id(), host))
    }

    /// Kills all processes of a host.
    pub(super) fn kill(&self, host: usize) {
        kill_tagged(|of, number| of == std::process::id() && number == host);
    }

    pub(super) fn set_link(&self, host: usize, is_up: bool) -> Result<(), Failure> {
        if !self.has_namespaces {
            return Ok(());
        }
        let state = if is_up { "up" } else { "down" };
        ip(["link", "set", &name(host), state])
    }

    /// Limits the rate of a host's link in both directions, or removes the limit.
    pub(super) fn set_slow(&self, host: usize, is_slow: bool) -> Result<(), Failure> {
        let ends = [(None, name(host)), (Some(name(host)), "eth0".to_owned())];
        for (namespace, link) in ends {
            let mut words: Vec<String> = Vec::new();
            if let Some(namespace) = namespace {
                words.extend(["-n".to_owned(), namespace]);
            }
            let verb = if is_slow { "replace" } else { "del" };
            words.extend(["qdisc", verb, "dev", &link, "root"].map(str::to_owned));
            if is_slow {
                words.extend(
                    [
                        "tbf", "rate", SLOW_RATE, "burst", "64kb", "latency", "100ms",
                    ]
                    .map(str::to_owned),
                );
            }
            call("tc", &words)?;
        }
        Ok(())
    }

    /// Takes all the remaining space. The ranks may have freed some after the last call.
    pub(super) fn fill_disk(&self) {
        let open = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.filler());
        if let Ok(mut filler) = open {
            for size in [1 << 16, 1 << 12, 1] {
                while filler.write_all(&[0; 1 << 16][..size]).is_ok() && size > 1 {}
            }
        }
    }

    pub(super) fn empty_disk(&self) {
        let _ = fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.shared().join("filler")
    }

    fn add_namespaces(&self) -> Result<(), Failure> {
        let bridge = bridge();
        ip(["link", "add", &bridge, "type", "bridge"])?;
        ip(["addr", "add", &format!("{}/24", address(1)), "dev", &bridge])?;
        ip(["link", "set", &bridge, "up"])?;
        for host in 0..self.count {
            let name = name(host);
            ip(["netns", "add", &name])?;
            ip([
                "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ])?;
            ip(["link", "set", &name, "master", &bridge, "up"])?;
            let address = format!("{}/24", self.address(host));
            ip(["-n", &name, "addr", "add", &address, "dev", "eth0"])?;
            ip(["-n", &name, "link", "set", "eth0", "up"])?;
            ip(["-n", &name, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        remove(std::process::id());
    }
}

/// Returns an address from the range for benchmarks (RFC 2544), so that two measurements at a time rarely have the
/// same.
fn address(number: usize) -> IpAddr {
    let measurement = (std::process::id() % 256) as u8;
    IpAddr::V4(Ipv4Addr::new(198, 18, measurement, number as u8))
}

fn command(has_namespaces: bool, host: usize, program: &Path) -> Command {
    let mut command = match has_namespaces {
        true => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &name(host)]).arg(program);
            command
        }
        false => Command::new(program),
    };
    command.env(VARIABLE, tag(host)).stdin(Stdio::null());
    command
}

/// Returns the name of a host's namespace and of the outer end of its link.
fn name(host: usize) -> String {
    format!("{PREFIX}{}n{host}", std::process::id())
}

fn bridge() -> String {
    format!("{PREFIX}{}b", std::process::id())
}

fn tag(host: usize) -> String {
    format!("{}/{host}", std::process::id())
}

fn ip<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<(), Failure> {
    call("ip", words)
}

fn call(program: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), Failure> {
    let mut command = Command::new(program);
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// Kills the processes of measurements, by the id of the measurement and the number of the host, until there are none.
fn kill_tagged(is_meant: impl Fn(u32, usize) -> bool) {
    for _ in 0..100 {
        let mut is_any = false;
        for (process, measurement, host) in tagged() {
            if is_meant(measurement, host) {
                is_any |= process.signal(Signal::KILL).is_ok();
            }
        }
        if !is_any {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// All live processes of hosts of measurements.
fn tagged() -> Vec<(Process, u32, usize)> {
    Process::all()
        .filter_map(|process| {
            let (measurement, host) = tag_of(process)?;
            Some((process, measurement, host))
        })
        .collect()
}

/// The measurement and the host of a live process.
fn tag_of(process: Process) -> Option<(u32, usize)> {
    let tag = process.variable(VARIABLE)?;
    let (measurement, host) = tag.split_once('/')?;
    Some((measurement.parse().ok()?, host.parse().ok()?))
}

/// Removes the remains of killed measurements.
fn remove_leftovers() {
    let mut pids: Vec<u32> = tagged().iter().map(|it| it.1).collect();
    let number = |text: &str| {
        let end = text
            .find(|it: char| !it.is_ascii_digit())
            .unwrap_or(text.len());
        text[..end].parse::<u32>().ok()
    };
    for (folder, prefix) in [("/sys/class/net", PREFIX), ("/run/netns", PREFIX)] {
        pids.extend(
            names(folder.as_ref(), prefix)
                .iter()
                .filter_map(|it| number(&it[prefix.len()..])),
        );
    }
    let folders = names(&std::env::temp_dir(), FOLDER_PREFIX);
    pids.extend(
        folders
            .iter()
            .filter_map(|it| number(&it[FOLDER_PREFIX.len()..])),
    );
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if !name.starts_with("c10d-bench") {
            remove(pid);
        }
    }
}

fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|it| it.file_name().into_string().ok());
    names.filter(|it| it.starts_with(prefix)).collect()
}

/// Removes everything of a measurement. Missing parts were never created, or have been removed already.
fn remove(measurement: u32) {
    kill_tagged(|of, _| of == measurement);
    let prefix = format!("{PREFIX}{measurement}");
    for name in names("/run/netns".as_ref(), &format!("{prefix}n")) {
        let _ = ip(["netns", "del", &name]);
    }
    for part in ["n", "b"] {
        for name in names("/sys/class/net".as_ref(), &format!("{prefix}{part}")) {
            let _ = ip(["link", "del", &name]);
        }
    }
    let folder = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{measurement}"));
    // A killed process may have a file open until it has exited.
    let shared = folder.join("shared");
    let _ = call("umount", [OsStr::new("--lazy"), shared.as_os_str()]);
    let _ = fs::remove_dir_all(folder);
}

/// A file for the output of a process, which may have one from its earlier lives.
pub(super) fn log_file(folder: &Path, name: &str) -> Result<File, Failure> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join(name));
    file.with_context(|| format!("cannot write the log {name}"))
}
