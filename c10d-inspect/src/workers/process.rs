//! Reads the state of a process on this host from /proc.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use c10d_socket::ProcessStat;
use c10d_stacks::{ProcessActivity, is_python};
#[cfg(target_os = "linux")]
use rustix::net;

use crate::stacks::ProcessState;

/// The most bytes of a file of /proc.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// CPU times are compared over at least this time.
pub(super) const CPU_WINDOW: Duration = Duration::from_secs(1);

/// The CPU time of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pid: u32,
    cpu_ticks: u64,
    start_ticks: u64,
    at: Instant,
}

impl Sample {
    /// `None` if there is no such process, or no /proc.
    pub(super) fn take(pid: u32) -> Option<Self> {
        let stat = ProcessStat::of(pid)?;
        Some(Self {
            pid,
            cpu_ticks: stat.cpu_ticks,
            start_ticks: stat.start_ticks,
            at: Instant::now(),
        })
    }

    /// How long until [`finish`](Self::finish) has waited long enough.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        CPU_WINDOW.saturating_sub(now.duration_since(self.at))
    }

    /// The state of the process now, and its use of the CPU since the sample.
    pub(super) fn finish(&self) -> ProcessState {
        let mut process = ProcessState {
            pid: self.pid,
            ..ProcessState::default()
        };
        let stat = ProcessStat::of(self.pid);
        // Another process may have got the number.
        let Some(stat) = stat.filter(|stat| stat.start_ticks == self.start_ticks) else {
            return process;
        };
        process.state = Some(stat.state);
        let seconds = self.at.elapsed().as_secs_f64();
        let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
        let used = stat.cpu_ticks.saturating_sub(self.cpu_ticks);
        if seconds > 0.0 {
            let percent = 100.0 * used as f64 / ticks_per_second as f64 / seconds;
            process.cpu_percent = Some(percent.round() as u32);
        }
        if let Some(activity) = ProcessActivity::of(self.pid) {
            process.waits_in = activity.waits_in;
            process.system_call = activity.system_call;
        }
        process
    }
}

/// The command line of a process that is not Python. The system may not answer about a process that waits for a file
/// system, so this process is not asked for its command line.
pub(super) fn command_line(process: &ProcessState) -> Option<String> {
    let is_asked = process.is_alive() && process.state != Some('D') && !is_python(process.pid);
    is_asked
        .then(|| c10d_stacks::command_line(process.pid))
        .flatten()
}

/// Whether the process was started with this rank in its environment; `None` if that cannot be read or has none.
pub(super) fn has_rank(pid: u32, rank: usize) -> Option<bool> {
    let environment = read_bytes(&path(pid, "environ"))?;
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|variable| variable.strip_prefix(b"RANK="))?;
    Some(value == rank.to_string().as_bytes())
}

/// The process that listens on a unix socket. Does not block.
#[cfg(target_os = "linux")]
pub(super) fn serving(path: &Path) -> Option<u32> {
    // The queue of a stopped process can be full.
    let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
    let (family, kind) = (net::AddressFamily::UNIX, net::SocketType::STREAM);
    let socket = net::socket_with(family, kind, flags, None).ok()?;
    net::connect(&socket, &net::SocketAddrUnix::new(path).ok()?).ok()?;
    let peer = net::sockopt::socket_peercred(&socket).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

#[cfg(not(target_os = "linux"))]
pub(super) fn serving(_: &Path) -> Option<u32> {
    None
}

pub(super) fn exists(pid: u32) -> bool {
    path(pid, "stat").exists()
}

fn path(pid: u32, name: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(name)
}

fn read_bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn eventually(mut check: impl FnMut() -> bool) {
        let started = Instant::now();
        while !check() {
            assert!(started.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_stopped_process_and_its_rank_are_seen() {
        let mut command = Command::new("sleep");
        let child = Killed(command.arg("600").env("RANK", "3").spawn().unwrap());
        let pid = child.0.id();
        let sample = Sample::take(pid).unwrap();
        eventually(|| has_rank(pid, 3) == Some(true));
        assert_eq!(has_rank(pid, 2), Some(false));
        assert!(sample.finish().is_alive());
        let raw = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(raw, rustix::process::Signal::STOP).unwrap();
        eventually(|| sample.finish().is_stopped());
        assert!(sample.remaining(Instant::now()) <= CPU_WINDOW);
        drop(child);
        assert!(!exists(pid));
        assert_eq!(sample.finish().state, None);
    }
}
