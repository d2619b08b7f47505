//! The limit on open files of a program, and the limit for the programs that it starts.

use std::io;
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sys;

/// The highest soft limit that [`raise_file_limit`] sets: what Linux allows a process by default (`fs.nr_open`).
const FILES_MAX: u64 = 1_048_576;

/// The limit before it was raised; empty while it is not.
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit on open files of this process to its hard limit, or to 1,048,576 if that is lower. A higher soft
/// limit stays.
///
/// For the start of a program, never for a library: other code of the process may depend on a low limit, such as
/// select(2). Only the first call has an effect. A failure is logged at the debug level.
pub fn raise_file_limit() {
    let before = getrlimit(Resource::Nofile);
    let Some(raised) = raised(before) else { return };
    if BEFORE.set(before).is_ok()
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        let error = io::Error::from(error);
        log::debug!("cannot raise the limit on open files: {error}");
    }
}

/// Gives the process that `command` starts the limit on open files that this process had before [`raise_file_limit`].
/// Without such a call it has no effect.
///
/// ```
/// let mut command = std::process::Command::new("true");
/// c10d_socket::restore_file_limit(&mut command);
/// assert!(command.status()?.success());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn restore_file_limit(command: &mut Command) {
    if let Some(before) = BEFORE.get() {
        sys::set_file_limit(command, *before);
    }
}

/// Returns the soft limit on open files of this process; `None` if there is none.
#[must_use]
pub fn file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// `None` if the limit stays as it is.
fn raised(before: Rlimit) -> Option<Rlimit> {
    let most = before.maximum.unwrap_or(FILES_MAX).min(FILES_MAX);
    let is_lower = before.current.is_some_and(|current| current < most);
    is_lower.then_some(Rlimit {
        current: Some(most),
        ..before
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_up_to_the_hard_limit_or_a_million_and_never_lowered() {
        let million = FILES_MAX;
        for (current, maximum, expected) in [
            (Some(256), Some(20_000), Some(20_000)),
            (Some(1024), Some(million), Some(million)),
            (Some(1024), Some(1 << 30), Some(million)),
            (Some(1024), None, Some(million)),
            (Some(1024), Some(1024), None),
            (Some(1 << 21), Some(1 << 30), None),
            (None, None, None),
        ] {
            let before = Rlimit { current, maximum };
            let after = raised(before).map(|after| (after.current, after.maximum));
            let expected = expected.map(|expected| (Some(expected), maximum));
            assert_eq!(after, expected, "{current:?} {maximum:?}");
        }
    }

    #[test]
    fn without_a_raised_limit_a_program_gets_that_of_its_caller() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn"]);
        restore_file_limit(&mut command);
        let output = command.output().unwrap().stdout;
        let limit = file_limit().map_or_else(|| "unlimited".to_owned(), |it| it.to_string());
        assert_eq!(String::from_utf8(output).unwrap().trim(), limit);
    }
}
