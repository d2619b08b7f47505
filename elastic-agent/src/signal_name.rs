//! Names of signals.

use std::borrow::Cow;

/// The name of a signal as Python knows it; `None` for one without a name.
pub(crate) fn signal_name(number: i32) -> Option<&'static str> {
    match number {
        // Python knows these two, signal-hook does not.
        #[cfg(target_os = "linux")]
        libc::SIGPWR => Some("SIGPWR"),
        #[cfg(target_os = "linux")]
        libc::SIGSTKFLT => Some("SIGSTKFLT"),
        _ => signal_hook::low_level::signal_name(number),
    }
}

/// The name of a signal for messages: `SIGTERM`, or `signal 40` for one without a name.
pub(crate) fn name_of(number: i32) -> Cow<'static, str> {
    signal_name(number).map_or_else(|| format!("signal {number}").into(), Cow::Borrowed)
}

/// What is added for a process that SIGKILL has ended by surprise: no process can say so itself.
pub(crate) const OUT_OF_MEMORY: &str =
    "; the kernel sends it when memory runs out: see dmesg, memory.events";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_signals_have_pythons_names() {
        assert_eq!(signal_name(9), Some("SIGKILL"));
        assert_eq!(signal_name(15), Some("SIGTERM"));
        if cfg!(target_os = "linux") {
            assert_eq!(signal_name(16), Some("SIGSTKFLT"));
            assert_eq!(signal_name(30), Some("SIGPWR"));
        }
        for number in [0, -1, 40, i32::MAX] {
            assert_eq!(signal_name(number), None);
        }
    }
}
