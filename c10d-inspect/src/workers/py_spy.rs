//! Stacks from py-spy, if it is installed. It reads the memory of a process from outside, so the process needs no
//! debug server and may be stopped.

use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::stacks::Stacks;

/// The most output of py-spy.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// How often its end is checked.
const POLL: Duration = Duration::from_millis(10);

/// The path of py-spy, if it is in a directory of PATH.
pub(super) fn find() -> Option<PathBuf> {
    let directories = env::var_os("PATH")?;
    let absolute = env::split_paths(&directories).filter(|directory| directory.is_absolute());
    let mut candidates = absolute.map(|directory| directory.join("py-spy"));
    candidates.find(|path| path.is_file())
}

/// The stacks of a Python process, or why there are none, in a clause. Blocks for up to `timeout`.
pub(super) fn dump(
    program: &Path,
    pid: u32,
    is_stopped: bool,
    timeout: Duration,
) -> Result<Stacks, String> {
    let deadline = Instant::now() + timeout;
    let mut command = Command::new(program);
    command.args(["dump", "--full-filenames", "--pid", &pid.to_string()]);
    if is_stopped {
        // It would wait for the process to stop, which has happened already.
        command.arg("--nonblocking");
    }
    c10d_socket::restore_file_limit(&mut command);
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| format!("py-spy cannot be started: {error}"))?;
    let readers = (
        thread::spawn(read_all(child.stdout.take())),
        thread::spawn(read_all(child.stderr.take())),
    );
    let ended = wait(&mut child, deadline);
    if !ended {
        // It may have ended by now.
        let _ = child.kill();
        let _ = child.wait();
    }
    // Its end closes both pipes.
    let output = readers.0.join().unwrap_or_default();
    let errors = readers.1.join().unwrap_or_default();
    if !ended {
        return Err(format!("py-spy does not end within {timeout:?}"));
    }
    Stacks::parse_py_spy(&output).ok_or_else(|| {
        let reason = errors.lines().map(str::trim).find(|line| !line.is_empty());
        format!("py-spy fails: {}", reason.unwrap_or("no Python frame"))
    })
}

/// Whether the child ended before the deadline.
fn wait(child: &mut Child, deadline: Instant) -> bool {
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

fn read_all(pipe: Option<impl Read + Send + 'static>) -> impl FnOnce() -> String + Send + 'static {
    move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read before an error is enough.
            let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(folder: &tempfile::TempDir, text: &str) -> PathBuf {
        let path = folder.path().join("py-spy");
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn its_output_is_read_and_its_failures_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let patience = Duration::from_secs(30);
        let good = "echo 'Thread 7 (idle): \"MainThread\"'; echo \"    $5 ($4:12)\"";
        let stacks = dump(&script(&folder, good), 4711, true, patience).unwrap();
        assert_eq!(stacks.position().unwrap(), "4711:12 in --nonblocking");
        let bad = script(&folder, "echo 'Error: Permission Denied' >&2; exit 1");
        assert_eq!(
            dump(&bad, 1, false, patience).unwrap_err(),
            "py-spy fails: Error: Permission Denied"
        );
        let slow = script(&folder, "exec sleep 600");
        let error = dump(&slow, 1, false, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, "py-spy does not end within 50ms");
    }
}
