//! The machine and the versions that were measured.

use std::fs;

/// As Cargo resolved them when this program was built.
const LOCK_FILE: &str = include_str!("../Cargo.lock");

/// Packages whose versions affect the figures.
const PACKAGES: [&str; 5] = ["rpc-agent", "tarpc", "tonic", "h2", "tokio"];

/// Processor, cores and operating system.
pub(crate) fn describe(cores: usize) -> String {
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| cpu_model(&text).map(str::to_owned))
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
        |_| std::env::consts::OS.to_owned(),
        |release| format!("Linux {}", release.trim_end()),
    );
    format!("{model}, {cores} cores, {system}")
}

/// `(name, version)` of the packages measured, from the lock file.
pub(crate) fn versions() -> impl Iterator<Item = (&'static str, &'static str)> {
    PACKAGES
        .into_iter()
        .filter_map(|name| Some((name, version_of(LOCK_FILE, name)?)))
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The first version, if the file lists several.
fn version_of<'a>(lock_file: &'a str, name: &str) -> Option<&'a str> {
    let name_line = format!("name = \"{name}\"");
    let mut lines = lock_file.lines().skip_while(|line| *line != name_line);
    lines
        .nth(1)?
        .strip_prefix("version = \"")?
        .strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_names_every_package_measured() {
        let named: Vec<_> = versions().map(|(name, _)| name).collect();
        assert_eq!(named, PACKAGES);
    }

    #[test]
    fn version_of_matches_the_whole_package_name() {
        let lock_file = "[[package]]\nname = \"tokio-util\"\nversion = \"0.7.1\"\n\n\
                         [[package]]\nname = \"tokio\"\nversion = \"1.2.3\"\n";
        assert_eq!(version_of(lock_file, "tokio"), Some("1.2.3"));
        assert_eq!(version_of(lock_file, "util"), None);
    }

    #[test]
    fn cpu_model_is_the_first_model_name_in_cpuinfo() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other\n";
        assert_eq!(cpu_model(cpuinfo), Some("AMD EPYC"));
        assert_eq!(cpu_model("processor: 0\n"), None);
    }
}
