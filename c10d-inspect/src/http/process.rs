//! What the system knows about this process (Linux).

use std::fs;

use c10d_socket::ProcessStat;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// What the system knows about this process; `None` where it does not say.
#[derive(Debug, Default)]
pub(super) struct ProcessUse {
    pub(super) start_unix_seconds: Option<f64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) open_files_max: Option<u64>,
}

impl ProcessUse {
    pub(super) fn read() -> Self {
        let text = |path| fs::read_to_string(path).ok();
        let stat = ProcessStat::of(std::process::id());
        let boot = text("/proc/stat").and_then(|stat| boot_seconds(&stat));
        #[expect(clippy::cast_precision_loss, reason = "seconds with fractions")]
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Self {
            start_unix_seconds: stat
                .as_ref()
                .zip(boot)
                .map(|(stat, boot)| boot + seconds(stat.start_ticks)),
            cpu_seconds: stat.as_ref().map(|stat| seconds(stat.cpu_ticks)),
            resident_bytes: stat
                .as_ref()
                .map(|stat| stat.resident_pages.saturating_mul(page_size() as u64)),
            open_files: open_files(),
            open_files_max: getrlimit(Resource::Nofile).current,
        }
    }
}

fn boot_seconds(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn open_files() -> Option<u64> {
    let folder = "/proc/self/fd";
    // From Linux 6.2 on, the folder's size is the number of its entries. Listing 16,384 of them takes milliseconds.
    let by_size = fs::metadata(folder).ok()?.len();
    if by_size > 0 {
        return Some(by_size);
    }
    let entries = fs::read_dir(folder).ok()?;
    u64::try_from(entries.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_known() {
        let process = ProcessUse::read();
        assert!(process.resident_bytes > Some(1 << 20));
        assert!(process.open_files > Some(2));
        assert!(process.start_unix_seconds > Some(1.7e9));
        assert!(process.cpu_seconds.is_some());
    }
}
