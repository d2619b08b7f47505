//! The name of this host.

/// The name that this host has for itself, often without a domain: what `hostname` prints and PyTorch's workers publish.
/// Empty on a host without a name. Does no lookup.
///
/// ```
/// println!("on {}", c10d_socket::host_name());
/// ```
#[must_use]
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn it_is_the_kernels() {
        let kernels = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(super::host_name(), kernels.trim_end());
    }
}
